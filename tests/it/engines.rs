//! The fast engine against the reference on random scenarios: identical records, totals, token
//! gaps and observed states, bit for bit, wherever a run is sampled or stopped.

use fleetcast::engine::config::{EngineConfig, KvGroup, SchedulingPolicy, VersionProfile};
use fleetcast::engine::fast::{FastReplica, Merging};
use fleetcast::engine::record::{EngineRecord, EngineTotals, ReplicaState, TraceDetail};
use fleetcast::engine::reference::ReferenceReplica;
use fleetcast::engine::replica::{EngineSink, Replica, WakeKind};
use fleetcast::engine::request::{EngineRequest, Prompt, RequestId, Segment, StreamId};
use fleetcast::latency::{Coefficients, StepTimeModel, TablePoint};
use fleetcast::metrics::LatencyHistogram;
use fleetcast::units::{Fix, SimTime, Span};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// When a request comes.
#[derive(Debug, Clone, Copy)]
enum Comes {
    At(SimTime),
    /// After the end of an earlier request.
    After(usize, Span),
}

#[derive(Debug, Clone)]
struct Client {
    comes: Comes,
    segments: Vec<Segment>,
    out: u32,
    priority: i32,
    skip_cache: bool,
    abort_after: Option<Span>,
    measured: bool,
}

#[derive(Debug, Clone)]
struct Scene {
    config: EngineConfig,
    step_time: StepTimeModel,
    clients: Vec<Client>,
    sample_every: Span,
    /// The run is stopped here, finished or not.
    stop: SimTime,
}

/// Everything a caller can see of a run.
#[derive(Debug, PartialEq)]
struct Seen {
    records: Vec<EngineRecord>,
    totals: EngineTotals,
    busy_after: Fix,
    gaps: LatencyHistogram,
    samples: Vec<ReplicaState>,
    stalled: Vec<RequestId>,
    in_flight: u32,
}

#[derive(Default)]
struct Sink {
    records: Vec<EngineRecord>,
    gaps: LatencyHistogram,
}

impl EngineSink for Sink {
    fn finished(&mut self, record: EngineRecord) {
        self.records.push(record);
    }

    fn inter_token(&mut self, members: u32, first: Fix, increment: Fix, steps: u64) {
        self.gaps.record_progression(first, increment, steps, u64::from(members));
    }
}

/// Events at one instant, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Abort(usize),
    Output,
    Arrival(usize),
    Schedule,
    Sample,
}

fn play<R: Replica>(scene: &Scene, mut replica: R) -> Seen {
    let mut sink = Sink::default();
    let mut pending: BTreeSet<(SimTime, Event)> = BTreeSet::new();
    pending.insert((SimTime::ZERO + scene.sample_every, Event::Sample));
    for (i, client) in scene.clients.iter().enumerate() {
        if let Comes::At(at) = client.comes {
            pending.insert((at, Event::Arrival(i)));
        }
    }
    let mut samples = Vec::new();
    let mut told = 0;
    let mut wakes = 0;
    loop {
        let wake = replica.next_wake().map(|w| match w.kind {
            WakeKind::Output => (w.at, Event::Output),
            WakeKind::Schedule => (w.at, Event::Schedule),
        });
        let next = pending.first().copied().into_iter().chain(wake).min();
        let Some((now, event)) = next.filter(|&(at, _)| at <= scene.stop) else { break };
        if Some((now, event)) == wake {
            wakes += 1;
            assert!(wakes < 2_000_000, "no progress");
            replica.wake(now, &mut sink);
        } else {
            pending.pop_first();
            match event {
                Event::Abort(i) => replica.abort(now, RequestId(i as u64), &mut sink),
                Event::Arrival(i) => {
                    let client = &scene.clients[i];
                    if let Some(after) = client.abort_after {
                        pending.insert((now + after, Event::Abort(i)));
                    }
                    let request = EngineRequest {
                        id: RequestId(i as u64),
                        arrival: now,
                        priority: client.priority,
                        prompt: Prompt::from_segments(client.segments.iter().copied()),
                        max_tokens: client.out,
                        skip_cache: client.skip_cache,
                        measured: client.measured,
                    };
                    replica.enqueue(now, request, &mut sink);
                }
                Event::Sample => {
                    samples.push(replica.observe(now));
                    pending.insert((now + scene.sample_every, Event::Sample));
                }
                Event::Output | Event::Schedule => unreachable!("the replica's own"),
            }
        }
        for record in &sink.records[told..] {
            for (i, client) in scene.clients.iter().enumerate() {
                if let Comes::After(first, delay) = client.comes
                    && RequestId(first as u64) == record.id
                {
                    pending.insert((record.finished + delay, Event::Arrival(i)));
                }
            }
        }
        told = sink.records.len();
    }
    replica.settle(scene.stop, &mut sink);
    Seen {
        records: sink.records,
        totals: replica.totals(),
        busy_after: replica.busy_after(scene.stop),
        gaps: sink.gaps,
        samples,
        stalled: replica.stalled(),
        in_flight: replica.in_flight(),
    }
}

