//! What is in a profile, a scenario or a recorded schedule, as a page for people and as JSON. Knows
//! those shapes; opens nothing.

use serde_json::{Value, json};
use std::fmt::Write as _;

use crate::report::describe;
use crate::report::format::{count, figure, plain, usd};
use crate::scenario::{MemoryBudget, PoolSetup, Profile, Region, Scenario};
use crate::sim::config::PoolConfig;

/// Context lengths for which a memory budget says how many requests fit.
const CONTEXTS: [u32; 3] = [2048, 8192, 32_768];

/// A page and the same for machines.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// For people; ends in a newline.
    pub text: String,
    /// For machines.
    pub json: Value,
}

fn line(text: &mut String, label: &str, value: &str) {
    _ = writeln!(text, "{label:<14}{value}");
}

fn gib(bytes: f64) -> String {
    format!("{:.2} GiB", bytes / f64::from(1u32 << 30))
}

fn range(range: Option<[f64; 2]>) -> String {
    range
        .map_or("not stated".to_owned(), |[low, high]| format!("{} to {}", plain(low), plain(high)))
}

/// A scenario: what it asks, and the memory budget of each pool.
#[must_use]
pub fn scenario(scenario: &Scenario) -> Page {
    let mut text = String::new();
    line(&mut text, "scenario", &scenario.name);
    if let Some(description) = &scenario.description {
        line(&mut text, "about", description);
    }
    line(&mut text, "fleet", &describe::fleet(&scenario.config));
    line(&mut text, "traffic", &describe::traffic(&scenario.traffic));
    line(&mut text, "run", &describe::method(&scenario.config, scenario.replications));
    for term in &scenario.slo {
        line(&mut text, "slo", &format!("{} <= {} s", term.name, plain(term.limit.seconds())));
    }
    let sha256 = scenario.sha256();
    line(&mut text, "sha256", &sha256);
    let mut pools = Vec::new();
    for (pool, setup) in scenario.config.pools.iter().zip(&scenario.pools) {
        pool_text(&mut text, pool, setup);
        pools.push(pool_json(pool, setup));
    }
    let slo: Vec<Value> = (scenario.slo.iter())
        .map(|term| json!({ "name": term.name, "limit": term.limit.seconds() }))
        .collect();
    let json = json!({
        "kind": "scenario", "name": scenario.name, "sha256": sha256,
        "description": scenario.description, "seed": scenario.config.seed,
        "replications": scenario.replications, "slo": slo, "pools": pools,
    });
    Page { text, json }
}

/// Tokens that the KV pool of one replica holds.
fn kv_tokens(pool: &PoolConfig) -> u64 {
    u64::from(pool.engine.usable_blocks()) * u64::from(pool.engine.block_size)
}

fn fitting(pool: &PoolConfig) -> impl Iterator<Item = (u32, u64)> {
    let tokens = kv_tokens(pool);
    let longest = pool.engine.max_model_len;
    CONTEXTS
        .into_iter()
        .filter(move |&context| context <= longest)
        .map(move |context| (context, tokens / u64::from(context)))
}

fn pool_text(text: &mut String, pool: &PoolConfig, setup: &PoolSetup) {
    let replicas = u64::from(pool.instances) * u64::from(pool.replicas_per_instance);
    _ = writeln!(text, "\npool {}", pool.name);
    line(
        text,
        "instances",
        &format!(
            "{} {}, {} each, {} replicas of {} GPU ({})",
            pool.instances,
            pool.instance_type,
            usd(Some(pool.price_usd_per_hour)) + " an hour",
            count(replicas),
            setup.tensor_parallel_size,
            setup.gpu
        ),
    );
    let step_times = setup.profile.as_deref().unwrap_or("as written in the scenario");
    line(text, "step times", step_times);
    if let Some(model) = &setup.model {
        line(text, "model", model);
    }
    if let Some(memory) = &setup.memory {
        memory_text(text, memory);
    }
    let engine = &pool.engine;
    line(
        text,
        "KV pool",
        &format!(
            "{} blocks of {} tokens, {}: {} tokens",
            count(u64::from(engine.num_gpu_blocks)),
            engine.block_size,
            setup.blocks_from.name(),
            count(kv_tokens(pool))
        ),
    );
    for (context, requests) in fitting(pool) {
        let limit = u64::from(engine.max_running());
        let by = if requests < limit { "by KV blocks" } else { "by max_num_seqs" };
        let running = requests.min(limit);
        let label = format!("at {} tokens", count(u64::from(context)));
        line(text, "", &format!("{label}: {} requests at once, limited {by}", count(running)));
    }
}

