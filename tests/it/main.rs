//! Integration tests, one binary.

mod conform;
mod workload;
