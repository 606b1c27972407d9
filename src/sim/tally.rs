//! What is counted of a run: latencies, breakdowns and fates by pool, and rows for the recorder in
//! order of completion. Knows records of engines and results; schedules nothing.

use super::config::GoodputLimits;
use super::in_flight::Entry;
use super::result::{
    Breakdown, PoolResult, Recorder, RequestCounts, RequestRow, RequestStatus, SampleRow,
};
use crate::engine::record::{EngineRecord, FinishReason, ReplicaState};
use crate::engine::request::RequestId;
use crate::units::{FIX_BITS, Fix, SimTime, Span};

/// From arrival at the endpoint to the engine's queue, constant for a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overhead {
    /// Endpoint to instance.
    pub routing: Span,
    /// Instance to queue.
    pub frontend: Span,
}

impl Overhead {
    /// Both.
    #[inline]
    pub fn total(self) -> Span {
        self.routing + self.frontend
    }
}

/// Running totals that the results of a pool do not show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flow {
    /// Requests routed to the pool.
    pub arrivals: u64,
    /// Requests completed.
    pub completions: u64,
    /// Output tokens of those.
    pub output_tokens: u64,
    /// Output tokens of requests whose client hung up.
    pub wasted_tokens: u64,
}

/// One pool's books.
#[derive(Debug, Clone)]
pub struct PoolTally {
    /// What the run will hand out.
    pub result: PoolResult,
    /// Totals so far.
    pub flow: Flow,
    sampled: Flow,
    overhead: Overhead,
}

/// All books.
#[derive(Debug)]
pub struct Tally<'a, Rec> {
    recorder: &'a mut Rec,
    limits: GoodputLimits,
    warm_up: SimTime,
    /// By pool.
    pub pools: Vec<PoolTally>,
    /// Requests that were refused.
    pub rejected: u64,
    /// The last completion.
    pub last_completion: Option<SimTime>,
    /// Rows of the current instant.
    rows: Vec<RequestRow>,
}

/// Where a request is or was.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Pool.
    pub pool: u32,
    /// Replica within the fleet.
    pub replica: u32,
}

impl<'a, Rec: Recorder> Tally<'a, Rec> {
    /// Empty books for pools with these overheads.
    pub fn new(
        recorder: &'a mut Rec,
        limits: GoodputLimits,
        warm_up: SimTime,
        overheads: &[Overhead],
    ) -> Self {
        let pool = |&overhead: &Overhead| PoolTally {
            result: PoolResult::default(),
            flow: Flow::default(),
            sampled: Flow::default(),
            overhead,
        };
        let pools = overheads.iter().map(pool).collect();
        Self { recorder, limits, warm_up, pools, rejected: 0, last_completion: None, rows: vec![] }
    }

    /// True for requests that count in latency figures.
    #[inline]
    pub fn measures(&self, arrival: SimTime) -> bool {
        arrival >= self.warm_up
    }

    /// A request was routed to `pool`.
    #[inline]
    pub fn routed(&mut self, pool: u32) {
        let pool = &mut self.pools[pool as usize];
        pool.flow.arrivals += 1;
        pool.result.counts.arrived += 1;
    }

    /// A request was refused at the endpoint.
    pub fn refused(&mut self, id: RequestId, arrival: SimTime, prompt_tokens: u32) {
        self.rejected += 1;
        if Rec::WANTS_REQUESTS {
            let mut row = self.blank_row(id, arrival, prompt_tokens);
            row.status = RequestStatus::Rejected;
            row.finished = Some(arrival);
            self.rows.push(row);
        }
    }

    /// A request's client hung up at `now`, before the engine saw it.
    pub fn hung_up_early(&mut self, now: SimTime, id: RequestId, place: Place, entry: Entry) {
        let pool = &mut self.pools[place.pool as usize];
        pool.result.counts.timed_out += 1;
        if Rec::WANTS_REQUESTS {
            let elapsed = now - entry.arrival;
            let routing = elapsed.min(pool.overhead.routing);
            let frontend = elapsed - routing;
            let mut row = self.blank_row(id, entry.arrival, entry.prompt_tokens);
            row.status = RequestStatus::TimedOut;
            row.pool = Some(place.pool);
            row.replica = Some(place.replica);
            row.finished = Some(now);
            row.breakdown = Breakdown { routing, frontend, ..Breakdown::default() };
            self.rows.push(row);
        }
    }

