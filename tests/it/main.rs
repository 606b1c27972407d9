//! Integration tests, one binary.

mod architecture;
mod report;
mod workload;
