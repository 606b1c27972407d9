//! What no single table can know: whether traffic, pools, targets and profiles go together. Errors
//! where a run would be pointless, advice where its reader should know.

use super::method::{INTERVAL_MIN, LatencyMetric, RunSection, SloTerm};
use super::pool::PoolSection;
use super::problem::{Place, Problem, Problems};
use super::profile::{EXTRAPOLATED_LENGTHS, EXTRAPOLATED_LOAD, Profile};
use super::traffic::{Extent, TrafficSection, extent};
use crate::latency::StepShape;
use crate::router::RouterConfig;
use crate::sim::config::{PoolConfig, REPLICAS_MAX};
use crate::units::{Fix, SimTime, Span};
use crate::workload::spec::{ArrivalSpec, BodySpec, TrafficSpec};

/// The parts of a scenario, each sound by itself.
pub(super) struct Parts<'a> {
    pub run: &'a RunSection,
    pub pools: &'a [PoolSection],
    pub traffic: &'a TrafficSection,
    pub slo: &'a [(SloTerm, Place)],
    pub sample_every: Option<Span>,
}

/// Samples of a time series beyond which somebody made a slip.
const SAMPLES_MANY: u64 = 1_000_000;

impl Parts<'_> {
    /// What generated requests look like; `None` for a trace.
    fn bodies(&self) -> Option<&BodySpec> {
        match &self.traffic.spec {
            TrafficSpec::Open { bodies, .. } | TrafficSpec::Closed { bodies, .. } => Some(bodies),
            TrafficSpec::Trace(_) => None,
        }
    }
}

/// Checks all that concerns more than one table, but for profile regions.
pub(super) fn check(parts: &Parts<'_>, router: &RouterConfig, problems: &Problems) {
    check_end(parts, problems);
    check_size(parts, problems);
    check_goodput(parts, problems);
    if let Some(bodies) = parts.bodies() {
        check_lengths(parts, bodies, problems);
        check_prefix(parts, bodies, problems);
        check_slo(parts, bodies, problems);
    }
    check_router(parts, router, problems);
}

/// Endless traffic needs a horizon.
fn check_end(parts: &Parts<'_>, problems: &Problems) {
    let TrafficSpec::Open { arrivals, requests, .. } = &parts.traffic.spec else { return };
    let ends = match arrivals {
        ArrivalSpec::RateCurve { repeat, .. } => !repeat,
        ArrivalSpec::Constant { .. } | ArrivalSpec::Poisson { .. } | ArrivalSpec::Gamma { .. } => {
            false
        }
    };
    if !ends && requests.is_none() && !parts.run.horizon_stated {
        let problem = Problem::error("no-end", "the traffic never ends")
            .at(parts.traffic.place, "expected a horizon, or `requests` here")
            .key("run.horizon")
            .help("add horizon = \"30m\" under [run], or requests = 10000 here");
        problems.push(problem);
    }
    if let (ArrivalSpec::RateCurve { window, rates_rps, repeat: false, .. }, Some(horizon)) =
        (arrivals, parts.run.horizon)
    {
        let curve = SimTime(window.0.saturating_mul(rates_rps.len() as u64));
        if horizon > curve {
            let title = format!("the rate curve ends at {curve}, before the horizon {horizon}");
            let problem = Problem::advice("curve-short", title)
                .at(parts.run.horizon_place, "no arrivals in the last part")
                .key("run.horizon")
                .help("shorten the horizon, or set repeat = true on the curve");
            problems.push(problem);
        }
    }
}

/// Fleets beyond what can be simulated, and time series beyond what anybody reads.
fn check_size(parts: &Parts<'_>, problems: &Problems) {
    let replicas = replicas_of(parts);
    if let Some(first) = parts.pools.first()
        && replicas > u64::from(REPLICAS_MAX)
    {
        let title = format!("the pools have {replicas} replicas together");
        let problem = Problem::error("too-many-replicas", title)
            .at(first.place, format!("expected at most {REPLICAS_MAX} in all pools"))
            .key(format!("{}.instances", first.path))
            .help("lower `instances`");
        problems.push(problem);
    }
    if let (Some(every), Some(horizon)) = (parts.sample_every, parts.run.horizon)
        && every >= INTERVAL_MIN
        && horizon.0 / every.0 > SAMPLES_MANY
    {
        let title = format!("sampling every {every} gives more than {SAMPLES_MANY} samples");
        let problem = Problem::advice("many-samples", title)
            .at(parts.run.horizon_place, "a horizon this long")
            .key("output.sample_every")
            .help("raise sample_every in [output], or write \"never\"");
        problems.push(problem);
    }
}

