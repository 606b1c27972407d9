//! Stretches: steps of pure decode by unchanged members, planned as one event and applied only when
//! they are over, cut short, or asked about. `ARCHITECTURE.md` gives the argument why they may be
//! merged and the conditions that end one; `plan` is the code of those conditions.

use super::schedule::Stop;
use super::{FastReplica, Merging};
use crate::engine::config::SchedulingPolicy;
use crate::engine::replica::EngineSink;
use crate::units::{Fix, SimTime};

/// Planned steps of pure decode that follow the batches in flight.
#[derive(Debug)]
pub struct Stretch {
    /// Exact start of the first step.
    start: Fix,
    /// Duration of the first step, and by how much each outlasts the one before.
    first: Fix,
    increment: Fix,
    /// Steps; at least one.
    steps: u64,
    members: u32,
    measured: u32,
    /// The last step gives some member its last token.
    pub finishes: bool,
    /// Planned with the step output of this instant, before its arrivals are known: they may take
    /// it back.
    pub cancellable_at: Option<SimTime>,
}

impl Stretch {
    /// Time of the first `n` steps together.
    #[inline]
    fn time_of(&self, n: u64) -> u128 {
        let pairs = u128::from(n) * u128::from(n.saturating_sub(1)) / 2;
        match (u64::try_from(self.first.0), u64::try_from(self.increment.0)) {
            // One multiplication each instead of three.
            (Ok(first), Ok(increment)) if n < 1 << 32 => {
                u128::from(first) * u128::from(n) + u128::from(increment) * pairs
            }
            _ => self.first.0 * u128::from(n) + self.increment.0 * pairs,
        }
    }

    /// Steps planned.
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Exact end of step `index` (from 0).
    fn end(&self, index: u64) -> Fix {
        Fix(self.start.0 + self.time_of(index + 1))
    }

    /// How many steps end before `at`.
    fn ends_before(&self, at: Fix) -> u64 {
        let Some(room) = at.0.checked_sub(self.start.0) else { return 0 };
        if self.time_of(self.steps) < room {
            return self.steps;
        }
        // A close guess by the quadratic formula, then exact steps; IEEE square roots are exact
        // to the last bit, so the guess is the same everywhere.
        let (a, d) = (float(self.increment.0) / 2.0, float(room));
        let b = float(self.first.0) - a;
        let guess = 2.0 * d / (b + (b * b + 4.0 * a * d).sqrt());
        let mut n = if guess.is_finite() { (guess as u64).min(self.steps) } else { 0 };
        while n > 0 && self.time_of(n) >= room {
            n -= 1;
        }
        while n < self.steps && self.time_of(n + 1) < room {
            n += 1;
        }
        n
    }
}

/// Nearest float; most values fit 64 bits, whose conversion is one instruction.
fn float(value: u128) -> f64 {
    u64::try_from(value).map_or_else(|_| value as f64, |narrow| narrow as f64)
}

impl FastReplica {
    /// Plans a stretch to follow the batches in flight, if the next schedule call is sure to be
    /// pure decode: `stop` is how the waiting scan of a call just made ended.
    pub(super) fn plan(&mut self, now: SimTime, stop: Option<Stop>) -> bool {
        let members = self.lock.members;
        if self.merging == Merging::Never
            || !self.explicit.is_empty()
            || members == 0
            || members > self.budget
        {
            return false;
        }
        if self.waiting.len() > 0 && !self.scan_is_idle() {
            // A head that fails on its whole sequence goes on failing while nothing is released:
            // the blocks it needs beyond its hit stay the same and free blocks only get fewer.
            // (Without chunked prefill a shrinking hit could make it fail on the budget instead.)
            let blocked = stop == Some(Stop::Gate) && self.config.enable_chunked_prefill;
            if !blocked || self.counts_lookups() || self.head_quotes_running() {
                return false;
            }
        }
        if self.flight.iter().any(|batch| self.gives_end(batch)) {
            return false;
        }
        let Some((finish, _)) = self.next_finish() else { return false };
        let to_finish = finish - self.lock.step;
        let steps = self.lock.steps_within(self.kv.free(), to_finish);
        if steps == 0 || self.flight.len() as u64 + steps < self.depth as u64 {
            return false;
        }
        let context = self.lock.context() + u64::from(members);
        self.stretch = Some(Stretch {
            start: self.last_end.max(Fix::from_time(now)),
            first: self.step_time.decode_step(members, context),
            increment: self.step_time.decode_increment(members),
            steps,
            members,
            measured: self.lock.measured,
            finishes: steps == to_finish,
            cancellable_at: None,
        });
        true
    }

    /// True when schedule calls do not get to look at the queue: seats or budget are taken.
    fn scan_is_idle(&self) -> bool {
        self.running_live >= self.max_running || self.lock.members >= self.budget
    }

    /// Lets arrivals at `now` take the stretch back.
    pub(super) fn mark_cancellable(&mut self, now: SimTime) {
        if let Some(stretch) = &mut self.stretch {
            stretch.cancellable_at = Some(now);
        }
    }

    /// When the stretch ends: the output that is due once only the last batches are in flight.
    pub(super) fn stretch_wake(&self, stretch: &Stretch) -> SimTime {
        let total = self.flight.len() as u64 + stretch.steps;
        let index = total - self.depth as u64;
        match self.flight.get(index as usize) {
            Some(batch) => batch.end.floor(),
            None => stretch.end(index - self.flight.len() as u64).floor(),
        }
    }

