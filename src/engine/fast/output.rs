//! The end of a step: aborts that fell due, tokens received, requests that finish.

use super::slots::NEVER;
use super::{Batch, Entry, FastReplica, Standing};
use crate::engine::fast::lockstep::Membership;
use crate::engine::record::{EngineRecord, FinishReason};
use crate::engine::replica::EngineSink;
use crate::engine::request::RequestId;
use crate::units::{Fix, SimTime, Span};

/// The step that ends a request: its exact end, and its number.
#[derive(Debug, Clone, Copy)]
struct Ended {
    at: Fix,
    number: u64,
}

impl FastReplica {
    /// True when processing the batch's output will end a request.
    pub(super) fn gives_end(&self, batch: &Batch) -> bool {
        !batch.draining.is_empty()
            || batch.entries.iter().any(|entry| entry.finishes)
            || self.finishes_in(batch.step)
    }

    /// Brings the replica to where the output that it was woken for has been processed: aborts
    /// that are due come right before that output.
    pub(super) fn reach_output<S: EngineSink>(&mut self, now: SimTime, sink: &mut S) {
        if self.aborts.is_empty() {
            if self.stretch.is_some() {
                self.realise(0, sink);
                self.finish_members(sink);
            } else {
                self.output(sink);
            }
            return;
        }
        self.realise(1, sink);
        let aborts = std::mem::take(&mut self.aborts);
        for &id in &aborts {
            self.carry_out_abort(now, id, sink);
        }
        self.aborts = aborts;
        self.aborts.clear();
        self.output(sink);
    }

    /// Ends the members that the last step of a stretch gave their last token.
    #[inline]
    fn finish_members<S: EngineSink>(&mut self, sink: &mut S) {
        if !self.finishes_in(self.last_output_step) {
            return;
        }
        let mut ending = std::mem::take(&mut self.ending);
        let end = Ended { at: self.last_output_end, number: self.next_number.wrapping_sub(1) };
        self.collect_finishing(self.last_output_step, &mut ending);
        self.finish_all(&mut ending, end, sink);
        self.ending = ending;
    }

    /// Members whose last token was scheduled by `step`.
    #[inline]
    fn collect_finishing(&mut self, step: u64, ending: &mut Vec<u32>) {
        while self.finishes_in(step)
            && let Some((finish, index)) = self.next_finish()
        {
            if finish > step {
                return;
            }
            self.lock.pop_finish();
            ending.push(index);
        }
    }

    #[inline]
    fn finish_all<S: EngineSink>(&mut self, ending: &mut Vec<u32>, end: Ended, sink: &mut S) {
        if ending.len() > 1 {
            ending.sort_unstable_by_key(|&index| self.slots[index].order);
        }
        for &index in ending.iter() {
            self.finish(index, end, sink);
        }
        ending.clear();
    }

    /// Processes the output of the oldest batch in flight.
    pub(super) fn output<S: EngineSink>(&mut self, sink: &mut S) {
        // Calls that a planned stretch has made by now, though they are not applied yet.
        let called = (self.depth - self.flight.len().min(self.depth)) as u64;
        let Some(mut batch) = self.flight.pop() else { return };
        if batch.measured > 0 {
            // A member had a token from the step right before, which ended when this one began.
            sink.inter_token(batch.measured, Fix(batch.end.0 - batch.start.0), Fix::ZERO, 1);
        }
        self.totals.output_tokens += u64::from(batch.members);
        let mut ending = std::mem::take(&mut self.ending);
        for i in 0..batch.entries.len() {
            let entry = batch.entries[i];
            if entry.gives_token && self.receive(&batch, &entry, sink) {
                ending.push(entry.slot);
            }
        }
        ending.append(&mut batch.draining);
        self.collect_finishing(batch.step, &mut ending);
        self.last_output_end = batch.end;
        self.last_output_step = batch.step;
        self.finish_all(&mut ending, Ended { at: batch.end, number: batch.number }, sink);
        self.ending = ending;
        if let Some(trace) = &mut self.trace {
            let called = self.stretch.as_ref().map_or(0, |s| called.min(s.steps()));
            let free = self.kv.free() - self.lock.demand(called) as u32;
            if let Some(record) = trace.step(batch.number) {
                record.free_after_output = free;
            }
        }
        self.flight.keep(batch);
    }

    /// A sequence of its own receives a token; true when it was the last.
    fn receive<S: EngineSink>(&mut self, batch: &Batch, entry: &Entry, sink: &mut S) -> bool {
        let now = batch.end.floor();
        let asynchronous = self.config.async_scheduling;
        let slot = &mut self.slots[entry.slot];
        self.totals.output_tokens += 1;
        let joined = slot.standing == Standing::Lockstep;
        let waiting = slot.standing == Standing::Waiting;
        let first = slot.first_token == NEVER;
        if first {
            slot.first_token = now;
            let (id, number) = (slot.id, batch.number);
            if let Some(trace) = &mut self.trace {
                trace.change(id, |r| {
                    r.first_token = Some(now);
                    r.first_token_step = Some(number);
                });
            }
        } else if slot.measured {
            sink.inter_token(1, Fix(batch.end.0 - slot.last_token.0), Fix::ZERO, 1);
        }
        slot.last_token = batch.end;
        if slot.preemptions > 0 {
            let lost = self.slots.lost(entry.slot);
            if waiting && first {
                // The period goes on, on the other side of the first token.
                lost.close_period(now, first);
                lost.since = Some(now);
            } else if !waiting {
                lost.close_period(now, first);
            }
        }
        if joined {
            return false;
        }
        let slot = &mut self.slots[entry.slot];
        slot.outputs += 1;
        slot.in_flight -= 1;
        if slot.outputs >= slot.out {
            return true;
        }
        if asynchronous && slot.standing == Standing::Explicit {
            let full = slot.computed - slot.in_flight;
            self.hash_up_to(entry.slot, full);
        }
        false
    }

