//! What the reference engine reports: the life of each request, running totals, and the recorded
//! steps. Observes what the scheduler decided and when; decides nothing itself.

use super::scheduler::{Decision, Scheduler, TokenReceived};
use crate::engine::record::{
    Admission, EngineRecord, EngineTotals, FinishReason, RequestTrace, StepRecord, TraceDetail,
};
use crate::engine::replica::EngineSink;
use crate::engine::request::{EngineRequest, RequestId};
use crate::units::{Fix, SimTime, Span};
use std::collections::BTreeMap;

/// When a step was called, started and ended, and its number if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StepTimes {
    pub(super) called: SimTime,
    pub(super) started: Fix,
    pub(super) ended: Fix,
}

/// Time during which KV blocks were what kept requests waiting.
#[derive(Debug, Default)]
struct KvWaitClock {
    total: Span,
    /// Set while blocked.
    since: Option<SimTime>,
}

impl KvWaitClock {
    fn read(&self, now: SimTime) -> Span {
        self.total + self.since.map_or(Span::ZERO, |since| now.since(since))
    }

    /// The state that a schedule call leaves behind; it holds until the next call. (A queue that
    /// empties otherwise needs no care: the end that emptied it brings a call at the same instant.)
    fn set(&mut self, now: SimTime, blocked: bool) {
        self.total = self.read(now);
        self.since = blocked.then_some(now);
    }
}

/// A preemption whose loss is still growing.
#[derive(Debug, Clone, Copy)]
struct OpenLoss {
    since: SimTime,
    /// The request runs again, so its next token ends the loss. Before that, only a token that
    /// was under way at the preemption can come (async scheduling), and it ends nothing.
    resumed: bool,
}

/// One request between its first and its last moment in the engine.
#[derive(Debug)]
struct Life {
    enqueued: SimTime,
    prompt_tokens: u32,
    measured: bool,
    /// The KV wait clock when it was enqueued.
    kv_clock_at_enqueue: Span,
    kv_wait: Option<Span>,
    first_scheduled: Option<SimTime>,
    first_token: Option<SimTime>,
    /// Exact end of the step that gave its latest token.
    latest_token: Fix,
    output_tokens: u32,
    cached_tokens: u32,
    preemptions: u32,
    loss: Option<OpenLoss>,
    lost_before_first_token: Span,
    lost_after_first_token: Span,
}

impl Life {
    /// Books the open loss up to `now` on the side of the first token where it falls.
    fn book_loss(&mut self, now: SimTime) {
        if let Some(loss) = &mut self.loss {
            let span = now.since(loss.since);
            loss.since = now;
            match self.first_token {
                None => self.lost_before_first_token += span,
                Some(_) => self.lost_after_first_token += span,
            }
        }
    }

    /// A token at `end`. Hands back the gap since the one before.
    fn token(&mut self, end: Fix) -> Option<Fix> {
        let now = end.floor();
        let gap = self.first_token.map(|_| Fix(end.0 - self.latest_token.0));
        self.book_loss(now);
        if self.loss.is_some_and(|loss| loss.resumed) {
            self.loss = None;
        }
        self.first_token.get_or_insert(now);
        self.latest_token = end;
        self.output_tokens += 1;
        gap
    }

    fn into_record(mut self, id: RequestId, end: SimTime, reason: FinishReason) -> EngineRecord {
        self.book_loss(end);
        EngineRecord {
            id,
            enqueued: self.enqueued,
            first_scheduled: self.first_scheduled,
            first_token: self.first_token,
            finished: end,
            reason,
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.output_tokens,
            cached_tokens: self.cached_tokens,
            preemptions: self.preemptions,
            kv_wait: self.kv_wait.unwrap_or(Span::ZERO),
            preempted_before_first_token: self.lost_before_first_token,
            preempted_after_first_token: self.lost_after_first_token,
            measured: self.measured,
        }
    }
}

/// Everything that is counted and recorded.
#[derive(Debug)]
pub(super) struct Book {
    detail: TraceDetail,
    lives: BTreeMap<RequestId, Life>,
    kv_wait: KvWaitClock,
    totals: EngineTotals,
    /// Steps so far that scheduled tokens or preempted something.
    numbered_steps: u64,
    empty_calls: u64,
    steps: Vec<StepRecord>,
    traces: BTreeMap<RequestId, RequestTrace>,
}

