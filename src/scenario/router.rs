//! `[router.POLICY]`: which policy routes requests, and its parameters.

use super::duration;
use super::method::INTERVAL_MIN;
use super::problem::Problem;
use super::read::{Bounds, Found, Length, Reader};
use crate::catalog::Listing;
use crate::router::RouterConfig;
use crate::units::Span;

/// Period of CloudWatch's high-resolution metrics, and of the signals unless stated.
const SCRAPE_EVERY: Span = Span(10_000_000_000_000);

/// Policies by name, with what they do.
pub(super) const POLICIES: [(&str, &str, &str); 5] = [
    ("random", "", "a replica at random"),
    ("round-robin", "", "each replica in turn"),
    (
        "least-outstanding-requests",
        "",
        "the replica with the fewest requests sent and not ended (SageMaker's \
         LEAST_OUTSTANDING_REQUESTS)",
    ),
    (
        "prefix-aware",
        "prefix_tokens, spill_over",
        "the replica that the start of the prompt hashes to, unless it is busy",
    ),
    (
        "kv-aware",
        "prefix_weight, usage_weight, queue_weight, scrape_every",
        "the best score of expected prefix hit, KV usage and queue length",
    ),
];

/// The router, and how often its signals are read.
#[derive(Debug, Clone)]
pub(super) struct RouterSection {
    pub router: RouterConfig,
    pub scrape_every: Span,
}

/// Reads `[router]`; without it requests go to the replica with the fewest outstanding ones.
pub(super) fn read(root: &mut Reader<'_>) -> Option<RouterSection> {
    let default = RouterSection {
        router: RouterConfig::LeastOutstandingRequests,
        scrape_every: SCRAPE_EVERY,
    };
    if !root.has("router") {
        root.know("router");
        return Some(default);
    }
    let mut table = root.table("router")?;
    let names = POLICIES.map(|(name, _, _)| name);
    let chosen = table.variant(&names);
    table.finish();
    let (name, mut r) = chosen?;
    let mut scrape_every = SCRAPE_EVERY;
    let router = match name {
        "random" => RouterConfig::Random,
        "round-robin" => RouterConfig::RoundRobin,
        "prefix-aware" => RouterConfig::PrefixAware {
            prefix_tokens: r.count("prefix_tokens", 1..=1_048_576).unwrap_or(256),
            spill_over: r.count("spill_over", 1..=1_000_000).unwrap_or(128),
        },
        "kv-aware" => {
            if let Some(found) = r.duration("scrape_every", Length::Positive) {
                scrape_every = found.value;
                refuse_fine_scrapes(&r, found);
            }
            let mut weight = |key: &str, default: f64| {
                r.number(key, Bounds::NotNegative(1e6)).map_or(default, |w| w.value)
            };
            RouterConfig::KvAware {
                prefix_weight: weight("prefix_weight", 2.0),
                usage_weight: weight("usage_weight", 1.0),
                queue_weight: weight("queue_weight", 1.0),
            }
        }
        _ => RouterConfig::LeastOutstandingRequests,
    };
    r.finish();
    Some(RouterSection { router, scrape_every })
}

fn refuse_fine_scrapes(r: &Reader<'_>, every: Found<Span>) {
    if every.value < INTERVAL_MIN {
        let title = format!("scraping every {} keeps the run busy", duration::format(every.value));
        let problem = Problem::error("bad-value", title)
            .at(every.place, "expected at least 1ms")
            .help("CloudWatch's high-resolution metrics have a period of 10s");
        r.report("scrape_every", problem);
    }
}

/// All routing policies.
pub(super) fn list() -> Listing {
    Listing {
        headers: vec!["router", "sends a request to", "parameters"],
        rows: POLICIES
            .iter()
            .map(|(name, parameters, what)| {
                vec![(*name).to_owned(), (*what).to_owned(), (*parameters).to_owned()]
            })
            .collect(),
    }
}
