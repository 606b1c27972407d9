//! The program as people and scripts use it: exit codes, streams, files, and bytes that repeat.

use assert_cmd::Command;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Small enough to run in a blink, busy enough to queue; two pools, samples and an SLO.
const SMALL: &str = "
name = 'small'
seed = 3

[run]
horizon = '30s'
warm_up = '5s'

[[pool]]
name = 'main'
instance_type = 'ml.g6.12xlarge'
instances = 1
replicas_per_instance = 2
engine = { max_num_seqs = 8, max_model_len = 2048, num_gpu_blocks = 400 }
step_time = { fixed_s = 0.01, per_prefill_token_s = 1e-5, per_kv_token_s = 1e-8 }

[[pool]]
name = 'spill'
instance_type = 'ml.g6.12xlarge'
instances = 1
replicas_per_instance = 1
engine = { max_num_seqs = 4, max_model_len = 2048, num_gpu_blocks = 400 }
step_time = { fixed_s = 0.02, per_prefill_token_s = 1e-5, per_kv_token_s = 1e-8 }

[router.random]

[traffic.poisson]
rate_rps = 12
input_tokens = { uniform = { min = 20, max = 600 } }
output_tokens = { uniform = { min = 1, max = 80 } }

[slo]
ttft.p95 = '30s'

[output]
sample_every = '1s'
";

fn fleetcast() -> Command {
    let mut command = Command::cargo_bin("fleetcast").unwrap();
    command.env_remove("NO_COLOR").timeout(std::time::Duration::from_secs(120));
    command
}

/// A folder with the small scenario in it.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("small.toml"), SMALL).unwrap();
    dir
}

/// Runs in `dir`; exit code, stdout, stderr.
fn answer(dir: &Path, arguments: &[&str]) -> (i32, String, String) {
    answer_to(dir, arguments, "")
}

fn answer_to(dir: &Path, arguments: &[&str], stdin: &str) -> (i32, String, String) {
    let output = fleetcast().current_dir(dir).args(arguments).write_stdin(stdin).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Every file of a folder by name.
fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, if path.is_dir() { Vec::new() } else { fs::read(&path).unwrap() })
        })
        .collect()
}

fn names(dir: &Path) -> Vec<String> {
    contents(dir).into_keys().collect()
}

fn assert_same_files(a: &Path, b: &Path) {
    let (a, b) = (contents(a), contents(b));
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    for (name, bytes) in &a {
        assert!(bytes == &b[name], "{name} differs");
    }
}

