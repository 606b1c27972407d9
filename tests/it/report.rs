//! Answers from hand-built results: every figure is worked out by hand beside its check, and the
//! texts that people read are kept as snapshots.

use fleetcast::engine::record::EngineTotals;
use fleetcast::engine::request::RequestId;
use fleetcast::report::rows::{ReplicationColumn, RowWriter, requests_header, timeseries_header};
use fleetcast::report::terminal::{Colour, Screen, render};
use fleetcast::report::{RunOutcome, Summary};
use fleetcast::scenario::{Scenario, load_str};
use fleetcast::sim::result::{
    Breakdown, PoolResult, Recorder, RequestCounts, RequestRow, RequestStatus, RunResult, SampleRow,
};
use fleetcast::units::{Fix, SimTime, Span};
use std::path::Path;

fn s(seconds: f64) -> Span {
    Span::from_seconds(seconds).unwrap()
}

fn at(seconds: f64) -> SimTime {
    SimTime::from_seconds(seconds).unwrap()
}

/// Two pools: three p5 at 60 USD an hour and one g6 at 6, two replicas on each; an hour of
/// arrivals of which the first ten minutes do not count. `slo` is the inside of the table.
fn scenario(slo: &str) -> Scenario {
    let pool = |name: &str, instance_type: &str, instances: u32, price: f64| {
        format!(
            "[[pool]]
            name = '{name}'
            instance_type = '{instance_type}'
            instances = {instances}
            replicas_per_instance = 2
            price_usd_per_hour = {price}
            routing_latency = '20ms'
            frontend_latency = '30ms'
            engine.max_model_len = 8192
            engine.num_gpu_blocks = 1001
            step_time.fixed_s = 0.02
            "
        )
    };
    let text = format!(
        "name = 'two-pools'
        seed = 7
        run.horizon = '1h'
        run.warm_up = '10m'
        output.sample_every = '10s'
        [traffic.poisson]
        rate_rps = 2.5
        input_tokens = {{ log-normal = {{ median = 900, sigma = 0.8, min = 8, max = 6000 }} }}
        output_tokens = {{ fixed = 200 }}
        [router.least-outstanding-requests]
        [slo]
        {slo}
        {}{}",
        pool("main", "ml.p5.48xlarge", 3, 60.0),
        pool("spill", "ml.g6.12xlarge", 1, 6.0)
    );
    let mut scenario = load_str("two-pools.toml", &text, Path::new(""), &[])
        .unwrap_or_else(|found| panic!("{found}"));
    // What the scenario room has to say is its own affair.
    scenario.advice.clear();
    scenario
}

fn ttft_p95(limit_s: f64) -> String {
    format!("'ttft.p95' = '{}ms'", limit_s * 1000.0)
}

/// One request: 50 ms of routing and front end, `wait_s` in the queue, 100 ms of prefill, then 199
/// gaps of 20 ms.
fn serve(pool: &mut PoolResult, wait_s: f64) {
    let parts = &mut pool.breakdown;
    let (ttft, decode) = (0.15 + wait_s, 199.0 * 0.02);
    parts.routing.record(s(0.02));
    parts.frontend.record(s(0.03));
    parts.queue.record(s(wait_s));
    parts.kv_wait.record(Span::ZERO);
    parts.prefill.record(s(0.1));
    parts.decode.record(s(decode));
    parts.preempted.record(Span::ZERO);
    pool.latency.ttft.record(s(ttft));
    pool.latency.tpot.record(s(0.02));
    pool.latency.e2e.record(s(ttft + decode));
    pool.latency.itl.record_fix(Fix::from_span(s(0.02)), 199);
    pool.measured_completed += 1;
    pool.measured_input_tokens += 1000;
    pool.measured_output_tokens += 200;
    pool.good += u64::from(ttft <= 1.5);
}

