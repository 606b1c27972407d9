//! Traces that are CSV tables: which columns hold the arrival and the token counts, found by their
//! names in the header, and the reading of rows. Serves the Azure layout and plain CSV.

use super::Row;
use super::stamp::{Unit, datetime_ps, decimal_ps, token_count};
use std::ops::Range;

/// Names of an arrival column before its unit, as in `arrival_ms`.
const ARRIVAL_NAMES: [&str; 9] = [
    "arrival",
    "arrival_time",
    "arrival_timestamp",
    "arrived",
    "arrived_at",
    "timestamp",
    "time",
    "start_time",
    "offset",
];
/// Names of a column of prompt tokens; the first is the one to recommend.
const INPUT_NAMES: [&str; 11] = [
    "input_tokens",
    "prompt_tokens",
    "num_prefill_tokens",
    "num_prompt_tokens",
    "context_tokens",
    "request_tokens",
    "input_length",
    "prompt_length",
    "input_len",
    "prompt_len",
    "input_toks",
];
/// Names of a column of output tokens; the first is the one to recommend.
const OUTPUT_NAMES: [&str; 10] = [
    "output_tokens",
    "completion_tokens",
    "num_decode_tokens",
    "num_output_tokens",
    "generated_tokens",
    "response_tokens",
    "output_length",
    "output_len",
    "completion_len",
    "output_toks",
];
const AZURE_HEADER: [&str; 3] = ["timestamp", "contexttokens", "generatedtokens"];

/// How a column writes points in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clock {
    /// Date and time of day.
    Date,
    /// A number.
    Count(Unit),
}

/// A column in use.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Column {
    index: usize,
    name: String,
}

/// Which columns of a table are used, and for what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    columns: usize,
    arrival: Column,
    clock: Clock,
    input: Column,
    output: Column,
    priority: Option<Column>,
    ignored: Vec<String>,
    /// Where the fields of the current row lie.
    fields: Vec<Range<usize>>,
}

impl Table {
    /// The Azure layout.
    ///
    /// # Errors
    /// When the header is not exactly that layout's.
    pub(super) fn azure(header: &[u8]) -> Result<Self, String> {
        let names = column_names(header)?;
        if names != AZURE_HEADER {
            return Err("expected the header `TIMESTAMP,ContextTokens,GeneratedTokens`".into());
        }
        let column = |index, name: &str| Column { index, name: name.into() };
        Ok(Self {
            columns: 3,
            arrival: column(0, "TIMESTAMP"),
            clock: Clock::Date,
            input: column(1, "ContextTokens"),
            output: column(2, "GeneratedTokens"),
            priority: None,
            ignored: Vec::new(),
            fields: Vec::new(),
        })
    }

    /// A table whose columns are known by their names.
    ///
    /// # Errors
    /// When a needed column is missing, double or without unit.
    pub(super) fn plain(header: &[u8]) -> Result<Self, String> {
        let names = column_names(header)?;
        let arrivals: Vec<(Column, Clock)> = (names.iter().enumerate())
            .filter_map(|(index, name)| {
                arrival_unit(name).map(|unit| (Column { index, name: name.clone() }, unit))
            })
            .map(|(column, unit)| (column, Clock::Count(unit)))
            .collect();
        let (arrival, clock) = match arrivals.as_slice() {
            [one] => one.clone(),
            [] => return Err(no_arrival(&names)),
            [(a, _), (b, _), ..] => return Err(two_columns("arrival", &a.name, &b.name)),
        };
        let input = find("input", &INPUT_NAMES, &names)?
            .ok_or_else(|| missing("input", &INPUT_NAMES, &names))?;
        let output = find("output", &OUTPUT_NAMES, &names)?
            .ok_or_else(|| missing("output", &OUTPUT_NAMES, &names))?;
        let priority = find("priority", &["priority"], &names)?;
        let used = [Some(&arrival), Some(&input), Some(&output), priority.as_ref()];
        let is_used = |index| used.iter().flatten().any(|column| column.index == index);
        let ignored = (names.iter().enumerate())
            .filter(|(index, _)| !is_used(*index))
            .map(|(_, name)| name.clone())
            .collect();
        let columns = names.len();
        let fields = Vec::new();
        Ok(Self { columns, arrival, clock, input, output, priority, ignored, fields })
    }

    /// What was found, for people.
    pub(super) fn reason(&self) -> String {
        let clock = match self.clock {
            Clock::Date => "date and time",
            Clock::Count(unit) => unit.name(),
        };
        let mut text = format!(
            "header names `{}` (arrival, {clock}), `{}` (prompt) and `{}` (output)",
            self.arrival.name, self.input.name, self.output.name
        );
        if self.priority.is_some() {
            text.push_str(" and `priority`");
        }
        if !self.ignored.is_empty() {
            text.push_str("; ignored: ");
            text.push_str(&self.ignored.join(", "));
        }
        text
    }

