//! Calibration profiles: the file format, its checks, and where a profile is found: embedded in the
//! scenario, shipped with the program, or a file. A profile says how long steps take on one GPU
//! type for one model, what that was fitted on, and the region in which it may be believed.

use super::problem::{Diagnostics, Problem, Problems, Source};
use super::read::{Bounds, Length, Reader, integer_in, number_of};
use super::tree::{self, Node, Value};
use crate::latency::{Coefficients, LatencyError, StepShape, StepTimeModel, TablePoint};
use crate::units::{Fix, Span};
use sha2::{Digest, Sha256};

/// A calibration profile.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Its name; equal to the file name without `.toml` for those that are shipped.
    pub name: String,
    /// What it is, in a sentence.
    pub description: Option<String>,
    /// Model it was measured with (catalog name).
    pub model: String,
    /// GPU it was measured on (catalog name).
    pub gpu: String,
    /// GPUs that share one copy of the model.
    pub tensor_parallel_size: u32,
    /// Engine it was measured with.
    pub engine: ProfileEngine,
    /// Step time.
    pub step_time: Coefficients,
    /// Seconds from arrival at the instance to the engine's queue.
    pub frontend_latency: Span,
    /// Where it may be believed.
    pub region: Region,
    /// What it was fitted on.
    pub sources: Vec<ProfileSource>,
    /// Measured against predicted.
    pub points: Vec<ProfilePoint>,
    /// SHA-256 of the file, in hex.
    pub sha256: String,
}

/// Engine of a profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileEngine {
    /// `vllm`.
    pub name: String,
    /// Release.
    pub version: String,
    /// Flags that differ from the defaults.
    pub flags: Vec<String>,
}

/// Code of what is said about prompts and answers of lengths that no calibration saw.
pub const EXTRAPOLATED_LENGTHS: &str = "extrapolated-lengths";
/// Code of what is said about a load (requests in flight, KV usage) that no calibration saw.
pub const EXTRAPOLATED_LOAD: &str = "extrapolated-load";

/// Ranges seen in calibration, both ends included; `None` when unknown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Region {
    /// Requests in flight on one replica, queued ones included.
    pub concurrency: Option<[f64; 2]>,
    /// Sequences that decode in one step.
    pub batch: Option<[f64; 2]>,
    /// Prompt tokens.
    pub input_tokens: Option<[f64; 2]>,
    /// Output tokens.
    pub output_tokens: Option<[f64; 2]>,
    /// Share of the KV pool in use, 0..1.
    pub kv_usage: Option<[f64; 2]>,
}

/// Where figures of a profile come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileSource {
    /// Short name that points refer to; the title unless stated.
    pub id: String,
    /// Title of the publication or data set.
    pub title: String,
    /// Address, or repository and path.
    pub r#where: String,
    /// Licence of the data.
    pub licence: Option<String>,
    /// What was taken and how.
    pub note: Option<String>,
}

/// One figure, measured and predicted.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfilePoint {
    /// Source that measured it, by its id.
    pub source: String,
    /// Under which load.
    pub what: String,
    /// Which figure, as `metric.stat`, where `what` does not say.
    pub metric: Option<String>,
    /// As published.
    pub measured: f64,
    /// By this profile.
    pub predicted: f64,
    /// Unit of both.
    pub unit: String,
    /// 100·(predicted/measured − 1).
    pub error_pct: f64,
    /// The fit saw it; false for a figure that was held back.
    pub fitted: bool,
}

/// Reads and checks the text of a profile; `file` names it in messages.
///
/// # Errors
/// All problems of the text together.
pub fn parse(file: &str, text: &str) -> Result<Profile, Diagnostics> {
    let problems = Problems::default();
    let node = tree::parse(0, text, &problems);
    let profile = if problems.any_error() { None } else { read(&node, text, &problems) };
    let failed = problems.any_error();
    let sources = vec![Source { name: file.to_owned(), text: text.to_owned() }];
    let diagnostics = Diagnostics::new(sources, problems.into_inner());
    match profile {
        Some(profile) if !failed => Ok(profile),
        _ => Err(diagnostics),
    }
}

