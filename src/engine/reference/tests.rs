//! Tests of the reference engine as its caller sees it: wakes, aborts, records and totals. That
//! its decisions are vLLM's is tested against recorded schedules in the integration tests.

use super::*;
use crate::engine::config::{
    KvGroup, SchedulingPolicy, Speculation, SpeculativeMethod, VersionProfile,
};
use crate::engine::record::EngineRecord;
use crate::engine::request::{Prompt, StreamId};
use crate::latency::Coefficients;
use crate::units::{PS_PER_US, Span};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
struct Sink {
    ended: Vec<EngineRecord>,
    gaps: Vec<Fix>,
}

impl EngineSink for Sink {
    fn finished(&mut self, record: EngineRecord) {
        self.ended.push(record);
    }

    fn inter_token(&mut self, members: u32, first: Fix, increment: Fix, steps: u64) {
        for step in 0..steps {
            let gap = Fix(first.0 + increment.0 * u128::from(step));
            self.gaps.extend((0..members).map(|_| gap));
        }
    }
}

pub(super) fn config() -> EngineConfig {
    EngineConfig {
        version: VersionProfile::V0_32,
        max_num_seqs: 4,
        max_num_active_seqs: None,
        max_num_batched_tokens: 64,
        max_num_scheduled_tokens: None,
        max_model_len: 256,
        block_size: 16,
        num_gpu_blocks: 20,
        enable_prefix_caching: true,
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

/// Every step takes a millisecond.
fn replica(config: EngineConfig) -> ReferenceReplica {
    let millisecond = Span::from_micros(1000);
    let clock = StepTimeModel::affine(millisecond, Span::ZERO, Span::ZERO).unwrap();
    ReferenceReplica::new(config, clock, TraceDetail::Steps).unwrap()
}

fn ms(milliseconds: u64) -> SimTime {
    SimTime::from_micros(1000 * milliseconds)
}

fn request(id: u64, arrival: SimTime, prompt: u32, output: u32) -> EngineRequest {
    EngineRequest {
        id: RequestId(id),
        arrival,
        priority: 0,
        prompt: Prompt::single(StreamId::own(RequestId(id)), prompt),
        max_tokens: output,
        skip_cache: false,
        measured: true,
    }
}

/// Wakes the replica until nothing can change, or `until`.
fn run_until(replica: &mut ReferenceReplica, until: SimTime, sink: &mut Sink) {
    while let Some(wake) = replica.next_wake().filter(|wake| wake.at < until) {
        replica.wake(wake.at, sink);
        check_blocks(&replica.scheduler);
    }
}

/// Every block is free or held as often as tables say, and no table holds more of a window than
/// the whole-prompt gate reckons with, nor more states than two and one for a step in flight.
fn check_blocks(scheduler: &Scheduler) {
    let mut holders = BTreeMap::new();
    let in_flight = u32::from(scheduler.config().async_scheduling);
    for &id in scheduler.running() {
        let tables = scheduler.block_ids(id);
        for (group, table) in groups::Group::all(scheduler.config()).iter().zip(tables) {
            let held: Vec<u32> = table.into_iter().filter(|&id| id != 0).collect();
            let most = match group.kind {
                KvGroup::Full => u32::MAX,
                KvGroup::SlidingWindow { .. } => group.new_blocks_of_whole(0, u32::MAX),
                KvGroup::Mamba { align: false } => 1,
                KvGroup::Mamba { align: true } => 2 + in_flight,
            };
            assert!(held.len() as u32 <= most, "{:?} holds {held:?}", group.kind);
            for block in held {
                *holders.entry(blocks::BlockId(block)).or_insert(0) += 1;
            }
        }
    }
    scheduler.kv.pool.check(&holders);
}

fn run(replica: &mut ReferenceReplica, requests: &[EngineRequest]) -> Sink {
    let mut sink = Sink::default();
    for request in requests {
        run_until(replica, request.arrival, &mut sink);
        replica.enqueue(request.arrival, request.clone(), &mut sink);
    }
    run_until(replica, SimTime::MAX, &mut sink);
    sink.ended.sort_by_key(|record| record.id);
    sink
}

#[test]
fn output_and_schedule_call_are_separate_wakes_of_one_instant() {
    let mut replica = replica(config());
    let mut sink = Sink::default();
    assert_eq!(replica.next_wake(), None);
    replica.enqueue(ms(5), request(0, ms(5), 20, 2), &mut sink);
    let wake = |at, kind| Some(Wake { at, kind });
    assert_eq!(replica.next_wake(), wake(ms(5), WakeKind::Schedule));
    replica.wake(ms(5), &mut sink);
    assert_eq!(replica.next_wake(), wake(ms(6), WakeKind::Output));
    replica.wake(ms(6), &mut sink);
    assert_eq!(replica.next_wake(), wake(ms(6), WakeKind::Schedule));
    // Arrives between the two, and is seen by the call.
    replica.enqueue(ms(6), request(1, ms(6), 20, 1), &mut sink);
    replica.wake(ms(6), &mut sink);
    assert_eq!(replica.observe(ms(6)).running, 2);
}

#[test]
fn an_abort_waits_for_the_step_in_flight_and_comes_before_its_output() {
    let mut replica = replica(config());
    let mut sink = Sink::default();
    replica.enqueue(ms(0), request(0, ms(0), 20, 5), &mut sink);
    replica.wake(ms(0), &mut sink);
    replica.abort(SimTime(1), RequestId(0), &mut sink);
    replica.abort(SimTime(2), RequestId(99), &mut sink);
    assert!(sink.ended.is_empty());
    replica.wake(ms(1), &mut sink);
    let [record] = sink.ended.as_slice() else { panic!("{:?}", sink.ended) };
    assert_eq!((record.finished, record.reason), (ms(1), FinishReason::Abort));
    assert_eq!((record.output_tokens, record.first_token), (0, None));
    assert_eq!(replica.observe(ms(1)).used_blocks, 0);
}

#[test]
fn an_abort_on_an_idle_engine_acts_at_once_and_may_free_the_queue() {
    abort_a_stalled_request(false);
    abort_a_stalled_request(true);
}

fn abort_a_stalled_request(async_scheduling: bool) {
    // The first request outgrows the pool once running: it is preempted and never fits again.
    let mut replica = replica(EngineConfig { num_gpu_blocks: 6, async_scheduling, ..config() });
    let mut sink = Sink::default();
    replica.enqueue(ms(0), request(0, ms(0), 60, 40), &mut sink);
    replica.enqueue(ms(0), request(1, ms(0), 20, 8), &mut sink);
    run_until(&mut replica, SimTime::MAX, &mut sink);
    assert_eq!(replica.next_wake(), None);
    assert_eq!(replica.stalled(), [RequestId(0), RequestId(1)]);
    replica.abort(ms(500), RequestId(0), &mut sink);
    assert_eq!(sink.ended.pop().map(|record| record.finished), Some(ms(500)));
    assert_eq!(replica.next_wake().map(|wake| wake.at), Some(ms(500)));
    run_until(&mut replica, SimTime::MAX, &mut sink);
    assert_eq!(sink.ended.pop().map(|record| record.finished), Some(ms(508)));
    assert_eq!((replica.in_flight(), replica.stalled().len()), (0, 0));
}

#[test]
fn steps_without_a_gap_follow_at_the_exact_end_and_idle_engines_start_on_the_picosecond() {
    let coefficients = Coefficients { fixed_s: 0.4e-12, ..Coefficients::default() };
    let clock = StepTimeModel::new(&coefficients).unwrap();
    let step = clock.step(&StepShape { decode_seqs: 1, ..StepShape::default() });
    assert!(step.0 > 0 && step.floor() == SimTime(0));
    let mut replica = ReferenceReplica::new(config(), clock, TraceDetail::Steps).unwrap();
    let requests = [request(0, SimTime(0), 10, 10), request(1, SimTime(50), 10, 10)];
    let sink = run(&mut replica, &requests);
    // Ten steps of 0.4 ps end at 4 ps, not at 0.
    let ten = Fix(step.0 * 10).floor();
    assert!(ten >= SimTime(3));
    assert_eq!(sink.ended[0].finished, ten);
    assert_eq!(sink.ended[1].finished, SimTime(50 + ten.0));
    assert_eq!(sink.gaps, vec![step; 18]);
    assert_eq!(replica.totals().busy, Fix(step.0 * 20));
}

#[test]
fn async_scheduling_runs_the_next_step_without_a_gap_and_sees_arrivals_one_step_later() {
    let start = |async_scheduling| {
        let mut replica = replica(EngineConfig { async_scheduling, ..config() });
        let late = request(1, SimTime(ms(2).0 + 1), 20, 3);
        let sink = run(&mut replica, &[request(0, ms(0), 20, 6), late]);
        assert_eq!(sink.ended[0].finished, ms(6));
        (sink.ended[1].first_scheduled, sink.ended[1].first_token)
    };
    assert_eq!(start(false), (Some(ms(3)), Some(ms(4))));
    assert_eq!(start(true), (Some(ms(3)), Some(ms(5))));
}

#[test]
fn waiting_counts_as_kv_wait_only_while_the_head_lacks_blocks() {
    // 19 usable blocks. Requests 0 and 1 take 9 each; request 2 needs 5 and waits for them.
    let mut replica = replica(EngineConfig { max_num_batched_tokens: 512, ..config() });
    let requests = [
        request(0, ms(0), 140, 4),
        request(1, ms(0), 140, 4),
        request(2, SimTime(ms(1).0 + 7), 70, 4),
    ];
    let sink = run(&mut replica, &requests);
    let record = &sink.ended[2];
    assert_eq!(record.first_scheduled, Some(ms(4)));
    // The call at 2 ms is the first that finds it.
    assert_eq!(record.kv_wait, Span(2 * 1000 * PS_PER_US));

    // The same wait for a seat is no wait for blocks.
    let one_seat = EngineConfig { max_num_seqs: 1, ..config() };
    let mut replica = self::replica(one_seat);
    let sink = run(&mut replica, &[request(0, ms(0), 20, 4), request(1, ms(0), 20, 4)]);
    assert_eq!(sink.ended[1].first_scheduled, Some(ms(4)));
    assert_eq!(sink.ended[1].kv_wait, Span::ZERO);
}

#[test]
fn preempted_time_runs_from_the_call_to_the_next_token_after_resumption() {
    // 5 usable blocks: both prompts fit, their outputs do not.
    let small = EngineConfig { num_gpu_blocks: 6, ..config() };
    let mut replica = replica(small);
    let sink = run(&mut replica, &[request(0, ms(0), 30, 20), request(1, ms(0), 30, 20)]);
    let [first, second] = sink.ended.as_slice() else { panic!("{:?}", sink.ended) };
    assert_eq!((first.preemptions, second.preemptions), (0, 1));
    let preempted_at = replica.steps().iter().find(|step| !step.preempted.is_empty()).unwrap();
    let resumed = replica.steps().iter().find(|step| !step.resumed.is_empty()).unwrap();
    assert_eq!(second.preempted_before_first_token, Span::ZERO);
    assert_eq!(second.preempted_after_first_token, resumed.ended - preempted_at.called);
    assert_eq!(second.finished - second.first_token.unwrap(), {
        let lost = resumed.ended - preempted_at.called;
        // 19 gaps, one of which is the one that held the preemption.
        Span(18 * 1000 * PS_PER_US) + lost
    });
}

#[test]
fn a_first_token_that_was_under_way_at_the_preemption_splits_the_lost_time() {
    // 5 usable blocks. Request 1 is admitted at 1 ms; at 2 ms request 0 needs the block that it
    // holds, while its prefill runs.
    let small = EngineConfig { num_gpu_blocks: 6, async_scheduling: true, ..config() };
    let mut replica = replica(small);
    let sink = run(&mut replica, &[request(0, ms(0), 30, 6), request(1, ms(1), 48, 3)]);
    let [first, second] = sink.ended.as_slice() else { panic!("{:?}", sink.ended) };
    assert_eq!((first.finished, second.preemptions), (ms(6), 1));
    let preempted_at = replica.steps().iter().find(|step| !step.preempted.is_empty()).unwrap();
    let resumed = replica.steps().iter().find(|step| !step.resumed.is_empty()).unwrap();
    assert_eq!((preempted_at.called, second.first_token), (ms(2), Some(ms(3))));
    assert_eq!(second.preempted_before_first_token, ms(3) - ms(2));
    assert_eq!(second.preempted_after_first_token, resumed.ended - ms(3));
}

#[test]
fn settings_out_of_range_and_features_that_are_not_modelled_are_refused() {
    let refuse = |change: &dyn Fn(&mut EngineConfig)| {
        let mut config = config();
        change(&mut config);
        let clock = StepTimeModel::affine(Span::ZERO, Span::ZERO, Span::ZERO).unwrap();
        ReferenceReplica::new(config, clock, TraceDetail::Off).unwrap_err().to_string()
    };
    let range = "`block_size` is 0; expected 1 or more";
    assert_eq!(refuse(&|c| c.block_size = 0), range);
    assert!(refuse(&|c| c.max_num_active_seqs = Some(0)).contains("max_num_active_seqs"));
    assert!(refuse(&|c| c.num_gpu_blocks = 1).contains("2 or more"));
    assert!(refuse(&|c| c.watermark = f64::NAN).contains("`watermark` is NaN"));
    let speculation = Speculation { method: SpeculativeMethod::Eagle, k: 3 };
    assert!(refuse(&|c| c.speculation = Some(speculation)).contains("speculative decoding"));
    let groups = |groups: &[KvGroup], caching| {
        refuse(&|c| {
            c.kv_groups = groups.to_vec();
            c.enable_prefix_caching = caching;
        })
    };
    assert!(groups(&[], true).contains("`kv_groups` is empty; expected at least one"));
    let window = KvGroup::SlidingWindow { window: 0 };
    assert!(groups(&[KvGroup::Full, window], true).contains("a sliding window of 0 tokens"));
    let [none, align] = [false, true].map(|align| KvGroup::Mamba { align });
    assert!(groups(&[none], true).contains("expected Mamba align"));
    assert!(groups(&[KvGroup::Full, align], false).contains("expected Mamba none"));
    let whole_prompts = |c: &mut EngineConfig| {
        c.kv_groups = vec![align];
        c.enable_chunked_prefill = false;
    };
    assert!(refuse(&whole_prompts).contains("expected chunked prefill"));
    let interval = refuse(&|c| c.prefix_cache_retention_interval = Some(64));
    assert!(interval.contains("`prefix_cache_retention_interval` is 64"), "{interval}");
}

fn any_groups() -> impl Strategy<Value = Vec<KvGroup>> {
    let (full, state) = (KvGroup::Full, KvGroup::Mamba { align: true });
    let window = || (1..40u32).prop_map(|window| KvGroup::SlidingWindow { window });
    prop_oneof![
        Just(vec![full]),
        window().prop_map(|w| vec![w]),
        window().prop_map(move |w| vec![full, w]),
        (window(), window()).prop_map(move |(a, b)| vec![a, full, b, a]),
        Just(vec![full, state]),
        window().prop_map(move |w| vec![w, state, full]),
    ]
}

fn any_config() -> impl Strategy<Value = EngineConfig> {
    let sizes = (1..6u32, 8..80u32, 12..40u32, prop_oneof![Just(4u32), Just(16u32)]);
    let switches = prop::array::uniform6(any::<bool>());
    let rest = (prop_oneof![Just(0.0), Just(0.1)], prop_oneof![Just(0u32), Just(5), Just(32)]);
    let groups = (any_groups(), any::<bool>());
    (sizes, switches, rest, groups).prop_map(|(sizes, switches, rest, (mut kv_groups, dense))| {
        let (watermark, threshold) = rest;
        let (max_num_seqs, max_num_batched_tokens, num_gpu_blocks, block_size) = sizes;
        let [caching, mut chunked, priority, gate, adaptive, async_scheduling] = switches;
        for group in &mut kv_groups {
            if let KvGroup::Mamba { align } = group {
                *align = caching;
                chunked = true;
            }
        }
        EngineConfig {
            max_num_seqs,
            // Without chunks a resumed request must fit the budget as a whole.
            max_num_batched_tokens: max_num_batched_tokens + if chunked { 0 } else { 44 },
            num_gpu_blocks: num_gpu_blocks * kv_groups.len() as u32,
            block_size,
            prefix_cache_retention_interval: (!dense).then_some(0),
            kv_groups,
            enable_prefix_caching: caching,
            enable_chunked_prefill: chunked,
            policy: if priority { SchedulingPolicy::Priority } else { SchedulingPolicy::Fcfs },
            scheduler_reserve_full_isl: gate,
            long_prefill_token_threshold_adaptive: adaptive,
            async_scheduling,
            watermark,
            long_prefill_token_threshold: threshold,
            max_model_len: 4 * 11,
            ..config()
        }
    })
}

/// Prompts of at most 24 tokens and outputs of at most 16: no request outgrows the smallest pool
/// (11 blocks of 4 tokens in each group).
fn any_requests() -> impl Strategy<Value = Vec<EngineRequest>> {
    let one = (0..4000u64, 1..25u32, 1..17u32, 1..3u64, 0..3i32, any::<bool>());
    prop::collection::vec(one, 1..25).prop_map(|drawn| {
        let mut requests: Vec<EngineRequest> = drawn
            .into_iter()
            .map(|(at, prompt, output, stream, priority, skip_cache)| EngineRequest {
                priority,
                skip_cache,
                prompt: Prompt::single(StreamId::shared(stream), prompt),
                ..request(0, SimTime::from_micros(at), prompt, output)
            })
            .collect();
        requests.sort_by_key(|request| request.arrival);
        for (id, request) in requests.iter_mut().enumerate() {
            request.id = RequestId(id as u64);
        }
        requests
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn every_request_ends_once_with_all_its_tokens_and_leaves_no_block_behind(
        config in any_config(),
        requests in any_requests(),
    ) {
        let us = Span::from_micros;
        let clock = StepTimeModel::affine(us(100), us(3), us(2)).unwrap();
        let mut replica = ReferenceReplica::new(config, clock, TraceDetail::Steps).unwrap();
        let sink = run(&mut replica, &requests);
        prop_assert_eq!(replica.stalled(), Vec::new());
        prop_assert_eq!(sink.ended.len(), requests.len());
        let state = replica.observe(SimTime::MAX);
        prop_assert_eq!((state.running, state.waiting, state.used_blocks), (0, 0, 0));
        for (record, request) in sink.ended.iter().zip(&requests) {
            prop_assert_eq!(record.id, request.id);
            prop_assert_eq!(record.output_tokens, request.max_tokens);
            let first_scheduled = record.first_scheduled.unwrap();
            let first_token = record.first_token.unwrap();
            // Parts of a request's time lie within it.
            prop_assert!(record.kv_wait <= first_scheduled - record.enqueued);
            prop_assert!(record.preempted_before_first_token <= first_token - first_scheduled);
            prop_assert!(record.preempted_after_first_token <= record.finished - first_token);
        }
        let totals = replica.totals();
        let output: u64 = requests.iter().map(|r| u64::from(r.max_tokens)).sum();
        prop_assert_eq!(totals.output_tokens, output);
        prop_assert_eq!(sink.gaps.len() as u64, output - requests.len() as u64);
        let steps = replica.steps();
        prop_assert_eq!(totals.steps, steps.iter().filter(|s| s.tokens > 0).count() as u64);
        let preemptions: u64 = sink.ended.iter().map(|r| u64::from(r.preemptions)).sum();
        prop_assert_eq!(totals.preemptions, preemptions);
        for step in steps {
            let budget = replica.scheduler.config().token_budget();
            prop_assert!(step.tokens <= budget);
            prop_assert!(step.running <= replica.scheduler.config().max_running());
            prop_assert!(step.started >= step.called && step.ended >= step.started);
        }
    }
}
