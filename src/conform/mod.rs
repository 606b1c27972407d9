//! Does an engine decide as recorded vLLM did? Reads cases and the traces that vLLM's own scheduler
//! left of them, plays each case through an engine, and reports the first field that differs. May
//! know `units`, `latency` and `engine`, and opens the files it is pointed at.

pub mod case;
pub mod compare;
pub mod drive;
pub mod files;
pub mod trace;

use crate::engine::config::VersionProfile;
use crate::engine::fast::{FastReplica, Merging};
use crate::engine::record::TraceDetail;
use crate::engine::reference::ReferenceReplica;
use crate::engine::replica::Replica;
use case::{Case, Detail};
use compare::{Divergence, Recorded, Walk, compare};
use rayon::prelude::*;
use serde_json::{Value, json};
use std::fmt;
use std::path::PathBuf;
use trace::Trace;

/// Why cases could not be compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConformError {
    /// A line is not what the format says.
    #[error("{file}:{line}: {problem}")]
    Line {
        /// The file.
        file: String,
        /// Line number from 1.
        line: u64,
        /// What is wrong.
        problem: String,
    },
    /// A file as a whole cannot be used.
    #[error("{file}: {problem}")]
    File {
        /// The file.
        file: String,
        /// What is wrong, what was expected.
        problem: String,
    },
}

/// Arguments of `fleetcast conform`.
#[derive(Debug, Clone, clap::Args)]
pub struct ConformArgs {
    /// Case files (`*.case.json`), trace files (`*.trace.jsonl`) or folders of them, plain or
    /// `.gz`
    #[arg(value_name = "CASE", required = true)]
    pub cases: Vec<PathBuf>,
    /// Which engine to check
    #[arg(long, value_enum, default_value_t = EngineChoice::Reference)]
    pub engine: EngineChoice,
}

/// What can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineChoice {
    /// The reference engine
    Reference,
    /// The fast engine
    Fast,
    /// One after the other
    Both,
}

impl EngineChoice {
    const fn engines(self) -> &'static [EngineKind] {
        match self {
            Self::Reference => &[EngineKind::Reference],
            Self::Fast => &[EngineKind::Fast],
            Self::Both => &[EngineKind::Reference, EngineKind::Fast],
        }
    }
}

/// Which engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// Step by step, by the rules as written.
    Reference,
    /// Stretches of unchanged decode in one go.
    Fast,
    /// The fast engine with merging turned off, so that all of its steps can be compared.
    FastSingly,
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reference => f.write_str("reference"),
            Self::Fast => f.write_str("fast"),
            Self::FastSingly => f.write_str("fast, singly"),
        }
    }
}

/// What came of one case on one engine.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Every field agrees.
    Same,
    /// The first field that differs.
    Diverged(Box<Divergence>),
    /// Not compared, because the case needs what the engine does not model.
    Skipped(String),
}

/// One case on one engine.
#[derive(Debug, Clone, PartialEq)]
pub struct CaseReport {
    /// Its name.
    pub name: String,
    /// The version of vLLM that the trace was recorded with.
    pub vllm: String,
    /// The engine.
    pub engine: EngineKind,
    /// Steps in the trace.
    pub steps: usize,
    /// Requests in the trace.
    pub requests: usize,
    /// What came of it.
    pub verdict: Verdict,
}

/// All cases, in the order of the arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// One by one.
    pub cases: Vec<CaseReport>,
}

/// Checks every case that `args` names.
///
/// # Errors
/// When a file cannot be found or read, or is not of its format.
pub fn command(args: &ConformArgs) -> Result<Report, ConformError> {
    run(&args.cases, args.engine.engines())
}

/// Checks every case under `paths` on each of `engines`.
///
/// # Errors
/// When a file cannot be found or read, or is not of its format.
pub fn run(paths: &[PathBuf], engines: &[EngineKind]) -> Result<Report, ConformError> {
    let pairs = files::find(paths)?;
    // Cases are independent; results are collected by index.
    let reports: Vec<Vec<CaseReport>> =
        pairs.par_iter().map(|pair| check(pair, engines)).collect::<Result<_, _>>()?;
    Ok(Report { cases: reports.into_iter().flatten().collect() })
}

fn check(pair: &files::Pair, engines: &[EngineKind]) -> Result<Vec<CaseReport>, ConformError> {
    let name = |path: &PathBuf| path.display().to_string();
    let case = Case::parse(&name(&pair.case), &files::read(&pair.case)?)?;
    let trace = Trace::parse(&name(&pair.trace), &files::read(&pair.trace)?)?;
    if trace.head.case != case.name {
        return Err(ConformError::File {
            file: name(&pair.trace),
            problem: format!("is of case `{}`; expected `{}`", trace.head.case, case.name),
        });
    }
    let report = |&engine: &EngineKind| CaseReport {
        name: case.name.clone(),
        vllm: trace.head.vllm.clone(),
        engine,
        steps: trace.steps.len(),
        requests: trace.requests.len(),
        verdict: run_case(&case, &trace, engine),
    };
    Ok(engines.iter().map(report).collect())
}

