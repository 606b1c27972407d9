//! `run`: simulate, once or in replications, write the files of the run, print the answer.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use rayon::prelude::*;

use crate::cli::args::{Global, RunArgs};
use crate::cli::console::Console;
use crate::cli::exit::Exit;
use crate::cli::folder::RunFolder;
use crate::cli::input::{self, Overrides};
use crate::cli::progress::{Goal, Progress, Share};
use crate::cli::run_files::{self, FinalFiles};
use crate::engine::config::EngineConfigError;
use crate::engine::fast::FastReplica;
use crate::engine::record::TraceDetail;
use crate::engine::reference::ReferenceReplica;
use crate::engine::replica::Replica;
use crate::report::format::figure;
use crate::report::terminal::render;
use crate::report::trend::WaitTrend;
use crate::report::{RunOutcome, Summary};
use crate::scenario::{RequestsFile, Scenario};
use crate::sim::config::{PoolConfig, SimConfig};
use crate::sim::replication::seed_of;
use crate::sim::result::{Recorder, RequestRow, RunResult, SampleRow};
use crate::units::{SimTime, Span};
use crate::workload::spec::TrafficSpec;
use crate::workload::{Load, open_load};

/// Runs a scenario.
///
/// # Errors
/// When the scenario is not sound, or a file cannot be read or written.
pub fn run(args: &RunArgs, global: &Global, console: Console) -> Result<Exit> {
    let overrides = overrides(args, global);
    let scenario = input::scenario(&args.scenario, &overrides, console)?;
    let folder = args.out.as_deref().map(RunFolder::open).transpose()?;
    let started = Instant::now();
    let progress = Progress::new(console, goal(&scenario));
    let outcomes = simulate(&scenario, folder.as_ref(), &progress);
    progress.finish();
    let summary = Summary::new(&scenario, &outcomes?);
    let json = summary.to_json().context("summary.json")?;
    if let Some(folder) = folder {
        run_files::write_text(&folder, "summary.json", &json)?;
        run_files::write_text(&folder, "resolved.toml", &scenario.to_resolved_toml())?;
        folder.commit()?;
    }
    let wall_s = started.elapsed().as_secs_f64();
    let text =
        if console.json { json } else { render(Some(&scenario), &summary, console.screen()) };
    console.answer(&text)?;
    console.note(&account(&summary, wall_s, args.out.as_deref()));
    Ok(if summary.targets_met() { Exit::Answered } else { Exit::TargetsMissed })
}

/// What was typed, as keys of the scenario, so that it shows in `resolved.toml`. Options come
/// after `--set`: the more special wins.
fn overrides(args: &RunArgs, global: &Global) -> Overrides {
    let mut overrides = input::overrides(&args.set, global);
    if let Some(replications) = args.replications {
        overrides.push(("run.replications".to_owned(), replications.to_string()));
    }
    if let Some(format) = args.requests {
        overrides.push(("output.requests".to_owned(), format.name().to_owned()));
    }
    overrides
}

/// How far there is to go, for the bar.
fn goal(scenario: &Scenario) -> Goal {
    let runs = u64::from(scenario.replications);
    let requests = match &scenario.traffic {
        TrafficSpec::Open { requests, .. } => *requests,
        TrafficSpec::Closed { requests, .. } => Some(*requests),
        TrafficSpec::Trace(_) => None,
    };
    match (scenario.config.horizon, requests) {
        (Some(horizon), _) => Goal::SimulatedSeconds(horizon.seconds() as u64 * runs),
        (None, Some(requests)) => Goal::Requests(requests * runs),
        (None, None) => Goal::Unknown,
    }
}

/// All replications, in order, whatever the number of threads; their rows are in the folder's
/// files when this returns.
fn simulate(
    scenario: &Scenario,
    folder: Option<&RunFolder>,
    progress: &Progress,
) -> Result<Vec<RunOutcome>> {
    let finished: Vec<Result<(RunOutcome, Option<FinalFiles>)>> = (0..scenario.replications)
        .into_par_iter()
        .map(|number| replication(scenario, folder, number, progress.share()))
        .collect();
    let (outcomes, files): (Vec<_>, Vec<_>) =
        finished.into_iter().collect::<Result<Vec<_>>>()?.into_iter().unzip();
    if let Some(folder) = folder {
        let first = files.into_iter().flatten().next().unwrap_or_default();
        run_files::join(folder, first, scenario.replications)?;
    }
    Ok(outcomes)
}

