//! The KV pool and prefix cache of the fast engine, in runs of blocks instead of single blocks.
//! Knows blocks, chains and reference counts; nothing of requests' lives, steps or time.
//!
//! Which block is which never matters to a decision; the *order* of hashes in the free queue does.
//! Three facts make runs exact:
//! 1. Blocks without a hash go to the front of the free queue, hashed ones to its end, so the queue
//!    is always some anonymous blocks (a count) and then hashed ones. Before vLLM 0.24 all went to
//!    the end: then anonymous blocks lie in the queue as runs of their own, of no node.
//! 2. A request releases its blocks from last to first, so a chain lies in the queue tail first; a
//!    run `[lo, hi)` of one chain is taken from `hi` down, and a prefix hit takes from `lo` up.
//!    Runs only ever shrink at their ends, or are split where a hit ends.
//! 3. Whoever holds or last released block i of a chain held block i−1 too and released it later,
//!    so the set of cached blocks is closed under prefixes: a tree.

use crate::engine::request::StreamId;
use rustc_hash::FxHashMap;

/// Absent link or id.
pub const NONE: u32 = u32::MAX;

/// A token sequence: that of `parent` up to token `start`, then `stream` from its first token on.
/// Segments decode uniquely, so (parent, start, stream) is a canonical name of the sequence.
#[derive(Debug)]
struct Node {
    parent: u32,
    start: u32,
    stream: StreamId,
    /// Requests that hold the node in their path, child nodes, and pieces.
    refs: u32,
    /// Cached runs of this node's blocks; more than one where a hit ended inside, or where the
    /// same block was computed twice.
    pieces: Vec<u32>,
}

/// A run of cached blocks `lo..hi` (block numbers within the chain) of one node, all with the same
/// reference count.
#[derive(Debug, Clone, Copy)]
struct Piece {
    node: u32,
    lo: u32,
    hi: u32,
    /// Requests that hold all of it. At 0 it lies in the free queue.
    refs: u32,
    /// Of two copies of a block, the one cached first is found: the smaller stamp.
    stamp: u64,
    prev: u32,
    next: u32,
    /// The piece that went on from `hi` when the two were one.
    sibling: u32,
}

/// What a request holds of the cache: consecutive pieces from `first` (following siblings) up to
/// block `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    first: u32,
    end: u32,
}

/// Where released blocks go in the free queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreeOrder {
    /// Those without a hash to the front.
    UnhashedFirst,
    /// All to the end.
    AsReleased,
}

/// A stretch of a request's path: up to token `end` its tokens are those of `node`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathStep {
    /// The node.
    pub node: u32,
    /// Tokens from the start of the prompt.
    pub end: u32,
}

/// Blocks `lo..hi` found in `piece`.
#[derive(Debug, Clone, Copy)]
struct Hit {
    piece: u32,
    lo: u32,
    hi: u32,
}

/// The last lookup: blocks found from the start of the chain, and how many of them are free.
#[derive(Debug, Default)]
pub struct Lookup {
    hits: Vec<Hit>,
    /// Blocks found.
    pub blocks: u32,
    /// Those of them that no request holds.
    pub free_blocks: u32,
}

impl Lookup {
    /// Nothing found.
    pub fn clear(&mut self) {
        self.hits.clear();
        self.blocks = 0;
        self.free_blocks = 0;
    }
}

/// Pool of KV blocks with its free queue and prefix cache.
#[derive(Debug)]
pub struct KvPool {
    block_size: u32,
    usable: u32,
    order: FreeOrder,
    /// Free blocks without a hash; queued as pieces of no node unless they all lie in front.
    anonymous: u32,
    /// Free blocks with a hash.
    hashed: u32,
    evicted: u64,
    nodes: Vec<Node>,
    node_free: Vec<u32>,
    index: FxHashMap<(u32, u32, u64), u32>,
    pieces: Vec<Piece>,
    piece_free: Vec<u32>,
    head: u32,
    tail: u32,
    next_stamp: u64,
    scratch: Vec<u32>,
}

