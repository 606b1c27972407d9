//! Each policy on a small fleet.

use super::*;
use crate::engine::record::ReplicaState;
use crate::engine::request::{Segment, StreamId};
use crate::signals::Snapshot;
use crate::units::SimTime;

/// A router with the signals it reads.
struct Bench {
    router: Router,
    signals: Signals,
    next: u64,
}

impl Bench {
    /// Pools of (replicas, longest sequence).
    fn new(config: RouterConfig, pools: &[(u32, u32)]) -> Self {
        let fleet = FleetShape::new(pools.iter().copied());
        let signals = Signals::new(fleet.replicas() as usize);
        Self { router: Router::new(&config, fleet, 7), signals, next: 0 }
    }

    fn send(&mut self, prompt: &Prompt) -> Option<u32> {
        let head = RequestHead { id: RequestId(self.next), prompt, priority: 0 };
        self.next += 1;
        self.router.route(&head, &self.signals)
    }

    fn send_len(&mut self, tokens: u32) -> Option<u32> {
        self.send(&Prompt::single(StreamId::own(RequestId(self.next)), tokens))
    }

    fn scraped(&mut self, replica: u32, waiting: u32, used_blocks: u32) {
        let state = ReplicaState { running: 0, waiting, used_blocks, usable_blocks: 100 };
        self.signals.publish(replica, Snapshot { taken: SimTime(1), state });
    }
}

const PREFIX_AWARE: RouterConfig = RouterConfig::PrefixAware { prefix_tokens: 100, spill_over: 3 };
const KV_AWARE: RouterConfig =
    RouterConfig::KvAware { prefix_weight: 2.0, usage_weight: 1.0, queue_weight: 1.0 };

fn policies() -> [RouterConfig; 5] {
    [
        RouterConfig::Random,
        RouterConfig::RoundRobin,
        RouterConfig::LeastOutstandingRequests,
        PREFIX_AWARE,
        KV_AWARE,
    ]
}

fn prompt(parts: &[(u64, u32)]) -> Prompt {
    let segment = |&(n, len)| Segment { stream: StreamId::shared(n), len };
    Prompt::from_segments(parts.iter().map(segment))
}

#[test]
fn every_policy_passes_over_pools_that_cannot_take_the_prompt() {
    for config in policies() {
        let mut bench = Bench::new(config.clone(), &[(2, 100), (0, 4000), (3, 1000)]);
        let mut seen = [false; 5];
        for _ in 0..200 {
            let small = bench.send_len(99).expect("all take it");
            seen[small as usize] = true;
            let large = bench.send_len(100).expect("the last pool takes it");
            assert!((2..5).contains(&large), "{config:?} sent a long prompt to {large}");
        }
        assert!(seen[2..].contains(&true), "{config:?}");
        assert_eq!(bench.send_len(1000), None, "{config:?} leaves no room for a token");
    }
}

#[test]
fn every_policy_serves_a_fleet_of_one() {
    for config in policies() {
        let mut bench = Bench::new(config, &[(1, 1000)]);
        assert_eq!((0..5).map(|_| bench.send_len(10)).collect::<Vec<_>>(), [Some(0); 5]);
    }
}

#[test]
fn only_kv_aware_routing_reads_signals() {
    let reading = policies().map(|config| config.reads_signals());
    assert_eq!(reading, [false, false, false, false, true]);
}

#[test]
fn random_routing_is_even_and_repeats() {
    let draw = || {
        let mut bench = Bench::new(RouterConfig::Random, &[(3, 1000), (5, 1000)]);
        (0..8_000).map(|_| bench.send_len(10).unwrap()).collect::<Vec<_>>()
    };
    let sent = draw();
    for replica in 0..8 {
        let count = sent.iter().filter(|&&r| r == replica).count();
        // Six standard deviations of a binomial (8000, 1/8).
        assert!(count.abs_diff(1000) < 178, "replica {replica} got {count} of 8000");
    }
    assert_eq!(sent, draw());
}

