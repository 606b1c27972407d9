//! What a reader should know before trusting the figures: a typed list, each with a code for
//! machines, a sentence, and the next step for this user. Names keys of the scenario, never lines,
//! so that a run from the resolved scenario says the same.

use serde::{Deserialize, Serialize};

use crate::report::RunOutcome;
use crate::report::figures::{Figures, Stats};
use crate::report::format::{count, figure};
use crate::report::range::{Departure, departures};
use crate::report::slo::SloVerdict;
use crate::report::trend::Growth;
use crate::scenario::{Advice, Scenario};
use crate::workload::spec::{ArrivalSpec, LengthSpec, TrafficSpec};

/// A percentile p is steady enough from this many samples beyond it on.
const BEYOND_MIN: u64 = 30;
/// Share of requests preempted from which it is worth a word.
const PREEMPTED_SHARE: f64 = 0.01;
/// KV usage from which the pool is called full.
const KV_FULL: f64 = 0.98;
/// A warm-up shorter than this many mean request lengths is called short.
const WARM_UP_REQUESTS: f64 = 3.0;
/// The percentiles of a report, with the samples of which one lies beyond.
const PERCENTILES: [(&str, u64); 3] = [("p90", 10), ("p95", 20), ("p99", 100)];

/// Code of the warning that decides the verdict.
pub const STALLED: &str = "stalled";

/// One thing worth knowing.
#[derive(Debug, Clone, PartialEq)]
pub enum Warning {
    /// Requests wait that can never be served; the run ended because of them.
    Stalled {
        /// How many, over all replications.
        requests: u64,
        /// The first of them.
        first: u64,
    },
    /// Nothing arrived at all.
    NoArrivals,
    /// No completed request counts in the figures.
    NothingMeasured {
        /// End of warm-up in seconds.
        warm_up_s: f64,
    },
    /// A term of the SLO has no figure.
    TermWithoutSample {
        /// `metric.stat`.
        name: String,
    },
    /// The queue was longer at the end than before.
    QueueGrowing(Growth),
    /// Requests were refused because they can never fit.
    Rejected {
        /// How many.
        requests: u64,
        /// Of how many.
        arrived: u64,
    },
    /// Clients hung up.
    TimedOut {
        /// How many.
        requests: u64,
        /// Of how many.
        arrived: u64,
    },
    /// Requests were still inside when the run stopped.
    Unfinished {
        /// How many.
        requests: u64,
        /// Of how many.
        arrived: u64,
    },
    /// The horizon came before the number of requests asked for.
    CutByHorizon {
        /// Requests asked for.
        asked: u64,
        /// Requests that came, mean over replications.
        arrived: u64,
    },
    /// Percentiles that are the largest sample.
    PercentileIsMaximum {
        /// `metric.stat` and its sample size.
        figures: Vec<(String, u64)>,
        /// What makes more samples.
        more: MoreSamples,
    },
    /// Percentiles with few samples beyond them.
    SmallSample {
        /// `metric.stat` and its sample size.
        figures: Vec<(String, u64)>,
        /// What makes more samples.
        more: MoreSamples,
    },
    /// All replications are one and the same run.
    ReplicationsAlike {
        /// How many.
        runs: u64,
    },
    /// The fleet starts empty and the figures hardly wait for it to fill.
    ShortWarmUp {
        /// End of warm-up in seconds.
        warm_up_s: f64,
        /// Mean E2E in seconds.
        e2e_mean_s: f64,
    },
    /// Work was done twice for want of KV blocks.
    Preemptions {
        /// Which pool.
        pool: String,
        /// How often.
        times: u64,
        /// Requests of this pool.
        requests: u64,
    },
    /// The KV cache was full, or nearly.
    KvNearlyFull {
        /// Which pool.
        pool: String,
        /// Most blocks in use over usable blocks.
        usage_max: f64,
    },
    /// A pool that served nothing.
    IdlePool {
        /// Which pool.
        pool: String,
        /// What it cost.
        cost_usd: f64,
    },
    /// Answers of no token count as one.
    ZeroOutputsRaised {
        /// How many.
        requests: u64,
    },
    /// Prompts of no token count as one.
    ZeroPromptsRaised {
        /// How many.
        requests: u64,
    },
    /// The run left the region on which a profile was fitted.
    Extrapolated(Departure),
    /// What was known from the scenario alone.
    Advice(Advice),
}