impl KvPool {
    /// A pool of `usable` free blocks.
    pub fn new(usable: u32, block_size: u32, order: FreeOrder) -> Self {
        let mut pool = Self {
            block_size,
            usable,
            order,
            anonymous: 0,
            hashed: 0,
            evicted: 0,
            nodes: Vec::new(),
            node_free: Vec::new(),
            index: FxHashMap::default(),
            pieces: Vec::new(),
            piece_free: Vec::new(),
            head: NONE,
            tail: NONE,
            next_stamp: 0,
            scratch: Vec::new(),
        };
        pool.give_anonymous(usable);
        pool
    }

    /// Blocks that no request holds.
    pub const fn free(&self) -> u32 {
        self.anonymous + self.hashed
    }

    /// Blocks in use.
    pub const fn used(&self) -> u32 {
        self.usable - self.free()
    }

    /// Blocks in all, the null block left out.
    pub const fn usable(&self) -> u32 {
        self.usable
    }

    /// Cached blocks handed out again so far.
    pub const fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Takes `count` blocks from the front of the free queue; the caller has checked
    /// [`Self::free`].
    #[inline]
    pub fn take(&mut self, count: u32) {
        if self.order == FreeOrder::AsReleased {
            self.take_queued(count);
        } else if count <= self.anonymous {
            self.anonymous -= count;
        } else {
            let evicted = count - self.anonymous;
            self.anonymous = 0;
            self.take_queued(evicted);
        }
    }

    /// Takes `count` blocks off the pieces at the head of the queue.
    fn take_queued(&mut self, count: u32) {
        assert!(count <= self.free(), "took more blocks than are free");
        let mut left = count;
        while left > 0 {
            let id = self.head;
            let piece = &mut self.pieces[id as usize];
            let cut = left.min(piece.hi - piece.lo);
            piece.hi -= cut;
            left -= cut;
            if piece.node == NONE {
                self.anonymous -= cut;
            } else {
                self.hashed -= cut;
                self.evicted += u64::from(cut);
            }
            let piece = &self.pieces[id as usize];
            if piece.lo == piece.hi {
                self.unlink(id);
                self.drop_piece(id);
            }
        }
    }

    /// Puts `count` blocks without a hash back.
    #[inline]
    pub fn give_anonymous(&mut self, count: u32) {
        self.anonymous += count;
        if self.order == FreeOrder::AsReleased && count > 0 {
            self.queue_anonymous(count);
        }
        debug_assert!(self.free() <= self.usable);
    }

    /// Appends blocks without a hash to the queue.
    fn queue_anonymous(&mut self, count: u32) {
        if let Some(last) = self.pieces.get_mut(self.tail as usize)
            && last.node == NONE
        {
            last.hi += count;
            return;
        }
        let (stamp, sibling) = (0, NONE);
        let piece =
            Piece { node: NONE, lo: 0, hi: count, refs: 0, stamp, prev: NONE, next: NONE, sibling };
        let id = self.new_piece(piece);
        self.append(id);
    }

    // Names of token sequences.

    /// The node that goes on from token `start` of `parent` with `stream`; the caller owns one
    /// reference until [`Self::leave_node`].
    pub fn enter_node(&mut self, parent: u32, start: u32, stream: StreamId) -> u32 {
        let key = (parent, start, stream.0);
        if let Some(&id) = self.index.get(&key) {
            self.nodes[id as usize].refs += 1;
            return id;
        }
        let id = if let Some(id) = self.node_free.pop() {
            let node = &mut self.nodes[id as usize];
            node.parent = parent;
            node.start = start;
            node.stream = stream;
            node.refs = 1;
            id
        } else {
            self.nodes.push(Node { parent, start, stream, refs: 1, pieces: Vec::new() });
            (self.nodes.len() - 1) as u32
        };
        if parent != NONE {
            self.nodes[parent as usize].refs += 1;
        }
        self.index.insert(key, id);
        id
    }

    /// Gives one reference back; a node that nobody needs disappears.
    pub fn leave_node(&mut self, mut id: u32) {
        loop {
            let node = &mut self.nodes[id as usize];
            node.refs -= 1;
            if node.refs > 0 {
                return;
            }
            debug_assert!(node.pieces.is_empty());
            let key = (node.parent, node.start, node.stream.0);
            let parent = node.parent;
            self.index.remove(&key);
            self.node_free.push(id);
            if parent == NONE {
                return;
            }
            id = parent;
        }
    }

    /// The stream with which a node ends.
    pub fn stream(&self, node: u32) -> StreamId {
        self.nodes[node as usize].stream
    }

