//! From the exact integers of one or several runs to the figures that people read: statistics of
//! latencies, where the time goes, rates, KV cache, pools. Several runs are pooled as if laid end
//! to end: counts, times and money add up, histograms merge. A figure that does not exist is
//! `None`. Knows results and configurations, no files.

use serde::{Deserialize, Serialize};

use crate::engine::record::EngineTotals;
use crate::metrics::{LatencyHistogram, LengthHistogram};
use crate::report::cost::{CostFigures, pool_cost};
use crate::sim::config::{PoolConfig, SimConfig};
use crate::sim::result::{
    BreakdownSet, LatencySet, PoolResult, RequestCounts, RunResult, add_totals,
};
use crate::units::{Fix, PS_PER_S};

/// Statistics of a sample of times, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Sample size.
    pub n: u64,
    /// Exact mean.
    pub mean: Option<f64>,
    /// Nearest-rank percentiles of the histogram.
    pub p50: Option<f64>,
    /// See `p50`.
    pub p90: Option<f64>,
    /// See `p50`.
    pub p95: Option<f64>,
    /// See `p50`.
    pub p99: Option<f64>,
    /// Exact maximum.
    pub max: Option<f64>,
}

impl Stats {
    /// Statistics of what `histogram` holds.
    #[must_use]
    pub fn of(histogram: &LatencyHistogram) -> Self {
        Self {
            n: histogram.n(),
            mean: histogram.mean_s(),
            p50: histogram.percentile_s(0.50),
            p90: histogram.percentile_s(0.90),
            p95: histogram.percentile_s(0.95),
            p99: histogram.percentile_s(0.99),
            max: histogram.max_s(),
        }
    }

    /// The figures with the names they bear behind the dot of `metric.stat`.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, Option<f64>); 6] {
        [
            ("mean", self.mean),
            ("p50", self.p50),
            ("p90", self.p90),
            ("p95", self.p95),
            ("p99", self.p99),
            ("max", self.max),
        ]
    }
}

/// The four latencies, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LatencyFigures {
    /// Time to first token.
    pub ttft: Stats,
    /// Time per output token of a request.
    pub tpot: Stats,
    /// Gaps between successive tokens.
    pub itl: Stats,
    /// End to end.
    pub e2e: Stats,
}

impl LatencyFigures {
    fn of(set: &LatencySet) -> Self {
        let LatencySet { ttft, tpot, itl, e2e } = set;
        Self {
            ttft: Stats::of(ttft),
            tpot: Stats::of(tpot),
            itl: Stats::of(itl),
            e2e: Stats::of(e2e),
        }
    }

    /// The metrics with their names.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, Stats); 4] {
        [("ttft", self.ttft), ("tpot", self.tpot), ("itl", self.itl), ("e2e", self.e2e)]
    }
}

/// The seven parts of a request's time, in seconds; their means add up to the mean of E2E.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BreakdownFigures {
    /// Endpoint to instance.
    pub routing: Stats,
    /// HTTP and tokenisation.
    pub frontend: Stats,
    /// Waiting for a seat or for token budget.
    pub queue: Stats,
    /// Waiting for KV blocks.
    pub kv_wait: Stats,
    /// First admission to first token.
    pub prefill: Stats,
    /// First token to last.
    pub decode: Stats,
    /// Lost to preemption.
    pub preempted: Stats,
}

impl BreakdownFigures {
    fn of(set: &BreakdownSet) -> Self {
        let BreakdownSet { routing, frontend, queue, kv_wait, prefill, decode, preempted } = set;
        Self {
            routing: Stats::of(routing),
            frontend: Stats::of(frontend),
            queue: Stats::of(queue),
            kv_wait: Stats::of(kv_wait),
            prefill: Stats::of(prefill),
            decode: Stats::of(decode),
            preempted: Stats::of(preempted),
        }
    }

    /// The parts with their names, in the order in which a request passes them.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, Stats); 7] {
        [
            ("routing", self.routing),
            ("frontend", self.frontend),
            ("queue", self.queue),
            ("kv_wait", self.kv_wait),
            ("prefill", self.prefill),
            ("decode", self.decode),
            ("preempted", self.preempted),
        ]
    }
}

