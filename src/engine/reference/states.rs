//! Where a prefill chunk must end so that Mamba states come to lie on block edges: only a state at
//! an edge can be cached. Arithmetic in tokens; knows a request's lengths, nothing of pools.

use super::state::RequestState;
use crate::engine::config::{EngineConfig, KvGroup};

/// The edges of an engine that caches Mamba states (`mamba_cache_mode = align`).
#[derive(Debug, Clone, Copy)]
pub(super) struct StateEdges {
    block_size: u32,
    /// Most tokens that a request can ever get in a step.
    step_max: u32,
}

impl StateEdges {
    /// `None` for an engine without such states.
    pub(super) fn of(config: &EngineConfig) -> Option<Self> {
        let threshold = match config.long_prefill_token_threshold {
            0 => u32::MAX,
            threshold => threshold,
        };
        config.kv_groups.contains(&KvGroup::Mamba { align: true }).then_some(Self {
            block_size: config.block_size,
            step_max: config.token_budget().min(config.max_num_batched_tokens).min(threshold),
        })
    }

    /// How many of `tokens` tokens after the first `start` ones a step computes; 0 when it had
    /// better wait for a budget that reaches an edge.
    pub(super) fn cut(&self, request: &RequestState, start: u32, tokens: u32) -> u32 {
        let known = request.known();
        if start + 1 >= known {
            // Decode, or one last token: nothing to align.
            return tokens;
        }
        let mut end = start + tokens;
        if end < known {
            let edge = self.edge_before(end);
            if edge > start {
                end = edge;
            } else if self.block_size <= self.step_max {
                return 0;
            }
        }
        let stops = [
            self.edge_before(known - 1),
            // Off an edge, the next one; on an edge, none inside the chunk.
            start.next_multiple_of(self.block_size),
            self.edge_before(request.junction),
        ];
        stops.into_iter().filter(|&stop| start < stop).fold(end, u32::min) - start
    }

    const fn edge_before(&self, tokens: u32) -> u32 {
        tokens - tokens % self.block_size
    }
}
