//! Integration tests, one binary.

mod workload;
