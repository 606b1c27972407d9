//! Compares what an engine did in a case with what was recorded, field by field, and names the
//! first difference. Knows the trace format and the engine's records; opens no files.

use super::case::{Case, Detail};
use super::drive::Played;
use super::trace::{Reason, RequestLine, StepLine, Summary, Trace};
use crate::engine::record::{EngineTotals, FinishReason, RequestTrace, StepRecord};
use crate::engine::request::RequestId;
use crate::units::{PS_PER_US, SimTime};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// How an engine walks, which decides what can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walk {
    /// Every step singly: everything is compared.
    StepByStep,
    /// Stretches of steps in one go: only the steps that were taken singly are compared, with the
    /// fields that do not need block ids or calls in between.
    InStretches,
}

/// What an engine recorded of a case.
#[derive(Debug)]
pub struct Recorded {
    /// How it walks.
    pub walk: Walk,
    /// Steps, by number.
    pub steps: Vec<StepRecord>,
    /// Requests, by number.
    pub requests: Vec<RequestTrace>,
    /// Totals.
    pub totals: EngineTotals,
    /// Schedule calls that did nothing, where they are counted.
    pub empty_schedule_calls: Option<u64>,
    /// Requests left for ever.
    pub stalled: Vec<RequestId>,
}

/// Which part of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A step, by number.
    Step(u64),
    /// A request, by number.
    Request(u64),
    /// The head line.
    Summary,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(number) => write!(f, "step {number}"),
            Self::Request(number) => write!(f, "request {number}"),
            Self::Summary => write!(f, "summary"),
        }
    }
}

/// The first difference.
#[derive(Debug, Clone, PartialEq)]
pub struct Divergence {
    /// Where.
    pub place: Place,
    /// Which field, by its name in the trace; `line` when the whole line is missing on one side.
    pub field: &'static str,
    /// As recorded.
    pub expected: Value,
    /// What the engine did.
    pub got: Value,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, field, expected, got } = self;
        write!(f, "{place}, `{field}`: expected {expected}, got {got}")
    }
}

type Same = Result<(), Box<Divergence>>;

fn same<T: PartialEq + Serialize>(
    place: Place,
    field: &'static str,
    expected: &T,
    got: &T,
) -> Same {
    if expected == got {
        return Ok(());
    }
    let value = |of: &T| serde_json::to_value(of).unwrap_or(Value::Null);
    Err(Box::new(Divergence { place, field, expected: value(expected), got: value(got) }))
}

/// `same` for each of the named fields of two lines.
macro_rules! same_fields {
    ($place:expr, $expected:expr, $got:expr, $($field:ident)*) => {
        $(same($place, stringify!($field), &$expected.$field, &$got.$field)?;)*
    };
}

/// Compares everything that can be: steps, then requests, then totals.
///
/// # Errors
/// The first difference.
pub fn compare(case: &Case, trace: &Trace, recorded: &Recorded, played: &Played) -> Same {
    compare_steps(case, trace, recorded)?;
    compare_requests(case, trace, recorded, played)?;
    compare_summary(trace, recorded, played)
}

fn compare_steps(case: &Case, trace: &Trace, recorded: &Recorded) -> Same {
    let mut taken = recorded.steps.iter().peekable();
    for expected in &trace.steps {
        let place = Place::Step(expected.i);
        let record = taken.next_if(|record| record.number <= expected.i);
        match (record, recorded.walk) {
            (Some(record), Walk::StepByStep) => {
                compare_step(case, place, expected, &step_line(case, record))?;
            }
            (Some(record), Walk::InStretches) => {
                let got = step_line(case, record);
                same_fields!(place, expected, got, i t s e tok);
                same_fields!(place, expected, got, sched pre fin free free_e pc evict);
            }
            (None, Walk::StepByStep) => same(place, "line", &"present", &"absent")?,
            // Part of a stretch.
            (None, Walk::InStretches) => {}
        }
    }
    match taken.next() {
        Some(extra) => same(Place::Step(extra.number), "line", &"absent", &"present"),
        None => Ok(()),
    }
}

fn compare_step(case: &Case, place: Place, expected: &StepLine, got: &StepLine) -> Same {
    same_fields!(place, expected, got, i t s e tok nseq sched new res pre drafts);
    same_fields!(place, expected, got, free run wait pc evict);
    if case.detail == Detail::Blocks {
        same_fields!(place, expected, got, blk fq);
    }
    same_fields!(place, expected, got, fin acc free_e);
    if case.detail == Detail::Blocks {
        same_fields!(place, expected, got, fq_e);
    }
    Ok(())
}

const fn micros(time: SimTime) -> u64 {
    time.0 / PS_PER_US
}

fn numbers(ids: &[RequestId]) -> Vec<u64> {
    ids.iter().map(|id| id.0).collect()
}

