//! Traffic: what arrives, when, with which lengths and which shared prefixes; from a generator or
//! from a trace file. May know `units`, `kernel` and the engine's request types; knows nothing of
//! fleets, routers or results.

mod arrivals;
mod bodies;
mod generate;
pub mod inspect;
pub mod spec;
mod trace;

pub(crate) use bodies::GROUPS_MAX;
pub use generate::open_load;
pub use trace::{Detection, detect};

use crate::engine::request::{Prompt, RequestId};
use crate::units::{SimTime, Span};

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestBody {
    /// Prompt tokens.
    pub prompt: Prompt,
    /// Output tokens the answer would have without `max_model_len`; at least one.
    pub output_tokens: u32,
    /// Smaller is served first under the priority policy.
    pub priority: i32,
    /// Do not read the prefix cache.
    pub skip_cache: bool,
    /// The client hangs up this long after arrival.
    pub abort_after: Option<Span>,
}

/// A request and when it reaches the endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at: SimTime,
    /// What.
    pub body: RequestBody,
}

/// Counts of rows and requests that a source changed or could not use as they stood; reported,
/// never silent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceNotes {
    /// Requests whose output length was 0 and was raised to 1, as the engine makes at least one
    /// token.
    pub zero_outputs_raised: u64,
    /// Requests whose prompt length was 0 and was raised to 1.
    pub zero_prompts_raised: u64,
}

/// Why traffic cannot be produced.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// A value of the traffic's description is out of range.
    #[error("{key}: {problem}")]
    Spec {
        /// Field of the specification, as in `arrivals.rate_rps`.
        key: String,
        /// The value, what was expected.
        problem: String,
    },
    /// A trace line is not what its format says.
    #[error("{file}:{line}: {problem}")]
    TraceLine {
        /// The trace file.
        file: String,
        /// Line number from 1.
        line: u64,
        /// What is wrong, what was expected.
        problem: String,
    },
    /// A trace file as a whole cannot be used.
    #[error("{file}: {problem}")]
    TraceFile {
        /// The trace file.
        file: String,
        /// What is wrong.
        problem: String,
    },
}

impl WorkloadError {
    fn spec(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Spec { key: key.into(), problem: problem.into() }
    }
}

/// A source of requests with arrival times of its own (open loop), in order of time.
pub trait ArrivalSource: Send {
    /// The next arrival; it will be request `id`. `None` at the end.
    ///
    /// # Errors
    /// When a trace line cannot be read.
    fn next_arrival(&mut self, id: RequestId) -> Result<Option<Arrival>, WorkloadError>;

    /// How the arrivals ended; asked after the last.
    fn end(&self) -> SourceEnd {
        SourceEnd::LastArrival
    }

    /// What was changed on the way so far.
    fn notes(&self) -> SourceNotes;
}

/// How the arrivals of a source ended. It decides what rates refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceEnd {
    /// The number of requests asked for was reached.
    Count,
    /// There was no further request, as after the last row of a trace.
    LastArrival,
    /// The period that was described ended here, with or without a request near its end.
    Period(SimTime),
}

/// A source of requests without times (closed loop).
pub trait BodySource: Send {
    /// The next request; it will be request `id`. `None` at the end.
    ///
    /// # Errors
    /// When a trace line cannot be read.
    fn next_body(&mut self, id: RequestId) -> Result<Option<RequestBody>, WorkloadError>;

    /// What was changed on the way so far.
    fn notes(&self) -> SourceNotes;
}

/// Traffic, ready to be drawn.
pub enum Load {
    /// Arrivals come by themselves.
    Open(Box<dyn ArrivalSource>),
    /// A fixed number in flight; each end releases the next after a think time.
    Closed {
        /// Requests in flight.
        concurrency: u32,
        /// From an end to the next start.
        think: Span,
        /// The requests, in order of release.
        bodies: Box<dyn BodySource>,
    },
}
