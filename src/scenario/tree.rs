//! TOML text as a tree in which every key and value remembers where it was written, and the
//! `--set` overrides that are laid over it. Knows nothing of what the keys mean.

use super::problem::{Place, Problem, Problems};
use toml::de::{DeTable, DeValue};

/// A value and where it stands.
#[derive(Debug, Clone)]
pub struct Node {
    /// What was written.
    pub value: Value,
    /// Where.
    pub place: Place,
}

/// A TOML value; numbers keep their kind so that `1.5` is refused where a count is meant.
#[derive(Debug, Clone)]
pub enum Value {
    /// A string.
    Text(String),
    /// A whole number within `i128`.
    Integer(i128),
    /// A number with a point, an exponent, `inf` or `nan`.
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// A date or time; no key takes one.
    Date,
    /// An array.
    List(Vec<Node>),
    /// A table.
    Table(Table),
}

impl Value {
    /// What kind of value this is, for messages.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a string",
            Self::Integer(_) => "a whole number",
            Self::Float(_) => "a number",
            Self::Bool(_) => "true or false",
            Self::Date => "a date",
            Self::List(_) => "an array",
            Self::Table(_) => "a table",
        }
    }
}

/// Keys and values in the order they were written.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// The entries; keys are unique.
    pub entries: Vec<Entry>,
}

/// One key and its value.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key stands.
    pub key_place: Place,
    /// Its value.
    pub node: Node,
}

impl Table {
    /// The entry with this key.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|e| e.key == key)
    }

    fn get_mut(&mut self, key: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|e| e.key == key)
    }
}

/// Most syntax errors shown of one text: one slip makes the parser stumble many times after.
const SYNTAX_ERRORS_MAX: usize = 3;
/// Most steps of an override's path; no key lies deeper.
const PATH_STEPS_MAX: usize = 16;

/// Parses a whole document. Syntax errors go to `problems`, the first of each line; the tree holds
/// what could be read.
pub fn parse(source: u32, text: &str, problems: &Problems) -> Node {
    let (root, errors) = DeTable::parse_recoverable(text);
    let line_of = |at: usize| text.as_bytes().iter().take(at).filter(|b| **b == b'\n').count();
    let mut lines: Vec<usize> = Vec::new();
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        let line = line_of(span.start);
        if lines.contains(&line) || lines.len() == SYNTAX_ERRORS_MAX {
            continue;
        }
        lines.push(line);
        problems.push(syntax_problem(error.message(), Place::new(source, span)));
    }
    let span = root.span();
    Node { value: table_of(source, root.into_inner()), place: Place::new(source, span) }
}

fn syntax_problem(message: &str, place: Place) -> Problem {
    Problem::error("toml-syntax", format!("this is not TOML: {}", message.replace('\n', " ")))
        .at(place, "here")
        .help("strings need quotes, every key stands once, and a table is opened by [name]")
}

fn table_of(source: u32, table: DeTable<'_>) -> Value {
    let entries = table
        .into_iter()
        .map(|(key, value)| Entry {
            key_place: Place::new(source, key.span()),
            key: key.into_inner().into_owned(),
            node: Node {
                place: Place::new(source, value.span()),
                value: value_of(source, value.into_inner()),
            },
        })
        .collect();
    Value::Table(Table { entries })
}

fn value_of(source: u32, value: DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(number) => {
            // Beyond i128 every range check fails all the same.
            let digits = number.as_str().replace('_', "");
            let parsed = i128::from_str_radix(&digits, number.radix());
            let sentinel = if digits.starts_with('-') { i128::MIN } else { i128::MAX };
            Value::Integer(parsed.unwrap_or(sentinel))
        }
        DeValue::Float(number) => {
            Value::Float(number.as_str().replace('_', "").parse().unwrap_or(f64::NAN))
        }
        DeValue::Boolean(yes) => Value::Bool(yes),
        DeValue::Datetime(_) => Value::Date,
        DeValue::Array(items) => Value::List(
            items
                .into_iter()
                .map(|item| Node {
                    place: Place::new(source, item.span()),
                    value: value_of(source, item.into_inner()),
                })
                .collect(),
        ),
        DeValue::Table(table) => table_of(source, table),
    }
}

