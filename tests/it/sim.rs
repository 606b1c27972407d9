//! The loop's promises: order, fates, ends, sameness, and the sums that must hold.

use crate::servers::{Kept, Log, Server, Service, body, closed, fleet, open, open_at, pool, run};
use fleetcast::router::RouterConfig;
use fleetcast::sim::config::{GoodputLimits, SimConfig};
use fleetcast::sim::result::{NoRecorder, RequestStatus, RunResult};
use fleetcast::sim::{self, SimError};
use fleetcast::units::{PS_PER_US, SimTime, Span};
use fleetcast::workload::{Arrival, Load, RequestBody};
use std::convert::Infallible;
use std::ops::ControlFlow;

fn us(micros: u64) -> Span {
    Span::from_micros(micros)
}

fn at(micros: u64) -> SimTime {
    SimTime::from_micros(micros)
}

fn kept(config: &SimConfig, service: &Service, load: Load) -> (RunResult, Kept) {
    let mut kept = Kept::default();
    let result = run(config, service, load, &mut kept).expect("a sound simulation");
    (result, kept)
}

fn logged(config: &SimConfig, service: Service, load: Load) -> Vec<(u64, u32, &'static str)> {
    let log = Log::default();
    let service = Service { log: Some(log.clone()), ..service };
    run(config, &service, load, &mut NoRecorder).expect("a sound simulation");
    let calls = log.borrow();
    calls.iter().map(|&(ps, replica, call)| (ps / PS_PER_US, replica, call)).collect()
}

fn with_patience(body: RequestBody, patience: Span) -> RequestBody {
    RequestBody { abort_after: Some(patience), ..body }
}

#[test]
fn events_of_one_instant_come_in_the_promised_order() {
    // Two replicas end a step at 10, where also a client hangs up, a request arrives by itself
    // and another is delivered after 3 µs on the way.
    let mut config = fleet(vec![pool(2, 1000), pool(1, 1000)]);
    config.pools[1].frontend_latency = us(3);
    let times = [(0, None), (0, Some(us(10))), (7, None), (10, None)];
    let arrivals = (0u64..).zip(times).map(|(id, (micros, patience))| Arrival {
        at: at(micros),
        body: RequestBody { abort_after: patience, ..body(id, 10, 1) },
    });
    let calls = logged(&config, Service::fixed(us(10)), open(arrivals));
    let expected = [
        (0, 0, "enqueue"),
        (0, 1, "enqueue"),
        (0, 0, "schedule"),
        (0, 1, "schedule"),
        (10, 1, "abort"),
        (10, 0, "output"),
        (10, 1, "output"),
        (10, 0, "enqueue"),
        (10, 2, "enqueue"),
        (10, 0, "schedule"),
        (10, 2, "schedule"),
        (20, 0, "output"),
        (20, 2, "output"),
    ];
    assert_eq!(calls, expected);
}

#[test]
fn an_end_releases_an_arrival_that_the_next_schedule_call_sees() {
    let config = fleet(vec![pool(2, 1000)]);
    let load = closed(2, Span::ZERO, (0..4).map(|id| body(id, 10, 1)));
    let calls = logged(&config, Service::fixed(us(10)), load);
    let at_ten: Vec<_> = calls.iter().filter(|call| call.0 == 10).map(|c| (c.1, c.2)).collect();
    let expected = [
        (0, "output"),
        (1, "output"),
        (0, "enqueue"),
        (1, "enqueue"),
        (0, "schedule"),
        (1, "schedule"),
    ];
    assert_eq!(at_ten, expected);
}

