//! A portable 64-bit hash of token sequences, the same on every machine and in every release.
//! Knows prompts as lists of segments.

use crate::engine::request::Segment;

/// Finaliser with full avalanche (the mixing function of SplitMix64, Steele, Lea and Flood 2014).
#[must_use]
#[inline]
pub const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Hash of a token sequence that grows segment by segment. Equal exactly (up to collisions) for
/// equal token sequences, as a sequence has one way to be written in segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixHash(pub u64);

impl PrefixHash {
    /// Hash of no tokens.
    pub const EMPTY: Self = Self(0x9e37_79b9_7f4a_7c15);

    /// The sequence followed by `segment`.
    #[must_use]
    #[inline]
    pub const fn then(self, segment: Segment) -> Self {
        Self(mix(mix(self.0 ^ segment.stream.0).wrapping_add(segment.len as u64)))
    }
}
