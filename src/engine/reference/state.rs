//! What the scheduler knows of one request: tokens known, computed and under way, and its blocks.
//! Knows nothing of time except the arrival that orders requests.

use super::kv::BlockTable;
use super::queue::Rank;
use crate::engine::request::{EngineRequest, Prompt, RequestId};
use crate::units::SimTime;

/// Where a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// In the queue, never admitted.
    Waiting,
    /// In the running list.
    Running,
    /// In the queue after a preemption.
    Preempted,
}

/// One unfinished request. There are no prefill and decode phases: a request wants all tokens that
/// are known or under way and not yet computed.
#[derive(Debug, Clone)]
pub(super) struct RequestState {
    pub(super) id: RequestId,
    pub(super) priority: i32,
    pub(super) arrival: SimTime,
    pub(super) prompt: Prompt,
    pub(super) max_tokens: u32,
    pub(super) skip_cache: bool,
    pub(super) status: Status,
    /// Output tokens received.
    pub(super) output: u32,
    /// Tokens with KV, those of the scheduled steps included.
    pub(super) computed: u32,
    /// Output tokens under way: scheduled but not received (async scheduling only).
    pub(super) placeholders: u32,
    /// Tokens of scheduled steps whose output has not been processed.
    pub(super) in_flight: u32,
    /// Tokens that full attention would have hit when the other KV groups had less: later prompts
    /// may part here too, so what the others hold up to here is worth caching. 0 is none.
    pub(super) junction: u32,
    pub(super) table: BlockTable,
}

impl RequestState {
    pub(super) fn new(request: EngineRequest, kv_groups: usize) -> Self {
        Self {
            id: request.id,
            priority: request.priority,
            arrival: request.arrival,
            prompt: request.prompt,
            max_tokens: request.max_tokens,
            skip_cache: request.skip_cache,
            status: Status::Waiting,
            output: 0,
            computed: 0,
            placeholders: 0,
            in_flight: 0,
            junction: 0,
            table: BlockTable::new(kv_groups),
        }
    }

    /// Prompt tokens and output tokens received.
    pub(super) fn known(&self) -> u32 {
        self.prompt.len() + self.output
    }

    /// Tokens to compute before the next output token can be made, and that one's input.
    pub(super) fn wanted(&self) -> u32 {
        (self.known() + self.placeholders).saturating_sub(self.computed)
    }

    /// True when the request's last token is already under way (async scheduling): it keeps its
    /// seat and its blocks until that token is received, but gets nothing more.
    pub(super) fn last_token_is_under_way(&self) -> bool {
        let [computed, placeholders] = [self.computed, self.placeholders].map(u64::from);
        let end = u64::from(self.prompt.len()) + u64::from(self.max_tokens);
        placeholders > 0 && computed + 2 >= end + placeholders
    }

    /// Its place under the priority policy.
    pub(super) fn rank(&self) -> Rank {
        Rank::new(self.priority, self.arrival, self.id)
    }
}