#[test]
fn a_run_answers_on_stdout_accounts_on_stderr_and_writes_its_files() {
    let dir = folder();
    let (code, stdout, stderr) = answer(dir.path(), &["run", "small.toml", "--out", "out"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("SLO MET") && !stdout.contains('\x1b'), "{stdout}");
    assert!(stdout.lines().all(|line| line.chars().count() <= 80), "{stdout}");
    assert!(stderr.contains("simulated in") && !stdout.contains("simulated in"), "{stderr}");
    let out = dir.path().join("out");
    assert_eq!(names(&out), ["requests.csv", "resolved.toml", "summary.json", "timeseries.csv"]);

    let (_, json, quiet) = answer(dir.path(), &["run", "small.toml", "--json", "--quiet"]);
    assert_eq!(quiet, "");
    assert_eq!(json, fs::read_to_string(out.join("summary.json")).unwrap());
    assert_eq!(names(dir.path()), ["out", "small.toml"]);
}

#[test]
fn figures_of_the_summary_are_those_of_the_rows() {
    let dir = folder();
    answer(dir.path(), &["run", "small.toml", "--out", "out"]);
    let out = dir.path().join("out");
    let summary: serde_json::Value =
        serde_json::from_slice(&fs::read(out.join("summary.json")).unwrap()).unwrap();
    let mut reader = csv::Reader::from_path(out.join("requests.csv")).unwrap();
    let headers = reader.headers().unwrap().clone();
    let column = |name: &str| headers.iter().position(|h| h == name).unwrap();
    let seconds =
        |record: &csv::StringRecord, name: &str| -> f64 { record[column(name)].parse().unwrap() };
    let parts =
        ["routing_s", "frontend_s", "queue_s", "kv_wait_s", "prefill_s", "decode_s", "preempted_s"];
    let (mut arrived, mut measured, mut e2e_sum, mut last) = (0, 0, 0.0, (0.0, 0));
    for record in reader.records() {
        let record = record.unwrap();
        arrived += 1;
        let e2e = seconds(&record, "e2e_s");
        let sum: f64 = parts.iter().map(|part| seconds(&record, part)).sum();
        assert!((sum - e2e).abs() < 1e-9, "{sum} in parts of {e2e}");
        let end = (seconds(&record, "finished_s"), record[column("id")].parse::<u64>().unwrap());
        assert!(last < end, "rows in order of completion, then id");
        last = end;
        if &record[column("measured")] == "true" {
            measured += 1;
            e2e_sum += e2e;
        }
    }
    assert_eq!(summary["requests"]["arrived"], arrived);
    assert_eq!(summary["latency_s"]["e2e"]["n"], measured);
    let mean = summary["latency_s"]["e2e"]["mean"].as_f64().unwrap();
    assert!((mean - e2e_sum / f64::from(measured)).abs() < 1e-9 * mean);
    let by_pool: u64 =
        (0..2).map(|pool| summary["pools"][pool]["requests"].as_u64().unwrap()).sum();
    assert_eq!(by_pool, arrived as u64);
}

#[test]
fn runs_repeat_byte_for_byte_on_any_number_of_threads_and_from_the_resolved_scenario() {
    let dir = folder();
    let run = |scenario: &str, out: &str, more: &[&str]| {
        let mut arguments = vec!["run", scenario, "--out", out];
        arguments.extend(more);
        let (code, _, stderr) = answer(dir.path(), &arguments);
        assert_eq!(code, 0, "{stderr}");
    };
    let at = |name: &str| dir.path().join(name);
    let typed = ["--replications", "5", "--seed", "11", "--set", "pool.0.engine.max_num_seqs=6"];
    let with = |threads: &'static str| [&typed[..], &["--threads", threads]].concat();
    run("small.toml", "one", &with("1"));
    run("small.toml", "four", &with("4"));
    assert_same_files(&at("one"), &at("four"));
    // What was typed is in resolved.toml, so nothing needs to be typed again.
    run("one/resolved.toml", "again", &[]);
    assert_same_files(&at("one"), &at("again"));
    run("small.toml", "other", &["--seed", "12"]);
    assert_ne!(contents(&at("one"))["requests.csv"], contents(&at("other"))["requests.csv"]);
}

#[test]
fn the_first_replication_is_the_single_run_and_compression_changes_no_row() {
    let dir = folder();
    let text = |out: &str, more: &[&str]| {
        let (code, _, stderr) =
            answer(dir.path(), &[&["run", "small.toml", "--out", out], more].concat());
        assert_eq!(code, 0, "{stderr}");
        let out = dir.path().join(out);
        match fs::read(out.join("requests.csv.zst")) {
            Ok(bytes) => String::from_utf8(zstd::decode_all(&bytes[..]).unwrap()).unwrap(),
            Err(_) => fs::read_to_string(out.join("requests.csv")).unwrap(),
        }
    };
    let single = text("single", &[]);
    let three = text("three", &["--replications", "3"]);
    assert_eq!(three, text("packed", &["--replications", "3", "--requests", "csv.zst"]));
    assert!(!dir.path().join("packed/requests.csv").exists());
    let first: Vec<&str> = three.lines().filter_map(|line| line.strip_prefix("0,")).collect();
    assert_eq!(first, single.lines().skip(1).collect::<Vec<_>>());
    for number in ["1,", "2,"] {
        assert!(three.lines().filter(|line| line.starts_with(number)).count() > 100);
    }
}

#[test]
fn a_later_run_into_the_same_folder_leaves_nothing_of_the_earlier_one() {
    let dir = folder();
    answer(dir.path(), &["run", "small.toml", "--out", "out"]);
    let out = dir.path().join("out");
    fs::write(out.join("notes.txt"), "mine").unwrap();
    let typed = ["run", "small.toml", "--out", "out", "--requests", "none"];
    let (code, _, stderr) =
        answer(dir.path(), &[&typed[..], &["--set", "output.sample_every=never"]].concat());
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(names(&out), ["notes.txt", "resolved.toml", "summary.json"]);
}

#[test]
fn a_missed_slo_is_an_answer_with_code_one() {
    let dir = folder();
    let tight = ["run", "small.toml", "--out", "out", "--set", "slo.ttft.p95=1ms"];
    let (code, stdout, stderr) = answer(dir.path(), &tight);
    assert_eq!(code, 1, "{stderr}");
    assert!(stdout.contains("SLO MISSED by ttft.p95"), "{stdout}");
    assert!(dir.path().join("out/summary.json").exists());
}

#[test]
fn bad_input_gives_code_two_words_on_stderr_and_no_file() {
    let dir = folder();
    let at = dir.path();
    let files = [
        ("empty.toml", ""),
        ("broken.toml", "name = 'x"),
        ("unknown.toml", &*SMALL.replace("rate_rps", "rate_rsp")),
        ("negative.toml", &*SMALL.replace("rate_rps = 12", "rate_rps = -1")),
        ("zero.toml", &*SMALL.replace("instances = 1", "instances = 0")),
        ("nan.toml", &*SMALL.replace("rate_rps = 12", "rate_rps = nan")),
        ("trace.toml", &*replace_traffic("[traffic.trace]\npath = 'none.csv'")),
        ("cut.toml", &*replace_traffic("[traffic.trace]\npath = 'cut.csv'")),
        ("cut.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:01:51.1630340,4808"),
        ("file", "no folder"),
    ];
    for (name, text) in files {
        fs::write(at.join(name), text).unwrap();
    }
    let latin = SMALL.replace("small", "sm~ll").into_bytes();
    let latin: Vec<u8> = latin.into_iter().map(|b| if b == b'~' { 0xFC } else { b }).collect();
    fs::write(at.join("latin.toml"), latin).unwrap();
    let before = names(at);
    for (arguments, words) in [
        (&["run"][..], "SCENARIO"),
        (&["fly", "small.toml"], "unrecognized subcommand"),
        (&["sweep", "small.toml"], "unrecognized subcommand"),
        (&["run", "small.toml", "--threads", "0"], "--threads"),
        (&["run", "small.toml", "--threads", "1000000"], "--threads"),
        (&["run", "small.toml", "--seed=-1"], "--seed"),
        (&["run", "small.toml", "--replications", "0"], "--replications"),
        (&["run", "small.toml", "--requests", "parquet"], "parquet"),
        (&["run", "small.toml", "--set", "nothing"], "KEY=VALUE"),
        (&["run", "small.toml", "--set", "pool.9.instances=1", "--out", "out"], "pool.9"),
        (&["run", "small.toml", "--set", "pool.0.instnces=1", "--out", "out"], "instances"),
        (&["run", "missing.toml", "--out", "out"], "missing.toml"),
        (&["run", "empty.toml", "--out", "out"], "name"),
        (&["run", "broken.toml", "--out", "out"], "broken.toml:1"),
        (&["run", "unknown.toml", "--out", "out"], "rate_rps"),
        (&["run", "negative.toml", "--out", "out"], "rate_rps"),
        (&["run", "zero.toml", "--out", "out"], "instances"),
        (&["run", "nan.toml", "--out", "out"], "rate_rps"),
        (&["run", "trace.toml", "--out", "out"], "none.csv"),
        (&["run", "cut.toml", "--out", "out"], "cut.csv:2"),
        (&["run", "small.toml", "--out", "file"], "expected a folder"),
        (&["run", "latin.toml", "--out", "out"], "line 2, column 11: byte 0xFC is not UTF-8"),
        (&["inspect", "latin.toml"], "line 2, column 11: byte 0xFC is not UTF-8"),
        (&["run", "small.toml", "--set", "pool.0.frontend_latency=18446744s"], "past the clock"),
        (&["check", "unknown.toml", "small.toml"], ""),
        (&["inspect", "missing"], "missing"),
        (&["inspect", "file"], "tried as"),
        (&["inspect", "."], "summary.json"),
        (&["conform", "missing.case.json"], "missing"),
    ] {
        let (code, stdout, stderr) = answer(at, arguments);
        assert_eq!(code, 2, "{arguments:?}: {stdout}{stderr}");
        assert!(stderr.contains(words), "`{words}` for {arguments:?} in\n{stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        assert_eq!(names(at), before, "after {arguments:?}");
        if arguments[0] == "run" {
            assert_eq!(stdout, "", "{arguments:?}");
        }
    }
}

fn replace_traffic(traffic: &str) -> String {
    let start = SMALL.find("[traffic").unwrap();
    let end = SMALL.find("[slo]").unwrap();
    format!("{}{traffic}\n\n{}", &SMALL[..start], &SMALL[end..])
}

#[test]
fn a_run_that_fails_half_way_leaves_an_earlier_run_as_it_was() {
    let dir = folder();
    answer(dir.path(), &["run", "small.toml", "--out", "out"]);
    let out = dir.path().join("out");
    let before = contents(&out);
    // A trace that goes wrong after rows have been written.
    let mut rows = "arrival_s,input_tokens,output_tokens\n".to_owned();
    for i in 0..2000 {
        rows += &format!("{}.5,100,5\n", i / 100);
    }
    rows += "oops,100,5\n";
    fs::write(dir.path().join("late.csv"), rows).unwrap();
    let late = replace_traffic("[traffic.trace]\npath = 'late.csv'");
    fs::write(dir.path().join("late.toml"), late).unwrap();
    let (code, _, stderr) = answer(dir.path(), &["run", "late.toml", "--out", "out"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("late.csv:2002"), "{stderr}");
    assert_eq!(contents(&out), before);
}

#[test]
fn the_written_start_is_sound_runs_as_it_is_and_is_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let (code, stdout, _) = answer(dir.path(), &["init", "mine"]);
    assert_eq!(code, 0);
    assert!(stdout.contains("fleetcast run mine/scenario.toml"), "{stdout}");
    let (code, stdout, _) = answer(dir.path(), &["check", "mine/scenario.toml"]);
    assert_eq!(code, 0, "{stdout}");
    let short = ["--set", "run.horizon=20s", "--set", "run.warm_up=2s"];
    let (code, _, stderr) =
        answer(dir.path(), &[&["run", "mine/scenario.toml"], &short[..]].concat());
    assert!(code == 0 || code == 1, "{stderr}");
    let scenario = dir.path().join("mine/scenario.toml");
    fs::write(&scenario, "changed").unwrap();
    let (code, _, stderr) = answer(dir.path(), &["init", "mine"]);
    assert_eq!(code, 2, "{stderr}");
    assert_eq!(fs::read_to_string(scenario).unwrap(), "changed");
}

#[test]
fn a_dash_reads_stdin() {
    let dir = folder();
    let (code, from_stdin, stderr) = answer_to(dir.path(), &["run", "-", "--json"], SMALL);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(from_stdin, answer(dir.path(), &["run", "small.toml", "--json"]).1);
    assert_eq!(answer_to(dir.path(), &["check", "-"], SMALL).0, 0);
    let rows = "arrival_s,input_tokens,output_tokens\n0,10,2\n1.5,30,4\n";
    let (code, stdout, stderr) = answer_to(dir.path(), &["inspect", "-", "--json"], rows);
    assert_eq!(code, 0, "{stderr}");
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["rows"], 2);
}

#[test]
fn inspect_tells_what_a_file_is() {
    let dir = folder();
    answer(dir.path(), &["run", "small.toml", "--out", "out"]);
    for (file, words) in [
        ("out", "SLO MET"),
        ("out/summary.json", "SLO MET"),
        ("out/resolved.toml", "pool spill"),
        ("small.toml", "requests at once"),
    ] {
        let (code, stdout, stderr) = answer(dir.path(), &["inspect", file]);
        assert_eq!(code, 0, "{file}: {stderr}");
        assert!(stdout.contains(words), "{file}: {stdout}");
        let (_, json, _) = answer(dir.path(), &["inspect", file, "--json"]);
        serde_json::from_str::<serde_json::Value>(&json).unwrap();
    }
    let run = answer(dir.path(), &["run", "small.toml"]).1;
    assert_eq!(answer(dir.path(), &["inspect", "out"]).1, run);
}

#[test]
fn catalog_and_help_name_what_there_is() {
    let dir = folder();
    let (code, stdout, _) = answer(dir.path(), &["catalog"]);
    assert_eq!(code, 0);
    for name in ["gpus", "instances", "p5.48xlarge", "llama-3.1-8b", "least-outstanding-requests"] {
        assert!(stdout.contains(name), "{name} in\n{stdout}");
    }
    let (_, json, _) = answer(dir.path(), &["catalog", "policies", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["policies"].as_array().is_some_and(|list| list.len() >= 5));
    let (code, help, _) = answer(dir.path(), &["--help"]);
    assert_eq!(code, 0);
    for verb in ["run", "check", "init", "catalog", "inspect", "conform"] {
        assert!(help.contains(&format!("\n  {verb} ")), "{verb} in\n{help}");
    }
}

#[test]
fn colours_come_when_asked_for() {
    let dir = folder();
    let (_, stdout, _) = answer(dir.path(), &["run", "small.toml", "--color", "always"]);
    assert!(stdout.contains("\x1b[1;32mSLO MET\x1b[0m"), "{stdout}");
}

#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_is_no_error() {
    use std::process::{Command as Process, Stdio};
    let dir = folder();
    let program = assert_cmd::cargo::cargo_bin!("fleetcast");
    let mut child = Process::new(program)
        .current_dir(dir.path())
        .args(["catalog"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty());
}

#[cfg(unix)]
#[test]
fn an_interruption_leaves_code_130_and_nothing_half_written() {
    use std::process::{Command as Process, Stdio};
    use std::time::{Duration, Instant};
    let dir = folder();
    let out = dir.path().join("new/out");
    let mut child = Process::new(assert_cmd::cargo::cargo_bin!("fleetcast"))
        .current_dir(dir.path())
        // Longer than anybody waits.
        .args(["run", "small.toml", "--out", "new/out", "--set", "run.horizon=100d"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The staging folder shows that rows are being written.
    let started = Instant::now();
    let staged = || out.read_dir().is_ok_and(|mut entries| entries.next().is_some());
    while !staged() && started.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
    }
    assert!(staged(), "the run never began");
    Process::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(names(dir.path()), ["small.toml"]);
}

#[test]
fn a_run_never_replaces_what_no_run_wrote() {
    let dir = folder();
    fs::write(dir.path().join("requests.csv"), "my trace").unwrap();
    let (code, _, stderr) = answer(dir.path(), &["run", "small.toml", "--out", "."]);
    assert_eq!(code, 2);
    assert!(stderr.contains("`requests.csv` in it is of no earlier run"), "{stderr}");
    assert_eq!(fs::read_to_string(dir.path().join("requests.csv")).unwrap(), "my trace");
}

#[test]
fn findings_for_machines_say_where() {
    let dir = folder();
    let text = SMALL.replace("rate_rps", "rate_rsp");
    fs::write(dir.path().join("bad.toml"), &text).unwrap();
    let (code, stdout, _) = answer(dir.path(), &["check", "bad.toml", "--json"]);
    assert_eq!(code, 2);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let problems = json["files"][0]["problems"].as_array().unwrap();
    let found = problems.iter().find(|p| p["code"] == "unknown-key").unwrap();
    let line = text.lines().position(|line| line.contains("rate_rsp")).unwrap() + 1;
    assert_eq!((&found["file"], &found["column"]), (&"bad.toml".into(), &1.into()));
    assert_eq!(found["line"], line);
}

#[cfg(unix)]
#[test]
fn many_replications_need_few_open_files() {
    let dir = folder();
    let program = assert_cmd::cargo::cargo_bin("fleetcast");
    let script = format!(
        "ulimit -n 64; exec '{}' run small.toml --quiet --threads 2 --set run.horizon=200ms --set \
         run.warm_up=0s --set run.drain_limit=0s --replications 80 --out out",
        program.display()
    );
    let output = Command::new("sh").current_dir(dir.path()).args(["-c", &script]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code().is_some_and(|code| code < 2), "{stderr}");
    let rows = fs::read_to_string(dir.path().join("out/timeseries.csv")).unwrap();
    let last = rows.lines().last().unwrap();
    assert!(last.starts_with("79,"), "{last}");
    assert_eq!(
        names(&dir.path().join("out")),
        ["requests.csv", "resolved.toml", "summary.json", "timeseries.csv"]
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_under_stdout_is_told_with_code_two() {
    let dir = folder();
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    for arguments in [&["run", "small.toml"][..], &["catalog"], &["check", "small.toml"]] {
        let output = std::process::Command::new(assert_cmd::cargo::cargo_bin("fleetcast"))
            .current_dir(dir.path())
            .args(arguments)
            .stdout(full())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains("writing the answer to stdout"), "{stderr}");
    }
}