fn replication(
    scenario: &Scenario,
    folder: Option<&RunFolder>,
    number: u32,
    mut share: Share,
) -> Result<(RunOutcome, Option<FinalFiles>)> {
    let config =
        SimConfig { seed: seed_of(scenario.config.seed, number), ..scenario.config.clone() };
    let load = open_load(&scenario.traffic, config.seed)?;
    let rows = folder.map(|folder| run_files::open(folder, scenario, number)).transpose()?;
    // What does not merge is run by the rules, step by step.
    let merges = config.pools.iter().all(|pool| FastReplica::takes(&pool.engine).is_ok());
    let (result, rows, trend) = if merges {
        let make =
            |pool: &PoolConfig| FastReplica::new(pool.engine.clone(), pool.step_time.clone());
        observe(scenario, &config, make, load, rows, &mut share)?
    } else {
        let make = |pool: &PoolConfig| {
            let (engine, step_time) = (pool.engine.clone(), pool.step_time.clone());
            ReferenceReplica::new(engine, step_time, TraceDetail::Off)
        };
        observe(scenario, &config, make, load, rows, &mut share)?
    };
    // The parts of the others are closed here: there may be more of them than open files.
    let files = rows.map(run_files::finish).transpose()?.filter(|_| number == 0);
    Ok((RunOutcome { result, trend }, files))
}

/// One simulation on engines that `make` builds; rows of requests only when a file wants them.
fn observe<R: Replica>(
    scenario: &Scenario,
    config: &SimConfig,
    make: impl Fn(&PoolConfig) -> Result<R, EngineConfigError>,
    load: Load,
    rows: Option<run_files::Rows>,
    share: &mut Share,
) -> Result<(RunResult, Option<run_files::Rows>, WaitTrend)> {
    let mut watch = |at: &crate::sim::Progress| {
        share.update(at.now, at.ended);
        ControlFlow::Continue(())
    };
    let trend = WaitTrend::default();
    let wanted = rows.is_some() && scenario.output.requests != RequestsFile::None;
    Ok(if wanted {
        let mut observer = Observer::<true> { rows, trend };
        let result = crate::sim::run(config, make, load, &mut observer, &mut watch)?;
        (result, observer.rows, observer.trend)
    } else {
        let mut observer = Observer::<false> { rows, trend };
        let result = crate::sim::run(config, make, load, &mut observer, &mut watch)?;
        (result, observer.rows, observer.trend)
    })
}

/// Watches one simulation for the files and for the warnings; rows of requests are only made when
/// a file wants them.
struct Observer<const REQUESTS: bool> {
    rows: Option<run_files::Rows>,
    trend: WaitTrend,
}

impl<const REQUESTS: bool> Recorder for Observer<REQUESTS> {
    const WANTS_REQUESTS: bool = REQUESTS;

    fn request(&mut self, row: &RequestRow) {
        if let Some(rows) = &mut self.rows {
            rows.request(row);
        }
    }

    fn waited(&mut self, arrival: SimTime, wait: Span) {
        self.trend.record(arrival, wait);
    }

    fn sample(&mut self, row: &SampleRow) {
        if let Some(rows) = &mut self.rows {
            rows.sample(row);
        }
    }
}

/// What the answer may not hold, because it differs from run to run.
fn account(summary: &Summary, wall_s: f64, out: Option<&Path>) -> String {
    let requests = summary.requests.arrived as f64 / wall_s.max(1e-9);
    let speed = format!("{} s, {} requests a second", figure(wall_s), figure(requests));
    match out {
        Some(dir) => format!("simulated in {speed}; files in {}", dir.display()),
        None => format!("simulated in {speed}"),
    }
}
