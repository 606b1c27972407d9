//! The arrows between rooms and the house rules that a program can check. The table below is the
//! architecture; changing it is a design decision.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Room, and the rooms whose names may stand in it. A room may be split into sub-rooms with
/// arrows of their own: the longest prefix of a file's path that stands here decides.
const ARROWS: &[(&str, &[&str])] = &[
    // L0: no word of language models.
    ("units", &[]),
    ("kernel", &["units"]),
    // L1
    ("metrics", &["units"]),
    ("catalog", &["units"]),
    // L2: a serving process, pure; it has no random numbers and no clock but its own.
    ("latency", &["units"]),
    ("engine", &["units", "latency"]),
    // What production would show of an engine, and how old it is.
    ("signals", &["units", "engine::record::ReplicaState"]),
    ("workload", &["units", "kernel", "engine::request"]),
    // L3: routers see request heads and signals, never an engine.
    ("router", &["units", "kernel", "signals", "engine::request"]),
    // L4: only `sim` schedules events.
    ("sim", &["units", "kernel", "engine", "latency", "metrics", "router", "signals", "workload"]),
    ("conform", &["units", "engine", "latency", "kernel"]),
    // L6: text in, text out.
    ("scenario", &["units", "catalog", "engine", "latency", "router", "sim::config", "workload"]),
    (
        "report",
        &[
            "units",
            "metrics",
            "engine",
            "router",
            "scenario",
            "sim::config",
            "sim::result",
            "workload::spec",
        ],
    ),
    (
        "cli",
        &[
            "units", "catalog", "conform", "engine", "report", "router", "scenario", "sim",
            "workload", "latency",
        ],
    ),
];

const LINES_MAX: usize = 800;
const COLUMNS_MAX: usize = 100;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// The files of all Rust code: library, program, tests, benches.
fn all_files() -> Vec<PathBuf> {
    ["src", "tests", "benches"].iter().flat_map(|dir| rust_files(&root().join(dir))).collect()
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// `src/engine/fast/kv.rs` is `engine::fast::kv`.
fn module_of(path: &Path) -> String {
    let path = path.strip_prefix(root().join("src")).unwrap().with_extension("");
    let mut parts: Vec<&str> = path.iter().map(|part| part.to_str().unwrap()).collect();
    if parts.last() == Some(&"mod") {
        parts.pop();
    }
    parts.join("::")
}

fn is_within(path: &str, room: &str) -> bool {
    path == room || path.strip_prefix(room).is_some_and(|rest| rest.starts_with("::"))
}

/// The code of a file without its unit tests, which stand last and may use what they like as a
/// yardstick.
fn without_tests(file: &Path, text: &str) -> String {
    if file.ends_with("tests.rs") {
        return String::new();
    }
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text).to_owned()
}

/// Every `crate::` path in `text`, with the names inside one level of braces spelled out.
fn crate_paths(text: &str) -> BTreeSet<String> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n");
    let mut paths = BTreeSet::new();
    for (at, found) in code.match_indices("crate::") {
        if code[..at].ends_with(is_path) {
            continue;
        }
        let rest = &code[at + found.len()..];
        let end = rest.find(|c| !is_path(c)).unwrap_or(rest.len());
        let stem = rest[..end].trim_end_matches(':');
        match rest[end..].strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((inner, _)) => {
                for name in inner.split(',').map(str::trim).filter(|name| !name.is_empty()) {
                    let name = name.split([' ', '{']).next().unwrap_or(name);
                    let joined = format!("{stem}::{name}");
                    paths.insert(joined.trim_start_matches("::").to_owned());
                }
            }
            None => {
                paths.insert(stem.to_owned());
            }
        }
    }
    paths
}

