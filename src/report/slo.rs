//! The verdict on each term of the SLO: the pooled figure against its limit. Knows latencies only;
//! how a term is written in a scenario is the scenario room's affair.

use serde::{Deserialize, Serialize};

use crate::sim::result::LatencySet;
use crate::units::Span;

/// A latency of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// A term, what the run says of it, and whether it is met.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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

/// The figure in seconds that a term is about; `None` without samples.
#[must_use]
pub fn value_of(term: &SloTerm, latency: &LatencySet) -> Option<f64> {
    let histogram = match term.metric {
        LatencyMetric::Ttft => &latency.ttft,
        LatencyMetric::Tpot => &latency.tpot,
        LatencyMetric::Itl => &latency.itl,
        LatencyMetric::E2e => &latency.e2e,
    };
    match term.stat {
        LatencyStat::Mean => histogram.mean_s(),
        LatencyStat::Percentile(share) => histogram.percentile_s(share),
        LatencyStat::Max => histogram.max_s(),
    }
}

/// The verdict on every term, in the order in which they were asked.
#[must_use]
pub fn verdicts(terms: &[SloTerm], latency: &LatencySet) -> Vec<SloVerdict> {
    let verdict = |term: &SloTerm| {
        let (limit, value) = (term.limit.seconds(), value_of(term, latency));
        let met = value.is_some_and(|value| value <= limit);
        SloVerdict { name: term.name.clone(), limit, value, met }
    };
    terms.iter().map(verdict).collect()
}
