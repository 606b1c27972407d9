//! `[traffic.KIND]`: what arrives, from a generator or a trace file, and how long prompts and
//! answers are.

use super::problem::{Place, Problem};
use super::read::{Bounds, Found, Length, Reader, integer_in, number_of};
use super::tree::{Node, Value};
use crate::engine::request::RequestId;
use crate::units::Span;
use crate::workload::spec::{
    ArrivalSpec, BodySpec, LengthSpec, SharedPrefixSpec, TraceFormat, TraceSpec, TrafficSpec,
};
use crate::workload::{GROUPS_MAX, Load, WorkloadError, open_load};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Kinds of traffic.
const KINDS: [&str; 6] = ["constant", "poisson", "gamma", "rate-curve", "closed-loop", "trace"];
/// Longest prompt or answer that a scenario may ask for, in tokens.
const TOKENS_MAX: u32 = 16_777_216;
/// Highest rate, requests per second.
const RATE_MAX: f64 = 1e6;

/// Traffic as read, and where to point when it does not go with the rest.
#[derive(Debug, Clone)]
pub(super) struct TrafficSection {
    pub spec: TrafficSpec,
    /// SHA-256 of the trace file, in hex.
    pub trace_sha256: Option<String>,
    pub place: Place,
    pub path: String,
    pub input_place: Place,
}

/// Reads `[traffic]`. `folder` is where relative paths start.
pub(super) fn read(root: &mut Reader<'_>, folder: &Path) -> Option<TrafficSection> {
    if !root.has("traffic") {
        root.know("traffic");
        root.missing("traffic", "[traffic.poisson] with rate_rps = 10");
        return None;
    }
    let mut table = root.table("traffic")?;
    let chosen = table.variant(&KINDS);
    table.finish();
    let (kind, mut r) = chosen?;
    let place = r.place();
    let input_place = r.place_of("input_tokens");
    let mut trace_sha256 = None;
    let spec = match kind {
        "closed-loop" => read_closed(&mut r),
        "trace" => read_trace(&mut r, folder).map(|(spec, sha256)| {
            trace_sha256 = Some(sha256);
            TrafficSpec::Trace(spec)
        }),
        open => read_open(open, &mut r),
    };
    let path = r.path().to_owned();
    if let Some(spec) = &spec {
        check_drawable(&r, spec);
    }
    r.finish();
    Some(TrafficSection { spec: spec?, trace_sha256, place, path, input_place })
}

/// What the workload room refuses beyond the ranges of single keys, such as rates that leave the
/// clock's range once scaled.
fn check_drawable(r: &Reader<'_>, spec: &TrafficSpec) {
    let mut bare = spec.clone();
    match &mut bare {
        // Its table is large, and its keys are checked one by one.
        TrafficSpec::Open { bodies, .. } | TrafficSpec::Closed { bodies, .. } => {
            bodies.shared_prefix = None;
        }
        TrafficSpec::Trace(_) => return,
    }
    if let Err(error) = open_load(&bare, 0) {
        let problem = Problem::error("bad-traffic", error.to_string())
            .at(r.place(), "no request could be drawn");
        r.report("", problem);
    }
}

fn required<T>(r: &Reader<'_>, key: &str, example: &str, found: Option<T>) -> Option<T> {
    if found.is_none() && !r.has(key) {
        r.missing(key, example);
    }
    found
}

fn rate(r: &mut Reader<'_>) -> Option<f64> {
    let found = r.number("rate_rps", Bounds::Positive(RATE_MAX)).map(|f| f.value);
    required(r, "rate_rps", "rate_rps = 10", found)
}

fn read_open(kind: &str, r: &mut Reader<'_>) -> Option<TrafficSpec> {
    let arrivals = match kind {
        "constant" => rate(r).map(|rate_rps| ArrivalSpec::Constant { rate_rps }),
        "gamma" => {
            let rate = rate(r);
            let cv = r.number("cv", Bounds::Within(0.01, 100.0)).map(|f| f.value);
            let cv = required(r, "cv", "cv = 1.5 (1 is Poisson; burstiness is 1/cv²)", cv);
            rate.zip(cv).map(|(rate_rps, cv)| ArrivalSpec::Gamma { rate_rps, cv })
        }
        "rate-curve" => read_curve(r),
        _ => rate(r).map(|rate_rps| ArrivalSpec::Poisson { rate_rps }),
    };
    let requests = r.integer("requests", 1..=1_000_000_000_000).map(|f| f.value);
    let bodies = read_bodies(r);
    Some(TrafficSpec::Open { arrivals: arrivals?, requests, bodies: bodies? })
}

