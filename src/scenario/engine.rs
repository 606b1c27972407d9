//! `[pool.engine]`: vLLM's own parameter names, with the defaults of the stated release and GPU
//! (vLLM 0.32, API server), and the combinations that vLLM refuses to start with.

use super::memory::KvCacheDtype;
use super::problem::{Place, Problem};
use super::read::{Bounds, Reader};
use crate::catalog::{Gpu, Model};
use crate::engine::config::{EngineConfig, KvGroup, SchedulingPolicy, VersionProfile};

/// The release whose rules are implemented.
pub const VERSION: &str = "0.32.0";
/// `--gpu-memory-utilization` since 0.20.
const GPU_MEMORY_UTILIZATION: f64 = 0.92;
/// `--block-size` on CUDA.
const BLOCK_SIZE: u32 = 16;

/// Where the number of blocks comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlocksFrom {
    /// The engine's log line, or the user's wish.
    Pinned,
    /// Derived from memory and model shape.
    Derived,
}

impl BlocksFrom {
    /// The word for it in a scenario.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pinned => "pinned",
            Self::Derived => "derived",
        }
    }
}

/// An engine section; `config.num_gpu_blocks` is 0 until it is pinned or derived.
#[derive(Debug, Clone)]
pub(super) struct EngineSection {
    pub config: EngineConfig,
    pub version: String,
    pub gpu_memory_utilization: f64,
    pub kv_cache_dtype: KvCacheDtype,
    pub blocks_from: BlocksFrom,
    /// Where to point when something about blocks or lengths is wrong.
    pub blocks_place: Place,
    pub max_model_len_place: Place,
}

/// What the defaults depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct EngineContext<'a> {
    pub gpu: Option<&'a Gpu>,
    pub model: Option<&'a Model>,
}

/// Reads the section; `None` when something in it is wrong.
pub(super) fn read(r: &mut Reader<'_>, context: EngineContext<'_>) -> Option<EngineSection> {
    let version = read_version(r);
    refuse_what_is_not_simulated(r);
    let large = context.gpu.is_some_and(Gpu::takes_large_defaults);
    let default_seqs = if large { 1024 } else { 256 };
    let default_tokens = match context.gpu {
        Some(gpu) if gpu.memory_mib >= 160 * 1024 => 16_384,
        _ if large => 8_192,
        _ => 2_048,
    };
    let max_model_len = r.count("max_model_len", 2..=16_777_216);
    if max_model_len.is_none() && context.model.is_none() && !r.has("max_model_len") {
        r.missing("max_model_len", "max_model_len = 8192 (there is no model to take it from)");
    }
    let max_model_len = max_model_len
        .or_else(|| context.model.map(|m| m.max_position_embeddings))
        .unwrap_or(u32::MAX);
    let chunked = r.boolean("enable_chunked_prefill").unwrap_or(true);
    let seqs = r.count("max_num_seqs", 1..=65_536);
    let tokens = r.count("max_num_batched_tokens", 1..=4_194_304);
    let max_num_batched_tokens = tokens.unwrap_or_else(|| {
        let raised = if chunked { default_tokens } else { default_tokens.max(max_model_len) };
        raised.min(seqs.unwrap_or(default_seqs).saturating_mul(max_model_len))
    });
    let config = EngineConfig {
        version: VersionProfile::V0_32,
        max_num_seqs: seqs.unwrap_or_else(|| default_seqs.min(max_num_batched_tokens)),
        max_num_active_seqs: r.count("max_num_active_seqs", 1..=65_536),
        max_num_batched_tokens,
        max_num_scheduled_tokens: r.count("max_num_scheduled_tokens", 1..=4_194_304),
        max_model_len,
        block_size: r.count("block_size", 1..=4_096).unwrap_or(BLOCK_SIZE),
        num_gpu_blocks: r.count("num_gpu_blocks", 2..=1 << 30).unwrap_or(0),
        enable_prefix_caching: r.boolean("enable_prefix_caching").unwrap_or(true),
        enable_chunked_prefill: chunked,
        policy: r
            .choice(
                "scheduling_policy",
                &[("fcfs", SchedulingPolicy::Fcfs), ("priority", SchedulingPolicy::Priority)],
            )
            .unwrap_or(SchedulingPolicy::Fcfs),
        watermark: r.number("watermark", Bounds::Within(0.0, 0.9)).map_or(0.0, |w| w.value),
        scheduler_reserve_full_isl: r.boolean("scheduler_reserve_full_isl").unwrap_or(true),
        long_prefill_token_threshold: r
            .count("long_prefill_token_threshold", 0..=4_194_304)
            .unwrap_or(0),
        long_prefill_token_threshold_adaptive: r
            .boolean("long_prefill_token_threshold_adaptive")
            .unwrap_or(false),
        async_scheduling: r.boolean("async_scheduling").unwrap_or(true),
        prefix_cache_retention_interval: Some(0),
        kv_groups: vec![KvGroup::Full],
        speculation: None,
    };
    check(r, &config);
    Some(EngineSection {
        version: version?,
        gpu_memory_utilization: r
            .number("gpu_memory_utilization", Bounds::Share)
            .map_or(GPU_MEMORY_UTILIZATION, |u| u.value),
        kv_cache_dtype: r
            .choice("kv_cache_dtype", &[("auto", KvCacheDtype::Auto), ("fp8", KvCacheDtype::Fp8)])
            .unwrap_or(KvCacheDtype::Auto),
        blocks_from: read_blocks_from(r, config.num_gpu_blocks > 0),
        blocks_place: r.place_of("num_gpu_blocks"),
        max_model_len_place: r.place_of("max_model_len"),
        config,
    })
}

