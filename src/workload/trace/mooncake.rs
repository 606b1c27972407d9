//! Traces in the Mooncake layout: one JSON object a line, arrival in milliseconds, and one hash id
//! for each block of the prompt. Knows the layout; nothing of files.

use super::Row;
use super::stamp::Unit;
use super::table::EXPECTED_TOKENS;
use serde::Deserialize;
use serde_json::{Map, Number, Value};
use std::collections::HashMap;

/// Hash ids below this stand for themselves; others are interned above it.
const INTERNED: u64 = 1 << 61;
const ARRIVAL_KEYS: [&str; 2] = ["timestamp", "created_time"];
const INPUT_KEYS: [&str; 2] = ["input_length", "input_tokens"];
const OUTPUT_KEYS: [&str; 2] = ["output_length", "output_tokens"];

#[derive(Deserialize)]
struct Line {
    #[serde(alias = "created_time")]
    timestamp: Number,
    #[serde(alias = "input_tokens")]
    input_length: Number,
    #[serde(alias = "output_tokens")]
    output_length: Number,
    hash_ids: Option<Vec<Number>>,
    priority: Option<i32>,
}

/// Reads lines of the Mooncake layout.
pub(super) struct Mooncake {
    /// Tokens per hash id; lists of ids are not checked without it.
    block_size: Option<u32>,
    /// Ids of 2^61 and more, or below zero, in order of appearance. Ids of up to 64 bits are told
    /// apart in full, though a token stream has room for 62.
    interned: HashMap<i128, u64>,
}

impl Mooncake {
    /// A reader for prompts whose hash ids stand for `block_size` tokens each.
    pub(super) fn new(block_size: Option<u32>) -> Self {
        Self { block_size, interned: HashMap::new() }
    }

    /// Reads `line` into `row`.
    ///
    /// # Errors
    /// When it is not such an object, or a value is out of range.
    pub(super) fn read(&mut self, line: &[u8], row: &mut Row) -> Result<(), String> {
        let line: Line = serde_json::from_slice(line).map_err(|error| json_problem(&error))?;
        row.stamp_ps = stamp_ps(&line.timestamp).ok_or_else(|| {
            format!("`timestamp` is {}, expected milliseconds of at least 0", line.timestamp)
        })?;
        row.input_tokens = tokens("input_length", &line.input_length)?;
        row.output_tokens = tokens("output_length", &line.output_length)?;
        row.priority = line.priority.unwrap_or(0);
        row.hash_ids.clear();
        row.has_hash_ids = line.hash_ids.is_some();
        for id in line.hash_ids.unwrap_or_default() {
            row.hash_ids.push(self.intern(&id)?);
        }
        self.check_blocks(row)
    }

    fn intern(&mut self, id: &Number) -> Result<u64, String> {
        match id.as_u64() {
            Some(id) if id < INTERNED => Ok(id),
            _ => {
                let id = id.as_i128().ok_or_else(|| {
                    format!("`hash_ids` holds {id}, expected whole numbers of up to 64 bits")
                })?;
                let next = INTERNED + self.interned.len() as u64;
                Ok(*self.interned.entry(id).or_insert(next))
            }
        }
    }

    fn check_blocks(&self, row: &Row) -> Result<(), String> {
        let Some(block_size) = self.block_size.filter(|_| row.has_hash_ids) else {
            return Ok(());
        };
        let (found, tokens) = (row.hash_ids.len(), row.input_tokens);
        let expected = tokens.div_ceil(block_size);
        if found as u64 == u64::from(expected) {
            return Ok(());
        }
        let mut problem = format!(
            "{found} hash ids for {tokens} input tokens, expected {expected} with blocks of \
             {block_size}"
        );
        if let Some((low, high)) = block_sizes(tokens, found as u64) {
            let (high, or) = high.map_or((String::new(), " or more"), |h| (format!(" to {h}"), ""));
            problem.push_str(&format!("; blocks of {low}{high}{or} would fit this row"));
        }
        Err(problem)
    }
}

