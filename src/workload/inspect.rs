//! What is in a trace: rates, burstiness, lengths and prefix reuse, as figures, as a page and as
//! JSON. Reads the file once; memory is 8 bytes a row and some per distinct hash id. Knows traces;
//! nothing of simulations.
//!
//! Time is cut into bins from the first row on; the last, partial bin does not count. The index
//! of dispersion is the sample variance of the counts over their mean (1 for Poisson). Percentiles
//! are linear between order statistics. A block is a hit when it and all before it in its row were
//! seen in an earlier row (a cache without limit).

use super::WorkloadError;
use super::spec::TraceFormat;
use super::trace::{Detection, Row, TraceReader, block_sizes};
use crate::units::{PS_PER_S, SimTime, Span};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt;
use std::path::Path;

/// Widths of the bins for the index of dispersion, in seconds.
const DISPERSION_WIDTHS_S: [u64; 3] = [1, 10, 60];

/// What a trace holds. Figures that do not exist (rates of a single row, minutes of a short trace)
/// are `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceReport {
    /// What the file was taken for.
    pub detection: Detection,
    /// Requests.
    pub rows: u64,
    /// From the first to the last arrival.
    pub span: Span,
    /// (rows - 1) / span, per second.
    pub mean_rps: Option<f64>,
    /// Requests per second in each whole minute.
    pub minutes_rps: Vec<f64>,
    /// Largest number of requests in a whole second.
    pub peak_rps_1s: Option<f64>,
    /// Standard deviation of the gaps between arrivals over their mean.
    pub iat_cv: Option<f64>,
    /// Index of dispersion at 1, 10 and 60 seconds.
    pub dispersion: [Option<f64>; 3],
    /// Prompt lengths.
    pub input_tokens: LengthSummary,
    /// Output lengths.
    pub output_tokens: LengthSummary,
    /// Requests with an empty prompt.
    pub zero_inputs: u64,
    /// Requests with an empty output; a run makes one token of each.
    pub zero_outputs: u64,
    /// Shared prefixes, when the file has hash ids.
    pub prefix: Option<PrefixReuse>,
}

/// A distribution of token counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LengthSummary {
    /// Arithmetic mean.
    pub mean: f64,
    /// Values at [`LengthSummary::PROBABILITIES`].
    pub quantiles: [f64; 7],
}

impl LengthSummary {
    /// Probabilities of the quantiles.
    pub const PROBABILITIES: [f64; 7] = [0.0, 0.1, 0.5, 0.9, 0.95, 0.99, 1.0];
    /// Their names.
    pub const NAMES: [&str; 7] = ["min", "p10", "p50", "p90", "p95", "p99", "max"];

    fn new(sorted: &[u32]) -> Self {
        let sum: u64 = sorted.iter().copied().map(u64::from).sum();
        let mean = sum as f64 / sorted.len() as f64;
        Self { mean, quantiles: Self::PROBABILITIES.map(|p| quantile(sorted, p)) }
    }

    fn to_json(self) -> Value {
        let mut object = json!({ "mean": self.mean });
        for (name, value) in Self::NAMES.iter().zip(self.quantiles) {
            object[*name] = value.into();
        }
        object
    }
}

/// Prefix reuse under a cache without limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixReuse {
    /// Hash ids of all rows.
    pub total_blocks: u64,
    /// Distinct hash ids.
    pub unique_blocks: u64,
    /// Hash ids that were in the cache, with all before them, when their row came.
    pub hit_blocks: u64,
    /// Least and greatest block size under which every row has the right number of hash ids.
    pub block_sizes: Option<(u32, Option<u32>)>,
}

impl PrefixReuse {
    /// Share of blocks that are hits.
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        ratio(self.hit_blocks as f64, self.total_blocks as f64)
    }
}

impl TraceReport {
    /// Mean over the whole minutes.
    fn minutes_mean_rps(&self) -> Option<f64> {
        ratio(self.minutes_rps.iter().sum(), self.minutes_rps.len() as f64)
    }

    /// Requests per second in the busiest whole minute.
    #[must_use]
    pub fn peak_rps_1min(&self) -> Option<f64> {
        self.minutes_rps.iter().copied().max_by(f64::total_cmp)
    }