/// Requests by what became of them; the whole run, warm-up included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestFigures {
    /// Reached the endpoint.
    pub arrived: u64,
    /// All tokens delivered.
    pub completed: u64,
    /// Can never be served by this engine.
    pub rejected: u64,
    /// The client hung up.
    pub timed_out: u64,
    /// Lost to a failure.
    pub failed: u64,
    /// Still inside at the end.
    pub unfinished: u64,
}

/// Rates over the measured window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ThroughputFigures {
    /// Completed requests that arrived in the window, per second of the window.
    pub requests_per_s: Option<f64>,
    /// Their prompt tokens.
    pub input_tokens_per_s: Option<f64>,
    /// Their output tokens.
    pub output_tokens_per_s: Option<f64>,
    /// Those that met every per-request limit of the SLO; `None` without one.
    pub goodput_requests_per_s: Option<f64>,
}

/// The KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KvFigures {
    /// Share of usable blocks in use right after a schedule call, mean over steps.
    pub usage_mean: Option<f64>,
    /// The most of it in any replica.
    pub usage_max: Option<f64>,
    /// Times a request was preempted.
    pub preemptions: u64,
    /// Prompt tokens hit over prompt tokens looked up, first admissions only; `None` when nothing
    /// was looked up.
    pub prefix_hit_rate: Option<f64>,
}

/// One pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolFigures {
    /// Its name.
    pub name: String,
    /// AWS instance type.
    pub instance_type: String,
    /// 1 is tried first.
    pub priority: u32,
    /// Instances in service, time-weighted.
    pub instances_mean: f64,
    /// Most instances in service.
    pub instances_max: u32,
    /// Billed hours, every replication counted.
    pub instance_hours: f64,
    /// Serving processes in one run.
    pub replicas: u32,
    /// Requests routed here.
    pub requests: u64,
    /// Time with a step running over time in service.
    pub utilisation_mean: Option<f64>,
    /// Scheduler steps of its replicas.
    pub steps: u64,
    /// Sequences in a step, mean over steps.
    pub batch_mean: Option<f64>,
    /// Most requests running at once in one replica.
    pub running_max: u32,
    /// Requests for an instance that were refused.
    pub insufficient_capacity: u32,
    /// The bill.
    pub cost_usd: f64,
    /// Prompt tokens of the measured requests that it completed: 5th and 95th percentile.
    pub input_tokens: Option<[u64; 2]>,
    /// Their output tokens, likewise.
    pub output_tokens: Option<[u64; 2]>,
    /// The KV cache of its replicas.
    pub kv: KvFigures,
    /// Latencies of the measured requests that it completed.
    pub latency_s: LatencyFigures,
}

/// Work of the simulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineFigures {
    /// Scheduler steps of all replicas.
    pub steps: u64,
    /// Events handled; fewer than steps where stretches of decode were merged.
    pub events: u64,
}

/// All figures of one run, or of several pooled.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// Simulated seconds: the time the fleet was in service.
    pub simulated_s: f64,
    /// Work of the simulator.
    pub engine: EngineFigures,
    /// Requests by fate.
    pub requests: RequestFigures,
    /// Rates.
    pub throughput: ThroughputFigures,
    /// Latencies over all pools, as recorded.
    pub latency: LatencySet,
    /// Their statistics.
    pub latency_s: LatencyFigures,
    /// Where the time goes, over all pools.
    pub breakdown_s: BreakdownFigures,
    /// KV cache over all pools.
    pub kv: KvFigures,
    /// Each pool.
    pub pools: Vec<PoolFigures>,
    /// The bill.
    pub cost: CostFigures,
}

/// Runs laid end to end.
struct Pooled {
    pools: Vec<PoolResult>,
    counts: RequestCounts,
    events: u64,
    /// Sum of the times that the fleet was in service.
    in_service_ps: u128,
    /// Sum of the measured windows.
    window_ps: u128,
}

