//! The shipped scenarios, run whole by the program: exit codes as their first lines say, figures
//! that obey the laws any answer must obey, rates and lengths that are those of the trace they
//! name, and the table of simulated against measured figures in `calibration/README.md`.

use assert_cmd::Command;
use flate2::read::GzDecoder;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Scenario files of a folder, in order of name.
fn scenarios(name: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder(name))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "toml"))
        .collect();
    files.sort();
    files
}

/// Exit code and answer of the program.
fn run(scenario: &Path) -> (i32, Value) {
    let mut command = Command::cargo_bin("fleetcast").unwrap();
    let output = command.arg("run").arg(scenario).args(["--json", "--quiet"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let answer = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{}: {error}\n{stderr}", scenario.display()));
    (output.status.code().unwrap(), answer)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn close(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() <= tolerance * b.abs()
}

/// What holds for every answer, whatever the scenario.
fn obeys_the_laws(name: &str, answer: &Value) {
    let requests = &answer["requests"];
    let count = |fate: &str| requests[fate].as_u64().unwrap();
    let fates = ["completed", "rejected", "timed_out", "failed", "unfinished"];
    assert_eq!(count("arrived"), fates.iter().map(|fate| count(fate)).sum::<u64>(), "{name}");

    let e2e = &answer["latency_s"]["e2e"];
    let parts: f64 =
        answer["breakdown_s"].as_object().unwrap().values().map(|part| number(&part["mean"])).sum();
    assert!(close(parts, number(&e2e["mean"]), 1e-9), "{name}: parts {parts}, {e2e}");
    for stats in answer["latency_s"].as_object().unwrap().values() {
        let rising: Vec<f64> = ["p50", "p90", "p95", "p99"].map(|p| number(&stats[p])).to_vec();
        assert!(rising.is_sorted() && number(&stats["mean"]) <= number(&stats["max"]), "{name}");
        // A percentile stands for its bucket, which may reach a thousandth beyond the largest.
        assert!(rising[3] <= number(&stats["max"]) * 1.001, "{name}: {stats}");
    }

    let (mut bill, mut in_service_h, mut routed) = (0.0, 0.0, 0);
    for pool in answer["pools"].as_array().unwrap() {
        bill += number(&pool["cost_usd"]);
        in_service_h += number(&pool["instance_hours"]) / number(&pool["instances_mean"]);
        routed += pool["requests"].as_u64().unwrap();
        for share in
            [&pool["utilisation_mean"], &pool["kv"]["usage_mean"], &pool["kv"]["usage_max"]]
        {
            assert!((0.0..=1.0).contains(&number(share)), "{name}: {pool}");
        }
        // The mean over steps of the batch cannot exceed the largest batch seen.
        assert!(number(&pool["batch_mean"]) <= number(&pool["running_max"]), "{name}: {pool}");
    }
    assert_eq!(routed, count("arrived"), "{name}");
    assert!(close(bill, number(&answer["cost"]["total_usd"]), 1e-9), "{name}");
    let pools = answer["pools"].as_array().unwrap().len() as f64;
    assert!(close(in_service_h / pools, number(&answer["simulated_s"]) / 3600.0, 1e-9), "{name}");
    if let Some(goodput) = answer["throughput"]["goodput_requests_per_s"].as_f64() {
        assert!(goodput <= number(&answer["throughput"]["requests_per_s"]), "{name}");
    }
}

#[test]
fn shipped_scenarios_answer_as_their_first_lines_say() {
    let mut missed = Vec::new();
    for file in scenarios("scenarios") {
        let name = file.file_stem().unwrap().to_str().unwrap();
        let meant = fs::read_to_string(&file).unwrap().contains("\n# Exit code 1 is meant");
        let (code, answer) = run(&file);
        assert_eq!(code, i32::from(meant), "{name}: {}", answer["slo"]);
        obeys_the_laws(name, &answer);
        if meant {
            missed.push(name.to_owned());
        }
    }
    assert_eq!(missed, ["closed-loop-1024", "closed-loop-256", "misses-its-slo"]);
}

/// Little's law: over a run that is steady at its ends, requests in flight are rate × time.
/// The H100 profile was fitted with up to 440 requests in flight, but to batches of up to 128.
#[test]
fn batches_beyond_those_measured_are_marked() {
    for (level, beyond) in [(64, false), (256, true)] {
        let path = folder("scenarios").join(format!("closed-loop-{level}.toml"));
        let (_, answer) = run(&path);
        let warnings = answer["warnings"].as_array().unwrap();
        let load = warnings.iter().find(|w| w["code"] == "extrapolated-load");
        assert_eq!(load.is_some(), beyond, "{warnings:#?}");
        assert_eq!(answer["profiles"][0]["in_calibrated_range"], !beyond);
        if let Some(warning) = load {
            let text = warning["text"].as_str().unwrap();
            assert!(text.contains("256 requests running") && text.contains("128"), "{text}");
        }
    }
}

#[test]
fn closed_loops_keep_littles_law() {
    for (concurrency, tolerance) in [(64.0, 0.02), (256.0, 0.06)] {
        let (_, answer) = run(&folder(&format!("scenarios/closed-loop-{concurrency}.toml")));
        let rate = number(&answer["throughput"]["requests_per_s"]);
        let in_flight = rate * number(&answer["latency_s"]["e2e"]["mean"]);
        // The last requests leave a loop that nobody refills, so it is a little below.
        assert!(in_flight <= concurrency * 1.001, "{in_flight} of {concurrency}");
        assert!(close(in_flight, concurrency, tolerance), "{in_flight} of {concurrency}");
    }
}

/// A row of the public trace.
struct Row {
    minute: usize,
    input: u32,
    output: u32,
}

/// The public trace, when it lies beside the project.
fn azure_conversation() -> Option<Vec<Row>> {
    let path = folder("../shared/traces/azure-llm-2023/AzureLLMInferenceTrace_conv.csv.gz");
    let Ok(file) = fs::File::open(&path) else {
        eprintln!("skipped: {} is not there", path.display());
        return None;
    };
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).unwrap();
    let mut first = None;
    let rows = text.lines().skip(1).map(|line| {
        let cells: Vec<&str> = line.split(',').collect();
        // All on one day: "2023-11-16 18:15:46.6805900".
        let clock: Vec<f64> = cells[0][11..].split(':').map(|x| x.parse().unwrap()).collect();
        let second = clock[0] * 3600.0 + clock[1] * 60.0 + clock[2];
        let since_first = second - *first.get_or_insert(second);
        Row {
            minute: (since_first / 60.0) as usize,
            input: cells[1].parse().unwrap(),
            output: cells[2].parse().unwrap(),
        }
    });
    Some(rows.collect())
}

fn floats(list: &toml::Value) -> Vec<f64> {
    let of = |x: &toml::Value| x.as_float().or_else(|| x.as_integer().map(|n| n as f64)).unwrap();
    list.as_array().unwrap().iter().map(of).collect()
}

#[test]
fn chat_traffic_is_that_of_the_trace_it_names() {
    let Some(rows) = azure_conversation() else { return };
    let mut curves = 0;
    for file in scenarios("scenarios") {
        let scenario: toml::Table = fs::read_to_string(&file).unwrap().parse().unwrap();
        let Some(curve) = scenario["traffic"].get("rate-curve") else { continue };
        curves += 1;
        for (minute, rate) in floats(&curve["rates_rps"]).into_iter().enumerate() {
            let counted = rows.iter().filter(|row| row.minute == minute).count() as f64 / 60.0;
            assert!((rate - counted).abs() < 0.0006, "{file:?}: minute {minute}: {counted}");
        }
        for (key, of) in [
            ("input_tokens", (|row| row.input) as fn(&Row) -> u32),
            ("output_tokens", |row| row.output),
        ] {
            let mut sorted: Vec<u32> = rows.iter().map(of).collect();
            sorted.sort_unstable();
            let quantiles = &curve[key]["quantiles"];
            let shares = floats(&quantiles["probabilities"]);
            for (share, tokens) in shares.into_iter().zip(floats(&quantiles["tokens"])) {
                let rank = (share * sorted.len() as f64).ceil() as usize;
                let expected = sorted[rank.saturating_sub(1)];
                assert_eq!(tokens, f64::from(expected), "{file:?}: {key} at {share}");
            }
        }
    }
    assert_eq!(curves, 4);
}

#[test]
fn the_table_of_checks_is_what_the_program_says() {
    let page = fs::read_to_string(folder("calibration/README.md")).unwrap();
    let (_, table) = page.split_once("<!-- begin checks -->").unwrap();
    let (table, _) = table.split_once("<!-- end checks -->").unwrap();
    let mut answers: BTreeMap<&str, Value> = BTreeMap::new();
    let mut rows = 0;
    for line in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [check, n, metric, measured, simulated, unit, error, _] = cells[..] else {
            panic!("{line}")
        };
        let check = check.trim_matches('`');
        let answer = answers
            .entry(check)
            .or_insert_with(|| run(&folder(&format!("calibration/check/{check}.toml"))).1);
        let figure = match metric.split_once('.').unwrap() {
            ("throughput", key) => number(&answer["throughput"][key]),
            (latency, stat) => 1000.0 * number(&answer["latency_s"][latency][stat]),
        };
        assert_eq!(answer["latency_s"]["e2e"]["n"].to_string(), n.replace(',', ""), "{line}");
        let (measured, simulated): (f64, f64) =
            (measured.parse().unwrap(), simulated.parse().unwrap());
        assert!(close(figure, simulated, 5.1e-5), "{figure} {unit}: {line}");
        let error_pct: f64 = error.parse().unwrap();
        assert!((100.0 * (figure / measured - 1.0) - error_pct).abs() < 0.06, "{line}");
        rows += 1;
    }
    assert_eq!(answers.len(), scenarios("calibration/check").len());
    assert!(rows > 30, "{rows}");
}

fn page(name: &str) -> String {
    fs::read_to_string(folder(name)).unwrap()
}

#[test]
fn the_readme_shows_what_the_program_prints() {
    let readme = page("README.md");
    let (_, shown) = readme.split_once("```text\n").unwrap();
    let (shown, _) = shown.split_once("```\n").unwrap();
    let mut command = Command::cargo_bin("fleetcast").unwrap();
    let output = command.arg("run").arg(folder("scenarios/chat-peak-p5.toml")).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), shown);
}