/// SHA-256 of a text, in hex.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a profile file from its tree.
pub(super) fn read(node: &Node, text: &str, problems: &Problems) -> Option<Profile> {
    let mut r = Reader::root(node, problems)?;
    let mut profile = read_core(&mut r)?;
    for mut s in r.tables("source") {
        profile.sources.extend(read_source(&mut s));
        s.finish();
    }
    for mut p in r.tables("point") {
        if let Some(point) = read_point(&mut p) {
            check_source(&p, &point, &profile.sources);
            profile.points.push(point);
        }
        p.finish();
    }
    profile.sha256 = sha256_hex(text.as_bytes());
    r.finish();
    Some(profile)
}

/// The part of a profile that a scenario may embed: all but sources and points.
pub(super) fn read_core(r: &mut Reader<'_>) -> Option<Profile> {
    let name = required_text(r, "name", "name = \"llama-3-8b-h100\"");
    let description = r.text("description").map(|d| d.value.to_owned());
    let model = required_text(r, "model", "model = \"llama-3.1-8b\"");
    let gpu = required_text(r, "gpu", "gpu = \"h100\"");
    let tensor_parallel_size = r.count("tensor_parallel_size", 1..=64);
    if !r.has("tensor_parallel_size") {
        r.missing("tensor_parallel_size", "tensor_parallel_size = 1");
    }
    let engine = read_engine(r);
    let step_time = match r.table("step_time") {
        Some(mut table) => {
            let coefficients = read_coefficients(&mut table);
            table.finish();
            coefficients
        }
        None => {
            if !r.has("step_time") {
                r.missing("step_time", "[step_time] with fixed_s = 0.006");
            }
            None
        }
    };
    let frontend = r.duration("frontend_latency", Length::MayBeZero);
    let region = match r.table("region") {
        Some(mut table) => {
            let region = read_region(&mut table);
            table.finish();
            region
        }
        None => Region::default(),
    };
    Some(Profile {
        name: name?,
        description,
        model: model?,
        gpu: gpu?,
        tensor_parallel_size: tensor_parallel_size?,
        engine: engine?,
        step_time: step_time?,
        frontend_latency: frontend.map_or(Span::ZERO, |f| f.value),
        region,
        sources: Vec::new(),
        points: Vec::new(),
        sha256: String::new(),
    })
}

pub(super) fn required_text(r: &mut Reader<'_>, key: &str, example: &str) -> Option<String> {
    if !r.has(key) {
        r.know(key);
        r.missing(key, example);
    }
    r.text(key).map(|found| found.value.to_owned())
}

fn read_engine(r: &mut Reader<'_>) -> Option<ProfileEngine> {
    let Some(mut table) = r.table("engine") else {
        if !r.has("engine") {
            r.missing("engine", "engine = { name = \"vllm\", version = \"0.32.0\" }");
        }
        return None;
    };
    let name = required_text(&mut table, "name", "name = \"vllm\"");
    let version = required_text(&mut table, "version", "version = \"0.32.0\"");
    let flags = match table.node("flags").map(|node| &node.value) {
        Some(Value::Text(line)) => line.split_whitespace().map(str::to_owned).collect(),
        Some(_) => table
            .list("flags", "strings", |item| match &item.value {
                Value::Text(flag) => Some(flag.clone()),
                _ => None,
            })
            .map_or_else(Vec::new, |found| found.value),
        None => Vec::new(),
    };
    table.finish();
    Some(ProfileEngine { name: name?, version: version?, flags })
}

