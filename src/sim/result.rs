//! What a simulation hands out: one row a request and a sample as they happen, and totals at the
//! end. Everything here is exact integers; figures are made of them in `report`.

use crate::engine::record::{EngineTotals, FinishReason};
use crate::engine::request::RequestId;
use crate::metrics::{LatencyHistogram, LengthHistogram};
use crate::units::{Fix, SimTime, Span};
use crate::workload::SourceNotes;

/// How a request ended, as seen from the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestStatus {
    /// All tokens delivered.
    Completed,
    /// Refused at the endpoint: no pool has a `max_model_len` that leaves room for a token after
    /// the prompt, or the prompt or the answer is empty (vLLM's API refuses both).
    Rejected,
    /// The client hung up first.
    TimedOut,
    /// Still inside when the run stopped.
    Unfinished,
}

impl From<FinishReason> for RequestStatus {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Length => Self::Completed,
            FinishReason::Abort => Self::TimedOut,
        }
    }
}

/// One request, in order of its end; ties by id. Times are from the start of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestRow {
    /// Its number.
    pub id: RequestId,
    /// How it ended.
    pub status: RequestStatus,
    /// Index into the pools; `None` when it reached none.
    pub pool: Option<u32>,
    /// Replica within the whole fleet; `None` when it reached none.
    pub replica: Option<u32>,
    /// Arrival at the endpoint.
    pub arrival: SimTime,
    /// End of the step that gave the first token.
    pub first_token: Option<SimTime>,
    /// When it ended; `None` when unfinished.
    pub finished: Option<SimTime>,
    /// Prompt tokens.
    pub input_tokens: u32,
    /// Output tokens made; 0 for unfinished requests, whose tokens nobody has counted yet.
    pub output_tokens: u32,
    /// Prompt tokens hit in the prefix cache at first admission.
    pub cached_tokens: u32,
    /// Times preempted.
    pub preemptions: u32,
    /// Where its time went.
    pub breakdown: Breakdown,
    /// Counts in latency figures.
    pub measured: bool,
}

/// The seven parts of a request's time; they add up to E2E exactly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Breakdown {
    /// Endpoint to instance.
    pub routing: Span,
    /// HTTP, tokenisation and the like.
    pub frontend: Span,
    /// Waiting for a seat or for token budget.
    pub queue: Span,
    /// Waiting while the head of this replica's queue failed only on KV blocks.
    pub kv_wait: Span,
    /// First admission to first token, without preempted time.
    pub prefill: Span,
    /// First token to last, without preempted time.
    pub decode: Span,
    /// From each preemption to the next token.
    pub preempted: Span,
}

impl Breakdown {
    /// All seven parts.
    #[must_use]
    pub fn total(&self) -> Span {
        let Self { routing, frontend, queue, kv_wait, prefill, decode, preempted } = *self;
        routing + frontend + queue + kv_wait + prefill + decode + preempted
    }
}

/// One sample of one pool: its state after everything that happens at `at`, and what happened
/// since the sample before. The last sample is taken when the run ends.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleRow {
    /// When.
    pub at: SimTime,
    /// Which pool, by index.
    pub pool: u32,
    /// Requests running, summed over replicas (`vllm:num_requests_running`).
    pub running: u64,
    /// Requests waiting, summed (`vllm:num_requests_waiting`).
    pub waiting: u64,
    /// Used blocks, summed.
    pub used_blocks: u64,
    /// Usable blocks, summed.
    pub usable_blocks: u64,
    /// Arrivals routed to this pool since the last sample.
    pub arrivals: u64,
    /// Completions since the last sample.
    pub completions: u64,
    /// Output tokens of requests that completed since the last sample.
    pub output_tokens: u64,
}

/// Takes rows as they happen. Recorders observe: with them off the run is identical.
pub trait Recorder {
    /// False when `request` does nothing, so that rows need not be built.
    const WANTS_REQUESTS: bool = true;

    /// A request ended. Rows come in order of end, those of one instant in order of id; requests
    /// that are unfinished when the run stops come last, in order of id.
    fn request(&mut self, row: &RequestRow);

    /// A request that arrived at `arrival` left its engine, having waited there for `wait` before
    /// its first admission (or in all); told whether rows are wanted or not.
    fn waited(&mut self, arrival: SimTime, wait: Span) {
        let _ = (arrival, wait);
    }

    /// A pool was sampled.
    fn sample(&mut self, row: &SampleRow);
}

/// Records nothing.
pub struct NoRecorder;

impl Recorder for NoRecorder {
    const WANTS_REQUESTS: bool = false;

    fn request(&mut self, _: &RequestRow) {}
    fn sample(&mut self, _: &SampleRow) {}
}

/// The four latencies of measured requests, in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LatencySet {
    /// Arrival at the endpoint to first token.
    pub ttft: LatencyHistogram,
    /// (E2E − TTFT)/(output tokens − 1) per request; one-token requests left out.
    pub tpot: LatencyHistogram,
    /// Every gap between successive tokens, pooled.
    pub itl: LatencyHistogram,
    /// Arrival to last token.
    pub e2e: LatencyHistogram,
}

