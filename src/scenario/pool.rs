//! `[[pool]]`: instances, the model on them, the engine, step times and the price; and what must
//! agree between these.

use super::engine::{self, BlocksFrom, EngineContext, EngineSection};
use super::memory::{GraphMemory, KvCacheDtype, MemoryBudget, MemoryInputs, gib};
use super::problem::{Place, Problem};
use super::profile::{self, Profile};
use super::profiles::ProfileShelf;
use super::read::{Bounds, Length, Reader};
use crate::catalog::{self, Billing, Gpu, Instance, Model};
use crate::latency::{Coefficients, StepTimeModel};
use crate::sim::config::PoolConfig;
use crate::units::Span;

/// Most instances of one pool.
const INSTANCES_MAX: u32 = 100_000;

/// What a pool was resolved from, beside its [`PoolConfig`].
#[derive(Debug, Clone, PartialEq)]
pub struct PoolSetup {
    /// GPU of its instances (catalog name).
    pub gpu: String,
    /// Model (catalog name); `None` when nothing needed to know it.
    pub model: Option<String>,
    /// GPUs that share one copy of the model.
    pub tensor_parallel_size: u32,
    /// Name of its profile; `None` when step times stand in the scenario.
    pub profile: Option<String>,
    /// Step times in seconds.
    pub step_time: Coefficients,
    /// vLLM release.
    pub engine_version: String,
    /// Share of GPU memory that the engine may use.
    pub gpu_memory_utilization: f64,
    /// Number format of the KV cache.
    pub kv_cache_dtype: KvCacheDtype,
    /// Where the number of KV blocks comes from.
    pub blocks_from: BlocksFrom,
    /// The memory of each GPU; `None` without a model.
    pub memory: Option<MemoryBudget>,
}

/// A pool as read, and where to point when it does not go with the rest.
#[derive(Debug, Clone)]
pub(super) struct PoolSection {
    pub config: PoolConfig,
    pub setup: PoolSetup,
    pub path: String,
    pub place: Place,
    pub profile_place: Place,
}

/// Reads one pool.
pub(super) fn read(r: &mut Reader<'_>, shelf: &mut ProfileShelf) -> Option<PoolSection> {
    let name = profile::required_text(r, "name", "name = \"p5\"");
    let instance = read_instance(r);
    let model = read_model(r);
    let gpu = instance.map(|(instance, _)| instance.gpu());
    let instances = read_count(r, "instances", 1..=INSTANCES_MAX, "instances = 1");
    let layout = read_layout(r, instance, model.ok().flatten());
    let engine = read_engine(r, EngineContext { gpu, model: model.ok().flatten() });
    let times = read_step_time(r, shelf);
    let price_usd_per_hour = read_price(r, instance);
    let routing_latency = latency(r, "routing_latency");
    let frontend = r.duration("frontend_latency", Length::MayBeZero).map(|f| f.value);
    let model = model.ok()?;
    if let (Some(profile), Some(gpu)) = (times.as_ref().and_then(|t| t.profile.as_ref()), gpu) {
        check_profile(r, profile, gpu, model, layout.map(|l| l.tensor_parallel_size));
    }
    let (instance, _) = instance?;
    let layout = layout?;
    let mut engine = engine?;
    let memory = size_kv(r, instance.gpu(), model, layout, &mut engine)?;
    let times = times?;
    let section = PoolSection {
        path: r.path().to_owned(),
        place: r.place(),
        profile_place: r.place_of("profile"),
        setup: PoolSetup {
            gpu: instance.gpu.clone(),
            model: model.map(|m| m.name.clone()),
            tensor_parallel_size: layout.tensor_parallel_size,
            profile: times.profile.as_ref().map(|p| p.name.clone()),
            step_time: times.coefficients,
            engine_version: engine.version,
            gpu_memory_utilization: engine.gpu_memory_utilization,
            kv_cache_dtype: engine.kv_cache_dtype,
            blocks_from: engine.blocks_from,
            memory,
        },
        config: PoolConfig {
            name: name?,
            instance_type: r.text("instance_type")?.value.to_owned(),
            instances: instances?,
            replicas_per_instance: layout.replicas_per_instance,
            engine: engine.config,
            step_time: times.model,
            routing_latency,
            frontend_latency: frontend
                .or_else(|| times.profile.as_ref().map(|p| p.frontend_latency))
                .unwrap_or(Span::ZERO),
            price_usd_per_hour: price_usd_per_hour?,
        },
    };
    Some(section)
}