/// Plays one case through one engine and compares.
#[must_use]
pub fn run_case(case: &Case, trace: &Trace, engine: EngineKind) -> Verdict {
    let Some(version) = version_of(&trace.head.vllm) else {
        return Verdict::Skipped(format!(
            "recorded with vLLM {}; the rules of 0.32 are modelled",
            trace.head.vllm
        ));
    };
    let detail = match case.detail {
        Detail::Full | Detail::Lite => TraceDetail::Steps,
        Detail::Blocks => TraceDetail::Blocks,
    };
    let config = case.engine_config(version);
    let step_time = match case.step_time() {
        Ok(step_time) => step_time,
        Err(error) => return Verdict::Skipped(error.to_string()),
    };
    match engine {
        EngineKind::Reference => {
            play_and_compare(case, trace, ReferenceReplica::new(config, step_time, detail))
        }
        EngineKind::Fast => {
            let replica = FastReplica::with(config, step_time, detail, Merging::Stretches);
            play_and_compare(case, trace, replica)
        }
        EngineKind::FastSingly => {
            let replica = FastReplica::with(config, step_time, detail, Merging::Never);
            play_and_compare(case, trace, replica)
        }
    }
}

fn version_of(vllm: &str) -> Option<VersionProfile> {
    vllm.starts_with("0.32.").then_some(VersionProfile::V0_32)
}

/// An engine that keeps what `compare` looks at.
pub trait KeepsTrace: Replica {
    /// What it did so far.
    fn recorded(&self) -> Recorded;
}

impl KeepsTrace for ReferenceReplica {
    fn recorded(&self) -> Recorded {
        Recorded {
            walk: Walk::StepByStep,
            steps: self.steps().to_vec(),
            requests: self.request_traces().cloned().collect(),
            totals: self.totals(),
            empty_schedule_calls: Some(self.empty_schedule_calls()),
            stalled: self.stalled(),
        }
    }
}

impl KeepsTrace for FastReplica {
    fn recorded(&self) -> Recorded {
        Recorded {
            walk: Walk::InStretches,
            steps: self.steps().to_vec(),
            requests: self.request_traces().to_vec(),
            totals: self.totals(),
            empty_schedule_calls: None,
            stalled: self.stalled(),
        }
    }
}

/// The same for every engine; a configuration that it does not model is a reason to skip.
fn play_and_compare<R: KeepsTrace, E: fmt::Display>(
    case: &Case,
    trace: &Trace,
    replica: Result<R, E>,
) -> Verdict {
    let mut replica = match replica {
        Ok(replica) => replica,
        Err(error) => return Verdict::Skipped(error.to_string()),
    };
    // An engine that diverged may go on for ever; twice the recorded calls show enough.
    let summary = &trace.head.summary;
    let calls_max = (summary.steps + summary.empty_schedule_calls).saturating_mul(2) + 100;
    let played = drive::play(case, &mut replica, calls_max);
    match compare(case, trace, &replica.recorded(), &played) {
        Ok(()) => Verdict::Same,
        Err(divergence) => Verdict::Diverged(divergence),
    }
}

impl Report {
    /// Cases that agree.
    #[must_use]
    pub fn ok(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Same))
    }

    /// Cases that do not.
    #[must_use]
    pub fn diverged(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Diverged(_)))
    }

    /// Cases that were not compared.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Skipped(_)))
    }

    /// 0, or 1 on any divergence.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        u8::from(self.diverged() > 0)
    }

    fn count(&self, which: impl Fn(&Verdict) -> bool) -> usize {
        self.cases.iter().filter(|case| which(&case.verdict)).count()
    }

    /// The answer for machines.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let cases: Vec<Value> = self.cases.iter().map(CaseReport::to_json).collect();
        json!({
            "cases": cases,
            "ok": self.ok(),
            "diverged": self.diverged(),
            "skipped": self.skipped(),
        })
    }
}

impl CaseReport {
    fn to_json(&self) -> Value {
        let (ok, divergence, skipped) = match &self.verdict {
            Verdict::Same => (json!(true), Value::Null, Value::Null),
            Verdict::Diverged(d) => {
                let divergence = json!({
                    "where": d.place.to_string(),
                    "field": d.field,
                    "expected": d.expected,
                    "got": d.got,
                });
                (json!(false), divergence, Value::Null)
            }
            // Neither true nor false: it was not compared.
            Verdict::Skipped(reason) => (Value::Null, Value::Null, json!(reason)),
        };
        json!({
            "name": self.name,
            "vllm": self.vllm,
            "engine": self.engine.to_string(),
            "steps": self.steps,
            "requests": self.requests,
            "ok": ok,
            "first_divergence": divergence,
            "skipped": skipped,
        })
    }
}

impl fmt::Display for Report {
    /// One line a case, then a line of counts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in &self.cases {
            let CaseReport { name, vllm, engine, steps, requests, verdict } = case;
            match verdict {
                Verdict::Same => writeln!(
                    f,
                    "ok       {name} ({vllm}, {engine}): {requests} requests, {steps} steps"
                )?,
                Verdict::Diverged(divergence) => {
                    writeln!(f, "DIVERGED {name} ({vllm}, {engine}): {divergence}")?;
                }
                Verdict::Skipped(reason) => {
                    writeln!(f, "skipped  {name} ({vllm}, {engine}): {reason}")?;
                }
            }
        }
        write!(f, "{} ok, {} diverged, {} skipped", self.ok(), self.diverged(), self.skipped())
    }
}
