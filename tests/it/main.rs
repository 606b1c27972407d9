//! Integration tests, one binary.

mod conform;
mod queueing;
mod servers;
mod sim;
mod workload;