    /// Reads `line` into `row`.
    ///
    /// # Errors
    /// When the number of columns is wrong or a value is not what its column holds.
    pub(super) fn read(&mut self, line: &[u8], row: &mut Row) -> Result<(), String> {
        split(line, &mut self.fields)?;
        if self.fields.len() != self.columns {
            let found = self.fields.len();
            return Err(format!("{found} columns, expected {} as in the header", self.columns));
        }
        let field = |column: &Column| line[self.fields[column.index].clone()].trim_ascii();
        let bad = |column: &Column, expected: &str| {
            let text = String::from_utf8_lossy(field(column));
            Err(format!("`{}` is {text:?}, expected {expected}", column.name))
        };
        row.stamp_ps = match self.clock {
            Clock::Date => match datetime_ps(field(&self.arrival)) {
                Some(ps) => ps,
                None => return bad(&self.arrival, "a date as in 2023-11-16 18:15:46.6805900"),
            },
            Clock::Count(unit) => match decimal_ps(field(&self.arrival), unit) {
                Some(ps) => ps,
                None => {
                    let expected = format!("a number of {} of at least 0", unit.name());
                    return bad(&self.arrival, &expected);
                }
            },
        };
        let Some(input) = token_count(field(&self.input)) else {
            return bad(&self.input, EXPECTED_TOKENS);
        };
        let Some(output) = token_count(field(&self.output)) else {
            return bad(&self.output, EXPECTED_TOKENS);
        };
        (row.input_tokens, row.output_tokens) = (input, output);
        if let Some(priority) = &self.priority {
            let text = std::str::from_utf8(field(priority)).unwrap_or_default();
            match text.parse() {
                Ok(value) => row.priority = value,
                Err(_) => return bad(priority, "a whole number that fits 32 bits"),
            }
        }
        Ok(())
    }
}

/// What a token count must be, in messages.
pub(super) const EXPECTED_TOKENS: &str = "a whole number from 0 to 4294967295";

/// Columns of a header in lower case, blanks and dashes as underscores.
fn column_names(header: &[u8]) -> Result<Vec<String>, String> {
    let mut fields = Vec::new();
    split(header, &mut fields)?;
    let name = |field: Range<usize>| {
        let text = String::from_utf8_lossy(header[field].trim_ascii()).to_lowercase();
        text.replace([' ', '-'], "_")
    };
    Ok(fields.into_iter().map(name).collect())
}

fn arrival_unit(name: &str) -> Option<Unit> {
    if name == "arrived_at" {
        return Some(Unit::Seconds); // Vidur's traces: seconds from the start.
    }
    let (base, unit) = Unit::of_name(name)?;
    ARRIVAL_NAMES.contains(&base).then_some(unit)
}

fn find(role: &str, known: &[&str], names: &[String]) -> Result<Option<Column>, String> {
    let mut found = (names.iter().enumerate()).filter(|(_, name)| known.contains(&name.as_str()));
    let Some((index, name)) = found.next() else {
        return Ok(None);
    };
    match found.next() {
        Some((_, second)) => Err(two_columns(role, name, second)),
        None => Ok(Some(Column { index, name: name.clone() })),
    }
}

fn two_columns(role: &str, first: &str, second: &str) -> String {
    format!("both `{first}` and `{second}` could be the {role} column; keep one")
}

fn no_arrival(names: &[String]) -> String {
    let found = names.join(", ");
    match names.iter().find(|name| ARRIVAL_NAMES.contains(&name.as_str())) {
        Some(name) => format!(
            "the column `{name}` has no unit; name it `{name}_s`, `{name}_ms`, `{name}_us` or \
             `{name}_ns`"
        ),
        None => format!(
            "no arrival column such as arrival_s, arrival_ms, arrival_us, arrival_ns, \
             timestamp_ms or arrived_at; found: {found}"
        ),
    }
}

fn missing(role: &str, known: &[&str], names: &[String]) -> String {
    let found = names.join(", ");
    let mut text = format!("no {role} column such as {}; found: {found}", known[..3].join(", "));
    let nearest = (names.iter())
        .flat_map(|name| known.iter().map(move |k| (strsim::jaro_winkler(name, k), name, k)))
        .filter(|(likeness, ..)| *likeness > 0.85)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((_, name, known)) = nearest {
        text.push_str(&format!("; is `{name}` meant to be `{known}`?"));
    }
    text
}

