//! Recorded schedules of the real vLLM scheduler, replayed field by field; and that a difference,
//! a bad file or a case that cannot be played is reported as such.

#![expect(clippy::unwrap_used, reason = "a test whose set-up fails has failed")]

use fleetcast::conform::compare::Place;
use fleetcast::conform::{self, ConformError, EngineKind, Report, Verdict};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/oracle")
}

fn fixture(name: &str) -> String {
    let file = std::fs::File::open(fixtures().join(format!("{name}.gz"))).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    text
}

/// A folder with one case and its trace under the name of a fixture.
struct Sandbox {
    folder: tempfile::TempDir,
    name: &'static str,
}

impl Sandbox {
    fn new(name: &'static str) -> Self {
        let sandbox = Self { folder: tempfile::tempdir().unwrap(), name };
        sandbox.write("case.json", &fixture(&format!("{name}.case.json")));
        sandbox.write("trace.jsonl", &fixture(&format!("{name}.trace.jsonl")));
        sandbox
    }

    fn path(&self, ending: &str) -> PathBuf {
        self.folder.path().join(format!("{}.{ending}", self.name))
    }

    fn write(&self, ending: &str, text: &str) {
        std::fs::write(self.path(ending), text).unwrap();
    }

    /// Changes the trace line that `is_it` picks.
    fn alter_trace(&self, is_it: impl Fn(&Value) -> bool, change: impl Fn(&mut Value)) {
        let text = std::fs::read_to_string(self.path("trace.jsonl")).unwrap();
        let mut lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        change(lines.iter_mut().find(|line| is_it(line)).unwrap());
        let text: Vec<String> = lines.iter().map(Value::to_string).collect();
        self.write("trace.jsonl", &text.join("\n"));
    }

    fn alter_case(&self, change: impl Fn(&mut Value)) {
        let text = std::fs::read_to_string(self.path("case.json")).unwrap();
        let mut case: Value = serde_json::from_str(&text).unwrap();
        change(&mut case);
        self.write("case.json", &case.to_string());
    }

    fn run(&self) -> Result<Report, ConformError> {
        conform::run(&[self.folder.path().to_owned()], &[EngineKind::Reference])
    }

    fn error(&self) -> String {
        self.run().unwrap_err().to_string()
    }
}

fn step(number: u64) -> impl Fn(&Value) -> bool {
    move |line| line["kind"] == "step" && line["i"] == number
}

fn request(number: u64) -> impl Fn(&Value) -> bool {
    move |line| line["kind"] == "req" && line["i"] == number
}

#[test]
fn the_reference_engine_decides_as_recorded_vllm_did() {
    let report = conform::run(&[fixtures()], &[EngineKind::Reference]).unwrap();
    println!("{report}");
    assert_eq!((report.ok(), report.diverged(), report.skipped()), (69, 0, 0), "{report}");
    assert_eq!(report.exit_code(), 0);
}

/// The whole collection, older versions included, where it lies beside the project.
#[test]
fn nothing_diverges_in_the_whole_collection_and_what_is_skipped_says_why() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/vllm-oracle"));
    if !folder.is_dir() {
        println!("skipped: {} is not there", folder.display());
        return;
    }
    let report = conform::run(&[folder.to_owned()], &[EngineKind::Reference]).unwrap();
    assert_eq!(report.diverged(), 0, "{report}");
    assert!(report.ok() >= 69, "{report}");
    for case in &report.cases {
        if let Verdict::Skipped(reason) = &case.verdict {
            assert!(reason.contains("modelled"), "{}: {reason}", case.name);
        }
    }
}

/// Alters one field of one line; it must be reported, and nothing else.
fn check_altered(
    name: &'static str,
    place: Place,
    is_it: impl Fn(&Value) -> bool,
    field: &'static str,
    altered: Value,
) {
    let sandbox = Sandbox::new(name);
    assert_eq!(sandbox.run().unwrap().ok(), 1);
    let original = std::cell::RefCell::new(Value::Null);
    sandbox.alter_trace(is_it, |line| {
        let line = if place == Place::Summary { &mut line["summary"] } else { line };
        let value = std::mem::replace(&mut line[field], altered.clone());
        *original.borrow_mut() = value;
    });
    let report = sandbox.run().unwrap();
    assert_eq!((report.ok(), report.diverged(), report.exit_code()), (0, 1, 1));
    let Verdict::Diverged(divergence) = &report.cases[0].verdict else {
        panic!("{report}");
    };
    assert_eq!((divergence.place, divergence.field), (place, field));
    assert_eq!(divergence.expected, altered);
    assert_eq!(divergence.got, original.into_inner());
    let json = report.to_json();
    assert_eq!(json["cases"][0]["ok"], false);
    assert_eq!(json["cases"][0]["first_divergence"]["field"], field);
    assert!(report.to_string().contains(&divergence.to_string()));
}

