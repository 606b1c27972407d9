//! fleetcast: a deterministic discrete-event capacity simulator for LLM serving fleets.
//!
//! The rooms and the arrows between them are described in `ARCHITECTURE.md`; the integration test
//! `architecture` checks them.

pub mod catalog;
pub mod cli;
pub mod conform;
pub mod engine;
pub mod kernel;
pub mod latency;
pub mod metrics;
pub mod report;
pub mod router;
pub mod scenario;
pub mod signals;
pub mod sim;
pub mod units;
pub mod workload;