fn replicas_of(parts: &Parts<'_>) -> u64 {
    let of_pool =
        |p: &PoolSection| u64::from(p.config.instances) * u64::from(p.config.replicas_per_instance);
    parts.pools.iter().map(of_pool).sum()
}

/// Goodput judges each request, and gaps are not kept by request.
fn check_goodput(parts: &Parts<'_>, problems: &Problems) {
    if let Some((term, place)) = parts.slo.iter().find(|(t, _)| t.metric == LatencyMetric::Itl) {
        let title = format!("goodput does not look at `{}`", term.name);
        let problem = Problem::advice("goodput-without-itl", title)
            .at(*place, "gaps between tokens are pooled, not kept by request")
            .key(format!("slo.{}", term.name))
            .help("add a limit on tpot, which each request has, if goodput is to count it");
        problems.push(problem);
    }
}

/// Prompts must leave room for a token within `max_model_len`.
fn check_lengths(parts: &Parts<'_>, bodies: &BodySpec, problems: &Problems) {
    let prompts = extent(&bodies.input_tokens);
    let answers = extent(&bodies.output_tokens);
    let key = format!("{}.input_tokens", parts.traffic.path);
    let longest_of = |pool: &PoolSection| pool.config.engine.max_model_len;
    let most = parts.pools.iter().map(longest_of).max().unwrap_or(0);
    if prompts.shortest >= most {
        let title = format!(
            "every prompt is too long: the shortest has {} tokens, max_model_len is {most}",
            prompts.shortest
        );
        let problem = Problem::error("prompts-too-long", title)
            .at(parts.traffic.input_place, format!("expected prompts below {most} tokens"))
            .key(&key)
            .help("raise max_model_len in [pool.engine], or shorten the prompts");
        problems.push(problem);
        return;
    }
    for pool in parts.pools {
        let limit = longest_of(pool);
        let title = if prompts.longest >= limit {
            format!(
                "prompts of up to {} tokens reach pool `{}`, which refuses those of {limit} and \
                 more",
                prompts.longest, pool.config.name
            )
        } else if u64::from(prompts.shortest) + u64::from(answers.shortest) > u64::from(limit) {
            format!("pool `{}` cuts every answer short at max_model_len {limit}", pool.config.name)
        } else {
            continue;
        };
        let problem = Problem::advice("max-model-len", title)
            .at(parts.traffic.input_place, "longer than the engine allows")
            .key(&key)
            .help(format!(
                "raise max_model_len of pool `{}`, or cut the lengths",
                pool.config.name
            ));
        problems.push(problem);
    }
}

fn check_prefix(parts: &Parts<'_>, bodies: &BodySpec, problems: &Problems) {
    let Some(prefix) = &bodies.shared_prefix else { return };
    let prompts = extent(&bodies.input_tokens);
    if prefix.tokens >= prompts.longest {
        let title = format!(
            "the shared prefix of {} tokens covers every prompt (at most {} tokens)",
            prefix.tokens, prompts.longest
        );
        let problem = Problem::advice("all-prefix", title)
            .at(parts.traffic.place, "prompts of one group are all alike")
            .key(format!("{}.shared_prefix.tokens", parts.traffic.path))
            .help("input_tokens counts the whole prompt, prefix included: raise it");
        problems.push(problem);
    }
}

fn check_router(parts: &Parts<'_>, router: &RouterConfig, problems: &Problems) {
    let wants_cache = match router {
        RouterConfig::PrefixAware { .. } => true,
        RouterConfig::KvAware { prefix_weight, .. } => *prefix_weight > 0.0,
        RouterConfig::Random
        | RouterConfig::RoundRobin
        | RouterConfig::LeastOutstandingRequests => false,
    };
    let cached = parts.pools.iter().any(|pool| pool.config.engine.enable_prefix_caching);
    if let Some(first) = parts.pools.first()
        && wants_cache
        && !cached
    {
        let title = "the router looks for cached prefixes, and no pool caches any";
        let problem = Problem::advice("no-prefix-cache", title)
            .at(first.place, "enable_prefix_caching is false here")
            .key(format!("{}.engine.enable_prefix_caching", first.path))
            .help("turn enable_prefix_caching on, or use least-outstanding-requests");
        problems.push(problem);
    }
}

/// Latencies of a request that has a replica to itself and finds nothing in its cache.
struct BareService {
    ttft: Span,
    tpot: Span,
    e2e: Span,
}

