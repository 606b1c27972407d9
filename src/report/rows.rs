//! The two large files of a run, written row by row as things happen: `requests.csv` and
//! `timeseries.csv`. Memory does not grow with the number of requests. Writes to the writers it is
//! given and opens nothing; the first error of a writer is kept and handed out at the end, because
//! a simulation is not to be disturbed by its observers.

use std::io::{self, Write};

use crate::report::decimal::{push_field, push_seconds, push_u64};
use crate::sim::result::{Recorder, RequestRow, RequestStatus, SampleRow};
use crate::units::SimTime;

/// Rows gather up to this many bytes before they are handed to the writer.
const CHUNK: usize = 64 * 1024;

/// Which files carry a leading `replication` column: those of runs with more than one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicationColumn {
    /// One replication: no such column.
    Absent,
    /// This replication, counted from 0.
    Number(u32),
}

/// Header line of `requests.csv`.
#[must_use]
pub fn requests_header(column: ReplicationColumn) -> String {
    let first = match column {
        ReplicationColumn::Absent => "",
        ReplicationColumn::Number(_) => "replication,",
    };
    format!(
        "{first}id,status,pool,replica,arrival_s,first_token_s,finished_s,ttft_s,tpot_s,e2e_s,\
         input_tokens,output_tokens,cached_tokens,preemptions,routing_s,frontend_s,queue_s,\
         kv_wait_s,prefill_s,decode_s,preempted_s,measured\n"
    )
}

/// Header line of `timeseries.csv`.
#[must_use]
pub fn timeseries_header(column: ReplicationColumn) -> &'static str {
    match column {
        ReplicationColumn::Absent => "time_s,metric,pool,instance,zone,value\n",
        ReplicationColumn::Number(_) => "replication,time_s,metric,pool,instance,zone,value\n",
    }
}

/// A writer that gathers rows and keeps its first error.
struct Rows<W> {
    writer: W,
    buffer: Vec<u8>,
    error: Option<io::Error>,
}

impl<W: Write> Rows<W> {
    fn new(writer: W) -> Self {
        Self { writer, buffer: Vec::with_capacity(CHUNK + 1024), error: None }
    }

    fn row_done(&mut self) {
        if self.buffer.len() >= CHUNK {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        if self.error.is_none()
            && let Err(error) = self.writer.write_all(&self.buffer)
        {
            self.error = Some(error);
        }
        self.buffer.clear();
    }

    fn finish(mut self) -> io::Result<W> {
        self.hand_over();
        if let Some(error) = self.error {
            return Err(error);
        }
        self.writer.flush()?;
        Ok(self.writer)
    }
}

/// Cumulative counters of one pool, as vLLM's own are.
#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    completions: u64,
    output_tokens: u64,
}

/// Writes one row a request and the samples of every pool.
pub struct RowWriter<R, T> {
    requests: Option<Rows<R>>,
    timeseries: Option<Rows<T>>,
    /// Names of the pools as CSV fields.
    pools: Vec<Vec<u8>>,
    counters: Vec<Counters>,
    /// What a row starts with.
    prefix: Vec<u8>,
}

impl<R: Write, T: Write> RowWriter<R, T> {
    /// A recorder for one replication. Headers are not written here, so that the parts of several
    /// replications can be laid end to end.
    pub fn new(
        pool_names: &[String],
        column: ReplicationColumn,
        requests: Option<R>,
        timeseries: Option<T>,
    ) -> Self {
        let as_field = |name: &String| {
            let mut field = Vec::new();
            push_field(&mut field, name);
            field
        };
        let mut prefix = Vec::new();
        if let ReplicationColumn::Number(number) = column {
            push_u64(&mut prefix, u64::from(number));
            prefix.push(b',');
        }
        Self {
            requests: requests.map(Rows::new),
            timeseries: timeseries.map(Rows::new),
            pools: pool_names.iter().map(as_field).collect(),
            counters: vec![Counters::default(); pool_names.len()],
            prefix,
        }
    }

    /// Hands back the writers, everything written and flushed.
    ///
    /// # Errors
    /// The first error that a writer reported, at any time.
    pub fn finish(self) -> io::Result<(Option<R>, Option<T>)> {
        let requests = self.requests.map(Rows::finish).transpose()?;
        let timeseries = self.timeseries.map(Rows::finish).transpose()?;
        Ok((requests, timeseries))
    }
}

/// How a request ended, as `requests.csv` says it.
#[must_use]
pub const fn status_name(status: RequestStatus) -> &'static str {
    match status {
        RequestStatus::Completed => "completed",
        RequestStatus::Rejected => "rejected",
        RequestStatus::TimedOut => "timed_out",
        RequestStatus::Unfinished => "unfinished",
    }
}

