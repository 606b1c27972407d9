//! The fast engine: decides as the reference does, and handles a stretch of steps with an
//! unchanged batch as one event. May know what `engine` may know.
//!
//! The pipeline of a replica is a few *batches in flight* (steps whose schedule call has been
//! applied: one, or two with async scheduling) followed by at most one *stretch*: planned steps of
//! pure decode, of which nothing has been applied yet. A stretch is therefore free to be cut
//! anywhere before it is realised. `kv` and `lockstep` are the books; `schedule` is one schedule
//! call, `admit` its waiting half, `output` what the end of a step does, `stretch` the merging.

mod admit;
mod flight;
mod kv;
mod lockstep;
mod output;
mod queue;
mod schedule;
mod slots;
mod stretch;
mod trace;

use crate::engine::config::{EngineConfig, EngineConfigError, KvGroup, SchedulingPolicy};
use crate::engine::record::{EngineTotals, ReplicaState, RequestTrace, StepRecord, TraceDetail};
use crate::engine::replica::{EngineSink, Replica, Wake, WakeKind};
use crate::engine::request::{EngineRequest, RequestId, Segment, StreamId};
use crate::latency::StepTimeModel;
use crate::units::{Fix, SimTime, Span};
use flight::{Batch, Entry, Flight};
use kv::{FreeOrder, KvPool, Lookup, NONE, PathStep};
use lockstep::{FIRST_STEP, Lockstep};
use queue::WaitingQueue;
use schedule::Stop;
use slots::{Chain, Slots, Standing};
use stretch::Stretch;
use trace::Trace;

/// Whether steps may be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merging {
    /// Stretches of unchanged decode are one event.
    Stretches,
    /// Every step is an event of its own (for tests).
    Never,
}

/// One serving process that merges stretches of unchanged decode.
#[derive(Debug)]
pub struct FastReplica {
    config: EngineConfig,
    step_time: StepTimeModel,
    merging: Merging,
    /// Batches in flight at most: 1, or 2 with async scheduling.
    depth: usize,
    budget: u32,
    max_running: u32,
    watermark: u32,
    slots: Slots,
    waiting: WaitingQueue,
    /// Running requests in order; `NONE` where one left.
    running: Vec<u32>,
    running_live: u32,
    next_order: u64,
    /// Running requests outside the lockstep that want tokens, in running order.
    explicit: Vec<u32>,
    lock: Lockstep,
    kv: KvPool,
    found: Lookup,
    flight: Flight,
    stretch: Option<Stretch>,
    schedule_at: Option<SimTime>,
    /// When to be woken next, kept up by every call from outside.
    next: Option<Wake>,
    /// When the last output was processed with nobody left inside.
    output_at: Option<SimTime>,
    aborts: Vec<RequestId>,
    /// Exact end of the last step called.
    last_end: Fix,
    /// Exact end and number of the last step whose output was processed.
    last_output_end: Fix,
    last_output_step: u64,
    blocked_since: Option<SimTime>,
    blocked_total: Span,
    ending: Vec<u32>,
    next_number: u64,
    totals: EngineTotals,
    trace: Option<Box<Trace>>,
}

impl FastReplica {
    /// Whether this engine can run a configuration that is otherwise sound.
    ///
    /// # Errors
    /// Names the feature that it cannot run.
    pub fn takes(config: &EngineConfig) -> Result<(), EngineConfigError> {
        config.check()?;
        takes_groups(config)?;
        if config.async_scheduling && config.version.schedules_past_the_last_token() {
            let (feature, expected) = ("a useless step after the last token", "vLLM 0.12 or later");
            return Err(EngineConfigError::Unsupported { feature, expected });
        }
        Ok(())
    }

    /// An idle replica with an empty KV pool.
    ///
    /// # Errors
    /// When the configuration cannot be run.
    pub fn new(config: EngineConfig, step_time: StepTimeModel) -> Result<Self, EngineConfigError> {
        Self::with(config, step_time, TraceDetail::Off, Merging::Stretches)
    }