/// Reads the coefficients of the step-time model.
pub(super) fn read_coefficients(r: &mut Reader<'_>) -> Option<Coefficients> {
    let mut bounded = |key: &str, max: f64| {
        r.number(key, Bounds::NotNegative(max)).map_or(0.0, |found| found.value)
    };
    let fixed_s = bounded("fixed_s", 999.0);
    // What is multiplied has 64 bits.
    let mut seconds = |key: &str| bounded(key, 17.0);
    let mut coefficients = Coefficients {
        fixed_s,
        tokens_table: Vec::new(),
        per_prefill_token_s: seconds("per_prefill_token_s"),
        per_prefill_seq_s: seconds("per_prefill_seq_s"),
        per_decode_seq_s: seconds("per_decode_seq_s"),
        per_kv_token_s: seconds("per_kv_token_s"),
        per_prefill_attention_s: seconds("per_prefill_attention_s"),
        graph_sizes: Vec::new(),
    };
    if let Some(table) = r.list("tokens_table", "[tokens, seconds] pairs", table_point) {
        coefficients.tokens_table = table.value;
    }
    let token_range = 1..=u64::from(u32::MAX);
    let size = |item: &Node| integer_in(item, &token_range).map(|n| n as u32);
    if let Some(sizes) = r.list("graph_sizes", "batch sizes", size) {
        if !sizes.value.is_sorted_by(|a, b| a < b) {
            let problem = Problem::error("not-ascending", "`graph_sizes` does not rise");
            let problem = problem.at(sizes.place, "expected ascending batch sizes");
            r.report("graph_sizes", problem);
        }
        coefficients.graph_sizes = sizes.value;
    }
    check_coefficients(r, &coefficients).then_some(coefficients)
}

fn table_point(item: &Node) -> Option<TablePoint> {
    let Value::List(pair) = &item.value else { return None };
    let [tokens, seconds] = pair.as_slice() else { return None };
    let tokens = integer_in(tokens, &(0..=u64::from(u32::MAX)))? as u32;
    let seconds = number_of(seconds).filter(|s| (0.0..1000.0).contains(s))?;
    Some(TablePoint { tokens, seconds })
}

fn check_coefficients(r: &Reader<'_>, coefficients: &Coefficients) -> bool {
    match StepTimeModel::new(coefficients) {
        Ok(model) if is_free(&model) => {
            let problem = Problem::error("free-steps", "every step would take no time")
                .at(r.place(), "all coefficients are 0, or as good as")
                .help("give at least fixed_s, the seconds that any step takes");
            r.report("fixed_s", problem);
            false
        }
        Ok(_) => true,
        Err(error) => {
            let key = match &error {
                LatencyError::BadCoefficient { key, .. } => key,
                LatencyError::TableNotRising { .. } => "tokens_table",
            };
            let place = r.place_of(key);
            r.report(key, Problem::error("bad-step-time", error.to_string()).at(place, "here"));
            false
        }
    }
}

/// True when a step of a prompt and an answer takes no time even in the clock's finest unit.
fn is_free(model: &StepTimeModel) -> bool {
    let shape = StepShape {
        prefill_tokens: 2,
        prefill_seqs: 1,
        prefill_attention: 4,
        decode_seqs: 1,
        decode_context: 1,
    };
    model.step(&shape) == Fix::ZERO
}

fn read_region(r: &mut Reader<'_>) -> Region {
    let mut range = |key: &str| {
        let found = r.list(key, "numbers", number_of)?;
        match found.value.as_slice() {
            &[low, high] if 0.0 <= low && low <= high => Some([low, high]),
            _ => {
                let title = format!("`{}` is no range", r.path_of(key));
                let problem = Problem::error("bad-range", title)
                    .at(found.place, "expected [lowest, highest]");
                r.report(key, problem);
                None
            }
        }
    };
    Region {
        concurrency: range("concurrency"),
        batch: range("batch"),
        input_tokens: range("input_tokens"),
        output_tokens: range("output_tokens"),
        kv_usage: range("kv_usage"),
    }
}

