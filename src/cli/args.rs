//! What can be typed: verbs, their arguments and the options that hold for all of them. Checks
//! only what can be checked without opening a file.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Deterministic capacity simulator for LLM serving fleets.
#[derive(Debug, Parser)]
#[command(name = "fleetcast", version, max_term_width = 100)]
#[command(after_help = "\
Exit codes: 0 answered, targets met; 1 answered, targets not met; 2 bad input, or a file that \
cannot be read or written; 101 a bug of ours; 130 interrupted.\n\
Results go to stdout, everything else to stderr.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
    /// Options of every verb.
    #[command(flatten)]
    pub global: Global,
}

/// Options of every verb.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options for all verbs")]
pub struct Global {
    /// Print the answer as JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Print nothing but the answer and errors
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Colours on stdout and stderr
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: ColorWhen,
    /// Simulations at a time; never changes a result [default: one for each core]
    #[arg(long, global = true, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// Seed of every random stream, instead of the scenario's
    #[arg(long, global = true, value_name = "N")]
    pub seed: Option<u64>,
}

/// When to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ColorWhen {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Even into a pipe
    Always,
    /// Not at all
    Never,
}

/// A question.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// What happens? Simulate a fleet under its traffic
    Run(RunArgs),
    /// Is this scenario sound? All problems at once, and advice
    Check(CheckArgs),
    /// Give me a scenario to start from, commented and ready to run
    Init(InitArgs),
    /// What can I name in a scenario?
    Catalog(CatalogArgs),
    /// What is in this file? A trace, a profile, a scenario, a run folder or a recorded schedule
    Inspect(InspectArgs),
    /// Does the scheduler decide as recorded vLLM did?
    Conform(ConformArgs),
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The scenario; `-` reads stdin
    pub scenario: PathBuf,
    /// Write summary.json, resolved.toml, timeseries.csv and requests.csv into this folder
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Independent runs to pool, instead of the scenario's number
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub replications: Option<u32>,
    /// Set a key of the scenario, as in `--set pool.main.instances=4`; may be given again
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// How to write requests, one row each
    #[arg(long, value_name = "FORMAT")]
    pub requests: Option<RequestsFormat>,
}

/// How to write requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RequestsFormat {
    /// Not at all
    None,
    /// requests.csv
    Csv,
    /// requests.csv.zst, compressed
    #[value(name = "csv.zst")]
    CsvZst,
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The scenarios; `-` reads stdin
    #[arg(required = true)]
    pub scenarios: Vec<PathBuf>,
    /// Set a key of each scenario first; may be given again
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// Arguments of `init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Folder for scenario.toml
    #[arg(default_value = ".")]
    pub dir: PathBuf,
}

/// Arguments of `catalog`.
#[derive(Debug, Args)]
pub struct CatalogArgs {
    /// Which part; all of it when left out
    pub kind: Option<CatalogKind>,
}

/// A part of the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CatalogKind {
    /// GPUs
    Gpus,
    /// AWS instance types
    Instances,
    /// Models
    Models,
    /// Step-time profiles
    Profiles,
    /// Router policies
    Policies,
}

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The file or run folder; `-` reads stdin
    pub file: PathBuf,
}

/// Arguments of `conform`.
#[derive(Debug, Args)]
pub struct ConformArgs {
    /// Recorded cases, their traces, or folders of them
    #[arg(required = true)]
    pub cases: Vec<PathBuf>,
    /// Which engine answers
    #[arg(long, value_name = "ENGINE", default_value = "both")]
    pub engine: EngineChoice,
}

/// Which engine answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineChoice {
    /// Walks every step
    Reference,
    /// Merges stretches of unchanged decode
    Fast,
    /// Each in turn
    Both,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