fn check(scene: &Scene) -> Result<(), TestCaseError> {
    let (config, time) = (scene.config.clone(), scene.step_time.clone());
    let reference = ReferenceReplica::new(config.clone(), time.clone(), TraceDetail::Off);
    let expected = play(scene, reference.unwrap());
    for merging in [Merging::Never, Merging::Stretches] {
        let fast =
            FastReplica::with(config.clone(), time.clone(), TraceDetail::Off, merging).unwrap();
        let got = play(scene, fast);
        for (e, g) in expected.records.iter().zip(&got.records) {
            prop_assert_eq!(e, g, "{:?}", merging);
        }
        prop_assert_eq!(&expected.totals, &got.totals, "{:?}", merging);
        prop_assert_eq!(&expected.samples, &got.samples, "{:?}", merging);
        prop_assert_eq!(&expected, &got, "{:?}", merging);
    }
    // Conservation: whoever came has left or is inside, and an empty engine holds no block.
    let came = scene.clients.len() as u64;
    let inside = u64::from(expected.in_flight);
    prop_assert!(expected.records.len() as u64 + inside <= came);
    let busy_until_stop = expected.totals.busy.0 - expected.busy_after.0;
    prop_assert!(busy_until_stop <= Fix::from_time(scene.stop).0);
    let tokens: u64 = expected.records.iter().map(|r| u64::from(r.output_tokens)).sum();
    prop_assert!(tokens <= expected.totals.output_tokens);
    if inside == 0 {
        prop_assert_eq!(tokens, expected.totals.output_tokens);
    }
    Ok(())
}

prop_compose! {
    fn settings()(
        max_num_seqs in prop_oneof![1u32..4, 4u32..12],
        active in proptest::option::weighted(0.2, 1u32..8),
        budget in prop_oneof![1u32..12, 16u32..80, 100u32..600],
        scheduled in proptest::option::weighted(0.2, 1u32..200),
        block_size in prop_oneof![Just(16u32), Just(4u32), Just(5u32)],
        blocks in prop_oneof![4u32..20, 20u32..60, Just(400u32)],
        caching in any::<bool>(),
        chunked in prop_oneof![4 => Just(true), 1 => Just(false)],
        priority in prop_oneof![2 => Just(false), 1 => Just(true)],
        watermark in prop_oneof![3 => Just(0.0), 1 => Just(0.1), 1 => Just(0.3)],
        gate in prop_oneof![3 => Just(true), 1 => Just(false)],
        threshold in prop_oneof![2 => Just(0u32), 1 => 1u32..40],
        adaptive in any::<bool>(),
        asynchronous in any::<bool>(),
        longest in prop_oneof![40u32..100, Just(400u32)],
    ) -> EngineConfig {
        EngineConfig {
            version: VersionProfile::V0_32,
            max_num_seqs,
            max_num_active_seqs: active,
            max_num_batched_tokens: budget,
            max_num_scheduled_tokens: scheduled,
            max_model_len: longest,
            block_size,
            num_gpu_blocks: blocks,
            enable_prefix_caching: caching,
            enable_chunked_prefill: chunked,
            policy: if priority { SchedulingPolicy::Priority } else { SchedulingPolicy::Fcfs },
            watermark,
            scheduler_reserve_full_isl: gate,
            long_prefill_token_threshold: threshold,
            long_prefill_token_threshold_adaptive: adaptive,
            async_scheduling: asynchronous,
            prefix_cache_retention_interval: Some(0),
            kv_groups: vec![KvGroup::Full],
            speculation: None,
        }
    }
}

fn step_times() -> impl Strategy<Value = StepTimeModel> {
    let whole = (1u64..4, 0u64..2, 0u64..2).prop_map(|(base, token, seq)| {
        let us = |n| Span::from_micros(n * 500);
        StepTimeModel::affine(us(base), us(token), us(seq)).unwrap()
    });
    let real = (1e-4..6e-3, 0.0..5e-5, 0.0..4e-7, 0.0..1e-8).prop_map(|(fixed, token, kv, a)| {
        StepTimeModel::new(&Coefficients {
            fixed_s: fixed,
            tokens_table: vec![
                TablePoint { tokens: 1, seconds: 1e-4 },
                TablePoint { tokens: 9, seconds: 2.3e-4 },
                TablePoint { tokens: 400, seconds: 1e-3 },
            ],
            per_prefill_token_s: token,
            per_prefill_seq_s: 1.7e-5,
            per_decode_seq_s: 3.3e-6,
            per_kv_token_s: kv,
            per_prefill_attention_s: a,
            graph_sizes: vec![1, 2, 4, 8],
        })
        .unwrap()
    });
    prop_oneof![whole, real]
}

