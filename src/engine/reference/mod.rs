//! The reference engine: every step and every token by the rules as written, with real blocks.
//! Written to be read beside the rules and to be checked against recorded schedules of vLLM; the
//! fast engine is checked against it. Knows the engine's shared types and the step-time model.
//!
//! Order of things at one instant, as recorded schedules show it:
//! 1. Aborts that are pending when a step's output is due take effect before that output. The
//!    aborted requests get nothing from the step; their blocks are free at once.
//! 2. The output of the step: tokens and ends, in the order of the step.
//! 3. A schedule call, for as long as requests are left. After the last end vLLM makes one more
//!    call, which finds nothing; it changes nothing and takes no time.
//!
//! With async scheduling two batches are queued: step k + 1 is scheduled when the output of step
//! k - 1 has been processed, while step k runs. A call that schedules nothing still takes a place
//! in the queue; its batch ends together with the one before it. So when every running request has
//! its last token under way, an arrival during that last step is seen at its end, not at once.
//! When no request is left and no end is to be told, no call is made until the queue is empty.
//!
//! Not shown by any recording, and settled here by the rules as written: several aborts at one
//! instant are carried out in the order in which they came; an abort of a request that also is in
//! a second step in flight (async scheduling) voids its entry there and frees its blocks at once,
//! although that step still writes to them; a stall with async scheduling.

mod blocks;
mod book;
mod chains;
mod groups;
mod hits;
mod kv;
mod queue;
mod scheduler;
mod state;
mod states;
#[cfg(test)]
mod tests;

use crate::engine::config::{EngineConfig, EngineConfigError};
use crate::engine::record::{
    EngineTotals, FinishReason, ReplicaState, RequestTrace, StepRecord, TraceDetail,
};
use crate::engine::replica::{EngineSink, Replica, Wake, WakeKind};
use crate::engine::request::{EngineRequest, RequestId};
use crate::latency::{StepShape, StepTimeModel};
use crate::units::{Fix, SimTime};
use book::{Book, StepTimes};
use scheduler::{Entry, Scheduler};
use std::collections::VecDeque;

/// One step between its schedule call and the processing of its output.
#[derive(Debug)]
struct Batch {
    /// `None` for a call that scheduled nothing and preempted nothing.
    step: Option<u64>,
    entries: Vec<Entry>,
    end: Fix,
}

/// What the engine loop does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Waits for a request or an abort.
    Idle,
    /// Makes a schedule call.
    Schedule(SimTime),
    /// Waits for the oldest batch.
    Output,
}

/// One serving process, simulated step by step.
#[derive(Debug)]
pub struct ReferenceReplica {
    scheduler: Scheduler,
    step_time: StepTimeModel,
    book: Book,
    next: Next,
    /// Batches whose output is due, oldest first.
    batches: VecDeque<Batch>,
    /// Most batches in the queue: 1, or 2 with async scheduling.
    batches_max: usize,
    /// Exact time of the engine loop.
    clock: Fix,
    /// Exact end of the newest batch.
    newest_end: Fix,
    /// Aborts that wait for the end of a step, in the order in which they came.
    aborts: Vec<RequestId>,
}

impl ReferenceReplica {
    /// An idle engine with empty caches.
    ///
    /// # Errors
    /// When a setting is out of range, or asks for something that is not modelled.
    pub fn new(
        config: EngineConfig,
        step_time: StepTimeModel,
        trace: TraceDetail,
    ) -> Result<Self, EngineConfigError> {
        config.check()?;
        Ok(Self {
            batches_max: if config.async_scheduling { 2 } else { 1 },
            scheduler: Scheduler::new(config),
            step_time,
            book: Book::new(trace),
            next: Next::Idle,
            batches: VecDeque::new(),
            clock: Fix::ZERO,
            newest_end: Fix::ZERO,
            aborts: Vec::new(),
        })
    }

    /// Every step so far that scheduled tokens or preempted something; empty when tracing is off.
    #[must_use]
    pub fn steps(&self) -> &[StepRecord] {
        self.book.steps()
    }

    /// Every request so far, by number; empty when tracing is off.
    pub fn request_traces(&self) -> impl Iterator<Item = &RequestTrace> {
        self.book.traces()
    }

    /// Schedule calls that scheduled nothing and preempted nothing.
    #[must_use]
    pub const fn empty_schedule_calls(&self) -> u64 {
        self.book.empty_calls()
    }

