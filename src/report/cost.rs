//! The bill of a fixed fleet. Models: on-demand price by the hour, every instance billed whole
//! from 0 to the end of its service. Leaves out: minimum billing periods, discounts, storage,
//! network. `cost = Σ price · instances · hours in service`; idle share is the share of that bill
//! for time without a step running.

use serde::{Deserialize, Serialize};

use crate::report::figures::utilisation;
use crate::sim::config::PoolConfig;
use crate::sim::result::PoolResult;

/// The bill of one pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolCost {
    /// USD.
    pub usd: f64,
    /// Part of it for time without a step running.
    pub idle_usd: f64,
    /// Output tokens made for it, by all requests, warm-up included.
    pub output_tokens: u64,
}

/// The bill of a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CostFigures {
    /// USD for all simulated time, every replication counted.
    pub total_usd: f64,
    /// USD an hour.
    pub per_hour_usd: Option<f64>,
    /// USD for a million output tokens, warm-up and drain included in both.
    pub per_million_output_tokens_usd: Option<f64>,
    /// Share of the bill for in-service time without a step running; `None` for a bill of nothing.
    pub idle_share: Option<f64>,
}

/// The bill of a pool that was in service for `in_service_s`.
#[must_use]
pub fn pool_cost(asked: &PoolConfig, pool: &PoolResult, in_service_s: f64) -> PoolCost {
    let hours = f64::from(asked.instances) * in_service_s / 3600.0;
    let usd = asked.price_usd_per_hour * hours;
    let busy_share = utilisation(asked, pool, in_service_s).unwrap_or(0.0);
    PoolCost {
        usd,
        idle_usd: usd * (1.0 - busy_share).max(0.0),
        output_tokens: pool.engine.output_tokens,
    }
}

impl CostFigures {
    /// The sum over `pools`, for `in_service_s` of simulated time.
    #[must_use]
    pub fn of(pools: &[PoolCost], in_service_s: f64) -> Self {
        let total_usd: f64 = pools.iter().map(|p| p.usd).sum();
        let idle_usd: f64 = pools.iter().map(|p| p.idle_usd).sum();
        let tokens: u64 = pools.iter().map(|p| p.output_tokens).sum();
        Self {
            total_usd,
            per_hour_usd: (in_service_s > 0.0).then(|| total_usd * 3600.0 / in_service_s),
            per_million_output_tokens_usd: (tokens > 0).then(|| total_usd * 1e6 / tokens as f64),
            idle_share: (total_usd > 0.0).then(|| idle_usd / total_usd),
        }
    }
}
