//! The end of a step: aborts that fell due, tokens received, requests that finish.

use super::{Batch, Entry, FastReplica, Standing};
use crate::engine::fast::lockstep::Membership;
use crate::engine::record::{EngineRecord, FinishReason};
use crate::engine::replica::EngineSink;
use crate::engine::request::RequestId;
use crate::units::{Fix, SimTime, Span};

impl FastReplica {
    /// True when processing the batch's output will end a request.
    pub(super) fn gives_end(&self, batch: &Batch) -> bool {
        !batch.draining.is_empty()
            || batch.entries.iter().any(|entry| entry.finishes)
            || self.finishes_in(batch.step)
    }

    /// Carries out aborts that are due, then processes the output of the oldest batch.
    pub(super) fn process_output<S: EngineSink>(&mut self, now: SimTime, sink: &mut S) {
        let aborts = std::mem::take(&mut self.aborts);
        for &id in &aborts {
            self.carry_out_abort(now, id, sink);
        }
        self.aborts = aborts;
        self.aborts.clear();
        self.output(sink);
    }

    /// Processes the output of the oldest batch in flight.
    pub(super) fn output<S: EngineSink>(&mut self, sink: &mut S) {
        // Calls that a planned stretch has made by now, though they are not applied yet.
        let called = (self.depth - self.flight.len().min(self.depth)) as u64;
        let Some(mut batch) = self.flight.pop_front() else { return };
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
        while let Some((step, index)) = self.next_finish() {
            if step > batch.step {
                break;
            }
            self.lock.pop_finish();
            ending.push(index);
        }
        self.last_output_end = batch.end;
        self.last_output_step = batch.step;
        ending.sort_unstable_by_key(|&index| self.slots[index].order);
        for &index in &ending {
            self.finish(index, &batch, sink);
        }
        ending.clear();
        self.ending = ending;
        if let Some(trace) = &mut self.trace {
            let called = self.stretch.as_ref().map_or(0, |s| called.min(s.steps()));
            let free = self.kv.free() - self.lock.demand(called) as u32;
            if let Some(record) = trace.step(batch.number) {
                record.free_after_output = free;
            }
        }
        batch.entries.clear();
        self.spare.push(batch);
    }

    /// A sequence of its own receives a token; true when it was the last.
    fn receive<S: EngineSink>(&mut self, batch: &Batch, entry: &Entry, sink: &mut S) -> bool {
        let now = batch.end.floor();
        let asynchronous = self.config.async_scheduling;
        let slot = &mut self.slots[entry.slot];
        self.totals.output_tokens += 1;
        let joined = slot.standing == Standing::Lockstep;
        let waiting = slot.standing == Standing::Waiting;
        let first = slot.first_token.is_none();
        if first {
            slot.first_token = Some(now);
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
        if waiting && first {
            // The period goes on, on the other side of the first token.
            close_preempted_period(slot, now, first);
            slot.preempted_since = Some(now);
        } else if !waiting {
            close_preempted_period(slot, now, first);
        }
        if joined {
            return false;
        }
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
    fn finish<S: EngineSink>(&mut self, index: u32, batch: &Batch, sink: &mut S) {
        let now = batch.end.floor();
        let slot = &self.slots[index];
        let (id, out) = (slot.id, slot.out);
        if let Some(trace) = &mut self.trace {
            trace.change(id, |r| r.finish_step = Some(batch.number));
            if let Some(record) = trace.step(batch.number) {
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
        for batch in &mut self.flight {
            batch.entries.retain(|e| e.slot != index);
            if let Some(at) = batch.draining.iter().position(|&other| other == index) {
                batch.draining.remove(at);
                batch.members -= 1;
                batch.measured -= u32::from(self.slots[index].measured);
            }
        }
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
        let blocked = self.blocked_until(now);
        let slot = &mut self.slots[index];
        let first = slot.first_token.is_none();
        close_preempted_period(slot, now, first);
        if slot.first_scheduled.is_none() {
            slot.kv_wait = blocked - slot.kv_wait_at_enqueue;
        }
        EngineRecord {
            id: slot.id,
            enqueued: slot.enqueued,
            first_scheduled: slot.first_scheduled,
            first_token: slot.first_token,
            finished: now,
            reason,
            prompt_tokens: slot.prompt,
            output_tokens,
            cached_tokens: slot.cached,
            preemptions: slot.preemptions,
            kv_wait: slot.kv_wait,
            preempted_before_first_token: slot.preempted_before,
            preempted_after_first_token: slot.preempted_after,
            measured: slot.measured,
        }
    }

    /// True when a lockstep member's last token is scheduled in `step`.
    fn finishes_in(&self, step: u64) -> bool {
        self.lock.earliest_finish().is_some_and(|earliest| earliest <= step)
    }
}

/// Ends the current preempted period, if any, at `now`.
fn close_preempted_period(slot: &mut super::slots::Slot, now: SimTime, before_first_token: bool) {
    if let Some(since) = slot.preempted_since.take() {
        let lost: Span = now.since(since);
        if before_first_token {
            slot.preempted_before += lost;
        } else {
            slot.preempted_after += lost;
        }
    }
}
