//! What traffic a scenario asks for: plain data, checked by the scenario room, turned into sources
//! by this one.

use crate::units::Span;
use std::fmt;
use std::path::PathBuf;

/// Traffic of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum TrafficSpec {
    /// Generated arrivals (open loop).
    Open {
        /// When requests come.
        arrivals: ArrivalSpec,
        /// Stop after this many; `None` for as long as the horizon lasts.
        requests: Option<u64>,
        /// What they ask for.
        bodies: BodySpec,
    },
    /// A fixed number in flight.
    Closed {
        /// Requests in flight.
        concurrency: u32,
        /// Requests in all.
        requests: u64,
        /// From an end to the next start.
        think: Span,
        /// What they ask for.
        bodies: BodySpec,
    },
    /// A trace file.
    Trace(TraceSpec),
}

/// When generated requests come.
#[derive(Debug, Clone, PartialEq)]
pub enum ArrivalSpec {
    /// Evenly spaced; the first at 1/rate.
    Constant {
        /// Requests per second.
        rate_rps: f64,
    },
    /// Exponential gaps.
    Poisson {
        /// Requests per second.
        rate_rps: f64,
    },
    /// Gamma gaps with a coefficient of variation (1 = Poisson; vLLM's burstiness is 1/cv²).
    Gamma {
        /// Requests per second.
        rate_rps: f64,
        /// Standard deviation of gaps over their mean.
        cv: f64,
    },
    /// A rate for each window in turn, with Poisson arrivals inside; after the last window the
    /// rate is 0 unless `repeat`.
    RateCurve {
        /// Length of a window.
        window: Span,
        /// Requests per second in each window.
        rates_rps: Vec<f64>,
        /// Multiplies every rate.
        scale: f64,
        /// Start again after the last window.
        repeat: bool,
    },
}

/// What generated requests ask for.
#[derive(Debug, Clone, PartialEq)]
pub struct BodySpec {
    /// Prompt tokens, shared prefix included.
    pub input_tokens: LengthSpec,
    /// Output tokens.
    pub output_tokens: LengthSpec,
    /// Prefixes that several prompts share.
    pub shared_prefix: Option<SharedPrefixSpec>,
}

/// Shared prefixes (system prompts): each request takes one of `groups` at random and opens its
/// prompt with that group's `tokens`, then goes on with text of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedPrefixSpec {
    /// How many different prefixes.
    pub groups: u32,
    /// Tokens of each; a shorter prompt is all prefix.
    pub tokens: u32,
    /// Popularity of group k (from 1) is 1/k^zipf; 0 is uniform.
    pub zipf: f64,
}

/// A distribution of token counts; every draw is rounded to a whole number of at least 1.
#[derive(Debug, Clone, PartialEq)]
pub enum LengthSpec {
    /// Always the same.
    Fixed(u32),
    /// Every whole number from `min` to `max` alike.
    Uniform {
        /// Least.
        min: u32,
        /// Most.
        max: u32,
    },
    /// Normal, cut to `min..=max` by clamping.
    Normal {
        /// Mean before clamping.
        mean: f64,
        /// Standard deviation before clamping.
        sd: f64,
        /// Least.
        min: u32,
        /// Most.
        max: u32,
    },
    /// Log-normal, cut to `min..=max` by clamping.
    LogNormal {
        /// Median.
        median: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// Least.
        min: u32,
        /// Most.
        max: u32,
    },
    /// Empirical quantiles, linear in between: `tokens[i]` at probability `probabilities[i]`, which
    /// run from 0 to 1.
    Quantiles {
        /// Ascending from 0 to 1.
        probabilities: Vec<f64>,
        /// Non-decreasing.
        tokens: Vec<u32>,
    },
}

/// Layout of a trace file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFormat {
    /// `TIMESTAMP,ContextTokens,GeneratedTokens` (Azure LLM inference traces 2023 and 2024).
    AzureLlmCsv,
    /// One JSON object a line with `timestamp`, `input_length`, `output_length`, `hash_ids`.
    MooncakeJsonl,
    /// CSV with an arrival column and two token columns, found by their names.
    PlainCsv,
}

impl TraceFormat {
    /// All layouts, for lists of choices.
    pub const ALL: [Self; 3] = [Self::AzureLlmCsv, Self::MooncakeJsonl, Self::PlainCsv];

    /// Its name in scenarios and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AzureLlmCsv => "azure-llm-csv",
            Self::MooncakeJsonl => "mooncake-jsonl",
            Self::PlainCsv => "plain-csv",
        }
    }
}

impl fmt::Display for TraceFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A trace file to replay.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceSpec {
    /// The file; `.gz` is unpacked on the way.
    pub path: PathBuf,
    /// Layout; found by looking when `None`.
    pub format: Option<TraceFormat>,
    /// Tokens per hash id (Mooncake: 512); needed when the file has hash ids and does not say.
    pub hash_block_size: Option<u32>,
    /// Divides every arrival time: 2 replays twice as fast.
    pub speedup: f64,
    /// Stop after this many rows.
    pub limit: Option<u64>,
}