#[test]
fn an_altered_trace_diverges_at_the_altered_field() {
    let name = "s-micro-preempt";
    let check = |place, field, altered| match place {
        Place::Step(n) => check_altered(name, place, step(n), field, altered),
        Place::Request(n) => check_altered(name, place, request(n), field, altered),
        Place::Summary => check_altered(name, place, |l| l["kind"] == "head", field, altered),
    };
    check(Place::Step(3), "e", json!(4_001));
    check(Place::Step(40), "free", json!(9));
    check(Place::Step(40), "sched", json!([[0, 1, 5]]));
    check(Place::Step(10), "fq_e", json!([1, 2]));
    check(Place::Request(2), "n_out", json!(1));
    check(Place::Request(0), "admissions", json!([[0, 0, 1]]));
    check(Place::Summary, "evicted_cached_blocks", json!(0));
}

#[test]
fn missing_and_surplus_steps_are_divergences() {
    for (number, kept) in [(92, "absent"), (93, "present")] {
        let sandbox = Sandbox::new("s-micro-preempt");
        let text = std::fs::read_to_string(sandbox.path("trace.jsonl")).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let last = lines.pop().unwrap();
        if kept == "present" {
            lines.push(last.clone());
            lines.push(last.replace("\"i\":92", "\"i\":93"));
        }
        sandbox.write("trace.jsonl", &lines.join("\n"));
        let report = sandbox.run().unwrap();
        let Verdict::Diverged(divergence) = &report.cases[0].verdict else {
            panic!("{report}");
        };
        assert_eq!((divergence.place, divergence.field), (Place::Step(number), "line"));
        assert_eq!(divergence.expected, kept);
    }
}

#[test]
fn a_case_that_cannot_be_played_is_skipped_with_the_reason() {
    let check = |sandbox: &Sandbox, reason: &str| {
        let report = sandbox.run().unwrap();
        assert_eq!((report.ok(), report.diverged(), report.skipped()), (0, 0, 1), "{report}");
        assert_eq!(report.to_json()["cases"][0]["ok"], Value::Null);
        assert!(report.to_string().contains(reason), "{report}");
    };
    let sandbox = Sandbox::new("s-micro-async");
    sandbox.alter_case(|case| {
        case["engine"]["spec"] = json!({"method": "eagle", "k": 3, "accept": [1]});
    });
    check(&sandbox, "speculative decoding");
    let sandbox = Sandbox::new("s-micro-async");
    sandbox.alter_case(|case| case["engine"]["prefix_cache_retention_interval"] = json!(64));
    check(&sandbox, "`prefix_cache_retention_interval` is 64");
    let sandbox = Sandbox::new("s-micro-async");
    sandbox.alter_trace(|line| line["kind"] == "head", |line| line["vllm"] = json!("0.20.2"));
    check(&sandbox, "0.20.2");
}

#[test]
fn a_trace_finds_its_case_beside_it_or_in_the_folder_above() {
    let sandbox = Sandbox::new("s-micro-async");
    let files = ["case.json", "trace.jsonl"].map(|ending| sandbox.path(ending));
    for file in &files {
        let report = conform::run(std::slice::from_ref(file), &[EngineKind::Reference]).unwrap();
        assert_eq!(report.ok(), 1);
    }
    // Both name the same case, which is run once.
    assert_eq!(conform::run(&files, &[EngineKind::Reference]).unwrap().cases.len(), 1);

    let folder = sandbox.folder.path().join("older");
    std::fs::create_dir(&folder).unwrap();
    let trace = folder.join("s-micro-async.trace.jsonl.gz");
    let mut packed = flate2::write::GzEncoder::new(
        std::fs::File::create(&trace).unwrap(),
        flate2::Compression::fast(),
    );
    packed.write_all(fixture("s-micro-async.trace.jsonl").as_bytes()).unwrap();
    packed.finish().unwrap();
    assert_eq!(conform::run(&[trace], &[EngineKind::Reference]).unwrap().ok(), 1);
    assert_eq!(sandbox.run().unwrap().ok(), 2);
}

