//! What an engine reports: the life of each request, what each step decided, and running totals.
//! Plain data, the same from both engines.

use crate::engine::request::RequestId;
use crate::units::{Fix, SimTime, Span};

/// Why a request left the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// Made all its tokens, or reached `max_model_len`.
    Length,
    /// The client hung up.
    Abort,
}

/// The life of one request inside an engine. `first_scheduled` and `first_token` are `None` when
/// the request was aborted before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineRecord {
    /// Which request.
    pub id: RequestId,
    /// When it entered the engine's queue.
    pub enqueued: SimTime,
    /// Start of the schedule call that first admitted it.
    pub first_scheduled: Option<SimTime>,
    /// End of the step that gave its first token.
    pub first_token: Option<SimTime>,
    /// End of the step that gave its last token, or when the abort took effect.
    pub finished: SimTime,
    /// Why it left.
    pub reason: FinishReason,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Output tokens made.
    pub output_tokens: u32,
    /// Prompt tokens found in the prefix cache at first admission.
    pub cached_tokens: u32,
    /// Times it was preempted.
    pub preemptions: u32,
    /// Part of the wait before first admission in which the head of the queue failed only on
    /// blocks.
    pub kv_wait: Span,
    /// Time lost to preemption before the first token, and after it: each from the preempting
    /// schedule call to the end of the next step after resumption that gave it a token.
    pub preempted_before_first_token: Span,
    /// See `preempted_before_first_token`.
    pub preempted_after_first_token: Span,
    /// Counts in latency figures.
    pub measured: bool,
}

/// Totals of one replica since its start; all integers, so they are the same however steps are
/// grouped into events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineTotals {
    /// Steps that scheduled at least one token.
    pub steps: u64,
    /// Tokens scheduled, prefill and decode.
    pub scheduled_tokens: u64,
    /// Output tokens made.
    pub output_tokens: u64,
    /// Sum over steps of scheduled sequences.
    pub batch_sum: u128,
    /// Sum over steps of used blocks right after the schedule call.
    pub used_blocks_sum: u128,
    /// Most used blocks right after any schedule call.
    pub used_blocks_max: u32,
    /// Most requests running right after any schedule call.
    pub running_max: u32,
    /// Most requests waiting at any moment a step starts or a request arrives.
    pub waiting_max: u32,
    /// Preemptions.
    pub preemptions: u64,
    /// Prefix-cache tokens queried and hit by first admissions.
    pub prefix_queries: u64,
    /// See `prefix_queries`.
    pub prefix_hits: u64,
    /// The same two for resumed requests.
    pub prefix_preempted_queries: u64,
    /// See `prefix_preempted_queries`.
    pub prefix_preempted_hits: u64,
    /// Cached blocks that lost their hash because they were handed out again.
    pub evicted_blocks: u64,
    /// Time with a step running, those in flight counted whole.
    pub busy: Fix,
}

/// State of a replica as production metrics would show it at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplicaState {
    /// `vllm:num_requests_running`.
    pub running: u32,
    /// `vllm:num_requests_waiting`.
    pub waiting: u32,
    /// Blocks in use; `vllm:kv_cache_usage_perc` is this over `usable_blocks`.
    pub used_blocks: u32,
    /// Blocks that requests can use.
    pub usable_blocks: u32,
}

/// How much an engine keeps of what it decided, for comparison with recorded schedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TraceDetail {
    /// Nothing; [`EngineRecord`]s and [`EngineTotals`] only.
    Off,
    /// A [`StepRecord`] for each step and a [`RequestTrace`] for each request.
    Steps,
    /// Also block ids and the free queue.
    Blocks,
}

/// One admission of a request, first or resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// Number of the step.
    pub step: u64,
    /// Tokens found in the prefix cache.
    pub cached: u32,
    /// Tokens known then: prompt and outputs so far.
    pub known: u32,
}

/// What the steps did to one request, by step number; only kept when asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestTrace {
    /// Which request.
    pub id: RequestId,
    /// Every admission, in order.
    pub admissions: Vec<Admission>,
    /// Steps whose schedule call preempted it.
    pub preempted_in: Vec<u64>,
    /// Start of the schedule call that first admitted it.
    pub first_scheduled: Option<SimTime>,
    /// End of the step that gave its first token.
    pub first_token: Option<SimTime>,
    /// The step that gave its first token.
    pub first_token_step: Option<u64>,
    /// The step that gave its last token; `None` when it was aborted or has not ended.
    pub finish_step: Option<u64>,
}

impl RequestTrace {
    /// A request that nothing has happened to.
    #[must_use]
    pub const fn new(id: RequestId) -> Self {
        Self {
            id,
            admissions: Vec::new(),
            preempted_in: Vec::new(),
            first_scheduled: None,
            first_token: None,
            first_token_step: None,
            finish_step: None,
        }
    }
}

/// One schedule call that scheduled tokens or preempted something, in the shape of the recorded
/// traces; only kept when asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepRecord {
    /// Number of the step among those that scheduled tokens or preempted something, from 0.
    pub number: u64,
    /// Schedule call, start on the device, end.
    pub called: SimTime,
    /// See `called`.
    pub started: SimTime,
    /// See `called`.
    pub ended: SimTime,
    /// Tokens scheduled in all.
    pub tokens: u32,
    /// Request, tokens in this step, computed tokens before it; in the scheduler's order.
    pub scheduled: Vec<(RequestId, u32, u32)>,
    /// Admitted for the first time.
    pub admitted: Vec<RequestId>,
    /// Resumed after preemption.
    pub resumed: Vec<RequestId>,
    /// Preempted in this call, in order.
    pub preempted: Vec<RequestId>,
    /// Finished when this step's output was processed, in order.
    pub finished: Vec<RequestId>,
    /// Free blocks right after the schedule call.
    pub free: u32,
    /// Free blocks right after this step's output was processed.
    pub free_after_output: u32,
    /// Running list length right after the schedule call.
    pub running: u32,
    /// Waiting queue length right after the schedule call.
    pub waiting: u32,
    /// Prefix-cache counters of the call: requests, tokens queried, tokens hit; then the same for
    /// resumed requests.
    pub prefix: [u64; 6],
    /// Cached blocks evicted during the call.
    pub evicted: u32,
    /// Block ids per KV group of each scheduled request (reference engine, on demand).
    pub blocks: Vec<(RequestId, Vec<Vec<u32>>)>,
    /// Free queue after the call, first to be taken first (reference engine, on demand).
    pub free_queue: Vec<u32>,
    /// Free queue after the output (reference engine, on demand).
    pub free_queue_after_output: Vec<u32>,
}
