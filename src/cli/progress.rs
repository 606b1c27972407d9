//! A bar on stderr while simulations run: requests done, how fast, how long still. Only where
//! somebody watches; never part of a result.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::console::Console;
use crate::report::format::count;
use crate::units::SimTime;

/// How far all simulations together have to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// This many requests.
    Requests(u64),
    /// This many simulated seconds.
    SimulatedSeconds(u64),
    /// Nobody knows.
    Unknown,
}

/// The bar, shared by all simulations.
#[derive(Debug, Clone)]
pub struct Progress {
    bar: ProgressBar,
    goal: Goal,
}

impl Progress {
    /// A bar, hidden where nobody watches.
    #[must_use]
    pub fn new(console: Console, goal: Goal) -> Self {
        if !console.shows_progress() {
            return Self { bar: ProgressBar::hidden(), goal };
        }
        let (bar, template) = match goal {
            Goal::Requests(n) => (
                ProgressBar::new(n),
                "{bar:30} {human_pos} of {human_len} requests, {per_sec}, {eta} left",
            ),
            Goal::SimulatedSeconds(s) => (
                ProgressBar::new(s),
                "{bar:30} {human_pos} of {human_len} simulated s, {msg}, {eta} left",
            ),
            Goal::Unknown => {
                (ProgressBar::no_length(), "{spinner} {human_pos} requests, {per_sec}")
            }
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, goal }
    }

    /// What one simulation reports to.
    #[must_use]
    pub fn share(&self) -> Share {
        Share { progress: self.clone(), seconds: 0, requests: 0 }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// One simulation's part of the bar.
#[derive(Debug)]
pub struct Share {
    progress: Progress,
    seconds: u64,
    requests: u64,
}

impl Share {
    /// A simulation has come to `now` and seen the end of `requests` requests.
    pub fn update(&mut self, now: SimTime, requests: u64) {
        let (seconds_before, requests_before) = (self.seconds, self.requests);
        self.seconds = now.seconds() as u64;
        self.requests = requests;
        match self.progress.goal {
            Goal::Requests(_) | Goal::Unknown => {
                self.progress.bar.inc(requests - requests_before);
            }
            Goal::SimulatedSeconds(_) => {
                self.progress.bar.inc(self.seconds - seconds_before);
                self.progress.bar.set_message(format!("{} requests", count(requests)));
            }
        }
    }
}