    /// As [`Self::new`], keeping a trace or never merging. Block ids do not exist here, so
    /// [`TraceDetail::Blocks`] keeps the same as [`TraceDetail::Steps`].
    ///
    /// # Errors
    /// When the configuration cannot be run.
    pub fn with(
        config: EngineConfig,
        step_time: StepTimeModel,
        trace: TraceDetail,
        merging: Merging,
    ) -> Result<Self, EngineConfigError> {
        Self::takes(&config)?;
        // Without hashes the order of the free queue decides nothing.
        let as_released =
            config.enable_prefix_caching && !config.version.queues_unhashed_blocks_first();
        let order = if as_released { FreeOrder::AsReleased } else { FreeOrder::UnhashedFirst };
        Ok(Self {
            depth: if config.async_scheduling { 2 } else { 1 },
            budget: config.token_budget().min(config.max_num_batched_tokens),
            max_running: config.max_running(),
            watermark: config.watermark_blocks(),
            slots: Slots::new(config.policy == SchedulingPolicy::Priority),
            waiting: WaitingQueue::new(config.policy),
            running: Vec::new(),
            running_live: 0,
            next_order: 0,
            explicit: Vec::new(),
            lock: Lockstep::new(config.block_size),
            kv: KvPool::new(config.usable_blocks(), config.block_size, order),
            found: Lookup::default(),
            flight: Flight::default(),
            stretch: None,
            schedule_at: None,
            next: None,
            output_at: None,
            aborts: Vec::new(),
            last_end: Fix::ZERO,
            last_output_end: Fix::ZERO,
            last_output_step: FIRST_STEP,
            blocked_since: None,
            blocked_total: Span::ZERO,
            ending: Vec::new(),
            next_number: 0,
            totals: EngineTotals::default(),
            trace: (trace != TraceDetail::Off).then(Box::default),
            config,
            step_time,
            merging,
        })
    }

    /// Steps recorded so far; merged steps are absent.
    #[must_use]
    pub fn steps(&self) -> &[StepRecord] {
        self.trace.as_ref().map_or(&[], |t| &t.steps)
    }

    /// Requests recorded so far.
    #[must_use]
    pub fn request_traces(&self) -> &[RequestTrace] {
        self.trace.as_ref().map_or(&[], |t| &t.requests)
    }