impl Figures {
    /// Figures of `runs` of the same scenario, pooled.
    #[must_use]
    pub fn of(config: &SimConfig, runs: &[&RunResult]) -> Self {
        let pooled = Pooled::new(config.pools.len(), runs);
        let mut latency = LatencySet::default();
        let mut breakdown = BreakdownSet::default();
        for pool in &pooled.pools {
            merge_latency(&mut latency, &pool.latency);
            merge_breakdown(&mut breakdown, &pool.breakdown);
        }
        let simulated_s = seconds(pooled.in_service_ps);
        let costs: Vec<_> = (config.pools.iter().zip(&pooled.pools))
            .map(|(asked, pool)| pool_cost(asked, pool, simulated_s))
            .collect();
        let pools = (config.pools.iter().zip(&pooled.pools).zip(&costs).zip(1..))
            .map(|(((asked, pool), cost), priority)| {
                pool_figures(asked, pool, priority, simulated_s, cost.usd)
            })
            .collect();
        Self {
            simulated_s,
            engine: EngineFigures {
                steps: pooled.pools.iter().map(|p| p.engine.steps).sum(),
                events: pooled.events,
            },
            requests: request_figures(&pooled.counts),
            throughput: pooled.throughput(config.goodput.any()),
            latency_s: LatencyFigures::of(&latency),
            latency,
            breakdown_s: BreakdownFigures::of(&breakdown),
            kv: kv_figures(&pooled.pools),
            pools,
            cost: CostFigures::of(&costs, simulated_s),
        }
    }
}

impl Pooled {
    fn new(pools: usize, runs: &[&RunResult]) -> Self {
        let mut pooled = Self {
            pools: vec![PoolResult::default(); pools],
            counts: RequestCounts::default(),
            events: 0,
            in_service_ps: 0,
            window_ps: 0,
        };
        for run in runs {
            pooled.events += run.events;
            pooled.in_service_ps += u128::from(run.in_service_until().0);
            pooled.window_ps += u128::from(run.measured_to.since(run.measured_from).0);
            merge_counts(&mut pooled.counts, &run.counts);
            for (all, pool) in pooled.pools.iter_mut().zip(&run.pools) {
                merge_pool(all, pool);
            }
        }
        pooled
    }

    fn throughput(&self, has_limits: bool) -> ThroughputFigures {
        let window_s = seconds(self.window_ps);
        let rate = |of: fn(&PoolResult) -> u64| {
            let total: u64 = self.pools.iter().map(of).sum();
            (window_s > 0.0).then(|| total as f64 / window_s)
        };
        ThroughputFigures {
            requests_per_s: rate(|p| p.measured_completed),
            input_tokens_per_s: rate(|p| p.measured_input_tokens),
            output_tokens_per_s: rate(|p| p.measured_output_tokens),
            goodput_requests_per_s: rate(|p| p.good).filter(|_| has_limits),
        }
    }
}

/// Seconds in a sum of picoseconds.
fn seconds(ps: u128) -> f64 {
    ps as f64 / PS_PER_S as f64
}

/// Seconds in a sum of fixed-point times.
pub(crate) fn fix_seconds(time: Fix) -> f64 {
    let units_per_s = PS_PER_S as f64 * f64::from(1u32 << crate::units::FIX_BITS);
    time.0 as f64 / units_per_s
}

fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

const fn request_figures(counts: &RequestCounts) -> RequestFigures {
    let &RequestCounts { arrived, completed, rejected, timed_out, failed, unfinished } = counts;
    RequestFigures { arrived, completed, rejected, timed_out, failed, unfinished }
}

fn pool_figures(
    asked: &PoolConfig,
    pool: &PoolResult,
    priority: u32,
    simulated_s: f64,
    cost_usd: f64,
) -> PoolFigures {
    PoolFigures {
        name: asked.name.clone(),
        instance_type: asked.instance_type.clone(),
        priority,
        instances_mean: f64::from(asked.instances),
        instances_max: asked.instances,
        instance_hours: f64::from(asked.instances) * simulated_s / 3600.0,
        replicas: asked.instances * asked.replicas_per_instance,
        requests: pool.counts.arrived,
        utilisation_mean: utilisation(asked, pool, simulated_s),
        steps: pool.engine.steps,
        batch_mean: share(pool.engine.batch_sum as f64, pool.engine.steps as f64),
        running_max: pool.engine.running_max,
        // A fixed fleet is there from the start and asks for nothing.
        insufficient_capacity: 0,
        cost_usd,
        input_tokens: middle(&pool.input_lengths),
        output_tokens: middle(&pool.output_lengths),
        kv: kv_figures(std::slice::from_ref(pool)),
        latency_s: LatencyFigures::of(&pool.latency),
    }
}