fn bare_service(pool: &PoolConfig, prompt: u32, answer: u32) -> BareService {
    let budget = pool.engine.token_budget().max(1);
    let mut prefill = Fix::ZERO;
    let mut done = 0u32;
    while done < prompt {
        let chunk = (prompt - done).min(budget);
        let shape = if chunk == 1 {
            decode_shape(done)
        } else {
            StepShape {
                prefill_tokens: chunk,
                prefill_seqs: 1,
                prefill_attention: u64::from(chunk) * (2 * u64::from(done) + u64::from(chunk)),
                ..StepShape::default()
            }
        };
        prefill += pool.step_time.step(&shape);
        done += chunk;
    }
    // The first answer token comes with the last chunk.
    let tpot = pool.step_time.step(&decode_shape(prompt));
    let ttft = pool.routing_latency + pool.frontend_latency + Span(prefill.floor().0);
    let tpot = Span(tpot.floor().0);
    let decode = Span(tpot.0.saturating_mul(u64::from(answer.saturating_sub(1))));
    BareService { ttft, tpot, e2e: ttft + decode }
}

fn decode_shape(context: u32) -> StepShape {
    StepShape { decode_seqs: 1, decode_context: u64::from(context) + 1, ..StepShape::default() }
}

/// A limit below what a lone request takes can never be met, whatever the fleet.
fn check_slo(parts: &Parts<'_>, bodies: &BodySpec, problems: &Problems) {
    let whole = |x: f64| (x.round() as u32).max(1);
    let (prompt, answer) =
        (whole(extent(&bodies.input_tokens).median), whole(extent(&bodies.output_tokens).median));
    for (term, place) in parts.slo {
        let of = |pool: &PoolSection| {
            let bare = bare_service(&pool.config, prompt, answer);
            match term.metric {
                LatencyMetric::Ttft => bare.ttft,
                LatencyMetric::Tpot | LatencyMetric::Itl => bare.tpot,
                LatencyMetric::E2e => bare.e2e,
            }
        };
        let fastest = parts.pools.iter().map(|pool| (of(pool), &pool.config.name)).min();
        let Some((least, name)) = fastest else { continue };
        if least > term.limit {
            let title = format!(
                "`{}` of {:.3} s is below the bare service time: a lone request of {prompt} \
                 tokens in and {answer} out takes {:.3} s on pool `{name}`",
                term.name,
                term.limit.seconds(),
                least.seconds()
            );
            let problem = Problem::advice("slo-below-service-time", title)
                .at(*place, "more instances do not help")
                .key(format!("slo.{}", term.name))
                .help("raise the limit, shorten the requests, or take a faster GPU");
            problems.push(problem);
        }
    }
}

/// True when the traffic lies inside the region that the profile covers; advice when not.
pub(super) fn check_region(
    parts: &Parts<'_>,
    pool: &PoolSection,
    profile: &Profile,
    problems: &Problems,
) -> bool {
    let mut lengths: Vec<String> = Vec::new();
    let mut compare = |what: &str, seen: Extent, region: Option<[f64; 2]>| {
        let Some([low, high]) = region else { return };
        if seen.p05 < low || seen.p95 > high {
            lengths.push(format!(
                "{what} {:.0} to {:.0} (5 to 95 %) against {low} to {high}",
                seen.p05, seen.p95
            ));
        }
    };
    if let Some(bodies) = parts.bodies() {
        compare("input_tokens", extent(&bodies.input_tokens), profile.region.input_tokens);
        compare("output_tokens", extent(&bodies.output_tokens), profile.region.output_tokens);
    }
    let mut load: Vec<String> = Vec::new();
    if let (TrafficSpec::Closed { concurrency, .. }, Some([low, high])) =
        (&parts.traffic.spec, profile.region.concurrency)
    {
        let replicas = replicas_of(parts);
        let each = f64::from(*concurrency) / replicas.max(1) as f64;
        if each < low || each > high {
            load.push(format!("concurrency {each:.0} a replica against {low} to {high}"));
        }
    }
    for (code, what, outside) in
        [(EXTRAPOLATED_LENGTHS, "lengths", &lengths), (EXTRAPOLATED_LOAD, "a load", &load)]
    {
        if outside.is_empty() {
            continue;
        }
        let title = format!(
            "the traffic lies outside what profile `{}` was measured on: {}",
            profile.name,
            outside.join(", ")
        );
        let problem = Problem::advice(code, title)
            .at(pool.profile_place, "results are extrapolated")
            .key(format!("{}.profile", pool.path))
            .help(format!("calibrate on benchmarks with such {what}, or trust the figures less"));
        problems.push(problem);
    }
    lengths.is_empty() && load.is_empty()
}
