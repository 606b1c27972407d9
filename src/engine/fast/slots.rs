//! The requests inside the fast engine, one slot each, reused. Plain state; decides nothing.

use crate::engine::fast::kv::{Part, PathStep};
use crate::engine::request::{EngineRequest, RequestId};
use crate::units::{Fix, SimTime, Span};

/// Where a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The slot is empty.
    Vacant,
    /// In the waiting queue, never admitted or preempted.
    Waiting,
    /// Left while waiting; its place in the queue is skipped when it comes up.
    Gone,
    /// Running, with counters of its own: in prefill, or a decode that missed a step.
    Explicit,
    /// Running and decoding one token in every step; its counters follow from the step number.
    Lockstep,
    /// Running, its last token scheduled but not yet received.
    Draining,
}

/// One request.
#[derive(Debug)]
pub struct Slot {
    /// Its number.
    pub id: RequestId,
    /// Where it stands.
    pub standing: Standing,
    /// Reached the endpoint.
    pub arrival: SimTime,
    /// Smaller is served first.
    pub priority: i32,
    /// Prompt tokens.
    pub prompt: u32,
    /// Output tokens it will make: `max_tokens`, cut by `max_model_len`.
    pub out: u32,
    /// Does not read the prefix cache.
    pub skip_cache: bool,
    /// Counts in latency figures.
    pub measured: bool,
    /// Admission number: running order.
    pub order: u64,
    /// Index in the running list.
    pub place: u32,
    /// Computed tokens (not kept up while in lockstep).
    pub computed: u32,
    /// Outputs received (not kept up while in lockstep).
    pub outputs: u32,
    /// Tokens under way: scheduled, output not yet processed (not kept up while in lockstep).
    pub in_flight: u32,
    /// In lockstep: step number minus computed tokens after that step.
    pub base: u64,
    /// First step of the lockstep.
    pub joined: u64,
    /// Step that schedules its last token.
    pub finish_step: u64,
    /// The last step that scheduled it by the rules, one by one.
    pub scheduled_in: u64,
    /// Its prompt quotes the output of other requests.
    pub quotes: bool,
    /// Tells stale entries of the finish heap.
    pub generation: u32,
    /// Blocks with a hash, from the start.
    pub hashed: u32,
    /// Its token sequence by nodes: prompt segments, then its own output once needed.
    pub path: Vec<PathStep>,
    /// What it holds of the prefix cache.
    pub parts: Vec<Part>,
    /// True once admitted: a later admission is a resumption.
    pub resumed: bool,
    /// Entered the queue.
    pub enqueued: SimTime,
    /// The engine's KV-wait counter at that moment.
    pub kv_wait_at_enqueue: Span,
    /// KV wait up to first admission.
    pub kv_wait: Span,
    /// First admission.
    pub first_scheduled: Option<SimTime>,
    /// First token received.
    pub first_token: Option<SimTime>,
    /// Exact time of the last token received, when not implied by the lockstep.
    pub last_token: Fix,
    /// Cached tokens at first admission.
    pub cached: u32,
    /// Times preempted.
    pub preemptions: u32,
    /// Start of the current preempted period.
    pub preempted_since: Option<SimTime>,
    /// Preempted time before the first token.
    pub preempted_before: Span,
    /// Preempted time after it.
    pub preempted_after: Span,
}

impl Slot {
    fn vacant() -> Self {
        Self {
            id: RequestId(u64::MAX),
            standing: Standing::Vacant,
            arrival: SimTime::ZERO,
            priority: 0,
            prompt: 0,
            out: 0,
            skip_cache: false,
            measured: false,
            order: 0,
            place: 0,
            computed: 0,
            outputs: 0,
            in_flight: 0,
            base: 0,
            joined: 0,
            finish_step: 0,
            scheduled_in: 0,
            quotes: false,
            generation: 0,
            hashed: 0,
            path: Vec::new(),
            parts: Vec::new(),
            resumed: false,
            enqueued: SimTime::ZERO,
            kv_wait_at_enqueue: Span::ZERO,
            kv_wait: Span::ZERO,
            first_scheduled: None,
            first_token: None,
            last_token: Fix::ZERO,
            cached: 0,
            preemptions: 0,
            preempted_since: None,
            preempted_before: Span::ZERO,
            preempted_after: Span::ZERO,
        }
    }

    /// Tokens known to the scheduler: prompt and received outputs (not in lockstep).
    pub const fn known(&self) -> u32 {
        self.prompt + self.outputs
    }

    /// Computed tokens when the last token has been scheduled.
    pub const fn last_computed(&self) -> u32 {
        self.prompt + self.out - 1
    }
}

/// All slots of a replica.
#[derive(Debug, Default)]
pub struct Slots {
    slots: Vec<Slot>,
    /// Request numbers by slot, for search; `u64::MAX` where vacant or gone.
    ids: Vec<u64>,
    vacant: Vec<u32>,
    live: u32,
}

impl Slots {
    /// Requests that have not left.
    pub const fn live(&self) -> u32 {
        self.live
    }

    /// Stores a request as waiting.
    pub fn insert(&mut self, now: SimTime, request: &EngineRequest, out: u32) -> u32 {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot::vacant());
            self.ids.push(u64::MAX);
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        debug_assert_eq!(slot.standing, Standing::Vacant);
        debug_assert!(slot.path.is_empty() && slot.parts.is_empty());
        slot.id = request.id;
        slot.standing = Standing::Waiting;
        slot.arrival = request.arrival;
        slot.priority = request.priority;
        slot.prompt = request.prompt.len();
        slot.out = out;
        slot.skip_cache = request.skip_cache;
        slot.measured = request.measured;
        slot.computed = 0;
        slot.outputs = 0;
        slot.in_flight = 0;
        slot.hashed = 0;
        slot.quotes = request.prompt.segments().iter().any(|s| s.stream.author().is_some());
        slot.resumed = false;
        slot.enqueued = now;
        slot.kv_wait = Span::ZERO;
        slot.first_scheduled = None;
        slot.first_token = None;
        slot.cached = 0;
        slot.preemptions = 0;
        slot.preempted_since = None;
        slot.preempted_before = Span::ZERO;
        slot.preempted_after = Span::ZERO;
        self.ids[index as usize] = request.id.0;
        self.live += 1;
        index
    }

    /// Marks a request that left the waiting queue early; the slot stays until
    /// [`Self::free_gone`].
    pub fn mark_gone(&mut self, index: u32) {
        self.slots[index as usize].standing = Standing::Gone;
        self.ids[index as usize] = u64::MAX;
        self.live -= 1;
    }

    /// Frees the slot of a request that had left, when its queue entry comes up.
    pub fn free_gone(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        debug_assert_eq!(slot.standing, Standing::Gone);
        slot.standing = Standing::Vacant;
        self.vacant.push(index);
    }

    /// Frees the slot of a request that left the running list.
    pub fn remove(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.standing = Standing::Vacant;
        slot.generation = slot.generation.wrapping_add(1);
        self.ids[index as usize] = u64::MAX;
        self.vacant.push(index);
        self.live -= 1;
    }

    /// Slot of a request that is inside.
    pub fn find(&self, id: RequestId) -> Option<u32> {
        self.ids.iter().position(|&other| other == id.0).map(|at| at as u32)
    }
}

impl std::ops::Index<u32> for Slots {
    type Output = Slot;
    fn index(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Slots {
    fn index_mut(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index as usize]
    }
}
