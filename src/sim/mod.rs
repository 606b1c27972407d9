//! The simulation loop: the only room that schedules events. Puts traffic, router, replicas and
//! recorders together and advances simulated time in the total order of events.
//!
//! Promises, each with a test:
//! 1. Events happen in the order (time, rank, number of their source); the ranks are in `event`.
//! 2. A run is a function of its configuration, its traffic and its engines: the same again gives
//!    the same result, and recorders, samples and the progress callback change nothing but the
//!    count of events.
//! 3. A run ends: when all requests ended, at the drain limit, when nothing can change any more
//!    ([`result::RunResult::stalled`]), or with an error when time stands still or runs past the
//!    clock.
//! 4. Nobody is lost: requests by fate add up, and a request's seven parts add up to its E2E.
//! 5. Memory follows the requests in flight, not the length of the run.

mod aborts;
mod audit;
pub mod config;
mod endpoint;
mod event;
mod in_flight;
pub mod replication;
pub mod result;
mod run_loop;
mod tally;
mod traffic;

use crate::engine::replica::Replica;
use crate::router::{FleetShape, Router};
use crate::units::{SimTime, Span};
use crate::workload::{Load, WorkloadError};
use config::{PoolConfig, REPLICAS_MAX, SimConfig};
use result::{Recorder, RunResult};
use run_loop::Simulation;
use std::error::Error;
use std::ops::ControlFlow;
use traffic::Traffic;

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Simulated time.
    pub now: SimTime,
    /// Events handled.
    pub events: u64,
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests that ended, in whatever way.
    pub ended: u64,
}

/// Why a run gives no result.
#[derive(Debug, thiserror::Error)]
pub enum SimError<E: Error + 'static> {
    /// An engine cannot be built.
    #[error("the engine of pool `{pool}` cannot be built")]
    Engine {
        /// Name of its pool.
        pool: String,
        /// Why.
        source: E,
    },
    /// Traffic cannot be drawn.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// Nobody is there to serve.
    #[error("the fleet has no replica; help: give at least one pool `instances` above 0")]
    NoReplicas,
    /// More replicas than can be simulated.
    #[error("the fleet has {replicas} replicas, more than {max}; help: lower `instances`")]
    TooManyReplicas {
        /// How many.
        replicas: u64,
        /// How many can be.
        max: u32,
    },
    /// An interval that would never let time pass.
    #[error("`{key}` is 0 s; help: give an interval above zero")]
    ZeroInterval {
        /// Name of the field.
        key: &'static str,
    },
    /// Engines act over and over at one instant.
    #[error(
        "simulated time stands still at {at} after {wakes} steps; \
         help: give the step time of the profile a fixed part above zero"
    )]
    Livelock {
        /// Where the clock stands.
        at: SimTime,
        /// Engine events at that instant.
        wakes: u64,
    },
    /// Something happens at the end of the clock, where all times are alike.
    #[error(
        "simulated time ran past the clock's range of 213 days; \
         help: look for step times, latencies or think times far too long"
    )]
    EndOfClock,
    /// The progress callback asked to stop.
    #[error("interrupted at {at} of simulated time")]
    Interrupted {
        /// How far the run was.
        at: SimTime,
    },
}

/// Runs one simulation. `make` builds one engine for each replica of a pool; `progress` is called
/// every few thousand events and may ask to stop.
///
/// # Errors
/// When an engine cannot be built, traffic cannot be drawn, the configuration would never let time
/// pass or lets it run past the clock, or `progress` asked to stop.
pub fn run<R, Rec, E>(
    config: &SimConfig,
    make: impl Fn(&PoolConfig) -> Result<R, E>,
    load: Load,
    recorder: &mut Rec,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<RunResult, SimError<E>>
where
    R: Replica,
    Rec: Recorder,
    E: Error + 'static,
{
    if config.sample_every == Some(Span::ZERO) {
        return Err(SimError::ZeroInterval { key: "sample_every" });
    }
    if config.router.reads_signals() && config.scrape_every == Span::ZERO {
        return Err(SimError::ZeroInterval { key: "scrape_every" });
    }
    let counts = replica_counts(config)?;
    let mut replicas = Vec::new();
    for (pool, &count) in config.pools.iter().zip(&counts) {
        for _ in 0..count {
            let built = make(pool);
            replicas.push(
                built.map_err(|source| SimError::Engine { pool: pool.name.clone(), source })?,
            );
        }
    }
    let lengths = config.pools.iter().map(|pool| pool.engine.max_model_len);
    let fleet = FleetShape::new(counts.into_iter().zip(lengths));
    let router = Router::new(&config.router, fleet, config.seed);
    let traffic = Traffic::new(load, config.horizon)?;
    Simulation::new(config, replicas, router, traffic, recorder).run(progress)
}

/// Replicas of each pool.
fn replica_counts<E: Error + 'static>(config: &SimConfig) -> Result<Vec<u32>, SimError<E>> {
    let count =
        |pool: &PoolConfig| u64::from(pool.instances) * u64::from(pool.replicas_per_instance);
    let total = config.pools.iter().map(count).fold(0, u64::saturating_add);
    if total == 0 {
        return Err(SimError::NoReplicas);
    }
    if total > u64::from(REPLICAS_MAX) {
        return Err(SimError::TooManyReplicas { replicas: total, max: REPLICAS_MAX });
    }
    Ok(config.pools.iter().map(|pool| count(pool) as u32).collect())
}