    /// A request left its engine.
    #[inline]
    pub fn left_engine(&mut self, record: &EngineRecord, place: Place, entry: Entry) {
        let measured = self.measures(entry.arrival);
        let pool = &mut self.pools[place.pool as usize];
        let parts = breakdown(record, entry.arrival, pool.overhead);
        let output = u64::from(record.output_tokens);
        self.recorder.waited(entry.arrival, parts.queue + parts.kv_wait);
        match record.reason {
            FinishReason::Length => {
                pool.result.counts.completed += 1;
                pool.flow.completions += 1;
                pool.flow.output_tokens += output;
                self.last_completion = Some(record.finished);
                if measured {
                    measure(&mut pool.result, record, entry.arrival, &parts, self.limits);
                }
            }
            FinishReason::Abort => {
                pool.result.counts.timed_out += 1;
                pool.flow.wasted_tokens += output;
            }
        }
        if Rec::WANTS_REQUESTS {
            self.rows.push(RequestRow {
                id: record.id,
                status: record.reason.into(),
                pool: Some(place.pool),
                replica: Some(place.replica),
                arrival: entry.arrival,
                first_token: record.first_token,
                finished: Some(record.finished),
                input_tokens: record.prompt_tokens,
                output_tokens: record.output_tokens,
                cached_tokens: record.cached_tokens,
                preemptions: record.preemptions,
                breakdown: parts,
                measured,
            });
        }
    }

    /// A request was still inside when the run stopped.
    pub fn unfinished(&mut self, id: RequestId, place: Place, entry: Entry) {
        self.pools[place.pool as usize].result.counts.unfinished += 1;
        if Rec::WANTS_REQUESTS {
            let mut row = self.blank_row(id, entry.arrival, entry.prompt_tokens);
            row.pool = Some(place.pool);
            row.replica = Some(place.replica);
            self.rows.push(row);
        }
    }

    /// Counts what is the same for every measured request of a pool; once, at the end.
    pub fn close(&mut self) {
        for PoolTally { result, overhead, .. } in &mut self.pools {
            let times = result.measured_completed;
            result.breakdown.routing.record_fix(Fix::from_span(overhead.routing), times);
            result.breakdown.frontend.record_fix(Fix::from_span(overhead.frontend), times);
        }
    }

    /// Hands out the rows of an instant that is over.
    #[inline]
    pub fn flush(&mut self) {
        if self.rows.is_empty() {
            return;
        }
        if self.rows.len() > 1 {
            self.rows.sort_unstable_by_key(|row| row.id);
        }
        for row in self.rows.drain(..) {
            self.recorder.request(&row);
        }
    }

    /// Samples `pool`, whose replicas are in the given states.
    pub fn sample(&mut self, at: SimTime, pool: u32, replicas: impl Iterator<Item = ReplicaState>) {
        let books = &mut self.pools[pool as usize];
        let before = std::mem::replace(&mut books.sampled, books.flow);
        let mut row = SampleRow {
            at,
            pool,
            running: 0,
            waiting: 0,
            used_blocks: 0,
            usable_blocks: 0,
            arrivals: books.flow.arrivals - before.arrivals,
            completions: books.flow.completions - before.completions,
            output_tokens: books.flow.output_tokens - before.output_tokens,
        };
        for state in replicas {
            row.running += u64::from(state.running);
            row.waiting += u64::from(state.waiting);
            row.used_blocks += u64::from(state.used_blocks);
            row.usable_blocks += u64::from(state.usable_blocks);
        }
        self.recorder.sample(&row);
    }

    /// Requests by fate, over all pools and the endpoint.
    pub fn totals(&self, arrived: u64) -> RequestCounts {
        let mut total = RequestCounts { arrived, rejected: self.rejected, ..Default::default() };
        for pool in &self.pools {
            let RequestCounts { arrived: _, completed, rejected, timed_out, failed, unfinished } =
                pool.result.counts;
            total.completed += completed;
            total.rejected += rejected;
            total.timed_out += timed_out;
            total.failed += failed;
            total.unfinished += unfinished;
        }
        total
    }