    /// The busiest whole minute over the mean of them all.
    #[must_use]
    pub fn peak_to_mean_1min(&self) -> Option<f64> {
        ratio(self.peak_rps_1min()?, self.minutes_mean_rps()?)
    }

    /// The report for machines: times in seconds, rates per second, `null` for what does not exist.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let [d1, d10, d60] = self.dispersion;
        json!({
            "format": self.detection.format.name(),
            "format_reason": self.detection.reason,
            "rows": self.rows,
            "span_s": self.span.seconds(),
            "mean_rps": self.mean_rps,
            "peak_rps_1min": self.peak_rps_1min(),
            "peak_to_mean_1min": self.peak_to_mean_1min(),
            "peak_rps_1s": self.peak_rps_1s,
            "iat_cv": self.iat_cv,
            "dispersion_1s": d1,
            "dispersion_10s": d10,
            "dispersion_60s": d60,
            "input_tokens": self.input_tokens.to_json(),
            "output_tokens": self.output_tokens.to_json(),
            "zero_inputs": self.zero_inputs,
            "zero_outputs": self.zero_outputs,
            "prefix_reuse": self.prefix.map(|prefix| json!({
                "total_blocks": prefix.total_blocks,
                "unique_blocks": prefix.unique_blocks,
                "infinite_hit_blocks": prefix.hit_blocks,
                "infinite_hit_rate": prefix.hit_rate(),
                "block_size_min": prefix.block_sizes.map(|(low, _)| low),
                "block_size_max": prefix.block_sizes.and_then(|(_, high)| high),
            })),
            "minutes_rps": self.minutes_rps,
        })
    }
}

/// Reads the whole of `path` and says what is in it. With `hash_block_size` the number of hash ids
/// of each row is checked; without it, the sizes that would fit are found.
///
/// # Errors
/// When the file or a line of it cannot be used.
pub fn inspect_trace(
    path: &Path,
    format: Option<TraceFormat>,
    hash_block_size: Option<u32>,
) -> Result<TraceReport, WorkloadError> {
    let mut reader = TraceReader::open(path, format, hash_block_size)?;
    let mut row = Row::default();
    let mut arrivals = Arrivals::new();
    let mut blocks = Blocks::default();
    let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
    while reader.next_row(&mut row)? {
        arrivals.add(row.at);
        inputs.push(row.input_tokens);
        outputs.push(row.output_tokens);
        blocks.add(row.input_tokens, &row.hash_ids);
    }
    inputs.sort_unstable();
    outputs.sort_unstable();
    let zeros = |sorted: &[u32]| sorted.partition_point(|&tokens| tokens == 0) as u64;
    let [second, _, minute] = &arrivals.bins;
    Ok(TraceReport {
        detection: reader.into_detection(),
        rows: arrivals.rows,
        span: arrivals.last.since(SimTime::ZERO),
        mean_rps: arrivals.mean_rps(),
        minutes_rps: minute.counts.iter().map(|&count| f64::from(count) / 60.0).collect(),
        peak_rps_1s: second.counts.iter().max().map(|&count| f64::from(count)),
        iat_cv: arrivals.iat_cv(),
        dispersion: arrivals.bins.each_ref().map(Bins::dispersion),
        input_tokens: LengthSummary::new(&inputs),
        output_tokens: LengthSummary::new(&outputs),
        zero_inputs: zeros(&inputs),
        zero_outputs: zeros(&outputs),
        prefix: blocks.reuse(),
    })
}

/// Requests per second in each whole `window` of a trace, from its first row: rates for
/// [`super::spec::ArrivalSpec::RateCurve`].
///
/// # Errors
/// When the window is empty, or the file or a line of it cannot be used.
pub fn rate_curve(path: &Path, window: Span) -> Result<Vec<f64>, WorkloadError> {
    if window == Span::ZERO {
        return Err(WorkloadError::spec("window", "a window of 0 s holds nothing"));
    }
    let mut reader = TraceReader::open(path, None, None)?;
    let mut row = Row::default();
    let mut bins = Bins::new(window.0);
    while reader.next_row(&mut row)? {
        bins.add(row.at);
    }
    Ok(bins.counts.iter().map(|&count| f64::from(count) / window.seconds()).collect())
}

