//! From results to answers: figures, the verdict on the SLO, warnings, `summary.json`, the rows of
//! the large files, and tables for the terminal. Knows what was asked (the scenario) and what
//! came out (simulation results); writes to writers it is given, opens no file, prints
//! nothing, reads no clock.

use crate::report::trend::WaitTrend;
use crate::sim::result::RunResult;

pub mod cost;
pub mod decimal;
pub mod describe;
pub mod figures;
pub mod format;
pub mod interval;
pub mod pages;
pub mod range;
pub mod rows;
pub mod slo;
pub mod summary;
pub mod terminal;
pub mod trend;
pub mod warning;

pub use summary::Summary;

/// What one replication gave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunOutcome {
    /// Its totals.
    pub result: RunResult,
    /// Waiting time over the run.
    pub trend: WaitTrend,
}
