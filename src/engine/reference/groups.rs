//! What each kind of KV group keeps of a request: which blocks are still read, how many cached
//! blocks a hit needs, how much an allocation takes, and which full blocks are worth caching.
//! Arithmetic in tokens and blocks; knows nothing of pools, requests or queues.

use crate::engine::config::{EngineConfig, KvGroup};

/// One KV group of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) kind: KvGroup,
    block_size: u32,
    /// Most blocks that the whole-prompt gate asks for.
    gate_cap: u32,
}

impl Group {
    pub(super) fn all(config: &EngineConfig) -> Vec<Self> {
        let group =
            |&kind| Self { kind, block_size: config.block_size, gate_cap: cap(config, kind) };
        config.kv_groups.iter().map(group).collect()
    }

    /// Leading blocks that a request with `computed` tokens does not read again. The state of the
    /// last computed token is read by the next step.
    pub(super) const fn out_of_use(&self, computed: u32) -> u32 {
        match self.kind {
            KvGroup::Full | KvGroup::Mamba { align: false } => 0,
            KvGroup::SlidingWindow { window } => {
                (computed + 1).saturating_sub(window) / self.block_size
            }
            KvGroup::Mamba { align: true } => computed.div_ceil(self.block_size).saturating_sub(1),
        }
    }

    /// Cached blocks in a row, before the end of a hit, without which there is no hit. `None` when
    /// all blocks before it are needed.
    pub(super) const fn tail(&self) -> Option<u32> {
        match self.kind {
            KvGroup::Full => None,
            KvGroup::SlidingWindow { window } => {
                let blocks = (window - 1).div_ceil(self.block_size);
                // vLLM looks for at least one.
                Some(if blocks == 0 { 1 } else { blocks })
            }
            KvGroup::Mamba { .. } => Some(1),
        }
    }

    /// Entries of a block table for the first `tokens` tokens; blocks out of use are entries too.
    pub(super) const fn entries(&self, tokens: u32) -> u32 {
        match self.kind {
            KvGroup::Full | KvGroup::SlidingWindow { .. } | KvGroup::Mamba { align: true } => {
                tokens.div_ceil(self.block_size)
            }
            // One state for the whole request.
            KvGroup::Mamba { align: false } => (tokens > 0) as u32,
        }
    }

    /// New blocks that take a table from `held` entries to the first `tokens` tokens. States
    /// between the first and the last new entry are never stored.
    pub(super) fn new_blocks(&self, held: u32, tokens: u32) -> u32 {
        self.at_most_one_state(self.entries(tokens).saturating_sub(held))
    }

    /// The same as the whole-prompt gate counts it: of a window no more than one step can leave
    /// in use.
    pub(super) fn new_blocks_of_whole(&self, held: u32, tokens: u32) -> u32 {
        self.at_most_one_state(self.entries(tokens).min(self.gate_cap).saturating_sub(held))
    }

    fn at_most_one_state(&self, missing: u32) -> u32 {
        match self.kind {
            KvGroup::Full | KvGroup::SlidingWindow { .. } => missing,
            KvGroup::Mamba { .. } => missing.min(1),
        }
    }

    /// True when block `index` is cached once full although only the blocks before the `edges`
    /// (counted in blocks) are to be kept.
    pub(super) fn keeps(&self, index: u32, edges: [u32; 2]) -> bool {
        self.tail()
            .is_none_or(|tail| edges.iter().any(|&edge| index < edge && index + tail >= edge))
    }
}

/// A window holds what precedes it, and what the steps in flight may write.
fn cap(config: &EngineConfig, kind: KvGroup) -> u32 {
    match kind {
        KvGroup::Full | KvGroup::Mamba { .. } => u32::MAX,
        KvGroup::SlidingWindow { window } => {
            let steps = if config.async_scheduling { 2 } else { 1 };
            let written = config.max_num_batched_tokens.saturating_mul(steps);
            let tokens = written.saturating_add(window - 1).min(config.max_model_len);
            tokens.div_ceil(config.block_size) + 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(kind: KvGroup) -> Group {
        Group { kind, block_size: 16, gate_cap: u32::MAX }
    }

    /// By definition: the next token reads itself and the `window - 1` tokens before it.
    #[test]
    fn a_block_is_out_of_use_when_no_later_token_reads_it() {
        for window in 1..70 {
            let group = group(KvGroup::SlidingWindow { window });
            for computed in 0..200 {
                let read = |token: u32| token + window > computed;
                let unread = (0..20).take_while(|b| (b * 16..b * 16 + 16).all(|t| !read(t)));
                assert_eq!(
                    group.out_of_use(computed),
                    unread.count() as u32,
                    "{window} {computed}"
                );
            }
        }
    }

    /// The blocks a hit needs are those that are not out of use after it.
    #[test]
    fn the_tail_of_a_hit_is_what_its_next_token_reads() {
        for window in 2..70 {
            let group = group(KvGroup::SlidingWindow { window });
            let far = 16 * 20;
            assert_eq!(group.tail(), Some(20 - group.out_of_use(far)), "{window}");
        }
        let states = group(KvGroup::Mamba { align: true });
        assert_eq!(states.tail(), Some(20 - states.out_of_use(16 * 20)));
    }

    #[test]
    fn sparse_caching_keeps_the_tails_before_its_edges() {
        let window = group(KvGroup::SlidingWindow { window: 32 });
        let kept = |g: &Group| (0..10).filter(|&i| g.keeps(i, [4, 9])).collect::<Vec<_>>();
        assert_eq!(kept(&window), [2, 3, 7, 8]);
        assert_eq!(kept(&group(KvGroup::Mamba { align: true })), [3, 8]);
        assert_eq!(kept(&group(KvGroup::Full)).len(), 10);
        // A junction of 0 is none.
        assert!(!window.keeps(0, [0, 0]));
    }

    #[test]
    fn states_take_one_block_however_far_a_step_goes() {
        let (align, none) = (KvGroup::Mamba { align: true }, KvGroup::Mamba { align: false });
        assert_eq!(group(align).new_blocks(0, 100), 1);
        assert_eq!((group(align).new_blocks(2, 32), group(align).new_blocks(2, 33)), (0, 1));
        assert_eq!((group(none).new_blocks(0, 1000), group(none).new_blocks(1, 1000)), (1, 0));
    }
}
