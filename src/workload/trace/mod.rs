//! Trace files, read line by line: which layout a file has, its rows in order of time, and the
//! source that replays them. Knows layouts and files; nothing of what becomes of the requests.
//!
//! Arrival times count from the first row, exactly: stamps are integers of picoseconds from the
//! text on. Memory does not depend on the length of the file, but for hash ids of more than 61
//! bits, which are kept to tell them apart.

mod lines;
mod mooncake;
mod stamp;
mod table;

use super::spec::{TraceFormat, TraceSpec};
use super::{Arrival, ArrivalSource, RequestBody, SourceEnd, SourceNotes, WorkloadError};
use crate::engine::request::{Prompt, RequestId, Segment, StreamId};
use crate::units::{PS_PER_S, SimTime};
use lines::Lines;
use mooncake::Mooncake;
use std::path::Path;
use table::Table;

pub(super) use mooncake::block_sizes;

/// What a file was found to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detection {
    /// Its layout.
    pub format: TraceFormat,
    /// Why, and what is used and what is ignored, in words to show.
    pub reason: String,
}

/// Looks at the first line of `path` for the layout of a trace.
///
/// # Errors
/// When the file cannot be read, is empty, or has no layout known here.
pub fn detect(path: &Path) -> Result<Detection, WorkloadError> {
    TraceReader::open(path, None, None).map(TraceReader::into_detection)
}

/// A row of a trace as it stands in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Row {
    /// Arrival on the file's own clock.
    stamp_ps: i128,
    /// Arrival since the first row.
    pub(super) at: SimTime,
    /// Prompt tokens, perhaps 0.
    pub(super) input_tokens: u32,
    /// Output tokens, perhaps 0.
    pub(super) output_tokens: u32,
    /// Smaller is served first.
    pub(super) priority: i32,
    /// Names of the prompt's blocks, each below 2^62.
    pub(super) hash_ids: Vec<u64>,
    /// The file gives hash ids for this row, perhaps none.
    has_hash_ids: bool,
}

enum Layout {
    Table(Table),
    Mooncake(Mooncake),
}

/// Reads the rows of a trace, in order of time.
pub(super) struct TraceReader {
    lines: Lines,
    layout: Layout,
    detection: Detection,
    /// Stamp of the first row, once read.
    first_ps: Option<i128>,
    /// Time and line of the last row.
    last: (SimTime, u64),
}

impl TraceReader {
    /// Opens `path` as `format`, or as what it looks like.
    ///
    /// # Errors
    /// When the file cannot be read, is empty, or has no known layout or not the stated one.
    pub(super) fn open(
        path: &Path,
        format: Option<TraceFormat>,
        hash_block_size: Option<u32>,
    ) -> Result<Self, WorkloadError> {
        let mut lines = Lines::open(path)?;
        if !lines.advance()? {
            return Err(lines.file_error("the file is empty, expected a trace"));
        }
        let head = lines.text();
        let found = match format {
            None => recognise(head, hash_block_size),
            Some(format) => open_layout(format, head, hash_block_size).map_err(|problem| {
                let mut text = format!("not {format} as stated: {problem}");
                if let Ok((_, other)) = recognise(head, hash_block_size) {
                    text.push_str(&format!("; it looks like {}", other.format));
                }
                text
            }),
        };
        let (layout, detection) = found.map_err(|problem| lines.error(problem))?;
        if let Layout::Mooncake(_) = layout {
            lines.hold(); // No header: the first line is a row.
        }
        Ok(Self { lines, layout, detection, first_ps: None, last: (SimTime::ZERO, 0) })
    }

    /// What the file was taken for.
    pub(super) fn into_detection(self) -> Detection {
        self.detection
    }

    /// Reads the next row; false after the last.
    ///
    /// # Errors
    /// When a row cannot be read, or arrives before the one above it or beyond the clock; when the
    /// file ends without any row.
    pub(super) fn next_row(&mut self, row: &mut Row) -> Result<bool, WorkloadError> {
        if !self.lines.advance()? {
            return match self.first_ps {
                Some(_) => Ok(false),
                None => Err(self.lines.file_error("a header and no rows, expected a trace")),
            };
        }
        let read = match &mut self.layout {
            Layout::Table(table) => table.read(self.lines.text(), row),
            Layout::Mooncake(mooncake) => mooncake.read(self.lines.text(), row),
        };
        read.map_err(|problem| self.error(problem))?;
        let first_ps = *self.first_ps.get_or_insert(row.stamp_ps);
        row.at = self.since_first(row.stamp_ps - first_ps)?;
        self.last = (row.at, self.lines.number());
        Ok(true)
    }

    /// An error about the row that was read last.
    pub(super) fn error(&self, problem: impl Into<String>) -> WorkloadError {
        self.lines.error(problem)
    }

    fn since_first(&self, ps: i128) -> Result<SimTime, WorkloadError> {
        let (last, last_line) = self.last;
        if ps < i128::from(last.0) {
            return Err(self.error(format!(
                "arrives {} after the first row, before the {} of line {last_line}: rows must be \
                 in order of arrival; sort the file",
                seconds(ps),
                seconds(last.0.into()),
            )));
        }
        u64::try_from(ps).map(SimTime).map_err(|_| {
            self.error(format!(
                "arrives {} after the first row, beyond the clock's range of 213 days",
                seconds(ps)
            ))
        })
    }
}

fn seconds(ps: i128) -> String {
    format!("{} s", ps as f64 / PS_PER_S as f64)
}

