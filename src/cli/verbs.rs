//! The short verbs: `check`, `init`, `catalog` and `conform`.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width};
use serde_json::{Map, Value, json};

use crate::catalog::Listing;
use crate::cli::args::{CatalogArgs, CatalogKind, CheckArgs, Global, InitArgs};
use crate::cli::console::Console;
use crate::cli::exit::Exit;
use crate::cli::input;
use crate::conform::{self, ConformArgs};
use crate::report::terminal::Colour;
use crate::scenario::{ListingKind, Severity, init_template, listing};

/// Name of the scenario that `init` writes.
const INIT_NAME: &str = "scenario.toml";

/// Checks scenarios and prints everything that was found.
///
/// # Errors
/// When stdin cannot be read.
pub fn check(args: &CheckArgs, global: &Global, console: Console) -> Result<Exit> {
    let overrides = input::overrides(&args.set, global);
    let colour = matches!(console.screen().colour, Colour::On);
    let (mut text, mut files, mut errors) = (String::new(), Vec::new(), 0);
    for path in &args.scenarios {
        let diagnostics = input::check(path, &overrides)?.diagnostics;
        errors += diagnostics.errors();
        text.push_str(&diagnostics.render(colour));
        text.push_str(&format!(
            "{}: {} and {}\n",
            path.display(),
            number(diagnostics.errors(), "error", "errors"),
            number(diagnostics.advice(), "piece of advice", "pieces of advice")
        ));
        let problems: Vec<Value> = diagnostics
            .problems()
            .iter()
            .map(|problem| {
                let severity = match problem.severity {
                    Severity::Error => "error",
                    Severity::Advice => "advice",
                };
                let location = diagnostics.location(problem);
                json!({
                    "severity": severity, "code": problem.code, "key": problem.key,
                    "file": location.map(|at| at.file), "line": location.map(|at| at.line),
                    "column": location.map(|at| at.column),
                    "text": problem.title, "next": problem.help,
                })
            })
            .collect();
        files.push(json!({ "file": path.display().to_string(), "problems": problems }));
    }
    let answer = match console.json {
        true => pretty(&json!({ "files": files, "errors": errors }))?,
        false => text,
    };
    console.answer(&answer)?;
    Ok(if errors == 0 { Exit::Answered } else { Exit::BadInput })
}

fn number(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// JSON as it is printed.
///
/// # Errors
/// Never for values made here; the serialiser's type says otherwise.
pub fn pretty(value: &Value) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// Writes a scenario to start from.
///
/// # Errors
/// When there is one already, or the folder cannot be written to.
pub fn init(args: &InitArgs, console: Console) -> Result<Exit> {
    let path = args.dir.join(INIT_NAME);
    std::fs::create_dir_all(&args.dir).with_context(|| args.dir.display().to_string())?;
    let file = File::options().write(true).create_new(true).open(&path);
    let mut file = match file {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!(
            "{} exists already and is left as it is\nhelp: give another folder, as in `fleetcast \
             init my-scenario`",
            path.display()
        ),
        other => other.with_context(|| path.display().to_string())?,
    };
    if let Err(error) = file.write_all(init_template().as_bytes()) {
        // Half a scenario would only stand in the way of the next try.
        _ = std::fs::remove_file(&path);
        return Err(error).with_context(|| path.display().to_string());
    }
    let run = format!("fleetcast run {}", shell_word(&path));
    let answer = match console.json {
        true => pretty(&json!({ "written": path.display().to_string(), "next": run }))?,
        false => format!("wrote {}\nnext: {run}\n", path.display()),
    };
    console.answer(&answer)?;
    Ok(Exit::Answered)
}

/// A path as a shell reads it.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = text.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c));
    if plain { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// Prints what a scenario can name.
///
/// # Errors
/// When stdout cannot be written.
pub fn catalog(args: &CatalogArgs, console: Console) -> Result<Exit> {
    let all = [
        ("gpus", CatalogKind::Gpus, ListingKind::Gpus),
        ("instances", CatalogKind::Instances, ListingKind::Instances),
        ("models", CatalogKind::Models, ListingKind::Models),
        ("profiles", CatalogKind::Profiles, ListingKind::Profiles),
        ("policies", CatalogKind::Policies, ListingKind::Policies),
    ];
    let wanted = all.iter().filter(|(_, kind, _)| args.kind.is_none_or(|k| k == *kind));
    let (mut text, mut object) = (String::new(), Map::new());
    for (name, _, kind) in wanted {
        let listing = listing(*kind);
        object.insert((*name).to_owned(), listing.to_json());
        text.push_str(&listing_text(name, &listing, console));
    }
    console.answer(&if console.json { pretty(&Value::Object(object))? } else { text })?;
    Ok(Exit::Answered)
}

/// A column that does not fit may wrap when it has this much room left, else it is left out.
const WRAPPED_MIN: usize = 20;

/// A listing as a table of as many columns as the screen takes; `--json` has them all.
fn listing_text(name: &str, listing: &Listing, console: Console) -> String {
    if listing.rows.is_empty() {
        return format!("{name}: none\n\n");
    }
    let widths = column_widths(listing, usize::from(console.screen().width));
    let mut table = Table::new();
    table
        .load_preset(comfy_table::presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(listing.headers[..widths.len()].iter().map(|header| header.replace('_', " ")));
    for row in &listing.rows {
        table.add_row(&row[..widths.len()]);
    }
    for (column, width) in table.column_iter_mut().zip(&widths) {
        column.set_padding((0, 1));
        let width = u16::try_from(width + 1).unwrap_or(u16::MAX);
        column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width)));
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    let more = match &listing.headers[widths.len()..] {
        [] => String::new(),
        left_out => format!("(--json adds {})\n", left_out.join(", ")),
    };
    format!("{name}\n{}\n{more}\n", lines.join("\n"))
}

/// Widths of the first columns, as many as `screen` takes.
fn column_widths(listing: &Listing, screen: usize) -> Vec<usize> {
    let mut widths = Vec::new();
    let mut left = screen;
    for (column, header) in listing.headers.iter().enumerate() {
        let cells = listing.rows.iter().map(|row| row[column].chars().count());
        // Titles may break between their words.
        let words = header.split(['_', ' ']).map(|word| word.chars().count());
        let width = cells.chain(words).max().unwrap_or(0);
        if width < left {
            widths.push(width);
            left -= width + 1;
        } else {
            if left > WRAPPED_MIN {
                widths.push(left - 1);
            }
            break;
        }
    }
    widths
}

/// Plays recorded schedules through the engines.
///
/// # Errors
/// When a case cannot be found or read.
pub fn conform(args: &ConformArgs, console: Console) -> Result<Exit> {
    let report = conform::command(args)?;
    let answer = if console.json { pretty(&report.to_json())? } else { format!("{report}\n") };
    console.answer(&answer)?;
    Ok(if report.diverged() == 0 { Exit::Answered } else { Exit::TargetsMissed })
}
