//! What one simulation is made of, resolved and checked: plain data.

use crate::engine::config::EngineConfig;
use crate::latency::StepTimeModel;
use crate::router::RouterConfig;
use crate::units::{SimTime, Span};

/// Most replicas of a fleet; far above any real one, far below what their numbers could hold.
pub const REPLICAS_MAX: u32 = 1 << 20;

/// A fleet, its router and the method of the run. Traffic is given apart.
#[derive(Debug, Clone, PartialEq)]
pub struct SimConfig {
    /// Seed of every random stream.
    pub seed: u64,
    /// Arrivals at or after this point are not taken, those that an end releases in a closed loop
    /// included; `None` when the traffic ends by itself.
    pub horizon: Option<SimTime>,
    /// Requests that arrive before this point do not count in latency and throughput.
    pub warm_up: SimTime,
    /// The run stops this long after the traffic is over, even when requests are still inside;
    /// `None` to wait for all. Traffic is over at the horizon, or else at the end of a rate curve;
    /// with its last arrival when a number of requests or the rows of a trace end it.
    pub drain_limit: Option<Span>,
    /// Time series are sampled at this interval, if at all; above zero.
    pub sample_every: Option<Span>,
    /// Signals reach the router with this period (and are up to that old); router policies that
    /// read signals need it above zero. The first scrape comes one period after the start.
    pub scrape_every: Span,
    /// The pools, in order of priority.
    pub pools: Vec<PoolConfig>,
    /// Routing over all replicas of all pools.
    pub router: RouterConfig,
    /// Per-request limits of the SLO; goodput counts requests that meet them all.
    pub goodput: GoodputLimits,
}

/// Per-request latency limits, for goodput. `None` is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GoodputLimits {
    /// Time to first token.
    pub ttft: Option<Span>,
    /// Time per output token; met by requests of one token.
    pub tpot: Option<Span>,
    /// End to end.
    pub e2e: Option<Span>,
}

impl GoodputLimits {
    /// True when there is anything to meet.
    #[must_use]
    pub const fn any(&self) -> bool {
        self.ttft.is_some() || self.tpot.is_some() || self.e2e.is_some()
    }
}

/// A pool of equal instances.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolConfig {
    /// Its name in results.
    pub name: String,
    /// AWS instance type.
    pub instance_type: String,
    /// Instances in service throughout.
    pub instances: u32,
    /// Serving processes on each instance.
    pub replicas_per_instance: u32,
    /// What each process is started with.
    pub engine: EngineConfig,
    /// How long its steps take.
    pub step_time: StepTimeModel,
    /// From arrival at the endpoint to arrival at the instance.
    pub routing_latency: Span,
    /// From arrival at the instance to the engine's queue (HTTP, tokenisation).
    pub frontend_latency: Span,
    /// USD an hour for one instance.
    pub price_usd_per_hour: f64,
}
