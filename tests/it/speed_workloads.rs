//! The speed workloads of `benches/` give the figures that other simulators publish for them, and
//! both engines give the same run. Nothing here is about time.

use fleetcast::engine::config::EngineConfigError;
use fleetcast::engine::fast::FastReplica;
use fleetcast::engine::record::TraceDetail;
use fleetcast::engine::reference::ReferenceReplica;
use fleetcast::engine::replica::Replica;
use fleetcast::scenario::{self, Scenario};
use fleetcast::sim::config::PoolConfig;
use fleetcast::sim::result::{NoRecorder, RunResult};
use fleetcast::workload::open_load;
use std::ops::{ControlFlow, RangeInclusive};
use std::path::Path;

fn workload(name: &str, set: &[(&str, &str)]) -> Scenario {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/scenarios");
    let set: Vec<_> = set.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    match scenario::load(&folder.join(name).with_extension("toml"), &set) {
        Ok(scenario) => scenario,
        Err(problems) => panic!("{}", problems.render(false)),
    }
}

fn run<R: Replica>(
    scenario: &Scenario,
    make: impl Fn(&PoolConfig) -> Result<R, EngineConfigError>,
) -> RunResult {
    let config = &scenario.config;
    let load = open_load(&scenario.traffic, config.seed).unwrap();
    let mut go_on = |_: &_| ControlFlow::Continue(());
    fleetcast::sim::run(config, make, load, &mut NoRecorder, &mut go_on).unwrap()
}

fn run_fast(scenario: &Scenario) -> RunResult {
    run(scenario, |pool| FastReplica::new(pool.engine.clone(), pool.step_time.clone()))
}

fn run_reference(scenario: &Scenario) -> RunResult {
    run(scenario, |pool| {
        ReferenceReplica::new(pool.engine.clone(), pool.step_time.clone(), TraceDetail::Off)
    })
}

#[track_caller]
fn within(what: &str, seen: f64, band: RangeInclusive<f64>) {
    assert!(band.contains(&seen), "{what} is {seen}, expected {band:?}");
}

#[test]
fn w1_has_the_published_mean_steps_and_batch() {
    let result = run_fast(&workload("w1", &[]));
    assert_eq!((result.counts.arrived, result.counts.completed), (10_000, 10_000));
    let pool = &result.pools[0];
    // Published as 4.01 to 4.03, rounded.
    within("mean E2E", pool.latency.e2e.mean_s().unwrap(), 4.005..=4.035);
    within("steps", pool.engine.steps as f64, 33_060.0..=33_080.0);
    let mean_batch = pool.engine.batch_sum as f64 / pool.engine.steps as f64;
    within("mean batch", mean_batch, 76.5..=77.5);
    assert_eq!(pool.engine.preemptions, 0);
    assert_eq!(pool.engine.output_tokens, 10_000 * 256);
}

#[test]
fn w2_has_the_published_mean_and_steps() {
    let result = run_fast(&workload("w2", &[]));
    assert_eq!((result.counts.arrived, result.counts.completed), (100_000, 100_000));
    let pool = &result.pools[0];
    assert_eq!(pool.replicas, 16);
    within("mean E2E", pool.latency.e2e.mean_s().unwrap(), 3.9065..=3.9075);
    within("steps", pool.engine.steps as f64, 333_500.0..=334_500.0);
    assert_eq!(pool.engine.preemptions, 0);
}

#[test]
fn both_engines_run_the_first_requests_of_w1_alike() {
    for caching in ["false", "true"] {
        let set =
            [("traffic.trace.limit", "300"), ("pool.0.engine.enable_prefix_caching", caching)];
        let scenario = workload("w1", &set);
        let (fast, reference) = (run_fast(&scenario), run_reference(&scenario));
        assert_eq!(fast.counts.completed, 300);
        assert!(fast.events < reference.events, "stretches are merged");
        assert_eq!(fast, RunResult { events: fast.events, ..reference });
    }
}

#[test]
fn every_generated_workload_runs_to_its_end() {
    // The figures of these are nobody's; that they run and that nothing is lost is all there is.
    for (name, requests) in [
        ("startup", "traffic.constant.requests"),
        ("w1-generated", "traffic.poisson.requests"),
        ("fleet", "traffic.poisson.requests"),
        ("long-outputs", "traffic.poisson.requests"),
    ] {
        let result = run_fast(&workload(name, &[(requests, "320")]));
        assert_eq!(result.counts.completed, 320, "{name}");
        assert_eq!(result.pools[0].engine.preemptions, 0, "{name}");
    }
}