    /// First block that ends inside the node's own stream.
    fn first_block(&self, node: u32) -> u32 {
        self.nodes[node as usize].start / self.block_size
    }

    // Lookups and hits.

    /// Finds the longest run of cached blocks from the start of `path`, at most `most` blocks.
    pub fn look_up(&self, path: &[PathStep], most: u32, found: &mut Lookup) {
        found.clear();
        for step in path {
            let end = (step.end / self.block_size).min(most);
            if end <= found.blocks {
                // No block ends in this node (or the limit is reached: later ones add nothing).
                continue;
            }
            debug_assert_eq!(found.blocks, self.first_block(step.node));
            self.look_up_node(step.node, end, found);
            if found.blocks < end {
                return;
            }
        }
    }

    fn look_up_node(&self, node: u32, end: u32, found: &mut Lookup) {
        let pieces = &self.nodes[node as usize].pieces;
        while found.blocks < end {
            let at = found.blocks;
            let mut best = NONE;
            let mut best_stamp = u64::MAX;
            for &id in pieces {
                let p = &self.pieces[id as usize];
                if p.lo <= at && at < p.hi && p.stamp < best_stamp {
                    best = id;
                    best_stamp = p.stamp;
                }
            }
            if best == NONE {
                return;
            }
            let mut hi = self.pieces[best as usize].hi.min(end);
            for &id in pieces {
                let p = &self.pieces[id as usize];
                if p.stamp < best_stamp && p.lo > at {
                    hi = hi.min(p.lo);
                }
            }
            found.hits.push(Hit { piece: best, lo: at, hi });
            if self.pieces[best as usize].refs == 0 {
                found.free_blocks += hi - at;
            }
            found.blocks = hi;
        }
    }

    /// Takes hold of everything the last lookup found, appending to `parts`.
    pub fn touch(&mut self, found: &Lookup, parts: &mut Vec<Part>) {
        for hit in &found.hits {
            let id = self.carve(hit.piece, hit.lo, hit.hi);
            if self.pieces[id as usize].refs == 0 {
                self.unlink(id);
                self.hashed -= hit.hi - hit.lo;
            }
            self.pieces[id as usize].refs += 1;
            match parts.last_mut() {
                Some(part) if self.continues(part, id) => part.end = hit.hi,
                _ => parts.push(Part { first: id, end: hit.hi }),
            }
        }
    }

    /// True when piece `id` is where a walk over `part` would go next.
    fn continues(&self, part: &Part, id: u32) -> bool {
        let mut at = part.first;
        while self.pieces[at as usize].hi != part.end {
            at = self.pieces[at as usize].sibling;
        }
        let (last, next) = (&self.pieces[at as usize], &self.pieces[id as usize]);
        last.sibling == id && last.node == next.node && last.hi == next.lo
    }

    /// Makes `lo..hi` of a piece a piece of its own and returns its id.
    fn carve(&mut self, id: u32, lo: u32, hi: u32) -> u32 {
        if self.pieces[id as usize].hi > hi {
            self.split(id, hi);
        }
        if self.pieces[id as usize].lo < lo { self.split(id, lo) } else { id }
    }

    /// Splits a piece at block `at`; the piece keeps the lower part, the upper part's id is
    /// returned.
    fn split(&mut self, id: u32, at: u32) -> u32 {
        let whole = self.pieces[id as usize];
        debug_assert!(whole.lo < at && at < whole.hi);
        let upper = self.new_piece(Piece { lo: at, prev: NONE, next: NONE, ..whole });
        let lower = &mut self.pieces[id as usize];
        lower.hi = at;
        lower.sibling = upper;
        if whole.refs == 0 {
            // The upper blocks are closer to the front.
            let prev = whole.prev;
            self.pieces[upper as usize].prev = prev;
            self.pieces[upper as usize].next = id;
            self.pieces[id as usize].prev = upper;
            if prev == NONE {
                self.head = upper;
            } else {
                self.pieces[prev as usize].next = upper;
            }
        }
        upper
    }

