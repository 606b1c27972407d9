//! The run-length cache against a plain one of single blocks.

use super::*;
use crate::engine::request::RequestId;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

impl KvPool {
    /// Checks the books; O(pieces).
    fn audit(&self) {
        let (mut queued, mut anonymous) = (0, 0);
        let mut at = self.head;
        let mut before = NONE;
        while at != NONE {
            let p = &self.pieces[at as usize];
            assert_eq!(p.prev, before);
            assert_eq!(p.refs, 0, "a held piece in the free queue");
            assert!(p.lo < p.hi);
            *(if p.node == NONE { &mut anonymous } else { &mut queued }) += p.hi - p.lo;
            before = at;
            at = p.next;
        }
        assert_eq!(self.tail, before);
        assert_eq!(queued, self.hashed);
        let all_queued = self.order == FreeOrder::AsReleased;
        assert_eq!(anonymous, if all_queued { self.anonymous } else { 0 });
        assert!(self.free() <= self.usable);
    }

    /// Nodes and pieces alive.
    fn alive(&self) -> (usize, usize) {
        (self.nodes.len() - self.node_free.len(), self.pieces.len() - self.piece_free.len())
    }
}

/// A block of the plain pool: the chain position it holds, if hashed, and its holders.
#[derive(Debug, Clone, Copy, Default)]
struct PlainBlock {
    hash: Option<(u64, u32)>,
    stamp: u64,
    refs: u32,
}

/// One block at a time: a free queue of ids, and a search through all blocks for a hash.
struct PlainPool {
    order: FreeOrder,
    blocks: Vec<PlainBlock>,
    free: VecDeque<usize>,
    stamp: u64,
    evicted: u64,
}

impl PlainPool {
    fn new(usable: u32, order: FreeOrder) -> Self {
        let blocks = vec![PlainBlock::default(); usable as usize];
        Self { order, free: (0..blocks.len()).collect(), blocks, stamp: 0, evicted: 0 }
    }

    fn take(&mut self) -> usize {
        let id = self.free.pop_front().expect("checked by the caller");
        self.evicted += u64::from(self.blocks[id].hash.take().is_some());
        self.blocks[id].refs = 1;
        id
    }

    /// The first cached of the blocks that hold position `at` of `chain`.
    fn find(&self, chain: u64, at: u32) -> Option<usize> {
        let holds = |id: &usize| self.blocks[*id].hash == Some((chain, at));
        (0..self.blocks.len()).filter(holds).min_by_key(|&id| self.blocks[id].stamp)
    }

    fn touch(&mut self, id: usize) {
        if self.blocks[id].refs == 0 {
            self.free.retain(|&other| other != id);
        }
        self.blocks[id].refs += 1;
    }

    fn hash(&mut self, id: usize, chain: u64, at: u32) {
        self.blocks[id].hash = Some((chain, at));
        self.blocks[id].stamp = self.stamp;
        self.stamp += 1;
    }

    fn release(&mut self, table: &[usize]) {
        for &id in table.iter().rev() {
            self.blocks[id].refs -= 1;
            if self.blocks[id].refs == 0 {
                if self.blocks[id].hash.is_some() || self.order == FreeOrder::AsReleased {
                    self.free.push_back(id);
                } else {
                    self.free.push_front(id);
                }
            }
        }
    }
}

/// One request in both pools: a chain by number, its table, and how far it is hashed.
struct Holder {
    chain: u64,
    table: Vec<usize>,
    hashed: u32,
    path: Vec<PathStep>,
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
enum Act {
    /// Admit a request on a chain: look up, then take blocks.
    Admit { chain: u64, most: u32, more: u32 },
    /// Hash some blocks of a holder.
    Hash { holder: prop::sample::Index, blocks: u32 },
    /// Take blocks for a holder.
    Grow { holder: prop::sample::Index, blocks: u32 },
    /// Release a holder.
    Release { holder: prop::sample::Index },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0u64..4, 0u32..12, 1u32..6)
            .prop_map(|(chain, most, more)| Act::Admit { chain, most, more }),
        3 => (any::<prop::sample::Index>(), 1u32..5)
            .prop_map(|(holder, blocks)| Act::Hash { holder, blocks }),
        1 => (any::<prop::sample::Index>(), 1u32..4)
            .prop_map(|(holder, blocks)| Act::Grow { holder, blocks }),
        2 => any::<prop::sample::Index>().prop_map(|holder| Act::Release { holder }),
    ]
}

const BLOCK: u32 = 4;

