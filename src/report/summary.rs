//! The answer of a run: `summary.json`, key by key, and the verdict that becomes the exit code.
//! The same answer is printed by `--json`. Writes text, opens nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::report::RunOutcome;
use crate::report::cost::CostFigures;
use crate::report::figures::{
    BreakdownFigures, EngineFigures, Figures, KvFigures, LatencyFigures, PoolFigures,
    RequestFigures, ThroughputFigures,
};
use crate::report::interval::{CONFIDENCE, t_interval};
use crate::report::range::{ProfileFigures, profile_figures};
use crate::report::slo::{SloVerdict, value_of, verdicts};
use crate::report::warning::{STALLED, Warning, WarningText, warnings};
use crate::scenario::Scenario;
use crate::sim::result::RunResult;

/// Version of the layout of `summary.json`.
const SCHEMA: u32 = 1;

/// Everything that a run answers. Field order is key order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The program.
    pub fleetcast: Program,
    /// What was run.
    pub scenario: ScenarioIdentity,
    /// Simulated seconds, every replication counted.
    pub simulated_s: f64,
    /// Always `None`: the time that the simulator took would differ from run to run.
    pub wall_s: Option<f64>,
    /// Work of the simulator.
    pub engine: EngineFigures,
    /// Requests by fate.
    pub requests: RequestFigures,
    /// Rates.
    pub throughput: ThroughputFigures,
    /// Latencies.
    pub latency_s: LatencyFigures,
    /// Where the time goes.
    pub breakdown_s: BreakdownFigures,
    /// KV cache.
    pub kv: KvFigures,
    /// Pools in order of priority.
    pub pools: Vec<PoolFigures>,
    /// Scaling of the fleet.
    pub scaling: ScalingFigures,
    /// The bill.
    pub cost: CostFigures,
    /// The verdict on each term.
    pub slo: Vec<SloVerdict>,
    /// Between-replication intervals; `None` for one replication.
    pub interval: Option<Intervals>,
    /// Profiles that gave step times.
    pub profiles: Vec<ProfileFigures>,
    /// What to know before trusting the figures.
    pub warnings: Vec<WarningText>,
}

/// The program that made the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Its version.
    pub version: String,
    /// Version of this layout.
    pub schema: u32,
}

/// What was run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScenarioIdentity {
    /// Its name.
    pub name: String,
    /// Hash of the resolved scenario without its output options.
    pub sha256: String,
    /// Seed of the first replication.
    pub seed: u64,
    /// How many runs were pooled.
    pub replications: u32,
}

/// Scaling of a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ScalingFigures {
    /// Times instances were added.
    pub scale_outs: u64,
    /// Times instances were taken away.
    pub scale_ins: u64,
    /// Scale-outs soon after a scale-in, and the reverse.
    pub direction_changes: u64,
    /// Time during which more was wanted than was in service; `None` when no policy wants
    /// anything.
    pub time_below_demand_s: Option<f64>,
}

impl ScalingFigures {
    /// A fleet whose size does not change.
    const FIXED_FLEET: Self =
        Self { scale_outs: 0, scale_ins: 0, direction_changes: 0, time_below_demand_s: None };
}

/// Two-sided Student t intervals of the mean over replications.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Intervals {
    /// Confidence of each.
    pub confidence: f64,
    /// By `metric.stat` or `block.key`; `None` where a replication lacks the figure.
    #[serde(flatten)]
    pub figures: BTreeMap<String, Option<[f64; 2]>>,
}

impl Summary {
    /// Makes the answer of one or several replications, in order.
    #[must_use]
    pub fn new(scenario: &Scenario, outcomes: &[RunOutcome]) -> Self {
        let results: Vec<&RunResult> = outcomes.iter().map(|o| &o.result).collect();
        let figures = Figures::of(&scenario.config, &results);
        let slo = verdicts(&scenario.slo, &figures.latency);
        let profiles = profile_figures(scenario, &figures);
        let warnings = warnings(scenario, outcomes, &figures, &slo);
        let interval = (results.len() > 1).then(|| intervals(scenario, &results));
        Self {
            fleetcast: Program { version: env!("CARGO_PKG_VERSION").to_owned(), schema: SCHEMA },
            scenario: ScenarioIdentity {
                name: scenario.name.clone(),
                sha256: scenario.sha256(),
                seed: scenario.config.seed,
                replications: u32::try_from(outcomes.len()).unwrap_or(u32::MAX),
            },
            simulated_s: figures.simulated_s,
            wall_s: None,
            engine: figures.engine,
            requests: figures.requests,
            throughput: figures.throughput,
            latency_s: figures.latency_s,
            breakdown_s: figures.breakdown_s,
            kv: figures.kv,
            pools: figures.pools,
            scaling: ScalingFigures::FIXED_FLEET,
            cost: figures.cost,
            slo,
            interval,
            profiles,
            warnings: warnings.iter().map(Warning::texts).collect(),
        }
    }

    /// True when requests that could never make progress ended the run; also told by a summary
    /// that was read back.
    #[must_use]
    pub fn stalled(&self) -> bool {
        self.warnings.iter().any(|warning| warning.code == STALLED)
    }

    /// True when every term of the SLO is met and no request was stuck for ever.
    #[must_use]
    pub fn targets_met(&self) -> bool {
        !self.stalled() && self.slo.iter().all(|term| term.met)
    }

    /// The text of `summary.json`.
    ///
    /// # Errors
    /// Never for a summary made by [`Summary::new`]; the serialiser's type says otherwise.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }
}

/// Intervals of every latency figure, of the rates and of the cost per token.
fn intervals(scenario: &Scenario, results: &[&RunResult]) -> Intervals {
    let mut samples: BTreeMap<String, Vec<Option<f64>>> = BTreeMap::new();
    for result in results {
        let figures = Figures::of(&scenario.config, &[*result]);
        for (name, value) in interval_figures(scenario, &figures) {
            samples.entry(name).or_default().push(value);
        }
    }
    let interval = |values: Vec<Option<f64>>| {
        values.into_iter().collect::<Option<Vec<f64>>>().and_then(|all| t_interval(&all))
    };
    Intervals {
        confidence: CONFIDENCE,
        figures: samples.into_iter().map(|(name, values)| (name, interval(values))).collect(),
    }
}

/// The figures that get an interval, each name once.
fn interval_figures(scenario: &Scenario, figures: &Figures) -> BTreeMap<String, Option<f64>> {
    let mut named = BTreeMap::new();
    for (metric, stats) in figures.latency_s.named() {
        for (stat, value) in stats.named() {
            named.insert(format!("{metric}.{stat}"), value);
        }
    }
    // Terms may ask for other percentiles, such as p99.9.
    for term in &scenario.slo {
        named.insert(term.name.clone(), value_of(term, &figures.latency));
    }
    let (rates, cost) = (&figures.throughput, &figures.cost);
    for (name, value) in [
        ("throughput.requests_per_s", rates.requests_per_s),
        ("throughput.input_tokens_per_s", rates.input_tokens_per_s),
        ("throughput.output_tokens_per_s", rates.output_tokens_per_s),
        ("throughput.goodput_requests_per_s", rates.goodput_requests_per_s),
        ("cost.per_million_output_tokens_usd", cost.per_million_output_tokens_usd),
        ("cost.idle_share", cost.idle_share),
    ] {
        named.insert(name.to_owned(), value);
    }
    named
}
