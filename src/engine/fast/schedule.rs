//! One schedule call: the running half, smoothly where every running request gets what it wants and
//! by the rules one at a time where budget or blocks run short, and the making of the batch. The
//! waiting half is in `admit`.

use super::{Entry, FastReplica, NONE, Standing};
use crate::engine::config::SchedulingPolicy;
use crate::engine::fast::lockstep::Membership;
use crate::engine::record::StepRecord;
use crate::latency::StepShape;
use crate::units::{Fix, SimTime};

/// Why the scan of waiting requests ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Nobody waits.
    Empty,
    /// `max_num_active_seqs` requests are running.
    Seats,
    /// The token budget is spent.
    Budget,
    /// Chunked prefill is off and the head does not fit the rest of the budget.
    WholePrompt,
    /// The head's whole known sequence does not fit the free blocks.
    Gate,
    /// The head's next tokens do not fit the free blocks.
    Blocks,
    /// Something was preempted, so nobody was looked at.
    Preemption,
}

/// How far a schedule call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Running requests, all of whom get what they want.
    Smooth,
    /// Running requests, one by one.
    ByRule,
    /// Waiting requests; the lockstep has made its step.
    Waiting,
}

/// A schedule call in the making.
#[derive(Debug)]
pub struct Call {
    /// How far it is.
    pub phase: Phase,
    /// When it is made.
    pub now: SimTime,
    /// Tokens left to hand out.
    pub budget: u32,
    /// Cap on the tokens of one request; `u32::MAX` when off.
    pub limit: u32,
    /// What the step computes.
    pub shape: StepShape,
    /// Sequences outside the lockstep.
    pub entries: Vec<Entry>,
    /// Preempted so far.
    pub preempted: u32,
    /// The trace of this step, when kept.
    pub record: Option<Box<StepRecord>>,
}

impl Call {
    /// Adds a sequence of `tokens` after `computed` to the shape of the step.
    pub fn add_shape(&mut self, tokens: u32, computed: u32) {
        let (n, c) = (u64::from(tokens), u64::from(computed));
        if tokens == 1 {
            self.shape.decode_seqs += 1;
            self.shape.decode_context += c + 1;
        } else {
            self.shape.prefill_seqs += 1;
            self.shape.prefill_tokens += tokens;
            self.shape.prefill_attention += n * (2 * c + n);
        }
    }
}

impl FastReplica {
    /// Makes one schedule call; `None` when it scheduled and preempted nothing.
    pub(super) fn call(&mut self, now: SimTime) -> Option<Stop> {
        if self.depth > 1 {
            self.drain_lockstep();
        }
        let crowd = self.running_live + self.waiting.len();
        let mut call = Call {
            phase: Phase::Smooth,
            now,
            budget: self.budget,
            limit: self.threshold(crowd),
            shape: StepShape::default(),
            entries: std::mem::take(&mut self.flight.next().entries),
            preempted: 0,
            record: self.trace.is_some().then(Box::default),
        };
        let evicted = self.kv.evicted();
        if self.runs_smoothly(&call) {
            self.run_smoothly(&mut call);
        } else {
            call.phase = Phase::ByRule;
            self.run_by_rule(&mut call);
        }
        call.phase = Phase::Waiting;
        let members = self.lock.members;
        self.lock.step += 1;
        if members > 0 {
            call.shape.decode_seqs += members;
            call.shape.decode_context += self.lock.context();
        }
        // Those who join now were scheduled on their own in this step.
        let measured = self.lock.measured;
        for entry in &call.entries {
            self.after_entry(entry);
        }
        let stop = if call.preempted > 0 { Stop::Preemption } else { self.admit(&mut call) };
        let blocked = match stop {
            Stop::Gate | Stop::Blocks => true,
            Stop::Preemption => self.waiting.len() > 0,
            Stop::Empty | Stop::Seats | Stop::Budget | Stop::WholePrompt => false,
        };
        self.set_blocked(now, blocked);
        self.totals.waiting_max = self.totals.waiting_max.max(self.waiting.len());
        self.totals.running_max = self.totals.running_max.max(self.running_live);
        let tokens = call.shape.tokens();
        if tokens == 0 && call.preempted == 0 {
            call.entries.clear();
            self.flight.next().entries = call.entries;
            return None;
        }
        if let Some(record) = &mut call.record {
            record.evicted = (self.kv.evicted() - evicted) as u32;
        }
        self.launch(call, members, measured);
        Some(stop)
    }

