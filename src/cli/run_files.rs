//! The row files of a run: each replication writes its own, compressed or not, and at the end they
//! are laid end to end, so their bytes do not depend on how many ran at a time. Open files are
//! those of the first replication and of the ones that are running.

use std::fs::File;
use std::io::{self, Write};

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

/// The final files: those of the first replication, behind which the parts of the others go.
#[derive(Default)]
pub struct FinalFiles {
    requests: Option<Sink>,
    timeseries: Option<File>,
}

fn requests_part(number: u32) -> String {
    format!("requests.{number}.part")
}

fn timeseries_part(number: u32) -> String {
    format!("timeseries.{number}.part")
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
            Some(Sink::Plain(folder.create(&requests_part(number))?))
        }
    };
    let timeseries = match (number, scenario.output.sample_every) {
        (_, None) => None,
        (0, Some(_)) => Some(folder.create("timeseries.csv")?),
        (_, Some(_)) => Some(folder.create(&timeseries_part(number))?),
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

/// Everything that one replication had to say is written. Drop what comes back unless it is of the
/// first replication.
///
/// # Errors
/// The first error of its files.
pub fn finish(rows: Rows) -> Result<FinalFiles> {
    let (requests, timeseries) = rows.finish().context("writing rows")?;
    Ok(FinalFiles { requests, timeseries })
}

/// Lays the parts of replications 1 to `replications` behind the files of replication 0, in order.
///
/// # Errors
/// When the file system refuses.
pub fn join(folder: &RunFolder, files: FinalFiles, replications: u32) -> Result<()> {
    let FinalFiles { mut requests, mut timeseries } = files;
    for number in 1..replications {
        if let Some(all) = &mut requests {
            append(all, folder, &requests_part(number)).context("joining requests")?;
        }
        if let Some(all) = &mut timeseries {
            append(all, folder, &timeseries_part(number)).context("joining time series")?;
        }
    }
    if let Some(sink) = requests {
        sink.finish().context("writing requests")?;
    }
    Ok(())
}

fn append(all: &mut impl Write, folder: &RunFolder, part: &str) -> io::Result<()> {
    io::copy(&mut folder.reopen(part)?, all)?;
    folder.remove(part)
}

/// Writes a small file.
///
/// # Errors
/// When the file system refuses.
pub fn write_text(folder: &RunFolder, name: &str, text: &str) -> Result<()> {
    let mut file = folder.create(name).with_context(|| name.to_owned())?;
    file.write_all(text.as_bytes()).with_context(|| name.to_owned())
}
