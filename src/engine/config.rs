//! What one engine is started with, under vLLM's own parameter names. Plain data; the scenario
//! room fills it in and checks it, the engines read it.

pub use super::version::VersionProfile;

/// Order in which waiting requests are admitted and running ones preempted (`--scheduling-policy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchedulingPolicy {
    /// First come, first served; the last admitted is preempted first.
    Fcfs,
    /// Smaller `priority` first, then earlier arrival.
    Priority,
}

/// One group of layers that share a KV block table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvGroup {
    /// Full attention: every token keeps its KV until the request ends.
    Full,
    /// Sliding-window attention over the last `window` tokens.
    SlidingWindow {
        /// Window length in tokens.
        window: u32,
    },
    /// Mamba state, one block per state.
    Mamba {
        /// True when states are cached at block edges (`mamba_cache_mode = align`).
        align: bool,
    },
}

/// How drafts are made (`--speculative-config`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpeculativeMethod {
    /// Prompt look-up; no lookahead slots.
    Ngram,
    /// EAGLE or MTP head; lookahead of `k`, last hit block dropped.
    Eagle,
    /// A separate draft model; one input slot per request.
    DraftModel,
}

/// Speculative decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Speculation {
    /// How drafts are made.
    pub method: SpeculativeMethod,
    /// `num_speculative_tokens`.
    pub k: u32,
}

/// Settings of one engine. Lengths are in tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Which release's rules apply.
    pub version: VersionProfile,
    /// Most requests in the running list.
    pub max_num_seqs: u32,
    /// Most requests running at once when lower than `max_num_seqs` (since 0.31).
    pub max_num_active_seqs: Option<u32>,
    /// Token budget of a step.
    pub max_num_batched_tokens: u32,
    /// Token budget for scheduling when lower than `max_num_batched_tokens`.
    pub max_num_scheduled_tokens: Option<u32>,
    /// Longest prompt plus output.
    pub max_model_len: u32,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Blocks in the pool, the null block included.
    pub num_gpu_blocks: u32,
    /// Automatic prefix caching.
    pub enable_prefix_caching: bool,
    /// Chunked prefill.
    pub enable_chunked_prefill: bool,
    /// Admission and preemption order.
    pub policy: SchedulingPolicy,
    /// Share of blocks kept free on admission, 0..1.
    pub watermark: f64,
    /// Admit only when the whole known sequence fits.
    pub scheduler_reserve_full_isl: bool,
    /// Cap on the tokens of one request in a step; 0 is off.
    pub long_prefill_token_threshold: u32,
    /// Raise the threshold to a fair share of the budget.
    pub long_prefill_token_threshold_adaptive: bool,
    /// Schedule one step ahead of the device.
    pub async_scheduling: bool,
    /// Which full blocks of sliding-window and Mamba groups are cached: 0 keeps the end of the
    /// prompt and where prompts were seen to part (vLLM's default), `None` all of them.
    pub prefix_cache_retention_interval: Option<u32>,
    /// KV groups that draw from the one pool; a plain dense model has one full group.
    pub kv_groups: Vec<KvGroup>,
    /// Speculative decoding, if on.
    pub speculation: Option<Speculation>,
}

impl EngineConfig {
    /// Blocks that requests can use: all but the null block.
    #[must_use]
    pub const fn usable_blocks(&self) -> u32 {
        self.num_gpu_blocks.saturating_sub(1)
    }

    /// Most requests running at once.
    #[must_use]
    pub fn max_running(&self) -> u32 {
        self.max_num_active_seqs.map_or(self.max_num_seqs, |a| a.min(self.max_num_seqs))
    }

    /// Tokens one `schedule()` call may hand out.
    #[must_use]
    pub fn token_budget(&self) -> u32 {
        self.max_num_scheduled_tokens.unwrap_or(self.max_num_batched_tokens)
    }

    /// Blocks withheld from admissions: `int(watermark * num_gpu_blocks)`.
    #[must_use]
    pub fn watermark_blocks(&self) -> u32 {
        (self.watermark * f64::from(self.num_gpu_blocks)) as u32
    }
}

