//! Integration tests, one binary.

mod scenario;