    /// Blocks that `tokens` computed tokens fill, the last one in part.
    fn blocks(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.config.block_size)
    }

    /// Computed tokens of a running request after the last schedule call.
    fn computed(&self, index: u32) -> u32 {
        let slot = &self.slots[index];
        match slot.standing {
            Standing::Lockstep => (self.lock.step - slot.base) as u32,
            _ => slot.computed,
        }
    }

    /// Names the prompt's token sequence, so that blocks can be found and cached.
    fn trace_path(&mut self, index: u32, segments: &[Segment]) {
        let mut parent = NONE;
        let mut at = 0;
        let path = &mut self.slots.chain_mut(index).path;
        debug_assert!(path.is_empty());
        for segment in segments {
            parent = self.kv.enter_node(parent, at, segment.stream);
            at += segment.len;
            path.push(PathStep { node: parent, end: at });
        }
    }

    /// Adds the request's own output to its path, once there is any to name.
    fn extend_path(&mut self, index: u32, end: u32) {
        let (prompt, id) = (self.slots[index].prompt, self.slots[index].id);
        let path = &mut self.slots.chain_mut(index).path;
        let last = path.last_mut().expect("a prompt has at least one token");
        if last.end > prompt {
            last.end = last.end.max(end);
        } else if end > prompt {
            let node = self.kv.enter_node(last.node, prompt, StreamId::output(id));
            path.push(PathStep { node, end });
        }
    }

    /// Gives the request's blocks that are full up to `tokens` their hash.
    fn hash_up_to(&mut self, index: u32, tokens: u32) {
        if !self.config.enable_prefix_caching {
            return;
        }
        let target = tokens / self.config.block_size;
        if target <= self.slots[index].hashed {
            return;
        }
        self.extend_path(index, tokens);
        let block_size = self.config.block_size;
        let mut from = std::mem::replace(&mut self.slots[index].hashed, target);
        let Chain { path, parts } = self.slots.chain_mut(index);
        let mut at = path.partition_point(|step| step.end / block_size <= from);
        while from < target {
            let step = path[at];
            let to = (step.end / block_size).min(target);
            if to > from {
                self.kv.cache(step.node, from, to, parts);
                from = to;
            }
            at += 1;
        }
    }

    /// Brings the hashes of a lockstep member up to the last schedule call.
    fn hash_lockstep(&mut self, index: u32) {
        let lag = u32::from(self.config.async_scheduling);
        self.hash_up_to(index, self.computed(index) - lag);
    }

    /// Brings the hashes of a running request, which are kept up lazily in decode, up to date.
    fn sync_hashes(&mut self, index: u32) {
        match self.slots[index].standing {
            Standing::Lockstep => self.hash_lockstep(index),
            Standing::Draining => {
                let slot = &self.slots[index];
                self.hash_up_to(index, slot.computed - slot.in_flight);
            }
            Standing::Explicit | Standing::Waiting | Standing::Gone | Standing::Vacant => {}
        }
    }

    /// Gives back all blocks of a request that holds blocks for `computed` tokens.
    fn release(&mut self, index: u32, computed: u32) {
        let held = self.blocks(computed);
        let hashed = std::mem::take(&mut self.slots[index].hashed);
        self.kv.give_anonymous(held - hashed);
        if hashed > 0 {
            self.kv.release(&mut self.slots.chain_mut(index).parts);
        }
    }

    /// Forgets the names of a request's tokens; it is about to leave.
    fn drop_path(&mut self, index: u32) {
        if !self.config.enable_prefix_caching {
            return;
        }
        let path = &mut self.slots.chain_mut(index).path;
        for step in path.drain(..).rev() {
            self.kv.leave_node(step.node);
        }
    }

    fn set_blocked(&mut self, now: SimTime, blocked: bool) {
        match (self.blocked_since, blocked) {
            (None, true) => self.blocked_since = Some(now),
            (Some(since), false) => {
                self.blocked_total += now - since;
                self.blocked_since = None;
            }
            (None, false) | (Some(_), true) => {}
        }
    }

    /// Time up to `now` in which the head of the queue failed only on blocks.
    fn blocked_until(&self, now: SimTime) -> Span {
        self.blocked_total + self.blocked_since.map_or(Span::ZERO, |since| now.since(since))
    }

    /// Takes a request out of the running list.
    fn leave_running(&mut self, index: u32) {
        let place = self.slots[index].place as usize;
        debug_assert_eq!(self.running[place], index);
        self.running[place] = NONE;
        self.running_live -= 1;
        while self.running.last() == Some(&NONE) {
            self.running.pop();
        }
    }

    /// Appends a request to the running list.
    fn join_running(&mut self, index: u32) {
        if self.running.len() > 2 * self.running_live as usize + 32 {
            self.compact();
        }
        let slot = &mut self.slots[index];
        slot.place = self.running.len() as u32;
        slot.order = self.next_order;
        self.next_order += 1;
        self.running.push(index);
        self.running_live += 1;
    }

    fn compact(&mut self) {
        self.running.retain(|&index| index != NONE);
        for (place, &index) in self.running.iter().enumerate() {
            self.slots[index].place = place as u32;
        }
    }

    fn forget_explicit(&mut self, index: u32) {
        if let Some(at) = self.explicit.iter().position(|&other| other == index) {
            self.explicit.remove(at);
        }
    }

    fn idle(&self) -> bool {
        self.flight.len() == 0 && self.stretch.is_none()
    }
}

impl Replica for FastReplica {
    fn enqueue<S: EngineSink>(&mut self, now: SimTime, request: EngineRequest, _: &mut S) {
        let room = self.config.max_model_len.saturating_sub(request.prompt.len());
        assert!(room > 0 && !request.prompt.is_empty(), "the caller refuses what cannot be served");
        let out = request.max_tokens.clamp(1, room);
        let index = self.slots.insert(now, self.blocked_until(now), &request, out);
        if self.config.enable_prefix_caching {
            self.trace_path(index, request.prompt.segments());
        }
        if let Some(trace) = &mut self.trace {
            trace.request(request.id);
        }
        let queued = self.waiting.len() > 0;
        self.waiting.push(&self.slots, index);
        self.totals.waiting_max = self.totals.waiting_max.max(self.waiting.len());
        if self.stretch.is_some() {
            self.arrival_in_stretch(now, queued);
        } else if self.flight.len() == 0 || self.output_at == Some(now) {
            // Between calls the engine looks at its queue when idle or right after an output.
            self.schedule_at = Some(now);
        }
        self.next = self.wake_wanted();
    }

