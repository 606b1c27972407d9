//! Random routing. Models SageMaker's default `RoutingStrategy` RANDOM: every replica alike,
//! whatever its load or size. Leaves out: nothing that its documentation states.

use super::RequestHead;
use super::fleet::FleetShape;
use super::hash::mix;

/// Draws from a stream of its own, so that routing does not disturb the traffic.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A stream derived from the run's seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: mix(seed ^ 0x726f_7574_6572_0000) }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mix(self.state)) * u128::from(n)) >> 64) as u64
    }

    /// A replica at random of those that take the request.
    pub fn route(&mut self, fleet: &FleetShape, head: &RequestHead<'_>) -> Option<u32> {
        let tokens = head.prompt.len();
        let takers = fleet.pools().iter().filter(|pool| pool.takes(tokens));
        let choices: u32 = takers.clone().map(|pool| pool.replicas).sum();
        if choices == 0 {
            return None;
        }
        let mut chosen = self.below(u64::from(choices)) as u32;
        for pool in takers {
            if chosen < pool.replicas {
                return Some(pool.first + chosen);
            }
            chosen -= pool.replicas;
        }
        None
    }
}