fn admit(pool: &mut KvPool, plain: &mut PlainPool, chain: u64, most: u32, more: u32) -> Holder {
    // Chains 0 and 1 share their first three and a half blocks, so they share three.
    let mut path = Vec::new();
    let (root, cut) = (StreamId::shared(chain / 2), 14);
    let trunk = pool.enter_node(NONE, 0, root);
    path.push(PathStep { node: trunk, end: cut });
    let branch = pool.enter_node(trunk, cut, StreamId::own(RequestId(chain)));
    path.push(PathStep { node: branch, end: 1000 });
    let name = |at: u32| if (at + 1) * BLOCK <= cut { 1000 + chain / 2 } else { chain };
    let mut found = Lookup::default();
    pool.look_up(&path, most, &mut found);
    let mut table = Vec::new();
    for at in 0..most {
        match plain.find(name(at), at) {
            Some(id) => table.push(id),
            None => break,
        }
    }
    assert_eq!(found.blocks as usize, table.len());
    let free = table.iter().filter(|&&id| plain.blocks[id].refs == 0).count();
    assert_eq!(found.free_blocks as usize, free);
    let mut parts = Vec::new();
    pool.touch(&found, &mut parts);
    table.iter().for_each(|&id| plain.touch(id));
    let mut holder = Holder { chain, hashed: found.blocks, table, path, parts };
    grow(pool, plain, &mut holder, more);
    holder
}

fn grow(pool: &mut KvPool, plain: &mut PlainPool, holder: &mut Holder, blocks: u32) {
    let blocks = blocks.min(pool.free());
    pool.take(blocks);
    holder.table.extend((0..blocks).map(|_| plain.take()));
}

fn hash(pool: &mut KvPool, plain: &mut PlainPool, holder: &mut Holder, blocks: u32) {
    let target = (holder.hashed + blocks).min(holder.table.len() as u32);
    let cut = holder.path[0].end;
    for at in holder.hashed..target {
        let in_trunk = (at + 1) * BLOCK <= cut;
        let step = holder.path[usize::from(!in_trunk)];
        pool.cache(step.node, at, at + 1, &mut holder.parts);
        let name = if in_trunk { 1000 + holder.chain / 2 } else { holder.chain };
        plain.hash(holder.table[at as usize], name, at);
    }
    holder.hashed = target;
}

fn release(pool: &mut KvPool, plain: &mut PlainPool, mut holder: Holder) {
    pool.give_anonymous(holder.table.len() as u32 - holder.hashed);
    pool.release(&mut holder.parts);
    for step in holder.path.iter().rev() {
        pool.leave_node(step.node);
    }
    plain.release(&holder.table);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn runs_of_blocks_behave_like_single_blocks(
        usable in 6u32..40,
        as_released in any::<bool>(),
        acts in prop::collection::vec(act(), 1..120),
    ) {
        let order =
            if as_released { FreeOrder::AsReleased } else { FreeOrder::UnhashedFirst };
        let mut pool = KvPool::new(usable, BLOCK, order);
        let mut plain = PlainPool::new(usable, order);
        let mut holders: Vec<Holder> = Vec::new();
        for act in acts {
            match act {
                Act::Admit { chain, most, more } => {
                    holders.push(admit(&mut pool, &mut plain, chain, most, more));
                }
                Act::Hash { holder, blocks } if !holders.is_empty() => {
                    let at = holder.index(holders.len());
                    hash(&mut pool, &mut plain, &mut holders[at], blocks);
                }
                Act::Grow { holder, blocks } if !holders.is_empty() => {
                    let at = holder.index(holders.len());
                    grow(&mut pool, &mut plain, &mut holders[at], blocks);
                }
                Act::Release { holder } if !holders.is_empty() => {
                    let holder = holders.swap_remove(holder.index(holders.len()));
                    release(&mut pool, &mut plain, holder);
                }
                Act::Hash { .. } | Act::Grow { .. } | Act::Release { .. } => {}
            }
            pool.audit();
            prop_assert_eq!(pool.free() as usize, plain.free.len());
            prop_assert_eq!(pool.evicted(), plain.evicted);
        }
        for holder in holders.drain(..) {
            release(&mut pool, &mut plain, holder);
        }
        // Taking everything evicts everything: no name is left behind.
        pool.take(pool.free());
        prop_assert_eq!(pool.alive(), (0, 0));
    }
}

#[test]
fn names_of_equal_sequences_are_equal() {
    let mut pool = KvPool::new(4, BLOCK, FreeOrder::UnhashedFirst);
    let mut index: BTreeMap<(u32, u32, u64), u32> = BTreeMap::new();
    for (parent, start, stream) in [(NONE, 0, 1), (NONE, 0, 2), (0, 5, 1), (0, 6, 1), (0, 5, 1)] {
        let id = pool.enter_node(parent, start, StreamId::shared(stream));
        let first = *index.entry((parent, start, stream)).or_insert(id);
        assert_eq!(first, id);
    }
    assert_eq!(index.len(), 4);
}
