//! The pool of KV blocks: reference counts, the free queue, and which block holds which cached
//! chain. Rules 4 and 5 of vLLM's block pool: blocks are taken from the front of the queue and lose
//! what they held; released blocks that hold nothing go to the front, cached ones to the end. Knows
//! chains as opaque identities, nothing of requests.

use super::chains::ChainId;
use std::collections::BTreeMap;

/// Number of a block. Block 0 is the null block, which is never free and never handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BlockId(pub(super) u32);

/// Stands in block tables where a group needs no block.
pub(super) const NULL: BlockId = BlockId(0);

/// What a cached block is found by: blocks of different KV groups hold different layers.
type Key = (u32, ChainId);

#[derive(Debug, Clone, Default)]
struct Block {
    /// Requests that hold it; 0 exactly when it is in the free queue.
    holders: u32,
    /// Its group and the chain it holds, once full and cached.
    key: Option<Key>,
    /// Its key in the free queue.
    place: Option<i64>,
}

/// All blocks of one engine.
#[derive(Debug)]
pub(super) struct BlockPool {
    blocks: Vec<Block>,
    /// The free queue: blocks by place, the lowest place is taken first.
    free: BTreeMap<i64, BlockId>,
    /// Places beyond either end of the queue.
    before_front: i64,
    after_back: i64,
    /// Blocks that hold each chain, in the order in which they were cached.
    cached: BTreeMap<Key, Vec<BlockId>>,
    evicted: u64,
}

impl BlockPool {
    /// `num_gpu_blocks` blocks, the null block included; all others free, 1 first.
    pub(super) fn new(num_gpu_blocks: u32) -> Self {
        let mut pool = Self {
            blocks: vec![Block::default(); num_gpu_blocks as usize],
            free: BTreeMap::new(),
            before_front: 0,
            after_back: 1,
            cached: BTreeMap::new(),
            evicted: 0,
        };
        for id in 1..num_gpu_blocks {
            pool.push_back(BlockId(id));
        }
        pool
    }

    /// Blocks in the free queue.
    pub(super) fn free_count(&self) -> u32 {
        self.free.len() as u32
    }

    /// Cached blocks that lost their chain because they were handed out again, since the start.
    pub(super) const fn evicted(&self) -> u64 {
        self.evicted
    }

    /// The free queue, first to be taken first.
    pub(super) fn free_queue(&self) -> Vec<u32> {
        self.free.values().map(|id| id.0).collect()
    }

    /// True when the block is in the free queue.
    pub(super) fn is_free(&self, id: BlockId) -> bool {
        self.block(id).place.is_some()
    }

    /// The block of `group` to reuse for `chain`: the one cached first among those that still
    /// hold it.
    pub(super) fn lookup(&self, group: u32, chain: ChainId) -> Option<BlockId> {
        self.cached.get(&(group, chain)).and_then(|blocks| blocks.first().copied())
    }

    /// Takes `count` blocks from the front of the free queue for one holder each. A block that
    /// held a chain forgets it: this is the only kind of eviction. The caller has checked that
    /// `count` blocks are free.
    pub(super) fn take(&mut self, count: u32) -> Vec<BlockId> {
        assert!(count <= self.free_count(), "{count} blocks wanted, {} free", self.free_count());
        let mut taken = Vec::with_capacity(count as usize);
        while (taken.len() as u32) < count
            && let Some((_, id)) = self.free.pop_first()
        {
            let block = self.block_mut(id);
            block.place = None;
            block.holders = 1;
            if let Some(key) = block.key.take() {
                self.evicted += 1;
                self.forget(key, id);
            }
            taken.push(id);
        }
        taken
    }

    /// One more request holds a cached block; a free one leaves the queue.
    pub(super) fn touch(&mut self, id: BlockId) {
        let block = self.block_mut(id);
        block.holders += 1;
        if let Some(place) = block.place.take() {
            self.free.remove(&place);
        }
    }

    /// A held block of `group` is full: it holds `chain` from now on and can be found by it.
    pub(super) fn cache(&mut self, id: BlockId, group: u32, chain: ChainId) {
        let key = (group, chain);
        let block = self.block_mut(id);
        assert!(block.holders > 0 && block.key.is_none(), "{id:?} cannot be cached");
        block.key = Some(key);
        self.cached.entry(key).or_default().push(id);
    }