#[test]
fn the_parts_of_a_request_add_up_to_its_time() {
    let mut config = fleet(vec![pool(1, 1000)]);
    config.pools[0].routing_latency = us(2);
    config.pools[0].frontend_latency = us(5);
    let service = Service { gap: us(4), ..Service::fixed(us(100)) };
    let load = open([0, 30].map(|t| Arrival { at: at(t), body: body(t, 10, 6) }));
    let (result, kept) = kept(&config, &service, load);
    let second = &kept.requests[1];
    // Queue from 37 to 127, first token at 227, five gaps of 4.
    assert_eq!(second.first_token, Some(at(227)));
    assert_eq!(second.finished, Some(at(247)));
    let parts = second.breakdown;
    assert_eq!((parts.routing, parts.frontend, parts.queue), (us(2), us(5), us(90)));
    assert_eq!((parts.prefill, parts.decode), (us(100), us(20)));
    assert_eq!((parts.kv_wait, parts.preempted), (Span::ZERO, Span::ZERO));
    for row in &kept.requests {
        assert_eq!(row.breakdown.total(), row.finished.unwrap() - row.arrival);
    }
    let latency = &result.pools[0].latency;
    assert_eq!((latency.itl.n(), latency.tpot.n()), (10, 2));
    assert_eq!((latency.itl.max_s(), latency.tpot.mean_s()), (Some(4e-6), Some(4e-6)));
    let parts = &result.pools[0].breakdown;
    assert_eq!((parts.routing.n(), parts.routing.mean_s()), (2, Some(2e-6)));
    assert_eq!((parts.frontend.n(), parts.frontend.mean_s()), (2, Some(5e-6)));
    assert_eq!((parts.queue.n(), parts.queue.max_s()), (2, Some(90e-6)));
    assert_eq!(latency.ttft.max_s(), Some(197e-6));
    assert_eq!(latency.e2e.max_s(), Some(217e-6));
}

#[test]
fn no_traffic_gives_an_empty_result() {
    for load in [open_at(&[]), closed(0, us(1), [body(0, 10, 1)]), closed(3, us(1), [])] {
        let mut config = fleet(vec![pool(1, 1000)]);
        config.sample_every = Some(us(10));
        let (result, kept) = kept(&config, &Service::fixed(us(10)), load);
        assert_eq!(result.counts.arrived, 0);
        assert_eq!((result.ended, result.events), (SimTime::ZERO, 0));
        assert!(kept.requests.is_empty() && kept.samples.is_empty());
    }
}

#[test]
fn a_closed_loop_keeps_its_concurrency_and_thinks() {
    let config = fleet(vec![pool(1, 1000)]);
    let service = Service { servers: 10, ..Service::fixed(us(10)) };
    let load = closed(3, us(5), (0..8).map(|id| body(id, 10, 1)));
    let (result, kept) = kept(&config, &service, load);
    assert_eq!(result.counts.completed, 8);
    let arrivals: Vec<_> = kept.requests.iter().map(|row| (row.id.0, row.arrival)).collect();
    let expected =
        [0, 0, 0, 15, 15, 15, 30, 30].into_iter().enumerate().map(|(id, t)| (id as u64, at(t)));
    assert_eq!(arrivals, expected.collect::<Vec<_>>());
    assert_eq!(result.measured_to, at(40));
}

#[test]
fn refused_requests_are_counted_and_release_the_next() {
    let config = fleet(vec![pool(1, 100)]);
    let bodies = [body(0, 99, 1), body(1, 100, 1), body(2, 500, 1), body(3, 99, 0), body(4, 1, 1)];
    let (result, kept) = kept(&config, &Service::fixed(us(10)), closed(1, Span::ZERO, bodies));
    assert_eq!((result.counts.completed, result.counts.rejected), (2, 3));
    assert_eq!(result.counts.arrived, 5);
    assert_eq!(result.pools[0].counts.arrived, 2);
    let rows: Vec<_> = kept.requests.iter().map(|row| (row.id.0, row.status, row.pool)).collect();
    use RequestStatus::{Completed, Rejected};
    let expected = [
        (0, Completed, Some(0)),
        (1, Rejected, None),
        (2, Rejected, None),
        (3, Rejected, None),
        (4, Completed, Some(0)),
    ];
    assert_eq!(rows, expected);
    assert_eq!(kept.requests[2].finished, Some(at(10)));
}

