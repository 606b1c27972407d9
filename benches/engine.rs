//! Cost of one replica's work, of both engines: a step that admits, a stretch of decode, requests
//! that come and go in a running batch, and the prefix cache (a hit, an eviction, and the same
//! prompts without it).

use criterion::{Bencher, Criterion, Throughput, criterion_group, criterion_main};
use fleetcast::engine::config::{EngineConfig, KvGroup, SchedulingPolicy, VersionProfile};
use fleetcast::engine::fast::FastReplica;
use fleetcast::engine::record::{EngineRecord, TraceDetail};
use fleetcast::engine::reference::ReferenceReplica;
use fleetcast::engine::replica::{EngineSink, Replica};
use fleetcast::engine::request::{EngineRequest, Prompt, RequestId, Segment, StreamId};
use fleetcast::latency::{Coefficients, StepTimeModel};
use fleetcast::units::{Fix, SimTime};

/// Requests in the batch.
const BATCH: u64 = 64;
/// Tokens of a prefix that several prompts share: 64 blocks.
const PREFIX_TOKENS: u32 = 1024;
/// Different prefixes.
const PREFIXES: u64 = 8;

fn config(num_gpu_blocks: u32, enable_prefix_caching: bool) -> EngineConfig {
    EngineConfig {
        version: VersionProfile::V0_32,
        max_num_seqs: 256,
        max_num_active_seqs: None,
        max_num_batched_tokens: 8192,
        max_num_scheduled_tokens: None,
        max_model_len: 8192,
        block_size: 16,
        num_gpu_blocks,
        enable_prefix_caching,
        enable_chunked_prefill: true,
        policy: SchedulingPolicy::Fcfs,
        watermark: 0.0,
        scheduler_reserve_full_isl: true,
        long_prefill_token_threshold: 0,
        long_prefill_token_threshold_adaptive: false,
        async_scheduling: false,
        prefix_cache_retention_interval: Some(0),
        kv_groups: vec![KvGroup::Full],
        speculation: None,
    }
}

/// The step time of the speed workloads.
fn step_time() -> StepTimeModel {
    let coefficients = Coefficients {
        fixed_s: 6e-3,
        per_prefill_token_s: 16e-6,
        per_decode_seq_s: 10e-6,
        per_kv_token_s: 39e-9,
        ..Coefficients::default()
    };
    StepTimeModel::new(&coefficients).expect("coefficients are in range")
}

fn fast(config: EngineConfig) -> FastReplica {
    FastReplica::new(config, step_time()).expect("the configuration is sound")
}

fn reference(config: EngineConfig) -> ReferenceReplica {
    let trace = TraceDetail::Off;
    ReferenceReplica::new(config, step_time(), trace).expect("the configuration is sound")
}

/// Counts what ends.
#[derive(Default)]
struct Ended(u64);

impl EngineSink for Ended {
    fn finished(&mut self, _: EngineRecord) {
        self.0 += 1;
    }

    fn inter_token(&mut self, _: u32, _: Fix, _: Fix, _: u64) {}
}

/// A replica with a client that never runs out of requests.
struct Bench<R> {
    replica: R,
    now: SimTime,
    next_id: u64,
    ended: Ended,
}

impl<R: Replica> Bench<R> {
    fn new(replica: R) -> Self {
        Self { replica, now: SimTime::ZERO, next_id: 0, ended: Ended::default() }
    }

    fn send(&mut self, prompt: impl FnOnce(RequestId) -> Prompt, max_tokens: u32) {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let request = EngineRequest {
            id,
            arrival: self.now,
            priority: 0,
            prompt: prompt(id),
            max_tokens,
            skip_cache: false,
            measured: true,
        };
        self.replica.enqueue(self.now, request, &mut self.ended);
    }

    /// Runs until `ends` requests have ended in all.
    fn run_to(&mut self, ends: u64) {
        while self.ended.0 < ends {
            let wake = self.replica.next_wake().expect("a request is inside");
            self.now = wake.at;
            self.replica.wake(self.now, &mut self.ended);
        }
    }

