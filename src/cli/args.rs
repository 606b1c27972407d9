//! What can be typed: verbs, their arguments and the options that hold for all of them. Checks
//! only what can be checked without opening a file.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::conform::ConformArgs;
use crate::scenario::{REPLICATIONS_MAX, RequestsFile};

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
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Seed of every random stream, instead of the scenario's
    #[arg(long, global = true, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
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
    #[arg(long, value_name = "R")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(REPLICATIONS_MAX)))]
    pub replications: Option<u32>,
    /// Set a key of the scenario, as in `--set pool.0.instances=4`; may be given again
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Override>,
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

impl RequestsFormat {
    /// Its name in a scenario.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => RequestsFile::None.name(),
            Self::Csv => RequestsFile::Csv.name(),
            Self::CsvZst => RequestsFile::CsvZst.name(),
        }
    }
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The scenarios; `-` reads stdin
    #[arg(required = true)]
    pub scenarios: Vec<PathBuf>,
    /// Set a key of each scenario first; may be given again
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Override>,
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

/// `KEY=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    /// Dotted path of the key.
    pub key: String,
    /// Its value, as TOML or as bare text.
    pub value: String,
}

impl FromStr for Override {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                Ok(Self { key: key.trim().to_owned(), value: value.trim().to_owned() })
            }
            _ => Err("expected KEY=VALUE, as in pool.0.instances=4".to_owned()),
        }
    }
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
