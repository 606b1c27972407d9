//! Integration tests, one binary.

mod queueing;
mod servers;
mod sim;
