//! Problems of a scenario: collected, never thrown at the first, and shown together with file,
//! line, caret, what was expected, the nearest valid choice and a help line. Knows nothing of what
//! the keys mean.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

/// A stretch of bytes in one of the texts that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index of the text: 0 is the scenario, then overrides and profiles.
    pub source: u32,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Place {
    /// Bytes `span` of text `source`.
    pub const fn new(source: u32, span: Range<usize>) -> Self {
        Self { source, start: span.start, end: span.end }
    }

    /// The same stretch `by` bytes later.
    pub const fn shifted(self, by: usize) -> Self {
        Self { source: self.source, start: self.start + by, end: self.end + by }
    }
}

/// How bad a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The scenario cannot be run.
    Error,
    /// It can be run; the reader should know.
    Advice,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// How bad.
    pub severity: Severity,
    /// Short name of the check, in kebab case.
    pub code: &'static str,
    /// What is wrong, in one line.
    pub title: String,
    /// Dotted path of the key, where there is one.
    pub key: String,
    /// Where, and what to say there.
    pub mark: Option<(Place, String)>,
    /// Steps that put it right.
    pub help: Vec<String>,
}

impl Problem {
    /// A problem that stops the scenario.
    pub fn error(code: &'static str, title: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            code,
            title: title.into(),
            key: String::new(),
            mark: None,
            help: Vec::new(),
        }
    }

    /// Something worth knowing.
    pub fn advice(code: &'static str, title: impl Into<String>) -> Self {
        Self { severity: Severity::Advice, ..Self::error(code, title) }
    }

    /// Points at `place` and says `label` there.
    #[must_use]
    pub fn at(mut self, place: Place, label: impl Into<String>) -> Self {
        self.mark = Some((place, label.into()));
        self
    }

    /// Names the key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = key.into();
        self
    }

    /// Adds a step that puts it right.
    #[must_use]
    pub fn help(mut self, line: impl Into<String>) -> Self {
        self.help.push(line.into());
        self
    }

    /// Offers the valid choice nearest to `given`, or lists them all when none is near.
    #[must_use]
    pub fn nearest<'c>(self, given: &str, choices: impl IntoIterator<Item = &'c str>) -> Self {
        let choices: Vec<&str> = choices.into_iter().collect();
        let near = nearest(given, &choices);
        match near.as_slice() {
            [] if choices.len() <= 24 => self.help(format!("valid here: {}", choices.join(", "))),
            [] => self,
            near => {
                let names: Vec<String> = near.iter().map(|n| format!("`{n}`")).collect();
                self.help(format!("did you mean {}?", names.join(" or ")))
            }
        }
    }
}

/// Up to three choices that resemble `given`, best first.
fn nearest<'c>(given: &str, choices: &[&'c str]) -> Vec<&'c str> {
    let lower = given.to_lowercase();
    let mut scored: Vec<(f64, &str)> = choices
        .iter()
        .map(|c| (strsim::jaro_winkler(&lower, &c.to_lowercase()), *c))
        .filter(|(score, _)| *score >= 0.85)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    let best = scored.first().map_or(0.0, |s| s.0);
    scored.into_iter().filter(|s| s.0 >= best - 0.02).take(3).map(|s| s.1).collect()
}

/// Where findings are collected while a scenario is read.
#[derive(Debug, Default)]
pub struct Problems {
    found: RefCell<Vec<Problem>>,
}

impl Problems {
    /// Adds a finding.
    pub fn push(&self, problem: Problem) {
        self.found.borrow_mut().push(problem);
    }

    /// True when something stops the scenario.
    pub fn any_error(&self) -> bool {
        self.found.borrow().iter().any(|p| p.severity == Severity::Error)
    }

    /// How many findings there are.
    pub fn count(&self) -> usize {
        self.found.borrow().len()
    }

    /// Takes all findings.
    pub fn into_inner(self) -> Vec<Problem> {
        self.found.into_inner()
    }
}

/// A text that was read, and what to call it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// A file name, or `--set`.
    pub name: String,
    /// The text.
    pub text: String,
}

/// All findings about one scenario, ready to be shown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diagnostics {
    sources: Vec<Source>,
    /// Where the lines of each source start.
    lines: Vec<Vec<usize>>,
    problems: Vec<Problem>,
}

/// Where a finding stands, as people count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location<'a> {
    /// A file name, or `--set`.
    pub file: &'a str,
    /// Line from 1.
    pub line: usize,
    /// Column from 1, in characters.
    pub column: usize,
}