/// How this user gets more samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoreSamples {
    /// Independent replications, this many in all.
    Replications(u64),
    /// Nothing is drawn: more requests, as another run would be the same.
    MoreRequests,
    /// A replayed trace is the same each time: more of it.
    MoreOfTheTrace,
}

/// A warning as files and programs see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarningText {
    /// Stable name.
    pub code: String,
    /// What is the case.
    pub text: String,
    /// What to do next.
    pub next: String,
}

/// `part` of `whole` in per cent, for sentences.
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0 %".to_owned();
    }
    let share = part as f64 / whole as f64;
    if share < 0.0005 { "under 0.1 %".to_owned() } else { format!("{:.1} %", share * 100.0) }
}

/// Figures with their sample sizes, those of one size together: `ttft.p99, e2e.p99 (n = 812)`.
fn listed(figures: &[(String, u64)]) -> String {
    let mut groups: Vec<(u64, Vec<&str>)> = Vec::new();
    for (name, n) in figures {
        match groups.iter_mut().find(|group| group.0 == *n) {
            Some(group) => group.1.push(name),
            None => groups.push((*n, vec![name])),
        }
    }
    let texts: Vec<String> = groups
        .iter()
        .map(|(n, names)| format!("{} (n = {})", names.join(", "), count(*n)))
        .collect();
    texts.join("; ")
}

impl MoreSamples {
    fn advice(self) -> String {
        match self {
            Self::Replications(count) => format!(
                "lengthen the run (`run.horizon` or the number of requests), or run with \
                 `--replications {count}`"
            ),
            Self::MoreRequests => "raise the number of requests; nothing here is left to chance, \
                                   so replications would repeat this run"
                .to_owned(),
            Self::MoreOfTheTrace => {
                "replay more of the trace, or read these figures as an example".to_owned()
            }
        }
    }
}

