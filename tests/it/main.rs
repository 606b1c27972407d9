//! Integration tests, one binary.

mod conform;
mod engines;
mod queueing;
mod servers;
mod sim;
mod workload;