#[test]
fn bad_cases_are_refused_with_file_and_line() {
    let check = |change: &dyn Fn(&mut Value), problem: &str| {
        let sandbox = Sandbox::new("s-micro-async");
        sandbox.alter_case(change);
        let error = sandbox.error();
        assert!(error.contains("s-micro-async.case.json"), "{error}");
        assert!(error.contains(problem), "{error}");
    };
    check(&|case| case["engine"]["max_num_seq"] = json!(4), "unknown field `max_num_seq`");
    check(&|case| case["engine"]["policy"] = json!("lifo"), "expected `fcfs` or `priority`");
    check(&|case| case["clock"]["base_us"] = json!(-1), "-1");
    check(&|case| case["requests"][1]["out"] = json!(0), "request 1: `out` is 0");
    check(&|case| case["requests"][1]["segs"] = json!([]), "request 1: the prompt has 0 tokens");
    check(&|case| case["requests"][1]["segs"] = json!([["o", 9, 3]]), "quotes request 9");
    check(&|case| case["engine"]["num_gpu_blocks"] = json!(u32::MAX), "expected at most 16777216");
    check(&|case| case["engine"]["block_size"] = json!(u32::MAX), "expected at most 65536");
    check(&|case| case["engine"]["max_model_len"] = json!(2), "fewer than `max_model_len`, 2");
    check(&|case| case["requests"][1]["after"] = json!([0, 5]), "either `at` or `after`");
    let mamba = |mode: &str| json!([{"type": "mamba", "mode": mode, "block_size": 32}]);
    check(&|case| case["engine"]["kv_groups"] = mamba("align"), "expected `block_size`, 16");
    check(&|case| case["engine"]["kv_groups"] = mamba("none"), "expected `max_model_len`, ");
    let closed = json!({"mode": "closed", "concurrency": 0});
    check(&|case| case["arrivals"] = closed.clone(), "`arrivals.concurrency` is 0");

    let sandbox = Sandbox::new("s-micro-async");
    sandbox.alter_case(|case| {
        let request = case["requests"][1].as_object_mut().unwrap();
        request.remove("at");
        request.insert("after".to_owned(), json!([2, 5]));
    });
    assert!(sandbox.error().contains("`after` names request 2"), "{}", sandbox.error());
    sandbox.write("case.json", "{\n\"name\": }");
    assert!(sandbox.error().contains("case.json:2: "), "{}", sandbox.error());
}

#[test]
fn bad_traces_are_refused_with_file_and_line() {
    let check = |text: &str, problem: &str| {
        let sandbox = Sandbox::new("s-micro-async");
        sandbox.write("trace.jsonl", text);
        let error = sandbox.error();
        assert!(error.contains("s-micro-async.trace.jsonl"), "{error}");
        assert!(error.contains(problem), "{error}");
    };
    let good = fixture("s-micro-async.trace.jsonl");
    let lines: Vec<&str> = good.lines().collect();
    check("", "the trace is empty");
    check(lines[1], ":1: expected the `head` line first");
    check(&[lines[0], lines[0]].join("\n"), ":2: a second `head`");
    check(&[lines[0], "{\"kind\":\"stop\"}"].join("\n"), ":2: unknown variant `stop`");
    check(&[lines[0], &lines[6][..40]].join("\n"), ":2: ");
    check(&good.replace("\"free_e\"", "\"free_end\""), "free_end");
    check(&good.replace("s-micro-async", "s-other"), "is of case `s-other`");
}

#[test]
fn bad_arguments_are_refused_with_what_was_expected() {
    let run = |path: &Path| {
        conform::run(&[path.to_owned()], &[EngineKind::Reference]).unwrap_err().to_string()
    };
    let empty = tempfile::tempdir().unwrap();
    assert!(run(empty.path()).contains("no `*.case.json`"));
    assert!(run(&empty.path().join("nothing")).contains("no such file"));
    let other = empty.path().join("notes.txt");
    std::fs::write(&other, "x").unwrap();
    assert!(run(&other).contains("ends in `.case.json`"));
    let sandbox = Sandbox::new("s-micro-async");
    std::fs::remove_file(sandbox.path("trace.jsonl")).unwrap();
    assert!(sandbox.error().contains("expected `s-micro-async.trace.jsonl` beside it"));
    let sandbox = Sandbox::new("s-micro-async");
    std::fs::remove_file(sandbox.path("case.json")).unwrap();
    assert!(sandbox.error().contains("or in the folder above"));
    std::fs::write(sandbox.path("case.json.gz"), "not gzip").unwrap();
    assert!(sandbox.error().contains("case.json.gz: "));
}

#[test]
fn the_fast_engine_decides_as_recorded_vllm_did_step_by_step_and_in_stretches() {
    let report = conform::run(&[fixtures()], &[EngineKind::FastSingly, EngineKind::Fast]).unwrap();
    let differing: Vec<String> = report
        .to_string()
        .lines()
        .filter(|line| !line.starts_with("ok"))
        .map(str::to_owned)
        .collect();
    assert_eq!(report.diverged(), 0, "{differing:#?}");
    for case in &report.cases {
        if let Verdict::Skipped(reason) = &case.verdict {
            assert!(reason.contains("KV group"), "{}: {reason}", case.name);
        }
    }
    assert_eq!((report.ok(), report.skipped()), (2 * 61, 2 * 8), "{differing:#?}");
}

#[test]
fn more_places_than_requests_end_as_soon_as_the_requests_do() {
    let sandbox = Sandbox::new("s-sweep-sync-c04");
    sandbox.alter_case(|case| case["arrivals"]["concurrency"] = json!(u64::MAX));
    assert_eq!(sandbox.run().unwrap().diverged(), 1);
}
