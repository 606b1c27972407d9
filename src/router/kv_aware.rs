//! KV-aware routing. Models routers that score replicas by expected prefix hit, KV-cache usage and
//! queue length: SageMaker's KV_AWARE strategy and the scorers of llm-d and of the Gateway API
//! inference extension (prefix-cache scorer, kv-cache-utilization scorer, queue scorer).
//!
//! `score = prefix_weight·hit − usage_weight·usage − queue_weight·waiting/longest`: hit is the
//! share of the prompt that the router itself sent to that replica before, usage is
//! `vllm:kv_cache_usage_perc` (0..=1), waiting is `vllm:num_requests_waiting` and longest the
//! largest of those among the candidates, the latter three as last scraped. The best score wins, of
//! equals the replica with fewer outstanding requests, then the first. Before the first scrape
//! usage and waiting count as 0, so that the policy falls back on prefix hits and outstanding
//! requests. Leaves out: KV events from engines (the memory of prefixes is the router's own guess
//! and does not see evictions in the engine), and hits of a part of a segment.

use super::RequestHead;
use super::fleet::FleetShape;
use super::outstanding::Outstanding;
use super::prefix_memory::PrefixMemory;
use crate::signals::Signals;

/// Weights of the score.
#[derive(Debug, Clone, Copy)]
pub struct Weights {
    /// Of the expected prefix hit.
    pub prefix: f64,
    /// Of KV-cache usage.
    pub usage: f64,
    /// Of the queue.
    pub queue: f64,
}

/// The policy with its memory.
#[derive(Debug, Clone)]
pub struct KvAware {
    weights: Weights,
    memory: PrefixMemory,
}

impl KvAware {
    /// A policy for the replicas of `fleet` that remembers nothing yet.
    #[must_use]
    pub fn new(fleet: &FleetShape, weights: Weights) -> Self {
        Self { weights, memory: PrefixMemory::new(fleet.replicas()) }
    }

    /// The replica with the best score; remembers what it sends there.
    pub fn route(
        &mut self,
        fleet: &FleetShape,
        load: &Outstanding,
        signals: &Signals,
        head: &RequestHead<'_>,
    ) -> Option<u32> {
        let tokens = head.prompt.len();
        let waiting = |replica| signals.of(replica).map_or(0, |seen| seen.state.waiting);
        let longest = fleet.eligible(tokens).map(waiting).max()?.max(1);
        let hits = self.memory.hits(head.prompt);
        let mut best: Option<(f64, u32, u32)> = None;
        for replica in fleet.eligible(tokens) {
            let hit = f64::from(hits[replica as usize]) / f64::from(tokens.max(1));
            let usage = signals.of(replica).map_or(0.0, |seen| seen.kv_usage());
            let queue = f64::from(waiting(replica)) / f64::from(longest);
            let score =
                self.weights.prefix * hit - self.weights.usage * usage - self.weights.queue * queue;
            let outstanding = load.count(replica);
            let wins = best.is_none_or(|(top, fewest, _)| {
                score > top || (score >= top && outstanding < fewest)
            });
            if wins {
                best = Some((score, outstanding, replica));
            }
        }
        let (_, _, chosen) = best?;
        self.memory.remember(head.prompt, chosen);
        Some(chosen)
    }
}
