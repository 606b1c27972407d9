//! `[run]`, `[slo]` and `[output]`: how long to simulate and how often, what counts as good, and
//! what is written.

use super::duration;
use super::problem::{Place, Problem};
use super::read::{Found, Length, Reader};
use super::tree::Value;
use crate::sim::config::GoodputLimits;
use crate::units::{SimTime, Span};

/// A latency of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LatencyMetric {
    /// Time to first token.
    Ttft,
    /// Time per output token of a request.
    Tpot,
    /// Gap between two tokens.
    Itl,
    /// End to end.
    E2e,
}

/// Latencies by name.
const METRICS: [(&str, LatencyMetric); 4] = [
    ("ttft", LatencyMetric::Ttft),
    ("tpot", LatencyMetric::Tpot),
    ("itl", LatencyMetric::Itl),
    ("e2e", LatencyMetric::E2e),
];

impl LatencyMetric {
    /// Its name in figures.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Tpot => "tpot",
            Self::Itl => "itl",
            Self::E2e => "e2e",
        }
    }
}

/// A statistic over requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LatencyStat {
    /// Arithmetic mean.
    Mean,
    /// Nearest-rank percentile, as a share: 0.95 is p95.
    Percentile(f64),
    /// Largest.
    Max,
}

/// One term of the SLO: a latency statistic and its limit.
#[derive(Debug, Clone, PartialEq)]
pub struct SloTerm {
    /// `metric.stat`, such as `ttft.p95`.
    pub name: String,
    /// Which latency.
    pub metric: LatencyMetric,
    /// Which statistic.
    pub stat: LatencyStat,
    /// Met when the statistic is at or below this.
    pub limit: Span,
}

/// What is written into `requests.csv`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestsFile {
    /// No file.
    None,
    /// Plain CSV.
    Csv,
    /// CSV, compressed with zstd.
    CsvZst,
}

/// Interval of time series unless stated.
const SAMPLE_EVERY: Option<Span> = Some(Span::from_micros(10_000_000));
/// Most replications; each keeps its histograms until all are pooled.
pub const REPLICATIONS_MAX: u32 = 10_000;
/// Shortest interval at which anything is sampled or scraped.
pub(super) const INTERVAL_MIN: Span = Span::from_micros(1_000);
/// Most terms of an SLO.
const TERMS_MAX: usize = 100;
/// The word that turns sampling off.
pub(super) const NEVER: &str = "never";
/// Names of [`RequestsFile`].
const REQUEST_FILES: [(&str, RequestsFile); 3] =
    [("none", RequestsFile::None), ("csv", RequestsFile::Csv), ("csv.zst", RequestsFile::CsvZst)];

impl RequestsFile {
    /// Its name in a scenario.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Csv => "csv",
            Self::CsvZst => "csv.zst",
        }
    }
}

/// What `run --out` writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputOptions {
    /// Interval of `timeseries.csv`; `None` for no time series.
    pub sample_every: Option<Span>,
    /// One row a request.
    pub requests: RequestsFile,
}

/// `[run]`.
#[derive(Debug, Clone)]
pub(super) struct RunSection {
    pub horizon: Option<SimTime>,
    pub horizon_place: Place,
    /// A horizon was written, sound or not.
    pub horizon_stated: bool,
    pub warm_up: SimTime,
    pub drain_limit: Option<Span>,
    pub replications: u32,
}

/// Reads `[run]`; all of it may be left out.
pub(super) fn read_run(root: &mut Reader<'_>) -> RunSection {
    let mut section = RunSection {
        horizon: None,
        horizon_place: root.place(),
        horizon_stated: false,
        warm_up: SimTime::ZERO,
        drain_limit: None,
        replications: 1,
    };
    let Some(mut r) = root.table("run") else { return section };
    section.horizon_place = r.place();
    section.horizon_stated = r.has("horizon") || r.has("horizon_s");
    if let Some(found) = r.duration("horizon", Length::Positive) {
        section.horizon = Some(SimTime(found.value.0));
        section.horizon_place = found.place;
    }
    let warm_up = r.duration("warm_up", Length::MayBeZero);
    if let Some(found) = warm_up {
        section.warm_up = SimTime(found.value.0);
    }
    section.drain_limit = r.duration("drain_limit", Length::MayBeZero).map(|f| f.value);
    section.replications = r.count("replications", 1..=REPLICATIONS_MAX).unwrap_or(1);
    if let (Some(warm_up), Some(horizon)) = (warm_up, section.horizon)
        && warm_up.value.0 >= horizon.0
    {
        let problem = Problem::error("warm-up-too-long", "warm-up leaves nothing to measure")
            .at(warm_up.place, format!("expected less than the horizon, {horizon}"))
            .help("requests count when they arrive between warm_up and horizon");
        r.report("warm_up", problem);
    }
    r.finish();
    section
}