fn latency(r: &mut Reader<'_>, key: &str) -> Span {
    r.duration(key, Length::MayBeZero).map_or(Span::ZERO, |found| found.value)
}

fn read_count(
    r: &mut Reader<'_>,
    key: &str,
    range: std::ops::RangeInclusive<u32>,
    example: &str,
) -> Option<u32> {
    if !r.has(key) {
        r.know(key);
        r.missing(key, example);
        return None;
    }
    r.count(key, range)
}

fn read_instance(r: &mut Reader<'_>) -> Option<(&'static Instance, Billing)> {
    if !r.has("instance_type") {
        r.know("instance_type");
        r.missing("instance_type", "instance_type = \"ml.p5.48xlarge\"");
        return None;
    }
    let found = r.text("instance_type")?;
    let known = catalog::instance::find(found.value);
    if known.is_none() {
        let prefix = if found.value.starts_with("ml.") { "ml." } else { "" };
        let names: Vec<String> = catalog::instance::all()
            .iter()
            .map(|instance| format!("{prefix}{}", instance.ec2_type))
            .collect();
        let title = format!("instance type `{}` is not in the catalog", found.value);
        let problem = Problem::error("unknown-instance", title)
            .at(found.place, "expected a GPU instance type of EC2 or SageMaker")
            .nearest(found.value, names.iter().map(String::as_str))
            .help("`fleetcast catalog instances` lists them all");
        r.report("instance_type", problem);
    }
    known
}