/// A run of `requests` measured requests, each waiting 1 ms longer than the one before; every
/// tenth goes to the second pool.
fn run(requests: u32) -> RunResult {
    let mut pools = vec![PoolResult::default(), PoolResult::default()];
    for i in 0..requests {
        serve(&mut pools[usize::from(i % 10 == 9)], f64::from(i) / 1000.0);
    }
    for (pool, busy_s) in pools.iter_mut().zip([3.0 * 2.0 * 1830.0, 366.0]) {
        pool.replicas = 2;
        pool.usable_blocks = 1000;
        pool.busy = Fix::from_span(s(busy_s));
        pool.counts.arrived = pool.measured_completed;
        pool.counts.completed = pool.measured_completed;
        pool.engine = EngineTotals {
            steps: 10_000,
            batch_sum: 125_000,
            used_blocks_sum: 4_000_000,
            used_blocks_max: 900,
            output_tokens: 200 * pool.measured_completed,
            prefix_queries: 2000,
            prefix_hits: 500,
            busy: pool.busy,
            ..EngineTotals::default()
        };
    }
    let n = u64::from(requests);
    RunResult {
        ended: at(3660.0),
        events: 15_000,
        measured_from: at(600.0),
        measured_to: at(3600.0),
        counts: RequestCounts { arrived: n, completed: n, ..RequestCounts::default() },
        pools,
        ..RunResult::default()
    }
}

fn summary_of(slo: &str, results: Vec<RunResult>) -> Summary {
    let outcomes: Vec<RunOutcome> =
        results.into_iter().map(|result| RunOutcome { result, ..RunOutcome::default() }).collect();
    Summary::new(&scenario(slo), &outcomes)
}

fn close(value: Option<f64>, expected: f64) {
    let value = value.expect("a figure");
    assert!((value - expected).abs() <= 1e-9 * expected.abs(), "{value} instead of {expected}");
}

fn codes(summary: &Summary) -> Vec<&str> {
    summary.warnings.iter().map(|w| w.code.as_str()).collect()
}

#[test]
fn rates_refer_to_the_measured_window() {
    let summary = summary_of(&ttft_p95(2.0), vec![run(6000)]);
    close(summary.throughput.requests_per_s, 6000.0 / 3000.0);
    close(summary.throughput.input_tokens_per_s, 6_000_000.0 / 3000.0);
    close(summary.throughput.output_tokens_per_s, 1_200_000.0 / 3000.0);
    // TTFT is 0.15 s + i ms; at most 1.5 s for i = 0 ..= 1350.
    close(summary.throughput.goodput_requests_per_s, 1351.0 / 3000.0);
}

#[test]
fn the_bill_covers_all_time_in_service_and_idle_share_is_weighted_by_price() {
    let summary = summary_of("", vec![run(6000)]);
    // In service for 3660 s: to the last event, which is later than the horizon.
    close(Some(summary.simulated_s), 3660.0);
    close(summary.cost.per_hour_usd, 3.0 * 60.0 + 6.0);
    let total = 186.0 * 3660.0 / 3600.0;
    close(Some(summary.cost.total_usd), total);
    close(summary.cost.per_million_output_tokens_usd, total / 1.2);
    // Main: busy half of the time; spill: 366 s of two replicas, 5 % of the time.
    close(summary.pools[0].utilisation_mean, 0.5);
    close(summary.pools[1].utilisation_mean, 0.05);
    close(summary.cost.idle_share, (180.0 * 0.5 + 6.0 * 0.95) / 186.0);
    close(Some(summary.pools[0].instance_hours), 3.0 * 3660.0 / 3600.0);
}

#[test]
fn parts_of_the_time_add_up_to_end_to_end() {
    let summary = summary_of("", vec![run(1000)]);
    let parts: f64 = summary.breakdown_s.named().iter().map(|(_, stats)| stats.mean.unwrap()).sum();
    close(summary.latency_s.e2e.mean, parts);
    for (_, stats) in summary.breakdown_s.named() {
        assert_eq!(stats.n, summary.latency_s.e2e.n);
    }
}

#[test]
fn a_term_is_met_up_to_its_limit_and_missed_above_it() {
    // 6000 waits of 0 ..= 5999 ms: p95 is 5699 ms of waiting and 150 ms more, to bucket precision.
    let value = summary_of(&ttft_p95(9.0), vec![run(6000)]).slo[0].value.unwrap();
    assert!((value - 5.849).abs() < 5.849 / 1024.0, "{value}");
    for (limit, met) in [(value + 1e-6, true), (value - 1e-6, false)] {
        let summary = summary_of(&ttft_p95(limit), vec![run(6000)]);
        assert_eq!((summary.slo[0].met, summary.targets_met()), (met, met), "limit {limit}");
    }
}

