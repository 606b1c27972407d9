//! The serving engine: vLLM V1's scheduler and KV cache as a pure state machine over steps. It
//! owns scheduling, the KV pool and the clock of its own steps; its caller owns simulated time,
//! arrivals, routing and everything outside one serving process. Two engines make the same
//! decisions: [`mod@reference`] walks every step and token by the rules as written, [`fast`] merges
//! stretches of unchanged decode. May know `units` and `latency`; knows nothing of scenarios,
//! traces, routers or metrics.

pub mod config;
pub mod fast;
pub mod record;
pub mod reference;
pub mod replica;
pub mod request;
pub mod version;