fn read_source(r: &mut Reader<'_>) -> Option<ProfileSource> {
    let title = required_text(r, "title", "title = \"...\"");
    let place = required_text(r, "where", "where = \"https://...\"");
    let licence = r.text("licence").map(|found| found.value.to_owned());
    let note = r.text("note").map(|found| found.value.to_owned());
    let id = r.text("id").map(|found| found.value.to_owned());
    let title = title?;
    let id = id.unwrap_or_else(|| title.clone());
    Some(ProfileSource { id, title, r#where: place?, licence, note })
}

fn read_point(r: &mut Reader<'_>) -> Option<ProfilePoint> {
    let source = required_text(r, "source", "source = \"...\"");
    let what = required_text(r, "what", "what = \"e2e.mean at concurrency 64\"");
    let unit = required_text(r, "unit", "unit = \"s\"");
    let mut figure = |key: &str| {
        if !r.has(key) {
            r.missing(key, &format!("{key} = 1.0"));
        }
        r.number(key, Bounds::Within(-1e15, 1e15)).map(|found| found.value)
    };
    let (measured, predicted) = (figure("measured"), figure("predicted"));
    let error_pct = figure("error_pct");
    let metric = r.text("metric").map(|found| found.value.to_owned());
    if !r.has("fitted") {
        r.missing("fitted", "fitted = true");
    }
    let fitted = r.boolean("fitted");
    Some(ProfilePoint {
        source: source?,
        what: what?,
        metric,
        measured: measured?,
        predicted: predicted?,
        unit: unit?,
        error_pct: error_pct?,
        fitted: fitted?,
    })
}

/// Every figure names one of the sources.
fn check_source(r: &Reader<'_>, point: &ProfilePoint, sources: &[ProfileSource]) {
    let known = |name: &str| sources.iter().any(|s| s.id == name || s.title == name);
    if !known(&point.source) {
        let title = format!("no [[source]] is called `{}`", point.source);
        let problem = Problem::error("unknown-source", title)
            .at(r.place_of("source"), "expected the id or title of a [[source]]")
            .nearest(&point.source, sources.iter().map(|s| s.id.as_str()));
        r.report("source", problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = r#"
name = "toy"
model = "llama-3.1-8b"
gpu = "h100"
tensor_parallel_size = 1
engine = { name = "vllm", version = "0.32.0", flags = "--no-enable-prefix-caching" }
frontend_latency_s = 0.004
[step_time]
fixed_s = 0.006
tokens_table = [[1, 0.001], [512, 0.004]]
per_kv_token_s = 39e-9
graph_sizes = [1, 2, 4]
[region]
concurrency = [1, 256]
batch = [1, 64]
kv_usage = [0, 0.9]
[[source]]
title = "made up"
where = "here"
[[point]]
source = "made up"
what = "tpot.mean"
measured = 0.01
predicted = 0.011
unit = "s"
error_pct = 10
fitted = false
"#;

    #[test]
    fn a_sound_profile_is_read() {
        let profile = parse("toy.toml", SOUND).unwrap();
        assert_eq!(profile.frontend_latency, Span::from_seconds(0.004).unwrap());
        assert_eq!(profile.step_time.tokens_table.len(), 2);
        assert_eq!(profile.region.concurrency, Some([1.0, 256.0]));
        assert_eq!(profile.region.batch, Some([1.0, 64.0]));
        assert_eq!(profile.engine.flags, ["--no-enable-prefix-caching"]);
        assert_eq!(profile.sha256.len(), 64);
        assert!(!profile.points[0].fitted);
    }

    #[test]
    fn all_problems_of_a_profile_are_shown_together() {
        let text = SOUND
            .replace("fixed_s = 0.006", "fixed_s = nan")
            .replace("[1, 256]", "[256, 1]")
            .replace("unit = \"s\"\n", "units = \"s\"\n");
        let shown = parse("toy.toml", &text).unwrap_err();
        let codes: Vec<&str> = shown.problems().iter().map(|p| p.code).collect();
        assert_eq!(codes, ["bad-value", "bad-range", "missing-key", "unknown-key"]);
    }
}
