//! Reading one table of a scenario: typed getters that check range and unit on the spot, remember
//! which keys were asked for, and refuse all others. Knows nothing of what the keys mean.

use super::duration::{self, DurationError};
use super::problem::{Place, Problem, Problems};
use super::tree::{Node, Table, Value, name_of};
use crate::units::Span;
use std::ops::RangeInclusive;

/// A checked value and where it was written.
#[derive(Debug, Clone, Copy)]
pub struct Found<T> {
    /// The value.
    pub value: T,
    /// Where.
    pub place: Place,
}

/// Numbers that a key takes.
#[derive(Debug, Clone, Copy)]
pub enum Bounds {
    /// Above zero, at most this.
    Positive(f64),
    /// Zero or more, at most this.
    NotNegative(f64),
    /// Between these two, both included.
    Within(f64, f64),
    /// Above zero and at most one.
    Share,
}

impl Bounds {
    fn hold(self, x: f64) -> bool {
        match self {
            Self::Positive(max) => x > 0.0 && x <= max,
            Self::NotNegative(max) => x >= 0.0 && x <= max,
            Self::Within(min, max) => x >= min && x <= max,
            Self::Share => x > 0.0 && x <= 1.0,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Positive(max) => format!("a number above 0, at most {max}"),
            Self::NotNegative(max) => format!("a number from 0 to {max}"),
            Self::Within(min, max) => format!("a number from {min} to {max}"),
            Self::Share => "a share above 0, at most 1".to_owned(),
        }
    }
}

/// Lengths of time that a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// Zero is refused.
    Positive,
    /// Zero is fine.
    MayBeZero,
}

/// Reads one table.
pub struct Reader<'a> {
    table: &'a Table,
    place: Place,
    path: String,
    known: Vec<String>,
    problems: &'a Problems,
}

impl<'a> Reader<'a> {
    /// A reader of the document's root.
    pub fn root(node: &'a Node, problems: &'a Problems) -> Option<Self> {
        Self::of(node, String::new(), problems)
    }

    /// A reader of `node` under `path`; a problem when it is no table.
    pub fn of(node: &'a Node, path: String, problems: &'a Problems) -> Option<Self> {
        let Value::Table(table) = &node.value else {
            let problem = wrong_kind(&path, node, "a table");
            problems.push(problem.help(format!("write [{path}] and its keys below")));
            return None;
        };
        Some(Self { table, place: node.place, path, known: Vec::new(), problems })
    }

    /// Where the table stands.
    pub const fn place(&self) -> Place {
        self.place
    }