#[test]
fn warm_up_is_left_out_of_latency_but_not_of_counts() {
    let mut config = fleet(vec![pool(1, 1000)]);
    config.warm_up = at(100);
    let (result, kept) = kept(&config, &Service::fixed(us(1)), open_at(&[0, 99, 100, 150]));
    assert_eq!(result.counts.completed, 4);
    let pool = &result.pools[0];
    assert_eq!((pool.measured_completed, pool.latency.e2e.n(), pool.good), (2, 2, 2));
    assert_eq!((pool.measured_input_tokens, pool.measured_output_tokens), (20, 2));
    let measured: Vec<_> = kept.requests.iter().map(|row| row.measured).collect();
    assert_eq!(measured, [false, false, true, true]);
    assert_eq!((result.measured_from, result.measured_to), (at(100), at(151)));
}

#[test]
fn the_horizon_cuts_open_and_closed_traffic() {
    let mut config = fleet(vec![pool(1, 1000)]);
    config.horizon = Some(at(100));
    let (open, _) = kept(&config, &Service::fixed(us(30)), open_at(&[0, 99, 100, 101]));
    assert_eq!((open.counts.arrived, open.counts.completed), (2, 2));
    assert_eq!((open.measured_to, open.ended), (at(100), at(129)));
    let bodies = (0u64..).map(|id| body(id, 10, 1));
    let (closed, _) = kept(&config, &Service::fixed(us(25)), closed(1, Span::ZERO, bodies));
    assert_eq!((closed.counts.completed, closed.ended), (4, at(100)));
    assert_eq!(closed.measured_to, at(100));
}

#[test]
fn the_drain_limit_leaves_requests_unfinished() {
    let mut config = fleet(vec![pool(1, 1000)]);
    config.drain_limit = Some(us(25));
    config.pools[0].frontend_latency = us(1);
    let (result, rows) = kept(&config, &Service::fixed(us(12)), open_at(&[0, 1, 1, 1]));
    // The last arrival is at 1, so the run stops at 26, which still sees the end at 25.
    assert_eq!((result.counts.completed, result.counts.unfinished), (2, 2));
    assert_eq!(result.ended, at(26));
    let last = &rows.requests[2..];
    assert!(last.iter().all(|row| row.status == RequestStatus::Unfinished));
    assert_eq!(
        last.iter().map(|row| (row.id.0, row.finished)).collect::<Vec<_>>(),
        [(2, None), (3, None)]
    );
    // With a horizon that cuts, the limit counts from there, also when no end shows it.
    config.horizon = Some(at(40));
    let bodies = (0..9).map(|id| body(id, 10, 1));
    let (cut, _) = kept(&config, &Service::fixed(us(500)), closed(1, Span::ZERO, bodies));
    assert_eq!((cut.ended, cut.counts.unfinished), (at(65), 1));
}

#[test]
fn a_stall_ends_the_run_and_names_the_requests() {
    let mut config = fleet(vec![pool(2, 1000)]);
    config.sample_every = Some(us(3));
    config.drain_limit = Some(us(1_000_000));
    let service = Service { prompt_max: 50, ..Service::fixed(us(10)) };
    let lengths = [10, 60, 10, 10, 10];
    let arrivals =
        (0u64..).zip(lengths).map(|(id, len)| Arrival { at: at(id), body: body(id, len, 1) });
    let (result, rows) = kept(&config, &service, open(arrivals));
    let stalled: Vec<u64> = result.stalled.iter().map(|id| id.0).collect();
    assert_eq!(stalled, [1, 3], "what waits behind the blocked request is stuck too");
    assert_eq!((result.counts.completed, result.counts.unfinished), (3, 2));
    assert_eq!(result.ended, at(30));
    assert!(rows.samples.iter().all(|row| row.at <= result.ended));
}

