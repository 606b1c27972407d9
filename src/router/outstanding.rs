//! Exact counts of requests that a router has sent and that have not ended, with the least loaded
//! replica at hand. Knows the shape of the fleet.

use super::fleet::FleetShape;
use crate::kernel::wake::MinTree;

/// Count in the high half, replica in the low half: the smallest key is the least loaded replica,
/// of equals the first.
const fn key(count: u32, replica: u32) -> u64 {
    ((count as u64) << 32) | replica as u64
}

/// Requests in flight by replica: one winner tree a pool, so that pools which cannot take a
/// request are passed over whole.
#[derive(Debug, Clone)]
pub struct Outstanding {
    counts: Vec<u32>,
    trees: Vec<MinTree<u64>>,
}

impl Outstanding {
    /// Counts of zero.
    #[must_use]
    pub fn new(fleet: &FleetShape) -> Self {
        let trees = fleet.pools().iter().map(|pool| {
            let mut tree = MinTree::new(pool.replicas as usize, u64::MAX);
            for (leaf, replica) in pool.members().enumerate() {
                tree.set(leaf, key(0, replica));
            }
            tree
        });
        Self { trees: trees.collect(), counts: vec![0; fleet.replicas() as usize] }
    }

    /// Requests in flight on `replica`.
    #[must_use]
    #[inline]
    pub fn count(&self, replica: u32) -> u32 {
        self.counts[replica as usize]
    }

    /// The replica with the fewest requests of those that take a prompt of `prompt_tokens`; of
    /// equals the first.
    #[must_use]
    #[inline]
    pub fn least(&self, fleet: &FleetShape, prompt_tokens: u32) -> Option<u32> {
        let pools = fleet.pools().iter().zip(&self.trees);
        let best = pools.filter(|(pool, _)| pool.takes(prompt_tokens)).map(|(_, tree)| tree.min());
        best.min().map(|key| key as u32)
    }

    /// One more on `replica`.
    #[inline]
    pub fn sent(&mut self, fleet: &FleetShape, replica: u32) {
        self.counts[replica as usize] += 1;
        self.update(fleet, replica);
    }

    /// One less on `replica`.
    #[inline]
    pub fn ended(&mut self, fleet: &FleetShape, replica: u32) {
        self.counts[replica as usize] -= 1;
        self.update(fleet, replica);
    }

    #[inline]
    fn update(&mut self, fleet: &FleetShape, replica: u32) {
        let pool = fleet.pool_of(replica) as usize;
        let leaf = (replica - fleet.pools()[pool].first) as usize;
        self.trees[pool].set(leaf, key(self.counts[replica as usize], replica));
    }
}