    /// Dotted path of the table.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Where findings go.
    pub const fn problems(&self) -> &'a Problems {
        self.problems
    }

    /// Dotted path of a key of this table.
    pub fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// True when the key was written.
    pub fn has(&self, key: &str) -> bool {
        self.table.get(key).is_some()
    }

    /// Where the key was written, else where the table was.
    pub fn place_of(&self, key: &str) -> Place {
        self.table.get(key).map_or(self.place, |entry| entry.key_place)
    }

    /// Every key that was written, in order.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.table.entries.iter().map(|entry| entry.key.as_str())
    }

    /// The raw value of `key`, which becomes a known key.
    pub fn node(&mut self, key: &str) -> Option<&'a Node> {
        self.know(key);
        self.table.get(key).map(|entry| &entry.node)
    }

    /// Makes `key` a known key.
    pub fn know(&mut self, key: &str) {
        if !self.known.iter().any(|k| k == key) {
            self.known.push(key.to_owned());
        }
    }

    /// Reports a finding about `key`.
    pub fn report(&self, key: &str, problem: Problem) {
        self.problems.push(problem.key(self.path_of(key)));
    }

    fn refuse<T>(&self, key: &str, node: &Node, expected: &str) -> Option<T> {
        self.problems.push(wrong_kind(&self.path_of(key), node, expected));
        None
    }

    /// Reports that `key` is missing; `example` is a line that puts it right.
    pub fn missing(&self, key: &str, example: &str) {
        let path = self.path_of(key);
        let here =
            if self.path.is_empty() { "the file".to_owned() } else { format!("[{}]", self.path) };
        // The empty span of the root would point nowhere.
        let problem = Problem::error("missing-key", format!("`{path}` is missing"))
            .at(self.place, format!("{here} needs `{key}`"))
            .help(format!("add a line such as {example}"));
        self.report(key, problem);
    }

    /// A string that is not empty.
    pub fn text(&mut self, key: &str) -> Option<Found<&'a str>> {
        let node = self.node(key)?;
        match &node.value {
            Value::Text(text) if !text.trim().is_empty() => {
                Some(Found { value: text, place: node.place })
            }
            _ => self.refuse(key, node, "a string that is not empty"),
        }
    }

    /// `true` or `false`.
    pub fn boolean(&mut self, key: &str) -> Option<bool> {
        let node = self.node(key)?;
        match node.value {
            Value::Bool(yes) => Some(yes),
            _ => self.refuse(key, node, "true or false"),
        }
    }

    /// A whole number within `range`.
    pub fn integer(&mut self, key: &str, range: RangeInclusive<u64>) -> Option<Found<u64>> {
        let node = self.node(key)?;
        let expected = whole_number(&range);
        match integer_in(node, &range) {
            Some(value) => Some(Found { value, place: node.place }),
            None => self.refuse(key, node, &expected),
        }
    }

    /// A whole number within `range`, as `u32`.
    pub fn count(&mut self, key: &str, range: RangeInclusive<u32>) -> Option<u32> {
        let wide = u64::from(*range.start())..=u64::from(*range.end());
        self.integer(key, wide).and_then(|found| u32::try_from(found.value).ok())
    }

    /// A finite number within bounds.
    pub fn number(&mut self, key: &str, bounds: Bounds) -> Option<Found<f64>> {
        let node = self.node(key)?;
        match number_of(node).filter(|x| bounds.hold(*x)) {
            Some(value) => Some(Found { value, place: node.place }),
            None => self.refuse(key, node, &bounds.text()),
        }
    }

    /// A length of time: `key = "250ms"`, or `key_s = 0.25`.
    pub fn duration(&mut self, key: &str, length: Length) -> Option<Found<Span>> {
        let in_seconds = format!("{key}_s");
        let text = self.node(key);
        let seconds = self.node(&in_seconds);
        let (text, seconds) = match (text, seconds) {
            // An override may spell the key in the other way.
            (Some(a), Some(b)) if a.place.source < b.place.source => (None, Some(b)),
            (Some(a), Some(b)) if a.place.source > b.place.source => (Some(a), None),
            both => both,
        };
        if text.is_some() && seconds.is_some() {
            let title = format!("`{key}` and `{in_seconds}` say the same thing twice");
            let problem = Problem::error("contradiction", title)
                .at(self.place_of(&in_seconds), "second time")
                .help("keep one of the two");
            self.report(key, problem);
        }
        let (used, node) = match (text, seconds) {
            (Some(node), _) => (key, node),
            (None, Some(node)) => (in_seconds.as_str(), node),
            (None, None) => return None,
        };
        let path = self.path_of(used);
        let read = if used == key { text_span } else { seconds_span };
        match read(&path, node).and_then(|span| refuse_zero(&path, node, span, length)) {
            Ok(value) => Some(Found { value, place: node.place }),
            Err(problem) => {
                self.problems.push(*problem);
                None
            }
        }
    }

    /// A table inside this one.
    pub fn table(&mut self, key: &str) -> Option<Reader<'a>> {
        let path = self.path_of(key);
        let node = self.node(key)?;
        Reader::of(node, path, self.problems)
    }

    /// A list of tables, `[[key]]`; empty when the key is absent.
    pub fn tables(&mut self, key: &str) -> Vec<Reader<'a>> {
        let path = self.path_of(key);
        let Some(node) = self.node(key) else { return Vec::new() };
        let Value::List(items) = &node.value else {
            let problem = wrong_kind(&path, node, "a list of tables");
            self.problems.push(problem.help(format!("open each one with [[{path}]]")));
            return Vec::new();
        };
        items
            .iter()
            .enumerate()
            .filter_map(|(i, item)| {
                // Names read better than indices, and override paths take both.
                let step = name_of(item).filter(|name| !name.contains(['.', '"']));
                let step = step.unwrap_or_else(|| i.to_string());
                Reader::of(item, format!("{path}.{step}"), self.problems)
            })
            .collect()
    }

    /// A list whose items `read` accepts; the first that it does not is reported.
    pub fn list<T>(
        &mut self,
        key: &str,
        expected: &str,
        read: impl Fn(&Node) -> Option<T>,
    ) -> Option<Found<Vec<T>>> {
        let node = self.node(key)?;
        let Value::List(items) = &node.value else {
            return self.refuse(key, node, &format!("an array of {expected}"));
        };
        let mut values = Vec::with_capacity(items.len());
        for item in items {
            match read(item) {
                Some(value) => values.push(value),
                None => return self.refuse(key, item, &format!("{expected} (in an array)")),
            }
        }
        Some(Found { value: values, place: node.place })
    }

    /// The one table among `choices` that was written, as in `[router.round-robin]`. None or
    /// several are reported; keys of `others` may stand beside it.
    pub fn variant(&mut self, choices: &[&'static str]) -> Option<(&'static str, Reader<'a>)> {
        for choice in choices {
            self.know(choice);
        }
        let written: Vec<&'static str> =
            choices.iter().copied().filter(|choice| self.has(choice)).collect();
        match written.as_slice() {
            [one] => self.table(one).map(|reader| (*one, reader)),
            [] => {
                self.no_variant(choices);
                None
            }
            [first, second, ..] => {
                let title = format!(
                    "`{}` has both `{first}` and `{second}`; it takes one of them",
                    self.path
                );
                let place = self.place_of(second);
                let problem = Problem::error("contradiction", title).at(place, "second choice");
                self.report(second, problem.help(format!("keep one of: {}", written.join(", "))));
                None
            }
        }
    }

    fn no_variant(&mut self, choices: &[&'static str]) {
        let unknown = self.table.entries.iter().find(|e| !self.known.contains(&e.key));
        let problem = match unknown {
            Some(entry) => {
                let title = format!("`{}` is no kind of `{}`", entry.key, self.path);
                Problem::error("unknown-variant", title)
                    .at(entry.key_place, format!("expected one of: {}", choices.join(", ")))
                    .nearest(&entry.key, choices.iter().copied())
            }
            None => Problem::error("missing-variant", format!("`{}` says nothing", self.path))
                .at(self.place, format!("expected one of: {}", choices.join(", ")))
                .help(format!("open one with [{}.{}]", self.path, choices[0])),
        };
        if let Some(entry) = unknown {
            let key = entry.key.clone();
            self.know(&key);
        }
        self.report("", problem);
    }

    /// One of the named words.
    pub fn choice<T: Copy>(&mut self, key: &str, choices: &[(&str, T)]) -> Option<T> {
        let found = self.text(key)?;
        let value = choices.iter().find(|(name, _)| *name == found.value).map(|(_, v)| *v);
        if value.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            let path = self.path_of(key);
            let title = format!("`{path}` is \"{}\"", found.value);
            let problem = Problem::error("unknown-choice", title)
                .at(found.place, format!("expected one of: {}", names.join(", ")))
                .nearest(found.value, names.iter().copied());
            self.report(key, problem);
        }
        value
    }

    /// Refuses every key that was written and never asked for.
    pub fn finish(self) {
        for entry in &self.table.entries {
            if self.known.contains(&entry.key) {
                continue;
            }
            let place = if self.path.is_empty() {
                "at the top of the file".to_owned()
            } else {
                format!("in [{}]", self.path)
            };
            let problem = Problem::error("unknown-key", format!("unknown key `{}`", entry.key))
                .at(entry.key_place, format!("no such key {place}"))
                .nearest(&entry.key, self.known.iter().map(String::as_str));
            self.report(&entry.key, problem);
        }
    }
}