#[test]
fn time_past_the_clock_is_an_error_and_no_latency() {
    let ends_past_it = |config: &SimConfig, step: Span, load: Load| {
        let result = run(config, &Service::fixed(step), load, &mut NoRecorder);
        assert!(matches!(result, Err(SimError::EndOfClock)), "{result:?}");
    };
    let one = || open([Arrival { at: at(0), body: body(0, 10, 1) }]);
    let far = Span(u64::MAX - 1);
    let config = fleet(vec![pool(1, 1000)]);
    ends_past_it(&config, Span(u64::MAX), one());
    ends_past_it(&config, us(10), closed(1, far, (0..3).map(|id| body(id, 10, 1))));
    let mut slow = fleet(vec![pool(1, 1000)]);
    (slow.pools[0].routing_latency, slow.pools[0].frontend_latency) = (far, far);
    ends_past_it(&slow, us(10), one());
}

#[test]
fn a_hang_up_frees_a_stalled_queue() {
    let config = fleet(vec![pool(1, 1000)]);
    let service = Service { prompt_max: 50, ..Service::fixed(us(10)) };
    let bodies = [with_patience(body(0, 60, 1), us(500)), body(1, 10, 1)];
    let arrivals = bodies.map(|body| Arrival { at: at(0), body });
    let (result, rows) = kept(&config, &service, open(arrivals));
    assert_eq!((result.counts.timed_out, result.counts.completed), (1, 1));
    assert!(result.stalled.is_empty());
    assert_eq!(rows.requests[0].finished, Some(at(500)));
    assert_eq!(rows.requests[1].finished, Some(at(510)));
    assert_eq!(rows.requests[1].breakdown.queue, us(500));
}

#[test]
fn a_client_may_hang_up_before_during_and_after() {
    let mut config = fleet(vec![pool(1, 1000)]);
    config.pools[0].routing_latency = us(3);
    config.pools[0].frontend_latency = us(7);
    // On the way; at the very delivery; in the first step (given up at its end); queued behind it
    // (the same); long after its end.
    let patience = [2, 10, 15, 20, 9_000].map(us);
    let arrivals = (0u64..).zip(patience).map(|(id, patience)| Arrival {
        at: at(0),
        body: with_patience(body(id, 10, 1), patience),
    });
    let (result, rows) = kept(&config, &Service::fixed(us(100)), open(arrivals));
    assert_eq!((result.counts.timed_out, result.counts.completed), (4, 1));
    let ends: Vec<_> = rows.requests.iter().map(|row| (row.id.0, row.finished.unwrap())).collect();
    assert_eq!(ends, [(0, at(2)), (1, at(10)), (2, at(110)), (3, at(110)), (4, at(210))]);
    assert_eq!(result.ended, at(210), "the run does not wait for clients that have their answer");
    let parts: Vec<_> =
        rows.requests.iter().map(|r| (r.breakdown.routing, r.breakdown.frontend)).collect();
    assert_eq!(parts[..3], [(us(2), us(0)), (us(3), us(7)), (us(3), us(7))]);
}

#[test]
fn rows_of_one_instant_come_by_number_across_replicas() {
    let config = fleet(vec![pool(3, 1000)]);
    let service = Service { batch: 4, ..Service::fixed(us(10)) };
    let (_, kept) = kept(&config, &service, open_at(&[0; 12]));
    let ids: Vec<_> = kept.requests.iter().map(|row| row.id.0).collect();
    assert_eq!(ids, (0..12).collect::<Vec<_>>());
    let replicas: Vec<_> = kept.requests.iter().map(|row| row.replica.unwrap()).collect();
    assert_eq!(replicas[..4], [0, 1, 2, 0]);
}

