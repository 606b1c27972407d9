//! The two streams: answers to stdout, everything else to stderr. A reader that goes away is no
//! error, and nobody is asked to look at colours or bars that do not show.

use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};

use crate::cli::args::{ColorWhen, Global};
use crate::report::terminal::{Colour, Screen};

/// Columns to assume when nobody says.
const WIDTH_DEFAULT: u16 = 80;
/// Columns below which tables are left to wrap in the terminal.
const WIDTH_MIN: u16 = 60;
/// Columns beyond which lines are hard to read.
const WIDTH_MAX: u16 = 120;

/// Where to print, and how.
#[derive(Debug, Clone, Copy)]
pub struct Console {
    /// Whether the answer is for programs.
    pub json: bool,
    quiet: bool,
    color: ColorWhen,
}

impl Console {
    /// As the options say.
    #[must_use]
    pub const fn new(global: &Global) -> Self {
        Self { json: global.json, quiet: global.quiet, color: global.color }
    }

    /// Prints a part of the answer.
    ///
    /// # Errors
    /// When stdout cannot be written, unless its reader has gone.
    pub fn answer(self, text: &str) -> Result<()> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result.context("writing the answer to stdout"),
        }
    }

    /// Tells the person at the terminal something that is not the answer; not when quiet.
    pub fn note(self, text: &str) {
        if !self.quiet {
            self.error(text);
        }
    }

    /// Tells the person at the terminal what went wrong.
    pub fn error(self, text: &str) {
        // When stderr is gone there is nobody left to tell.
        _ = writeln!(io::stderr().lock(), "{}", text.trim_end());
    }

    /// Width and colours of stdout.
    #[must_use]
    pub fn screen(self) -> Screen {
        let terminal = terminal_size::terminal_size_of(io::stdout());
        let width = terminal.map_or(WIDTH_DEFAULT, |(width, _)| width.0);
        Screen {
            width: width.clamp(WIDTH_MIN, WIDTH_MAX),
            colour: self.colour(io::stdout().is_terminal()),
        }
    }

    /// Colours on stderr.
    #[must_use]
    pub fn stderr_colour(self) -> Colour {
        self.colour(io::stderr().is_terminal())
    }

    /// True when somebody is there to watch a bar.
    #[must_use]
    pub fn shows_progress(self) -> bool {
        !self.quiet && io::stderr().is_terminal()
    }

    fn colour(self, is_terminal: bool) -> Colour {
        let wanted = match self.color {
            ColorWhen::Always => true,
            ColorWhen::Never => false,
            ColorWhen::Auto => is_terminal && std::env::var_os("NO_COLOR").is_none(),
        };
        if wanted { Colour::On } else { Colour::Off }
    }
}