/// Most findings shown as text; a file with more is not what it was taken for.
const SHOWN_MAX: usize = 200;

impl Diagnostics {
    /// Findings about these texts; errors first, each group in the order of the text.
    pub fn new(sources: Vec<Source>, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|p| {
            let place = p.mark.as_ref().map(|(place, _)| (place.source, place.start));
            (p.severity, place.unwrap_or((u32::MAX, 0)))
        });
        problems.dedup();
        let lines = sources.iter().map(|source| line_starts(&source.text)).collect();
        Self { sources, lines, problems }
    }

    /// Where `problem`, one of [`Diagnostics::problems`], stands; `None` when it is about a file
    /// as a whole.
    #[must_use]
    pub fn location(&self, problem: &Problem) -> Option<Location<'_>> {
        let (place, _) = problem.mark.as_ref()?;
        let source = self.sources.get(place.source as usize)?;
        let (number, start) = self.line_of(*place)?;
        let at = clamp(&source.text, *place).start;
        let column = source.text[start..at].chars().count() + 1;
        Some(Location { file: &source.name, line: number + 1, column })
    }

    /// Number from 0 and first byte of the line in which `place` begins.
    fn line_of(&self, place: Place) -> Option<(usize, usize)> {
        let starts = self.lines.get(place.source as usize)?;
        let number = starts.partition_point(|&start| start <= place.start).checked_sub(1)?;
        Some((number, starts[number]))
    }

    /// The findings, errors first.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// How many stop the scenario.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.problems.iter().filter(|p| p.severity == Severity::Error).count()
    }

    /// How many do not.
    #[must_use]
    pub fn advice(&self) -> usize {
        self.problems.len() - self.errors()
    }

    /// True when there is nothing to say.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// The findings as text, with terminal colours or without; of very many the first.
    #[must_use]
    pub fn render(&self, color: bool) -> String {
        let renderer = if color { Renderer::styled() } else { Renderer::plain() };
        let mut text = String::new();
        for problem in self.problems.iter().take(SHOWN_MAX) {
            text.push_str(&renderer.render(&[self.group(problem)]));
            text.push_str("\n\n");
        }
        if let Some(more) = self.problems.len().checked_sub(SHOWN_MAX).filter(|more| *more > 0) {
            text.push_str(&format!("and {more} more\n\n"));
        }
        text
    }

    fn group<'a>(&'a self, problem: &'a Problem) -> Group<'a> {
        let level = match problem.severity {
            Severity::Error => Level::ERROR,
            Severity::Advice => Level::WARNING.with_name("advice"),
        };
        let title = level.primary_title(&problem.title).id(problem.code);
        let mut group = match &problem.mark {
            Some((place, label)) => match self.sources.get(place.source as usize) {
                Some(source) => title.element(self.snippet(source, *place, label)),
                None => Group::with_title(title),
            },
            None => match self.sources.first() {
                Some(source) => title.element(annotate_snippets::Origin::path(&source.name)),
                None => Group::with_title(title),
            },
        };
        for line in &problem.help {
            group = group.element(Level::HELP.message(line));
        }
        group
    }

    /// Shows the line of the mark; the renderer would walk through the whole text each time.
    fn snippet<'a>(
        &self,
        source: &'a Source,
        place: Place,
        label: &'a str,
    ) -> Snippet<'a, annotate_snippets::Annotation<'a>> {
        let (number, start) = self.line_of(place).unwrap_or((0, 0));
        let mark = clamp(&source.text, place);
        let start = start.min(mark.start);
        let end = source.text[mark.end..].find('\n').map_or(source.text.len(), |n| mark.end + n);
        Snippet::source(&source.text[start..end])
            .path(&source.name)
            .line_start(number + 1)
            .annotation(
                AnnotationKind::Primary.span(mark.start - start..mark.end - start).label(label),
            )
    }
}

fn line_starts(text: &str) -> Vec<usize> {
    std::iter::once(0).chain(text.match_indices('\n').map(|(newline, _)| newline + 1)).collect()
}

/// The first line of the stretch, cut to whole characters of the text.
fn clamp(text: &str, place: Place) -> Range<usize> {
    let floor = |mut at: usize| {
        at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let (start, end) = (floor(place.start), floor(place.end.max(place.start)));
    let line_end = text[start..end].find('\n').map_or(end, |n| start + n);
    start..line_end
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Diagnostics {}
