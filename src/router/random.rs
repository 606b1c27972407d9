//! Random routing. Models SageMaker's default `RoutingStrategy` RANDOM: every replica alike,
//! whatever its load or size. Leaves out: nothing that its documentation states.

use super::RequestHead;
use super::fleet::FleetShape;
use crate::kernel::rng::{Cause, Stream};

/// Draws from a stream of its own, so that routing does not disturb the traffic.
#[derive(Debug, Clone)]
pub struct Random {
    stream: Stream,
}

impl Random {
    /// The router's stream in a run with `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { stream: Stream::new(seed, Cause::Router, 0) }
    }

    /// A replica at random of those that take the request.
    pub fn route(&mut self, fleet: &FleetShape, head: &RequestHead<'_>) -> Option<u32> {
        let tokens = head.prompt.len();
        let takers = fleet.pools().iter().filter(|pool| pool.takes(tokens));
        let choices: u32 = takers.clone().map(|pool| pool.replicas).sum();
        if choices == 0 {
            return None;
        }
        let mut chosen = self.stream.below(u64::from(choices)) as u32;
        for pool in takers {
            if chosen < pool.replicas {
                return Some(pool.first + chosen);
            }
            chosen -= pool.replicas;
        }
        None
    }
}
