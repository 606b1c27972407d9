//! The verdict on each term of the SLO: the pooled figure against its limit. Knows latencies only;
//! how a term is written in a scenario is the scenario room's affair.

use serde::{Deserialize, Serialize};

use crate::scenario::{LatencyMetric, LatencyStat, SloTerm};
use crate::sim::result::LatencySet;

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