#[test]
fn round_robin_takes_turns_over_all_pools() {
    let mut bench = Bench::new(RouterConfig::RoundRobin, &[(2, 100), (2, 1000)]);
    let lengths = [10, 10, 10, 10, 10, 500, 10, 500, 500, 10];
    let sent = lengths.map(|tokens| bench.send_len(tokens).unwrap());
    assert_eq!(sent, [0, 1, 2, 3, 0, 2, 3, 2, 3, 0]);
}

#[test]
fn least_outstanding_requests_takes_the_first_of_equals() {
    let mut bench = Bench::new(RouterConfig::LeastOutstandingRequests, &[(2, 100), (2, 1000)]);
    let mut send = |tokens| bench.send_len(tokens).unwrap();
    assert_eq!([send(10), send(10), send(10), send(10), send(500)], [0, 1, 2, 3, 2]);
    bench.router.ended(3);
    bench.router.ended(1);
    let mut send = |tokens| bench.send_len(tokens).unwrap();
    assert_eq!([send(10), send(10), send(10)], [1, 3, 0]);
}

#[test]
fn equal_openings_stick_to_one_replica_until_it_is_full() {
    let mut bench = Bench::new(PREFIX_AWARE, &[(4, 10_000)]);
    let home = bench.send(&prompt(&[(1, 60), (2, 60)])).unwrap();
    // The first 100 tokens are the same; what follows does not matter.
    assert_eq!(bench.send(&prompt(&[(1, 60), (2, 40)])), Some(home));
    assert_eq!(bench.send(&prompt(&[(1, 60), (2, 40), (9, 500)])), Some(home));
    // Three in flight: the next ones spill to the least loaded, in order.
    let mut others = (0..4).filter(|&replica| replica != home);
    assert_eq!(bench.send(&prompt(&[(1, 60), (2, 60)])), others.next());
    assert_eq!(bench.send(&prompt(&[(1, 60), (2, 60)])), others.next());
    bench.router.ended(home);
    assert_eq!(bench.send(&prompt(&[(1, 60), (2, 60)])), Some(home));
}

#[test]
fn openings_spread_evenly_and_few_move_when_the_fleet_grows() {
    let home = |replicas| {
        let mut bench = Bench::new(PREFIX_AWARE, &[(replicas, 10_000)]);
        let mut sent = Vec::new();
        for n in 0..8_000 {
            let replica = bench.send(&prompt(&[(n, 200)])).unwrap();
            bench.router.ended(replica);
            sent.push(replica);
        }
        sent
    };
    let (eight, nine) = (home(8), home(9));
    for replica in 0..8 {
        let count = eight.iter().filter(|&&r| r == replica).count();
        assert!(count.abs_diff(1000) < 178, "replica {replica} is home of {count} of 8000");
    }
    for (before, after) in eight.iter().zip(&nine) {
        assert!(before == after || *after == 8, "an opening moved between old replicas");
    }
}

#[test]
fn kv_aware_routing_goes_by_outstanding_requests_before_the_first_scrape() {
    let mut bench = Bench::new(KV_AWARE, &[(3, 10_000)]);
    let sent = [(); 6].map(|()| bench.send_len(10).unwrap());
    assert_eq!(sent, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn kv_aware_routing_weighs_prefix_usage_and_queue() {
    let mut bench = Bench::new(KV_AWARE, &[(3, 10_000)]);
    bench.scraped(0, 0, 50);
    bench.scraped(1, 0, 20);
    bench.scraped(2, 0, 30);
    assert_eq!(bench.send(&prompt(&[(1, 100)])), Some(1), "the emptiest cache");
    bench.scraped(1, 10, 20);
    assert_eq!(bench.send(&prompt(&[(2, 100)])), Some(2), "no queue");
    // Hit 2.0 − usage 0.2 − queue 1.0 = 0.8 beats −0.3 and −0.5.
    assert_eq!(bench.send(&prompt(&[(1, 100)])), Some(1), "a whole prefix outweighs a queue");
    // Half a hit: 1.0 − 0.2 − 1.0 = −0.2 beats −0.3 of replica 2; a third does not.
    assert_eq!(bench.send(&prompt(&[(1, 100), (5, 100)])), Some(1));
    assert_eq!(bench.send(&prompt(&[(1, 100), (6, 200)])), Some(2));
}