#[test]
fn goodput_counts_requests_that_meet_every_limit_exactly() {
    let service = Service { gap: us(4), ..Service::fixed(us(10)) };
    let good = |limits| {
        let mut config = fleet(vec![pool(4, 1000)]);
        config.goodput = limits;
        // First token after 10; ends after 10, 14 and 18.
        let load = open([1, 2, 3].map(|n| Arrival { at: at(0), body: body(u64::from(n), 10, n) }));
        run(&config, &service, load, &mut NoRecorder).unwrap().pools[0].good
    };
    let limits = |ttft, tpot, e2e| GoodputLimits { ttft, tpot, e2e };
    assert_eq!(good(limits(None, None, None)), 3);
    assert_eq!(good(limits(Some(us(10)), Some(us(4)), Some(us(18)))), 3);
    let less = |span: Span| Some(Span(span.0 - 1));
    assert_eq!(good(limits(less(us(10)), None, None)), 0);
    assert_eq!(good(limits(None, less(us(4)), None)), 1, "one token meets any TPOT");
    assert_eq!(good(limits(None, None, less(us(18)))), 2);
}

/// A busy fleet with everything on.
fn busy(router: RouterConfig) -> (SimConfig, Service, impl Fn() -> Load) {
    let mut config = fleet(vec![pool(3, 1000), pool(2, 200)]);
    config.router = router;
    config.scrape_every = us(50);
    config.warm_up = at(300);
    config.pools[1].frontend_latency = us(5);
    let service = Service { batch: 2, gap: us(1), ..Service::per_prompt_token(us(1)) };
    let load = || {
        open((0..3_000u64).map(|id| {
            let patience = (id % 7 == 0).then_some(us(id % 700));
            let body = body(id, (id * 37 % 300) as u32 + 1, (id * 11 % 40) as u32 + 1);
            Arrival { at: at(id * 35), body: RequestBody { abort_after: patience, ..body } }
        }))
    };
    (config, service, load)
}

fn policies() -> [RouterConfig; 5] {
    [
        RouterConfig::Random,
        RouterConfig::RoundRobin,
        RouterConfig::LeastOutstandingRequests,
        RouterConfig::PrefixAware { prefix_tokens: 64, spill_over: 4 },
        RouterConfig::KvAware { prefix_weight: 1.0, usage_weight: 1.0, queue_weight: 1.0 },
    ]
}

#[test]
fn the_same_again_gives_the_same_and_observers_change_nothing() {
    for router in policies() {
        let (mut config, service, load) = busy(router.clone());
        let (first, first_rows) = kept(&config, &service, load());
        assert!(first.counts.timed_out > 0 && first.counts.completed > 2_000, "{router:?}");
        let (again, again_rows) = kept(&config, &service, load());
        assert_eq!(first, again);
        assert_eq!(first_rows.requests, again_rows.requests);
        config.sample_every = Some(us(17));
        let (sampled, sampled_rows) = kept(&config, &service, load());
        assert_eq!(first_rows.requests, sampled_rows.requests);
        assert!(sampled.events > first.events);
        let unrecorded = run(&config, &service, load(), &mut NoRecorder).unwrap();
        assert_eq!(sampled, unrecorded);
        assert_eq!(RunResult { events: first.events, ..sampled }, first);
    }
}

#[test]
fn a_sample_sees_all_that_happens_at_its_instant() {
    let mut config = fleet(vec![pool(1, 1000)]);
    config.sample_every = Some(us(10));
    let (_, kept) = kept(&config, &Service::fixed(us(10)), open_at(&[0, 5, 10]));
    let seen: Vec<_> = kept
        .samples
        .iter()
        .map(|row| (row.at, row.arrivals, row.completions, row.running, row.waiting))
        .collect();
    assert_eq!(seen, [(at(10), 3, 1, 1, 1), (at(20), 0, 1, 1, 0), (at(30), 0, 1, 0, 0)]);
}