impl Warning {
    /// Stable name for machines.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Stalled { .. } => STALLED,
            Self::NoArrivals => "no-arrivals",
            Self::NothingMeasured { .. } => "nothing-measured",
            Self::TermWithoutSample { .. } => "slo-term-without-sample",
            Self::QueueGrowing(_) => "queue-growing",
            Self::Rejected { .. } => "rejected",
            Self::TimedOut { .. } => "timed-out",
            Self::Unfinished { .. } => "unfinished",
            Self::CutByHorizon { .. } => "cut-by-horizon",
            Self::PercentileIsMaximum { .. } => "percentile-is-maximum",
            Self::SmallSample { .. } => "small-sample",
            Self::ReplicationsAlike { .. } => "replications-alike",
            Self::ShortWarmUp { .. } => "short-warm-up",
            Self::Preemptions { .. } => "preemptions",
            Self::KvNearlyFull { .. } => "kv-nearly-full",
            Self::IdlePool { .. } => "idle-pool",
            Self::ZeroOutputsRaised { .. } => "zero-outputs-raised",
            Self::ZeroPromptsRaised { .. } => "zero-prompts-raised",
            Self::Extrapolated(departure) => departure.code,
            Self::Advice(advice) => advice.code,
        }
    }

    /// What is the case, in one sentence.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Stalled { requests, first } => format!(
                "{} waiting requests could never be served (the first is request {first}): the run \
                 ended without them",
                count(*requests)
            ),
            Self::NoArrivals => "no request arrived".to_owned(),
            Self::NothingMeasured { warm_up_s } => format!(
                "no request that arrived after the warm-up of {warm_up_s} s completed: there are \
                 no latencies"
            ),
            Self::TermWithoutSample { name } => {
                format!("`{name}` has no sample, so this term of the SLO counts as missed")
            }
            Self::QueueGrowing(Growth { early_s, late_s }) => format!(
                "the queue grew to the end: requests of the last quarter waited {} s, those of the \
                 second {} s; the fleet does not keep up",
                figure(*late_s),
                figure(*early_s)
            ),
            Self::Rejected { requests, arrived } => format!(
                "{} of {} requests ({}) were rejected: their prompts leave no room \
                 within `max_model_len` or the KV cache",
                count(*requests),
                count(*arrived),
                percent(*requests, *arrived)
            ),
            Self::TimedOut { requests, arrived } => format!(
                "{} of {} clients ({}) hung up before their answer was complete",
                count(*requests),
                count(*arrived),
                percent(*requests, *arrived)
            ),
            Self::Unfinished { requests, arrived } => format!(
                "{} of {} requests ({}) were still inside when the run stopped; \
                 they count in no latency, so the tail looks better than it is",
                count(*requests),
                count(*arrived),
                percent(*requests, *arrived)
            ),
            Self::CutByHorizon { asked, arrived } => format!(
                "the horizon came after {} of the {} requests asked for",
                count(*arrived),
                count(*asked)
            ),
            Self::PercentileIsMaximum { figures, .. } => {
                format!("the largest sample stands for a percentile: {}", listed(figures))
            }
            Self::SmallSample { figures, .. } => format!(
                "fewer than {BEYOND_MIN} samples lie beyond these percentiles: {}",
                listed(figures)
            ),
            Self::ReplicationsAlike { runs } => format!(
                "all {runs} replications gave the same: nothing in this scenario is left to \
                 chance, so sample sizes are {runs} times too large and intervals mean nothing"
            ),
            Self::ShortWarmUp { warm_up_s, e2e_mean_s } => format!(
                "the warm-up of {warm_up_s} s is shorter than three mean requests ({:.1} s): the \
                 figures hold the time in which the empty fleet fills",
                WARM_UP_REQUESTS * e2e_mean_s
            ),
            Self::Preemptions { pool, times, requests } => format!(
                "pool `{pool}` preempted {} times over {} requests: KV blocks ran out and work was \
                 done twice",
                count(*times),
                count(*requests)
            ),
            Self::KvNearlyFull { pool, usage_max } => {
                format!("the KV cache of pool `{pool}` was up to {:.1} % full", usage_max * 100.0)
            }
            Self::IdlePool { pool, cost_usd } => {
                format!("pool `{pool}` served no request and cost {cost_usd:.2} USD")
            }
            Self::ZeroOutputsRaised { requests } => format!(
                "{} requests asked for 0 output tokens and got 1, as the engine makes at least one",
                count(*requests)
            ),
            Self::ZeroPromptsRaised { requests } => {
                format!("{} requests had prompts of 0 tokens, counted as 1", count(*requests))
            }
            Self::Extrapolated(Departure { profile, by, .. }) => format!(
                "the run leaves the region on which profile `{profile}` was fitted ({}): its \
                 step times are extrapolated",
                by.join("; ")
            ),
            Self::Advice(advice) => match advice.key.as_str() {
                "" => advice.text.clone(),
                key => format!("{} (`{key}`)", advice.text),
            },
        }
    }

    /// What to do next.
    #[must_use]
    pub fn next(&self) -> String {
        match self {
            Self::Stalled { .. } => "give the engine more KV blocks, or lower `max_model_len` to \
                                     what they hold; without chunked prefill, let a step take \
                                     the longest prompt"
                .to_owned(),
            Self::NoArrivals => {
                "raise the rate or the horizon, or look at the trace with `fleetcast inspect`"
                    .to_owned()
            }
            Self::NothingMeasured { .. } => {
                "shorten the warm-up or lengthen the horizon".to_owned()
            }
            Self::TermWithoutSample { name } if name.starts_with("tpot") => {
                "ask for answers of two tokens or more, or drop this term".to_owned()
            }
            Self::TermWithoutSample { .. } => {
                "see the other warnings for why no request counts".to_owned()
            }
            Self::QueueGrowing(_) => "add instances, or lower the rate until the waits level \
                                      off; latencies of this run depend on its length"
                .to_owned(),
            Self::Rejected { .. } => {
                "raise `max_model_len`, or cap the prompt lengths of the traffic".to_owned()
            }
            Self::TimedOut { .. } => "add instances, or compare `queue` and `decode` in the \
                                      breakdown with the clients' patience"
                .to_owned(),
            Self::Unfinished { .. } => "raise the drain limit; if the queue grows as well, add \
                                        instances"
                .to_owned(),
            Self::CutByHorizon { .. } => {
                "raise the horizon, or leave it out so that every request comes".to_owned()
            }
            Self::PercentileIsMaximum { more, .. } | Self::SmallSample { more, .. } => {
                more.advice()
            }
            Self::ReplicationsAlike { .. } => {
                "run it once, or draw lengths or arrivals from a distribution".to_owned()
            }
            Self::ShortWarmUp { e2e_mean_s, .. } => format!(
                "set the warm-up to {:.0} s or more",
                (WARM_UP_REQUESTS * e2e_mean_s).ceil().max(1.0)
            ),
            Self::Preemptions { .. } => "lower `max_num_seqs`, raise the KV cache (memory \
                                         utilisation, more GPUs, a smaller KV dtype), or add \
                                         instances"
                .to_owned(),
            Self::KvNearlyFull { .. } => "a little more load will queue for blocks or preempt: \
                                          try a run at a higher rate before relying on this"
                .to_owned(),
            Self::IdlePool { .. } => {
                "drop the pool, or look at the router policy that passes it over".to_owned()
            }
            Self::ZeroOutputsRaised { .. } => "if these were failed requests, leave them out of \
                                               the trace"
                .to_owned(),
            Self::ZeroPromptsRaised { .. } => {
                "look at these rows of the trace with `fleetcast inspect`".to_owned()
            }
            Self::Extrapolated(_) => {
                "fit a profile on a benchmark that covers this, or trust the figures less"
                    .to_owned()
            }
            Self::Advice(advice) => advice.next.clone(),
        }
    }

    /// Code, sentence and next step together.
    #[must_use]
    pub fn texts(&self) -> WarningText {
        WarningText { code: self.code().to_owned(), text: self.text(), next: self.next() }
    }
}

