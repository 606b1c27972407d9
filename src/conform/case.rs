//! Case files: the input of one recorded schedule, and what the engines are fed from it. The format
//! is that of the recordings (JSON, lengths in tokens, times in microseconds). Knows the engine's
//! configuration and request types; opens no files.

use super::ConformError;
use crate::engine::config::{
    EngineConfig, KvGroup, SchedulingPolicy, Speculation, SpeculativeMethod, VersionProfile,
};
use crate::engine::request::{EngineRequest, Prompt, RequestId, Segment, StreamId};
use crate::latency::StepTimeModel;
use crate::units::{SimTime, Span};
use serde::Deserialize;

/// Most blocks of a case: the reference engine keeps each one in memory.
const BLOCKS_MAX: u32 = 1 << 24;
/// Most tokens of a block: the fast engine counts requests by their place in it.
const BLOCK_SIZE_MAX: u32 = 1 << 16;

/// One case: an engine, a clock, and requests.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub about: String,
    /// How much its trace holds.
    pub detail: Detail,
    /// Settings of the engine.
    pub engine: EngineSettings,
    /// How long steps take.
    pub clock: Clock,
    /// Open or closed loop.
    pub arrivals: Arrivals,
    /// Requests; the number of a request is its index.
    pub requests: Vec<CaseRequest>,
}

/// How much a trace holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Detail {
    /// Every scheduled request of every step.
    Full,
    /// Also block ids and the free queue.
    Blocks,
    /// Steps list only entries that are not plain decode.
    Lite,
}

/// Settings under vLLM's names.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are those of `EngineConfig`, explained there")]
pub struct EngineSettings {
    pub max_num_seqs: u32,
    pub max_num_active_seqs: Option<u32>,
    pub max_num_batched_tokens: u32,
    pub max_num_scheduled_tokens: Option<u32>,
    pub max_model_len: u32,
    pub block_size: u32,
    pub num_gpu_blocks: u32,
    pub enable_prefix_caching: bool,
    pub enable_chunked_prefill: bool,
    pub policy: Policy,
    pub watermark: f64,
    pub scheduler_reserve_full_isl: bool,
    pub long_prefill_token_threshold: u32,
    #[serde(default)]
    pub long_prefill_token_threshold_adaptive: bool,
    pub async_scheduling: bool,
    /// 0 is vLLM's default, null is dense; matters for sliding-window and Mamba groups only.
    #[serde(default = "default_retention")]
    pub prefix_cache_retention_interval: Option<u32>,
    pub spec: Option<Spec>,
    #[serde(default = "one_full_group")]
    pub kv_groups: Vec<Group>,
}

const fn default_retention() -> Option<u32> {
    Some(0)
}

fn one_full_group() -> Vec<Group> {
    vec![Group::Full]
}

/// Scheduling policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "vLLM's names")]
pub enum Policy {
    Fcfs,
    Priority,
}

/// Speculative decoding and what its drafts come to.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// How drafts are made.
    pub method: SpecMethod,
    /// Drafts per step.
    pub k: u32,
    /// Drafts accepted at each verification, in turn.
    pub accept: Vec<u32>,
    /// Drafts proposed after each verification, in turn; `k` when absent.
    pub draft_len: Option<Vec<u32>>,
}

/// How drafts are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "vLLM's names")]
pub enum SpecMethod {
    Ngram,
    Eagle,
    DraftModel,
}

/// A KV group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Group {
    /// Full attention.
    Full,
    /// Sliding-window attention.
    SlidingWindow {
        /// Tokens.
        window: u32,
    },
    /// Mamba state.
    Mamba {
        /// Whether states are cached.
        mode: MambaMode,
        /// Block size when it differs from the engine's.
        block_size: Option<u32>,
    },
}

/// Whether Mamba states are cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "vLLM's names")]
pub enum MambaMode {
    Align,
    None,
}

/// A step of n > 0 tokens over q requests takes `base + per_token·n + per_seq·q` microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "said above")]
pub struct Clock {
    pub base_us: u64,
    pub per_token_us: u64,
    pub per_seq_us: u64,
}