    fn schedule(&mut self, now: SimTime) {
        // Steps without a gap follow each other at the exact end, which may lie a fraction of a
        // picosecond after `now`; an engine that was idle starts at `now`.
        self.clock = self.clock.max(Fix::from_time(now));
        let call = self.scheduler.schedule();
        let started = self.clock.max(self.newest_end);
        let ended = started + self.step_time.step(&shape(&call.entries));
        let times = StepTimes { called: now, started, ended };
        let step = self.book.called(&call, times, &self.scheduler);
        if step.is_none() && self.batches.iter().all(|batch| batch.step.is_none()) {
            // Nothing is under way, so another call would find the same: either all requests
            // have ended, or those that are left can never go on (a stall).
            self.batches.clear();
            self.next = Next::Idle;
            return;
        }
        self.newest_end = ended;
        let scheduled = !call.entries.is_empty();
        self.batches.push_back(Batch { step, entries: call.entries, end: ended });
        let room = self.batches.len() < self.batches_max;
        self.next = if room && (scheduled || self.scheduler.has_unfinished()) {
            Next::Schedule(now)
        } else {
            Next::Output
        };
    }

    fn output<S: EngineSink>(&mut self, now: SimTime, sink: &mut S) {
        let batch = self.batches.pop_front().expect("invariant: output is due only of a batch");
        self.clock = self.clock.max(batch.end);
        for id in std::mem::take(&mut self.aborts) {
            self.carry_out_abort(now, id, sink);
        }
        let received = self.scheduler.process_output(&batch.entries);
        self.book.output(batch.step, batch.end, &received, &self.scheduler, sink);
        self.next = if self.scheduler.has_work() {
            Next::Schedule(now)
        } else if self.batches.is_empty() {
            Next::Idle
        } else {
            Next::Output
        };
    }

    /// False when there is no such request.
    fn carry_out_abort<S: EngineSink>(
        &mut self,
        now: SimTime,
        id: RequestId,
        sink: &mut S,
    ) -> bool {
        let found = self.scheduler.abort(id);
        if found {
            self.book.ended(now, id, FinishReason::Abort, sink);
        }
        found
    }
}

impl Replica for ReferenceReplica {
    fn enqueue<S: EngineSink>(&mut self, now: SimTime, request: EngineRequest, _sink: &mut S) {
        let waiting = self.scheduler.waiting().len() + 1;
        self.book.enqueued(now, &request, waiting);
        self.scheduler.add(request);
        if self.next == Next::Idle {
            self.next = Next::Schedule(now);
        }
    }

    fn abort<S: EngineSink>(&mut self, now: SimTime, id: RequestId, sink: &mut S) {
        match self.next {
            Next::Output => self.aborts.push(id),
            // Between an output and the schedule call of the same instant it is not too late,
            // also when a second batch is in flight.
            Next::Schedule(_) => {
                self.carry_out_abort(now, id, sink);
            }
            Next::Idle => {
                if self.carry_out_abort(now, id, sink) {
                    self.next = Next::Schedule(now);
                }
            }
        }
    }

    fn next_wake(&self) -> Option<Wake> {
        match self.next {
            Next::Idle => None,
            Next::Schedule(at) => Some(Wake { at, kind: WakeKind::Schedule }),
            Next::Output => self.batches.front().map(|batch| Wake {
                at: batch.end.max(self.clock).floor(),
                kind: WakeKind::Output,
            }),
        }
    }

    fn wake<S: EngineSink>(&mut self, now: SimTime, sink: &mut S) {
        debug_assert_eq!(self.next_wake().map(|wake| wake.at), Some(now), "woken at another time");
        match self.next {
            Next::Idle => {}
            Next::Schedule(_) => self.schedule(now),
            Next::Output => self.output(now, sink),
        }
    }

    fn observe(&self, _now: SimTime) -> ReplicaState {
        let usable_blocks = self.scheduler.config().usable_blocks();
        ReplicaState {
            running: self.scheduler.running().len() as u32,
            waiting: self.scheduler.waiting().len(),
            used_blocks: usable_blocks - self.scheduler.kv.pool.free_count(),
            usable_blocks,
        }
    }

    fn totals(&self) -> EngineTotals {
        self.book.totals().clone()
    }

    fn busy_after(&self, at: SimTime) -> Fix {
        // Steps in flight follow one another without a gap.
        Fix(self.newest_end.0.saturating_sub(Fix::from_time(at).0))
    }

    fn in_flight(&self) -> u32 {
        self.scheduler.running().len() as u32 + self.scheduler.waiting().len()
    }

    fn stalled(&self) -> Vec<RequestId> {
        match self.next {
            Next::Idle => {
                let running = self.scheduler.running().iter().copied();
                running.chain(self.scheduler.waiting().in_order()).collect()
            }
            Next::Schedule(_) | Next::Output => Vec::new(),
        }
    }
}

/// What a step computes, as the step-time model counts it.
fn shape(entries: &[Entry]) -> StepShape {
    let mut shape = StepShape::default();
    for entry in entries {
        let (tokens, computed) = (u64::from(entry.tokens), u64::from(entry.computed));
        if entry.tokens == 1 {
            shape.decode_seqs += 1;
            shape.decode_context += computed + 1;
        } else {
            shape.prefill_seqs += 1;
            shape.prefill_tokens += entry.tokens;
            shape.prefill_attention += tokens * (2 * computed + tokens);
        }
    }
    shape
}