fn read_curve(r: &mut Reader<'_>) -> Option<ArrivalSpec> {
    let window = r.duration("window", Length::Positive).map(|f| f.value);
    let window = match window {
        None if !r.has("window") && !r.has("window_s") => {
            r.missing("window", "window = \"1m\"");
            None
        }
        other => other,
    };
    let bounds = |item: &Node| number_of(item).filter(|x| (0.0..=RATE_MAX).contains(x));
    let rates = r.list("rates_rps", "rates from 0 to 1000000 requests per second", bounds);
    let rates = required(r, "rates_rps", "rates_rps = [4.0, 8.0, 6.5]", rates);
    let scale = r.number("scale", Bounds::Positive(1e6)).map_or(1.0, |f| f.value);
    let repeat = r.boolean("repeat").unwrap_or(false);
    let rates = rates?;
    if rates.value.iter().all(|x| *x == 0.0) {
        let problem = Problem::error("no-arrivals", "no window of `rates_rps` has arrivals")
            .at(rates.place, "expected at least one rate above 0");
        r.report("rates_rps", problem);
        return None;
    }
    Some(ArrivalSpec::RateCurve { window: window?, rates_rps: rates.value, scale, repeat })
}

fn read_closed(r: &mut Reader<'_>) -> Option<TrafficSpec> {
    let concurrency = r.count("concurrency", 1..=10_000_000);
    let concurrency = required(r, "concurrency", "concurrency = 64", concurrency);
    let requests = r.integer("requests", 1..=1_000_000_000_000).map(|f| f.value);
    let requests = required(r, "requests", "requests = 1024", requests);
    let think = r.duration("think", Length::MayBeZero).map_or(Span::ZERO, |f| f.value);
    let bodies = read_bodies(r);
    let (concurrency, requests) = (concurrency?, requests?);
    if requests < u64::from(concurrency) {
        let title = format!("{requests} requests never fill a concurrency of {concurrency}");
        let problem = Problem::error("contradiction", title)
            .at(r.place_of("requests"), format!("expected at least {concurrency}"))
            .help("raise requests or lower concurrency");
        r.report("requests", problem);
    }
    Some(TrafficSpec::Closed { concurrency, requests, think, bodies: bodies? })
}

fn read_bodies(r: &mut Reader<'_>) -> Option<BodySpec> {
    let input_tokens = read_lengths(r, "input_tokens");
    let output_tokens = read_lengths(r, "output_tokens");
    let shared_prefix = r.table("shared_prefix").and_then(|mut table| {
        let groups = table.count("groups", 1..=GROUPS_MAX);
        let groups = required(&table, "groups", "groups = 8", groups);
        let tokens = table.count("tokens", 1..=TOKENS_MAX);
        let tokens = required(&table, "tokens", "tokens = 512", tokens);
        let zipf = table.number("zipf", Bounds::NotNegative(20.0)).map_or(0.0, |f| f.value);
        table.finish();
        Some(SharedPrefixSpec { groups: groups?, tokens: tokens?, zipf })
    });
    Some(BodySpec { input_tokens: input_tokens?, output_tokens: output_tokens?, shared_prefix })
}

/// Reads a distribution of token counts; a bare number is `fixed`.
fn read_lengths(r: &mut Reader<'_>, key: &str) -> Option<LengthSpec> {
    if !r.has(key) {
        r.know(key);
        r.missing(key, &format!("{key} = {{ fixed = 512 }}"));
        return None;
    }
    if let Some(Value::Integer(_)) = r.node(key).map(|node| &node.value) {
        return r.count(key, 1..=TOKENS_MAX).map(LengthSpec::Fixed);
    }
    let mut table = r.table(key)?;
    if table.has("fixed") && table.keys().count() == 1 {
        return table.count("fixed", 1..=TOKENS_MAX).map(LengthSpec::Fixed);
    }
    let chosen = table.variant(&["fixed", "uniform", "normal", "log-normal", "quantiles"]);
    table.finish();
    let (kind, mut inner) = chosen?;
    let spec = match kind {
        "uniform" => least_and_most(&mut inner).map(|(min, max)| LengthSpec::Uniform { min, max }),
        "normal" => {
            let mean = parameter(&mut inner, "mean", Bounds::Positive(f64::from(TOKENS_MAX)));
            let sd = parameter(&mut inner, "sd", Bounds::Positive(f64::from(TOKENS_MAX)));
            let limits = least_and_most(&mut inner);
            mean.zip(sd).zip(limits).map(|((mean, sd), (min, max))| LengthSpec::Normal {
                mean,
                sd,
                min,
                max,
            })
        }
        "log-normal" => {
            let median = parameter(&mut inner, "median", Bounds::Positive(f64::from(TOKENS_MAX)));
            let sigma = parameter(&mut inner, "sigma", Bounds::Positive(20.0));
            let limits = least_and_most(&mut inner);
            median.zip(sigma).zip(limits).map(|((median, sigma), (min, max))| {
                LengthSpec::LogNormal { median, sigma, min, max }
            })
        }
        _ => read_quantiles(&mut inner),
    };
    inner.finish();
    spec
}