    /// The row of a request of which nothing is known but its arrival.
    fn blank_row(&self, id: RequestId, arrival: SimTime, prompt_tokens: u32) -> RequestRow {
        RequestRow {
            id,
            status: RequestStatus::Unfinished,
            pool: None,
            replica: None,
            arrival,
            first_token: None,
            finished: None,
            input_tokens: prompt_tokens,
            output_tokens: 0,
            cached_tokens: 0,
            preemptions: 0,
            breakdown: Breakdown::default(),
            measured: self.measures(arrival),
        }
    }
}

/// Splits a request's time. The parts are differences of successive points, so that they add up.
#[inline]
fn breakdown(record: &EngineRecord, arrival: SimTime, overhead: Overhead) -> Breakdown {
    let finished = record.finished;
    let admitted = record.first_scheduled.unwrap_or(finished);
    let first_token = record.first_token.unwrap_or(finished);
    let waited = admitted - record.enqueued;
    let to_first = first_token - admitted;
    let to_last = finished - first_token;
    let (before, after) = (record.preempted_before_first_token, record.preempted_after_first_token);
    assert!(record.kv_wait <= waited, "{:?} waited less than it waited for blocks", record.id);
    assert!(before <= to_first, "{:?} lost more time than its prefill took", record.id);
    assert!(after <= to_last, "{:?} lost more time than its decode took", record.id);
    let parts = Breakdown {
        routing: overhead.routing,
        frontend: overhead.frontend,
        queue: waited - record.kv_wait,
        kv_wait: record.kv_wait,
        prefill: to_first - before,
        decode: to_last - after,
        preempted: before + after,
    };
    debug_assert_eq!(parts.total(), finished - arrival, "the parts add up to E2E");
    parts
}

/// Time per gap: `span / gaps`, rounded down to the unit of [`Fix`] (10^-18 s).
#[inline]
fn per_gap(span: Span, gaps: u32) -> Fix {
    let gaps = u64::from(gaps);
    let whole = u128::from(span.0 / gaps) << FIX_BITS;
    // The remainder is below 2^32, so the shift stays within 64 bits.
    let rest = ((span.0 % gaps) << FIX_BITS) / gaps;
    Fix(whole | u128::from(rest))
}

/// Counts a measured, completed request.
#[inline]
fn measure(
    pool: &mut PoolResult,
    record: &EngineRecord,
    arrival: SimTime,
    parts: &Breakdown,
    limits: GoodputLimits,
) {
    let first_token = record.first_token.expect("a completed request has a first token");
    let ttft = first_token - arrival;
    let e2e = record.finished - arrival;
    let gaps = record.output_tokens.saturating_sub(1);
    pool.measured_completed += 1;
    pool.measured_input_tokens += u64::from(record.prompt_tokens);
    pool.measured_output_tokens += u64::from(record.output_tokens);
    pool.input_lengths.record(record.prompt_tokens);
    pool.output_lengths.record(record.output_tokens);
    pool.latency.ttft.record(ttft);
    pool.latency.e2e.record(e2e);
    if gaps > 0 {
        pool.latency.tpot.record_fix(per_gap(e2e - ttft, gaps), 1);
    }
    let set = &mut pool.breakdown;
    // Routing and frontend are constants of the pool; see `Tally::close`.
    set.queue.record(parts.queue);
    set.kv_wait.record(parts.kv_wait);
    set.prefill.record(parts.prefill);
    set.decode.record(parts.decode);
    set.preempted.record(parts.preempted);
    // (E2E − TTFT)/gaps <= limit, without the division.
    let decode = u128::from((e2e - ttft).0);
    let tpot_met = limits.tpot.is_none_or(|limit| decode <= u128::from(limit.0) * u128::from(gaps));
    let good = limits.ttft.is_none_or(|limit| ttft <= limit)
        && (gaps == 0 || tpot_met)
        && limits.e2e.is_none_or(|limit| e2e <= limit);
    pool.good += u64::from(good);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn time_per_gap_is_the_exact_quotient(ps in any::<u64>(), gaps in 1u32..) {
            let exact = (u128::from(ps) << FIX_BITS) / u128::from(gaps);
            prop_assert_eq!(per_gap(Span(ps), gaps).0, exact);
        }
    }
}