    fn new_piece(&mut self, piece: Piece) -> u32 {
        let node = piece.node;
        let id = if let Some(id) = self.piece_free.pop() {
            self.pieces[id as usize] = piece;
            id
        } else {
            self.pieces.push(piece);
            (self.pieces.len() - 1) as u32
        };
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.pieces.push(id);
            node.refs += 1;
        }
        id
    }

    fn drop_piece(&mut self, id: u32) {
        let node = self.pieces[id as usize].node;
        self.piece_free.push(id);
        if node == NONE {
            return;
        }
        let pieces = &mut self.nodes[node as usize].pieces;
        let at = pieces.iter().position(|&p| p == id).expect("a piece is listed by its node");
        pieces.swap_remove(at);
        self.leave_node(node);
    }

    // Caching and release.

    /// Gives blocks `lo..hi` of `node`, which the owner of `parts` holds and has just filled,
    /// their hash.
    pub fn cache(&mut self, node: u32, lo: u32, hi: u32, parts: &mut Vec<Part>) {
        let own = parts.last().map_or(NONE, |part| self.last_piece(part));
        let overlaps = self.nodes[node as usize].pieces.iter().any(|&id| {
            let p = &self.pieces[id as usize];
            p.lo < hi && lo < p.hi
        });
        if own != NONE && !overlaps {
            let p = &mut self.pieces[own as usize];
            if p.node == node && p.hi == lo && p.refs == 1 {
                p.hi = hi;
                parts.last_mut().expect("the own piece is in a part").end = hi;
                return;
            }
        }
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        let piece = Piece { node, lo, hi, refs: 1, stamp, prev: NONE, next: NONE, sibling: NONE };
        let id = self.new_piece(piece);
        parts.push(Part { first: id, end: hi });
    }

    fn last_piece(&self, part: &Part) -> u32 {
        let mut at = part.first;
        while self.pieces[at as usize].hi != part.end {
            at = self.pieces[at as usize].sibling;
        }
        at
    }

    /// Releases all cached blocks that `parts` hold, last to first, and empties it.
    pub fn release(&mut self, parts: &mut Vec<Part>) {
        while let Some(part) = parts.pop() {
            let mut walk = std::mem::take(&mut self.scratch);
            let mut at = part.first;
            loop {
                walk.push(at);
                if self.pieces[at as usize].hi == part.end {
                    break;
                }
                at = self.pieces[at as usize].sibling;
            }
            while let Some(id) = walk.pop() {
                let piece = &mut self.pieces[id as usize];
                piece.refs -= 1;
                if piece.refs == 0 {
                    self.hashed += piece.hi - piece.lo;
                    self.push_tail(id);
                }
            }
            self.scratch = walk;
        }
        debug_assert!(self.free() <= self.usable);
    }

    /// Appends a piece to the free queue; where it continues the piece before it downwards, the
    /// two become one again.
    fn push_tail(&mut self, id: u32) {
        let tail = self.tail;
        if tail != NONE && self.joins(id, tail) {
            let above = self.pieces[tail as usize];
            let piece = &mut self.pieces[id as usize];
            piece.hi = above.hi;
            piece.sibling = above.sibling;
            self.unlink(tail);
            self.drop_piece(tail);
        }
        self.append(id);
    }

    /// Links a piece behind the last of the free queue.
    fn append(&mut self, id: u32) {
        let tail = self.tail;
        let piece = &mut self.pieces[id as usize];
        piece.prev = tail;
        piece.next = NONE;
        if tail == NONE {
            self.head = id;
        } else {
            self.pieces[tail as usize].next = id;
        }
        self.tail = id;
    }

    /// Whether `upper`, at the tail, and `lower`, about to follow it, may be one piece: neighbours
    /// of one node that order alike against any other copy of their blocks.
    fn joins(&self, lower: u32, upper: u32) -> bool {
        let (l, u) = (&self.pieces[lower as usize], &self.pieces[upper as usize]);
        l.node == u.node
            && l.hi == u.lo
            && (l.stamp == u.stamp || self.nodes[l.node as usize].pieces.len() == 2)
    }

    fn unlink(&mut self, id: u32) {
        let Piece { prev, next, .. } = self.pieces[id as usize];
        if prev == NONE {
            self.head = next;
        } else {
            self.pieces[prev as usize].next = next;
        }
        if next == NONE {
            self.tail = prev;
        } else {
            self.pieces[next as usize].prev = prev;
        }
    }
}

#[cfg(test)]
#[path = "kv_tests.rs"]
mod tests;
