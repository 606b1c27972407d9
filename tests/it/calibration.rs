//! The shipped step-time profiles: they read, state enough evidence, stay below what the hardware
//! can do, and their stored predictions follow from their own coefficients wherever a closed form
//! exists, so that a table and its file cannot drift apart.

use fleetcast::latency::{Coefficients, StepShape, StepTimeModel, TablePoint};
use std::path::PathBuf;
use toml::{Table, Value};

/// What the hardware and the model allow, from datasheet and model configuration.
struct Limits {
    file: &'static str,
    bytes_per_s: f64,
    flops_per_s: f64,
    weight_bytes: f64,
    flops_per_token: f64,
    kv_bytes_per_token: f64,
    flops_per_attention_unit: f64,
}

const PROFILES: [Limits; 2] = [
    Limits {
        file: "llama-3-8b-h100",
        bytes_per_s: 3.35e12,
        flops_per_s: 989e12,
        weight_bytes: 2.0 * (6.979e9 + 0.5253e9),
        flops_per_token: 2.0 * 6.979e9,
        kv_bytes_per_token: 131_072.0,
        flops_per_attention_unit: 2.0 * 32.0 * 32.0 * 128.0,
    },
    Limits {
        file: "qwen3-8b-fp8-l4",
        bytes_per_s: 300e9,
        flops_per_s: 121e12,
        weight_bytes: 6.946e9 + 2.0 * 0.6223e9,
        flops_per_token: 2.0 * 6.946e9,
        kv_bytes_per_token: 147_456.0,
        flops_per_attention_unit: 2.0 * 36.0 * 32.0 * 128.0,
    },
];

/// A measured figure beside its stored prediction.
struct Point {
    /// `metric.stat: load`.
    what: String,
    measured: f64,
    predicted: f64,
    error_pct: f64,
    fitted: bool,
}

struct Profile {
    step_time: Coefficients,
    model: StepTimeModel,
    frontend_s: f64,
    points: Vec<Point>,
}

fn number(value: &Value) -> f64 {
    value.as_float().or_else(|| value.as_integer().map(|n| n as f64)).expect("a number")
}

fn whole(value: &Value) -> u32 {
    value.as_integer().and_then(|n| u32::try_from(n).ok()).expect("a whole number")
}

fn text_of<'a>(table: &'a Value, key: &str) -> &'a str {
    table[key].as_str().expect("text")
}

fn list<'a>(table: &'a Table, key: &str) -> &'a [Value] {
    table[key].as_array().unwrap_or_else(|| panic!("`{key}` is no list"))
}

fn read(name: &str) -> Profile {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "calibration", name].iter().collect();
    let text = std::fs::read_to_string(path.with_extension("toml")).expect("profile file");
    let table: Table = text.parse().expect("TOML");
    assert_eq!(table["name"].as_str(), Some(name));
    let step = table["step_time"].as_table().expect("step_time");
    let point = |pair: &Value| {
        let pair = pair.as_array().expect("a pair");
        TablePoint { tokens: whole(&pair[0]), seconds: number(&pair[1]) }
    };
    let step_time = Coefficients {
        fixed_s: number(&step["fixed_s"]),
        tokens_table: list(step, "tokens_table").iter().map(point).collect(),
        per_prefill_token_s: number(&step["per_prefill_token_s"]),
        per_prefill_seq_s: number(&step["per_prefill_seq_s"]),
        per_decode_seq_s: number(&step["per_decode_seq_s"]),
        per_kv_token_s: number(&step["per_kv_token_s"]),
        per_prefill_attention_s: number(&step["per_prefill_attention_s"]),
        graph_sizes: list(step, "graph_sizes").iter().map(whole).collect(),
    };
    let model = StepTimeModel::new(&step_time).expect("a step-time model");
    let point = |p: &Value| Point {
        what: format!("{}: {}", text_of(p, "metric"), text_of(p, "what")),
        measured: number(&p["measured"]),
        predicted: number(&p["predicted"]),
        error_pct: number(&p["error_pct"]),
        fitted: p["fitted"].as_bool().expect("true or false"),
    };
    Profile {
        step_time,
        model,
        frontend_s: number(&table["frontend_latency_s"]),
        points: list(&table, "point").iter().map(point).collect(),
    }
}

impl Profile {
    fn predicted(&self, what: &str) -> f64 {
        let found = self.points.iter().find(|p| p.what == what);
        found.unwrap_or_else(|| panic!("no point `{what}`")).predicted
    }

    /// Milliseconds of one step.
    fn step_ms(&self, shape: StepShape) -> f64 {
        1e3 * self.model.step(&shape).floor().seconds()
    }

    fn decode_ms(&self, batch: u32, context: u32) -> f64 {
        let decode_context = u64::from(batch) * u64::from(context);
        self.step_ms(StepShape { decode_seqs: batch, decode_context, ..StepShape::default() })
    }
}

