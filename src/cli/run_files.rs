//! The row files of a run: each replication writes its own, compressed or not, and at the end they
//! are laid end to end, so their bytes do not depend on how many ran at a time.

use std::fs::File;
use std::io::{self, Seek, Write};

use anyhow::{Context, Result};

use crate::cli::folder::RunFolder;
use crate::report::rows::{ReplicationColumn, RowWriter, requests_header, timeseries_header};
use crate::scenario::{RequestsFile, Scenario};

/// Level of zstd: fixed, as it decides the bytes. 3 is zstd's own default.
const ZSTD_LEVEL: i32 = 3;

/// Where rows of requests go.
pub enum Sink {
    /// Plain text.
    Plain(File),
    /// Compressed.
    Zstd(Box<zstd::Encoder<'static, File>>),
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.write(bytes),
            Self::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.flush(),
            // A flush would end a block early; `finish` writes everything.
            Self::Zstd(_) => Ok(()),
        }
    }
}

impl Sink {
    fn finish(self) -> io::Result<()> {
        match self {
            Self::Plain(mut file) => file.flush(),
            Self::Zstd(encoder) => encoder.finish().map(drop),
        }
    }
}

/// Writes the rows of one replication.
pub type Rows = RowWriter<Sink, File>;

/// Files of one replication: the final ones for the first, parts for the others.
#[derive(Default)]
pub struct ReplicationFiles {
    requests: Option<Sink>,
    timeseries: Option<File>,
}

/// Opens the files for replication `number` in `folder`.
///
/// # Errors
/// When the file system refuses.
pub fn open(folder: &RunFolder, scenario: &Scenario, number: u32) -> Result<Rows> {
    let column = match scenario.replications {
        1 => ReplicationColumn::Absent,
        _ => ReplicationColumn::Number(number),
    };
    let requests = match (number, scenario.output.requests) {
        (_, RequestsFile::None) => None,
        (0, RequestsFile::Csv) => Some(Sink::Plain(folder.create("requests.csv")?)),
        (0, RequestsFile::CsvZst) => {
            let file = folder.create("requests.csv.zst")?;
            Some(Sink::Zstd(Box::new(zstd::Encoder::new(file, ZSTD_LEVEL)?)))
        }
        // Parts are read once more, so they are not worth compressing.
        (_, RequestsFile::Csv | RequestsFile::CsvZst) => {
            Some(Sink::Plain(folder.create(&format!("requests.{number}.part"))?))
        }
    };
    let timeseries = match (number, scenario.output.sample_every) {
        (_, None) => None,
        (0, Some(_)) => Some(folder.create("timeseries.csv")?),
        (_, Some(_)) => Some(folder.create(&format!("timeseries.{number}.part"))?),
    };
    let (mut requests, mut timeseries) = (requests, timeseries);
    if number == 0 {
        if let Some(sink) = &mut requests {
            sink.write_all(requests_header(column).as_bytes())?;
        }
        if let Some(file) = &mut timeseries {
            file.write_all(timeseries_header(column).as_bytes())?;
        }
    }
    let pool_names: Vec<String> = scenario.config.pools.iter().map(|p| p.name.clone()).collect();
    Ok(RowWriter::new(&pool_names, column, requests, timeseries))
}

/// Everything that one replication had to say is written.
///
/// # Errors
/// The first error of its files.
pub fn finish(rows: Rows) -> Result<ReplicationFiles> {
    let (requests, timeseries) = rows.finish().context("writing rows")?;
    Ok(ReplicationFiles { requests, timeseries })
}

/// Lays the files of all replications end to end, in order.
///
/// # Errors
/// When the file system refuses.
pub fn join(folder: &RunFolder, files: Vec<ReplicationFiles>) -> Result<()> {
    let mut parts = files.into_iter();
    let Some(ReplicationFiles { mut requests, mut timeseries }) = parts.next() else {
        return Ok(());
    };
    for (number, part) in (1..).zip(parts) {
        if let (Some(all), Some(Sink::Plain(mut file))) = (&mut requests, part.requests) {
            append(all, &mut file).context("joining requests")?;
            folder.remove(&format!("requests.{number}.part"))?;
        }
        if let (Some(all), Some(mut file)) = (&mut timeseries, part.timeseries) {
            append(all, &mut file).context("joining time series")?;
            folder.remove(&format!("timeseries.{number}.part"))?;
        }
    }
    if let Some(sink) = requests {
        sink.finish().context("writing requests")?;
    }
    Ok(())
}

fn append(all: &mut impl Write, part: &mut File) -> io::Result<()> {
    part.rewind()?;
    io::copy(part, all).map(drop)
}

/// Writes a small file.
///
/// # Errors
/// When the file system refuses.
pub fn write_text(folder: &RunFolder, name: &str, text: &str) -> Result<()> {
    let mut file = folder.create(name).with_context(|| name.to_owned())?;
    file.write_all(text.as_bytes()).with_context(|| name.to_owned())
}
