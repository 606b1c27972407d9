//! The scenario written out: `resolved.toml` with every default explicit, and the text that its
//! hash is taken of. Reading the first gives the same scenario and the same text again.

use super::duration::format as span;
use super::method::NEVER;
use super::pool::PoolSetup;
use super::profile::Profile;
use super::traffic::absolute;
use super::{ProfileUse, Scenario};
use crate::engine::config::SchedulingPolicy;
use crate::latency::Coefficients;
use crate::router::RouterConfig;
use crate::sim::config::PoolConfig;
use crate::units::Span;
use crate::workload::spec::{
    ArrivalSpec, BodySpec, LengthSpec, SharedPrefixSpec, TraceSpec, TrafficSpec,
};
use std::fmt::{Display, Write};

/// TOML text being written.
struct Writer {
    text: String,
}

/// Where the trace is named in the text: by path to run it, by content alone to hash it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TraceBy {
    PathAndContent,
    Content,
}

/// The whole resolved scenario.
pub(super) fn text(scenario: &Scenario) -> String {
    let mut w = Writer { text: String::new() };
    let version = env!("CARGO_PKG_VERSION");
    w.line(format_args!("# Resolved by fleetcast {version}: every default made explicit."));
    body(&mut w, scenario, TraceBy::PathAndContent);
    w.header("[output]");
    let every = scenario.output.sample_every.map_or(NEVER.to_owned(), span);
    w.string("sample_every", &every);
    w.string("requests", scenario.output.requests.name());
    w.text
}

/// What the hash is taken of: no output options, and no place of a file.
pub(super) fn hashed_text(scenario: &Scenario) -> String {
    let mut w = Writer { text: String::new() };
    body(&mut w, scenario, TraceBy::Content);
    w.text
}

/// A profile by itself, without its hash; what the hash of an embedded profile is taken of.
pub(super) fn profile_text(profile: &Profile) -> String {
    let mut w = Writer { text: String::new() };
    w.profile_head(profile);
    w.profile_tables("", profile);
    w.text
}