/// Quantiles of the lengths in a trace: tokens for [`super::spec::LengthSpec::Quantiles`].
#[derive(Debug, Clone, PartialEq)]
pub struct LengthQuantiles {
    /// Prompt tokens at each probability.
    pub input_tokens: Vec<f64>,
    /// Output tokens at each probability.
    pub output_tokens: Vec<f64>,
}

/// The prompt and output lengths of a trace at `probabilities` (each cut to 0..=1).
///
/// # Errors
/// When the file or a line of it cannot be used.
pub fn length_quantiles(
    path: &Path,
    probabilities: &[f64],
) -> Result<LengthQuantiles, WorkloadError> {
    let mut reader = TraceReader::open(path, None, None)?;
    let mut row = Row::default();
    let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
    while reader.next_row(&mut row)? {
        inputs.push(row.input_tokens);
        outputs.push(row.output_tokens);
    }
    inputs.sort_unstable();
    outputs.sort_unstable();
    let at = |sorted: &[u32]| probabilities.iter().map(|&p| quantile(sorted, p)).collect();
    Ok(LengthQuantiles { input_tokens: at(&inputs), output_tokens: at(&outputs) })
}

/// Value at probability `p` of a sorted sample that is not empty, linear in between.
fn quantile(sorted: &[u32], p: f64) -> f64 {
    let last = sorted.len() - 1;
    let position = p.clamp(0.0, 1.0) * last as f64;
    let below = position as usize;
    let (low, high) = (f64::from(sorted[below]), f64::from(sorted[(below + 1).min(last)]));
    low + (high - low) * (position - below as f64)
}

fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

/// Statistics of arrival times, gathered one by one.
struct Arrivals {
    rows: u64,
    last: SimTime,
    /// Mean of the gaps and sum of their squared deviations from it, in seconds (Welford).
    gap_mean_s: f64,
    gap_squares: f64,
    bins: [Bins; 3],
}

impl Arrivals {
    fn new() -> Self {
        let bins = DISPERSION_WIDTHS_S.map(|seconds| Bins::new(seconds * PS_PER_S));
        Self { rows: 0, last: SimTime::ZERO, gap_mean_s: 0.0, gap_squares: 0.0, bins }
    }

    fn add(&mut self, at: SimTime) {
        if self.rows > 0 {
            let gap_s = (at - self.last).seconds();
            let deviation = gap_s - self.gap_mean_s;
            self.gap_mean_s += deviation / self.rows as f64;
            self.gap_squares += deviation * (gap_s - self.gap_mean_s);
        }
        self.rows += 1;
        self.last = at;
        for bins in &mut self.bins {
            bins.add(at);
        }
    }

    fn mean_rps(&self) -> Option<f64> {
        ratio(self.rows.checked_sub(1)? as f64, self.last.seconds())
    }

    fn iat_cv(&self) -> Option<f64> {
        let gaps = self.rows.checked_sub(1).filter(|&gaps| gaps > 0)?;
        ratio((self.gap_squares / gaps as f64).sqrt(), self.gap_mean_s)
    }
}

/// Arrivals in each whole bin; the one being filled is kept apart, as it may be partial.
struct Bins {
    width_ps: u64,
    counts: Vec<u32>,
    current: u32,
}

impl Bins {
    fn new(width_ps: u64) -> Self {
        Self { width_ps, counts: Vec::new(), current: 0 }
    }

    fn add(&mut self, at: SimTime) {
        let index = (at.0 / self.width_ps) as usize;
        if index > self.counts.len() {
            self.counts.push(self.current);
            self.counts.resize(index, 0);
            self.current = 0;
        }
        self.current += 1;
    }

    fn dispersion(&self) -> Option<f64> {
        let n = self.counts.len() as f64;
        let mean = ratio(self.counts.iter().map(|&count| f64::from(count)).sum(), n)?;
        let deviation = |&count: &u32| f64::from(count) - mean;
        let squares: f64 = self.counts.iter().map(deviation).map(|d| d * d).sum();
        (n > 1.0).then(|| squares / (n - 1.0) / mean)
    }
}

/// Prefix reuse, gathered row by row.
#[derive(Default)]
struct Blocks {
    seen: HashSet<u64>,
    total: u64,
    hits: u64,
    /// Block sizes that fit every row so far.
    sizes: Option<(u32, Option<u32>)>,
    misfit: bool,
}