/// What a client is made of before lengths are cut to what the engine can take.
#[derive(Debug, Clone)]
struct Draft {
    at: u64,
    after: Option<(prop::sample::Index, u64)>,
    group: Option<(u64, u32)>,
    own: u32,
    quote: Option<(prop::sample::Index, u32)>,
    out: u32,
    priority: i32,
    skip_cache: bool,
    abort: Option<u64>,
    measured: bool,
}

prop_compose! {
    fn draft()(
        at in prop_oneof![Just(0u64), 0u64..120],
        after in proptest::option::weighted(0.2, (any::<prop::sample::Index>(), 0u64..4)),
        group in proptest::option::weighted(
            0.6, (0u64..3, prop_oneof![Just(16u32), Just(32), Just(48), 1u32..70])),
        own in prop_oneof![Just(0u32), 1u32..20, 20u32..120],
        quote in proptest::option::weighted(
            0.3, (any::<prop::sample::Index>(), prop_oneof![1u32..8, 8u32..40])),
        out in prop_oneof![Just(1u32), 2u32..8, 8u32..90],
        priority in 0i32..3,
        skip_cache in prop_oneof![7 => Just(false), 1 => Just(true)],
        abort in proptest::option::weighted(0.2, 0u64..80),
        measured in prop_oneof![5 => Just(true), 1 => Just(false)],
    ) -> Draft {
        Draft { at, after, group, own, quote, out, priority, skip_cache, abort, measured }
    }
}

/// Turns drafts into clients whose prompts fit `longest`.
fn clients(drafts: Vec<Draft>, longest: u32) -> Vec<Client> {
    let mut made: Vec<Client> = Vec::new();
    for (i, d) in drafts.into_iter().enumerate() {
        let mut segments = Vec::new();
        if let (Some((index, len)), true) = (&d.quote, i > 0) {
            // A later turn of an earlier request, or a prompt that quotes its output as it grows.
            let first = index.index(i);
            segments.extend(made[first].segments.iter().copied());
            let stream = StreamId::output(RequestId(first as u64));
            segments.push(Segment { stream, len: (*len).min(made[first].out) });
        } else if let Some((group, len)) = d.group {
            segments.push(Segment { stream: StreamId::shared(group), len });
        }
        let own = StreamId::own(RequestId(i as u64));
        segments.push(Segment { stream: own, len: d.own.max(u32::from(segments.is_empty())) });
        let mut left = longest - 1;
        for segment in &mut segments {
            segment.len = segment.len.min(left);
            left -= segment.len;
        }
        segments.retain(|s| s.len > 0);
        // A grid of half a millisecond, so that things coincide.
        let grid = |n: u64| n * 500;
        let comes = match d.after {
            Some((index, delay)) if i > 0 => {
                Comes::After(index.index(i), Span::from_micros(grid(delay)))
            }
            _ => Comes::At(SimTime::from_micros(grid(d.at))),
        };
        made.push(Client {
            comes,
            segments,
            out: d.out,
            priority: d.priority,
            skip_cache: d.skip_cache,
            abort_after: d.abort.map(|n| Span::from_micros(grid(n))),
            measured: d.measured,
        });
    }
    made
}

prop_compose! {
    fn scene()(
        config in settings(),
        step_time in step_times(),
        drafts in prop::collection::vec(draft(), 1..24),
        sample in prop_oneof![Just(1_000u64), 700u64..9_000],
        stop in prop_oneof![2 => Just(600_000_000u64), 1 => 2_000u64..200_000],
    ) -> Scene {
        let mut config = config;
        if !config.scheduler_reserve_full_isl {
            // Without the gate a request that outgrows the pool is preempted and readmitted for
            // ever; vLLM's start-up check forbids such a pool.
            let least = config.max_model_len.div_ceil(config.block_size) + 1;
            config.num_gpu_blocks = config.num_gpu_blocks.max(least);
        }
        let clients = clients(drafts, config.max_model_len);
        Scene {
            config,
            step_time,
            clients,
            sample_every: Span::from_micros(sample.max(stop / 400)),
            stop: SimTime::from_micros(stop),
        }
    }
}

proptest! {
    // `PROPTEST_CASES` asks for more.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(3_000),
        ..ProptestConfig::default()
    })]

    #[test]
    fn fast_equals_reference(scene in scene()) {
        check(&scene)?;
    }
}