/// Every key of a table and of those inside it.
fn keys(table: &toml::Table, found: &mut Vec<String>) {
    for (key, value) in table {
        found.push(key.clone());
        match value {
            toml::Value::Table(inner) => keys(inner, found),
            toml::Value::Array(items) => {
                items.iter().filter_map(|item| item.as_table()).for_each(|item| keys(item, found));
            }
            _ => {}
        }
    }
}

#[test]
fn the_readme_explains_every_key_in_use() {
    let readme = page("README.md");
    let mut used = Vec::new();
    for file in scenarios("scenarios").into_iter().chain(scenarios("calibration/check")) {
        // The resolved text has every default, and profiles as tables of their own.
        let scenario = fleetcast::scenario::load(&file, &[]).unwrap();
        let mut resolved: toml::Table = scenario.to_resolved_toml().parse().unwrap();
        resolved.remove("profile");
        resolved.remove("slo");
        keys(&resolved, &mut used);
    }
    used.sort();
    used.dedup();
    assert!(used.len() > 50, "{used:?}");
    let told = |key: &str| {
        readme.split('`').any(|code| {
            code.split(|c: char| !(c.is_alphanumeric() || "_-".contains(c))).any(|word| word == key)
        })
    };
    let untold: Vec<&String> = used.iter().filter(|key| !told(key)).collect();
    assert!(untold.is_empty(), "{untold:?}");
}
