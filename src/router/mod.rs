//! Where a request goes: one policy a file. Sees request heads (never the true output length),
//! its own in-flight counts, and signals with their age. Knows nothing of engines or of the loop.

mod fleet;
mod hash;
mod kv_aware;
mod least_outstanding;
mod outstanding;
mod prefix_aware;
mod prefix_memory;
mod random;
mod round_robin;
#[cfg(test)]
mod tests;

use crate::engine::request::{Prompt, RequestId};
use crate::signals::Signals;
use kv_aware::{KvAware, Weights};
use outstanding::Outstanding;
use prefix_aware::PrefixAware;
use random::Random;
use round_robin::RoundRobin;

pub use fleet::{FleetShape, PoolShape};

/// Routing policy and its parameters.
#[derive(Debug, Clone, PartialEq)]
pub enum RouterConfig {
    /// A replica at random, all alike.
    Random,
    /// Each replica in turn.
    RoundRobin,
    /// The replica with the fewest requests that the router sent and that have not ended.
    LeastOutstandingRequests,
    /// The replica that the first `prefix_tokens` of the prompt hash to, unless it has
    /// `spill_over` or more requests in flight; then the least loaded one.
    PrefixAware {
        /// Prompt tokens that decide.
        prefix_tokens: u32,
        /// In-flight requests at which a replica is passed over.
        spill_over: u32,
    },
    /// The replica with the best score of KV-cache usage, queue length and expected prefix hit, as
    /// last scraped.
    KvAware {
        /// Weight of the expected prefix hit (share of the prompt, from the router's own memory
        /// of what it sent where).
        prefix_weight: f64,
        /// Weight of `vllm:kv_cache_usage_perc`.
        usage_weight: f64,
        /// Weight of the queue: waiting requests over the longest queue seen in the scrape.
        queue_weight: f64,
    },
}

impl RouterConfig {
    /// True when the policy reads scraped metrics.
    #[must_use]
    pub const fn reads_signals(&self) -> bool {
        match self {
            Self::KvAware { .. } => true,
            Self::Random
            | Self::RoundRobin
            | Self::LeastOutstandingRequests
            | Self::PrefixAware { .. } => false,
        }
    }
}

/// What a router sees of a request: all that is known before it is served. The length of the
/// answer is not in it.
#[derive(Debug, Clone, Copy)]
pub struct RequestHead<'a> {
    /// Its number.
    pub id: RequestId,
    /// The prompt.
    pub prompt: &'a Prompt,
    /// Its priority, smaller first.
    pub priority: i32,
}

/// A policy with its state.
#[derive(Debug, Clone)]
enum Policy {
    Random(Box<Random>),
    RoundRobin(RoundRobin),
    LeastOutstandingRequests(Outstanding),
    PrefixAware(PrefixAware, Outstanding),
    KvAware(Box<KvAware>, Outstanding),
}

/// Chooses a replica for each request.
#[derive(Debug, Clone)]
pub struct Router {
    fleet: FleetShape,
    policy: Policy,
}

impl Router {
    /// A router over the replicas of `fleet`; `seed` feeds its own random stream.
    #[must_use]
    pub fn new(config: &RouterConfig, fleet: FleetShape, seed: u64) -> Self {
        let policy = match *config {
            RouterConfig::Random => Policy::Random(Box::new(Random::new(seed))),
            RouterConfig::RoundRobin => Policy::RoundRobin(RoundRobin::default()),
            RouterConfig::LeastOutstandingRequests => {
                Policy::LeastOutstandingRequests(Outstanding::new(&fleet))
            }
            RouterConfig::PrefixAware { prefix_tokens, spill_over } => Policy::PrefixAware(
                PrefixAware::new(&fleet, prefix_tokens, spill_over),
                Outstanding::new(&fleet),
            ),
            RouterConfig::KvAware { prefix_weight, usage_weight, queue_weight } => {
                let weights =
                    Weights { prefix: prefix_weight, usage: usage_weight, queue: queue_weight };
                let policy = Box::new(KvAware::new(&fleet, weights));
                Policy::KvAware(policy, Outstanding::new(&fleet))
            }
        };
        Self { fleet, policy }
    }

    /// The fleet it routes over.
    #[must_use]
    pub const fn fleet(&self) -> &FleetShape {
        &self.fleet
    }

    /// Sends a request to a replica. `None` when no pool takes a prompt of that length.
    #[inline]
    pub fn route(&mut self, head: &RequestHead<'_>, signals: &Signals) -> Option<u32> {
        let fleet = &self.fleet;
        let (chosen, load) = match &mut self.policy {
            Policy::Random(random) => return random.route(fleet, head),
            Policy::RoundRobin(turn) => return turn.route(fleet, head),
            Policy::LeastOutstandingRequests(load) => {
                (least_outstanding::route(fleet, load, head), load)
            }
            Policy::PrefixAware(policy, load) => (policy.route(fleet, load, head), load),
            Policy::KvAware(policy, load) => (policy.route(fleet, load, signals, head), load),
        };
        if let Some(replica) = chosen {
            load.sent(fleet, replica);
        }
        chosen
    }

    /// A request that went to `replica` ended.
    #[inline]
    pub fn ended(&mut self, replica: u32) {
        match &mut self.policy {
            Policy::Random(_) | Policy::RoundRobin(_) => {}
            Policy::LeastOutstandingRequests(load)
            | Policy::PrefixAware(_, load)
            | Policy::KvAware(_, load) => load.ended(&self.fleet, replica),
        }
    }
}
