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

/// One request: what every request needs, in two cache lines.
#[derive(Debug)]
#[repr(align(64))]
pub struct Slot {
    /// Its number.
    pub id: RequestId,
    /// Admission number: running order.
    pub order: u64,
    /// In lockstep: step number minus computed tokens after that step.
    pub base: u64,
    /// Entered the queue.
    pub enqueued: SimTime,
    /// Before first admission the engine's KV-wait counter at enqueue; then the wait itself.
    pub kv_wait: Span,
    /// First admission; `NEVER` before it.
    pub first_scheduled: SimTime,
    /// First token received; `NEVER` before it.
    pub first_token: SimTime,
    /// Index in the running list.
    pub place: u32,
    /// Prompt tokens.
    pub prompt: u32,
    /// Output tokens it will make: `max_tokens`, cut by `max_model_len`.
    pub out: u32,
    /// Computed tokens (in lockstep: as they were when it joined).
    pub computed: u32,
    /// Outputs received (not kept up while in lockstep).
    pub outputs: u32,
    /// Tokens under way: scheduled, output not yet processed (not kept up while in lockstep).
    pub in_flight: u32,
    /// Tells stale entries of the finish queue.
    pub generation: u32,
    /// Blocks with a hash, from the start.
    pub hashed: u32,
    /// Cached tokens at first admission.
    pub cached: u32,
    /// Times preempted.
    pub preemptions: u32,
    /// Where it stands.
    pub standing: Standing,
    /// Does not read the prefix cache.
    pub skip_cache: bool,
    /// Counts in latency figures.
    pub measured: bool,
    /// Its prompt quotes the output of other requests.
    pub quotes: bool,
    /// True once admitted: a later admission is a resumption.
    pub resumed: bool,
}

/// What only requests need that were preempted or missed a step.
#[derive(Debug, Clone, Copy)]
pub struct Lost {
    /// Exact time of the last token received, when the lockstep does not imply it.
    pub last_token: Fix,
    /// Start of the current preempted period.
    pub since: Option<SimTime>,
    /// Preempted time before the first token.
    pub before_first_token: Span,
    /// Preempted time after it.
    pub after_first_token: Span,
    /// The last step that scheduled it by the rules, one by one.
    pub scheduled_in: u64,
}

impl Lost {
    const NOTHING: Self = Self {
        last_token: Fix::ZERO,
        since: None,
        before_first_token: Span::ZERO,
        after_first_token: Span::ZERO,
        scheduled_in: 0,
    };

    /// Ends the current preempted period, if any, at `now`.
    pub fn close_period(&mut self, now: SimTime, before_first_token: bool) {
        if let Some(since) = self.since.take() {
            let lost = now.since(since);
            if before_first_token {
                self.before_first_token += lost;
            } else {
                self.after_first_token += lost;
            }
        }
    }
}

/// What only prefix caching needs.
#[derive(Debug, Default)]
pub struct Chain {
    /// The token sequence by nodes: prompt segments, then the request's own output once needed.
    pub path: Vec<PathStep>,
    /// What the request holds of the prefix cache.
    pub parts: Vec<Part>,
}

/// A point that never comes.
pub const NEVER: SimTime = SimTime::MAX;

impl Slot {
    fn vacant() -> Self {
        Self {
            id: RequestId(u64::MAX),
            order: 0,
            base: 0,
            enqueued: SimTime::ZERO,
            kv_wait: Span::ZERO,
            first_scheduled: NEVER,
            first_token: NEVER,
            place: 0,
            prompt: 0,
            out: 0,
            computed: 0,
            outputs: 0,
            in_flight: 0,
            generation: 0,
            hashed: 0,
            cached: 0,
            preemptions: 0,
            standing: Standing::Vacant,
            skip_cache: false,
            measured: false,
            quotes: false,
            resumed: false,
        }
    }

    /// First step of the lockstep.
    pub const fn joined(&self) -> u64 {
        self.base + self.computed as u64 + 1
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
    // Apart, so that what every request needs stays close together.
    lost: Vec<Lost>,
    chains: Vec<Chain>,
    /// Priority and arrival at the endpoint.
    ranks: Vec<(i32, SimTime)>,
    /// The policy looks at `ranks`.
    ranked: bool,
    /// Request numbers by slot, for search; `u64::MAX` where vacant or gone.
    ids: Vec<u64>,
    vacant: Vec<u32>,
    live: u32,
}

impl Slots {
    /// No requests; `ranked` when the policy looks at priorities.
    pub fn new(ranked: bool) -> Self {
        Self { ranked, ..Self::default() }
    }

    /// Priority and arrival of a request, under a policy that looks at them.
    pub fn rank(&self, index: u32) -> (i32, SimTime) {
        self.ranks[index as usize]
    }

    /// Requests that have not left.
    pub const fn live(&self) -> u32 {
        self.live
    }

    /// Stores a request as waiting; `kv_wait` is the engine's KV-wait counter.
    pub fn insert(
        &mut self,
        now: SimTime,
        kv_wait: Span,
        request: &EngineRequest,
        out: u32,
    ) -> u32 {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot::vacant());
            self.lost.push(Lost::NOTHING);
            self.chains.push(Chain::default());
            self.ranks.push((0, SimTime::ZERO));
            self.ids.push(u64::MAX);
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        debug_assert_eq!(slot.standing, Standing::Vacant);
        slot.id = request.id;
        slot.standing = Standing::Waiting;
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
        slot.kv_wait = kv_wait;
        slot.first_scheduled = NEVER;
        slot.first_token = NEVER;
        slot.cached = 0;
        if slot.preemptions > 0 {
            slot.preemptions = 0;
            self.lost[index as usize] = Lost::NOTHING;
        }
        if self.ranked {
            self.ranks[index as usize] = (request.priority, request.arrival);
        }
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

    /// What is kept of requests that were preempted or missed a step.
    pub fn lost(&mut self, index: u32) -> &mut Lost {
        &mut self.lost[index as usize]
    }

    /// The last step that scheduled the request by the rules, one by one.
    pub fn scheduled_in(&self, index: u32) -> u64 {
        self.lost[index as usize].scheduled_in
    }

    /// Names of a request's tokens and what it holds of the cache.
    pub fn chain(&self, index: u32) -> &Chain {
        &self.chains[index as usize]
    }

    /// See [`Self::chain`].
    pub fn chain_mut(&mut self, index: u32) -> &mut Chain {
        &mut self.chains[index as usize]
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
