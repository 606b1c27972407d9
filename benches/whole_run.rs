//! Cost of a whole simulation: speed workload W1 (10,000 requests on one replica) with the prefix
//! cache off and on, reading its trace included.

use std::ops::ControlFlow;
use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fleetcast::engine::fast::FastReplica;
use fleetcast::scenario::{self, Scenario};
use fleetcast::sim::config::PoolConfig;
use fleetcast::sim::result::{NoRecorder, RunResult};
use fleetcast::workload::open_load;

const REQUESTS: u64 = 10_000;

fn w1(caching: &str) -> Scenario {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/scenarios/w1.toml");
    let set = [("pool.0.engine.enable_prefix_caching".to_owned(), caching.to_owned())];
    scenario::load(&path, &set).expect("the shipped scenario is sound")
}

fn run(scenario: &Scenario) -> RunResult {
    let config = &scenario.config;
    let load = open_load(&scenario.traffic, config.seed).expect("the trace is there");
    let make = |pool: &PoolConfig| FastReplica::new(pool.engine.clone(), pool.step_time.clone());
    fleetcast::sim::run(config, make, load, &mut NoRecorder, &mut |_| ControlFlow::Continue(()))
        .expect("the run ends")
}

fn whole_run(c: &mut Criterion) {
    let mut group = c.benchmark_group("w1");
    group.throughput(Throughput::Elements(REQUESTS)).sample_size(20);
    for (name, caching) in [("caching_off", "false"), ("caching_on", "true")] {
        let scenario = w1(caching);
        assert_eq!(run(&scenario).counts.completed, REQUESTS);
        group.bench_function(name, |b| b.iter(|| run(&scenario)));
    }
    group.finish();
}

criterion_group!(benches, whole_run);
criterion_main!(benches);
