//! What one engine is started with, under vLLM's own parameter names. Plain data; the scenario
//! room fills it in and checks it, the engines read it.

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

/// Behaviour that changed between releases. One value per verified release line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum VersionProfile {
    /// vLLM 0.32.
    V0_32,
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
    /// A setting that must be above zero is zero.
    #[error("`{key}` is 0; expected 1 or more")]
    Zero {
        /// vLLM's name of the setting.
        key: &'static str,
    },
    /// The watermark is not a share.
    #[error("`watermark` is {value}; expected 0 or more, below 1")]
    Watermark {
        /// What was given.
        value: f64,
    },
    /// A feature whose rules are not built.
    #[error("{feature} is not supported yet")]
    Unsupported {
        /// Which.
        feature: &'static str,
    },
}

impl EngineConfig {
    /// Checks what every engine relies on.
    ///
    /// # Errors
    /// When a count is zero, the watermark is not a share, or a feature is not built.
    pub fn check(&self) -> Result<(), EngineConfigError> {
        let counts = [
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_model_len", self.max_model_len),
            ("block_size", self.block_size),
            ("num_gpu_blocks", self.num_gpu_blocks),
            ("max_num_active_seqs", self.max_num_active_seqs.unwrap_or(1)),
            ("max_num_scheduled_tokens", self.max_num_scheduled_tokens.unwrap_or(1)),
        ];
        if let Some(&(key, _)) = counts.iter().find(|(_, value)| *value == 0) {
            return Err(EngineConfigError::Zero { key });
        }
        if !(0.0..1.0).contains(&self.watermark) {
            return Err(EngineConfigError::Watermark { value: self.watermark });
        }
        if self.speculation.is_some() {
            return Err(EngineConfigError::Unsupported { feature: "speculative decoding" });
        }
        match self.kv_groups.as_slice() {
            [KvGroup::Full] => Ok(()),
            _ => Err(EngineConfigError::Unsupported {
                feature: "a KV pool other than one full-attention group",
            }),
        }
    }
}