#[track_caller]
fn assert_near(got: f64, want: f64, tolerance: f64) {
    assert!((got / want - 1.0).abs() <= tolerance, "{got} is not within {tolerance} of {want}");
}

#[test]
fn every_profile_states_its_evidence() {
    for Limits { file, .. } in PROFILES {
        let profile = read(file);
        let held_out = profile.points.iter().filter(|p| !p.fitted).count();
        assert!(profile.points.len() - held_out >= 6, "{file}: too few fitted points");
        assert!(held_out >= 1, "{file}: nothing held out");
        for p in &profile.points {
            let error = 100.0 * (p.predicted / p.measured - 1.0);
            assert!((p.error_pct - error).abs() < 0.01, "{file}: {}: {error}", p.what);
        }
        let fitted: Vec<f64> =
            profile.points.iter().filter(|p| p.fitted).map(|p| p.error_pct.abs()).collect();
        let mean = fitted.iter().sum::<f64>() / fitted.len() as f64;
        assert!(mean < 5.0, "{file}: mean error of the fitted points is {mean} %");
    }
}

#[test]
fn no_profile_outruns_its_hardware() {
    for limits in PROFILES {
        let step = read(limits.file).step_time;
        let [.., low, high] = step.tokens_table.as_slice() else { panic!("a table") };
        let slope = (high.seconds - low.seconds) / f64::from(high.tokens - low.tokens);
        let first = step.tokens_table.first().expect("a point").seconds;
        let shares = [
            ("weights", limits.weight_bytes / first / limits.bytes_per_s),
            ("matrix products", limits.flops_per_token / slope / limits.flops_per_s),
            ("KV reads", limits.kv_bytes_per_token / step.per_kv_token_s / limits.bytes_per_s),
            (
                "attention",
                limits.flops_per_attention_unit / step.per_prefill_attention_s / limits.flops_per_s,
            ),
        ];
        for (what, share) in shares {
            assert!((0.05..=1.0).contains(&share), "{}: {what} at {share}", limits.file);
        }
    }
}

#[test]
fn stored_decode_steps_follow_from_the_coefficients() {
    let profile = read("qwen3-8b-fp8-l4");
    assert_near(
        profile.predicted("step: decode 1 x 4122 tokens"),
        profile.decode_ms(1, 4122),
        1e-4,
    );
    assert_near(
        profile.predicted("step: decode 16 x 384 tokens"),
        profile.decode_ms(16, 384),
        1e-4,
    );
}

#[test]
fn a_lone_request_on_l4_has_a_closed_form() {
    let profile = read("qwen3-8b-fp8-l4");
    let (prompt, output) = (4108u32, 256u32);
    let prefill = profile.step_ms(StepShape {
        prefill_tokens: prompt,
        prefill_seqs: 1,
        prefill_attention: u64::from(prompt) * u64::from(prompt),
        ..StepShape::default()
    });
    let decode: f64 = (1..output).map(|k| profile.decode_ms(1, prompt + k)).sum();
    let run = "aggregated, 1 in flight per GPU";
    let ttft = 1e3 * profile.frontend_s + prefill;
    assert_near(profile.predicted(&format!("ttft.mean: {run}")), ttft, 1e-4);
    let tpot = decode / f64::from(output - 1);
    assert_near(profile.predicted(&format!("tpot.mean: {run}")), tpot, 1e-4);
    assert_near(profile.predicted(&format!("e2e.mean: {run}")), ttft + decode, 1e-4);
}

/// With all 128 slots taken, a request holds one for a prefill step and 61.4 decode steps, so a
/// mean step admits 128 / 62.4 prompts and decodes the rest.
#[test]
fn a_saturated_h100_has_a_balance() {
    let profile = read("llama-3-8b-h100");
    let (slots, prompt, output) = (128.0, 204.1, 62.4);
    let prompts: f64 = slots / output;
    let decoding = slots - prompts;
    let step = &profile.step_time;
    let tokens = decoding + prompts * prompt;
    let bare = StepShape { decode_seqs: tokens.round() as u32, ..StepShape::default() };
    let table_ms = profile.step_ms(bare) - 1e3 * step.per_decode_seq_s * tokens.round();
    let rest_s = prompts * step.per_prefill_seq_s
        + decoding * step.per_decode_seq_s
        + decoding * (prompt + output / 2.0) * step.per_kv_token_s
        + prompts * prompt * prompt * step.per_prefill_attention_s;
    let tpot = table_ms + 1e3 * rest_s;
    // The mean over steps of a curved table lies a little above the table at the mean.
    assert_near(profile.predicted("tpot.mean: kubecon 122.6 req/s"), tpot, 0.08);
    let rate = prompts / (tpot / 1e3);
    assert_near(profile.predicted("throughput.requests_per_s: kubecon 122.6 req/s"), rate, 0.08);
}
