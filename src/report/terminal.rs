//! The answer of a run on a terminal: what was asked, the verdict first, then latencies, where the
//! time goes, pools, and what to know before trusting it. Text only; whoever prints it says how
//! wide the screen is and whether it shows colours.

use comfy_table::{CellAlignment, ContentArrangement, Row, Table};
use std::fmt::Write as _;

use crate::report::figures::{PoolFigures, Stats};
use crate::report::format::{NONE, count, figure, maybe, percent, usd};
use crate::report::slo::SloVerdict;
use crate::report::{Summary, describe};
use crate::scenario::Scenario;
use crate::units::SimTime;

/// Where the text will be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    /// Columns.
    pub width: u16,
    /// Whether colours show.
    pub colour: Colour,
}

/// Whether colours show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// Plain text.
    Off,
    /// ANSI escape codes.
    On,
}

/// Emphasis within the text.
#[derive(Debug, Clone, Copy)]
enum Ink {
    Bold,
    Good,
    Bad,
    Caution,
}

impl Colour {
    fn paint(self, ink: Ink, text: &str) -> String {
        let code = match ink {
            Ink::Bold => "1",
            Ink::Good => "1;32",
            Ink::Bad => "1;31",
            Ink::Caution => "33",
        };
        match self {
            Self::Off => text.to_owned(),
            Self::On => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }
}

/// The whole text, ending in a newline. Without the scenario only its name heads it.
#[must_use]
pub fn render(scenario: Option<&Scenario>, summary: &Summary, screen: Screen) -> String {
    let mut out = String::new();
    labelled(&mut out, "scenario", &summary.scenario.name, screen);
    if let Some(scenario) = scenario {
        asked_for(&mut out, scenario, summary, screen);
    }
    out.push('\n');
    answer(&mut out, summary, screen);
    latencies(&mut out, latency_title(scenario), summary, screen);
    breakdown(&mut out, summary, screen);
    pools(&mut out, summary, screen);
    warnings(&mut out, summary, screen);
    out
}

/// Text behind a label in a column of its own, wrapped to the screen.
fn labelled(out: &mut String, label: &str, text: &str, screen: Screen) {
    let indent = 10;
    let width = usize::from(screen.width).saturating_sub(indent).max(20);
    for (i, line) in wrap(text, width).iter().enumerate() {
        let label = if i == 0 { label } else { "" };
        _ = writeln!(out, "{label:<indent$}{line}");
    }
}

/// Lines of at most `width` characters, broken at spaces; longer words stand alone.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("invariant: there is always a line");
        let used = last.chars().count();
        if used > 0 && used + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
        } else {
            if used > 0 {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines
}

fn asked_for(out: &mut String, scenario: &Scenario, summary: &Summary, screen: Screen) {
    labelled(out, "fleet", &describe::fleet(&scenario.config), screen);
    labelled(out, "traffic", &describe::traffic(&scenario.traffic), screen);
    let method = describe::method(&scenario.config, summary.scenario.replications);
    labelled(out, "run", &method, screen);
}

fn answer(out: &mut String, summary: &Summary, screen: Screen) {
    let missed: Vec<&SloVerdict> = summary.slo.iter().filter(|term| !term.met).collect();
    let verdict = if summary.stalled() {
        screen.colour.paint(Ink::Bad, "STALLED: requests wait that can never be served")
    } else if summary.slo.is_empty() {
        screen.colour.paint(Ink::Bold, "ANSWERED (no SLO in the scenario)")
    } else if missed.is_empty() {
        screen.colour.paint(Ink::Good, "SLO MET")
    } else {
        let names: Vec<&str> = missed.iter().map(|term| term.name.as_str()).collect();
        screen.colour.paint(Ink::Bad, &format!("SLO MISSED by {}", names.join(", ")))
    };
    _ = writeln!(out, "{verdict}");
    for term in &summary.slo {
        _ = writeln!(out, "  {}", slo_line(summary, term));
    }
    let requests = &summary.requests;
    let lost: Vec<String> = [
        (requests.rejected, "rejected"),
        (requests.timed_out, "timed out"),
        (requests.failed, "failed"),
        (requests.unfinished, "unfinished"),
    ]
    .iter()
    .filter(|(n, _)| *n > 0)
    .map(|(n, fate)| format!(", {} {fate}", count(*n)))
    .collect();
    let (arrived, completed) = (count(requests.arrived), count(requests.completed));
    let fates = format!("{arrived} arrived, {completed} completed{}", lost.concat());
    labelled(out, "requests", &fates, screen);
    let rates = &summary.throughput;
    let goodput = rates
        .goodput_requests_per_s
        .map_or(String::new(), |rate| format!(", goodput {} req/s", figure(rate)));
    let rates = format!(
        "{} req/s, {} input tok/s, {} output tok/s{goodput}",
        maybe(rates.requests_per_s),
        maybe(rates.input_tokens_per_s),
        maybe(rates.output_tokens_per_s)
    );
    labelled(out, "rates", &rates, screen);
    let cost = &summary.cost;
    let bill = format!(
        "{} an hour, {} per million output tokens, {} of it idle",
        usd(cost.per_hour_usd),
        usd(cost.per_million_output_tokens_usd),
        percent(cost.idle_share)
    );
    labelled(out, "cost", &bill, screen);
    out.push('\n');
}

/// A term of the SLO: its value against its limit, both in the unit that suits the longer.
fn slo_line(summary: &Summary, term: &SloVerdict) -> String {
    let longest_s = term.value.unwrap_or(0.0).max(term.limit);
    let (unit, scale) = if longest_s < 10.0 { MILLISECONDS } else { SECONDS };
    let time = |s: f64| format!("{} {unit}", figure(s * scale));
    let (value, relation) = match term.value {
        Some(value) => (time(value), if term.met { "<=" } else { "> " }),
        None => ("no sample".to_owned(), "of"),
    };
    let interval = summary.interval.as_ref().and_then(|i| i.figures.get(&term.name));
    let interval = interval.copied().flatten().map_or(String::new(), |[low, high]| {
        format!("  (95 %: {} to {})", time(low.max(0.0)), time(high))
    });
    format!("{:<9} {value} {relation} {}{interval}", term.name, time(term.limit))
}

/// A table without lines, figures to the right, `gap` blanks behind each column.
fn table(screen: Screen, header: &[&str], gap: u16) -> Table {
    let mut table = Table::new();
    table
        .load_preset(comfy_table::presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(screen.width)
        .set_header(header);
    for column in table.column_iter_mut() {
        column.set_padding((0, gap));
        column.set_cell_alignment(CellAlignment::Right);
    }
    if let Some(first) = table.column_mut(0) {
        first.set_cell_alignment(CellAlignment::Left);
    }
    table
}

fn push_table(out: &mut String, title: &str, table: &Table, screen: Screen) {
    _ = writeln!(out, "{}", screen.colour.paint(Ink::Bold, title));
    for line in table.lines() {
        _ = writeln!(out, "{}", line.trim_end());
    }
    out.push('\n');
}

/// A unit and how many of it make a second.
const SECONDS: (&str, f64) = ("s", 1.0);
const MILLISECONDS: (&str, f64) = ("ms", 1000.0);

/// Milliseconds, until times grow so long that nobody would read them so.
fn unit_for(longest_s: Option<f64>) -> (&'static str, f64) {
    if longest_s.is_some_and(|s| s >= 100.0) { SECONDS } else { MILLISECONDS }
}

/// Whose latencies these are.
fn latency_title(scenario: Option<&Scenario>) -> &'static str {
    match scenario {
        Some(scenario) if scenario.config.warm_up == SimTime::ZERO => "Latency of all requests",
        Some(_) | None => "Latency of requests that arrived after the warm-up",
    }
}

fn latencies(out: &mut String, title: &str, summary: &Summary, screen: Screen) {
    let header = ["", "n", "mean", "p50", "p90", "p95", "p99", "max"];
    let mut rows = table(screen, &header, 2);
    for (name, stats) in summary.latency_s.named() {
        // Practice: E2E in seconds, everything else in milliseconds.
        let (unit, scale) = if name == "e2e" { SECONDS } else { unit_for(stats.max) };
        let mut cells = vec![format!("{}, {unit}", name.to_uppercase()), count(stats.n)];
        cells.extend(stats.named().map(|(_, value)| maybe(value.map(|v| v * scale))));
        rows.add_row(Row::from(cells));
    }
    push_table(out, title, &rows, screen);
}

fn breakdown(out: &mut String, summary: &Summary, screen: Screen) {
    let e2e_mean = summary.latency_s.e2e.mean.filter(|&mean| mean > 0.0);
    let parts = summary.breakdown_s.named();
    let longest = parts.iter().filter_map(|(_, stats)| stats.max).reduce(f64::max);
    let (unit, scale) = unit_for(longest);
    let mean_in = format!("mean, {unit}");
    let header = ["", "share", &mean_in, "p50", "p95", "p99", "max"];
    let mut rows = table(screen, &header, 2);
    for (name, stats) in parts {
        let Stats { mean, p50, p95, p99, max, .. } = stats;
        let share = mean.zip(e2e_mean).map(|(part, whole)| part / whole);
        let mut cells = vec![name.replace('_', " "), percent(share)];
        cells.extend([mean, p50, p95, p99, max].map(|s| maybe(s.map(|s| s * scale))));
        rows.add_row(Row::from(cells));
    }
    push_table(out, "Where the time of a request goes", &rows, screen);
}

fn pools(out: &mut String, summary: &Summary, screen: Screen) {
    let header = [
        "", "inst", "repl", "requests", "busy", "batch", "KV mean", "KV max", "preempt", "hits",
        "$/h",
    ];
    let mut rows = table(screen, &header, 1);
    for pool in &summary.pools {
        rows.add_row(Row::from(pool_cells(pool, summary.simulated_s)));
    }
    push_table(out, "Pools", &rows, screen);
}

fn pool_cells(pool: &PoolFigures, simulated_s: f64) -> Vec<String> {
    let whole_percent = |share: Option<f64>| {
        share.map_or(NONE.to_owned(), |share| format!("{:.0}%", share * 100.0))
    };
    let per_hour = (simulated_s > 0.0).then(|| pool.cost_usd * 3600.0 / simulated_s);
    vec![
        pool.name.clone(),
        count(u64::from(pool.instances_max)),
        count(u64::from(pool.replicas)),
        count(pool.requests),
        whole_percent(pool.utilisation_mean),
        maybe(pool.batch_mean),
        whole_percent(pool.kv.usage_mean),
        whole_percent(pool.kv.usage_max),
        count(pool.kv.preemptions),
        whole_percent(pool.kv.prefix_hit_rate),
        per_hour.map_or(NONE.to_owned(), figure),
    ]
}

fn warnings(out: &mut String, summary: &Summary, screen: Screen) {
    for warning in &summary.warnings {
        let code = screen.colour.paint(Ink::Caution, &format!("warning[{}]", warning.code));
        _ = writeln!(out, "{code}");
        labelled(out, "", &warning.text, screen);
        labelled(out, "    next:", &warning.next, screen);
    }
}
