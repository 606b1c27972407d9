//! The measured window: which time rates refer to, for every way in which traffic can end, with a
//! fleet that needs far longer than the traffic lasts; and the busy time within it.

use crate::servers::{self, Service, body, fleet, pool, run};
use fleetcast::engine::fast::FastReplica;
use fleetcast::engine::record::TraceDetail;
use fleetcast::engine::reference::ReferenceReplica;
use fleetcast::engine::replica::Replica;
use fleetcast::latency::StepTimeModel;
use fleetcast::sim;
use fleetcast::sim::config::{PoolConfig, SimConfig};
use fleetcast::sim::result::{NoRecorder, RunResult};
use fleetcast::units::{Fix, SimTime, Span};
use fleetcast::workload::spec::{ArrivalSpec, BodySpec, LengthSpec, TraceSpec, TrafficSpec};
use fleetcast::workload::{Arrival, Load, open_load};
use std::ops::ControlFlow;
use std::path::PathBuf;

fn s(seconds: u64) -> SimTime {
    SimTime::from_micros(seconds * 1_000_000)
}

fn bodies() -> BodySpec {
    let fixed = LengthSpec::Fixed(1);
    BodySpec { input_tokens: fixed.clone(), output_tokens: fixed, shared_prefix: None }
}

fn open(arrivals: ArrivalSpec, requests: Option<u64>) -> TrafficSpec {
    TrafficSpec::Open { arrivals, requests, bodies: bodies() }
}

/// Two windows of a second, the last of them empty when `tail` is 0.
fn curve(tail: f64) -> ArrivalSpec {
    let window = Span::from_micros(1_000_000);
    ArrivalSpec::RateCurve { window, rates_rps: vec![100.0, tail], scale: 1.0, repeat: false }
}

fn closed(requests: u64) -> TrafficSpec {
    TrafficSpec::Closed { concurrency: 2, requests, think: Span::ZERO, bodies: bodies() }
}

/// Three requests in 1.250001 s.
fn trace(limit: Option<u64>) -> TrafficSpec {
    let path: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "tests/fixtures/traces/vidur.csv"].iter().collect();
    TrafficSpec::Trace(TraceSpec { path, format: None, hash_block_size: None, speedup: 1.0, limit })
}

/// One server that takes a second for each request.
fn overloaded(traffic: &TrafficSpec, horizon: Option<u64>) -> RunResult {
    let config = SimConfig { horizon: horizon.map(s), ..fleet(vec![pool(1, 1000)]) };
    let load = open_load(traffic, 3).unwrap();
    let service = Service::fixed(Span::from_micros(1_000_000));
    run(&config, &service, load, &mut NoRecorder).unwrap()
}

#[test]
fn a_horizon_ends_the_window_whether_or_not_it_cuts_anything_off() {
    let poisson = ArrivalSpec::Poisson { rate_rps: 100.0 };
    for (what, traffic, horizon) in [
        ("a rate that goes on", open(poisson.clone(), None), 2),
        ("a count that is not reached", open(poisson, Some(1_000_000)), 2),
        ("a curve that ends with it", open(curve(100.0), None), 2),
        ("a curve that ends before it", open(curve(100.0), None), 9),
        ("a curve that ends after it", open(curve(100.0), None), 1),
        ("an empty last window", open(curve(0.0), None), 2),
        ("a trace that ends before it", trace(None), 2),
        ("a trace that ends after it", trace(None), 1),
        ("a closed loop that goes on", closed(1_000), 3),
    ] {
        let result = overloaded(&traffic, Some(horizon));
        assert_eq!(result.measured_to, s(horizon), "{what}");
        assert!(result.counts.completed > 0 && result.counts.unfinished == 0, "{what}");
    }
}

#[test]
fn a_rate_curve_without_a_horizon_ends_the_window() {
    for tail in [100.0, 0.0] {
        let result = overloaded(&open(curve(tail), None), None);
        assert_eq!(result.measured_to, s(2));
        assert!(result.ended > s(60), "{}", result.ended);
    }
}