    /// `requests` arrive at once and run until they are gone.
    fn wave(&mut self, requests: u64, prompt: impl Fn(RequestId) -> Prompt, max_tokens: u32) {
        for _ in 0..requests {
            self.send(&prompt, max_tokens);
        }
        self.run_to(self.next_id);
    }
}

fn own(tokens: u32) -> impl Fn(RequestId) -> Prompt {
    move |id| Prompt::single(StreamId::own(id), tokens)
}

/// A prompt that opens with one of a few prefixes.
fn shared(id: RequestId) -> Prompt {
    Prompt::from_segments([
        Segment { stream: StreamId::shared(id.0 % PREFIXES), len: PREFIX_TOKENS },
        Segment { stream: StreamId::own(id), len: 16 },
    ])
}

/// One step that admits the whole batch and ends it.
fn admission<R: Replica>(b: &mut Bencher<'_>, replica: R) {
    let mut bench = Bench::new(replica);
    b.iter(|| bench.wave(BATCH, own(128), 1));
}

/// The same and 255 steps of pure decode.
fn stretch<R: Replica>(b: &mut Bencher<'_>, replica: R) {
    let mut bench = Bench::new(replica);
    b.iter(|| bench.wave(BATCH, own(128), 256));
}

/// One request ends in a batch whose members are at different points, the next takes its place.
fn turnover<R: Replica>(b: &mut Bencher<'_>, replica: R) {
    let mut bench = Bench::new(replica);
    for place in 1..=BATCH {
        bench.send(own(1024), 4 * place as u32);
    }
    b.iter(|| {
        let before = bench.ended.0;
        bench.run_to(before + 1);
        for _ in before..bench.ended.0 {
            bench.send(own(1024), 256);
        }
    });
}

fn steps(c: &mut Criterion) {
    let config = || config(28_001, false);
    let mut group = c.benchmark_group("admission_of_64");
    group.throughput(Throughput::Elements(BATCH));
    group.bench_function("fast", |b| admission(b, fast(config())));
    group.bench_function("reference", |b| admission(b, reference(config())));
    group.finish();
    let mut group = c.benchmark_group("decode_of_64_for_255_steps");
    group.throughput(Throughput::Elements(BATCH));
    group.bench_function("fast", |b| stretch(b, fast(config())));
    group.bench_function("reference", |b| stretch(b, reference(config())));
    group.finish();
    let mut group = c.benchmark_group("turnover_in_a_batch_of_64");
    group.throughput(Throughput::Elements(1));
    group.bench_function("fast", |b| turnover(b, fast(config())));
    group.bench_function("reference", |b| turnover(b, reference(config())));
    group.finish();
}

fn prefix_cache(c: &mut Criterion) {
    let mut group = c.benchmark_group("prompt_of_1040");
    group.throughput(Throughput::Elements(1));
    let mut one_at_a_time = |name: &str, caching, prompt: fn(RequestId) -> Prompt, does| {
        group.bench_function(name, |b| {
            let mut bench = Bench::new(fast(config(4097, caching)));
            // Fills the pool, so that what is measured is the steady state.
            for _ in 0..32 {
                bench.wave(256, prompt, 1);
            }
            let before = bench.replica.totals();
            b.iter(|| bench.wave(1, prompt, 1));
            let after = bench.replica.totals();
            let seen = (
                after.prefix_hits > before.prefix_hits,
                after.evicted_blocks > before.evicted_blocks,
            );
            assert_eq!(seen, does, "{name}");
        });
    };
    let unshared: fn(RequestId) -> Prompt = |id| Prompt::single(StreamId::own(id), 1040);
    // What must be seen: hits, evictions.
    one_at_a_time("caching_off", false, unshared, (false, false));
    one_at_a_time("hit", true, shared, (true, true));
    one_at_a_time("eviction", true, unshared, (false, true));
    group.finish();
}

criterion_group!(benches, steps, prefix_cache);
criterion_main!(benches);