    /// A request has all its tokens.
    fn finish<S: EngineSink>(&mut self, index: u32, end: Ended, sink: &mut S) {
        let now = end.at.floor();
        let slot = &self.slots[index];
        let (id, out) = (slot.id, slot.out);
        if let Some(trace) = &mut self.trace {
            trace.change(id, |r| r.finish_step = Some(end.number));
            if let Some(record) = trace.step(end.number) {
                record.finished.push(id);
            }
        }
        match slot.standing {
            Standing::Waiting => {
                // Preempted with its last token under way.
                sink.finished(self.record(index, now, FinishReason::Length, out));
                self.leave_waiting(index, now);
                return;
            }
            Standing::Lockstep => {
                let computed = slot.last_computed();
                let member = Membership { base: slot.base, measured: slot.measured };
                self.hash_up_to(index, computed);
                self.lock.leave(member);
            }
            Standing::Draining | Standing::Explicit => {
                let computed = slot.last_computed();
                self.hash_up_to(index, computed);
                self.forget_explicit(index);
            }
            Standing::Vacant | Standing::Gone => unreachable!("it is inside"),
        }
        sink.finished(self.record(index, now, FinishReason::Length, out));
        let computed = self.slots[index].last_computed();
        self.remove_running(index, computed);
    }

    fn remove_running(&mut self, index: u32, computed: u32) {
        self.release(index, computed);
        self.drop_path(index);
        self.leave_running(index);
        self.slots.remove(index);
    }

    fn leave_waiting(&mut self, index: u32, now: SimTime) {
        self.drop_path(index);
        self.waiting.left_early();
        self.slots.mark_gone(index);
        if self.waiting.len() == 0 {
            self.set_blocked(now, false);
        }
    }

    /// The client hung up: takes the request out wherever it stands.
    pub(super) fn carry_out_abort<S: EngineSink>(
        &mut self,
        now: SimTime,
        id: RequestId,
        sink: &mut S,
    ) {
        let Some(index) = self.slots.find(id) else { return };
        self.sync_hashes(index);
        if self.slots[index].standing == Standing::Lockstep {
            self.leave_lockstep(index);
            self.slots[index].standing = Standing::Explicit;
        }
        let measured = u32::from(self.slots[index].measured);
        self.flight.for_each(|batch| {
            batch.entries.retain(|e| e.slot != index);
            if let Some(at) = batch.draining.iter().position(|&other| other == index) {
                batch.draining.remove(at);
                batch.members -= 1;
                batch.measured -= measured;
            }
        });
        let outputs = self.slots[index].outputs;
        let record = self.record(index, now, FinishReason::Abort, outputs);
        if self.slots[index].standing == Standing::Waiting {
            self.leave_waiting(index, now);
        } else {
            self.forget_explicit(index);
            self.remove_running(index, self.slots[index].computed);
        }
        sink.finished(record);
    }

    /// What is told of a request that leaves at `now`.
    fn record(
        &mut self,
        index: u32,
        now: SimTime,
        reason: FinishReason,
        output_tokens: u32,
    ) -> EngineRecord {
        let first_token = some(self.slots[index].first_token);
        let (mut before, mut after) = (Span::ZERO, Span::ZERO);
        if self.slots[index].preemptions > 0 {
            let lost = self.slots.lost(index);
            lost.close_period(now, first_token.is_none());
            (before, after) = (lost.before_first_token, lost.after_first_token);
        }
        let slot = &self.slots[index];
        let kv_wait = match some(slot.first_scheduled) {
            Some(_) => slot.kv_wait,
            None => self.blocked_until(now) - slot.kv_wait_at_enqueue,
        };
        EngineRecord {
            id: slot.id,
            enqueued: slot.enqueued,
            first_scheduled: some(slot.first_scheduled),
            first_token,
            finished: now,
            reason,
            prompt_tokens: slot.prompt,
            output_tokens,
            cached_tokens: slot.cached,
            preemptions: slot.preemptions,
            kv_wait,
            preempted_before_first_token: before,
            preempted_after_first_token: after,
            measured: slot.measured,
        }
    }

    /// True when a lockstep member's last token is scheduled in `step`.
    #[inline]
    fn finishes_in(&self, step: u64) -> bool {
        self.lock.earliest_finish().is_some_and(|earliest| earliest <= step)
    }
}

/// A point, unless it never came.
fn some(at: SimTime) -> Option<SimTime> {
    (at != NEVER).then_some(at)
}