/// The block sizes at which `tokens` make exactly `blocks` blocks: the least and, if any, the
/// greatest.
pub(in crate::workload) fn block_sizes(tokens: u32, blocks: u64) -> Option<(u32, Option<u32>)> {
    let blocks = u32::try_from(blocks).ok().filter(|&blocks| blocks > 0)?;
    let low = tokens.div_ceil(blocks);
    let high = tokens.checked_sub(1)?.checked_div(blocks - 1);
    high.is_none_or(|high| low <= high).then_some((low, high))
}

/// Whether `line` is of this layout, and if so what will be used of it.
///
/// # Errors
/// When it is not: what is missing.
pub(super) fn recognise(line: &[u8]) -> Result<String, String> {
    let object: Map<String, Value> =
        serde_json::from_slice(line).map_err(|error| json_problem(&error))?;
    let found = || object.keys().cloned().collect::<Vec<_>>().join(", ");
    let mut used = Vec::new();
    for keys in [ARRIVAL_KEYS, INPUT_KEYS, OUTPUT_KEYS] {
        match keys.iter().find(|key| object.contains_key(**key)) {
            Some(key) => used.push(*key),
            None => return Err(format!("no key `{}`; found: {}", keys.join("` or `"), found())),
        }
    }
    let blocks = if object.contains_key("hash_ids") { " and `hash_ids`" } else { "" };
    let ignored: Vec<&str> = (object.keys().map(String::as_str))
        .filter(|key| !used.contains(key) && !["hash_ids", "priority"].contains(key))
        .collect();
    let mut reason = format!(
        "JSON lines with `{}` (arrival, milliseconds), `{}` (prompt), `{}` (output){blocks}",
        used[0], used[1], used[2]
    );
    if !ignored.is_empty() {
        reason.push_str("; ignored: ");
        reason.push_str(&ignored.join(", "));
    }
    Ok(reason)
}

/// Whether `line` bears the marks of the Qwen-Bailian traces, which look like Mooncake's but give
/// seconds.
pub(super) fn gives_seconds(line: &[u8]) -> bool {
    let object: Map<String, Value> = serde_json::from_slice(line).unwrap_or_default();
    object.contains_key("parent_chat_id") || object.contains_key("chat_id")
}

fn stamp_ps(number: &Number) -> Option<i128> {
    let ps_per_ms = Unit::Milliseconds.ps();
    if let Some(ms) = number.as_u64() {
        return Some(i128::from(ms) * ps_per_ms);
    }
    // Exact to a picosecond up to 2.5 hours, to 0.3 µs for milliseconds since 1970.
    let ps = (number.as_f64()? * ps_per_ms as f64).round();
    (0.0..=1e30).contains(&ps).then_some(ps as i128)
}

fn tokens(key: &str, number: &Number) -> Result<u32, String> {
    let whole = match number.as_u64() {
        Some(tokens) => u32::try_from(tokens).ok(),
        None => whole_tokens(number),
    };
    whole.ok_or_else(|| format!("`{key}` is {number}, expected {EXPECTED_TOKENS}"))
}

/// Counts written as floats, as in `374.0`.
fn whole_tokens(number: &Number) -> Option<u32> {
    let value = number.as_f64()?;
    let tokens = value as u32;
    (f64::from(tokens) == value && value.is_sign_positive()).then_some(tokens)
}