#[test]
fn samples_add_up_to_the_totals() {
    let (mut config, service, load) = busy(RouterConfig::LeastOutstandingRequests);
    config.sample_every = Some(us(1_000));
    let (result, kept) = kept(&config, &service, load());
    for (index, pool) in (0u32..).zip(&result.pools) {
        let rows: Vec<_> = kept.samples.iter().filter(|row| row.pool == index).collect();
        assert_eq!(rows.iter().map(|row| row.arrivals).sum::<u64>(), pool.counts.arrived);
        assert_eq!(rows.iter().map(|row| row.completions).sum::<u64>(), pool.counts.completed);
        let completed = kept
            .requests
            .iter()
            .filter(|row| row.pool == Some(index) && row.status == RequestStatus::Completed);
        let tokens: u64 = completed.map(|row| u64::from(row.output_tokens)).sum();
        assert_eq!(rows.iter().map(|row| row.output_tokens).sum::<u64>(), tokens);
        assert!(rows[..rows.len() - 1].iter().zip(1..).all(|(row, k)| row.at == at(k * 1_000)));
        assert_eq!(rows.last().unwrap().at, result.ended);
    }
}

#[test]
fn steps_without_duration_that_never_end_are_a_livelock() {
    let config = fleet(vec![pool(1, 1000)]);
    let bodies = (0u64..).map(|id| body(id, 10, 1));
    let load = closed(1, Span::ZERO, bodies);
    let error = run(&config, &Service::fixed(Span::ZERO), load, &mut NoRecorder).unwrap_err();
    assert!(matches!(error, SimError::Livelock { at: SimTime::ZERO, .. }), "{error}");
}

#[test]
fn what_cannot_run_is_an_error() {
    let service = Service::fixed(us(1));
    let error =
        |config: SimConfig| run(&config, &service, open_at(&[0]), &mut NoRecorder).unwrap_err();
    assert!(matches!(error(fleet(vec![pool(0, 10)])), SimError::NoReplicas));
    assert!(matches!(error(fleet(vec![])), SimError::NoReplicas));
    let crowd = error(fleet(vec![pool(u32::MAX, 10)]));
    assert!(matches!(crowd, SimError::TooManyReplicas { .. }), "{crowd}");
    let mut config = fleet(vec![pool(1, 10)]);
    config.sample_every = Some(Span::ZERO);
    assert!(matches!(error(config.clone()), SimError::ZeroInterval { key: "sample_every" }));
    config.sample_every = None;
    let [.., kv_aware] = policies();
    config.router = kv_aware;
    assert!(matches!(error(config), SimError::ZeroInterval { key: "scrape_every" }));
}

#[test]
fn an_engine_that_cannot_be_built_names_its_pool() {
    let config = fleet(vec![pool(1, 10)]);
    let make = |_: &_| Err::<Server, _>(std::fmt::Error);
    let mut go_on = |_: &sim::Progress| ControlFlow::Continue(());
    let error = sim::run(&config, make, open_at(&[0]), &mut NoRecorder, &mut go_on).unwrap_err();
    assert_eq!(error.to_string(), "the engine of pool `p` cannot be built");
}

#[test]
fn progress_is_told_and_may_interrupt() {
    let config = fleet(vec![pool(1, 1000)]);
    let go = |stop_at: Option<SimTime>| {
        let mut seen = Vec::new();
        let load =
            open((0..100_000u64).map(|id| Arrival { at: at(id * 2), body: body(id, 10, 1) }));
        let make = |_: &_| Ok::<_, Infallible>(Server::new(Service::fixed(us(1)), 0));
        let result = sim::run(&config, make, load, &mut NoRecorder, &mut |progress| {
            seen.push(*progress);
            match stop_at {
                Some(stop) if progress.now >= stop => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        });
        (result, seen)
    };
    let (result, seen) = go(None);
    assert_eq!(result.unwrap().counts.completed, 100_000);
    assert!(seen.len() > 10);
    assert!(seen.is_sorted_by_key(|progress| (progress.now, progress.arrived)));
    assert!(seen.iter().all(|progress| progress.ended <= progress.arrived));
    let (result, _) = go(Some(at(50_000)));
    assert!(matches!(result, Err(SimError::Interrupted { at: when }) if when >= at(50_000)));
}
