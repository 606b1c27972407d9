//! Integration tests, one binary.

mod conform;
