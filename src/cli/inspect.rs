//! `inspect`: finds out what a file is, and says what is in it. Names and first bytes decide where
//! they can; what cannot be told is refused together with all that was tried.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::cli::args::InspectArgs;
use crate::cli::console::Console;
use crate::cli::exit::Exit;
use crate::cli::input::{self, STDIN, bad, is_stdin};
use crate::cli::verbs::pretty;
use crate::conform::case::Case;
use crate::conform::trace::Trace;
use crate::report::Summary;
use crate::report::format::count;
use crate::report::pages::{self, Page};
use crate::report::terminal::render;
use crate::scenario::{self, profile, text};
use crate::workload::inspect::inspect_trace;

/// As much of a file as it takes to tell its kind.
const HEAD_BYTES: u64 = 64 * 1024;

/// What a file looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    RunFolder,
    Summary,
    Case,
    Schedule,
    Profile,
    Scenario,
    Trace,
}

/// Prints what is in a file.
///
/// # Errors
/// When it cannot be read, or is nothing known.
pub fn inspect(args: &InspectArgs, console: Console) -> Result<Exit> {
    // Traces are read by path, so stdin is laid down in a file that goes away at the end.
    let mut spooled = None;
    let path: PathBuf = if is_stdin(&args.file) {
        let mut file = tempfile::NamedTempFile::new().context(STDIN)?;
        std::io::copy(&mut std::io::stdin().lock(), &mut file).context(STDIN)?;
        let path = file.path().to_owned();
        spooled = Some(file);
        path
    } else {
        args.file.clone()
    };
    let page = page(&path, console);
    let page = match &spooled {
        // Nobody knows the name of the file in between.
        Some(_) => page.map_err(|error| {
            anyhow::anyhow!(format!("{error:#}").replace(&path.display().to_string(), STDIN))
        })?,
        None => page?,
    };
    console.answer(&if console.json { pretty(&page.json)? } else { page.text })?;
    Ok(Exit::Answered)
}

fn page(path: &Path, console: Console) -> Result<Page> {
    let name = path.display().to_string();
    match kind_of(path)? {
        Kind::RunFolder => run_folder(path, console),
        Kind::Summary => summary(path, None, console),
        Kind::Case => case(&Case::parse(&name, &crate::conform::files::read(path)?)?),
        Kind::Schedule => {
            let trace = Trace::parse(&name, &crate::conform::files::read(path)?)?;
            Ok(schedule(&trace))
        }
        Kind::Profile => {
            let text = text::read(path).with_context(|| name.clone())?;
            let profile = profile::parse(&name, &text).map_err(|found| bad(&found, console))?;
            Ok(pages::profile(&profile))
        }
        Kind::Scenario => {
            Ok(pages::scenario(&input::scenario(path, &input::Overrides::new(), console)?))
        }
        Kind::Trace => trace(path),
    }
}

fn kind_of(path: &Path) -> Result<Kind> {
    let name = path.display().to_string();
    if path.is_dir() {
        if path.join("summary.json").is_file() {
            return Ok(Kind::RunFolder);
        }
        bail!(
            "{name} is a folder without summary.json, so it holds no run\nhelp: give a file, or \
               a folder that `fleetcast run --out` wrote"
        );
    }
    let mut head = Vec::new();
    let file = File::open(path).with_context(|| name.clone())?;
    file.take(HEAD_BYTES).read_to_end(&mut head).with_context(|| name.clone())?;
    let stem = name.strip_suffix(".gz").unwrap_or(&name);
    let text = String::from_utf8_lossy(&head);
    let starts = text.trim_start();
    Ok(if stem.ends_with(".case.json") {
        Kind::Case
    } else if stem.ends_with(".trace.jsonl") || is_schedule_head(starts) {
        Kind::Schedule
    } else if starts.starts_with('{') && starts.contains("\"fleetcast\"") {
        Kind::Summary
    } else if stem.ends_with(".toml") || looks_like_toml(starts) {
        if is_scenario(starts) { Kind::Scenario } else { Kind::Profile }
    } else {
        Kind::Trace
    })
}

/// The first line of a recorded schedule names its kind.
fn is_schedule_head(text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    let value: Option<Value> = serde_json::from_str(first).ok();
    value.is_some_and(|value| value["kind"] == "head")
}

/// The first line that is no comment is a key or a table.
fn looks_like_toml(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with('#')).unwrap_or_default();
    let is_key = |key: &str| key.chars().all(|c| c.is_alphanumeric() || "_-.\"".contains(c));
    match first.split_once('=') {
        Some((key, _)) => !key.trim().is_empty() && is_key(key.trim()),
        None => first.starts_with('[') && first.ends_with(']') && !first.contains(','),
    }
}

/// Scenarios have pools or traffic, profiles have neither.
fn is_scenario(text: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim_start();
        ["[[pool", "[traffic", "[run]", "[slo]"].iter().any(|table| line.starts_with(table))
    })
}

fn run_folder(dir: &Path, console: Console) -> Result<Page> {
    // The head of the page comes from the resolved scenario; without its trace that cannot be
    // read, and the figures stand alone.
    let scenario = scenario::load(&dir.join("resolved.toml"), &[]).ok();
    summary(&dir.join("summary.json"), scenario.as_ref(), console)
}

fn summary(path: &Path, scenario: Option<&scenario::Scenario>, console: Console) -> Result<Page> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| name.clone())?;
    let summary: Summary = serde_json::from_str(&text).with_context(|| name.clone())?;
    let json = serde_json::from_str(&text).with_context(|| name)?;
    Ok(Page { text: render(scenario, &summary, console.screen()), json })
}

fn trace(path: &Path) -> Result<Page> {
    let report = inspect_trace(path, None, None).map_err(|error| {
        anyhow::anyhow!(
            "{error}\nhelp: tried as a run folder, a scenario or profile (TOML), a recorded case \
             or schedule, and a trace (Azure CSV, Mooncake JSONL, plain CSV)"
        )
    })?;
    let mut json = report.to_json();
    json["kind"] = "trace".into();
    Ok(Page { text: report.to_string(), json })
}

fn case(case: &Case) -> Result<Page> {
    let (name, about, requests) = (&case.name, &case.about, case.requests.len() as u64);
    let text = format!(
        "recorded case {name}\n  {about}\n  {} requests; compare with `fleetcast conform`\n",
        count(requests)
    );
    let json = json!({ "kind": "case", "name": name, "about": about, "requests": requests });
    Ok(Page { text, json })
}

fn schedule(trace: &Trace) -> Page {
    let (head, totals) = (&trace.head, &trace.head.summary);
    let text = format!(
        "recorded schedule of case {} by vLLM {}\n  {} requests: {} finished, {} aborted\n  {} \
         steps, {} tokens scheduled, {} preemptions\n  {} of {} prompt tokens hit in the prefix \
         cache\n",
        head.case,
        head.vllm,
        count(trace.requests.len() as u64),
        count(totals.finished),
        count(totals.aborted),
        count(totals.steps),
        count(totals.scheduled_tokens),
        count(totals.preemptions),
        count(totals.prefix_hits),
        count(totals.prefix_queries)
    );
    let json = json!({
        "kind": "schedule", "case": head.case, "vllm": head.vllm,
        "requests": trace.requests.len(), "steps": totals.steps,
        "finished": totals.finished, "aborted": totals.aborted,
        "preemptions": totals.preemptions, "scheduled_tokens": totals.scheduled_tokens,
        "prefix_hits": totals.prefix_hits, "prefix_queries": totals.prefix_queries,
    });
    Page { text, json }
}