fn memory_text(text: &mut String, memory: &MemoryBudget) {
    line(text, "GPU memory", &gib(memory.total as f64));
    for (what, bytes) in [
        ("for the engine", memory.requested as f64),
        ("- weights", memory.weights as f64),
        ("- activations (estimated)", memory.activations as f64),
        ("- runtime, graphs (estimated)", memory.runtime as f64),
        ("= for KV", memory.available as f64),
    ] {
        line(text, "", &format!("{what:<30}{:>12}", gib(bytes)));
    }
}

fn pool_json(pool: &PoolConfig, setup: &PoolSetup) -> Value {
    let memory = setup.memory.as_ref().map(|memory| {
        json!({
            "total_bytes": memory.total, "requested_bytes": memory.requested,
            "weights_bytes": memory.weights, "activations_bytes": memory.activations,
            "runtime_bytes": memory.runtime, "kv_bytes": memory.available,
            "bytes_per_block": memory.bytes_per_block, "blocks": memory.blocks(),
        })
    });
    let fitting: Vec<Value> = fitting(pool)
        .map(|(context, requests)| json!({ "context_tokens": context, "requests": requests }))
        .collect();
    json!({
        "name": pool.name, "instance_type": pool.instance_type, "instances": pool.instances,
        "replicas_per_instance": pool.replicas_per_instance, "gpu": setup.gpu,
        "model": setup.model, "tensor_parallel_size": setup.tensor_parallel_size,
        "profile": setup.profile, "price_usd_per_hour": pool.price_usd_per_hour,
        "num_gpu_blocks": pool.engine.num_gpu_blocks, "block_size": pool.engine.block_size,
        "blocks_from": setup.blocks_from.name(), "kv_tokens": kv_tokens(pool),
        "fitting": fitting, "memory": memory,
    })
}

/// A profile: what it says, where it may be believed, and how far off it was.
#[must_use]
pub fn profile(profile: &Profile) -> Page {
    let mut text = String::new();
    line(&mut text, "profile", &profile.name);
    if let Some(description) = &profile.description {
        line(&mut text, "about", description);
    }
    let gpus = format!("{} on {} × {}", profile.model, profile.tensor_parallel_size, profile.gpu);
    line(&mut text, "of", &gpus);
    let engine = &profile.engine;
    line(&mut text, "engine", &format!("{} {}", engine.name, engine.version));
    line(&mut text, "sha256", &profile.sha256);
    let Region { concurrency, batch, input_tokens, output_tokens, kv_usage } = profile.region;
    for (what, limits) in [
        ("concurrency", concurrency),
        ("batch", batch),
        ("input tokens", input_tokens),
        ("output tokens", output_tokens),
        ("KV usage", kv_usage),
    ] {
        line(&mut text, "fitted for", &format!("{what} {}", range(limits)));
    }
    for source in &profile.sources {
        line(&mut text, "source", &format!("{} ({})", source.title, source.r#where));
    }
    let mean_error = |fitted: bool| {
        let errors: Vec<f64> = (profile.points.iter())
            .filter(|point| point.fitted == fitted)
            .map(|point| point.error_pct.abs())
            .collect();
        (!errors.is_empty()).then(|| errors.iter().sum::<f64>() / errors.len() as f64)
    };
    for (what, fitted) in [("fitted", true), ("held-out", false)] {
        let n = profile.points.iter().filter(|point| point.fitted == fitted).count();
        if let Some(error) = mean_error(fitted) {
            let error = format!("{} % mean absolute over {n} {what} points", figure(error));
            line(&mut text, "error", &error);
        }
    }
    let points: Vec<Value> = (profile.points.iter())
        .map(|point| {
            json!({
                "source": point.source, "what": point.what, "metric": point.metric,
                "unit": point.unit, "measured": point.measured, "predicted": point.predicted,
                "error_pct": point.error_pct, "fitted": point.fitted,
            })
        })
        .collect();
    let json = json!({
        "kind": "profile", "name": profile.name, "sha256": profile.sha256,
        "model": profile.model, "gpu": profile.gpu,
        "tensor_parallel_size": profile.tensor_parallel_size,
        "engine": { "name": engine.name, "version": engine.version, "flags": engine.flags },
        "region": {
            "concurrency": concurrency, "batch": batch, "input_tokens": input_tokens,
            "output_tokens": output_tokens, "kv_usage": kv_usage,
        },
        "error_pct": { "fitted": mean_error(true), "held_out": mean_error(false) },
        "points": points,
    });
    Page { text, json }
}