fn read_version(r: &mut Reader<'_>) -> Option<String> {
    if !r.has("version") {
        r.know("version");
        return Some(VERSION.to_owned());
    }
    let found = r.text("version")?;
    let text = found.value.trim_start_matches('v');
    if text == "0.32" || text.starts_with("0.32.") {
        return Some(text.to_owned());
    }
    let title = format!("vLLM {text} is not simulated");
    let problem = Problem::error("unknown-engine-version", title)
        .at(found.place, "expected 0.32 or a patch release of it")
        .help(format!("write version = \"{VERSION}\" to run with the rules of that release"))
        .help("rules and defaults differ between releases; results would not be this version's");
    r.report("version", problem);
    None
}

/// Features that the engine knows from recorded cases but that no scenario can describe yet.
fn refuse_what_is_not_simulated(r: &mut Reader<'_>) {
    for (key, what) in [
        ("speculative_config", "speculative decoding"),
        ("kv_groups", "sliding-window and Mamba layers"),
        ("pipeline_parallel_size", "pipeline parallelism"),
        ("data_parallel_size", "data parallelism inside one engine"),
    ] {
        let Some(node) = r.node(key) else { continue };
        let problem = Problem::error("not-simulated", format!("{what} cannot be simulated yet"))
            .at(node.place, "expected this key to be left out")
            .help("scenarios cover dense models with full attention and no drafts");
        r.report(key, problem);
    }
}

fn read_blocks_from(r: &mut Reader<'_>, given: bool) -> BlocksFrom {
    let choices = [("pinned", BlocksFrom::Pinned), ("derived", BlocksFrom::Derived)];
    let stated = r.choice("num_gpu_blocks_from", &choices);
    if let Some(stated) = stated
        && !given
        && !r.has("num_gpu_blocks")
    {
        let title = format!("`num_gpu_blocks_from` is \"{}\" without a number", stated.name());
        let problem = Problem::error("contradiction", title)
            .at(r.place_of("num_gpu_blocks_from"), "expected num_gpu_blocks beside it")
            .help("leave both out to derive the number from GPU memory and model");
        r.report("num_gpu_blocks_from", problem);
    }
    match (stated, given) {
        (Some(stated), true) => stated,
        (None, true) => BlocksFrom::Pinned,
        (_, false) => BlocksFrom::Derived,
    }
}

/// What vLLM refuses to start with.
fn check(r: &Reader<'_>, c: &EngineConfig) {
    let refuse = |key: &str, title: String, expected: String, help: &str| {
        let problem = Problem::error("contradiction", title).at(r.place_of(key), expected);
        r.report(key, problem.help(help));
    };
    if c.max_num_batched_tokens < c.max_num_seqs {
        let (tokens, seqs) = (c.max_num_batched_tokens, c.max_num_seqs);
        refuse(
            if r.has("max_num_batched_tokens") { "max_num_batched_tokens" } else { "max_num_seqs" },
            format!("max_num_batched_tokens {tokens} is below max_num_seqs {seqs}"),
            format!("expected at least {seqs} tokens: every sequence needs one a step"),
            "raise max_num_batched_tokens or lower max_num_seqs",
        );
    }
    if !c.enable_chunked_prefill && c.max_num_batched_tokens < c.max_model_len {
        let (tokens, len) = (c.max_num_batched_tokens, c.max_model_len);
        refuse(
            "max_num_batched_tokens",
            format!(
                "without chunked prefill a prompt of {len} tokens cannot fit a step of {tokens}"
            ),
            format!("expected at least max_model_len, {len}"),
            "raise max_num_batched_tokens, lower max_model_len, or turn chunked prefill on",
        );
    }
    if !c.enable_chunked_prefill
        && let Some(scheduled) = c.max_num_scheduled_tokens
        && scheduled < c.max_model_len
    {
        let title = format!("prompts of more than {scheduled} tokens are never scheduled");
        let problem = Problem::advice("unscheduled-prompts", title)
            .at(r.place_of("max_num_scheduled_tokens"), "without chunked prefill")
            .help("leave max_num_scheduled_tokens out, or turn chunked prefill on");
        r.report("max_num_scheduled_tokens", problem);
    }
    if let Some(scheduled) = c.max_num_scheduled_tokens
        && scheduled > c.max_num_batched_tokens
    {
        refuse(
            "max_num_scheduled_tokens",
            format!("max_num_scheduled_tokens {scheduled} is above max_num_batched_tokens"),
            format!("expected at most {}", c.max_num_batched_tokens),
            "lower it, or leave it out",
        );
    }
    if let Some(active) = c.max_num_active_seqs
        && active > c.max_num_seqs
    {
        refuse(
            "max_num_active_seqs",
            format!("max_num_active_seqs {active} is above max_num_seqs"),
            format!("expected at most {}", c.max_num_seqs),
            "lower it, or leave it out",
        );
    }
    if c.long_prefill_token_threshold > c.max_model_len {
        refuse(
            "long_prefill_token_threshold",
            "long_prefill_token_threshold is above max_model_len".to_owned(),
            format!("expected at most {}", c.max_model_len),
            "0 turns it off",
        );
    }
}