/// Open or closed loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase", deny_unknown_fields)]
pub enum Arrivals {
    /// Each request says when it arrives.
    Open,
    /// A fixed number in flight.
    Closed {
        /// Requests in flight.
        concurrency: usize,
        /// From an end to the next arrival.
        #[serde(default)]
        think_us: u64,
    },
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseRequest {
    /// Arrival, in an open loop.
    pub at: Option<u64>,
    /// Instead of `at`: arrives this many microseconds after the end of that request.
    pub after: Option<(usize, u64)>,
    /// The prompt: kind `g` (shared stream) or `o` (output of a request), number, first tokens.
    pub segs: Vec<(SegmentKind, u64, u32)>,
    /// `max_tokens`.
    pub out: u32,
    /// Smaller first.
    #[serde(default)]
    pub prio: i32,
    /// No prefix-cache lookup.
    #[serde(default)]
    pub skip_cache: bool,
    /// The client hangs up this long after arrival.
    pub abort_after_us: Option<u64>,
}

/// Where the tokens of a segment come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum SegmentKind {
    /// A stream of the case.
    #[serde(rename = "g")]
    Shared,
    /// The output of a request.
    #[serde(rename = "o")]
    Output,
}

impl Case {
    /// Reads and checks the text of a case file.
    ///
    /// # Errors
    /// When it is not JSON of this format, or a value makes no sense.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConformError> {
        let case: Self = serde_json::from_str(text).map_err(|error| ConformError::Line {
            file: file.to_owned(),
            line: error.line() as u64,
            problem: error.to_string(),
        })?;
        case.check().map_err(|problem| ConformError::File { file: file.to_owned(), problem })?;
        Ok(case)
    }

    fn check(&self) -> Result<(), String> {
        if let Arrivals::Closed { concurrency: 0, .. } = self.arrivals {
            return Err("`arrivals.concurrency` is 0; expected 1 or more".to_owned());
        }
        let EngineSettings { num_gpu_blocks, block_size, .. } = self.engine;
        for (key, value, most) in [
            ("num_gpu_blocks", num_gpu_blocks, BLOCKS_MAX),
            ("block_size", block_size, BLOCK_SIZE_MAX),
        ] {
            if value > most {
                return Err(format!("`engine.{key}` is {value}; expected at most {most}"));
            }
        }
        self.engine.kv_groups.iter().try_for_each(|group| self.check_group(group))?;
        let total = self.requests.len();
        for (number, request) in self.requests.iter().enumerate() {
            let bad = |problem: String| Err(format!("request {number}: {problem}"));
            if request.out == 0 {
                return bad("`out` is 0; expected 1 or more".to_owned());
            }
            let tokens: u64 = request.segs.iter().map(|&(_, _, len)| u64::from(len)).sum();
            if tokens == 0 || tokens + u64::from(request.out) > u64::from(u32::MAX) {
                return bad(format!("the prompt has {tokens} tokens; expected 1 to 2^32 - `out`"));
            }
            let longest = self.engine.max_model_len;
            if tokens >= u64::from(longest) {
                let expected = format!("expected fewer than `max_model_len`, {longest}");
                return bad(format!("the prompt has {tokens} tokens; {expected}"));
            }
            for &(kind, quoted, _) in &request.segs {
                if kind == SegmentKind::Output && quoted >= total as u64 {
                    return bad(format!("`segs` quotes request {quoted}; there are {total}"));
                }
            }
            match (self.arrivals, request.at, request.after) {
                (Arrivals::Closed { .. }, _, _) | (Arrivals::Open, Some(_), None) => {}
                (Arrivals::Open, None, Some((first, _))) if first < number => {}
                (Arrivals::Open, None, Some((first, _))) => {
                    return bad(format!("`after` names request {first}; expected an earlier one"));
                }
                (Arrivals::Open, Some(_), Some(_)) | (Arrivals::Open, None, None) => {
                    return bad("expected either `at` or `after`".to_owned());
                }
            }
        }
        Ok(())
    }

    /// The engine has states that each take one block, at its own block edges.
    fn check_group(&self, group: &Group) -> Result<(), String> {
        let Group::Mamba { mode, block_size: Some(size) } = *group else { return Ok(()) };
        let EngineSettings { block_size, max_model_len, .. } = self.engine;
        let (fits, expected) = match mode {
            MambaMode::Align => (size == block_size, format!("`block_size`, {block_size}")),
            MambaMode::None => {
                (size >= max_model_len, format!("`max_model_len`, {max_model_len}, or more"))
            }
        };
        if fits {
            return Ok(());
        }
        Err(format!("`block_size` of a Mamba group is {size}; expected {expected}"))
    }

    /// The engine that the case asks for.
    #[must_use]
    pub fn engine_config(&self, version: VersionProfile) -> EngineConfig {
        let e = &self.engine;
        EngineConfig {
            version,
            max_num_seqs: e.max_num_seqs,
            max_num_active_seqs: e.max_num_active_seqs,
            max_num_batched_tokens: e.max_num_batched_tokens,
            max_num_scheduled_tokens: e.max_num_scheduled_tokens,
            max_model_len: e.max_model_len,
            block_size: e.block_size,
            num_gpu_blocks: e.num_gpu_blocks,
            enable_prefix_caching: e.enable_prefix_caching,
            enable_chunked_prefill: e.enable_chunked_prefill,
            policy: match e.policy {
                Policy::Fcfs => SchedulingPolicy::Fcfs,
                Policy::Priority => SchedulingPolicy::Priority,
            },
            watermark: e.watermark,
            scheduler_reserve_full_isl: e.scheduler_reserve_full_isl,
            long_prefill_token_threshold: e.long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive: e.long_prefill_token_threshold_adaptive,
            async_scheduling: e.async_scheduling,
            prefix_cache_retention_interval: e.prefix_cache_retention_interval,
            kv_groups: e.kv_groups.iter().map(|&group| kv_group(group)).collect(),
            speculation: e.spec.as_ref().map(|spec| Speculation {
                method: match spec.method {
                    SpecMethod::Ngram => SpeculativeMethod::Ngram,
                    SpecMethod::Eagle => SpeculativeMethod::Eagle,
                    SpecMethod::DraftModel => SpeculativeMethod::DraftModel,
                },
                k: spec.k,
            }),
        }
    }

    /// The clock of the case, exact in microseconds.
    ///
    /// # Errors
    /// When a coefficient is beyond the step-time model's range.
    pub fn step_time(&self) -> Result<StepTimeModel, crate::latency::LatencyError> {
        let us = Span::from_micros;
        let Clock { base_us, per_token_us, per_seq_us } = self.clock;
        StepTimeModel::affine(us(base_us), us(per_token_us), us(per_seq_us))
    }

    /// Request `number`, arriving at `arrival`.
    #[must_use]
    pub fn engine_request(&self, number: usize, arrival: SimTime) -> EngineRequest {
        let request = &self.requests[number];
        let segment = |&(kind, number, len): &(SegmentKind, u64, u32)| {
            let stream = match kind {
                SegmentKind::Shared => StreamId::shared(number),
                SegmentKind::Output => StreamId::output(RequestId(number)),
            };
            Segment { stream, len }
        };
        EngineRequest {
            id: RequestId(number as u64),
            arrival,
            priority: request.prio,
            prompt: Prompt::from_segments(request.segs.iter().map(segment)),
            max_tokens: request.out,
            skip_cache: request.skip_cache,
            measured: true,
        }
    }
}

const fn kv_group(group: Group) -> KvGroup {
    match group {
        Group::Full => KvGroup::Full,
        Group::SlidingWindow { window } => KvGroup::SlidingWindow { window },
        Group::Mamba { mode, .. } => KvGroup::Mamba { align: matches!(mode, MambaMode::Align) },
    }
}