    /// The per-request cap in a call that starts with `crowd` requests.
    fn threshold(&self, crowd: u32) -> u32 {
        let base = self.config.long_prefill_token_threshold;
        let alone = crowd == 1 && self.config.version.spares_lone_requests();
        if base == 0 || alone {
            return u32::MAX;
        }
        if self.config.long_prefill_token_threshold_adaptive {
            base.max(self.config.max_num_batched_tokens / crowd.max(1))
        } else {
            base
        }
    }

    /// Async: members whose last token is under way are not scheduled again.
    fn drain_lockstep(&mut self) {
        while let Some(index) = self.pop_finishing() {
            let slot = &mut self.slots[index];
            slot.computed = slot.last_computed();
            slot.in_flight = 1;
            slot.outputs = slot.out - 1;
            slot.standing = Standing::Draining;
            let member = Membership { base: slot.base, measured: slot.measured };
            slot.generation = slot.generation.wrapping_add(1);
            self.lock.leave(member);
            let step = self.lock.step;
            self.flight.for_each(|batch| {
                if batch.step == step {
                    batch.draining.push(index);
                }
            });
        }
    }

    /// The next member whose last token was scheduled in the last step, removed from the heap.
    pub(super) fn pop_finishing(&mut self) -> Option<u32> {
        let (step, index) = self.next_finish()?;
        if step > self.lock.step {
            return None;
        }
        self.lock.pop_finish();
        Some(index)
    }

    /// Step and slot of the lockstep member that ends first.
    #[inline]
    pub(super) fn next_finish(&mut self) -> Option<(u64, u32)> {
        let slots = &self.slots;
        self.lock.next_finish(|index, generation| slots[index].generation == generation)
    }

    /// Tokens an explicit request wants.
    fn wants(&self, index: u32, limit: u32) -> u32 {
        let slot = &self.slots[index];
        let open = slot.known() + slot.in_flight - slot.computed;
        open.min(limit).min(self.config.max_model_len - slot.computed - 1)
    }

    /// True when every running request gets what it wants (only the last in order may be cut by
    /// the budget) and there are blocks for all: then order does not matter.
    fn runs_smoothly(&self, call: &Call) -> bool {
        let Some(mut left) = call.budget.checked_sub(self.lock.members) else { return false };
        let mut demand = self.lock.next_demand();
        for (i, &index) in self.explicit.iter().enumerate() {
            let mut tokens = self.wants(index, call.limit);
            if tokens > left {
                if i + 1 < self.explicit.len() || self.running.last() != Some(&index) {
                    return false;
                }
                tokens = left;
            }
            left -= tokens;
            let computed = self.slots[index].computed;
            demand += self.blocks(computed + tokens) - self.blocks(computed);
        }
        demand <= self.kv.free()
    }

    fn run_smoothly(&mut self, call: &mut Call) {
        if call.record.is_some() {
            self.record_lockstep(call);
        }
        self.kv.take(self.lock.next_demand());
        call.budget -= self.lock.members;
        for i in 0..self.explicit.len() {
            let index = self.explicit[i];
            let tokens = self.wants(index, call.limit).min(call.budget);
            if tokens > 0 {
                let computed = self.slots[index].computed;
                self.kv.take(self.blocks(computed + tokens) - self.blocks(computed));
                call.budget -= tokens;
                self.enter(call, index, tokens);
            }
        }
    }

    /// Puts an explicit sequence into the step; its blocks are taken.
    pub(super) fn enter(&mut self, call: &mut Call, index: u32, tokens: u32) {
        let slot = &mut self.slots[index];
        let (before, known) = (slot.computed, slot.known());
        call.add_shape(tokens, before);
        slot.computed += tokens;
        let gives_token = slot.computed >= known + slot.in_flight;
        let finishes = gives_token && slot.computed == slot.last_computed();
        if gives_token {
            slot.in_flight += 1;
        }
        let full = slot.computed.min(known);
        if let Some(record) = &mut call.record {
            record.scheduled.push((slot.id, tokens, before));
        }
        call.entries.push(Entry { slot: index, tokens, before, gives_token, finishes });
        if self.slots[index].quotes {
            // Of two copies of a block the one cached first counts: authors go first where they
            // did.
            self.sync_quoted(index, call.phase);
        }
        self.hash_up_to(index, full);
    }