/// The seven parts over measured, completed requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BreakdownSet {
    /// See [`Breakdown`].
    pub routing: LatencyHistogram,
    /// See [`Breakdown`].
    pub frontend: LatencyHistogram,
    /// See [`Breakdown`].
    pub queue: LatencyHistogram,
    /// See [`Breakdown`].
    pub kv_wait: LatencyHistogram,
    /// See [`Breakdown`].
    pub prefill: LatencyHistogram,
    /// See [`Breakdown`].
    pub decode: LatencyHistogram,
    /// See [`Breakdown`].
    pub preempted: LatencyHistogram,
}

/// Requests by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Reached the endpoint.
    pub arrived: u64,
    /// All tokens delivered.
    pub completed: u64,
    /// Refused.
    pub rejected: u64,
    /// Client hung up.
    pub timed_out: u64,
    /// Lost to a failure.
    pub failed: u64,
    /// Still inside at the end.
    pub unfinished: u64,
}

/// Totals of one pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolResult {
    /// Latencies of measured, completed requests.
    pub latency: LatencySet,
    /// Where their time went.
    pub breakdown: BreakdownSet,
    /// Requests routed here, by fate.
    pub counts: RequestCounts,
    /// Measured requests that completed, their input and output tokens.
    pub measured_completed: u64,
    /// See `measured_completed`.
    pub measured_input_tokens: u64,
    /// See `measured_completed`.
    pub measured_output_tokens: u64,
    /// Prompt lengths of those requests.
    pub input_lengths: LengthHistogram,
    /// Output lengths of those requests.
    pub output_lengths: LengthHistogram,
    /// Measured, completed requests that met every per-request limit.
    pub good: u64,
    /// Engine totals, summed over replicas (maxima: the largest). Steps that the end of the run cut
    /// short are whole in all of them but `busy`.
    pub engine: EngineTotals,
    /// Serving processes.
    pub replicas: u32,
    /// Usable blocks of one replica.
    pub usable_blocks: u32,
    /// Time in service with a step running, summed over replicas.
    pub busy: Fix,
}

/// Totals of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunResult {
    /// When the last request ended, the drain limit struck, or the last thing happened before the
    /// run stalled.
    pub ended: SimTime,
    /// Events handled (differs between engines).
    pub events: u64,
    /// First and last moment that latency and throughput refer to: end of warm-up, and the end of
    /// the period in which requests were to arrive (the horizon, or else the end of a rate curve).
    /// Where the traffic is a number of requests (closed loops, a count that was reached, a trace
    /// without a horizon) it is the last completion. Never before `measured_from`.
    pub measured_from: SimTime,
    /// See `measured_from`.
    pub measured_to: SimTime,
    /// All requests, by fate.
    pub counts: RequestCounts,
    /// By pool, in the order of the configuration.
    pub pools: Vec<PoolResult>,
    /// Ids that could never make progress; the run ended because of them.
    pub stalled: Vec<RequestId>,
    /// What the traffic source changed.
    pub notes: SourceNotes,
}

impl RunResult {
    /// The fleet is in service from 0 to the end of the measured window or of the run, whichever is
    /// later: instances are there to the horizon even when the last request left before it. A
    /// window that never opened, as the traffic ended within the warm-up, keeps nobody there.
    #[must_use]
    pub fn in_service_until(&self) -> SimTime {
        let is_open = self.measured_to > self.measured_from;
        if is_open { self.ended.max(self.measured_to) } else { self.ended }
    }
}

/// Adds the totals of one replica, or of one run, to others; of maxima the larger.
pub fn add_totals(sum: &mut EngineTotals, one: &EngineTotals) {
    let EngineTotals {
        steps,
        scheduled_tokens,
        output_tokens,
        batch_sum,
        used_blocks_sum,
        used_blocks_max,
        running_max,
        waiting_max,
        preemptions,
        prefix_queries,
        prefix_hits,
        prefix_preempted_queries,
        prefix_preempted_hits,
        evicted_blocks,
        busy,
    } = one;
    sum.steps += steps;
    sum.scheduled_tokens += scheduled_tokens;
    sum.output_tokens += output_tokens;
    sum.batch_sum += batch_sum;
    sum.used_blocks_sum += used_blocks_sum;
    sum.used_blocks_max = sum.used_blocks_max.max(*used_blocks_max);
    sum.running_max = sum.running_max.max(*running_max);
    sum.waiting_max = sum.waiting_max.max(*waiting_max);
    sum.preemptions += preemptions;
    sum.prefix_queries += prefix_queries;
    sum.prefix_hits += prefix_hits;
    sum.prefix_preempted_queries += prefix_preempted_queries;
    sum.prefix_preempted_hits += prefix_preempted_hits;
    sum.evicted_blocks += evicted_blocks;
    sum.busy += *busy;
}