#[test]
fn nothing_measured_gives_nulls_a_missed_slo_and_words_about_it() {
    let mut empty = run(0);
    empty.counts.arrived = 3;
    empty.counts.unfinished = 3;
    for pool in &mut empty.pools {
        *pool = PoolResult::default();
    }
    let summary = summary_of(&ttft_p95(2.0), vec![empty]);
    assert!(!summary.targets_met());
    let json: serde_json::Value = serde_json::from_str(&summary.to_json().unwrap()).unwrap();
    for path in [
        "/latency_s/ttft/p99",
        "/breakdown_s/queue/mean",
        "/kv/usage_mean",
        "/kv/prefix_hit_rate",
        "/cost/per_million_output_tokens_usd",
        "/slo/0/value",
        "/interval",
        "/wall_s",
    ] {
        assert_eq!(json.pointer(path), Some(&serde_json::Value::Null), "{path}");
    }
    assert_eq!(json["latency_s"]["ttft"]["n"], 0);
    let found = codes(&summary);
    for code in ["nothing-measured", "slo-term-without-sample", "unfinished", "idle-pool"] {
        assert!(found.contains(&code), "{code} in {found:?}");
    }
}

#[test]
fn a_stalled_run_meets_no_target() {
    let mut stuck = run(6000);
    stuck.stalled = vec![RequestId(41), RequestId(44)];
    let summary = summary_of("", vec![stuck]);
    assert!(!summary.targets_met());
    assert_eq!(codes(&summary)[0], "stalled");
    // Read back, as `inspect` does, it is still no success.
    let again: Summary = serde_json::from_str(&summary.to_json().unwrap()).unwrap();
    assert!(again.stalled() && !again.targets_met());
}

#[test]
fn a_warm_up_that_outlasts_the_traffic_is_not_billed() {
    let mut short = run(10);
    (short.measured_from, short.measured_to) = (at(9e6), at(9e6));
    close(Some(summary_of("", vec![short]).simulated_s), 3660.0);
}

#[test]
fn keys_stand_as_the_contract_has_them() {
    let summary = summary_of(&ttft_p95(2.0), vec![run(100)]);
    let json: serde_json::Value = serde_json::from_str(&summary.to_json().unwrap()).unwrap();
    let keys = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(
        keys(&json),
        [
            "fleetcast",
            "scenario",
            "simulated_s",
            "wall_s",
            "engine",
            "requests",
            "throughput",
            "latency_s",
            "breakdown_s",
            "kv",
            "pools",
            "scaling",
            "cost",
            "slo",
            "interval",
            "profiles",
            "warnings"
        ]
    );
    assert_eq!(keys(&json["latency_s"]), ["ttft", "tpot", "itl", "e2e"]);
    let stats = ["n", "mean", "p50", "p90", "p95", "p99", "max"];
    assert_eq!(keys(&json["latency_s"]["ttft"]), stats);
    assert_eq!(
        keys(&json["breakdown_s"]),
        ["routing", "frontend", "queue", "kv_wait", "prefill", "decode", "preempted"]
    );
    assert_eq!(
        keys(&json["scaling"]),
        ["scale_outs", "scale_ins", "direction_changes", "time_below_demand_s"]
    );
    for key in [
        "name",
        "instance_type",
        "priority",
        "instances_mean",
        "instances_max",
        "instance_hours",
        "requests",
        "utilisation_mean",
        "insufficient_capacity",
        "cost_usd",
        "latency_s",
    ] {
        assert!(json["pools"][0].get(key).is_some(), "pools[].{key}");
    }
}

#[test]
fn a_summary_reads_back_as_it_was_written() {
    let summary = summary_of(&ttft_p95(2.0), vec![run(500), run(520)]);
    let text = summary.to_json().unwrap();
    let read: Summary = serde_json::from_str(&text).unwrap();
    assert_eq!(read, summary);
    assert_eq!(read.to_json().unwrap(), text);
}

