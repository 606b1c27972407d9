//! From results to answers: figures, the verdict on the SLO, warnings, `summary.json`, the rows of
//! the large files, and tables for the terminal. Knows what was asked (configuration and traffic)
//! and what came out (simulation results); writes to writers it is given, opens no file, prints
//! nothing, reads no clock.

use serde::{Deserialize, Serialize};

use crate::report::slo::SloTerm;
use crate::report::trend::WaitTrend;
use crate::sim::config::SimConfig;
use crate::sim::result::RunResult;
use crate::workload::spec::TrafficSpec;

pub mod cost;
pub mod decimal;
pub mod describe;
pub mod figures;
pub mod format;
pub mod interval;
pub mod rows;
pub mod slo;
pub mod summary;
pub mod terminal;
pub mod trend;
pub mod warning;

pub use summary::Summary;

/// What was asked, as far as an answer repeats or needs it.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Name of the scenario.
    pub name: &'a str,
    /// Hash of the resolved scenario without its output options, in hexadecimal.
    pub sha256: &'a str,
    /// Fleet, router and method.
    pub config: &'a SimConfig,
    /// Traffic.
    pub traffic: &'a TrafficSpec,
    /// Terms of the SLO.
    pub slo: &'a [SloTerm],
    /// Profiles that gave step times.
    pub profiles: &'a [ProfileUse],
}

/// A profile as an answer names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileUse {
    /// Its name.
    pub name: String,
    /// Hash of its file, in hexadecimal.
    pub sha256: String,
    /// Whether the run stayed within the region on which it was fitted; `None` when the profile
    /// names no region.
    pub in_calibrated_range: Option<bool>,
}

/// What one replication gave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunOutcome {
    /// Its totals.
    pub result: RunResult,
    /// Waiting time over the run.
    pub trend: WaitTrend,
}