/// Everything worth knowing about `outcomes`, gravest first.
#[must_use]
pub fn warnings(
    scenario: &Scenario,
    outcomes: &[RunOutcome],
    figures: &Figures,
    slo: &[SloVerdict],
) -> Vec<Warning> {
    let mut found = Vec::new();
    of_requests(scenario, outcomes, figures, &mut found);
    for verdict in slo.iter().filter(|v| v.value.is_none()) {
        found.push(Warning::TermWithoutSample { name: verdict.name.clone() });
    }
    let growth = outcomes.iter().filter_map(|o| o.trend.growth());
    // One replication may grow by chance; most of them do not.
    if growth.clone().count() * 2 > outcomes.len() {
        found.extend(growth.take(1).map(Warning::QueueGrowing));
    } else {
        // No warm-up is long enough for a queue that grows.
        of_warm_up(scenario, figures, &mut found);
    }
    of_samples(scenario, outcomes, figures, &mut found);
    of_pools(figures, &mut found);
    of_traffic(outcomes, &mut found);
    found.extend(departures(scenario, figures).into_iter().map(Warning::Extrapolated));
    found.extend(scenario.advice.iter().cloned().map(Warning::Advice));
    found
}

fn of_requests(
    scenario: &Scenario,
    outcomes: &[RunOutcome],
    figures: &Figures,
    found: &mut Vec<Warning>,
) {
    let stalled: u64 = outcomes.iter().map(|o| o.result.stalled.len() as u64).sum();
    if let Some(first) = outcomes.iter().find_map(|o| o.result.stalled.first()) {
        found.push(Warning::Stalled { requests: stalled, first: first.0 });
    }
    let requests = &figures.requests;
    let arrived = requests.arrived;
    if arrived == 0 {
        found.push(Warning::NoArrivals);
    } else if figures.latency_s.e2e.n == 0 {
        let warm_up_s = scenario.config.warm_up.seconds();
        found.push(Warning::NothingMeasured { warm_up_s });
    }
    if requests.rejected > 0 {
        found.push(Warning::Rejected { requests: requests.rejected, arrived });
    }
    if requests.timed_out > 0 {
        found.push(Warning::TimedOut { requests: requests.timed_out, arrived });
    }
    if requests.unfinished > 0 {
        found.push(Warning::Unfinished { requests: requests.unfinished, arrived });
    }
    let each = arrived / (outcomes.len() as u64).max(1);
    if let Some(asked_for) = requests_asked_for(&scenario.traffic)
        && scenario.config.horizon.is_some()
        && each < asked_for
    {
        found.push(Warning::CutByHorizon { asked: asked_for, arrived: each });
    }
}

const fn requests_asked_for(traffic: &TrafficSpec) -> Option<u64> {
    match traffic {
        TrafficSpec::Open { requests, .. } => *requests,
        TrafficSpec::Closed { requests, .. } => Some(*requests),
        // How many rows a trace has is not known before it is read.
        TrafficSpec::Trace(_) => None,
    }
}