#[test]
fn replications_pool_samples_and_give_intervals_between_them() {
    let one = summary_of(&ttft_p95(2.0), vec![run(500)]);
    assert_eq!(one.interval, None);
    let all = summary_of(&ttft_p95(2.0), vec![run(500), run(520), run(540)]);
    assert_eq!(all.scenario.replications, 3);
    assert_eq!(all.latency_s.ttft.n, 1560);
    assert_eq!(all.requests.arrived, 1560);
    close(Some(all.simulated_s), 3.0 * 3660.0);
    close(all.cost.per_hour_usd, 186.0);
    close(all.throughput.requests_per_s, 1560.0 / 9000.0);
    let intervals = all.interval.expect("three replications have intervals");
    // Rates of 500, 520 and 540 in 3000 s: mean 520, deviation 20, half width t · 20/√3.
    let [low, high] = intervals.figures["throughput.requests_per_s"].unwrap();
    close(Some((low + high) / 2.0), 520.0 / 3000.0);
    let half = 4.302_653 * 20.0 / 3.0f64.sqrt() / 3000.0;
    assert!(((high - low) / 2.0 - half).abs() < 1e-9, "{low} {high}");
    assert!(intervals.figures.contains_key("ttft.p95"));
}

#[test]
fn small_samples_are_named_with_the_replications_that_mend_them() {
    let none = codes(&summary_of("", vec![run(3000)])).join(" ");
    assert!(!none.contains("small-sample") && !none.contains("maximum"), "{none}");
    let summary = summary_of("", vec![run(99)]);
    let named = |code: &str| {
        let warning = summary.warnings.iter().find(|w| w.code == code);
        warning.unwrap_or_else(|| panic!("no {code}")).clone()
    };
    assert!(named("percentile-is-maximum").text.contains("ttft.p99"));
    assert!(named("small-sample").text.contains("e2e.p95"));
    // 99 samples a run, 3000 needed: 31 runs.
    assert!(named("small-sample").next.contains("--replications 31"));
}

#[test]
fn replications_of_one_and_the_same_run_are_told() {
    let alike = |runs| codes(&summary_of("", runs)).contains(&"replications-alike");
    assert!(alike(vec![run(500), run(500)]));
    assert!(!alike(vec![run(500), run(520)]));
    assert!(!alike(vec![run(500)]));
}

#[test]
fn pressure_on_kv_blocks_is_told_once() {
    let mut result = run(3000);
    result.pools[0].engine.used_blocks_max = 1000;
    assert!(codes(&summary_of("", vec![result.clone()])).contains(&"kv-nearly-full"));
    result.pools[0].engine.preemptions = 40;
    let summary = summary_of("", vec![result]);
    assert!(codes(&summary).contains(&"preemptions"));
    assert!(!codes(&summary).contains(&"kv-nearly-full"));
}

fn text_of(slo: &str, results: Vec<RunResult>, screen: Screen) -> String {
    render(Some(&scenario(slo)), &summary_of(slo, results), screen)
}

const PLAIN: Screen = Screen { width: 80, colour: Colour::Off };

#[test]
fn terminal_text_of_a_missed_slo() {
    insta::assert_snapshot!(text_of(&ttft_p95(2.0), vec![run(6000)], PLAIN));
}

#[test]
fn terminal_text_of_replications_that_meet_the_slo() {
    insta::assert_snapshot!(text_of(&ttft_p95(2.0), vec![run(500), run(520)], PLAIN));
}

#[test]
fn terminal_text_fits_the_screen_and_has_colours_only_when_asked() {
    for width in [60, 80, 120] {
        let plain = text_of(&ttft_p95(2.0), vec![run(6000)], Screen { width, ..PLAIN });
        assert!(!plain.contains('\x1b'));
        let widest = plain.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= usize::from(width), "{widest} columns on {width}:\n{plain}");
    }
    let colour = Screen { colour: Colour::On, ..PLAIN };
    assert!(text_of(&ttft_p95(2.0), vec![run(6000)], colour).contains("\x1b[1;31mSLO MISSED"));
}