impl Book {
    pub(super) fn new(detail: TraceDetail) -> Self {
        Self {
            detail,
            lives: BTreeMap::new(),
            kv_wait: KvWaitClock::default(),
            totals: EngineTotals::default(),
            numbered_steps: 0,
            empty_calls: 0,
            steps: Vec::new(),
            traces: BTreeMap::new(),
        }
    }

    pub(super) const fn totals(&self) -> &EngineTotals {
        &self.totals
    }

    pub(super) const fn empty_calls(&self) -> u64 {
        self.empty_calls
    }

    pub(super) fn steps(&self) -> &[StepRecord] {
        &self.steps
    }

    pub(super) fn traces(&self) -> impl Iterator<Item = &RequestTrace> {
        self.traces.values()
    }

    /// A request entered the queue, which now has `waiting` requests.
    pub(super) fn enqueued(&mut self, now: SimTime, request: &EngineRequest, waiting: u32) {
        let life = Life {
            enqueued: now,
            prompt_tokens: request.prompt.len(),
            measured: request.measured,
            kv_clock_at_enqueue: self.kv_wait.read(now),
            kv_wait: None,
            first_scheduled: None,
            first_token: None,
            latest_token: Fix::ZERO,
            output_tokens: 0,
            cached_tokens: 0,
            preemptions: 0,
            loss: None,
            lost_before_first_token: Span::ZERO,
            lost_after_first_token: Span::ZERO,
        };
        self.lives.insert(request.id, life);
        if self.detail != TraceDetail::Off {
            self.traces.insert(request.id, RequestTrace::new(request.id));
        }
        self.totals.waiting_max = self.totals.waiting_max.max(waiting);
    }

    /// A schedule call was made. Hands back the number of the step, if it is one.
    pub(super) fn called(
        &mut self,
        call: &Decision,
        times: StepTimes,
        scheduler: &Scheduler,
    ) -> Option<u64> {
        let step = (!call.is_empty()).then_some(self.numbered_steps);
        match step {
            Some(number) => {
                self.numbered_steps += 1;
                self.note_requests(call, number, times.called);
                if self.detail != TraceDetail::Off {
                    self.steps.push(step_record(call, number, times, scheduler, self.detail));
                }
            }
            None => self.empty_calls += 1,
        }
        self.kv_wait.set(times.called, call.blocked_on_kv);
        self.count_call(call, times, scheduler);
        step
    }

    fn note_requests(&mut self, call: &Decision, step: u64, now: SimTime) {
        for admitted in &call.admitted {
            let kv_clock = self.kv_wait.read(now);
            let life = self.life(admitted.id);
            if admitted.resumed {
                if let Some(loss) = &mut life.loss {
                    loss.resumed = true;
                }
            } else {
                life.first_scheduled = Some(now);
                life.kv_wait = Some(kv_clock - life.kv_clock_at_enqueue);
                life.cached_tokens = admitted.cached;
            }
            if let Some(trace) = self.traces.get_mut(&admitted.id) {
                trace.first_scheduled.get_or_insert(now);
                let (cached, known) = (admitted.cached, admitted.known);
                trace.admissions.push(Admission { step, cached, known });
            }
        }
        for &id in &call.preempted {
            let life = self.life(id);
            life.preemptions += 1;
            let since = life.loss.map_or(now, |loss| loss.since);
            life.loss = Some(OpenLoss { since, resumed: false });
            if let Some(trace) = self.traces.get_mut(&id) {
                trace.preempted_in.push(step);
            }
        }
    }