/// Why an engine cannot be started with a configuration.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EngineConfigError {
    /// A setting is out of its range.
    #[error("`{key}` is {value}; expected {expected}")]
    OutOfRange {
        /// vLLM's parameter name.
        key: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// A feature of vLLM that this engine does not model.
    #[error("{feature} is not modelled; expected {expected}")]
    Unsupported {
        /// What was asked for.
        feature: &'static str,
        /// The nearest choice that is modelled.
        expected: &'static str,
    },
}

impl EngineConfig {
    /// True when an admission waits until the whole known sequence fits: asked for, and known to
    /// the release.
    #[must_use]
    pub fn reserves_full_isl(&self) -> bool {
        self.scheduler_reserve_full_isl && self.version.has_whole_prompt_gate()
    }

    /// Checks what every engine relies on.
    ///
    /// # Errors
    /// When a setting is out of range, or asks for something that is not modelled.
    pub fn check(&self) -> Result<(), EngineConfigError> {
        check_ranges(self)?;
        check_features(self)
    }
}

fn check_ranges(config: &EngineConfig) -> Result<(), EngineConfigError> {
    let at_least_one = [
        ("max_num_seqs", Some(config.max_num_seqs)),
        ("max_num_active_seqs", config.max_num_active_seqs),
        ("max_num_batched_tokens", Some(config.max_num_batched_tokens)),
        ("max_num_scheduled_tokens", config.max_num_scheduled_tokens),
        ("max_model_len", Some(config.max_model_len)),
        ("block_size", Some(config.block_size)),
    ];
    for (key, value) in at_least_one {
        if value == Some(0) {
            let (value, expected) = ("0".to_owned(), "1 or more");
            return Err(EngineConfigError::OutOfRange { key, value, expected });
        }
    }
    if config.num_gpu_blocks < 2 {
        return Err(EngineConfigError::OutOfRange {
            key: "num_gpu_blocks",
            value: config.num_gpu_blocks.to_string(),
            expected: "2 or more (one of them is the null block)",
        });
    }
    if !(0.0..1.0).contains(&config.watermark) {
        return Err(EngineConfigError::OutOfRange {
            key: "watermark",
            value: config.watermark.to_string(),
            expected: "0 or more, below 1",
        });
    }
    Ok(())
}

fn check_features(config: &EngineConfig) -> Result<(), EngineConfigError> {
    let unsupported = |feature, expected| Err(EngineConfigError::Unsupported { feature, expected });
    if config.speculation.is_some() {
        return unsupported("speculative decoding", "no speculation");
    }
    check_groups(config)
}

fn check_groups(config: &EngineConfig) -> Result<(), EngineConfigError> {
    let out_of_range = |value: &str, expected| {
        Err(EngineConfigError::OutOfRange { key: "kv_groups", value: value.to_owned(), expected })
    };
    if config.kv_groups.is_empty() {
        return out_of_range("empty", "at least one KV group");
    }
    for group in &config.kv_groups {
        match group {
            KvGroup::SlidingWindow { window: 0 } => {
                return out_of_range("a sliding window of 0 tokens", "1 token or more");
            }
            // vLLM takes the mode from the switch: states are cached exactly when blocks are.
            KvGroup::Mamba { align: true } if !config.enable_prefix_caching => {
                return out_of_range("Mamba align without prefix caching", "Mamba none");
            }
            KvGroup::Mamba { align: false } if config.enable_prefix_caching => {
                return out_of_range("Mamba none with prefix caching", "Mamba align");
            }
            KvGroup::Mamba { align: true } if !config.enable_chunked_prefill => {
                return out_of_range("Mamba align without chunked prefill", "chunked prefill");
            }
            KvGroup::Full | KvGroup::SlidingWindow { .. } | KvGroup::Mamba { .. } => {}
        }
    }
    match config.prefix_cache_retention_interval {
        None | Some(0) => Ok(()),
        Some(interval) => Err(EngineConfigError::OutOfRange {
            key: "prefix_cache_retention_interval",
            value: interval.to_string(),
            expected: "0 (sparse) or none (dense)",
        }),
    }
}
