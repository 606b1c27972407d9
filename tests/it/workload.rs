//! Traffic as its callers see it: generated loads, replayed traces, inspected traces.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use flate2::{Compression, write::GzEncoder};
use fleetcast::engine::request::{RequestId, Segment, StreamId};
use fleetcast::units::{SimTime, Span};
use fleetcast::workload::inspect::{inspect_trace, length_quantiles, rate_curve};
use fleetcast::workload::spec::{
    ArrivalSpec, BodySpec, LengthSpec, SharedPrefixSpec, TraceFormat, TraceSpec, TrafficSpec,
};
use fleetcast::workload::{
    Arrival, ArrivalSource, Load, SourceNotes, WorkloadError, detect, open_load,
};
use proptest::prelude::*;
use std::io::Write;
use std::path::{Path, PathBuf};

fn open(spec: &TrafficSpec, seed: u64) -> Box<dyn ArrivalSource> {
    match open_load(spec, seed) {
        Ok(Load::Open(source)) => source,
        Ok(Load::Closed { .. }) => panic!("{spec:?} became a closed loop"),
        Err(error) => panic!("{error}"),
    }
}

/// Up to `n` arrivals.
fn take(source: &mut dyn ArrivalSource, n: u64) -> Result<Vec<Arrival>, WorkloadError> {
    (0..n).map(RequestId).map_while(|id| source.next_arrival(id).transpose()).collect()
}

fn generated(arrivals: ArrivalSpec, requests: Option<u64>) -> TrafficSpec {
    let bodies = BodySpec {
        input_tokens: LengthSpec::Uniform { min: 1, max: 900 },
        output_tokens: LengthSpec::Fixed(256),
        shared_prefix: None,
    };
    TrafficSpec::Open { arrivals, requests, bodies }
}

#[test]
fn an_open_load_ends_after_its_requests_and_stays_ended() {
    let spec = generated(ArrivalSpec::Poisson { rate_rps: 3.0 }, Some(5));
    let mut source = open(&spec, 1);
    assert_eq!(take(&mut *source, 100).unwrap().len(), 5);
    assert_eq!(source.next_arrival(RequestId(5)), Ok(None));
}

#[test]
fn a_rate_curve_ends_after_its_last_window_and_stays_ended() {
    let window = Span::from_micros(2_000_000);
    let arrivals =
        ArrivalSpec::RateCurve { window, rates_rps: vec![50.0], scale: 2.0, repeat: false };
    let mut source = open(&generated(arrivals, None), 1);
    let all = take(&mut *source, 10_000).unwrap();
    assert!(all.len().abs_diff(200) < 60, "{} arrivals", all.len());
    assert!(all.iter().all(|a| a.at < SimTime(window.0)));
    assert_eq!(source.next_arrival(RequestId(0)), Ok(None));
}

#[test]
fn a_closed_load_hands_out_its_bodies() {
    let TrafficSpec::Open { bodies, .. } = generated(ArrivalSpec::Poisson { rate_rps: 1.0 }, None)
    else {
        unreachable!("generated() gives an open load")
    };
    let think = Span::from_micros(5);
    let closed = |concurrency| TrafficSpec::Closed {
        concurrency,
        requests: 2,
        think,
        bodies: bodies.clone(),
    };
    let Ok(Load::Closed { concurrency, think: found, bodies: mut source }) =
        open_load(&closed(4), 1)
    else {
        panic!("not a closed load")
    };
    assert_eq!((concurrency, found), (4, think));
    assert_eq!(source.next_body(RequestId(0)).unwrap().unwrap().output_tokens, 256);
    assert!(source.next_body(RequestId(1)).unwrap().is_some());
    assert!(source.next_body(RequestId(2)).unwrap().is_none());
    assert!(open_load(&closed(0), 1).is_err());
}

#[test]
fn the_same_seed_repeats_and_another_does_not() {
    let spec = generated(ArrivalSpec::Gamma { rate_rps: 9.0, cv: 2.0 }, Some(200));
    let draw = |seed| take(&mut *open(&spec, seed), 200).unwrap();
    assert_eq!(draw(5), draw(5));
    assert_ne!(draw(5), draw(6));
}

#[test]
fn changing_the_arrivals_leaves_the_bodies_alone() {
    let draw = |arrivals| -> Vec<_> {
        let arrivals = take(&mut *open(&generated(arrivals, Some(100)), 3), 100).unwrap();
        arrivals.into_iter().map(|a| a.body).collect()
    };
    assert_eq!(
        draw(ArrivalSpec::Poisson { rate_rps: 2.0 }),
        draw(ArrivalSpec::Gamma { rate_rps: 80.0, cv: 3.0 })
    );
}