    /// One holder lets go of its `blocks`, given in the order of its tokens. Of those that nobody
    /// holds any longer, the ones without a chain go to the front of the free queue and the cached
    /// ones to its end, the last block of the request first in both.
    pub(super) fn release(&mut self, blocks: &[BlockId]) {
        let mut unheld = Vec::new();
        for &id in blocks {
            let block = self.block_mut(id);
            assert!(block.holders > 0, "{id:?} is released but not held");
            block.holders -= 1;
            if block.holders == 0 {
                unheld.push(id);
            }
        }
        // Pushed to the front one by one, the last block ends up first.
        for &id in &unheld {
            if self.block(id).key.is_none() {
                self.push_front(id);
            }
        }
        for &id in unheld.iter().rev() {
            if self.block(id).key.is_some() {
                self.push_back(id);
            }
        }
    }

    fn push_front(&mut self, id: BlockId) {
        let place = self.before_front;
        self.before_front -= 1;
        self.block_mut(id).place = Some(place);
        self.free.insert(place, id);
    }

    fn push_back(&mut self, id: BlockId) {
        let place = self.after_back;
        self.after_back += 1;
        self.block_mut(id).place = Some(place);
        self.free.insert(place, id);
    }

    /// `id` is no longer found by `key`.
    fn forget(&mut self, key: Key, id: BlockId) {
        if let Some(blocks) = self.cached.get_mut(&key) {
            blocks.retain(|&other| other != id);
            if blocks.is_empty() {
                self.cached.remove(&key);
            }
        }
    }

    fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id.0 as usize]
    }

    fn block_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id.0 as usize]
    }

    /// Checks that every block but the null block is either held or free, and that the index of
    /// chains says what the blocks hold.
    #[cfg(test)]
    pub(super) fn check(&self, holders: &BTreeMap<BlockId, u32>) {
        let null = self.block(NULL);
        assert!(null.holders == 0 && null.place.is_none() && null.key.is_none());
        for (number, block) in self.blocks.iter().enumerate().skip(1) {
            let id = BlockId(number as u32);
            assert_eq!(block.holders, holders.get(&id).copied().unwrap_or(0), "{id:?}");
            assert_eq!(block.holders == 0, block.place.is_some(), "{id:?}");
            if let Some(place) = block.place {
                assert_eq!(self.free.get(&place), Some(&id));
            }
            let found = self.cached.values().filter(|blocks| blocks.contains(&id)).count();
            assert_eq!(found, usize::from(block.key.is_some()), "{id:?}");
            if let Some(key) = block.key {
                assert!(self.cached[&key].contains(&id));
            }
        }
        let used = self.blocks.iter().filter(|block| block.holders > 0).count();
        assert_eq!(used + self.free.len(), self.blocks.len() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POOL: u32 = 12;

    fn ids(numbers: &[u32]) -> Vec<BlockId> {
        numbers.iter().map(|&n| BlockId(n)).collect()
    }

    #[test]
    fn released_blocks_queue_last_first_empty_ones_in_front_cached_ones_behind() {
        let mut pool = BlockPool::new(8);
        let taken = pool.take(5);
        assert_eq!(taken, ids(&[1, 2, 3, 4, 5]));
        pool.cache(BlockId(1), 0, ChainId(1));
        pool.cache(BlockId(2), 0, ChainId(2));
        pool.release(&taken);
        assert_eq!(pool.free_queue(), [5, 4, 3, 6, 7, 2, 1]);
    }

    #[test]
    fn a_chain_is_found_in_the_block_that_was_cached_first_and_still_exists() {
        let mut pool = BlockPool::new(4);
        let taken = pool.take(3);
        for &id in &taken {
            pool.cache(id, 0, ChainId(7));
        }
        assert_eq!(pool.lookup(0, ChainId(7)), Some(BlockId(1)));
        pool.release(&taken[..1]);
        assert_eq!(pool.lookup(0, ChainId(7)), Some(BlockId(1)), "free, but not handed out");
        assert_eq!(pool.take(1), ids(&[1]));
        assert_eq!(pool.evicted(), 1);
        assert_eq!(pool.lookup(0, ChainId(7)), Some(BlockId(2)));
    }

    #[test]
    fn groups_do_not_find_each_others_blocks() {
        let mut pool = BlockPool::new(4);
        pool.take(2);
        pool.cache(BlockId(1), 0, ChainId(7));
        assert_eq!(pool.lookup(1, ChainId(7)), None);
        pool.cache(BlockId(2), 1, ChainId(7));
        assert_eq!(pool.lookup(0, ChainId(7)), Some(BlockId(1)));
        assert_eq!(pool.lookup(1, ChainId(7)), Some(BlockId(2)));
    }

    #[test]
    fn a_touched_block_leaves_the_queue_until_its_last_holder_lets_go() {
        let mut pool = BlockPool::new(4);
        let taken = pool.take(1);
        pool.cache(BlockId(1), 0, ChainId(1));
        pool.touch(BlockId(1));
        pool.release(&taken);
        assert!(!pool.is_free(BlockId(1)));
        pool.release(&taken);
        assert_eq!(pool.free_queue(), [2, 3, 1]);
        pool.touch(BlockId(1));
        assert_eq!(pool.free_queue(), [2, 3]);
    }

    /// What a holder of blocks may do.
    #[derive(Debug, Clone)]
    enum Act {
        /// A new holder of hit blocks for chains `from..from + hits`, and new blocks after them.
        Hold { from: u32, hits: u32, new: u32 },
        /// A holder names its first block without a chain.
        Cache { holder: usize, chain: u32 },
        /// A holder lets go of everything.
        Release { holder: usize },
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            (0..6u32, 0..3u32, 0..5u32).prop_map(|(from, hits, new)| Act::Hold { from, hits, new }),
            (0..8usize, 0..6u32).prop_map(|(holder, chain)| Act::Cache { holder, chain }),
            (0..8usize).prop_map(|holder| Act::Release { holder }),
        ]
    }

    fn apply(pool: &mut BlockPool, holders: &mut Vec<Vec<BlockId>>, act: &Act) {
        match *act {
            Act::Hold { from, hits, new } => {
                let hit: Vec<BlockId> =
                    (from..from + hits).map_while(|c| pool.lookup(0, ChainId(c))).collect();
                hit.iter().for_each(|&id| pool.touch(id));
                let new = new.min(pool.free_count());
                let queue = pool.free_queue();
                let taken = pool.take(new);
                assert_eq!(taken, ids(&queue[..new as usize]), "taken from the front");
                assert!(taken.iter().all(|id| !hit.contains(id)));
                holders.push(hit.into_iter().chain(taken).collect());
            }
            Act::Cache { holder, chain } => {
                let Some(blocks) = holders.get(holder) else { return };
                if let Some(&id) = blocks.iter().find(|&&id| pool.block(id).key.is_none()) {
                    let found = pool.lookup(0, ChainId(chain));
                    pool.cache(id, 0, ChainId(chain));
                    assert_eq!(pool.lookup(0, ChainId(chain)), found.or(Some(id)), "first cached");
                }
            }
            Act::Release { holder } if holder < holders.len() => {
                pool.release(&holders.remove(holder));
            }
            Act::Release { .. } => {}
        }
    }

    proptest! {
        #[test]
        fn every_block_is_free_or_held_and_found_by_what_it_holds(
            acts in prop::collection::vec(act(), 0..60)
        ) {
            let mut pool = BlockPool::new(POOL);
            let mut holders: Vec<Vec<BlockId>> = Vec::new();
            for act in &acts {
                apply(&mut pool, &mut holders, act);
                let mut counts = BTreeMap::new();
                for &id in holders.iter().flatten() {
                    *counts.entry(id).or_insert(0) += 1;
                }
                pool.check(&counts);
            }
            for blocks in holders.drain(..) {
                pool.release(&blocks);
            }
            prop_assert_eq!(pool.free_count(), POOL - 1);
            // Everything can be taken again, and then nothing is cached.
            pool.take(POOL - 1);
            prop_assert!(pool.cached.is_empty());
        }
    }
}
