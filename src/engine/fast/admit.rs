//! The waiting half of a schedule call: prefix lookup, admission checks, admission.

use super::schedule::{Call, Phase, Stop};
use super::{FastReplica, Standing};
use crate::engine::record::Admission;

impl FastReplica {
    /// Admits from the head of the queue until something stops it.
    pub(super) fn admit(&mut self, call: &mut Call) -> Stop {
        loop {
            if self.waiting.len() == 0 {
                return Stop::Empty;
            }
            if call.budget == 0 {
                return Stop::Budget;
            }
            if self.running_live >= self.max_running {
                return Stop::Seats;
            }
            let Some(index) = self.waiting.head(&mut self.slots) else { return Stop::Empty };
            if let Some(stop) = self.admit_head(call, index) {
                return stop;
            }
        }
    }

    fn admit_head(&mut self, call: &mut Call, index: u32) -> Option<Stop> {
        self.find_prefix(index);
        let (hit_blocks, hit_free) = (self.found.blocks, self.found.free_blocks);
        let hit = hit_blocks * self.config.block_size;
        let known = self.slots[index].known();
        if self.counts_lookups() {
            self.count_lookup(call, index, hit, known);
        }
        let mut tokens = (known - hit).min(call.limit);
        if !self.config.enable_chunked_prefill && tokens > call.budget {
            return Some(Stop::WholePrompt);
        }
        tokens = tokens.min(call.budget);
        let reserve = if self.running_live > 0 { self.watermark } else { 0 };
        let need = |to: u32| self.blocks(to).saturating_sub(hit_blocks) + hit_free + reserve;
        let longest = self.config.max_model_len;
        if self.config.reserves_full_isl() && need(known.min(longest)) > self.kv.free() {
            return Some(Stop::Gate);
        }
        if need((hit + tokens).min(longest)) > self.kv.free() {
            return Some(Stop::Blocks);
        }
        self.waiting.pop();
        if hit_blocks > 0 {
            self.kv.touch(&self.found, &mut self.slots.chain_mut(index).parts);
        }
        let slot = &mut self.slots[index];
        slot.hashed = hit_blocks;
        slot.computed = hit;
        slot.standing = Standing::Explicit;
        self.kv.take(self.blocks(hit + tokens) - hit_blocks);
        call.budget -= tokens;
        self.count_admission(call, index, hit, known);
        self.join_running(index);
        self.explicit.push(index);
        self.enter(call, index, tokens);
        let entry = *call.entries.last().expect("just entered");
        self.after_entry(&entry);
        None
    }

    /// Looks the head's known tokens up in the prefix cache; the result is in `found`.
    fn find_prefix(&mut self, index: u32) {
        self.found.clear();
        let slot = &self.slots[index];
        if !self.config.enable_prefix_caching || slot.skip_cache {
            return;
        }
        let known = slot.known();
        if known > slot.prompt {
            self.extend_path(index, known);
        }
        if self.slots[index].quotes {
            self.sync_quoted(index, Phase::Waiting);
        }
        let most = (known - 1) / self.config.block_size;
        self.kv.look_up(&self.slots.chain(index).path, most, &mut self.found);
    }

    /// Brings up to date the hashes of running requests whose output this prompt quotes.
    pub(super) fn sync_quoted(&mut self, index: u32, phase: Phase) {
        for i in 0..self.slots.chain(index).path.len() {
            let stream = self.kv.stream(self.slots.chain(index).path[i].node);
            let Some(author) = stream.author().and_then(|id| self.slots.find(id)) else { continue };
            if author == index {
                continue;
            }
            let slot = &self.slots[author];
            if slot.standing != Standing::Lockstep {
                self.sync_hashes(author);
                continue;
            }
            let scheduled = match phase {
                Phase::Smooth => slot.order < self.slots[index].order,
                Phase::ByRule => self.slots.scheduled_in(author) == self.lock.step + 1,
                // The step number says so already.
                Phase::Waiting => false,
            };
            let lag = u32::from(self.config.async_scheduling);
            let full = self.computed(author) + u32::from(scheduled) - lag;
            self.hash_up_to(author, full);
        }
    }

    /// True when the head's prefix hit may grow as running requests go on.
    pub(super) fn head_quotes_running(&mut self) -> bool {
        let Some(index) = self.waiting.head(&mut self.slots) else { return false };
        if !self.slots[index].quotes {
            return false;
        }
        let path = &self.slots.chain(index).path;
        let mut streams = path.iter().map(|step| self.kv.stream(step.node));
        streams.any(|stream| {
            let author = stream.author().and_then(|id| self.slots.find(id));
            author.is_some_and(|other| self.slots[other].standing == Standing::Lockstep)
        })
    }

    /// True when a look at the head counts in the statistics though it may not be admitted.
    pub(super) fn counts_lookups(&self) -> bool {
        self.config.enable_prefix_caching && self.config.version.counts_every_lookup()
    }

    /// Counts a lookup of the head, if there was one; its first admission comes after it.
    fn count_lookup(&mut self, call: &mut Call, index: u32, hit: u32, known: u32) {
        let slot = &self.slots[index];
        if !self.config.enable_prefix_caching || slot.skip_cache {
            return;
        }
        let apart = slot.resumed && self.config.version.counts_resumed_apart();
        let (queries, hits) = if apart {
            (&mut self.totals.prefix_preempted_queries, &mut self.totals.prefix_preempted_hits)
        } else {
            (&mut self.totals.prefix_queries, &mut self.totals.prefix_hits)
        };
        *queries += u64::from(known);
        *hits += u64::from(hit);
        if let Some(record) = &mut call.record {
            let at = if apart { 3 } else { 0 };
            record.prefix[at] += 1;
            record.prefix[at + 1] += u64::from(known);
            record.prefix[at + 2] += u64::from(hit);
        }
    }

    fn count_admission(&mut self, call: &mut Call, index: u32, hit: u32, known: u32) {
        let blocked = self.blocked_until(call.now);
        let number = self.next_number;
        if !self.counts_lookups() {
            self.count_lookup(call, index, hit, known);
        }
        let slot = &mut self.slots[index];
        let id = slot.id;
        let resumed = std::mem::replace(&mut slot.resumed, true);
        if !resumed {
            slot.cached = hit;
            slot.first_scheduled = call.now;
            slot.kv_wait = blocked - slot.kv_wait;
        }
        if let Some(record) = &mut call.record {
            if resumed { record.resumed.push(id) } else { record.admitted.push(id) }
        }
        if let Some(trace) = &mut self.trace {
            trace.admitted(id, Admission { step: number, cached: hit, known });
            if !resumed {
                trace.change(id, |r| r.first_scheduled = Some(call.now));
            }
        }
    }
}
