//! Which cached blocks a prompt can start from when several KV groups must agree. Rules of vLLM's
//! KV cache coordinator; sees chains and which blocks hold them, nothing of requests or queues.

use super::blocks::{BlockId, BlockPool, NULL};
use super::chains::ChainId;
use super::groups::Group;

/// Cached blocks at the start of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hit {
    /// Whole blocks that they stand for in each group.
    pub(super) length: u32,
    /// The blocks, for each KV group; the null block where a group needs none.
    pub(super) blocks: Vec<Vec<BlockId>>,
    /// Whole blocks that full attention alone would have hit.
    pub(super) full_length: u32,
}

impl Hit {
    /// A hit of nothing.
    pub(super) fn none(groups: usize) -> Self {
        Self { length: 0, blocks: vec![Vec::new(); groups], full_length: 0 }
    }
}

/// The longest hit within `chain` that all groups have. Full attention is looked up first; the
/// others follow within what was found so far, until none of them shortens it.
pub(super) fn longest(groups: &[Group], pool: &BlockPool, chain: &[ChainId]) -> Hit {
    let kinds = Kind::of(groups);
    let mut hit = Hit::none(groups.len());
    let mut length = chain.len();
    if let Some(full) = kinds.iter().find(|kind| kind.group.tail().is_none()) {
        length = full.lookup(pool, chain, &mut hit.blocks);
        hit.full_length = length as u32;
    }
    loop {
        let before = length;
        for kind in kinds.iter().filter(|kind| kind.group.tail().is_some()) {
            length = kind.lookup(pool, &chain[..length], &mut hit.blocks);
        }
        if length == before {
            break;
        }
    }
    for blocks in &mut hit.blocks {
        blocks.truncate(length);
    }
    hit.length = length as u32;
    hit
}

/// Groups of one kind, which are looked up together: a block counts as cached when each of them
/// has it.
struct Kind {
    group: Group,
    members: Vec<usize>,
}

impl Kind {
    fn of(groups: &[Group]) -> Vec<Self> {
        let mut kinds: Vec<Self> = Vec::new();
        for (index, &group) in groups.iter().enumerate() {
            match kinds.iter_mut().find(|kind| kind.group == group) {
                Some(kind) => kind.members.push(index),
                None => kinds.push(Self { group, members: vec![index] }),
            }
        }
        kinds
    }

    /// Fills in the blocks of the longest hit in these groups; hands back its length.
    fn lookup(&self, pool: &BlockPool, chain: &[ChainId], blocks: &mut [Vec<BlockId>]) -> usize {
        let cached = |at: usize| -> Option<Vec<BlockId>> {
            self.members.iter().map(|&group| pool.lookup(group as u32, chain[at])).collect()
        };
        let (length, needed) = match self.group.tail() {
            None => {
                let length = (0..chain.len()).take_while(|&at| cached(at).is_some()).count();
                (length, length)
            }
            Some(tail) => rightmost_run(chain.len(), tail as usize, |at| cached(at).is_some()),
        };
        for &member in &self.members {
            blocks[member].clear();
            blocks[member].resize(length - needed, NULL);
        }
        for at in length - needed..length {
            let found = cached(at).expect("invariant: it was found just now");
            for (&member, block) in self.members.iter().zip(found) {
                blocks[member].push(block);
            }
        }
        length
    }
}

/// From the right, the first place below `end` where `tail` places in a row are cached; fewer
/// suffice when the row starts at place 0. Hands back where the row ends and how long it is.
fn rightmost_run(end: usize, tail: usize, cached: impl Fn(usize) -> bool) -> (usize, usize) {
    let mut run = 0;
    for at in (0..end).rev() {
        if cached(at) {
            run += 1;
            if run == tail {
                return (at + run, run);
            }
        } else {
            run = 0;
        }
    }
    (run, run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::config::{EngineConfig, KvGroup};
    use proptest::prelude::*;

    const BLOCK: u32 = 4;

    fn kinds() -> impl Strategy<Value = Vec<KvGroup>> {
        let kind = prop_oneof![
            Just(KvGroup::Full),
            (1u32..20).prop_map(|window| KvGroup::SlidingWindow { window }),
            Just(KvGroup::SlidingWindow { window: 9 }),
            Just(KvGroup::Mamba { align: true }),
        ];
        prop::collection::vec(kind, 1..5)
    }

    fn groups(kinds: &[KvGroup]) -> Vec<Group> {
        let config = EngineConfig {
            block_size: BLOCK,
            kv_groups: kinds.to_vec(),
            ..super::super::tests::config()
        };
        Group::all(&config)
    }

    proptest! {
        /// The hit is the longest length at which every group has what its next token reads.
        #[test]
        fn the_longest_hit_has_in_each_group_what_the_next_token_reads(
            kinds in kinds(),
            missing in prop::collection::vec((0usize..4, 0u32..12), 0..14),
            most in 0u32..12,
        ) {
            let groups = groups(&kinds);
            let is_cached = |group: usize, at: u32| !missing.contains(&(group, at));
            let mut pool = BlockPool::new(100);
            for at in 0..12 {
                for group in 0..groups.len() {
                    let [id] = pool.take(1)[..] else { unreachable!("one was asked for") };
                    if is_cached(group, at) {
                        pool.cache(id, group as u32, ChainId(at));
                    }
                }
            }
            let has = |length: u32| (0..groups.len()).all(|g| {
                let tail = groups[g].tail().unwrap_or(length);
                (length.saturating_sub(tail)..length).all(|at| is_cached(g, at))
            });
            let expected = (0..=most).rev().find(|&length| has(length)).unwrap();
            let chain: Vec<ChainId> = (0..most).map(ChainId).collect();
            let hit = longest(&groups, &pool, &chain);
            prop_assert_eq!(hit.length, expected);
            for (g, blocks) in hit.blocks.iter().enumerate() {
                prop_assert_eq!(blocks.len() as u32, expected);
                let tail = groups[g].tail().unwrap_or(expected);
                for (at, &block) in (0..).zip(blocks) {
                    let found = pool.lookup(g as u32, ChainId(at)).unwrap_or(NULL);
                    let needed = at + tail >= expected;
                    prop_assert_eq!(block, if needed { found } else { NULL });
                }
            }
        }
    }
}
