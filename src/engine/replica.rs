//! The face that both engines show to the simulation loop: one serving process that takes
//! requests and aborts, says when it next needs to be woken, and hands out what happened.

use crate::engine::record::{EngineRecord, EngineTotals, ReplicaState};
use crate::engine::request::{EngineRequest, RequestId};
use crate::units::{Fix, SimTime};

/// Which of its two duties a replica wants to be woken for. A step's output and the next schedule
/// call are separate events, because arrivals of the same instant must be seen by that call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WakeKind {
    /// The output of a step is due.
    Output,
    /// A schedule call is due.
    Schedule,
}

/// When and why a replica wants to be woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wake {
    /// When.
    pub at: SimTime,
    /// Why; outputs come before schedule calls at one instant.
    pub kind: WakeKind,
}

/// Receives what a replica reports while it is woken.
pub trait EngineSink {
    /// A request left the engine. Requests that finish in one step come in running order.
    fn finished(&mut self, record: EngineRecord);

    /// `members` measured requests each saw `steps` gaps between successive tokens, of
    /// `first`, `first + increment`, ... (unrounded).
    fn inter_token(&mut self, members: u32, first: Fix, increment: Fix, steps: u64);
}

/// One serving process.
///
/// Protocol, for calls at non-decreasing `now`:
/// 1. `abort` may be called at any time; a running step is never cut short, so it takes effect at
///    the end of the step in flight (before that step's output), or at once when idle.
/// 2. `enqueue` at `now` is seen by a schedule call at `now`.
/// 3. The caller keeps the replica's [`Wake`] in its event queue, re-reads it after every call, and
///    calls `wake` when its turn comes in the order of events.
pub trait Replica {
    /// A request enters the waiting queue.
    fn enqueue<S: EngineSink>(&mut self, now: SimTime, request: EngineRequest, sink: &mut S);

    /// The client of `id` hung up. Unknown or finished ids are ignored.
    fn abort<S: EngineSink>(&mut self, now: SimTime, id: RequestId, sink: &mut S);

    /// When the replica next needs to be woken; `None` while nothing can change by itself.
    fn next_wake(&self) -> Option<Wake>;

    /// Does what `next_wake` announced.
    fn wake<S: EngineSink>(&mut self, now: SimTime, sink: &mut S);

    /// State after every step output and schedule call due at or before `now`; call it only when
    /// all wakes due by then have been handled.
    fn observe(&self, now: SimTime) -> ReplicaState;

    /// Reports everything due at or before `now` to totals and `sink`; for a caller that stops
    /// while requests are inside. Engines that handle every step as it comes have nothing to do.
    fn settle<S: EngineSink>(&mut self, now: SimTime, sink: &mut S) {
        let _ = (now, sink);
    }

    /// Totals of all steps whose schedule call lies at or before the last wake or `settle`.
    fn totals(&self) -> EngineTotals;

    /// Part of `busy` in [`Self::totals`] that lies after `at`, at most the rest of the steps in
    /// flight: steps are counted whole when they are called. Not for an `at` before an idle spell.
    fn busy_after(&self, at: SimTime) -> Fix;

    /// Requests inside, waiting or running.
    fn in_flight(&self) -> u32;

    /// Requests that can never be admitted although nothing else is left to change
    /// (`summary.stalled` of the recorded traces); in queue order.
    fn stalled(&self) -> Vec<RequestId>;
}
