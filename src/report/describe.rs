//! What was asked, in one line each: fleet, router, traffic, method. Plain sentences for the head
//! of the terminal summary. Knows configurations only.

use crate::report::format::{count, figure, plain, span};
use crate::router::RouterConfig;
use crate::sim::config::{PoolConfig, SimConfig};
use crate::workload::spec::{ArrivalSpec, BodySpec, LengthSpec, TraceFormat, TrafficSpec};

/// The fleet: `2 × ml.p5.48xlarge with 8 replicas each`, pools joined by plus signs; the router.
#[must_use]
pub fn fleet(config: &SimConfig) -> String {
    let pools: Vec<String> = config.pools.iter().map(pool).collect();
    format!("{}; router {}", pools.join(" + "), router(&config.router))
}

fn pool(pool: &PoolConfig) -> String {
    let each = match pool.replicas_per_instance {
        1 => "1 replica".to_owned(),
        n => format!("{n} replicas"),
    };
    let every = if pool.instances == 1 { "" } else { " each" };
    format!("{} × {} with {each}{every}", pool.instances, pool.instance_type)
}

fn router(router: &RouterConfig) -> &'static str {
    match router {
        RouterConfig::Random => "random",
        RouterConfig::RoundRobin => "round-robin",
        RouterConfig::LeastOutstandingRequests => "least-outstanding-requests",
        RouterConfig::PrefixAware { .. } => "prefix-aware",
        RouterConfig::KvAware { .. } => "kv-aware",
    }
}

/// The traffic: how requests come and what they ask for.
#[must_use]
pub fn traffic(traffic: &TrafficSpec) -> String {
    match traffic {
        TrafficSpec::Open { arrivals, requests, bodies } => {
            let limit = requests.map_or(String::new(), |n| format!(", {} requests", count(n)));
            format!("{}{limit}; {}", rate(arrivals), lengths(bodies))
        }
        TrafficSpec::Closed { concurrency, requests, bodies, .. } => format!(
            "closed loop of {}, {} requests; {}",
            count(u64::from(*concurrency)),
            count(*requests),
            lengths(bodies)
        ),
        TrafficSpec::Trace(trace) => {
            let name = trace.path.file_name().unwrap_or(trace.path.as_os_str());
            let format = match trace.format {
                Some(TraceFormat::AzureLlmCsv) => " (Azure CSV)",
                Some(TraceFormat::MooncakeJsonl) => " (Mooncake JSONL)",
                Some(TraceFormat::PlainCsv) => " (CSV)",
                None => "",
            };
            let limit = trace.limit.map_or(String::new(), |n| format!(", first {} rows", count(n)));
            let speed = match trace.speedup {
                1.0 => String::new(),
                speedup => format!(", {} times as fast", plain(speedup)),
            };
            format!("trace {}{format}{speed}{limit}", name.to_string_lossy())
        }
    }
}

fn rate(arrivals: &ArrivalSpec) -> String {
    match arrivals {
        ArrivalSpec::Constant { rate_rps } => format!("constant {} req/s", plain(*rate_rps)),
        ArrivalSpec::Poisson { rate_rps } => format!("poisson {} req/s", plain(*rate_rps)),
        ArrivalSpec::Gamma { rate_rps, cv } => {
            format!("gamma {} req/s, cv {}", plain(*rate_rps), plain(*cv))
        }
        ArrivalSpec::RateCurve { window, rates_rps, scale, .. } => {
            let top = rates_rps.iter().copied().fold(0.0, f64::max) * scale;
            format!(
                "rate curve of {} windows of {}, peak {} req/s",
                rates_rps.len(),
                span(*window),
                figure(top)
            )
        }
    }
}

fn lengths(bodies: &BodySpec) -> String {
    let prefix = bodies.shared_prefix.as_ref().map_or(String::new(), |p| {
        format!(", {} shared prefixes of {} tokens", p.groups, count(u64::from(p.tokens)))
    });
    format!(
        "input {}, output {} tokens{prefix}",
        length(&bodies.input_tokens),
        length(&bodies.output_tokens)
    )
}

fn length(length: &LengthSpec) -> String {
    match length {
        LengthSpec::Fixed(tokens) => count(u64::from(*tokens)),
        LengthSpec::Uniform { min, max } => {
            format!("{} to {}", count(u64::from(*min)), count(u64::from(*max)))
        }
        LengthSpec::Normal { mean, sd, .. } => format!("normal {} ± {}", plain(*mean), plain(*sd)),
        LengthSpec::LogNormal { median, sigma, .. } => {
            format!("log-normal median {}, sigma {}", plain(*median), plain(*sigma))
        }
        LengthSpec::Quantiles { probabilities, tokens } => {
            let middle = probabilities.iter().zip(tokens).find(|(p, _)| **p >= 0.5);
            middle.map_or("by quantiles".to_owned(), |(_, tokens)| {
                format!("by quantiles, median about {}", count(u64::from(*tokens)))
            })
        }
    }
}

/// The method: what counts, for how long, from which seed.
#[must_use]
pub fn method(config: &SimConfig, replications: u32) -> String {
    let horizon = config.horizon.map_or("until the traffic ends".to_owned(), |at| {
        format!("{} of arrivals", span(at.since(crate::units::SimTime::ZERO)))
    });
    let warm_up = config.warm_up.since(crate::units::SimTime::ZERO);
    let warm_up = match warm_up.0 {
        0 => "no warm-up".to_owned(),
        _ => format!("warm-up {}", span(warm_up)),
    };
    let runs = match replications {
        1 => String::new(),
        n => format!(", {n} replications"),
    };
    format!("{horizon}, {warm_up}, seed {}{runs}", config.seed)
}
