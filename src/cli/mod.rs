//! The command line: parse what was typed, resolve, run, print; the only room that prints. One
//! exit point.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use crate::cli::args::{Cli, Verb};
use crate::cli::console::Console;
use crate::cli::exit::Exit;
use crate::cli::input::BadScenario;

pub mod args;
pub mod console;
pub mod exit;
pub mod folder;
pub mod input;
pub mod inspect;
pub mod interrupt;
pub mod progress;
pub mod run;
pub mod run_files;
pub mod verbs;

/// Runs the program with the process arguments.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers; when nobody reads them, that is no failure.
            _ = error.print();
            let asked_for = !error.use_stderr();
            return if asked_for { Exit::Answered } else { Exit::BadInput }.into();
        }
    };
    let console = Console::new(&cli.global);
    interrupt::install();
    let exit = match answer(&cli, console) {
        Ok(exit) => exit,
        Err(error) => {
            console.error(&message(&error));
            Exit::BadInput
        }
    };
    exit.into()
}

fn answer(cli: &Cli, console: Console) -> Result<Exit> {
    if let Some(threads) = cli.global.threads {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(usize::from(threads));
        pool.build_global().context("--threads")?;
    }
    match &cli.verb {
        Verb::Run(args) => run::run(args, &cli.global, console),
        Verb::Check(args) => verbs::check(args, &cli.global, console),
        Verb::Init(args) => verbs::init(args, console),
        Verb::Catalog(args) => verbs::catalog(args, console),
        Verb::Inspect(args) => inspect::inspect(args, console),
        Verb::Conform(args) => verbs::conform(args, console),
    }
}

/// Diagnostics speak for themselves; everything else is one line, cause after cause.
fn message(error: &anyhow::Error) -> String {
    match error.downcast_ref::<BadScenario>() {
        Some(bad) => bad.to_string(),
        None => format!("error: {error:#}"),
    }
}