/// What an engine recorded of a step, in the words of a trace.
fn step_line(case: &Case, record: &StepRecord) -> StepLine {
    let entries = record.scheduled.iter().map(|&(id, tokens, before)| (id.0, tokens, before));
    let lite = case.detail == Detail::Lite;
    let blocks = case.detail == Detail::Blocks;
    StepLine {
        i: record.number,
        t: micros(record.called),
        s: micros(record.started),
        e: micros(record.ended),
        tok: record.tokens,
        nseq: lite.then_some(record.scheduled.len() as u32),
        // In `lite` traces plain decode is left out: rows of one token.
        sched: entries.filter(|&(_, tokens, _)| !lite || tokens > 1).collect(),
        new: numbers(&record.admitted),
        res: numbers(&record.resumed),
        pre: numbers(&record.preempted),
        fin: numbers(&record.finished),
        drafts: Vec::new(),
        acc: Vec::new(),
        free: record.free,
        free_e: record.free_after_output,
        run: record.running,
        wait: record.waiting,
        pc: record.prefix,
        evict: record.evicted,
        blk: blocks.then(|| {
            record.blocks.iter().map(|(id, groups)| (id.0.to_string(), groups.clone())).collect()
        }),
        fq: blocks.then(|| record.free_queue.clone()),
        fq_e: blocks.then(|| record.free_queue_after_output.clone()),
    }
}

fn compare_requests(case: &Case, trace: &Trace, recorded: &Recorded, played: &Played) -> Same {
    let mut got: BTreeMap<u64, RequestLine> = recorded
        .requests
        .iter()
        .map(|request| (request.id.0, request_line(case, request, played)))
        .collect();
    for expected in &trace.requests {
        let place = Place::Request(expected.i);
        let Some(got) = got.remove(&expected.i) else {
            return same(place, "line", &"present", &"absent");
        };
        same_fields!(place, expected, got, arrival_us prompt out admissions preempt_steps);
        same_fields!(place, expected, got, first_sched_us first_token_us first_token_step);
        same_fields!(place, expected, got, finish_us finish_step n_out reason preemptions cached);
    }
    match got.first_key_value() {
        Some((&extra, _)) => same(Place::Request(extra), "line", &"absent", &"present"),
        None => Ok(()),
    }
}

/// What an engine recorded of a request, in the words of a trace. Where the engine's public record
/// of an ended request says the same as its trace, the public record is taken.
fn request_line(case: &Case, request: &RequestTrace, played: &Played) -> RequestLine {
    let body = &case.requests[request.id.0 as usize];
    let ended = played.ended.get(&request.id);
    let (first_scheduled, first_token) = match ended {
        Some(record) => (record.first_scheduled, record.first_token),
        None => (request.first_scheduled, request.first_token),
    };
    RequestLine {
        i: request.id.0,
        arrival_us: played.arrivals.get(&request.id).map_or(0, |&at| micros(at)),
        prompt: match ended {
            Some(record) => record.prompt_tokens,
            None => body.segs.iter().map(|&(_, _, len)| len).sum(),
        },
        out: body.out,
        admissions: request.admissions.iter().map(|a| (a.step, a.cached, a.known)).collect(),
        preempt_steps: request.preempted_in.clone(),
        first_sched_us: first_scheduled.map(micros),
        first_token_us: first_token.map(micros),
        first_token_step: request.first_token_step,
        finish_us: ended.map(|record| micros(record.finished)),
        finish_step: request.finish_step,
        n_out: ended.map_or(0, |record| record.output_tokens),
        reason: ended.map(|record| match record.reason {
            FinishReason::Length => Reason::Length,
            FinishReason::Abort => Reason::Abort,
        }),
        preemptions: ended.map_or(request.preempted_in.len() as u32, |record| record.preemptions),
        cached: match ended {
            Some(record) => record.first_scheduled.map(|_| record.cached_tokens),
            None => request.admissions.first().map(|first| first.cached),
        },
    }
}

fn compare_summary(trace: &Trace, recorded: &Recorded, played: &Played) -> Same {
    let expected = &trace.head.summary;
    let got = summary(recorded, played);
    let place = Place::Summary;
    same_fields!(place, expected, got, end_us finished aborted preemptions scheduled_tokens);
    same_fields!(place, expected, got, output_tokens prefix_queries prefix_hits);
    same_fields!(place, expected, got, prefix_preempted_queries prefix_preempted_hits);
    same_fields!(place, expected, got, evicted_cached_blocks max_used_blocks max_running stalled);
    match recorded.walk {
        Walk::StepByStep => {
            same_fields!(place, expected, got, steps empty_schedule_calls max_waiting);
        }
        // Needs every call.
        Walk::InStretches => {}
    }
    Ok(())
}

fn summary(recorded: &Recorded, played: &Played) -> Summary {
    let totals = &recorded.totals;
    let count = |reason| played.ended.values().filter(|r| r.reason == reason).count() as u64;
    Summary {
        steps: recorded.steps.len() as u64,
        empty_schedule_calls: recorded.empty_schedule_calls.unwrap_or(0),
        end_us: micros(played.end),
        finished: count(FinishReason::Length),
        aborted: count(FinishReason::Abort),
        preemptions: totals.preemptions,
        scheduled_tokens: totals.scheduled_tokens,
        output_tokens: played.ended.values().map(|r| u64::from(r.output_tokens)).sum(),
        prefix_queries: totals.prefix_queries,
        prefix_hits: totals.prefix_hits,
        prefix_preempted_queries: totals.prefix_preempted_queries,
        prefix_preempted_hits: totals.prefix_preempted_hits,
        evicted_cached_blocks: totals.evicted_blocks,
        max_used_blocks: totals.used_blocks_max,
        max_running: totals.running_max,
        max_waiting: recorded.steps.iter().map(|step| step.waiting).max().unwrap_or(0),
        stalled: numbers(&recorded.stalled),
    }
}
