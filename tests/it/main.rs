//! Integration tests, one binary.

mod conform;
mod queueing;
mod scenario;
mod servers;
mod sim;
mod workload;