fn of_samples(
    scenario: &Scenario,
    outcomes: &[RunOutcome],
    figures: &Figures,
    found: &mut Vec<Warning>,
) {
    let (mut is_maximum, mut small) = (Vec::new(), Vec::new());
    let mut runs_needed = 2;
    let runs = outcomes.len() as u64;
    for (stat, one_beyond) in PERCENTILES {
        for (metric, Stats { n, .. }) in figures.latency_s.named() {
            let needed = BEYOND_MIN * one_beyond;
            if n == 0 || n >= needed {
                continue;
            }
            let list = if n < one_beyond { &mut is_maximum } else { &mut small };
            list.push((format!("{metric}.{stat}"), n));
            runs_needed = runs_needed.max((needed * runs).div_ceil(n));
        }
    }
    let more = match &scenario.traffic {
        TrafficSpec::Trace(_) => MoreSamples::MoreOfTheTrace,
        drawn if is_drawn(drawn) => MoreSamples::Replications(runs_needed),
        TrafficSpec::Open { .. } | TrafficSpec::Closed { .. } => MoreSamples::MoreRequests,
    };
    if outcomes.len() > 1 && outcomes.iter().all(|other| other.result == outcomes[0].result) {
        found.push(Warning::ReplicationsAlike { runs });
    }
    if !is_maximum.is_empty() {
        found.push(Warning::PercentileIsMaximum { figures: is_maximum, more });
    }
    if !small.is_empty() {
        found.push(Warning::SmallSample { figures: small, more });
    }
}

/// Another seed gives other requests, or the same at other times.
fn is_drawn(traffic: &TrafficSpec) -> bool {
    let (timed, bodies) = match traffic {
        TrafficSpec::Open { arrivals, bodies, .. } => {
            (!matches!(arrivals, ArrivalSpec::Constant { .. }), bodies)
        }
        TrafficSpec::Closed { bodies, .. } => (false, bodies),
        TrafficSpec::Trace(_) => return false,
    };
    let fixed = |length: &LengthSpec| matches!(length, LengthSpec::Fixed(_));
    timed
        || !fixed(&bodies.input_tokens)
        || !fixed(&bodies.output_tokens)
        || bodies.shared_prefix.is_some()
}

fn of_warm_up(scenario: &Scenario, figures: &Figures, found: &mut Vec<Warning>) {
    // Closed loops start as benchmark clients do.
    let open = !matches!(scenario.traffic, TrafficSpec::Closed { .. });
    let warm_up_s = scenario.config.warm_up.seconds();
    if let Some(e2e_mean_s) = figures.latency_s.e2e.mean
        && open
        && warm_up_s < WARM_UP_REQUESTS * e2e_mean_s
    {
        found.push(Warning::ShortWarmUp { warm_up_s, e2e_mean_s });
    }
}

fn of_pools(figures: &Figures, found: &mut Vec<Warning>) {
    for pool in &figures.pools {
        let times = pool.kv.preemptions;
        if times as f64 > PREEMPTED_SHARE * pool.requests as f64 {
            let (pool, requests) = (pool.name.clone(), pool.requests);
            found.push(Warning::Preemptions { pool, times, requests });
        } else if let Some(usage_max) = pool.kv.usage_max
            && usage_max >= KV_FULL
        {
            found.push(Warning::KvNearlyFull { pool: pool.name.clone(), usage_max });
        }
        if pool.requests == 0 && figures.requests.arrived > 0 {
            let (pool, cost_usd) = (pool.name.clone(), pool.cost_usd);
            found.push(Warning::IdlePool { pool, cost_usd });
        }
    }
}

fn of_traffic(outcomes: &[RunOutcome], found: &mut Vec<Warning>) {
    let outputs: u64 = outcomes.iter().map(|o| o.result.notes.zero_outputs_raised).sum();
    if outputs > 0 {
        found.push(Warning::ZeroOutputsRaised { requests: outputs });
    }
    let prompts: u64 = outcomes.iter().map(|o| o.result.notes.zero_prompts_raised).sum();
    if prompts > 0 {
        found.push(Warning::ZeroPromptsRaised { requests: prompts });
    }
}