fn arrival_specs() -> impl Strategy<Value = ArrivalSpec> {
    let rate = 1e-3..1e6_f64;
    prop_oneof![
        rate.clone().prop_map(|rate_rps| ArrivalSpec::Constant { rate_rps }),
        rate.clone().prop_map(|rate_rps| ArrivalSpec::Poisson { rate_rps }),
        (rate.clone(), 1e-3..1e3_f64)
            .prop_map(|(rate_rps, cv)| ArrivalSpec::Gamma { rate_rps, cv }),
        (
            1..u64::MAX >> 20,
            prop::collection::vec(prop_oneof![Just(0.0), rate], 1..9),
            any::<bool>()
        )
            .prop_map(|(ps, mut rates_rps, repeat)| {
                rates_rps.push(1.0);
                ArrivalSpec::RateCurve { window: Span(ps), rates_rps, scale: 1.5, repeat }
            }),
    ]
}

fn length_specs() -> impl Strategy<Value = (LengthSpec, u32, u32)> {
    (0_u32..5_000, 1_u32..5_000, 0.0..9e3_f64, 0.0..4.0_f64, 0_u8..5).prop_map(
        |(min, more, centre, spread, kind)| {
            let max = min + more;
            let spec = match kind {
                0 => LengthSpec::Fixed(max),
                1 => LengthSpec::Uniform { min, max },
                2 => LengthSpec::Normal { mean: centre, sd: spread * 1e3, min, max },
                3 => LengthSpec::LogNormal { median: centre, sigma: spread, min, max },
                _ => LengthSpec::Quantiles {
                    probabilities: vec![0.0, 0.3, 1.0],
                    tokens: vec![min, min, max],
                },
            };
            (spec, min.max(1), max)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn generated_times_never_fall_and_lengths_stay_in_bounds(
        arrivals in arrival_specs(),
        input in length_specs(),
        output in length_specs(),
        prefix in prop::option::of((1_u32..50, 0_u32..6_000, 0.0..2.0_f64)),
        seed: u64,
    ) {
        let shared_prefix =
            prefix.map(|(groups, tokens, zipf)| SharedPrefixSpec { groups, tokens, zipf });
        let bodies = BodySpec { input_tokens: input.0, output_tokens: output.0, shared_prefix };
        let spec = TrafficSpec::Open { arrivals, requests: Some(200), bodies };
        let all = take(&mut *open(&spec, seed), 300).unwrap();
        prop_assert!(all.len() <= 200);
        prop_assert!(all.is_sorted_by_key(|a| a.at));
        for Arrival { body, .. } in &all {
            prop_assert!((input.1..=input.2).contains(&body.prompt.len()));
            prop_assert!((output.1..=output.2).contains(&body.output_tokens));
            let sum: u32 = body.prompt.segments().iter().map(|s| s.len).sum();
            prop_assert_eq!(sum, body.prompt.len());
        }
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/traces").join(name)
}

/// The reference data beside the checkout, if it is there.
fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared")).join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: {} is not there", path.display());
    None
}

fn written(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn trace(path: impl Into<PathBuf>) -> TraceSpec {
    TraceSpec {
        path: path.into(),
        format: None,
        hash_block_size: Some(4),
        speedup: 1.0,
        limit: None,
    }
}

/// All arrivals and the notes at the end.
fn replay(spec: &TraceSpec) -> Result<(Vec<Arrival>, SourceNotes), WorkloadError> {
    let mut source = match open_load(&TrafficSpec::Trace(spec.clone()), 0)? {
        Load::Open(source) => source,
        Load::Closed { .. } => panic!("a trace became a closed loop"),
    };
    let all = take(&mut *source, u64::MAX)?;
    assert_eq!(source.next_arrival(RequestId(0)), Ok(None), "a trace that ended went on");
    Ok((all, source.notes()))
}

/// The trace at `path` has these rows: time in ps, prompt, output, priority.
fn check_rows(path: &Path, format: TraceFormat, expected: &[(u64, u32, u32, i32)]) -> SourceNotes {
    assert_eq!(detect(path).unwrap().format, format);
    let (all, notes) = replay(&trace(path)).unwrap();
    let found: Vec<_> = all
        .iter()
        .map(|Arrival { at, body }| (at.0, body.prompt.len(), body.output_tokens, body.priority))
        .collect();
    assert_eq!(found, expected, "{}", path.display());
    notes
}

#[test]
fn azure_traces_are_read_in_both_editions() {
    let notes = check_rows(
        &fixture("azure_2023.csv"),
        TraceFormat::AzureLlmCsv,
        &[(0, 120, 30, 0), (250_000_100_000, 64, 1, 0), (3_000_000_000_000, 2_000, 450, 0)],
    );
    assert_eq!(notes, SourceNotes { zero_outputs_raised: 1, zero_prompts_raised: 0 });
    check_rows(
        &fixture("azure_2024.csv"),
        TraceFormat::AzureLlmCsv,
        &[(0, 120, 30, 0), (837_000_000, 64, 1, 0), (2_998_837_000_000, 2_000, 450, 0)],
    );
}

#[test]
fn plain_tables_are_read_plain_packed_and_with_other_line_ends() {
    let rows = [(0, 1_024, 256, 0), (94_008_000_000, 1, 16, -2), (94_008_000_000, 77, 1, 5)];
    let text = std::fs::read_to_string(fixture("plain.csv")).unwrap();
    let variants: [Vec<u8>; 6] = [
        text.clone().into(),
        text.trim_end().into(),
        text.replace('\n', "\r\n").into(),
        format!("\u{feff}\n{text}\n \n").into(),
        gzipped(text.as_bytes()),
        [gzipped(&text.as_bytes()[..70]), gzipped(&text.as_bytes()[70..])].concat(),
    ];
    for bytes in variants {
        let file = written(&bytes);
        let notes = check_rows(file.path(), TraceFormat::PlainCsv, &rows);
        assert_eq!(notes, SourceNotes { zero_outputs_raised: 1, zero_prompts_raised: 1 });
    }
    check_rows(
        &fixture("vidur.csv"),
        TraceFormat::PlainCsv,
        &[(0, 374, 44, 0), (50_000_000, 396, 109, 0), (1_250_000_000_000, 879, 55, 0)],
    );
}

#[test]
fn mooncake_prompts_are_made_of_their_blocks() {
    let path = fixture("mooncake.jsonl");
    check_rows(
        &path,
        TraceFormat::MooncakeJsonl,
        &[
            (0, 10, 5, 0),
            (0, 8, 1, 0),
            (1_250_500_000_000, 12, 7, 0),
            (2_500_000_000_000, 9, 2, 0),
            (3_000_000_000_000, 3, 2, 0),
        ],
    );
    let (all, _) = replay(&trace(path)).unwrap();
    let shared = |n, len| Segment { stream: StreamId::shared(n), len };
    assert_eq!(all[0].body.prompt.segments(), [shared(0, 4), shared(1, 4), shared(2, 2)]);
    assert_eq!(all[1].body.prompt.segments(), [shared(0, 4), shared(1, 4)]);
    let last = all[3].body.prompt.segments();
    assert_eq!(last[..2], [shared(0, 4), shared(1, 4)]);
    assert_ne!(last[2].stream, StreamId::shared(u64::MAX), "a 64-bit id was cut to 62 bits");
    let own = Segment { stream: StreamId::own(RequestId(4)), len: 3 };
    assert_eq!(all[4].body.prompt.segments(), [own]);
}

#[test]
fn replay_may_be_sped_up_and_cut() {
    let spec = TraceSpec { speedup: 2.5, limit: Some(2), ..trace(fixture("azure_2023.csv")) };
    let (all, notes) = replay(&spec).unwrap();
    assert_eq!(all.iter().map(|a| a.at.0).collect::<Vec<_>>(), [0, 100_000_040_000]);
    assert_eq!(notes.zero_outputs_raised, 1);
    for speedup in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let spec = TraceSpec { speedup, ..spec.clone() };
        assert!(replay(&spec).unwrap_err().to_string().starts_with("trace.speedup: "));
    }
    let slow = TraceSpec { speedup: 1e-9, ..spec.clone() };
    assert!(replay(&slow).unwrap_err().to_string().contains(":3: arrives after 250"));
    let blocks = TraceSpec { hash_block_size: Some(0), ..spec };
    assert!(replay(&blocks).unwrap_err().to_string().starts_with("trace.hash_block_size: "));
}

/// A file of these bytes is refused at `line` (0 for the whole file) with this in the message.
fn check_refused(bytes: &[u8], line: u64, expected: &str) {
    check_refused_as(None, bytes, line, expected);
}

fn check_refused_as(format: Option<TraceFormat>, bytes: &[u8], line: u64, expected: &str) {
    let file = written(bytes);
    let error = replay(&TraceSpec { format, ..trace(file.path()) }).unwrap_err();
    let (found, problem) = match &error {
        WorkloadError::TraceLine { line, problem, .. } => (*line, problem),
        WorkloadError::TraceFile { problem, .. } => (0, problem),
        WorkloadError::Spec { problem, .. } => (u64::MAX, problem),
    };
    assert_eq!(found, line, "{error}");
    assert!(problem.contains(expected), "{error} does not say {expected:?}");
    assert!(error.to_string().starts_with(&file.path().display().to_string()));
}

#[test]
fn bad_files_are_refused_with_file_and_line() {
    const HEAD: &str = "arrival_s,input_tokens,output_tokens\n";
    let plain = |rows: &str| format!("{HEAD}{rows}").into_bytes();
    check_refused(b"", 0, "the file is empty");
    check_refused(b"\n \r\n\n", 0, "the file is empty");
    check_refused(HEAD.as_bytes(), 0, "a header and no rows");
    check_refused(&gzipped(b""), 0, "the file is empty");
    check_refused(b"1,2,3\n", 1, "no known trace layout");
    check_refused(b"{\"a\": 1}\n", 1, "no key `timestamp` or `created_time`");
    check_refused(b"{\"chat_id\": 1}\n", 1, "in seconds");
    check_refused(&plain("1,2,3\n\n2,3\n"), 4, "2 columns, expected 3");
    check_refused(&plain("0,2,3\nnan,2,3\n"), 3, "`arrival_s` is \"nan\"");
    check_refused(&plain("0,2,3\n1,-2,3\n"), 3, "`input_tokens` is \"-2\"");
    check_refused(&plain("0,2,3\n1,2,1e9\n"), 3, "`output_tokens` is \"1e9\"");
    check_refused(&plain("5,2,3\n7.5,2,3\n6.25,2,3\n"), 4, "1.25 s after the first row, before");
    check_refused(&plain("5,2,3\n7.5,2,3\n6.25,2,3\n"), 4, "the 2.5 s of line 3");
    check_refused(&plain("5,2,3\n4,2,3\n"), 3, "arrives -1 s after the first row");
    check_refused(&plain("5,2,3\n20000000,2,3\n"), 3, "clock's range of 213 days");
    check_refused(&[HEAD.as_bytes(), b"0,2,\xff\n"].concat(), 2, "byte 5 of the line is not UTF-8");
    check_refused(&[HEAD.as_bytes(), &[b'1'; 9 << 20]].concat(), 2, "longer than 8388608 bytes");
    check_refused(&vec![b'a'; 9 << 20], 1, "longer than 8388608 bytes");
    let error = replay(&trace("/nonexistent/trace.csv")).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/trace.csv: cannot be read"), "{error}");
}

#[test]
fn a_damaged_gzip_file_is_refused() {
    let good = gzipped(&std::fs::read(fixture("azure_2024.csv")).unwrap());
    for length in 10..good.len() {
        let file = written(&good[..length]);
        let error = replay(&trace(file.path())).unwrap_err().to_string();
        assert!(error.contains("cut short"), "cut to {length} bytes: {error}");
    }
    let mut flipped = good;
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0xff;
    let file = written(&flipped);
    assert!(replay(&trace(file.path())).is_err());
}

#[test]
fn a_stated_format_must_be_that_of_the_file() {
    let azure = std::fs::read(fixture("azure_2023.csv")).unwrap();
    let plain = std::fs::read(fixture("plain.csv")).unwrap();
    let mooncake = std::fs::read(fixture("mooncake.jsonl")).unwrap();
    for format in TraceFormat::ALL {
        for (bytes, own) in [
            (&azure, TraceFormat::AzureLlmCsv),
            (&plain, TraceFormat::PlainCsv),
            (&mooncake, TraceFormat::MooncakeJsonl),
        ] {
            if own != format {
                let expected = format!("; it looks like {own}");
                check_refused_as(Some(format), bytes, 1, &expected);
                check_refused_as(Some(format), bytes, 1, &format!("not {format} as stated: "));
            }
        }
    }
}

#[test]
fn hash_ids_need_their_block_size() {
    let spec = TraceSpec { hash_block_size: None, ..trace(fixture("mooncake.jsonl")) };
    let error = replay(&spec).unwrap_err().to_string();
    assert!(error.contains("mooncake.jsonl:1: the row has hash ids"), "{error}");
    assert!(error.ends_with("; 4 to 4 would fit this row"), "{error}");
    let spec = TraceSpec { hash_block_size: Some(5), ..spec };
    let error = replay(&spec).unwrap_err().to_string();
    assert!(error.contains(":1: 3 hash ids for 10 input tokens, expected 2"), "{error}");
}

#[test]
fn detection_says_what_is_used_and_what_is_not() {
    let reason = detect(&fixture("plain.csv")).unwrap().reason;
    assert_eq!(
        reason,
        "header names `arrival_us` (arrival, microseconds), `input_tokens` (prompt) and \
         `output_tokens` (output) and `priority`; ignored: request_id"
    );
}

const FIXTURES: [&str; 4] = ["azure_2023.csv", "plain.csv", "vidur.csv", "mooncake.jsonl"];

fn any_format() -> impl Strategy<Value = Option<TraceFormat>> {
    prop::option::of(prop::sample::select(TraceFormat::ALL.to_vec()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>, format in any_format(), gzip: bool) {
        let file = written(&if gzip { gzipped(&bytes) } else { bytes });
        let _ = replay(&TraceSpec { format, ..trace(file.path()) });
        let _ = inspect_trace(file.path(), format, None);
    }

    #[test]
    fn damaged_traces_give_ordered_rows_or_an_error(
        name in prop::sample::select(FIXTURES.to_vec()),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        gzip: bool,
    ) {
        let mut bytes = std::fs::read(fixture(name)).unwrap();
        for (index, byte) in damage {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        let file = written(&if gzip { gzipped(&bytes) } else { bytes });
        if let Ok((all, _)) = replay(&trace(file.path())) {
            prop_assert!(all.is_sorted_by_key(|a| a.at));
            prop_assert!(all.iter().all(|a| !a.body.prompt.is_empty() && a.body.output_tokens > 0));
        }
        let _ = inspect_trace(file.path(), None, Some(4));
    }

    #[test]
    fn written_rows_are_read_back(
        rows in prop::collection::vec((0_u64..1 << 40, 1_u32.., 1_u32..), 1..50),
    ) {
        let mut at = 17;
        let mut text = String::from("arrival_ns,prompt_tokens,completion_tokens\n");
        let mut expected = Vec::new();
        for (gap, input, output) in rows {
            expected.push(((at - 17) * 1_000, input, output));
            text.push_str(&format!("{at},{input},{output}\n"));
            at += gap;
        }
        let file = written(text.as_bytes());
        let (all, notes) = replay(&trace(file.path())).unwrap();
        let found: Vec<_> =
            all.iter().map(|a| (a.at.0, a.body.prompt.len(), a.body.output_tokens)).collect();
        let first = found[0].0;
        prop_assert_eq!(first, 0);
        prop_assert_eq!(found, expected);
        prop_assert_eq!(notes, SourceNotes::default());
    }
}

#[test]
fn inspection_of_a_small_trace_gives_its_figures() {
    let report = inspect_trace(&fixture("mooncake.jsonl"), None, Some(4)).unwrap();
    assert_eq!((report.rows, report.zero_outputs, report.zero_inputs), (5, 1, 0));
    assert_eq!(report.span, Span(3_000_000_000_000));
    assert_eq!(report.mean_rps, Some(4.0 / 3.0));
    // Seconds hold 2, 1 and 1 rows; the one at 3.0 s opens a bin that never fills.
    assert_eq!(report.peak_rps_1s, Some(2.0));
    assert_eq!(report.dispersion[1..], [None, None]);
    assert!((report.dispersion[0].unwrap() - 0.25).abs() < 1e-12);
    assert_eq!(report.peak_rps_1min(), None);
    let prefix = report.prefix.unwrap();
    assert_eq!((prefix.total_blocks, prefix.unique_blocks, prefix.hit_blocks), (11, 5, 5));
    assert_eq!(prefix.block_sizes, Some((4, Some(4))));
    let page = report.to_string();
    assert!(page.contains("5 of 11 blocks (45.45 %)"), "{page}");
    assert!(page.contains("1 requests have an output of 0 tokens"), "{page}");
    assert!(page.lines().all(|line| line == line.trim_end()));
    let json = report.to_json();
    assert_eq!(json["prefix_reuse"]["infinite_hit_blocks"], 5);
    assert!(json["peak_rps_1min"].is_null());
    assert_eq!(json["input_tokens"]["p50"], 9.0);
}

#[test]
fn figures_for_a_scenario_come_from_a_trace() {
    let path = fixture("azure_2023.csv");
    let rates = rate_curve(&path, Span::from_micros(500_000)).unwrap();
    assert_eq!(rates, [4.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    let quantiles = length_quantiles(&path, &[0.0, 0.25, 0.5, 1.0]).unwrap();
    assert_eq!(quantiles.input_tokens, [64.0, 92.0, 120.0, 2_000.0]);
    assert_eq!(quantiles.output_tokens, [0.0, 15.0, 30.0, 450.0]);
    assert!(rate_curve(&path, Span::ZERO).is_err());
}

/// Figures of our inspection agree with the published index to its four digits.
fn check_index(name: &str, path: &Path, without: &[&str]) {
    let index_path = shared("traces/index.toml").expect("the index lies beside the traces");
    let index: toml::Table = std::fs::read_to_string(index_path).unwrap().parse().unwrap();
    let traces = index["trace"].as_array().unwrap();
    let entry = traces.iter().find(|t| t["name"].as_str() == Some(name)).unwrap();
    let report = inspect_trace(path, None, None).unwrap();
    let json = report.to_json();
    let number = |v: &toml::Value| v.as_float().or(v.as_integer().map(|i| i as f64)).unwrap();
    let mut compared = 0;
    let mut check = |what: &str, ours: &serde_json::Value, theirs: &toml::Value| {
        let (ours, theirs) = (ours.as_f64().unwrap(), number(theirs));
        assert!(
            (ours - theirs).abs() <= 6e-4 * theirs.abs(),
            "{name}: {what} is {ours}, not {theirs}"
        );
        compared += 1;
    };
    for (ours, theirs) in [
        ("rows", "rows"),
        ("span_s", "span_s"),
        ("mean_rps", "mean_rps"),
        ("iat_cv", "iat_cv"),
        ("dispersion_1s", "fano_1s"),
        ("dispersion_10s", "fano_10s"),
        ("dispersion_60s", "fano_60s"),
        ("peak_to_mean_1min", "peak_to_mean_1min"),
        ("peak_rps_1min", "peak_rps_1min"),
        ("peak_rps_1s", "peak_rps_1s"),
    ] {
        if !without.contains(&ours) {
            check(ours, &json[ours], &entry["arrivals"][theirs]);
        }
    }
    for field in ["input_tokens", "output_tokens"] {
        for figure in ["mean", "min", "p10", "p50", "p90", "p95", "p99", "max"] {
            check(figure, &json[field][figure], &entry[field][figure]);
        }
    }
    assert!(compared >= 24);
    assert_eq!(report.minutes_rps.len() as i64, entry["arrivals"]["minutes"].as_integer().unwrap());
    if let Some(reuse) = entry.get("prefix_reuse") {
        for key in ["infinite_hit_blocks", "total_blocks", "unique_blocks"] {
            assert_eq!(json["prefix_reuse"][key].as_i64(), reuse[key].as_integer(), "{key}");
        }
    }
}

#[test]
fn inspection_agrees_with_the_published_index() {
    if let Some(path) = shared("traces/azure-llm-2023/AzureLLMInferenceTrace_conv.csv.gz") {
        check_index("azure-llm-2023-conv", &path, &[]);
    }
    if let Some(path) = shared("traces/aibrix-8min-up-down/requests.csv.gz") {
        check_index("aibrix-8min-up-down", &path, &[]);
    }
    if let Some(path) = shared("traces/mooncake-fast25/conversation_trace.jsonl.gz") {
        // The index counts the 13 rows at exactly 58 min into the 58th minute; ours ends before it.
        check_index(
            "mooncake-fast25-conversation",
            &path,
            &["dispersion_60s", "peak_to_mean_1min"],
        );
        let report = inspect_trace(&path, None, Some(512)).unwrap();
        assert_eq!(report.prefix.unwrap().hit_blocks, 105_710);
    }
}

#[test]
fn the_speed_workloads_are_read_in_full() {
    for (name, rows) in [("w1.csv", 10_000), ("w2.csv.gz", 100_000)] {
        let Some(path) = shared(&format!("benchmarks/speed/{name}")) else {
            continue;
        };
        let (all, notes) = replay(&trace(path)).unwrap();
        assert_eq!((all.len(), notes), (rows, SourceNotes::default()));
        assert!(all.iter().all(|a| a.body.prompt.len() == 1_024 && a.body.output_tokens == 256));
    }
}