fn row(id: u64) -> RequestRow {
    RequestRow {
        id: RequestId(id),
        status: RequestStatus::Completed,
        pool: Some(1),
        replica: Some(6),
        arrival: SimTime(1),
        first_token: Some(at(0.5)),
        finished: Some(at(2.5)),
        input_tokens: 1000,
        output_tokens: 4,
        cached_tokens: 512,
        preemptions: 0,
        breakdown: Breakdown { routing: s(0.002), decode: s(2.0), ..Breakdown::default() },
        measured: true,
    }
}

fn pool_names() -> Vec<String> {
    vec!["main".into(), "spill, \"old\"".into()]
}

/// Both files of two replications, each from its rows.
fn files(
    rows: &[RequestRow],
    samples: &[SampleRow],
    column: ReplicationColumn,
) -> (String, String) {
    let mut writer = RowWriter::new(&pool_names(), column, Some(Vec::new()), Some(Vec::new()));
    for row in rows {
        writer.request(row);
    }
    for sample in samples {
        writer.sample(sample);
    }
    let (requests, timeseries) = writer.finish().unwrap();
    let text = |bytes: Option<Vec<u8>>| String::from_utf8(bytes.unwrap()).unwrap();
    (
        requests_header(column) + &text(requests),
        timeseries_header(column).to_owned() + &text(timeseries),
    )
}

#[test]
fn request_rows_are_exact_and_empty_where_nothing_is() {
    let rejected = RequestRow {
        status: RequestStatus::Rejected,
        pool: None,
        replica: None,
        first_token: None,
        finished: None,
        output_tokens: 0,
        cached_tokens: 0,
        breakdown: Breakdown::default(),
        measured: false,
        ..row(3)
    };
    let (requests, _) = files(&[row(12), rejected], &[], ReplicationColumn::Absent);
    let lines: Vec<&str> = requests.lines().collect();
    assert_eq!(
        lines[1],
        "12,completed,\"spill, \"\"old\"\"\",6,0.000000000001,0.5,2.5,0.499999999999,\
         0.666666666666,2.499999999999,1000,4,512,0,0.002,0,0,0,0,2,0,true"
    );
    assert_eq!(lines[2], "3,rejected,,,0.000000000001,,,,,,1000,0,0,0,0,0,0,0,0,0,0,false");
    let mut reader = csv::Reader::from_reader(requests.as_bytes());
    let columns = reader.headers().unwrap().len();
    for record in reader.records() {
        assert_eq!(record.unwrap().len(), columns);
    }
}

#[test]
fn samples_bear_the_names_of_production() {
    let sample = |at_s: f64, completions| SampleRow {
        at: at(at_s),
        pool: 0,
        running: 3,
        waiting: 2,
        used_blocks: 250,
        usable_blocks: 1000,
        arrivals: 9,
        completions,
        output_tokens: 100 * completions,
    };
    let samples = [sample(10.0, 4), sample(20.0, 5)];
    let (_, timeseries) = files(&[], &samples, ReplicationColumn::Number(2));
    let lines: Vec<&str> = timeseries.lines().collect();
    assert_eq!(lines[0], "replication,time_s,metric,pool,instance,zone,value");
    for line in [
        "2,10,vllm:num_requests_running,main,,,3",
        "2,10,vllm:num_requests_waiting,main,,,2",
        "2,10,vllm:kv_cache_usage_perc,main,,,0.25",
        "2,10,Invocations,main,,,4",
        "2,20,Invocations,main,,,5",
        "2,20,ConcurrentRequestsPerModel,main,,,5",
        "2,20,vllm:request_success_total,main,,,9",
        "2,20,vllm:request_generation_tokens_sum,main,,,900",
    ] {
        assert!(lines.contains(&line), "{line} in\n{timeseries}");
    }
}

/// Takes so many bytes, then fails.
struct Full(usize);

impl std::io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 =
            self.0.checked_sub(bytes.len()).ok_or_else(|| std::io::Error::other("disk full"))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_reported_at_the_end_and_disturbs_nothing_before() {
    let mut writer = RowWriter::new(
        &pool_names(),
        ReplicationColumn::Absent,
        Some(Full(100_000)),
        None::<Vec<u8>>,
    );
    for id in 0..10_000 {
        writer.request(&row(id));
    }
    let error = writer.finish().err().expect("the writer was full");
    assert_eq!(error.to_string(), "disk full");
}