    fn count_call(&mut self, call: &Decision, times: StepTimes, scheduler: &Scheduler) {
        let totals = &mut self.totals;
        let used = scheduler.config().usable_blocks() - scheduler.kv.pool.free_count();
        if !call.entries.is_empty() {
            totals.steps += 1;
            totals.scheduled_tokens += u64::from(call.tokens());
            totals.batch_sum += call.entries.len() as u128;
            totals.used_blocks_sum += u128::from(used);
            totals.busy += Fix(times.ended.0 - times.started.0);
        }
        totals.used_blocks_max = totals.used_blocks_max.max(used);
        totals.running_max = totals.running_max.max(scheduler.running().len() as u32);
        totals.waiting_max = totals.waiting_max.max(scheduler.waiting().len());
        totals.preemptions += call.preempted.len() as u64;
        totals.evicted_blocks += call.evicted;
        let [_, queries, hits, _, resumed_queries, resumed_hits] = prefix_counters(call);
        totals.prefix_queries += queries;
        totals.prefix_hits += hits;
        totals.prefix_preempted_queries += resumed_queries;
        totals.prefix_preempted_hits += resumed_hits;
    }

    /// The output of step `step` was processed at its exact end.
    pub(super) fn output<S: EngineSink>(
        &mut self,
        step: Option<u64>,
        end: Fix,
        received: &[TokenReceived],
        scheduler: &Scheduler,
        sink: &mut S,
    ) {
        self.totals.output_tokens += received.len() as u64;
        for token in received {
            let life = self.life(token.id);
            if let Some(gap) = life.token(end)
                && life.measured
            {
                sink.inter_token(1, gap, Fix::ZERO, 1);
            }
            if let Some(trace) = self.traces.get_mut(&token.id) {
                if trace.first_token.is_none() {
                    (trace.first_token, trace.first_token_step) = (Some(end.floor()), step);
                }
                trace.finish_step = step.filter(|_| token.finished);
            }
            if token.finished {
                self.ended(end.floor(), token.id, FinishReason::Length, sink);
            }
        }
        if let Some(number) = step
            && let Some(record) = self.steps.get_mut(number as usize)
        {
            record.finished = received.iter().filter(|t| t.finished).map(|t| t.id).collect();
            record.free_after_output = scheduler.kv.pool.free_count();
            if self.detail == TraceDetail::Blocks {
                record.free_queue_after_output = scheduler.kv.pool.free_queue();
            }
        }
    }

    /// A request has left the engine.
    pub(super) fn ended<S: EngineSink>(
        &mut self,
        now: SimTime,
        id: RequestId,
        reason: FinishReason,
        sink: &mut S,
    ) {
        let mut life = self.lives.remove(&id).expect("invariant: a request ends once");
        let waited = self.kv_wait.read(now) - life.kv_clock_at_enqueue;
        life.kv_wait.get_or_insert(waited);
        sink.finished(life.into_record(id, now, reason));
    }

    fn life(&mut self, id: RequestId) -> &mut Life {
        self.lives.get_mut(&id).expect("invariant: unfinished requests have a life")
    }
}

/// Requests, tokens queried, tokens hit by first admissions; then by resumed requests.
fn prefix_counters(call: &Decision) -> [u64; 6] {
    let mut counters = [0; 6];
    for admitted in call.admitted.iter().filter(|admitted| admitted.looked_up) {
        let first = if admitted.resumed { 3 } else { 0 };
        counters[first] += 1;
        counters[first + 1] += u64::from(admitted.known);
        counters[first + 2] += u64::from(admitted.cached);
    }
    counters
}

fn step_record(
    call: &Decision,
    number: u64,
    times: StepTimes,
    scheduler: &Scheduler,
    detail: TraceDetail,
) -> StepRecord {
    let admitted = |resumed| {
        call.admitted.iter().filter(move |admitted| admitted.resumed == resumed).map(|a| a.id)
    };
    let mut record = StepRecord {
        number,
        called: times.called,
        started: times.started.floor(),
        ended: times.ended.floor(),
        tokens: call.tokens(),
        scheduled: call.entries.iter().map(|e| (e.id, e.tokens, e.computed)).collect(),
        admitted: admitted(false).collect(),
        resumed: admitted(true).collect(),
        preempted: call.preempted.clone(),
        free: scheduler.kv.pool.free_count(),
        running: scheduler.running().len() as u32,
        waiting: scheduler.waiting().len(),
        prefix: prefix_counters(call),
        evicted: call.evicted as u32,
        ..StepRecord::default()
    };
    if detail == TraceDetail::Blocks {
        record.blocks =
            call.entries.iter().map(|entry| (entry.id, scheduler.block_ids(entry.id))).collect();
        record.free_queue = scheduler.kv.pool.free_queue();
    }
    record
}