/// Picoseconds per output token after the first, rounded down; `None` for answers of one token and
/// for requests that did not complete.
fn tpot_ps(row: &RequestRow) -> Option<u64> {
    let gaps = u64::from(row.output_tokens).checked_sub(1).filter(|&gaps| gaps > 0)?;
    match (row.status, row.first_token, row.finished) {
        (RequestStatus::Completed, Some(first), Some(last)) => Some(last.since(first).0 / gaps),
        _ => None,
    }
}

fn push_time(out: &mut Vec<u8>, ps: Option<u64>) {
    out.push(b',');
    if let Some(ps) = ps {
        push_seconds(out, ps);
    }
}

fn push_request(out: &mut Vec<u8>, prefix: &[u8], pool: &[u8], row: &RequestRow) {
    let after_arrival = |at: Option<SimTime>| at.map(|at| at.since(row.arrival).0);
    out.extend_from_slice(prefix);
    push_u64(out, row.id.0);
    out.push(b',');
    out.extend_from_slice(status_name(row.status).as_bytes());
    out.push(b',');
    out.extend_from_slice(pool);
    out.push(b',');
    if let Some(replica) = row.replica {
        push_u64(out, u64::from(replica));
    }
    push_time(out, Some(row.arrival.0));
    push_time(out, row.first_token.map(|at| at.0));
    push_time(out, row.finished.map(|at| at.0));
    push_time(out, after_arrival(row.first_token));
    push_time(out, tpot_ps(row));
    push_time(out, after_arrival(row.finished));
    for count in [row.input_tokens, row.output_tokens, row.cached_tokens, row.preemptions] {
        out.push(b',');
        push_u64(out, u64::from(count));
    }
    let b = &row.breakdown;
    for part in [b.routing, b.frontend, b.queue, b.kv_wait, b.prefill, b.decode, b.preempted] {
        push_time(out, Some(part.0));
    }
    out.extend_from_slice(if row.measured { b",true\n" } else { b",false\n" });
}

/// A value of a time series.
enum Value {
    Count(u64),
    Share { part: u64, whole: u64 },
}

fn push_sample(out: &mut Vec<u8>, prefix: &[u8], at: SimTime, metric: &str, pool: &[u8], v: Value) {
    out.extend_from_slice(prefix);
    push_seconds(out, at.0);
    out.push(b',');
    out.extend_from_slice(metric.as_bytes());
    out.push(b',');
    out.extend_from_slice(pool);
    out.extend_from_slice(b",,,");
    match v {
        Value::Count(count) => push_u64(out, count),
        Value::Share { part: 0, .. } => out.push(b'0'),
        Value::Share { part, whole } => {
            // Display of f64 is the shortest text that reads back as the same number.
            out.extend_from_slice((part as f64 / whole as f64).to_string().as_bytes());
        }
    }
    out.push(b'\n');
}

impl<R: Write, T: Write> Recorder for RowWriter<R, T> {
    fn request(&mut self, row: &RequestRow) {
        if let Some(rows) = &mut self.requests {
            let pool = row.pool.and_then(|p| self.pools.get(p as usize));
            push_request(&mut rows.buffer, &self.prefix, pool.map_or(&[], Vec::as_slice), row);
            rows.row_done();
        }
    }

    /// Pool totals under the names that production shows. `Invocations` counts the requests that
    /// ended since the last sample; `ConcurrentRequestsPerModel` those inside, waiting or running;
    /// the two `vllm:request_*` names are counters since the start, as in vLLM.
    fn sample(&mut self, row: &SampleRow) {
        let Some(rows) = &mut self.timeseries else { return };
        let index = row.pool as usize;
        let (Some(pool), Some(counters)) = (self.pools.get(index), self.counters.get_mut(index))
        else {
            debug_assert!(false, "a sample of pool {index}, which does not exist");
            return;
        };
        counters.completions += row.completions;
        counters.output_tokens += row.output_tokens;
        let usage = Value::Share { part: row.used_blocks, whole: row.usable_blocks };
        for (metric, value) in [
            ("vllm:num_requests_running", Value::Count(row.running)),
            ("vllm:num_requests_waiting", Value::Count(row.waiting)),
            ("vllm:kv_cache_usage_perc", usage),
            ("vllm:request_success_total", Value::Count(counters.completions)),
            ("vllm:request_generation_tokens_sum", Value::Count(counters.output_tokens)),
            ("Invocations", Value::Count(row.completions)),
            ("ConcurrentRequestsPerModel", Value::Count(row.running + row.waiting)),
        ] {
            push_sample(&mut rows.buffer, &self.prefix, row.at, metric, pool, value);
        }
        rows.row_done();
    }
}
