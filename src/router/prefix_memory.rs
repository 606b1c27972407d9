//! A router's bounded memory of which prompt prefixes it sent where: the least recently used
//! prefix is forgotten first. Knows prompts as lists of segments and replicas as numbers.

use super::hash::PrefixHash;
use crate::engine::request::Prompt;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Prefixes remembered, of all replicas together. At a segment of 512 tokens (a Mooncake hash
/// block) this covers 33 million prompt tokens.
const CAPACITY: usize = 65_536;

/// End of the list.
const NONE: u32 = u32::MAX;

/// Keys are hashes already.
#[derive(Debug, Clone, Default)]
struct KeyAsHash(u64);

impl Hasher for KeyAsHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 << 8) | u64::from(byte);
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

/// A remembered prefix: its hash and its neighbours in order of use.
#[derive(Debug, Clone, Copy)]
struct Slot {
    hash: u64,
    older: u32,
    newer: u32,
}

/// Prefixes, each with the set of replicas it was sent to.
#[derive(Debug, Clone)]
pub struct PrefixMemory {
    /// Looked up by hash only, never walked.
    index: HashMap<u64, u32, BuildHasherDefault<KeyAsHash>>,
    slots: Vec<Slot>,
    /// One bit a replica, `words` words a slot.
    holders: Vec<u64>,
    words: usize,
    oldest: u32,
    newest: u32,
    capacity: usize,
    /// Tokens of the longest known prefix by replica; scratch of `hits`.
    tokens: Vec<u32>,
    /// Cumulative hashes of the prompt at hand; scratch of `remember`.
    hashes: Vec<u64>,
}

impl PrefixMemory {
    /// An empty memory for `replicas` replicas.
    #[must_use]
    pub fn new(replicas: u32) -> Self {
        Self::with_capacity(replicas, CAPACITY)
    }

    fn with_capacity(replicas: u32, capacity: usize) -> Self {
        Self {
            index: HashMap::default(),
            slots: Vec::new(),
            holders: Vec::new(),
            words: (replicas as usize).div_ceil(64),
            oldest: NONE,
            newest: NONE,
            capacity,
            tokens: vec![0; replicas as usize],
            hashes: Vec::new(),
        }
    }

    /// For each replica the tokens of the longest prefix of `prompt`, in whole segments, that was
    /// sent there and is still remembered.
    pub fn hits(&mut self, prompt: &Prompt) -> &[u32] {
        self.tokens.fill(0);
        let (mut hash, mut tokens) = (PrefixHash::EMPTY, 0);
        for &segment in prompt.segments() {
            hash = hash.then(segment);
            tokens += segment.len;
            // A prefix is at least as fresh as any longer one, so nothing follows a gap.
            let Some(&slot) = self.index.get(&hash.0) else { break };
            let bits = &self.holders[slot as usize * self.words..][..self.words];
            for (word, &bits) in bits.iter().enumerate() {
                let mut left = bits;
                while left != 0 {
                    self.tokens[word * 64 + left.trailing_zeros() as usize] = tokens;
                    left &= left - 1;
                }
            }
        }
        &self.tokens
    }

    /// `prompt` went to `replica`.
    pub fn remember(&mut self, prompt: &Prompt, replica: u32) {
        let mut hashes = std::mem::take(&mut self.hashes);
        hashes.clear();
        let mut hash = PrefixHash::EMPTY;
        // Prefixes beyond the capacity would push out their own openings.
        for &segment in prompt.segments().iter().take(self.capacity) {
            hash = hash.then(segment);
            hashes.push(hash.0);
        }
        // Longest first, so that shorter prefixes are fresher and outlive it.
        for &hash in hashes.iter().rev() {
            let slot = self.touch(hash);
            let word = slot as usize * self.words + replica as usize / 64;
            self.holders[word] |= 1 << (replica % 64);
        }
        self.hashes = hashes;
    }

    /// Makes `hash` the most recently used prefix; a new one starts with no holders.
    fn touch(&mut self, hash: u64) -> u32 {
        let slot = match self.index.get(&hash) {
            Some(&slot) => {
                self.unlink(slot);
                slot
            }
            None => self.admit(hash),
        };
        self.slots[slot as usize].older = self.newest;
        self.slots[slot as usize].newer = NONE;
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.slots[newest as usize].newer = slot,
        }
        self.newest = slot;
        slot
    }

    /// A slot for a new prefix: a fresh one, or that of the least recently used.
    fn admit(&mut self, hash: u64) -> u32 {
        let slot = if self.slots.len() < self.capacity {
            self.slots.push(Slot { hash, older: NONE, newer: NONE });
            self.holders.resize(self.slots.len() * self.words, 0);
            (self.slots.len() - 1) as u32
        } else {
            let slot = self.oldest;
            self.unlink(slot);
            self.index.remove(&self.slots[slot as usize].hash);
            self.slots[slot as usize].hash = hash;
            self.holders[slot as usize * self.words..][..self.words].fill(0);
            slot
        };
        self.index.insert(hash, slot);
        slot
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { older, newer, .. } = self.slots[slot as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::{Segment, StreamId};

    fn prompt(parts: &[(u64, u32)]) -> Prompt {
        Prompt::from_segments(
            parts.iter().map(|&(n, len)| Segment { stream: StreamId::shared(n), len }),
        )
    }

    #[test]
    fn the_longest_remembered_prefix_counts() {
        let mut memory = PrefixMemory::new(70);
        memory.remember(&prompt(&[(1, 100), (2, 50)]), 3);
        memory.remember(&prompt(&[(1, 100), (9, 50)]), 69);
        let hits = memory.hits(&prompt(&[(1, 100), (2, 50), (7, 10)]));
        assert_eq!((hits[3], hits[69], hits[0]), (150, 100, 0));
        assert_eq!(memory.hits(&prompt(&[(1, 99), (2, 50)]))[3], 0);
    }

    #[test]
    fn the_least_recently_used_is_forgotten_first() {
        let mut memory = PrefixMemory::with_capacity(1, 2);
        memory.remember(&prompt(&[(1, 10)]), 0);
        memory.remember(&prompt(&[(2, 10)]), 0);
        memory.remember(&prompt(&[(1, 10)]), 0);
        memory.remember(&prompt(&[(3, 10)]), 0);
        let mut hit = |n| memory.hits(&prompt(&[(n, 10)]))[0];
        assert_eq!((hit(1), hit(2), hit(3)), (10, 0, 10));
    }

    #[test]
    fn a_long_prompt_keeps_its_opening() {
        let mut memory = PrefixMemory::with_capacity(1, 3);
        memory.remember(&prompt(&[(1, 10), (2, 10), (3, 10), (4, 10), (5, 10)]), 0);
        assert_eq!(memory.hits(&prompt(&[(1, 10), (2, 10), (8, 10)]))[0], 20);
        memory.remember(&prompt(&[(6, 10)]), 0);
        assert_eq!(memory.hits(&prompt(&[(1, 10), (2, 10), (3, 10)]))[0], 20);
    }
}
