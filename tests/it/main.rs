//! Integration tests, one binary.

mod calibration;
mod conform;
mod engines;
mod queueing;
mod scenario;
mod servers;
mod sim;
mod workload;