/// `Err` when a model was named that is not known.
fn read_model(r: &mut Reader<'_>) -> Result<Option<&'static Model>, ()> {
    if !r.has("model") {
        r.know("model");
        return Ok(None);
    }
    let found = r.text("model").ok_or(())?;
    let model = catalog::model::find(found.value);
    if model.is_none() {
        let names = catalog::model::all().iter().map(|m| m.name.as_str());
        let title = format!("model `{}` is not in the catalog", found.value);
        let problem = Problem::error("unknown-model", title)
            .at(found.place, "expected a model of the catalog")
            .nearest(found.value, names)
            .help("`fleetcast catalog models` lists them all")
            .help("for another model leave `model` out and give num_gpu_blocks and max_model_len");
        r.report("model", problem);
        return Err(());
    }
    Ok(model)
}

/// How processes lie on the GPUs of an instance.
#[derive(Debug, Clone, Copy)]
struct Layout {
    tensor_parallel_size: u32,
    replicas_per_instance: u32,
}

fn read_layout(
    r: &mut Reader<'_>,
    instance: Option<(&Instance, Billing)>,
    model: Option<&Model>,
) -> Option<Layout> {
    let tp = match r.count("tensor_parallel_size", 1..=64) {
        Some(tp) => tp,
        None if r.has("tensor_parallel_size") => return None,
        None => 1,
    };
    let replicas = r.count("replicas_per_instance", 1..=64);
    let (instance, _) = instance?;
    if let Some(model) = model {
        check_heads(r, model, tp);
    }
    let gpus = instance.gpu_count;
    let replicas_per_instance = replicas.unwrap_or((gpus / tp).max(1));
    if u64::from(replicas_per_instance) * u64::from(tp) > u64::from(gpus) {
        let key = if replicas.is_some() { "replicas_per_instance" } else { "tensor_parallel_size" };
        let title = format!(
            "{replicas_per_instance} × {tp} GPUs are asked for; {} has {gpus}",
            instance.ec2_type
        );
        let problem = Problem::error("too-many-gpus", title)
            .at(r.place_of(key), format!("expected replicas × tensor_parallel_size ≤ {gpus}"))
            .help(match gpus / tp {
                0 => format!("tensor_parallel_size can be {gpus} at most here"),
                fit => format!("with tensor_parallel_size = {tp}, {fit} replicas fit"),
            });
        r.report(key, problem);
        return None;
    }
    advise_on_unused_gpus(r, instance, replicas_per_instance * tp);
    Some(Layout { tensor_parallel_size: tp, replicas_per_instance })
}

/// An instance is billed whole, which is easily overlooked where one GPU of it is tested.
fn advise_on_unused_gpus(r: &Reader<'_>, instance: &Instance, used: u32) {
    let gpus = instance.gpu_count;
    if used >= gpus {
        return;
    }
    let title = format!("{used} of the {gpus} GPUs of each {} work", instance.ec2_type);
    let problem = Problem::advice("unused-gpus", format!("{title}; it is billed whole"))
        .at(r.place_of("replicas_per_instance"), "cost counts the idle GPUs too")
        .help("read cost with that in mind, raise replicas_per_instance, or take a smaller type");
    r.report("replicas_per_instance", problem);
}

fn check_heads(r: &Reader<'_>, model: &Model, tp: u32) {
    let (heads, kv) = (model.attention_heads, model.kv_heads);
    let splits = heads.is_multiple_of(tp) && (kv.is_multiple_of(tp) || tp.is_multiple_of(kv));
    if splits {
        return;
    }
    let sizes: Vec<String> = (1..=8)
        .filter(|n| heads.is_multiple_of(*n) && (kv.is_multiple_of(*n) || n.is_multiple_of(kv)))
        .map(|n| n.to_string())
        .collect();
    let title = format!(
        "tensor_parallel_size {tp} does not divide the {heads} heads and {kv} KV heads of {}",
        model.name
    );
    let problem = Problem::error("uneven-heads", title)
        .at(r.place_of("tensor_parallel_size"), "expected a divisor")
        .help(format!("possible for this model: {}", sizes.join(", ")));
    r.report("tensor_parallel_size", problem);
}

fn read_engine(r: &mut Reader<'_>, context: EngineContext<'_>) -> Option<EngineSection> {
    if r.has("engine") {
        let mut table = r.table("engine")?;
        let section = engine::read(&mut table, context);
        table.finish();
        return section;
    }
    r.know("engine");
    // All defaults; an empty table at the pool's place reads as one.
    let empty = super::tree::Node {
        value: super::tree::Value::Table(super::tree::Table::default()),
        place: r.place(),
    };
    let mut table = Reader::of(&empty, r.path_of("engine"), r.problems())?;
    engine::read(&mut table, context)
}

/// Step times, and the profile that they come from.
#[derive(Debug, Clone)]
struct StepTimes {
    coefficients: Coefficients,
    model: StepTimeModel,
    profile: Option<Profile>,
}

fn read_step_time(r: &mut Reader<'_>, shelf: &mut ProfileShelf) -> Option<StepTimes> {
    let (named, inline) = (r.has("profile"), r.has("step_time"));
    if named && inline {
        let title = "a pool takes its step times from a profile or from [pool.step_time]";
        let problem = Problem::error("contradiction", title)
            .at(r.place_of("step_time"), "and here they stand again")
            .help("remove one of the two");
        r.report("step_time", problem);
    }
    if !named && !inline {
        r.know("profile");
        r.know("step_time");
        r.missing("profile", "profile = \"llama-3-8b-h100\" (or [pool.step_time] with fixed_s)");
        return None;
    }
    let mut coefficients = None;
    if let Some(mut table) = r.table("step_time") {
        coefficients = profile::read_coefficients(&mut table);
        table.finish();
    }
    let found = r.text("profile");
    let profile = found.and_then(|found| shelf.find(r, found));
    let coefficients = profile.as_ref().map(|p| p.step_time.clone()).or(coefficients)?;
    let model = StepTimeModel::new(&coefficients).ok()?;
    Some(StepTimes { coefficients, model, profile })
}

fn check_profile(
    r: &Reader<'_>,
    profile: &Profile,
    gpu: &Gpu,
    model: Option<&Model>,
    tp: Option<u32>,
) {
    let place = r.place_of("profile");
    let known = catalog::gpu::find(&profile.gpu).map(|g| g.name.as_str());
    if known != Some(gpu.name.as_str()) {
        let title = format!(
            "profile `{}` was measured on {}; the instance has {}",
            profile.name, profile.gpu, gpu.name
        );
        let problem = Problem::error("profile-gpu", title)
            .at(place, format!("expected a profile for {}", gpu.name))
            .help("`fleetcast catalog profiles` lists profiles with their GPU");
        r.report("profile", problem);
    }
    if let Some(tp) = tp
        && tp != profile.tensor_parallel_size
    {
        let title = format!(
            "profile `{}` was measured with tensor_parallel_size {}; the pool has {tp}",
            profile.name, profile.tensor_parallel_size
        );
        let problem = Problem::error("profile-tensor-parallel", title)
            .at(place, "expected a profile with the same tensor_parallel_size");
        r.report("profile", problem);
    }
    let measured = catalog::model::find(&profile.model).map_or(profile.model.as_str(), |m| &m.name);
    if let Some(model) = model
        && measured != model.name
    {
        let title = format!(
            "profile `{}` was measured with {measured}; the pool runs {}",
            profile.name, model.name
        );
        let problem = Problem::advice("profile-model", title)
            .at(place, "step times of another model")
            .help("fit a profile for this model, or trust the result as far as the two are alike");
        r.report("profile", problem);
    }
}

fn read_price(r: &mut Reader<'_>, instance: Option<(&Instance, Billing)>) -> Option<f64> {
    if r.has("price_usd_per_hour") {
        return r.number("price_usd_per_hour", Bounds::NotNegative(1e6)).map(|f| f.value);
    }
    r.know("price_usd_per_hour");
    let (instance, billing) = instance?;
    let price = instance.price(billing);
    if price.is_none() {
        let list = match billing {
            Billing::Ec2 => "an EC2 on-demand",
            Billing::SageMakerHosting => "a SageMaker hosting",
        };
        let title = format!("{} has no {} price in the catalog", instance.ec2_type, &list[2..]);
        let mut problem = Problem::error("no-price", title.replace("  ", " "))
            .at(r.place_of("instance_type"), format!("expected a type with {list} price"))
            .help("state what you pay with price_usd_per_hour = ...");
        if !instance.notes.is_empty() {
            problem = problem.help(&instance.notes);
        }
        r.report("instance_type", problem);
    }
    price
}

/// A pinned number this much above the estimate is not from this GPU's log.
const PINNED_ABOVE_ESTIMATE: f64 = 1.25;

/// Pins or derives the number of KV blocks and checks that one request fits. `None` on an error.
fn size_kv(
    r: &Reader<'_>,
    gpu: &Gpu,
    model: Option<&Model>,
    layout: Layout,
    engine: &mut EngineSection,
) -> Option<Option<MemoryBudget>> {
    let config = &mut engine.config;
    let memory = model.map(|model| {
        MemoryBudget::new(&MemoryInputs {
            gpu,
            model,
            tensor_parallel_size: layout.tensor_parallel_size,
            gpu_memory_utilization: engine.gpu_memory_utilization,
            max_num_batched_tokens: config.max_num_batched_tokens,
            max_num_seqs: config.max_num_seqs,
            block_size: config.block_size,
            kv_cache_dtype: engine.kv_cache_dtype,
            graphs: GraphMemory::SetAside,
        })
    });
    let key = "engine.num_gpu_blocks";
    if config.num_gpu_blocks == 0 {
        let Some(memory) = memory else {
            let problem = Problem::error("no-kv-size", "the size of the KV cache is unknown")
                .at(engine.blocks_place, "expected num_gpu_blocks, or a model to derive it from")
                .help(
                    "copy the number from the engine's log line `# GPU blocks`, or name the model",
                );
            r.report(key, problem);
            return None;
        };
        if memory.available <= 0 {
            r.report("model", does_not_fit(r, gpu, model, layout, &memory));
            return None;
        }
        config.num_gpu_blocks = memory.blocks().max(1);
    }
    if !one_request_fits(r, engine) {
        return None;
    }
    advise_on_blocks(r, engine, memory.as_ref());
    Some(memory)
}

/// The engine refuses to start when one request of `max_model_len` does not fit the KV cache.
fn one_request_fits(r: &Reader<'_>, engine: &EngineSection) -> bool {
    let config = &engine.config;
    let needed = config.max_model_len.div_ceil(config.block_size);
    let have = config.usable_blocks();
    if needed <= have {
        return true;
    }
    let longest = u64::from(have) * u64::from(config.block_size);
    let title = format!(
        "one request of max_model_len {} needs {needed} KV blocks; there are {have}",
        config.max_model_len
    );
    let mut problem = Problem::error("kv-too-small", title)
        .at(engine.max_model_len_place, format!("expected at most {longest} tokens"));
    if longest >= 2 {
        problem = problem.help(format!("set max_model_len = {longest} or less"));
    }
    if engine.blocks_from == BlocksFrom::Derived {
        problem = problem.help(
            "or raise gpu_memory_utilization or tensor_parallel_size, or use \
             kv_cache_dtype = \"fp8\"",
        );
    }
    r.report("engine.max_model_len", problem);
    false
}

fn advise_on_blocks(r: &Reader<'_>, engine: &EngineSection, memory: Option<&MemoryBudget>) {
    let blocks = engine.config.num_gpu_blocks;
    let estimate = memory.map_or(u32::MAX, MemoryBudget::blocks);
    let problem = match engine.blocks_from {
        BlocksFrom::Derived => {
            let title = format!(
                "KV cache of {blocks} blocks is derived from GPU memory and model shape, not \
                 measured"
            );
            Problem::advice("kv-derived", title)
                .at(engine.blocks_place, "estimates miss the engine's own number by some per cent")
                .help("pin num_gpu_blocks to the number in the engine's log at start-up")
        }
        BlocksFrom::Pinned if f64::from(blocks) > f64::from(estimate) * PINNED_ABOVE_ESTIMATE => {
            let title = format!(
                "num_gpu_blocks {blocks} is far above what the GPU is estimated to hold, {estimate}"
            );
            Problem::advice("kv-pinned-high", title)
                .at(engine.blocks_place, "is this from the log of this model on this GPU?")
                .help("leave num_gpu_blocks out to see the estimate line by line in `check`")
        }
        BlocksFrom::Pinned => return,
    };
    r.report("engine.num_gpu_blocks", problem);
}

fn does_not_fit(
    r: &Reader<'_>,
    gpu: &Gpu,
    model: Option<&Model>,
    layout: Layout,
    memory: &MemoryBudget,
) -> Problem {
    let name = model.map_or("the model", |m| m.name.as_str());
    let title = format!(
        "{name} does not fit on {} × {}: short of {} on each",
        layout.tensor_parallel_size,
        gpu.title,
        gib(-memory.available)
    );
    let label = format!(
        "needs {} weights + {} activations + {} runtime; has {}",
        gib(memory.weights as i64),
        gib(memory.activations as i64),
        gib(memory.runtime as i64),
        gib(memory.requested as i64)
    );
    Problem::error("model-does-not-fit", title)
        .at(r.place_of("model"), label)
        .help("raise tensor_parallel_size, take a larger GPU, or a quantised model")
}