    fn abort<S: EngineSink>(&mut self, now: SimTime, id: RequestId, sink: &mut S) {
        if self.slots.find(id).is_none() {
            return;
        }
        if self.stretch.as_ref().is_some_and(|s| s.cancellable_at == Some(now)) {
            self.stretch = None;
            self.schedule_at = Some(now);
        }
        if self.idle() {
            self.carry_out_abort(now, id, sink);
            self.schedule_at = (self.slots.live() > 0).then_some(now);
        } else if self.schedule_at == Some(now) {
            // Between an output and the call of the same instant.
            self.carry_out_abort(now, id, sink);
        } else {
            self.aborts.push(id);
            self.cut_stretch(now);
        }
        self.next = self.wake_wanted();
    }

    fn next_wake(&self) -> Option<Wake> {
        self.next
    }

    fn wake<S: EngineSink>(&mut self, now: SimTime, sink: &mut S) {
        let Some(wake) = self.next else { return };
        debug_assert_eq!(wake.at, now);
        if self.schedule_at.take().is_none() {
            self.reach_output(now, sink);
        }
        match wake.kind {
            WakeKind::Output => {
                // The call that follows must see arrivals of this instant; a planned stretch can
                // still be taken back for them.
                if self.plan(now, None) {
                    self.mark_cancellable(now);
                } else if self.slots.live() > 0 {
                    self.schedule_at = Some(now);
                } else {
                    self.output_at = Some(now);
                }
            }
            WakeKind::Schedule => self.schedule(now),
        }
        self.next = self.wake_wanted();
    }

    fn observe(&self, now: SimTime) -> ReplicaState {
        let used = match &self.stretch {
            None => self.kv.used(),
            Some(stretch) => self.kv.used() + self.demand_called_by(stretch, now),
        };
        ReplicaState {
            running: self.running_live,
            waiting: self.waiting.len(),
            used_blocks: used,
            usable_blocks: self.kv.usable(),
        }
    }

    fn settle<S: EngineSink>(&mut self, now: SimTime, sink: &mut S) {
        self.settle_stretch(now, sink);
        self.next = self.wake_wanted();
    }

    fn totals(&self) -> EngineTotals {
        EngineTotals { evicted_blocks: self.kv.evicted(), ..self.totals.clone() }
    }

    fn busy_after(&self, at: SimTime) -> Fix {
        // Steps in flight follow one another without a gap.
        Fix(self.last_end.0.saturating_sub(Fix::from_time(at).0))
    }

    fn in_flight(&self) -> u32 {
        self.slots.live()
    }

    fn stalled(&self) -> Vec<RequestId> {
        if self.idle() && self.schedule_at.is_none() {
            self.waiting.in_order(&self.slots)
        } else {
            Vec::new()
        }
    }
}

impl FastReplica {
    /// When and why the replica wants to be woken, as it stands.
    fn wake_wanted(&self) -> Option<Wake> {
        if let Some(at) = self.schedule_at {
            return Some(Wake { at, kind: WakeKind::Schedule });
        }
        let (at, ends) = match &self.stretch {
            Some(stretch) => (self.stretch_wake(stretch), stretch.finishes && self.depth == 1),
            None => {
                let batch = self.flight.front()?;
                (batch.end.floor(), self.gives_end(batch))
            }
        };
        // An output that ends nobody shows nothing to the outside: it can wait for the call.
        let output = ends || !self.aborts.is_empty();
        let kind = if output { WakeKind::Output } else { WakeKind::Schedule };
        Some(Wake { at, kind })
    }

    /// Makes schedule calls until the pipeline is full, a stretch is planned or nothing happens.
    fn schedule(&mut self, now: SimTime) {
        let mut stop: Option<Stop> = None;
        loop {
            if self.slots.live() == 0 || self.plan(now, stop) || self.flight.len() >= self.depth {
                return;
            }
            match self.call(now) {
                Some(reason) => stop = Some(reason),
                None => return,
            }
        }
    }
}

/// KV groups that stretches of steps are merged for.
fn takes_groups(config: &EngineConfig) -> Result<(), EngineConfigError> {
    match config.kv_groups.as_slice() {
        [KvGroup::Full] => Ok(()),
        _ => Err(EngineConfigError::Unsupported {
            feature: "a KV group other than one of full attention",
            expected: "one full-attention KV group",
        }),
    }
}
