//! Integration tests, one binary.

mod architecture;
mod calibration;
mod cli;
mod conform;
mod engines;
mod queueing;
mod report;
mod scenario;
mod servers;
mod sim;
mod workload;
