//! The text of a scenario or a profile: bounded in size, and UTF-8 or a word on where it is not.
//! Knows nothing of what it says.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Longest text: far beyond what anybody writes, so a longer one is the wrong file.
const BYTES_MAX: u64 = 16 << 20;

/// Why there is no text.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The system refuses.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Not a text by its size.
    #[error("it is longer than {} MiB; traffic that long goes into a trace", BYTES_MAX >> 20)]
    TooLong,
    /// UTF-16, as some editors save.
    #[error("it is UTF-16 text; save it as UTF-8")]
    Utf16,
    /// Some other encoding, or no text at all.
    #[error("line {line}, column {column}: byte 0x{byte:02X} is not UTF-8 text")]
    NotUtf8 {
        /// Line from 1.
        line: usize,
        /// Column from 1, in characters.
        column: usize,
        /// The byte there.
        byte: u8,
    },
}

/// The text of the file at `path`.
///
/// # Errors
/// When it cannot be read, or is no text.
pub fn read(path: &Path) -> Result<String, TextError> {
    read_from(File::open(path)?)
}

/// All text that `reader` gives.
///
/// # Errors
/// See [`read`].
pub fn read_from(reader: impl Read) -> Result<String, TextError> {
    let mut bytes = Vec::new();
    reader.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(TextError::TooLong);
    }
    if bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]) {
        return Err(TextError::Utf16);
    }
    String::from_utf8(bytes).map_err(|error| {
        let end = error.utf8_error().valid_up_to();
        let before = String::from_utf8_lossy(&error.as_bytes()[..end]);
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        TextError::NotUtf8 {
            line: before.matches('\n').count() + 1,
            column: before[start..].chars().count() + 1,
            byte: error.as_bytes()[end],
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_none_says_where() {
        let problem = |bytes: &[u8]| read_from(bytes).unwrap_err().to_string();
        assert_eq!(problem(b"a\n\xc3\xbc\xff"), "line 2, column 2: byte 0xFF is not UTF-8 text");
        assert_eq!(problem(b"\xff\xfea\0"), "it is UTF-16 text; save it as UTF-8");
        assert!(problem(&vec![b' '; (BYTES_MAX + 1) as usize]).contains("longer than 16 MiB"));
        assert_eq!(read_from(&b"\xc3\xbc"[..]).unwrap(), "ü");
    }
}
