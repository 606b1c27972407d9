//! Identity of KV blocks: a block is the same as another when its tokens and all tokens before it
//! are the same. vLLM hashes chains of blocks; here each distinct chain is interned, so equality
//! is exact. Knows what tokens are (streams and positions), nothing of blocks or requests' states.

use crate::engine::request::{Prompt, RequestId, Segment, StreamId};
use std::collections::HashMap;

/// Identity of a full block together with everything before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ChainId(pub(super) u32);

/// Tokens `start..start + len` of a stream. Segments always begin at position 0 of their stream,
/// so two neighbouring runs never join, and equal token sequences have equal lists of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Run {
    stream: StreamId,
    start: u32,
    len: u32,
}

/// Tokens `first..first + len` of a request: its prompt, then its output stream.
fn runs(id: RequestId, prompt: &Prompt, first: u32, len: u32) -> Box<[Run]> {
    let end = first + len;
    let output = Segment { stream: StreamId::output(id), len: end.saturating_sub(prompt.len()) };
    let mut position = 0;
    let mut runs = Vec::new();
    for segment in prompt.segments().iter().chain(std::iter::once(&output)) {
        let (from, to) = (first.max(position), end.min(position + segment.len));
        if from < to {
            runs.push(Run { stream: segment.stream, start: from - position, len: to - from });
        }
        position += segment.len;
    }
    runs.into_boxed_slice()
}

/// The interner. Never forgets, so its size is the number of distinct full blocks ever seen.
#[derive(Debug, Default)]
pub(super) struct Chains {
    ids: HashMap<(Option<ChainId>, Box<[Run]>), ChainId>,
}

impl Chains {
    /// Lengthens `chain` to the full blocks among the first `known` tokens of a request.
    pub(super) fn extend(
        &mut self,
        chain: &mut Vec<ChainId>,
        id: RequestId,
        prompt: &Prompt,
        known: u32,
        block_size: u32,
    ) {
        for block in chain.len() as u32..known / block_size {
            let tokens = runs(id, prompt, block * block_size, block_size);
            let next = ChainId(self.ids.len() as u32);
            let key = (chain.last().copied(), tokens);
            chain.push(*self.ids.entry(key).or_insert(next));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(stream: StreamId, len: u32) -> Segment {
        Segment { stream, len }
    }

    fn chain_of(chains: &mut Chains, id: u64, prompt: &Prompt, known: u32) -> Vec<ChainId> {
        let mut chain = Vec::new();
        chains.extend(&mut chain, RequestId(id), prompt, known, 16);
        chain
    }

    #[test]
    fn prompts_share_chains_as_far_as_their_tokens_agree() {
        let mut chains = Chains::default();
        let (a, b, c) = (StreamId::shared(1), StreamId::shared(2), StreamId::shared(3));
        let one = Prompt::from_segments([segment(a, 40), segment(b, 24)]);
        let two = Prompt::from_segments([segment(a, 40), segment(c, 24)]);
        let (one, two) = (chain_of(&mut chains, 1, &one, 64), chain_of(&mut chains, 2, &two, 64));
        assert_eq!((one.len(), two.len()), (4, 4));
        assert_eq!(one[..2], two[..2]);
        assert_ne!(one[2], two[2]);
        // Once apart, always apart, even if later tokens agree.
        assert_ne!(one[3], two[3]);
    }

    #[test]
    fn an_output_quoted_in_a_prompt_is_the_same_chain() {
        let mut chains = Chains::default();
        let first = Prompt::single(StreamId::shared(1), 20);
        let made = chain_of(&mut chains, 7, &first, 48);
        let quoting = Prompt::from_segments([
            segment(StreamId::shared(1), 20),
            segment(StreamId::output(RequestId(7)), 28),
            segment(StreamId::shared(2), 5),
        ]);
        assert_eq!(chain_of(&mut chains, 8, &quoting, 53), made);
    }

    #[test]
    fn a_repeated_segment_is_not_a_longer_one() {
        let mut chains = Chains::default();
        let s = StreamId::shared(1);
        let twice = Prompt::from_segments([segment(s, 8), segment(s, 8)]);
        let once = Prompt::single(s, 16);
        assert_ne!(chain_of(&mut chains, 1, &twice, 16), chain_of(&mut chains, 2, &once, 16));
    }
}
