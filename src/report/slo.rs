//! The verdict on each term of the SLO: the pooled figure against its limit. Knows figures only;
//! how a term is written in a scenario is the scenario room's affair.

use serde::Serialize;

use crate::report::figures::{LatencyFigures, Stats};

/// Which latency a term is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Time to first token.
    Ttft,
    /// Time per output token of a request.
    Tpot,
    /// Gaps between successive tokens.
    Itl,
    /// End to end.
    E2e,
}

/// Which statistic of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stat {
    /// Mean.
    Mean,
    /// Median.
    P50,
    /// 90th percentile.
    P90,
    /// 95th percentile.
    P95,
    /// 99th percentile.
    P99,
    /// Maximum.
    Max,
}

/// One term: `metric.stat` may not exceed `limit_s`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SloTerm {
    /// Which latency.
    pub metric: Metric,
    /// Which statistic.
    pub stat: Stat,
    /// Limit in seconds.
    pub limit_s: f64,
}

impl Metric {
    /// Its name in `metric.stat`.
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

impl Stat {
    /// Its name in `metric.stat`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P95 => "p95",
            Self::P99 => "p99",
            Self::Max => "max",
        }
    }

    const fn of(self, stats: &Stats) -> Option<f64> {
        match self {
            Self::Mean => stats.mean,
            Self::P50 => stats.p50,
            Self::P90 => stats.p90,
            Self::P95 => stats.p95,
            Self::P99 => stats.p99,
            Self::Max => stats.max,
        }
    }
}

/// A term, what the run says of it, and whether it is met.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SloVerdict {
    /// `metric.stat`.
    pub name: String,
    /// Limit in seconds.
    pub limit: f64,
    /// The figure in seconds; `None` when no request counted.
    pub value: Option<f64>,
    /// At or below the limit. A figure that does not exist meets nothing.
    pub met: bool,
}

/// The verdict on every term, in the order in which they were asked.
#[must_use]
pub fn verdicts(terms: &[SloTerm], latency: &LatencyFigures) -> Vec<SloVerdict> {
    let verdict = |term: &SloTerm| {
        let stats = match term.metric {
            Metric::Ttft => &latency.ttft,
            Metric::Tpot => &latency.tpot,
            Metric::Itl => &latency.itl,
            Metric::E2e => &latency.e2e,
        };
        let value = term.stat.of(stats);
        SloVerdict {
            name: format!("{}.{}", term.metric.name(), term.stat.name()),
            limit: term.limit_s,
            value,
            met: value.is_some_and(|value| value <= term.limit_s),
        }
    };
    terms.iter().map(verdict).collect()
}
