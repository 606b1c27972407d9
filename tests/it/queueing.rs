//! The loop, the routers and the counting against formulas of queueing theory, at fixed seeds.

use crate::servers::{Kept, Service, body, fleet, open, pool, run};
use fleetcast::router::RouterConfig;
use fleetcast::sim::config::SimConfig;
use fleetcast::sim::result::{NoRecorder, RunResult};
use fleetcast::units::{SimTime, Span};
use fleetcast::workload::{Arrival, Load};

const REQUESTS: u64 = 200_000;
/// Mean service time in microseconds; a prompt token stands for one.
const SERVICE_US: f64 = 10_000.0;

/// Uniform draws in (0, 1] (SplitMix64).
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64 + f64::EPSILON / 2.0
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -self.next().ln() * mean
    }
}

/// Poisson arrivals that keep `servers` servers busy at share `rho`, of exponential sizes.
fn poisson(rho: f64, servers: f64, seed: u64) -> Load {
    let mut draws = Draws(seed);
    let mut clock_us = 0.0;
    open((0..REQUESTS).map(move |id| {
        clock_us += draws.exponential(SERVICE_US / (rho * servers));
        let size = draws.exponential(SERVICE_US).ceil() as u32;
        Arrival { at: SimTime::from_micros(clock_us as u64), body: body(id, size, 1) }
    }))
}

fn exponential_servers(servers: u32) -> Service {
    Service { servers, ..Service::per_prompt_token(Span::from_micros(1)) }
}

fn config(replicas: u32, router: RouterConfig) -> SimConfig {
    SimConfig { router, ..fleet(vec![pool(replicas, u32::MAX)]) }
}

fn mean_e2e_us(result: &RunResult) -> f64 {
    result.pools[0].latency.e2e.mean_s().expect("requests completed") * 1e6
}

#[track_caller]
fn check(what: &str, seen: f64, expected: f64, tolerance: f64) {
    let error = (seen / expected - 1.0).abs();
    assert!(error < tolerance, "{what}: {seen}, expected {expected} to within {tolerance}");
}

#[test]
fn one_exponential_server_is_m_m_1() {
    for (rho, seed) in [(0.3, 1), (0.7, 2)] {
        let config = config(1, RouterConfig::RoundRobin);
        let service = exponential_servers(1);
        let result = run(&config, &service, poisson(rho, 1.0, seed), &mut NoRecorder).unwrap();
        check("sojourn", mean_e2e_us(&result), SERVICE_US / (1.0 - rho), 0.03);
        // The sojourn is exponential too.
        let p99 = result.pools[0].latency.e2e.percentile_s(0.99).unwrap() * 1e6;
        check("p99", p99, 100f64.ln() * SERVICE_US / (1.0 - rho), 0.04);
        let busy = result.pools[0].busy.floor().seconds() / result.ended.seconds();
        check("utilisation", busy, rho, 0.02);
    }
}

#[test]
fn one_constant_server_is_m_d_1() {
    let rho = 0.7;
    let service = Service::fixed(Span::from_micros(SERVICE_US as u64));
    let config = config(1, RouterConfig::RoundRobin);
    let result = run(&config, &service, poisson(rho, 1.0, 3), &mut NoRecorder).unwrap();
    let queue = result.pools[0].breakdown.queue.mean_s().unwrap() * 1e6;
    check("queue", queue, rho * SERVICE_US / (2.0 * (1.0 - rho)), 0.03);
}

/// Mean wait of M/M/c over the mean service time.
fn erlang_c_wait(servers: u32, rho: f64) -> f64 {
    let c = f64::from(servers);
    let load = rho * c;
    let mut term = 1.0;
    let mut sum = 0.0;
    for k in 0..servers {
        sum += term;
        term *= load / f64::from(k + 1);
    }
    let busy = term / (1.0 - rho);
    busy / (sum + busy) / (c * (1.0 - rho))
}

#[test]
fn several_exponential_servers_are_m_m_c() {
    let (servers, rho) = (4, 0.8);
    let config = config(1, RouterConfig::RoundRobin);
    let load = poisson(rho, f64::from(servers), 4);
    let result = run(&config, &exponential_servers(servers), load, &mut NoRecorder).unwrap();
    let queue = result.pools[0].breakdown.queue.mean_s().unwrap() * 1e6;
    check("queue", queue, erlang_c_wait(servers, rho) * SERVICE_US, 0.04);
}

#[test]
fn routing_lies_between_separate_queues_and_one_queue() {
    let (replicas, rho) = (4, 0.8);
    let wait = |router| {
        let load = poisson(rho, f64::from(replicas), 5);
        let config = config(replicas, router);
        let result = run(&config, &exponential_servers(1), load, &mut NoRecorder).unwrap();
        result.pools[0].breakdown.queue.mean_s().unwrap() * 1e6 / SERVICE_US
    };
    let one_queue = erlang_c_wait(replicas, rho);
    let separate = rho / (1.0 - rho);
    // Random routing thins a Poisson stream into Poisson streams: M/M/1 each.
    check("random", wait(RouterConfig::Random), separate, 0.05);
    let turns = wait(RouterConfig::RoundRobin);
    let least = wait(RouterConfig::LeastOutstandingRequests);
    assert!(one_queue < least && least < turns && turns < separate, "{least} {turns}");
}

#[test]
fn littles_law_holds_between_samples_and_latencies() {
    let mut config = config(3, RouterConfig::LeastOutstandingRequests);
    config.sample_every = Some(Span::from_micros(7_919));
    config.pools[0].frontend_latency = Span::from_micros(500);
    let mut kept = Kept::default();
    let load = poisson(0.75, 3.0, 6);
    let result = run(&config, &exponential_servers(1), load, &mut kept).unwrap();
    let inside: u64 = kept.samples.iter().map(|row| row.running + row.waiting).sum();
    let mean_inside = inside as f64 / kept.samples.len() as f64;
    let rate = REQUESTS as f64 / (result.ended.seconds() * 1e6);
    // Samples see engines; requests in the frontend are not in them yet.
    check("requests inside", mean_inside, rate * (mean_e2e_us(&result) - 500.0), 0.02);
}