fn parameter(r: &mut Reader<'_>, key: &str, bounds: Bounds) -> Option<f64> {
    let found = r.number(key, bounds).map(|f| f.value);
    required(r, key, &format!("{key} = 1.0"), found)
}

fn least_and_most(r: &mut Reader<'_>) -> Option<(u32, u32)> {
    let min = r.count("min", 1..=TOKENS_MAX);
    let min = required(r, "min", "min = 1", min);
    let max = r.count("max", 1..=TOKENS_MAX);
    let max = required(r, "max", "max = 8192", max);
    let (min, max) = (min?, max?);
    if min > max {
        let title = format!("`{}` runs from {min} down to {max}", r.path());
        let problem = Problem::error("bad-range", title)
            .at(r.place_of("max"), format!("expected at least min, {min}"));
        r.report("max", problem);
        return None;
    }
    Some((min, max))
}

fn read_quantiles(r: &mut Reader<'_>) -> Option<LengthSpec> {
    let share = |item: &Node| number_of(item).filter(|p| (0.0..=1.0).contains(p));
    let probabilities = r.list("probabilities", "probabilities from 0 to 1", share);
    let probabilities = required(r, "probabilities", "probabilities = [0, 0.5, 1]", probabilities)?;
    let range = 0..=u64::from(TOKENS_MAX);
    let count = |item: &Node| integer_in(item, &range).and_then(|n| u32::try_from(n).ok());
    let tokens = r.list("tokens", "token counts", count);
    let tokens = required(r, "tokens", "tokens = [8, 900, 4096]", tokens)?;
    let complain = |place: Place, key: &str, title: &str, expected: String| {
        let problem = Problem::error("bad-quantiles", title).at(place, expected);
        r.report(key, problem);
    };
    let p = &probabilities.value;
    let ends = p.first() == Some(&0.0) && p.last() == Some(&1.0) && p.len() >= 2;
    if !ends || !p.is_sorted_by(|a, b| a < b) {
        complain(
            probabilities.place,
            "probabilities",
            "`probabilities` does not run from 0 to 1",
            "expected rising probabilities, 0 first and 1 last".to_owned(),
        );
        return None;
    }
    if tokens.value.len() != p.len() {
        let expected = format!("expected {} values, one a probability", p.len());
        complain(tokens.place, "tokens", "`tokens` and `probabilities` differ in length", expected);
        return None;
    }
    if !tokens.value.is_sorted() {
        let expected = "expected values that never fall".to_owned();
        complain(tokens.place, "tokens", "`tokens` falls", expected);
        return None;
    }
    Some(LengthSpec::Quantiles { probabilities: probabilities.value, tokens: tokens.value })
}

fn read_trace(r: &mut Reader<'_>, folder: &Path) -> Option<(TraceSpec, String)> {
    let path = r.text("path");
    let path = required(r, "path", "path = \"my-trace.csv\"", path);
    let format = r.choice("format", &TraceFormat::ALL.map(|format| (format.name(), format)));
    let hash_block_size = r.count("hash_block_size", 1..=1_048_576);
    let speedup = r.number("speedup", Bounds::Within(1e-6, 1e6)).map_or(1.0, |f| f.value);
    let limit = r.integer("limit", 1..=1_000_000_000_000).map(|f| f.value);
    let stated = r.text("sha256");
    let path = path?;
    let file = folder.join(path.value);
    let sha256 = match file_sha256(&file) {
        Ok(sha256) => sha256,
        Err(error) => {
            unreadable_trace(r, path, &file, &error);
            return None;
        }
    };
    if let Some(stated) = stated
        && stated.value != sha256
    {
        let problem = Problem::error("trace-changed", "the trace file is not the one stated")
            .at(stated.place, format!("the file has {sha256}"))
            .help("restore the file, or leave sha256 out to take it as it is");
        r.report("sha256", problem);
    }
    let spec = TraceSpec { path: file, format, hash_block_size, speedup, limit };
    if let Err(error) = read_first_row(&spec) {
        let problem = Problem::error("trace-unreadable", error.to_string())
            .at(path.place, "expected a trace of the stated format")
            .help("`fleetcast inspect FILE` says what is in it");
        r.report("path", problem);
    }
    Some((spec, sha256))
}

/// Settles the layout and whether it can be replayed; the other rows are read as they are needed.
fn read_first_row(spec: &TraceSpec) -> Result<(), WorkloadError> {
    match open_load(&TrafficSpec::Trace(spec.clone()), 0)? {
        Load::Open(mut source) => source.next_arrival(RequestId(0)).map(drop),
        Load::Closed { .. } => Ok(()),
    }
}

