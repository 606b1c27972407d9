//! One schedule call and one round of output processing by the rules of vLLM V1, step by step.
//! Decides in tokens and blocks only: knows nothing of time, of records or of who asks.

use super::kv::{AdmissionGate, KvCache, Refusal};
use super::queue::WaitingQueue;
use super::state::{RequestState, Status};
use super::states::StateEdges;
use crate::engine::config::{EngineConfig, SchedulingPolicy};
use crate::engine::request::{EngineRequest, RequestId};
use std::collections::BTreeMap;

/// One request in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: RequestId,
    /// Tokens in this step.
    pub(super) tokens: u32,
    /// Computed tokens before it.
    pub(super) computed: u32,
    /// False for a chunk of a prompt that does not reach its end: such a step gives no token.
    pub(super) gives_token: bool,
}

/// A request admitted by a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Admitted {
    pub(super) id: RequestId,
    /// It was preempted before.
    pub(super) resumed: bool,
    /// It was looked up in the prefix cache, and counts in its statistics.
    pub(super) looked_up: bool,
    /// Tokens found in the prefix cache.
    pub(super) cached: u32,
    /// Tokens known now.
    pub(super) known: u32,
}

/// What one schedule call decided.
#[derive(Debug, Default)]
pub(super) struct Decision {
    /// Running requests in running order, then the admitted ones.
    pub(super) entries: Vec<Entry>,
    pub(super) admitted: Vec<Admitted>,
    pub(super) preempted: Vec<RequestId>,
    /// Requests wait, and what kept them was KV blocks: the head's allocation failed, or the
    /// queue was not looked at because the call preempted.
    pub(super) blocked_on_kv: bool,
    /// Cached blocks handed out again.
    pub(super) evicted: u64,
}

impl Decision {
    /// Nothing scheduled, nothing preempted.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.preempted.is_empty()
    }

    /// Tokens scheduled.
    pub(super) fn tokens(&self) -> u32 {
        self.entries.iter().map(|entry| entry.tokens).sum()
    }
}

/// What a call may still hand out, and the cap for one request.
struct Budget {
    tokens: u32,
    /// Input tokens of the model runner; larger than `tokens` under `max_num_scheduled_tokens`.
    input: u32,
    /// Cap on the tokens of one request; `None` when off.
    threshold: Option<u32>,
}

impl Budget {
    fn is_spent(&self) -> bool {
        self.tokens == 0 || self.input == 0
    }

    fn left(&self) -> u32 {
        self.tokens.min(self.input)
    }

    fn capped(&self, tokens: u32) -> u32 {
        self.threshold.map_or(tokens, |threshold| tokens.min(threshold))
    }

    fn spend(&mut self, tokens: u32) {
        self.tokens -= tokens;
        self.input -= tokens;
    }

    fn give_back(&mut self, tokens: u32) {
        self.tokens += tokens;
        self.input += tokens;
    }
}

/// A token that reached a request, in the order of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TokenReceived {
    pub(super) id: RequestId,
    /// It was the last one; the request has left.
    pub(super) finished: bool,
}

/// Queues, requests and KV cache of one engine.
#[derive(Debug)]
pub(super) struct Scheduler {
    config: EngineConfig,
    pub(super) kv: KvCache,
    requests: BTreeMap<RequestId, RequestState>,
    running: Vec<RequestId>,
    waiting: WaitingQueue,
    /// Where prefill must stop for the sake of Mamba states, if there are any to cache.
    states: Option<StateEdges>,
    /// Requests ended since the last schedule call. vLLM makes one more call to tell the workers,
    /// even when no request is left.
    ends_to_flush: bool,
}

impl Scheduler {
    pub(super) fn new(config: EngineConfig) -> Self {
        Self {
            kv: KvCache::new(&config),
            requests: BTreeMap::new(),
            running: Vec::new(),
            waiting: WaitingQueue::new(config.policy),
            states: StateEdges::of(&config),
            ends_to_flush: false,
            config,
        }
    }

    pub(super) const fn config(&self) -> &EngineConfig {
        &self.config
    }

    pub(super) fn running(&self) -> &[RequestId] {
        &self.running
    }

    pub(super) const fn waiting(&self) -> &WaitingQueue {
        &self.waiting
    }

    /// Block ids of an unfinished request, for each KV group.
    pub(super) fn block_ids(&self, id: RequestId) -> Vec<Vec<u32>> {
        let groups = &self.request(id).table.groups;
        groups.iter().map(|group| group.blocks.iter().map(|block| block.0).collect()).collect()
    }

    /// Requests that have not ended.
    pub(super) fn has_unfinished(&self) -> bool {
        !self.requests.is_empty()
    }

    /// True when vLLM's engine loop would make a schedule call.
    pub(super) fn has_work(&self) -> bool {
        self.has_unfinished() || self.ends_to_flush
    }