fn recognise(head: &[u8], block_size: Option<u32>) -> Result<(Layout, Detection), String> {
    if head.trim_ascii_start().starts_with(b"{") {
        if mooncake::gives_seconds(head) {
            return Err("`chat_id` marks a Qwen-Bailian trace, whose `timestamp` is in seconds; \
                        convert it to milliseconds and state the format mooncake-jsonl"
                .into());
        }
        return open_layout(TraceFormat::MooncakeJsonl, head, block_size);
    }
    if let Ok(azure) = open_layout(TraceFormat::AzureLlmCsv, head, block_size) {
        return Ok(azure);
    }
    open_layout(TraceFormat::PlainCsv, head, block_size).map_err(|problem| {
        format!(
            "no known trace layout: as {}, {problem}; {} begins with \
             `TIMESTAMP,ContextTokens,GeneratedTokens` and {} with a JSON object",
            TraceFormat::PlainCsv,
            TraceFormat::AzureLlmCsv,
            TraceFormat::MooncakeJsonl,
        )
    })
}

fn open_layout(
    format: TraceFormat,
    head: &[u8],
    block_size: Option<u32>,
) -> Result<(Layout, Detection), String> {
    let (layout, reason) = match format {
        TraceFormat::AzureLlmCsv => Table::azure(head).map(described)?,
        TraceFormat::PlainCsv => Table::plain(head).map(described)?,
        TraceFormat::MooncakeJsonl => {
            (Layout::Mooncake(Mooncake::new(block_size)), mooncake::recognise(head)?)
        }
    };
    Ok((layout, Detection { format, reason }))
}

fn described(table: Table) -> (Layout, String) {
    let reason = table.reason();
    (Layout::Table(table), reason)
}

/// Replays a trace file.
pub(super) struct TraceSource {
    reader: TraceReader,
    row: Row,
    speedup: f64,
    /// Rows still to come at most.
    left: u64,
    end: SourceEnd,
    block_size: Option<u32>,
    notes: SourceNotes,
}

impl TraceSource {
    /// Opens the trace of `spec`.
    ///
    /// # Errors
    /// When the speed-up or the block size is out of range, or the file cannot be used.
    pub(super) fn open(spec: &TraceSpec) -> Result<Self, WorkloadError> {
        let speedup = spec.speedup;
        if !(speedup > 0.0 && speedup.is_finite()) {
            let problem = format!("{speedup} is not a finite number above 0");
            return Err(WorkloadError::spec("trace.speedup", problem));
        }
        if spec.hash_block_size == Some(0) {
            let problem = "0 tokens per hash id, expected at least 1 (Mooncake: 512)";
            return Err(WorkloadError::spec("trace.hash_block_size", problem));
        }
        Ok(Self {
            reader: TraceReader::open(&spec.path, spec.format, spec.hash_block_size)?,
            row: Row::default(),
            speedup,
            left: spec.limit.unwrap_or(u64::MAX),
            end: SourceEnd::Count,
            block_size: spec.hash_block_size,
            notes: SourceNotes::default(),
        })
    }

    /// The row's time, replayed `speedup` times as fast.
    fn replay_time(&self) -> Result<SimTime, WorkloadError> {
        if self.speedup == 1.0 {
            return Ok(self.row.at); // Exact; a division would round to 53 bits.
        }
        let ps = (self.row.at.0 as f64 / self.speedup).round();
        if ps >= u64::MAX as f64 {
            let problem = format!(
                "arrives after {} s at a speed-up of {}, beyond the clock's range of 213 days",
                ps / PS_PER_S as f64,
                self.speedup
            );
            return Err(self.reader.error(problem));
        }
        Ok(SimTime(ps as u64))
    }

    fn prompt(&mut self, id: RequestId) -> Result<Prompt, WorkloadError> {
        let tokens = raised(self.row.input_tokens, &mut self.notes.zero_prompts_raised);
        if self.row.hash_ids.is_empty() {
            return Ok(Prompt::single(StreamId::own(id), tokens));
        }
        let Some(block_size) = self.block_size else {
            let sizes = block_sizes(tokens, self.row.hash_ids.len() as u64);
            let hint = match sizes {
                Some((low, Some(high))) => format!("; {low} to {high} would fit this row"),
                Some((low, None)) => format!("; {low} or more would fit this row"),
                None => String::new(),
            };
            return Err(self.reader.error(format!(
                "the row has hash ids and the file does not say how many tokens each stands for; \
                 give `hash_block_size` (Mooncake: 512){hint}"
            )));
        };
        // The reader has checked that the last block, and only that, may be partial.
        let blocks = self.row.hash_ids.iter().enumerate().map(|(i, &hash)| Segment {
            stream: StreamId::shared(hash),
            len: block_size.min(tokens - i as u32 * block_size),
        });
        Ok(Prompt::from_segments(blocks))
    }
}

/// At least one token; `count` says how often that was not so.
fn raised(tokens: u32, count: &mut u64) -> u32 {
    *count += u64::from(tokens == 0);
    tokens.max(1)
}

impl ArrivalSource for TraceSource {
    fn next_arrival(&mut self, id: RequestId) -> Result<Option<Arrival>, WorkloadError> {
        if self.left == 0 {
            return Ok(None);
        }
        if !self.reader.next_row(&mut self.row)? {
            self.left = 0;
            self.end = SourceEnd::LastArrival;
            return Ok(None);
        }
        self.left -= 1;
        let at = self.replay_time()?;
        let body = RequestBody {
            prompt: self.prompt(id)?,
            output_tokens: raised(self.row.output_tokens, &mut self.notes.zero_outputs_raised),
            priority: self.row.priority,
            skip_cache: false,
            abort_after: None,
        };
        Ok(Some(Arrival { at, body }))
    }

    fn end(&self) -> SourceEnd {
        self.end
    }

    fn notes(&self) -> SourceNotes {
        self.notes.clone()
    }
}
