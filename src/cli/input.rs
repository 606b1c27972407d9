//! Scenarios as they are typed: a file or stdin, with keys set on the command line laid over.

use std::path::Path;

use anyhow::{Context, Result};

use crate::cli::args::{Global, Override};
use crate::cli::console::Console;
use crate::report::terminal::Colour;
use crate::scenario::{self, Checked, Diagnostics, Scenario, text};

/// Keys and values laid over a scenario.
pub type Overrides = Vec<(String, String)>;

/// How stdin is called in messages.
pub const STDIN: &str = "<stdin>";

/// Diagnostics, rendered for this terminal; the reason why a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadScenario(String);

/// `--set` and `--seed`, as keys of a scenario.
#[must_use]
pub fn overrides(set: &[Override], global: &Global) -> Overrides {
    let typed = set.iter().map(|o| (o.key.clone(), o.value.clone()));
    typed.chain(global.seed.map(|seed| ("seed".to_owned(), seed.to_string()))).collect()
}

/// True for `-`.
#[must_use]
pub fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Reads and checks a scenario; `-` is stdin, whose relative paths start at the current folder.
///
/// # Errors
/// When stdin cannot be read.
pub fn check(path: &Path, overrides: &Overrides) -> Result<Checked> {
    if !is_stdin(path) {
        return Ok(scenario::check(path, overrides));
    }
    let text = text::read_from(std::io::stdin().lock()).context(STDIN)?;
    Ok(scenario::check_str(STDIN, &text, Path::new(""), overrides))
}

/// A scenario that can be run.
///
/// # Errors
/// When it has errors; all of them are in the message.
pub fn scenario(path: &Path, overrides: &Overrides, console: Console) -> Result<Scenario> {
    let checked = check(path, overrides)?;
    checked.scenario.ok_or_else(|| bad(&checked.diagnostics, console).into())
}

/// Diagnostics as the reason to stop.
#[must_use]
pub fn bad(diagnostics: &Diagnostics, console: Console) -> BadScenario {
    let colour = matches!(console.stderr_colour(), Colour::On);
    BadScenario(diagnostics.render(colour).trim_end().to_owned())
}