    pub(super) fn add(&mut self, request: EngineRequest) {
        let state = RequestState::new(request, self.config.kv_groups.len());
        self.waiting.push(state.rank());
        let before = self.requests.insert(state.id, state);
        assert!(before.is_none(), "a request number is used twice");
    }

    /// Ends a request that is running or waiting. False when there is none of this number.
    pub(super) fn abort(&mut self, id: RequestId) -> bool {
        let known = self.requests.contains_key(&id);
        if known {
            self.remove(id);
        }
        known
    }

    /// One schedule call.
    pub(super) fn schedule(&mut self) -> Decision {
        self.ends_to_flush = false;
        self.kv.begin_call();
        let evicted_before = self.kv.pool.evicted();
        let mut budget = self.budget();
        let mut call = Decision::default();
        self.scan_running(&mut budget, &mut call);
        // After a preemption blocks are short; nobody is admitted in the same call.
        let head_failed = call.preempted.is_empty() && self.scan_waiting(&mut budget, &mut call);
        call.blocked_on_kv =
            !self.waiting.is_empty() && (head_failed || !call.preempted.is_empty());
        call.evicted = self.kv.pool.evicted() - evicted_before;
        self.advance(&mut call);
        call
    }

    fn budget(&self) -> Budget {
        let unfinished = self.running.len() as u32 + self.waiting.len();
        let mut threshold = self.config.long_prefill_token_threshold;
        if self.config.long_prefill_token_threshold_adaptive && threshold > 0 && unfinished > 0 {
            threshold = threshold.max(self.config.max_num_batched_tokens / unfinished);
        }
        Budget {
            tokens: self.config.token_budget(),
            input: self.config.max_num_batched_tokens,
            // A request that is alone is not capped.
            threshold: (threshold > 0 && unfinished != 1).then_some(threshold),
        }
    }

    /// Running requests, in the order of the running list.
    fn scan_running(&mut self, budget: &mut Budget, call: &mut Decision) {
        let mut index = 0;
        while index < self.running.len() && !budget.is_spent() {
            let id = self.running[index];
            let tokens = self.running_tokens(id, budget);
            if tokens == 0 {
                // It has nothing to do in this step; those behind it may have.
                index += 1;
                continue;
            }
            if !self.allocate_by_preempting(id, tokens, &mut index, budget, call) {
                break;
            }
            let computed = self.request(id).computed;
            call.entries.push(Entry { id, tokens, computed, gives_token: false });
            budget.spend(tokens);
            index += 1;
        }
    }

    /// Tokens that a running request gets if there are blocks for them.
    fn running_tokens(&self, id: RequestId, budget: &Budget) -> u32 {
        let request = self.request(id);
        if request.last_token_is_under_way() {
            return 0;
        }
        // The last token of a full sequence is never computed.
        let room = self.config.max_model_len.saturating_sub(request.computed + 1);
        let tokens = budget.capped(request.wanted()).min(budget.left()).min(room);
        self.cut(request, request.computed, tokens)
    }

    /// `tokens` after the first `start` ones, less what would overshoot a place where a Mamba
    /// state is to be kept.
    fn cut(&self, request: &RequestState, start: u32, tokens: u32) -> u32 {
        self.states.map_or(tokens, |states| states.cut(request, start, tokens))
    }

    /// Allocates for a running request, preempting others until there is room. False when the
    /// victim was the request itself. Ends, because every round takes one off the running list.
    fn allocate_by_preempting(
        &mut self,
        id: RequestId,
        tokens: u32,
        index: &mut usize,
        budget: &mut Budget,
        call: &mut Decision,
    ) -> bool {
        let no_hit = self.kv.no_hit();
        loop {
            let request = self.requests.get_mut(&id).expect("invariant: running requests exist");
            if self.kv.allocate(request, &no_hit, tokens, AdmissionGate::OPEN).is_ok() {
                return true;
            }
            let victim = self.running.remove(self.victim());
            if let Some(at) = call.entries.iter().position(|entry| entry.id == victim) {
                // Only the priority policy picks a request that this call already scheduled. As in
                // vLLM the index moves only in this case: a victim before it that was passed over
                // (its last token under way) makes the scan miss the next request once. No
                // recorded schedule has either case.
                budget.give_back(call.entries.remove(at).tokens);
                *index -= 1;
            }
            self.preempt(victim);
            call.preempted.push(victim);
            if victim == id {
                return false;
            }
        }
    }

    /// Index of the running request to preempt: the last one, or the first of those with the
    /// largest (priority, arrival).
    fn victim(&self) -> usize {
        match self.config.policy {
            SchedulingPolicy::Fcfs => self.running.len() - 1,
            SchedulingPolicy::Priority => {
                let key = |index: usize| {
                    let request = self.request(self.running[index]);
                    (request.priority, request.arrival)
                };
                (1..self.running.len()).fold(0, |best, i| if key(i) > key(best) { i } else { best })
            }
        }
    }