fn allowed_for(module: &str) -> Option<(&'static str, &'static [&'static str])> {
    let fitting = ARROWS.iter().filter(|(room, _)| is_within(module, room));
    fitting.max_by_key(|(room, _)| room.len()).copied()
}

#[test]
fn arrows_between_rooms_are_those_of_the_table() {
    let mut wrong = Vec::new();
    for file in rust_files(&root().join("src")) {
        let module = module_of(&file);
        if module == "lib" || module == "main" {
            continue;
        }
        let Some((room, allowed)) = allowed_for(&module) else {
            wrong.push(format!("{} belongs to no room of the table", shown(&file)));
            continue;
        };
        let text = fs::read_to_string(&file).unwrap();
        for path in crate_paths(&without_tests(&file, &text)) {
            let within = is_within(&path, room) || allowed.iter().any(|to| is_within(&path, to));
            if !within {
                wrong.push(format!("{}: `{room}` may not use `{path}`", shown(&file)));
            }
        }
    }
    assert!(wrong.is_empty(), "arrows against the table:\n{}", wrong.join("\n"));
}

#[test]
fn the_table_has_no_circles() {
    let top = |path: &str| path.split("::").next().unwrap().to_owned();
    let mut done: BTreeSet<String> = BTreeSet::new();
    loop {
        let ready: Vec<String> = ARROWS
            .iter()
            .map(|(room, _)| (*room).to_owned())
            .filter(|room| !done.contains(room))
            .filter(|room| {
                let (_, to) = ARROWS.iter().find(|(r, _)| r == room).unwrap();
                to.iter().all(|to| done.contains(&top(to)))
            })
            .collect();
        if ready.is_empty() {
            break;
        }
        done.extend(ready);
    }
    let all: BTreeSet<String> = ARROWS.iter().map(|(room, _)| (*room).to_owned()).collect();
    assert_eq!(done, all, "rooms on a circle are missing on the left");
}

#[test]
fn paths_are_found_in_code_and_not_in_comments() {
    let text = "use crate::units::{Fix, SimTime};\n// crate::cli::no\nfn f() -> \
                crate::sim::result::RunResult { mycrate::x() }\nuse crate::{a, b::c};";
    let found: Vec<String> = crate_paths(text).into_iter().collect();
    assert_eq!(found, ["a", "b::c", "sim::result::RunResult", "units::Fix", "units::SimTime"]);
}

/// Rooms that may print; everything else hands text to them.
fn may_print(path: &Path) -> bool {
    path.starts_with(root().join("src/cli")) || !path.starts_with(root().join("src"))
}

/// Rooms that may touch the file system: `workload` streams traces, `conform` and `scenario` read
/// what they are pointed at, `cli` does the rest.
fn may_open_files(path: &Path) -> bool {
    ["cli", "workload", "conform", "scenario"]
        .iter()
        .any(|room| path.starts_with(root().join("src").join(room)))
}

#[test]
fn files_keep_the_house_rules() {
    let mut wrong = Vec::new();
    for file in all_files() {
        let text = fs::read_to_string(&file).unwrap();
        let name = shown(&file);
        let lines = text.lines().count();
        if lines > LINES_MAX {
            wrong.push(format!("{name}: {lines} lines, more than {LINES_MAX}"));
        }
        if !text.starts_with("//! ") || text.starts_with("//! stub") {
            wrong.push(format!("{name}: does not open with a paragraph that says what lives here"));
        }
        for (number, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                wrong.push(format!("{name}:{}: {columns} columns", number + 1));
            }
        }
        let code = without_tests(&file, &text);
        for printing in ["println!", "eprintln!", "print!(", "eprint!("] {
            if !may_print(&file) && code.contains(printing) {
                wrong.push(format!("{name}: {printing} outside `cli`"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn results_depend_on_no_clock_no_environment_and_no_platform_mathematics() {
    let forbidden =
        ["Instant::now", "SystemTime", "std::env::", "StdRng", "SmallRng", "thread_rng"];
    let platform =
        [".ln()", ".exp()", ".powf(", ".powi(", ".sin()", ".cos()", ".log10()", ".log2()"];
    let mut wrong = Vec::new();
    for file in rust_files(&root().join("src")) {
        if file.starts_with(root().join("src/cli")) || file.ends_with("src/main.rs") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let code = without_tests(&file, &text);
        for word in forbidden.iter().chain(&platform) {
            if code.contains(word) {
                wrong.push(format!("{}: `{word}`", shown(&file)));
            }
        }
        if !may_open_files(&file) && code.contains("std::fs") {
            wrong.push(format!("{}: opens files", shown(&file)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