/// The parser's message with the column alone: the line is said elsewhere.
fn json_problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let (text, _) = text.rsplit_once(" at line ").unwrap_or((&text, ""));
    format!("not a row of the Mooncake layout: {text} (column {})", error.column())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(block_size: Option<u32>, line: &str) -> Result<Row, String> {
        let mut row = Row::default();
        Mooncake::new(block_size).read(line.as_bytes(), &mut row).map(|()| row)
    }

    #[test]
    fn rows_are_read_under_both_sets_of_names() {
        let a = r#"{"timestamp": 3, "input_length": 600, "output_length": 7, "hash_ids": [4, 5]}"#;
        let b = r#"{"created_time": 3.0, "input_tokens": 600.0, "output_tokens": 7,
                    "hash_ids": [4, 5], "session_id": "x"}"#;
        let row = Row {
            stamp_ps: 3_000_000_000,
            input_tokens: 600,
            output_tokens: 7,
            hash_ids: vec![4, 5],
            has_hash_ids: true,
            ..Row::default()
        };
        assert_eq!(read(Some(512), a), Ok(row.clone()));
        assert_eq!(read(Some(512), b), Ok(row));
        let plain = read(Some(512), r#"{"timestamp":0,"input_length":9,"output_length":0}"#);
        assert!(!plain.unwrap().has_hash_ids);
    }

    #[test]
    fn ids_of_64_bits_stay_apart() {
        let mut reader = Mooncake::new(None);
        let mut row = Row::default();
        let line = r#"{"timestamp":0,"input_length":9,"output_length":1,"hash_ids":[
            18446744073709551615, -1, 4294967296, 8589934592, 4611686018427387904, 0,
            2305843009213693952, 18446744073709551615, -1]}"#;
        reader.read(line.as_bytes(), &mut row).unwrap();
        let expected = [INTERNED, INTERNED + 1, 1 << 32, 1 << 33, INTERNED + 2, 0, INTERNED + 3];
        assert_eq!(row.hash_ids[..7], expected);
        assert_eq!(row.hash_ids[7..], [INTERNED, INTERNED + 1]);
    }

    #[test]
    fn bad_rows_say_what_is_wrong() {
        let problem = |line: &str| read(Some(512), line).unwrap_err();
        let row = |rest: &str| format!(r#"{{"timestamp":0,"input_length":600,{rest}}}"#);
        let list = problem(&row(r#""output_length":1,"hash_ids":[1]"#));
        assert_eq!(
            list,
            "1 hash ids for 600 input tokens, expected 2 with blocks of 512; blocks of 600 or \
             more would fit this row"
        );
        let list = problem(&row(r#""output_length":1,"hash_ids":[1,2,3]"#));
        assert!(list.ends_with("blocks of 200 to 299 would fit this row"), "{list}");
        assert!(problem(&row(r#""output_length":-1"#)).contains("`output_length` is -1"));
        assert!(problem(&row(r#""output_length":1.5"#)).contains("`output_length` is 1.5"));
        assert!(problem(&row(r#""output_length":1,"hash_ids":[0.5]"#)).contains("holds 0.5"));
        assert!(problem(&row(r#""hash_ids":[]"#)).contains("missing field `output_length`"));
        assert!(problem(&row(r#""output_length":1,"output_tokens":2"#)).contains("duplicate"));
        assert!(problem(r#"{"timestamp":-5,"input_length":1,"output_length":1}"#).contains("-5"));
        assert!(problem("{\"timestamp\": ").contains("(column 14)"));
        assert!(problem("[]").starts_with("not a row of the Mooncake layout"));
    }

    #[test]
    fn block_sizes_are_those_that_fit() {
        for tokens in 0..300_u32 {
            for blocks in 0..20_u64 {
                let fit: Vec<u32> =
                    (1..=400).filter(|b| u64::from(tokens.div_ceil(*b)) == blocks).collect();
                match block_sizes(tokens, blocks) {
                    None => assert!(fit.is_empty() || tokens == 0, "{tokens} in {blocks}"),
                    Some((low, high)) => {
                        assert_eq!(Some(&low), fit.first(), "{tokens} in {blocks}");
                        assert_eq!(high.unwrap_or(400), fit[fit.len() - 1]);
                    }
                }
            }
        }
    }

    #[test]
    fn a_layout_is_recognised_by_its_keys() {
        let mooncake = r#"{"created_time":1,"input_length":1,"output_length":1,"delay":2}"#;
        assert_eq!(
            recognise(mooncake.as_bytes()).unwrap(),
            "JSON lines with `created_time` (arrival, milliseconds), `input_length` (prompt), \
             `output_length` (output); ignored: delay"
        );
        let problem = recognise(br#"{"timestamp":1,"input":2}"#).unwrap_err();
        assert_eq!(problem, "no key `input_length` or `input_tokens`; found: timestamp, input");
        assert!(gives_seconds(br#"{"chat_id":1}"#));
        assert!(!gives_seconds(mooncake.as_bytes()));
    }
}