    /// After the call: a sequence that gets a token goes on in lockstep, or has had its last.
    pub(super) fn after_entry(&mut self, entry: &Entry) {
        if !entry.gives_token {
            return;
        }
        let index = entry.slot;
        let step = self.lock.step;
        let slot = &mut self.slots[index];
        if entry.finishes {
            slot.standing = Standing::Draining;
        } else {
            slot.standing = Standing::Lockstep;
            slot.base = step - u64::from(slot.computed);
            let finish = slot.base + u64::from(slot.last_computed());
            slot.generation = slot.generation.wrapping_add(1);
            let member = Membership { base: slot.base, measured: slot.measured };
            self.lock.join(member, finish, index, slot.generation);
        }
        self.forget_explicit(index);
    }

    /// The running half by the rules, one request at a time: budget or blocks are short.
    fn run_by_rule(&mut self, call: &mut Call) {
        let mut done = vec![0u32; self.running.len()];
        let mut place = 0;
        // vLLM's scan index is not corrected when a victim that it had passed over leaves the
        // list before it, so it misses the next request.
        let mut missed = 0;
        'scan: while place < self.running.len() && call.budget > 0 {
            let index = self.running[place];
            place += 1;
            if index == NONE {
                continue;
            }
            if missed > 0 {
                missed -= 1;
                continue;
            }
            let tokens = match self.slots[index].standing {
                Standing::Lockstep => 1,
                Standing::Explicit => self.wants(index, call.limit).min(call.budget),
                // Its last token is under way.
                Standing::Draining => 0,
                Standing::Vacant | Standing::Waiting | Standing::Gone => {
                    unreachable!("not in the running list")
                }
            };
            if tokens == 0 {
                continue;
            }
            let computed = self.computed(index);
            let need = self.blocks(computed + tokens) - self.blocks(computed);
            while need > self.kv.free() {
                let victim = self.victim();
                let at = self.slots[victim].place as usize;
                let given_back = std::mem::take(&mut done[at]);
                missed += u32::from(at + 1 < place && given_back == 0);
                self.preempt(call, victim, given_back);
                call.budget += given_back;
                if victim == index {
                    break 'scan;
                }
            }
            self.kv.take(need);
            call.budget -= tokens;
            done[place - 1] = tokens;
            if self.config.enable_prefix_caching {
                self.slots.lost(index).scheduled_in = self.lock.step + 1;
            }
            if self.slots[index].standing == Standing::Explicit {
                self.enter(call, index, tokens);
            } else if let Some(record) = &mut call.record {
                record.scheduled.push((self.slots[index].id, 1, computed));
            }
        }
        for (place, &tokens) in done.iter().enumerate() {
            let Some(&index) = self.running.get(place) else { break };
            if index != NONE && tokens == 0 && self.slots[index].standing == Standing::Lockstep {
                self.hash_lockstep(index);
                self.leave_lockstep(index);
                self.slots[index].standing = Standing::Explicit;
                let order = self.slots[index].order;
                let at = self.explicit.partition_point(|&other| self.slots[other].order < order);
                self.explicit.insert(at, index);
            }
        }
    }

    /// Whom to preempt.
    fn victim(&self) -> u32 {
        match self.config.policy {
            SchedulingPolicy::Fcfs => *self.running.last().expect("someone is running"),
            SchedulingPolicy::Priority => {
                let mut best = NONE;
                for &index in self.running.iter().filter(|&&index| index != NONE) {
                    if best == NONE || self.slots.rank(index) > self.slots.rank(best) {
                        best = index;
                    }
                }
                best
            }
        }
    }

    /// Preempts `index`, which this very call had given `given_back` tokens.
    fn preempt(&mut self, call: &mut Call, index: u32, given_back: u32) {
        let lockstep = self.slots[index].standing == Standing::Lockstep;
        if lockstep {
            let lag = u32::from(self.config.async_scheduling);
            let computed = self.computed(index) + given_back;
            self.hash_up_to(index, computed - lag);
            self.leave_lockstep(index);
            self.slots[index].computed = computed;
        } else {
            self.sync_hashes(index);
            self.forget_explicit(index);
            if given_back > 0 {
                self.withdraw(call, index);
            }
        }
        if given_back > 0
            && let Some(record) = &mut call.record
        {
            let id = self.slots[index].id;
            record.scheduled.retain(|&(other, _, _)| other != id);
        }
        let computed = self.slots[index].computed;
        self.release(index, computed);
        let slot = &mut self.slots[index];
        let id = slot.id;
        slot.computed = 0;
        slot.standing = Standing::Waiting;
        slot.preemptions += 1;
        self.slots.lost(index).since.get_or_insert(call.now);
        self.leave_running(index);
        self.waiting.push_preempted(&self.slots, index);
        call.preempted += 1;
        self.totals.preemptions += 1;
        let number = self.next_number;
        if let Some(record) = &mut call.record {
            record.preempted.push(id);
        }
        if let Some(trace) = &mut self.trace {
            trace.change(id, |r| r.preempted_in.push(number));
        }
    }

    /// Takes an explicit sequence that this call had scheduled out of the step again.
    fn withdraw(&mut self, call: &mut Call, index: u32) {
        let at = call.entries.iter().position(|e| e.slot == index);
        let entry = call.entries.remove(at.expect("it was scheduled in this call"));
        if entry.gives_token {
            self.slots[index].in_flight -= 1;
        }
        call.shape = StepShape::default();
        for i in 0..call.entries.len() {
            let Entry { tokens, before, .. } = call.entries[i];
            call.add_shape(tokens, before);
        }
    }

    /// A member stops advancing with the others: its counters become its own again, and the
    /// batches in flight that hold it get entries for it.
    pub(super) fn leave_lockstep(&mut self, index: u32) {
        let step = self.lock.step;
        let slot = &mut self.slots[index];
        let joined = slot.joined();
        let member = Membership { base: slot.base, measured: slot.measured };
        slot.computed = (step - slot.base) as u32;
        slot.generation = slot.generation.wrapping_add(1);
        let measured = u32::from(slot.measured);
        let mut under_way = 0;
        self.flight.for_each(|batch| {
            // In the step before it joined it had an entry of its own.
            under_way += u32::from(batch.step + 1 >= joined);
            if batch.step >= joined {
                batch.members -= 1;
                batch.measured -= measured;
                batch.entries.push(Entry {
                    slot: index,
                    tokens: 1,
                    before: 0,
                    gives_token: true,
                    finishes: false,
                });
            }
        });
        slot.in_flight = under_way;
        slot.outputs = slot.computed + 1 - slot.prompt - under_way;
        if self.last_output_step + 1 >= joined {
            self.slots.lost(index).last_token = self.last_output_end;
        }
        self.lock.desert(member);
    }

    /// Turns a finished call into a batch in flight.
    fn launch(&mut self, call: Call, members: u32, measured: u32) {
        let duration = self.step_time.step(&call.shape);
        let start = self.last_end.max(Fix::from_time(call.now));
        let end = start + duration;
        self.last_end = end;
        let tokens = call.shape.tokens();
        if tokens > 0 {
            let used = self.kv.used();
            self.totals.steps += 1;
            self.totals.scheduled_tokens += u64::from(tokens);
            self.totals.batch_sum += u128::from(members) + call.entries.len() as u128;
            self.totals.used_blocks_sum += u128::from(used);
            self.totals.used_blocks_max = self.totals.used_blocks_max.max(used);
            self.totals.busy += duration;
        }
        let number = self.next_number;
        self.next_number += 1;
        if let (Some(trace), Some(mut record)) = (&mut self.trace, call.record) {
            record.number = number;
            record.called = call.now;
            record.started = start.floor();
            record.ended = end.floor();
            record.tokens = tokens;
            record.free = self.kv.free();
            record.running = self.running_live;
            record.waiting = self.waiting.len();
            let slots = &self.slots;
            let order = |id| slots.find(id).map_or(u64::MAX, |index| slots[index].order);
            record.scheduled.sort_by_key(|&(id, _, _)| order(id));
            trace.steps.push(*record);
        }
        let batch = self.flight.next();
        batch.step = self.lock.step;
        batch.start = start;
        batch.end = end;
        batch.members = members;
        batch.measured = measured;
        batch.entries = call.entries;
        batch.number = number;
        self.flight.push();
    }

    /// Writes the lockstep members and explicit requests into the trace in running order.
    fn record_lockstep(&self, call: &mut Call) {
        let Some(record) = &mut call.record else { return };
        for &index in self.running.iter().filter(|&&index| index != NONE) {
            if self.slots[index].standing == Standing::Lockstep {
                record.scheduled.push((self.slots[index].id, 1, self.computed(index)));
            }
        }
    }
}
