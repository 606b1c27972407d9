//! Independent replications of one simulation: the same configuration, each with a seed of its own.

use crate::kernel::rng::{Cause, Stream};

/// Seed of replication `number` (from 0) of a scenario with `seed`. The first is the scenario's
/// own, so that one replication and the first of many are the same run; the others are drawn from
/// a stream of their number, so that more replications never change those before.
#[must_use]
pub fn seed_of(seed: u64, number: u32) -> u64 {
    match number {
        0 => seed,
        number => Stream::new(seed, Cause::Replications, u64::from(number)).u64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_replication_has_its_own_seed_and_the_first_that_of_the_scenario() {
        let seeds: BTreeSet<u64> =
            (1..4).flat_map(|seed| (0..1000).map(move |n| seed_of(seed, n))).collect();
        assert_eq!(seeds.len(), 3000);
        assert_eq!(seed_of(7, 0), 7);
    }

    #[test]
    fn published_seeds_do_not_change() {
        assert_eq!(seed_of(1, 1), 2390979381351277827);
    }
}