/// Finds the fields of a CSV line. A field in double quotes may hold commas; its quotes are left
/// out. Line breaks inside quotes are not supported.
fn split(line: &[u8], fields: &mut Vec<Range<usize>>) -> Result<(), String> {
    fields.clear();
    let mut start = 0;
    loop {
        if line.get(start) == Some(&b'"') {
            let end = quoted_end(line, start + 1).ok_or("a double quote is not closed")?;
            fields.push(start + 1..end);
            match line.get(end + 1) {
                None => return Ok(()),
                Some(b',') => start = end + 2,
                Some(_) => return Err("text follows a closing double quote".into()),
            }
            continue;
        }
        match line[start..].iter().position(|&b| b == b',') {
            None => {
                fields.push(start..line.len());
                return Ok(());
            }
            Some(length) => {
                fields.push(start..start + length);
                start += length + 1;
            }
        }
    }
}

/// Where the quote stands that closes a field; two quotes in a row are text.
fn quoted_end(line: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += line.get(at..)?.iter().position(|&b| b == b'"')?;
        if line.get(at + 1) != Some(&b'"') {
            return Some(at);
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(header: &str) -> Result<String, String> {
        Table::plain(header.as_bytes()).map(|table| table.reason())
    }

    #[test]
    fn columns_are_found_by_name_and_the_rest_is_named() {
        check_reason(
            "request_id,arrival_us,input_tokens,output_tokens",
            "header names `arrival_us` (arrival, microseconds), `input_tokens` (prompt) and \
             `output_tokens` (output); ignored: request_id",
        );
        check_reason(
            "arrived_at,num_prefill_tokens,num_decode_tokens,priority",
            "header names `arrived_at` (arrival, seconds), `num_prefill_tokens` (prompt) and \
             `num_decode_tokens` (output) and `priority`",
        );
        check_reason(
            "\"Timestamp ms\", Prompt Tokens ,completion-tokens",
            "header names `timestamp_ms` (arrival, milliseconds), `prompt_tokens` (prompt) and \
             `completion_tokens` (output)",
        );
    }

    fn check_reason(header: &str, expected: &str) {
        assert_eq!(plain(header).as_deref(), Ok(expected));
    }

    #[test]
    fn bad_headers_say_what_is_missing() {
        let problem = |header: &str| plain(header).unwrap_err();
        assert!(problem("a,b").starts_with("no arrival column such as arrival_s"));
        assert!(problem("timestamp,input_tokens").contains("`timestamp_ms`"));
        assert!(
            problem("arrival_s,input_token,output_tokens")
                .ends_with("is `input_token` meant to be `input_tokens`?")
        );
        assert!(problem("arrival_s,input_tokens,x").starts_with("no output column"));
        assert!(problem("arrival_s,arrival_ms,input_tokens,output_tokens").contains("keep one"));
        assert!(problem("arrival_s,input_tokens,prompt_tokens").contains("keep one"));
        assert!(problem("\"arrival_s").contains("not closed"));
    }

    #[test]
    fn rows_are_read_or_say_what_is_wrong() {
        let mut table = Table::plain(b"arrival_ms,input_tokens,output_tokens,priority").unwrap();
        let mut row = Row::default();
        table.read(b"1.5, 20 ,\"30\",-4", &mut row).unwrap();
        let expected = Row {
            stamp_ps: 1_500_000_000,
            input_tokens: 20,
            output_tokens: 30,
            priority: -4,
            ..Row::default()
        };
        assert_eq!(row, expected);
        let mut problem = |line: &str| table.read(line.as_bytes(), &mut row).unwrap_err();
        assert_eq!(problem("1,2,3"), "3 columns, expected 4 as in the header");
        assert_eq!(problem("1,2,3,4,5"), "5 columns, expected 4 as in the header");
        assert!(problem("NaN,2,3,4").contains("`arrival_ms` is \"NaN\", expected a number"));
        assert!(problem("-1,2,3,4").contains("of milliseconds of at least 0"));
        assert!(problem("1,4294967296,3,4").contains("`input_tokens` is \"4294967296\""));
        assert!(problem("1,2,,4").contains("`output_tokens` is \"\""));
        assert!(problem("1,2,3,low").contains("`priority` is \"low\""));
        assert!(problem("1,2,3,\"4").contains("not closed"));
        assert!(problem("1,2,3,\"4\"5").contains("follows a closing"));
    }

    #[test]
    fn quotes_guard_commas_and_quotes() {
        let line = br#"a,"b,c","d""e",,"f""#;
        let mut fields = Vec::new();
        split(line, &mut fields).unwrap();
        let texts: Vec<&[u8]> = fields.iter().map(|f| &line[f.clone()]).collect();
        assert_eq!(texts, [&b"a"[..], b"b,c", br#"d""e"#, b"", b"f"]);
    }
}