/// The number in `node`, whole or not; `None` for anything else, infinities and NaN.
pub fn number_of(node: &Node) -> Option<f64> {
    match node.value {
        Value::Integer(n) => Some(n as f64),
        Value::Float(x) => Some(x).filter(|x| x.is_finite()),
        Value::Text(_) | Value::Bool(_) | Value::Date | Value::List(_) | Value::Table(_) => None,
    }
}

/// The whole number in `node`, when it lies within `range`.
pub fn integer_in(node: &Node, range: &RangeInclusive<u64>) -> Option<u64> {
    match node.value {
        Value::Integer(n) => u64::try_from(n).ok().filter(|n| range.contains(n)),
        _ => None,
    }
}

/// Words for a range of whole numbers.
pub fn whole_number(range: &RangeInclusive<u64>) -> String {
    match (*range.start(), *range.end()) {
        (min, u64::MAX) => format!("a whole number of at least {min}"),
        (min, max) => format!("a whole number from {min} to {max}"),
    }
}

fn shown(node: &Node) -> String {
    match &node.value {
        Value::Text(text) => format!("the string \"{text}\""),
        Value::Integer(i128::MAX | i128::MIN) => "a number beyond all bounds".to_owned(),
        Value::Integer(n) => n.to_string(),
        Value::Float(x) => x.to_string(),
        Value::Bool(yes) => yes.to_string(),
        other @ (Value::Date | Value::List(_) | Value::Table(_)) => other.kind().to_owned(),
    }
}

