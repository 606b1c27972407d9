//! The command line: parse what was typed, resolve, run, print; the only room that opens files and
//! prints. One exit point.

use std::process::ExitCode;

pub mod args;
pub mod console;
pub mod folder;
pub mod interrupt;
pub mod progress;

/// Runs the program with the process arguments.
#[must_use]
pub fn main() -> ExitCode {
    ExitCode::SUCCESS
}
