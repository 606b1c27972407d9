//! Counting: latency histograms with exact sums. Knows `units` only.

mod histogram;

pub use histogram::{LatencyHistogram, LengthHistogram};
