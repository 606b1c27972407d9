//! Finds and opens the files of recorded schedules: which case belongs to which trace, plain or
//! gzip-compressed. Knows names and folders, not what is in the files.

use super::ConformError;
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A case file and the trace recorded of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    /// The trace file.
    pub trace: PathBuf,
    /// The case file.
    pub case: PathBuf,
}

const CASE: [&str; 2] = [".case.json", ".case.json.gz"];
const TRACE: [&str; 2] = [".trace.jsonl", ".trace.jsonl.gz"];

/// The pairs that the arguments name, in order of name within a folder, each pair once.
///
/// # Errors
/// When an argument is neither a case file, a trace file nor a folder with some, or the other file
/// of a pair is missing.
pub fn find(arguments: &[PathBuf]) -> Result<Vec<Pair>, ConformError> {
    let mut pairs = Vec::new();
    for argument in arguments {
        for pair in find_one(argument)? {
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
    }
    Ok(pairs)
}

fn find_one(argument: &Path) -> Result<Vec<Pair>, ConformError> {
    if argument.is_dir() {
        let mut files = Vec::new();
        collect(argument, &mut files)?;
        files.sort();
        // A trace and its case name the same pair; a folder of an older version has traces only.
        let mut pairs = files.iter().map(|file| pair(file)).collect::<Result<Vec<_>, _>>()?;
        pairs.sort();
        pairs.dedup();
        if pairs.is_empty() {
            return Err(problem(argument, "the folder has no `*.case.json` or `*.trace.jsonl`"));
        }
        return Ok(pairs);
    }
    if !argument.is_file() {
        return Err(problem(argument, "there is no such file or folder"));
    }
    pair(argument).map(|pair| vec![pair])
}

/// Case and trace files under `folder`.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), ConformError> {
    let io = |error: std::io::Error| problem(folder, &error.to_string());
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if stem(&path, &CASE).or_else(|| stem(&path, &TRACE)).is_some() {
            files.push(path);
        }
    }
    Ok(())
}

/// The file name without its ending, if it has one of `endings`.
fn stem<'a>(path: &'a Path, endings: &[&str]) -> Option<&'a str> {
    let name = path.file_name()?.to_str()?;
    endings.iter().find_map(|ending| name.strip_suffix(ending))
}

fn pair(file: &Path) -> Result<Pair, ConformError> {
    let folder = file.parent().unwrap_or(Path::new(""));
    if let Some(name) = stem(file, &CASE) {
        let trace = existing(folder, name, &TRACE)
            .ok_or_else(|| problem(file, &format!("expected `{name}.trace.jsonl` beside it")))?;
        return Ok(Pair { trace, case: file.to_owned() });
    }
    if let Some(name) = stem(file, &TRACE) {
        let above = folder.parent().and_then(|above| existing(above, name, &CASE));
        let case = existing(folder, name, &CASE).or(above).ok_or_else(|| {
            problem(file, &format!("expected `{name}.case.json` beside it or in the folder above"))
        })?;
        return Ok(Pair { trace: file.to_owned(), case });
    }
    let expected = "expected a name that ends in `.case.json` or `.trace.jsonl`, plain or `.gz`";
    Err(problem(file, expected))
}

fn existing(folder: &Path, name: &str, endings: &[&str]) -> Option<PathBuf> {
    endings.iter().map(|end| folder.join(format!("{name}{end}"))).find(|path| path.is_file())
}

/// The whole text of a file, unpacked if its name ends in `.gz`.
///
/// # Errors
/// When it cannot be read or unpacked, or is not UTF-8.
pub fn read(path: &Path) -> Result<String, ConformError> {
    let io = |error: std::io::Error| problem(path, &error.to_string());
    let mut file = File::open(path).map_err(io)?;
    let mut text = String::new();
    if path.extension().is_some_and(|extension| extension == "gz") {
        MultiGzDecoder::new(file).read_to_string(&mut text).map_err(io)?;
    } else {
        file.read_to_string(&mut text).map_err(io)?;
    }
    Ok(text)
}

fn problem(path: &Path, problem: &str) -> ConformError {
    ConformError::File { file: path.display().to_string(), problem: problem.to_owned() }
}