/// `path` holds something that it does not take.
pub fn wrong_kind(path: &str, node: &Node, expected: &str) -> Problem {
    Problem::error("bad-value", format!("`{path}` is {}", shown(node)))
        .at(node.place, format!("expected {expected}"))
        .key(path)
}

fn text_span(path: &str, node: &Node) -> Result<Span, Box<Problem>> {
    let expected = "a length of time in quotes, such as \"250ms\", \"90s\", \"15m\" or \"2h\"";
    let Value::Text(text) = &node.value else {
        return Err(Box::new(
            wrong_kind(path, node, expected)
                .help("units: ms, s, m, h, d; a bare number has none")
                .help(format!("a number of seconds goes under `{}_s`", last_step(path))),
        ));
    };
    duration::parse(text).map_err(|error| {
        let problem = Problem::error("bad-duration", format!("`{path}` is \"{text}\": {error}"))
            .at(node.place, format!("expected {expected}"))
            .key(path);
        Box::new(match error {
            DurationError::UnknownUnit(unit) => problem.nearest(&unit, ["ms", "s", "m", "h", "d"]),
            DurationError::Malformed | DurationError::NoUnit | DurationError::Negative => {
                problem.help("units: ms, s, m, h, d")
            }
            DurationError::TooLong => problem.help("the longest run is 213 days"),
        })
    })
}

fn seconds_span(path: &str, node: &Node) -> Result<Span, Box<Problem>> {
    let Some(seconds) = number_of(node) else {
        return Err(Box::new(wrong_kind(path, node, "a number of seconds")));
    };
    Span::from_seconds(seconds).map_err(|error| {
        Box::new(
            Problem::error("bad-duration", format!("`{path}`: {error}"))
                .at(node.place, "expected seconds from 0 to 18400000")
                .key(path),
        )
    })
}

fn refuse_zero(path: &str, node: &Node, span: Span, length: Length) -> Result<Span, Box<Problem>> {
    if span == Span::ZERO && length == Length::Positive {
        return Err(Box::new(wrong_kind(path, node, "a length of time above zero")));
    }
    Ok(span)
}

fn last_step(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}
