//! The `fleetcast` program: hands its arguments to `cli` and leaves with the exit code it returns.

use std::process::ExitCode;

fn main() -> ExitCode {
    fleetcast::cli::main()
}