#[test]
fn a_number_of_requests_lasts_to_its_last_completion() {
    let poisson = ArrivalSpec::Poisson { rate_rps: 100.0 };
    for (what, traffic, horizon) in [
        ("a count", open(poisson.clone(), Some(5)), None),
        ("a count that comes before the horizon", open(poisson, Some(5)), Some(60)),
        ("a count within a curve", open(curve(100.0), Some(5)), Some(2)),
        ("a closed loop", closed(8), None),
        ("a closed loop that ends before the horizon", closed(8), Some(60)),
        ("a trace", trace(None), None),
        ("the first rows of a trace", trace(Some(2)), Some(60)),
    ] {
        let result = overloaded(&traffic, horizon);
        assert_eq!(result.measured_to, result.ended, "{what}");
        assert!(result.counts.completed > 1 && result.counts.unfinished == 0, "{what}");
    }
}

#[test]
fn the_drain_limit_counts_from_the_end_of_the_window() {
    let stopped = |traffic: &TrafficSpec, horizon: Option<u64>| {
        let config = SimConfig {
            horizon: horizon.map(s),
            drain_limit: Some(Span::from_micros(3_000_000)),
            ..fleet(vec![pool(1, 1000)])
        };
        let load = open_load(traffic, 3).unwrap();
        let service = Service::fixed(Span::from_micros(1_000_000));
        run(&config, &service, load, &mut NoRecorder).unwrap().ended
    };
    assert_eq!(stopped(&open(curve(100.0), None), Some(2)), s(5));
    assert_eq!(stopped(&open(curve(100.0), None), None), s(5));
    assert_eq!(stopped(&open(curve(0.0), None), Some(7)), s(10));
}

/// Four requests at the start of a run that stops 7.5 s later, in the middle of a step.
fn cut_short() -> (SimConfig, Load) {
    let config =
        SimConfig { drain_limit: Some(Span::from_micros(7_500_000)), ..fleet(vec![pool(1, 1000)]) };
    let arrivals = (0..4).map(|id| Arrival { at: SimTime::ZERO, body: body(id, 10, 50) });
    (config, servers::open(arrivals))
}

#[test]
fn a_step_that_the_end_of_the_run_cuts_short_is_busy_up_to_there() {
    let (config, load) = cut_short();
    let service = Service::fixed(Span::from_micros(2_000_000));
    let result = run(&config, &service, load, &mut NoRecorder).unwrap();
    assert_eq!(result.ended, SimTime::from_micros(7_500_000));
    assert_eq!(result.pools[0].busy, Fix::from_time(result.ended));
}

fn busy<R: Replica>(asynchronous: bool, make: impl Fn(&PoolConfig) -> R) -> Fix {
    let (mut config, load) = cut_short();
    let pool = &mut config.pools[0];
    pool.engine.async_scheduling = asynchronous;
    let second = Span::from_micros(1_000_000);
    pool.step_time = StepTimeModel::affine(second, Span::ZERO, Span::ZERO).unwrap();
    let make = |pool: &PoolConfig| Ok::<_, std::convert::Infallible>(make(pool));
    let mut go_on = |_: &sim::Progress| ControlFlow::Continue(());
    let result = sim::run(&config, make, load, &mut NoRecorder, &mut go_on).unwrap();
    assert_eq!((result.counts.unfinished, result.pools[0].engine.busy), (4, result.pools[0].busy));
    result.pools[0].busy
}

#[test]
fn both_engines_are_busy_to_the_end_and_no_longer() {
    let expected = Fix::from_time(SimTime::from_micros(7_500_000));
    for asynchronous in [false, true] {
        let fast =
            |pool: &PoolConfig| FastReplica::new(pool.engine.clone(), pool.step_time.clone());
        assert_eq!(busy(asynchronous, |pool| fast(pool).unwrap()), expected);
        let reference = |pool: &PoolConfig| {
            let (engine, time) = (pool.engine.clone(), pool.step_time.clone());
            ReferenceReplica::new(engine, time, TraceDetail::Off).unwrap()
        };
        assert_eq!(busy(asynchronous, reference), expected);
    }
}
