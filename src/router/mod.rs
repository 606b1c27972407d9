//! Where a request goes: one policy a file. Sees request heads (never the true output length),
//! its own in-flight counts, and signals with their age. Knows nothing of engines or of the loop.

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
