//! The ordered set of wake-up times: every source of events has at most one pending event, and a
//! winner tree finds the earliest in O(1) and moves one in O(log N), without allocating after its
//! construction. Knows time points and ranks as numbers; knows nothing of what is woken.

use crate::units::SimTime;

/// Winner tree over `N` keys: the smallest is at the root. Fixed size.
#[derive(Debug, Clone)]
pub struct MinTree<K> {
    /// `nodes[1]` is the root, node `i` has children `2i` and `2i + 1`, leaf `l` is `leaves + l`.
    nodes: Vec<K>,
    /// Number of leaves, a power of two.
    leaves: usize,
}

impl<K: Copy + Ord> MinTree<K> {
    /// A tree of `len` keys that are all `key`.
    #[must_use]
    pub fn new(len: usize, key: K) -> Self {
        let leaves = len.next_power_of_two();
        Self { nodes: vec![key; 2 * leaves], leaves }
    }

    /// The smallest key.
    #[must_use]
    #[inline]
    pub fn min(&self) -> K {
        self.nodes[1]
    }

    /// The key at `index`.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> K {
        self.nodes[self.leaves + index]
    }

    /// Replaces the key at `index`.
    #[inline]
    pub fn set(&mut self, index: usize, key: K) {
        let nodes = self.nodes.as_mut_slice();
        let mut node = self.leaves + index;
        if nodes[node] == key {
            return;
        }
        nodes[node] = key;
        while node > 1 {
            node /= 2;
            let winner = nodes[2 * node].min(nodes[2 * node + 1]);
            // An unchanged winner leaves every match above as it was.
            if nodes[node] == winner {
                return;
            }
            nodes[node] = winner;
        }
    }
}

/// Place of a pending event in the total order: time, then rank, then number of its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WakeKey(u128);

impl WakeKey {
    /// Later than every event.
    pub const NEVER: Self = Self(u128::MAX);

    /// The event of `source` at `at` with `rank`; the smaller rank goes first at one instant.
    #[must_use]
    #[inline]
    pub const fn new(at: SimTime, rank: u8, source: u32) -> Self {
        Self(((at.0 as u128) << 64) | ((rank as u128) << 32) | source as u128)
    }

    /// When.
    #[must_use]
    #[inline]
    pub const fn at(self) -> SimTime {
        SimTime((self.0 >> 64) as u64)
    }

    /// Rank at that instant.
    #[must_use]
    #[inline]
    pub const fn rank(self) -> u8 {
        (self.0 >> 32) as u8
    }

    /// Whose event it is.
    #[must_use]
    #[inline]
    pub const fn source(self) -> u32 {
        self.0 as u32
    }

    /// True for [`WakeKey::NEVER`].
    #[must_use]
    #[inline]
    pub const fn is_never(self) -> bool {
        self.0 == Self::NEVER.0
    }
}

/// At most one pending event of each of `N` sources, in the order (time, rank, source).
#[derive(Debug, Clone)]
pub struct WakeQueue {
    tree: MinTree<WakeKey>,
}

impl WakeQueue {
    /// A queue for sources `0..sources`, none of them pending.
    #[must_use]
    pub fn new(sources: usize) -> Self {
        Self { tree: MinTree::new(sources, WakeKey::NEVER) }
    }

    /// The first pending event, [`WakeKey::NEVER`] when there is none.
    #[must_use]
    #[inline]
    pub fn first(&self) -> WakeKey {
        self.tree.min()
    }

    /// True when no source is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first().is_never()
    }

    /// True when `source` is pending.
    #[must_use]
    pub fn is_pending(&self, source: u32) -> bool {
        !self.tree.get(source as usize).is_never()
    }

    /// Sets the pending event of `source`, in place of the one before.
    #[inline]
    pub fn set(&mut self, source: u32, at: SimTime, rank: u8) {
        self.tree.set(source as usize, WakeKey::new(at, rank, source));
    }

    /// Leaves `source` without a pending event.
    #[inline]
    pub fn clear(&mut self, source: u32) {
        self.tree.set(source as usize, WakeKey::NEVER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_key_holds_its_parts() {
        let key = WakeKey::new(SimTime(u64::MAX - 1), 7, u32::MAX);
        assert_eq!((key.at(), key.rank(), key.source()), (SimTime(u64::MAX - 1), 7, u32::MAX));
        assert!(!key.is_never());
        assert!(WakeKey::new(SimTime::MAX, u8::MAX, u32::MAX) < WakeKey::NEVER);
    }

    #[test]
    fn equal_times_leave_by_rank_then_source() {
        let mut queue = WakeQueue::new(3);
        queue.set(2, SimTime(5), 1);
        queue.set(0, SimTime(5), 2);
        queue.set(1, SimTime(5), 1);
        let mut order = Vec::new();
        while !queue.is_empty() {
            order.push(queue.first().source());
            queue.clear(queue.first().source());
        }
        assert_eq!(order, [1, 2, 0]);
    }

    proptest! {
        #[test]
        fn behaves_like_an_ordered_set(
            sources in 1u32..40,
            moves in
                prop::collection::vec((0u32..40, prop::option::of((0u64..20, 0u8..4))), 0..300),
        ) {
            let mut queue = WakeQueue::new(sources as usize);
            let mut pending = vec![None; sources as usize];
            let mut model = BTreeSet::new();
            for (source, event) in moves {
                let source = source % sources;
                if let Some(old) = pending[source as usize].take() {
                    model.remove(&old);
                }
                match event {
                    Some((at, rank)) => {
                        queue.set(source, SimTime(at), rank);
                        let key = (at, rank, source);
                        pending[source as usize] = Some(key);
                        model.insert(key);
                    }
                    None => queue.clear(source),
                }
                prop_assert_eq!(queue.is_pending(source), event.is_some());
                match model.first() {
                    Some(&(at, rank, source)) => {
                        prop_assert_eq!(queue.first(), WakeKey::new(SimTime(at), rank, source));
                    }
                    None => prop_assert!(queue.is_empty()),
                }
            }
        }
    }
}