    /// A request arrived while a stretch was planned; `queued` when others already waited.
    pub(super) fn arrival_in_stretch(&mut self, now: SimTime, queued: bool) {
        // Behind a blocked head, or with no seat, it changes no call of the stretch.
        let behind = queued && self.config.policy == SchedulingPolicy::Fcfs;
        if behind || self.scan_is_idle() {
            return;
        }
        if self.stretch.as_ref().is_some_and(|s| s.cancellable_at == Some(now)) {
            self.stretch = None;
            self.schedule_at = Some(now);
        } else {
            self.cut_stretch(now);
        }
    }

    /// Steps of the pipeline (batches in flight, then the stretch) that end before `at`.
    fn ends_before(&self, stretch: &Stretch, at: Fix) -> u64 {
        let in_flight = self.flight.iter().filter(|batch| batch.end < at).count();
        if in_flight < self.flight.len() {
            in_flight as u64
        } else {
            in_flight as u64 + stretch.ends_before(at)
        }
    }

    /// Cuts the stretch so that the replica wakes at the first step end at or after `now`.
    pub(super) fn cut_stretch(&mut self, now: SimTime) {
        let Some(stretch) = &self.stretch else { return };
        let index = self.ends_before(stretch, Fix::from_time(now));
        let steps = index + self.depth as u64 - self.flight.len() as u64;
        if steps == 0 {
            self.stretch = None;
        } else if steps < stretch.steps
            && let Some(stretch) = &mut self.stretch
        {
            stretch.steps = steps;
            stretch.finishes = false;
        }
    }

    /// Blocks that stretch calls made at or before `now` have taken.
    pub(super) fn demand_called_by(&self, stretch: &Stretch, now: SimTime) -> u32 {
        let ended = self.ends_before(stretch, Fix::from_time(SimTime(now.0.saturating_add(1))));
        let called = (ended + self.depth as u64).saturating_sub(self.flight.len() as u64);
        self.lock.demand(called.min(stretch.steps)) as u32
    }

    /// Applies the whole stretch: up to and including the output that is due, or, with `hold` = 1,
    /// leaving that one to be processed.
    pub(super) fn realise<S: EngineSink>(&mut self, hold: u64, sink: &mut S) {
        if let Some(stretch) = &self.stretch {
            let total = self.flight.len() as u64 + stretch.steps;
            let due = total + 1 - self.depth as u64;
            self.advance(due - hold, sink);
            debug_assert!(self.stretch.is_none());
        }
    }

    /// Applies what has happened by `now`, leaving the rest of the stretch planned.
    pub(super) fn settle_stretch<S: EngineSink>(&mut self, now: SimTime, sink: &mut S) {
        if let Some(stretch) = &self.stretch {
            let after = Fix::from_time(SimTime(now.0.saturating_add(1)));
            let ended = self.ends_before(stretch, after);
            self.advance(ended, sink);
        }
    }

    /// Processes the outputs of the first `ended` steps of the pipeline and makes the calls that
    /// follow from them.
    fn advance<S: EngineSink>(&mut self, ended: u64, sink: &mut S) {
        let in_flight = self.flight.len() as u64;
        for _ in 0..ended.min(in_flight) {
            self.output(sink);
        }
        if ended > in_flight {
            self.settle_steps(ended - in_flight, sink);
        }
        while self.flight.len() < self.depth && self.stretch.is_some() {
            self.make_batch();
        }
    }

    /// Takes `steps` whole steps off the front of the stretch: call, output and all.
    fn settle_steps<S: EngineSink>(&mut self, steps: u64, sink: &mut S) {
        let Some(stretch) = &mut self.stretch else { return };
        let (members, measured) = (stretch.members, stretch.measured);
        let (first, increment) = (stretch.first, stretch.increment);
        let time = stretch.time_of(steps);
        stretch.start.0 += time;
        stretch.first.0 += increment.0 * u128::from(steps);
        stretch.steps -= steps;
        let end = stretch.start;
        if stretch.steps == 0 {
            self.stretch = None;
        }
        let tokens = steps * u64::from(members);
        let used = u128::from(self.kv.used());
        let (demand, sum) = self.lock.demand_and_sum(steps);
        self.totals.used_blocks_sum += used * u128::from(steps) + sum;
        self.kv.take(demand as u32);
        self.totals.used_blocks_max = self.totals.used_blocks_max.max(self.kv.used());
        self.totals.steps += steps;
        self.totals.scheduled_tokens += tokens;
        self.totals.output_tokens += tokens;
        self.totals.batch_sum += u128::from(tokens);
        self.totals.busy.0 += time;
        if measured > 0 {
            sink.inter_token(measured, first, increment, steps);
        }
        self.lock.step += steps;
        self.next_number += steps;
        self.last_end = end;
        self.last_output_end = end;
        self.last_output_step = self.lock.step;
    }

    /// Makes the first schedule call of the stretch: its step goes in flight.
    fn make_batch(&mut self) {
        let Some(stretch) = &mut self.stretch else { return };
        let duration = stretch.first;
        let (start, end) = (stretch.start, stretch.end(0));
        let (members, measured) = (stretch.members, stretch.measured);
        stretch.start = end;
        stretch.first += stretch.increment;
        stretch.steps -= 1;
        if stretch.steps == 0 {
            self.stretch = None;
        }
        self.kv.take(self.lock.next_demand());
        self.lock.step += 1;
        let used = self.kv.used();
        self.totals.steps += 1;
        self.totals.scheduled_tokens += u64::from(members);
        self.totals.batch_sum += u128::from(members);
        self.totals.used_blocks_sum += u128::from(used);
        self.totals.used_blocks_max = self.totals.used_blocks_max.max(used);
        self.totals.busy += duration;
        self.last_end = end;
        let number = self.next_number;
        self.next_number += 1;
        let batch = self.flight.next();
        batch.step = self.lock.step;
        batch.start = start;
        batch.end = end;
        batch.members = members;
        batch.measured = measured;
        batch.number = number;
        self.flight.push();
    }
}