/// Where the middle nine tenths of lengths begin and end.
fn middle(lengths: &LengthHistogram) -> Option<[u64; 2]> {
    Some([lengths.percentile(0.05)?, lengths.percentile(0.95)?])
}

/// Time with a step running over time in service, over all replicas of a pool; the cap is for
/// rounding alone.
pub(crate) fn utilisation(asked: &PoolConfig, pool: &PoolResult, in_service_s: f64) -> Option<f64> {
    let replicas = f64::from(asked.instances) * f64::from(asked.replicas_per_instance);
    share(fix_seconds(pool.busy), replicas * in_service_s).map(|busy| busy.min(1.0))
}

fn kv_figures(pools: &[PoolResult]) -> KvFigures {
    let used: f64 = pools.iter().map(|p| p.engine.used_blocks_sum as f64).sum();
    let usable = |p: &PoolResult| p.engine.steps as f64 * f64::from(p.usable_blocks);
    let usage_max = pools
        .iter()
        .filter(|p| p.engine.steps > 0 && p.usable_blocks > 0)
        .map(|p| f64::from(p.engine.used_blocks_max) / f64::from(p.usable_blocks))
        .reduce(f64::max);
    let sum = |of: fn(&EngineTotals) -> u64| pools.iter().map(|p| of(&p.engine)).sum::<u64>();
    KvFigures {
        usage_mean: share(used, pools.iter().map(usable).sum()),
        usage_max,
        preemptions: sum(|e| e.preemptions),
        prefix_hit_rate: share(sum(|e| e.prefix_hits) as f64, sum(|e| e.prefix_queries) as f64),
    }
}

fn merge_latency(all: &mut LatencySet, one: &LatencySet) {
    let LatencySet { ttft, tpot, itl, e2e } = one;
    all.ttft.merge(ttft);
    all.tpot.merge(tpot);
    all.itl.merge(itl);
    all.e2e.merge(e2e);
}

fn merge_breakdown(all: &mut BreakdownSet, one: &BreakdownSet) {
    let BreakdownSet { routing, frontend, queue, kv_wait, prefill, decode, preempted } = one;
    all.routing.merge(routing);
    all.frontend.merge(frontend);
    all.queue.merge(queue);
    all.kv_wait.merge(kv_wait);
    all.prefill.merge(prefill);
    all.decode.merge(decode);
    all.preempted.merge(preempted);
}

const fn merge_counts(all: &mut RequestCounts, one: &RequestCounts) {
    let &RequestCounts { arrived, completed, rejected, timed_out, failed, unfinished } = one;
    all.arrived += arrived;
    all.completed += completed;
    all.rejected += rejected;
    all.timed_out += timed_out;
    all.failed += failed;
    all.unfinished += unfinished;
}

fn merge_pool(all: &mut PoolResult, one: &PoolResult) {
    merge_latency(&mut all.latency, &one.latency);
    merge_breakdown(&mut all.breakdown, &one.breakdown);
    merge_counts(&mut all.counts, &one.counts);
    all.measured_completed += one.measured_completed;
    all.measured_input_tokens += one.measured_input_tokens;
    all.measured_output_tokens += one.measured_output_tokens;
    all.input_lengths.merge(&one.input_lengths);
    all.output_lengths.merge(&one.output_lengths);
    all.good += one.good;
    add_totals(&mut all.engine, &one.engine);
    // The same fleet in every run.
    all.replicas = one.replicas;
    all.usable_blocks = one.usable_blocks;
    all.busy += one.busy;
}
