//! Trace files: what vLLM's scheduler was recorded to do in a case, one JSON object a line. Plain
//! data in the format of the recordings; opens no files, knows no engine.

use super::ConformError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A recorded schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// Where it comes from, and totals.
    pub head: Head,
    /// Requests that arrived, by number.
    pub requests: Vec<RequestLine>,
    /// Schedule calls that scheduled tokens or preempted something.
    pub steps: Vec<StepLine>,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line {
    Head(Head),
    Req(RequestLine),
    Step(StepLine),
}

/// First line of a trace.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Name of the case.
    pub case: String,
    /// Version of vLLM.
    pub vllm: String,
    /// What vLLM made of the settings; not compared.
    pub resolved: serde_json::Value,
    /// Totals.
    pub summary: Summary,
}

/// Totals of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names of the recordings say it")]
pub struct Summary {
    pub steps: u64,
    pub empty_schedule_calls: u64,
    pub end_us: u64,
    pub finished: u64,
    pub aborted: u64,
    pub preemptions: u64,
    pub scheduled_tokens: u64,
    /// Output tokens of requests that ended.
    pub output_tokens: u64,
    pub prefix_queries: u64,
    pub prefix_hits: u64,
    pub prefix_preempted_queries: u64,
    pub prefix_preempted_hits: u64,
    pub evicted_cached_blocks: u64,
    pub max_used_blocks: u32,
    pub max_running: u32,
    /// Most waiting right after a schedule call.
    pub max_waiting: u32,
    pub stalled: Vec<u64>,
}

/// One request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestLine {
    /// Number.
    pub i: u64,
    /// When it arrived.
    pub arrival_us: u64,
    /// Prompt tokens.
    pub prompt: u32,
    /// `max_tokens`.
    pub out: u32,
    /// Step, tokens hit, tokens known; first admission and every resume.
    pub admissions: Vec<(u64, u32, u32)>,
    /// Steps whose call preempted it.
    pub preempt_steps: Vec<u64>,
    /// Call of the first admission.
    pub first_sched_us: Option<u64>,
    /// End of the step that gave the first token.
    pub first_token_us: Option<u64>,
    /// That step.
    pub first_token_step: Option<u64>,
    /// When it ended.
    pub finish_us: Option<u64>,
    /// The step that gave the last token.
    pub finish_step: Option<u64>,
    /// Output tokens; 0 for a request that never ended.
    pub n_out: u32,
    /// Why it ended.
    pub reason: Option<Reason>,
    /// Times preempted.
    pub preemptions: u32,
    /// Tokens hit at the first admission.
    pub cached: Option<u32>,
}

/// Why a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// All tokens made.
    Length,
    /// The client hung up.
    Abort,
}

/// One step. Absent lists are empty, absent counters zero.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepLine {
    /// Number.
    pub i: u64,
    /// Schedule call, start on the device, end; microseconds.
    pub t: u64,
    /// See `t`.
    pub s: u64,
    /// See `t`.
    pub e: u64,
    /// Tokens scheduled.
    pub tok: u32,
    /// Entries in all, when `sched` leaves some out.
    pub nseq: Option<u32>,
    /// Request, tokens, computed tokens before.
    pub sched: Vec<(u64, u32, u32)>,
    /// First admissions.
    #[serde(default)]
    pub new: Vec<u64>,
    /// Resumed.
    #[serde(default)]
    pub res: Vec<u64>,
    /// Preempted.
    #[serde(default)]
    pub pre: Vec<u64>,
    /// Finished by this step's output.
    #[serde(default)]
    pub fin: Vec<u64>,
    /// Request, drafts scheduled.
    #[serde(default)]
    pub drafts: Vec<(u64, u32)>,
    /// Request, drafts accepted.
    #[serde(default)]
    pub acc: Vec<(u64, u32)>,
    /// Free blocks after the call.
    pub free: u32,
    /// Free blocks after the output.
    pub free_e: u32,
    /// Running list length after the call.
    pub run: u32,
    /// Waiting queue length after the call.
    pub wait: u32,
    /// Prefix-cache counters.
    #[serde(default)]
    pub pc: [u64; 6],
    /// Cached blocks handed out again.
    #[serde(default)]
    pub evict: u32,
    /// Block ids per KV group, by request.
    pub blk: Option<BTreeMap<String, Vec<Vec<u32>>>>,
    /// Free queue after the call.
    pub fq: Option<Vec<u32>>,
    /// Free queue after the output.
    pub fq_e: Option<Vec<u32>>,
}

impl Trace {
    /// Reads the text of a trace file.
    ///
    /// # Errors
    /// When a line is not of this format, or the head is missing or not the first line.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConformError> {
        let bad = |line: usize, problem: String| ConformError::Line {
            file: file.to_owned(),
            line: line as u64 + 1,
            problem,
        };
        let (mut head, mut requests, mut steps) = (None, Vec::new(), Vec::new());
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            // The position inside the line is all that the parser knows.
            let line = serde_json::from_str(line).map_err(|e| bad(number, e.to_string()))?;
            match (line, &head) {
                (Line::Head(first), None) => head = Some(first),
                (Line::Head(_), Some(_)) => return Err(bad(number, "a second `head`".to_owned())),
                (Line::Req(_) | Line::Step(_), None) => {
                    return Err(bad(number, "expected the `head` line first".to_owned()));
                }
                (Line::Req(request), Some(_)) => requests.push(request),
                (Line::Step(step), Some(_)) => steps.push(step),
            }
        }
        let head = head.ok_or_else(|| ConformError::File {
            file: file.to_owned(),
            problem: "the trace is empty; expected a `head` line".to_owned(),
        })?;
        Ok(Self { head, requests, steps })
    }
}