fn body(w: &mut Writer, scenario: &Scenario, trace: TraceBy) {
    let config = &scenario.config;
    w.string("name", &scenario.name);
    if let Some(description) = &scenario.description {
        w.string("description", description);
    }
    w.value("seed", config.seed);
    w.header("[run]");
    if let Some(horizon) = config.horizon {
        w.span("horizon", Span(horizon.0));
    }
    w.span("warm_up", Span(config.warm_up.0));
    if let Some(limit) = config.drain_limit {
        w.span("drain_limit", limit);
    }
    w.value("replications", scenario.replications);
    for (pool, setup) in config.pools.iter().zip(&scenario.pools) {
        w.pool(pool, setup);
    }
    w.router(&config.router, config.scrape_every);
    w.traffic(&scenario.traffic, scenario.trace_sha256.as_deref(), trace);
    if !scenario.slo.is_empty() {
        w.header("[slo]");
        for term in &scenario.slo {
            w.span(&quoted(&term.name), term.limit);
        }
    }
    for ProfileUse { profile, .. } in &scenario.profiles {
        w.header("[[profile]]");
        w.profile_head(profile);
        w.string("sha256", &profile.sha256);
        w.profile_tables("profile.", profile);
    }
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A float that reads back to the same bits, always written as a float.
fn float(x: f64) -> String {
    format!("{x:?}")
}

fn array<T>(items: &[T], show: impl Fn(&T) -> String) -> String {
    let items: Vec<String> = items.iter().map(show).collect();
    format!("[{}]", items.join(", "))
}

impl Writer {
    fn line(&mut self, line: impl Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{line}");
    }

    fn header(&mut self, header: &str) {
        self.line(format_args!("\n{header}"));
    }

    fn value(&mut self, key: &str, value: impl Display) {
        self.line(format_args!("{key} = {value}"));
    }

    fn string(&mut self, key: &str, text: &str) {
        self.value(key, quoted(text));
    }

    fn float(&mut self, key: &str, x: f64) {
        self.value(key, float(x));
    }

    fn span(&mut self, key: &str, length: Span) {
        self.string(key, &span(length));
    }

    fn pool(&mut self, pool: &PoolConfig, setup: &PoolSetup) {
        self.header("[[pool]]");
        self.string("name", &pool.name);
        self.string("instance_type", &pool.instance_type);
        self.value("instances", pool.instances);
        if let Some(model) = &setup.model {
            self.string("model", model);
        }
        self.value("tensor_parallel_size", setup.tensor_parallel_size);
        self.value("replicas_per_instance", pool.replicas_per_instance);
        if let Some(profile) = &setup.profile {
            self.string("profile", profile);
        }
        self.span("routing_latency", pool.routing_latency);
        self.span("frontend_latency", pool.frontend_latency);
        self.float("price_usd_per_hour", pool.price_usd_per_hour);
        self.engine(pool, setup);
        if setup.profile.is_none() {
            self.header("[pool.step_time]");
            self.coefficients(&setup.step_time);
        }
    }

    fn engine(&mut self, pool: &PoolConfig, setup: &PoolSetup) {
        let engine = &pool.engine;
        self.header("[pool.engine]");
        self.string("version", &setup.engine_version);
        self.value("max_num_seqs", engine.max_num_seqs);
        if let Some(seqs) = engine.max_num_active_seqs {
            self.value("max_num_active_seqs", seqs);
        }
        self.value("max_num_batched_tokens", engine.max_num_batched_tokens);
        if let Some(tokens) = engine.max_num_scheduled_tokens {
            self.value("max_num_scheduled_tokens", tokens);
        }
        self.value("max_model_len", engine.max_model_len);
        self.value("block_size", engine.block_size);
        self.value("num_gpu_blocks", engine.num_gpu_blocks);
        self.string("num_gpu_blocks_from", setup.blocks_from.name());
        self.float("gpu_memory_utilization", setup.gpu_memory_utilization);
        self.string("kv_cache_dtype", setup.kv_cache_dtype.name());
        self.value("enable_prefix_caching", engine.enable_prefix_caching);
        self.value("enable_chunked_prefill", engine.enable_chunked_prefill);
        self.string(
            "scheduling_policy",
            match engine.policy {
                SchedulingPolicy::Fcfs => "fcfs",
                SchedulingPolicy::Priority => "priority",
            },
        );
        self.float("watermark", engine.watermark);
        self.value("scheduler_reserve_full_isl", engine.scheduler_reserve_full_isl);
        self.value("long_prefill_token_threshold", engine.long_prefill_token_threshold);
        self.value(
            "long_prefill_token_threshold_adaptive",
            engine.long_prefill_token_threshold_adaptive,
        );
        self.value("async_scheduling", engine.async_scheduling);
    }

    fn coefficients(&mut self, c: &Coefficients) {
        self.float("fixed_s", c.fixed_s);
        if !c.tokens_table.is_empty() {
            let point =
                |p: &crate::latency::TablePoint| format!("[{}, {}]", p.tokens, float(p.seconds));
            self.value("tokens_table", array(&c.tokens_table, point));
        }
        self.float("per_prefill_token_s", c.per_prefill_token_s);
        self.float("per_prefill_seq_s", c.per_prefill_seq_s);
        self.float("per_decode_seq_s", c.per_decode_seq_s);
        self.float("per_kv_token_s", c.per_kv_token_s);
        self.float("per_prefill_attention_s", c.per_prefill_attention_s);
        if !c.graph_sizes.is_empty() {
            self.value("graph_sizes", array(&c.graph_sizes, u32::to_string));
        }
    }

    fn profile_head(&mut self, p: &Profile) {
        self.string("name", &p.name);
        if let Some(description) = &p.description {
            self.string("description", description);
        }
        self.string("model", &p.model);
        self.string("gpu", &p.gpu);
        self.value("tensor_parallel_size", p.tensor_parallel_size);
        let flags = array(&p.engine.flags, |flag| quoted(flag));
        let (name, version) = (quoted(&p.engine.name), quoted(&p.engine.version));
        self.value("engine", format!("{{ name = {name}, version = {version}, flags = {flags} }}"));
        self.span("frontend_latency", p.frontend_latency);
    }

    fn profile_tables(&mut self, prefix: &str, p: &Profile) {
        self.header(&format!("[{prefix}step_time]"));
        self.coefficients(&p.step_time);
        self.header(&format!("[{prefix}region]"));
        for (key, range) in [
            ("concurrency", p.region.concurrency),
            ("batch", p.region.batch),
            ("input_tokens", p.region.input_tokens),
            ("output_tokens", p.region.output_tokens),
            ("kv_usage", p.region.kv_usage),
        ] {
            if let Some(range) = range {
                self.value(key, array(&range, |x| float(*x)));
            }
        }
    }

    fn router(&mut self, router: &RouterConfig, scrape_every: Span) {
        match router {
            RouterConfig::Random => self.header("[router.random]"),
            RouterConfig::RoundRobin => self.header("[router.round-robin]"),
            RouterConfig::LeastOutstandingRequests => {
                self.header("[router.least-outstanding-requests]");
            }
            RouterConfig::PrefixAware { prefix_tokens, spill_over } => {
                self.header("[router.prefix-aware]");
                self.value("prefix_tokens", prefix_tokens);
                self.value("spill_over", spill_over);
            }
            RouterConfig::KvAware { prefix_weight, usage_weight, queue_weight } => {
                self.header("[router.kv-aware]");
                self.float("prefix_weight", *prefix_weight);
                self.float("usage_weight", *usage_weight);
                self.float("queue_weight", *queue_weight);
                self.span("scrape_every", scrape_every);
            }
        }
    }

    fn traffic(&mut self, traffic: &TrafficSpec, sha256: Option<&str>, by: TraceBy) {
        match traffic {
            TrafficSpec::Open { arrivals, requests, bodies } => {
                self.arrivals(arrivals);
                if let Some(requests) = requests {
                    self.value("requests", requests);
                }
                self.bodies(bodies);
            }
            TrafficSpec::Closed { concurrency, requests, think, bodies } => {
                self.header("[traffic.closed-loop]");
                self.value("concurrency", concurrency);
                self.value("requests", requests);
                self.span("think", *think);
                self.bodies(bodies);
            }
            TrafficSpec::Trace(trace) => self.trace(trace, sha256, by),
        }
    }

    fn trace(&mut self, trace: &TraceSpec, sha256: Option<&str>, by: TraceBy) {
        self.header("[traffic.trace]");
        if by == TraceBy::PathAndContent {
            self.string("path", &absolute(&trace.path).to_string_lossy());
        }
        if let Some(sha256) = sha256 {
            self.string("sha256", sha256);
        }
        if let Some(format) = trace.format {
            self.string("format", format.name());
        }
        if let Some(size) = trace.hash_block_size {
            self.value("hash_block_size", size);
        }
        self.float("speedup", trace.speedup);
        if let Some(limit) = trace.limit {
            self.value("limit", limit);
        }
    }

    fn arrivals(&mut self, arrivals: &ArrivalSpec) {
        match arrivals {
            ArrivalSpec::Constant { rate_rps } => {
                self.header("[traffic.constant]");
                self.float("rate_rps", *rate_rps);
            }
            ArrivalSpec::Poisson { rate_rps } => {
                self.header("[traffic.poisson]");
                self.float("rate_rps", *rate_rps);
            }
            ArrivalSpec::Gamma { rate_rps, cv } => {
                self.header("[traffic.gamma]");
                self.float("rate_rps", *rate_rps);
                self.float("cv", *cv);
            }
            ArrivalSpec::RateCurve { window, rates_rps, scale, repeat } => {
                self.header("[traffic.rate-curve]");
                self.span("window", *window);
                self.value("rates_rps", array(rates_rps, |x| float(*x)));
                self.float("scale", *scale);
                self.value("repeat", repeat);
            }
        }
    }

    fn bodies(&mut self, bodies: &BodySpec) {
        self.value("input_tokens", lengths(&bodies.input_tokens));
        self.value("output_tokens", lengths(&bodies.output_tokens));
        if let Some(SharedPrefixSpec { groups, tokens, zipf }) = &bodies.shared_prefix {
            let zipf = float(*zipf);
            self.value(
                "shared_prefix",
                format!("{{ groups = {groups}, tokens = {tokens}, zipf = {zipf} }}"),
            );
        }
    }
}

fn lengths(spec: &LengthSpec) -> String {
    match spec {
        LengthSpec::Fixed(n) => format!("{{ fixed = {n} }}"),
        LengthSpec::Uniform { min, max } => {
            format!("{{ uniform = {{ min = {min}, max = {max} }} }}")
        }
        LengthSpec::Normal { mean, sd, min, max } => format!(
            "{{ normal = {{ mean = {}, sd = {}, min = {min}, max = {max} }} }}",
            float(*mean),
            float(*sd)
        ),
        LengthSpec::LogNormal { median, sigma, min, max } => format!(
            "{{ log-normal = {{ median = {}, sigma = {}, min = {min}, max = {max} }} }}",
            float(*median),
            float(*sigma)
        ),
        LengthSpec::Quantiles { probabilities, tokens } => format!(
            "{{ quantiles = {{ probabilities = {}, tokens = {} }} }}",
            array(probabilities, |p| float(*p)),
            array(tokens, u32::to_string)
        ),
    }
}