    /// Takes everything computed from `id`, which has left the running list. A token under way
    /// (async scheduling) is still received while it waits.
    fn preempt(&mut self, id: RequestId) {
        let request = self.requests.get_mut(&id).expect("invariant: running requests exist");
        self.kv.release(request);
        request.computed = 0;
        request.status = Status::Preempted;
        self.waiting.push_preempted(request.rank());
    }

    /// Waiting requests, head by head: nobody passes a head that cannot be admitted. True when the
    /// scan ended because there were no blocks for the head.
    fn scan_waiting(&mut self, budget: &mut Budget, call: &mut Decision) -> bool {
        while !budget.is_spent()
            && (self.running.len() as u32) < self.config.max_running()
            && let Some(id) = self.waiting.head()
        {
            let gate = self.admission_gate();
            let request = self.requests.get_mut(&id).expect("invariant: waiting requests exist");
            // Its old output would have to be received first. With a queue of two batches it
            // always has been: a call that preempts is followed by the output of the step in
            // flight before the next call.
            debug_assert_eq!(request.placeholders, 0, "{id:?} has a token under way");
            let looked_up = self.kv.caching() && !request.skip_cache;
            let hit = if looked_up { self.kv.lookup(request) } else { self.kv.no_hit() };
            let cached = self.kv.tokens(&hit);
            let wanted = budget.capped(request.known() - cached);
            if wanted > budget.left() && !self.config.enable_chunked_prefill {
                return false;
            }
            let tokens = wanted.min(budget.left());
            let tokens = self.states.map_or(tokens, |states| states.cut(request, cached, tokens));
            if tokens == 0 {
                return false;
            }
            if let Err(refusal) = self.kv.allocate(request, &hit, tokens, gate) {
                return refusal == Refusal::NoRoom;
            }
            call.admitted.push(Admitted {
                id,
                resumed: request.status == Status::Preempted,
                looked_up,
                cached,
                known: request.known(),
            });
            call.entries.push(Entry { id, tokens, computed: cached, gives_token: false });
            budget.spend(tokens);
            request.computed = cached;
            request.status = Status::Running;
            self.waiting.remove(id);
            self.running.push(id);
        }
        false
    }

    /// What an admission must leave free. The watermark holds only while others run, else a
    /// request could be kept out of an idle engine for ever. Looked at anew for each head: those
    /// admitted earlier in the same call count as running.
    fn admission_gate(&self) -> AdmissionGate {
        let reserve = if self.running.is_empty() { 0 } else { self.config.watermark_blocks() };
        AdmissionGate { reserve, whole_prompt: self.config.scheduler_reserve_full_isl }
    }

    /// Counts the scheduled tokens as computed, and says which entries will give a token.
    fn advance(&mut self, call: &mut Decision) {
        for entry in &mut call.entries {
            let request =
                self.requests.get_mut(&entry.id).expect("invariant: scheduled requests exist");
            request.computed += entry.tokens;
            request.in_flight += entry.tokens;
            entry.gives_token = request.wanted() == 0;
            if entry.gives_token && self.config.async_scheduling {
                request.placeholders += 1;
            }
        }
    }

    /// The output of a step: appends tokens and ends requests, in the order of the step. Entries
    /// of requests that were aborted meanwhile are void; those of requests that were preempted
    /// meanwhile (async scheduling) are not, and may end them out of the waiting queue.
    pub(super) fn process_output(&mut self, entries: &[Entry]) -> Vec<TokenReceived> {
        let mut received = Vec::new();
        for entry in entries {
            let Some(request) = self.requests.get_mut(&entry.id) else { continue };
            request.in_flight -= entry.tokens;
            if !entry.gives_token {
                continue;
            }
            request.output += 1;
            if self.config.async_scheduling {
                request.placeholders -= 1;
                if request.status == Status::Running {
                    // Only now is the token known that may have completed a block. A request
                    // that ends with this token still has its last full block cached before it is
                    // released: evictions and hits of the recorded schedules depend on it.
                    let computed = request.computed - request.placeholders;
                    self.kv.cache(request, computed);
                }
            }
            let finished = request.known() >= self.config.max_model_len
                || request.output >= request.max_tokens;
            if finished {
                self.remove(entry.id);
            }
            received.push(TokenReceived { id: entry.id, finished });
        }
        received
    }

    /// `id` leaves its list and its blocks.
    fn remove(&mut self, id: RequestId) {
        let mut request = self.requests.remove(&id).expect("invariant: it was looked up");
        match request.status {
            Status::Running => self.running.retain(|&other| other != id),
            Status::Waiting | Status::Preempted => self.waiting.remove(id),
        }
        self.kv.release(&mut request);
        self.ends_to_flush = true;
    }

    fn request(&self, id: RequestId) -> &RequestState {
        self.requests.get(&id).expect("invariant: queued requests exist")
    }
}