/// Lays `key=value` over the tree. The key is a dotted path; a step into an array is an index or
/// the `name` of one of its tables. The value is TOML, or a bare string when it is not.
pub fn set(root: &mut Node, source: u32, key: &str, value: &str, problems: &Problems) {
    let value_start = key.len() + 1;
    let node = override_value(source, value, value_start);
    let mut at = root;
    let mut start = 0;
    let steps: Vec<&str> = split_path(key);
    if steps.len() > PATH_STEPS_MAX {
        let title = format!("a path of {} steps leads nowhere", steps.len());
        let place = Place::new(source, 0..key.len());
        problems.push(Problem::error("set-path", title).at(place, "too deep").help(SET_HELP));
        return;
    }
    let last = steps.len() - 1;
    let mut node = Some(node);
    for (i, raw) in steps.iter().enumerate() {
        let place = Place::new(source, start..start + raw.len());
        start += raw.len() + 1;
        let step = raw.trim_matches('"');
        if step.is_empty() {
            let problem = Problem::error("set-path", format!("`{key}` has an empty step"));
            problems.push(problem.at(place, "a key is missing here").help(SET_HELP));
            return;
        }
        let found = match &mut at.value {
            Value::Table(table) => Some(enter_table(table, step, place, i < last)),
            Value::List(items) => enter_list(items, step, place, problems),
            other => {
                let title = format!("`{step}` steps into {}", other.kind());
                problems.push(
                    Problem::error("set-path", title)
                        .at(place, "only tables and arrays have something inside")
                        .help(SET_HELP),
                );
                None
            }
        };
        let Some(next) = found else { return };
        if i == last
            && let Some(node) = node.take()
        {
            *next = node;
            return;
        }
        at = next;
    }
}

const SET_HELP: &str = "write --set key=value with a dotted path, as in pool.0.instances=4";

/// Splits at dots outside quotes, so that `slo."ttft.p95"` has two steps.
fn split_path(key: &str) -> Vec<&str> {
    let mut quoted = false;
    key.split(|c: char| {
        if c == '"' {
            quoted = !quoted;
        }
        c == '.' && !quoted
    })
    .collect()
}

fn override_value(source: u32, value: &str, start: usize) -> Node {
    let place = Place::new(source, start..start + value.len());
    match DeValue::parse(value) {
        Ok(parsed) => {
            let mut node = Node { value: value_of(source, parsed.into_inner()), place };
            shift(&mut node, start);
            node.place = place;
            node
        }
        Err(_) => Node { value: Value::Text(value.to_owned()), place },
    }
}

/// Moves places inside a value to where the value stands in the override text.
fn shift(node: &mut Node, by: usize) {
    node.place = node.place.shifted(by);
    match &mut node.value {
        Value::List(items) => items.iter_mut().for_each(|item| shift(item, by)),
        Value::Table(table) => {
            for entry in &mut table.entries {
                entry.key_place = entry.key_place.shifted(by);
                shift(&mut entry.node, by);
            }
        }
        Value::Text(_) | Value::Integer(_) | Value::Float(_) | Value::Bool(_) | Value::Date => {}
    }
}

fn enter_table<'a>(table: &'a mut Table, key: &str, place: Place, inner: bool) -> &'a mut Node {
    if table.get(key).is_none() {
        let value = if inner { Value::Table(Table::default()) } else { Value::Bool(false) };
        let node = Node { value, place };
        table.entries.push(Entry { key: key.to_owned(), key_place: place, node });
    } else if !inner && let Some(entry) = table.get_mut(key) {
        entry.key_place = place;
    }
    match table.get_mut(key) {
        Some(entry) => &mut entry.node,
        None => unreachable!("the entry was pushed above"),
    }
}

fn enter_list<'a>(
    items: &'a mut [Node],
    step: &str,
    place: Place,
    problems: &Problems,
) -> Option<&'a mut Node> {
    let names: Vec<String> = items.iter().filter_map(name_of).collect();
    let count = items.len();
    let index = step
        .parse::<usize>()
        .ok()
        .or_else(|| items.iter().position(|item| name_of(item).as_deref() == Some(step)));
    let found = index.and_then(|i| items.get_mut(i));
    if found.is_none() {
        let mut problem = Problem::error("set-path", format!("there is no element `{step}` here"))
            .at(place, format!("expected an index below {count}, or a name"));
        if !names.is_empty() {
            problem = problem.nearest(step, names.iter().map(String::as_str));
        }
        problems.push(problem.help(SET_HELP));
    }
    found
}

/// The `name` of a table in a list.
pub fn name_of(node: &Node) -> Option<String> {
    let Value::Table(table) = &node.value else { return None };
    match &table.get("name")?.node.value {
        Value::Text(name) => Some(name.clone()),
        _ => None,
    }
}
