//! Lines of a trace file, one at a time: unpacks gzip (known by its magic bytes), checks UTF-8 and
//! length, counts lines for messages. Memory is that of the longest line. Knows no format.

use crate::workload::WorkloadError;
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Longest line accepted; a row with hash ids for a million tokens is far shorter.
const LINE_BYTES_MAX: usize = 8 << 20;
const BUFFER_BYTES: usize = 64 << 10;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A text file being read; blank lines are passed over.
pub(super) struct Lines {
    input: Box<dyn BufRead + Send>,
    gzip: bool,
    file: String,
    /// The current line without its end.
    text: Vec<u8>,
    /// Its number, from 1; 0 before the first.
    number: u64,
    /// The current line shall be handed out once more.
    held: bool,
}

impl Lines {
    /// Opens `path`.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(super) fn open(path: &Path) -> Result<Self, WorkloadError> {
        let file = path.display().to_string();
        match open_unpacked(path) {
            Ok((input, gzip)) => {
                Ok(Self { input, gzip, file, text: Vec::new(), number: 0, held: false })
            }
            Err(error) => {
                Err(WorkloadError::TraceFile { file, problem: format!("cannot be read: {error}") })
            }
        }
    }

    /// Goes to the next line that is not blank; false at the end of the file.
    ///
    /// # Errors
    /// When the file cannot be read or unpacked, or the line is too long or not UTF-8.
    pub(super) fn advance(&mut self) -> Result<bool, WorkloadError> {
        if std::mem::take(&mut self.held) {
            return Ok(true);
        }
        loop {
            self.number += 1;
            self.text.clear();
            let limit = LINE_BYTES_MAX as u64 + 2;
            match self.input.by_ref().take(limit).read_until(b'\n', &mut self.text) {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(error) => return Err(self.error(self.reading_problem(&error))),
            }
            self.strip();
            if self.text.len() > LINE_BYTES_MAX {
                return Err(self.error(format!("the line is longer than {LINE_BYTES_MAX} bytes")));
            }
            if let Err(error) = std::str::from_utf8(&self.text) {
                let at = error.valid_up_to() + 1;
                return Err(self.error(format!("byte {at} of the line is not UTF-8 text")));
            }
            // Blank lines carry nothing; most files that have one have it at the end.
            if !self.text.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    /// The current line, valid UTF-8, without its end.
    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Its number, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Hands the current line out again at the next [`Lines::advance`].
    pub(super) fn hold(&mut self) {
        self.held = true;
    }

    /// An error about the current line.
    pub(super) fn error(&self, problem: impl Into<String>) -> WorkloadError {
        let file = self.file.clone();
        WorkloadError::TraceLine { file, line: self.number, problem: problem.into() }
    }

    /// An error about the file as a whole.
    pub(super) fn file_error(&self, problem: impl Into<String>) -> WorkloadError {
        WorkloadError::TraceFile { file: self.file.clone(), problem: problem.into() }
    }

    fn strip(&mut self) {
        for end in [b'\n', b'\r'] {
            if self.text.last() == Some(&end) {
                self.text.pop();
            }
        }
        if self.number == 1 && self.text.starts_with(BYTE_ORDER_MARK) {
            self.text.drain(..BYTE_ORDER_MARK.len());
        }
    }

    fn reading_problem(&self, error: &io::Error) -> String {
        if self.gzip {
            format!("cannot be unpacked ({error}): the gzip file is cut short or damaged")
        } else {
            format!("cannot be read: {error}")
        }
    }
}

fn open_unpacked(path: &Path) -> io::Result<(Box<dyn BufRead + Send>, bool)> {
    let mut raw = BufReader::with_capacity(BUFFER_BYTES, File::open(path)?);
    if raw.fill_buf()?.starts_with(&GZIP_MAGIC) {
        let unpacked = MultiGzDecoder::new(raw);
        return Ok((Box::new(BufReader::with_capacity(BUFFER_BYTES, unpacked)), true));
    }
    Ok((Box::new(raw), false))
}