fn unreadable_trace(r: &Reader<'_>, path: Found<&str>, file: &Path, error: &std::io::Error) {
    let mut problem = Problem::error("trace-missing", format!("cannot read trace: {error}"))
        .at(path.place, "expected a readable file")
        .help("a relative path starts at the folder of the scenario file");
    let missing = error.kind() == std::io::ErrorKind::NotFound;
    let folder = file.parent().filter(|_| missing);
    let near = folder.and_then(|folder| std::fs::read_dir(folder).ok());
    let mut names: Vec<String> = near
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    if let Some(name) = file.file_name().and_then(|name| name.to_str())
        && !names.is_empty()
    {
        problem = problem.nearest(name, names.iter().map(String::as_str));
    }
    r.report("path", problem);
}

fn file_sha256(file: &Path) -> std::io::Result<String> {
    let metadata = std::fs::metadata(file)?;
    if !metadata.is_file() && !metadata.is_dir() {
        // It is read more than once, and a device may never end.
        return Err(std::io::Error::other("it is not a regular file"));
    }
    let mut reader = std::fs::File::open(file)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let n = reader.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The path as resolved scenarios write it: from the root of the file system.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Where the lengths of a distribution lie.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Extent {
    pub shortest: u32,
    pub p05: f64,
    pub median: f64,
    pub p95: f64,
    pub longest: u32,
}

/// Extent of a distribution; used for advice only, so normal tails are cut at 5 and 95 %.
pub(super) fn extent(spec: &LengthSpec) -> Extent {
    const Z95: f64 = 1.644_853_6;
    let between = |shortest: u32, p05: f64, median: f64, p95: f64, longest: u32| {
        let cut = |x: f64| x.clamp(f64::from(shortest), f64::from(longest));
        Extent { shortest, p05: cut(p05), median: cut(median), p95: cut(p95), longest }
    };
    match spec {
        LengthSpec::Fixed(n) => {
            let x = f64::from(*n);
            between(*n, x, x, x, *n)
        }
        LengthSpec::Uniform { min, max } => {
            let (low, width) = (f64::from(*min), f64::from(max - min));
            let at = |share: f64| low + share * width;
            between(*min, at(0.05), at(0.5), at(0.95), *max)
        }
        LengthSpec::Normal { mean, sd, min, max } => {
            between(*min, mean - Z95 * sd, *mean, mean + Z95 * sd, *max)
        }
        LengthSpec::LogNormal { median, sigma, min, max } => {
            let factor = rough_exp(Z95 * sigma);
            between(*min, median / factor, *median, median * factor, *max)
        }
        LengthSpec::Quantiles { probabilities, tokens } => {
            let at = |share: f64| quantile(probabilities, tokens, share);
            let (first, last) = (tokens[0].max(1), tokens[tokens.len() - 1].max(1));
            between(first, at(0.05), at(0.5), at(0.95), last)
        }
    }
}

/// `exp` by repeated squaring: good to six digits for the arguments here, and the same everywhere.
fn rough_exp(x: f64) -> f64 {
    let mut power = 1.0 + x / f64::from(1u32 << 24);
    for _ in 0..24 {
        power *= power;
    }
    power
}

fn quantile(probabilities: &[f64], tokens: &[u32], share: f64) -> f64 {
    let after = probabilities.partition_point(|p| *p < share).clamp(1, probabilities.len() - 1);
    let (p0, p1) = (probabilities[after - 1], probabilities[after]);
    let (t0, t1) = (f64::from(tokens[after - 1]), f64::from(tokens[after]));
    t0 + (t1 - t0) * (share - p0) / (p1 - p0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_bracket_the_median() {
        let specs = [
            LengthSpec::Fixed(7),
            LengthSpec::Uniform { min: 1, max: 101 },
            LengthSpec::Normal { mean: 100.0, sd: 10.0, min: 1, max: 500 },
            LengthSpec::LogNormal { median: 100.0, sigma: 1.0, min: 1, max: 5000 },
            LengthSpec::Quantiles { probabilities: vec![0.0, 0.5, 1.0], tokens: vec![0, 10, 90] },
        ];
        for spec in &specs {
            let e = extent(spec);
            let (low, high) = (f64::from(e.shortest), f64::from(e.longest));
            assert!(low <= e.p05 && e.p05 <= e.median, "{spec:?}: {e:?}");
            assert!(e.median <= e.p95 && e.p95 <= high, "{spec:?}: {e:?}");
        }
        assert_eq!(extent(&specs[1]).median, 51.0);
        assert_eq!(extent(&specs[4]).p95, 82.0);
        assert!((rough_exp(1.0) - std::f64::consts::E).abs() < 1e-6);
    }
}
