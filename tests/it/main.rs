//! Integration tests, one binary.

#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails at once")]

mod architecture;
mod calibration;
mod cli;
mod conform;
mod engines;
mod queueing;
mod report;
mod scenario;
mod servers;
mod shipped;
mod sim;
mod speed_workloads;
mod window;
mod workload;