/// Reads `[slo]`: `"ttft.p95" = "1.5s"`, or `ttft.p95 = "1.5s"`.
pub(super) fn read_slo(root: &mut Reader<'_>) -> Vec<(SloTerm, Place)> {
    let Some(mut r) = root.table("slo") else { return Vec::new() };
    let mut terms: Vec<(SloTerm, Place)> = Vec::new();
    let keys: Vec<String> = r.keys().map(str::to_owned).collect();
    if keys.len() > TERMS_MAX {
        let problem = Problem::error("too-many-terms", format!("{} terms", keys.len()))
            .at(r.place(), format!("expected at most {TERMS_MAX}"));
        root.report("slo", problem);
        return terms;
    }
    for key in keys {
        let nested = matches!(r.node(&key).map(|n| &n.value), Some(Value::Table(_)));
        if nested {
            let Some(mut inner) = r.table(&key) else { continue };
            let stats: Vec<String> = inner.keys().map(str::to_owned).collect();
            for stat in stats {
                let name = format!("{key}.{stat}");
                if refuse_unquoted(&mut inner, &stat, &name) {
                    continue;
                }
                let term = read_term(&mut inner, &stat, &name);
                push_term(&inner, &stat, &mut terms, term);
            }
        } else {
            let term = read_term(&mut r, &key, &key);
            push_term(&r, &key, &mut terms, term);
        }
    }
    terms
}

/// TOML reads `ttft.p99.9` as three keys.
fn refuse_unquoted(inner: &mut Reader<'_>, stat: &str, name: &str) -> bool {
    let Some(Value::Table(table)) = inner.node(stat).map(|node| &node.value) else { return false };
    let rest = table.entries.first().map_or("", |entry| &entry.key);
    let problem = Problem::error("unknown-slo", format!("`{name}` is no latency figure by itself"))
        .at(inner.place_of(stat), "a dot inside a percentile needs quotes")
        .help(format!("write \"{name}.{rest}\" = \"1s\""));
    inner.report(stat, problem);
    true
}

fn push_term(
    r: &Reader<'_>,
    key: &str,
    terms: &mut Vec<(SloTerm, Place)>,
    term: Option<(SloTerm, Place)>,
) {
    let Some((term, place)) = term else { return };
    if let Some(known) = terms.iter_mut().find(|(other, _)| other.name == term.name) {
        // An override may spell the key in the other way.
        if place.source > known.1.source {
            *known = (term, place);
            return;
        }
        let problem = Problem::error("contradiction", format!("`{}` has two limits", term.name))
            .at(place, "second limit")
            .help("keep one of them");
        r.report(key, problem);
    }
    terms.push((term, place));
}

fn read_term(r: &mut Reader<'_>, key: &str, name: &str) -> Option<(SloTerm, Place)> {
    // `_s` suffixes would hide inside dotted names, so limits are always texts with a unit.
    let place = r.place_of(key);
    let limit = r.duration(key, Length::Positive);
    let (metric_name, stat_name) = name.split_once('.').unwrap_or((name, ""));
    let metric = METRICS.iter().find(|(known, _)| *known == metric_name).map(|(_, m)| *m);
    let stat = parse_stat(stat_name);
    let (Some(metric), Some(stat)) = (metric, stat) else {
        let known = ["ttft.p95", "ttft.p99", "tpot.p95", "itl.p99", "e2e.p99", "e2e.mean"];
        let problem = Problem::error("unknown-slo", format!("`{name}` is no latency figure"))
            .at(place, "expected metric.stat: ttft, tpot, itl or e2e, then mean, pNN or max")
            .nearest(name, known);
        r.report(key, problem);
        return None;
    };
    Some((SloTerm { name: name.to_owned(), metric, stat, limit: limit?.value }, place))
}

fn parse_stat(name: &str) -> Option<LatencyStat> {
    match name {
        "mean" => Some(LatencyStat::Mean),
        "max" => Some(LatencyStat::Max),
        other => {
            let digits = other.strip_prefix('p')?;
            let sound = digits.chars().all(|c| c.is_ascii_digit() || c == '.');
            let percent: f64 = digits.parse().ok().filter(|_| sound)?;
            (percent > 0.0 && percent < 100.0).then(|| LatencyStat::Percentile(percent / 100.0))
        }
    }
}

/// Limits that each request must meet: of every latency the tightest of its terms, whatever their
/// percentiles.
pub(super) fn goodput_limits(terms: &[SloTerm]) -> GoodputLimits {
    let tightest = |metric: LatencyMetric| {
        terms.iter().filter(|term| term.metric == metric).map(|term| term.limit).min()
    };
    GoodputLimits {
        ttft: tightest(LatencyMetric::Ttft),
        tpot: tightest(LatencyMetric::Tpot),
        e2e: tightest(LatencyMetric::E2e),
    }
}

/// Reads `[output]`; all of it may be left out.
pub(super) fn read_output(root: &mut Reader<'_>) -> OutputOptions {
    let mut output = OutputOptions { sample_every: SAMPLE_EVERY, requests: RequestsFile::Csv };
    let Some(mut r) = root.table("output") else { return output };
    if matches!(r.node("sample_every").map(|n| &n.value), Some(Value::Text(t)) if t == NEVER) {
        output.sample_every = None;
    } else if let Some(found) = r.duration("sample_every", Length::Positive) {
        output.sample_every = Some(found.value);
        refuse_fine_sampling(&r, found);
    }
    if let Some(requests) = r.choice("requests", &REQUEST_FILES) {
        output.requests = requests;
    }
    r.finish();
    output
}

fn refuse_fine_sampling(r: &Reader<'_>, every: Found<Span>) {
    if every.value < INTERVAL_MIN {
        let title = format!("sampling every {} fills the disk", duration::format(every.value));
        let problem = Problem::error("bad-value", title)
            .at(every.place, "expected at least 1ms")
            .help(format!("\"{NEVER}\" turns sampling off"));
        r.report("sample_every", problem);
    }
}