impl Blocks {
    fn add(&mut self, tokens: u32, ids: &[u64]) {
        if ids.is_empty() {
            return; // A row without ids says nothing about prefixes.
        }
        self.total += ids.len() as u64;
        self.hits += ids.iter().take_while(|id| self.seen.contains(id)).count() as u64;
        self.seen.extend(ids);
        match block_sizes(tokens, ids.len() as u64) {
            None => self.misfit = true,
            Some((low, high)) => {
                let (low_before, high_before) = self.sizes.unwrap_or((0, None));
                let high = [high, high_before].into_iter().flatten().min();
                self.sizes = Some((low.max(low_before), high));
            }
        }
    }

    fn reuse(&self) -> Option<PrefixReuse> {
        let fits = |&(low, high): &(u32, Option<u32>)| high.is_none_or(|high| low <= high);
        (self.total > 0).then(|| PrefixReuse {
            total_blocks: self.total,
            unique_blocks: self.seen.len() as u64,
            hit_blocks: self.hits,
            block_sizes: self.sizes.filter(fits).filter(|_| !self.misfit),
        })
    }
}

/// A figure with four significant digits, or a dash.
struct Figure(Option<f64>);

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(value) = self.0 else {
            return f.pad("-");
        };
        let decimals = match value.abs() {
            v if v >= 1_000.0 => 0,
            v if v >= 100.0 => 1,
            v if v >= 10.0 => 2,
            _ => 3,
        };
        f.pad(&format!("{value:.decimals$}"))
    }
}

impl fmt::Display for TraceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "format      {}: {}", self.detection.format, self.detection.reason)?;
        writeln!(f, "requests    {}", self.rows)?;
        let span_s = self.span.seconds();
        let minutes = Figure(Some(span_s / 60.0));
        writeln!(f, "span        {} s ({minutes} min)", Figure(Some(span_s)))?;
        writeln!(
            f,
            "rate        mean {} /s, peak {} /s over a minute ({} × its mean), {} /s over a second",
            Figure(self.mean_rps),
            Figure(self.peak_rps_1min()),
            Figure(self.peak_to_mean_1min()),
            Figure(self.peak_rps_1s),
        )?;
        let [d1, d10, d60] = self.dispersion.map(Figure);
        writeln!(
            f,
            "burstiness  gaps cv {}, index of dispersion {d1} (1 s), {d10} (10 s), {d60} (60 s)",
            Figure(self.iat_cv),
        )?;
        self.write_lengths(f)?;
        if let Some(prefix) = &self.prefix {
            write_prefix(prefix, f)?;
        }
        for (count, what) in [(self.zero_inputs, "a prompt"), (self.zero_outputs, "an output")] {
            if count > 0 {
                writeln!(f, "note        {count} requests have {what} of 0 tokens")?;
            }
        }
        Ok(())
    }
}

impl TraceReport {
    fn write_lengths(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tokens      {:>9}", "mean")?;
        for name in LengthSummary::NAMES {
            write!(f, "{name:>9}")?;
        }
        for (name, lengths) in [("prompt", self.input_tokens), ("output", self.output_tokens)] {
            write!(f, "\n  {name:<10}{:>9}", Figure(Some(lengths.mean)))?;
            for value in lengths.quantiles {
                write!(f, "{:>9}", (value * 10.0).round() / 10.0)?;
            }
        }
        writeln!(f)
    }
}

fn write_prefix(prefix: &PrefixReuse, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let percent = Figure(prefix.hit_rate().map(|rate| rate * 100.0));
    writeln!(
        f,
        "prefixes    {} of {} blocks ({percent} %) hit in a cache without limit, {} distinct",
        prefix.hit_blocks, prefix.total_blocks, prefix.unique_blocks
    )?;
    match prefix.block_sizes {
        Some((low, Some(high))) if low == high => {
            writeln!(f, "            each of {low} tokens (the only size that fits every row)")
        }
        Some((low, Some(high))) => {
            writeln!(f, "            each of {low} to {high} tokens (sizes that fit every row)")
        }
        Some((low, None)) => writeln!(f, "            each of {low} tokens or more"),
        None => writeln!(f, "            no block size fits every row"),
    }
}
