//! Prefix-aware routing. Models SageMaker's PREFIX_AWARE strategy: requests whose prompts open
//! with the same text stick to one replica, until that has `ConcurrencyThreshold` requests in
//! flight; then the request goes to the least loaded one. The sticky replica is found by
//! rendezvous hashing (Thaler and Ravishankar 1998), so that replicas share prefixes evenly and a
//! change of the fleet moves few of them. Leaves out: SageMaker counts the prefix in bytes of the
//! body, here it is tokens of the prompt; how it picks the target it spills to is not documented.

use super::RequestHead;
use super::fleet::FleetShape;
use super::hash::{PrefixHash, mix};
use super::outstanding::Outstanding;
use crate::engine::request::{Prompt, Segment};

/// Parameters, as in [`super::RouterConfig::PrefixAware`].
#[derive(Debug, Clone)]
pub struct PrefixAware {
    prefix_tokens: u32,
    spill_over: u32,
    /// One salt a replica, so that a score takes one mix.
    salts: Vec<u64>,
}

impl PrefixAware {
    /// A policy for the replicas of `fleet`.
    #[must_use]
    pub fn new(fleet: &FleetShape, prefix_tokens: u32, spill_over: u32) -> Self {
        let salts = (0..fleet.replicas()).map(|replica| mix(u64::from(replica) + 1)).collect();
        Self { prefix_tokens, spill_over, salts }
    }

    /// The sticky replica, or the least loaded one when that is full.
    #[must_use]
    pub fn route(
        &self,
        fleet: &FleetShape,
        load: &Outstanding,
        head: &RequestHead<'_>,
    ) -> Option<u32> {
        let home = self.home(fleet, head)?;
        if load.count(home) < self.spill_over {
            return Some(home);
        }
        load.least(fleet, head.prompt.len())
    }

    /// The replica that the prompt's prefix hashes to.
    fn home(&self, fleet: &FleetShape, head: &RequestHead<'_>) -> Option<u32> {
        let prefix = opening(head.prompt, self.prefix_tokens).0;
        // `max_by_key` keeps the last of equals, so ties go to the larger number; they need a
        // collision of 64-bit hashes.
        fleet
            .eligible(head.prompt.len())
            .max_by_key(|&replica| mix(prefix ^ self.salts[replica as usize]))
    }
}

/// Hash of the first `tokens` tokens of `prompt`.
fn opening(prompt: &Prompt, tokens: u32) -> PrefixHash {
    let mut left = tokens;
    let mut hash = PrefixHash::EMPTY;
    for segment in prompt.segments() {
        let len = segment.len.min(left);
        if len == 0 {
            break;
        }
        hash = hash.then(Segment { stream: segment.stream, len });
        left -= len;
    }
    hash
}
