//! Integration tests, one binary.

mod calibration;
mod conform;
mod engines;
mod queueing;
mod servers;
mod sim;
mod workload;
