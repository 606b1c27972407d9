//! Scenario files from the outside: the shipped ones and the template load, the resolved text reads
//! back to the same scenario, every check has its message frozen, and no text makes it panic.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use fleetcast::scenario::{self, Checked, Diagnostics, Scenario};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")
}

/// A small, sound scenario for tests to spoil.
const SOUND: &str = r#"name = "toy"
[run]
horizon = "10m"
[[pool]]
name = "p5"
instance_type = "ml.p5.48xlarge"
instances = 1
model = "llama-3.1-8b"
[pool.engine]
max_model_len = 8192
num_gpu_blocks = 27000
[pool.step_time]
fixed_s = 0.006
per_prefill_token_s = 16e-6
per_decode_seq_s = 10e-6
per_kv_token_s = 39e-9
[traffic.poisson]
rate_rps = 20
input_tokens = 1024
output_tokens = { fixed = 256 }
"#;

fn check(text: &str) -> Checked {
    scenario::check_str("toy.toml", text, &folder(), &[])
}

fn load(text: &str) -> Result<Scenario, Diagnostics> {
    scenario::load_str("toy.toml", text, &folder(), &[])
}

fn set(key: &str, value: &str) -> Checked {
    let overrides = [(key.to_owned(), value.to_owned())];
    scenario::check_str("toy.toml", SOUND, &folder(), &overrides)
}

/// The findings, without the place of this checkout.
fn shown(checked: &Checked) -> String {
    checked.diagnostics.to_string().replace(env!("CARGO_MANIFEST_DIR"), "CHECKOUT")
}

/// The resolved text gives the same scenario, the same text and the same hash.
fn assert_round_trip(scenario: &Scenario) {
    let text = scenario.to_resolved_toml();
    let again = scenario::load_str("resolved.toml", &text, Path::new("/nowhere"), &[])
        .unwrap_or_else(|problems| panic!("{problems}\n{text}"));
    assert_eq!(again.to_resolved_toml(), text);
    assert_eq!(again.sha256(), scenario.sha256());
    let without_sources = |s: &Scenario| {
        let mut s = s.clone();
        for used in &mut s.profiles {
            used.profile.sources.clear();
            used.profile.points.clear();
        }
        s
    };
    let (mut first, mut second) = (without_sources(scenario), without_sources(&again));
    // Paths become absolute on the way; the hash above says that the content is the same.
    for s in [&mut first, &mut second] {
        if let fleetcast::workload::spec::TrafficSpec::Trace(trace) = &mut s.traffic {
            trace.path = std::path::absolute(&trace.path).unwrap();
        }
    }
    assert_eq!(first, second);
}

#[test]
fn a_sound_scenario_loads_with_the_defaults_of_the_release() {
    let scenario = load(SOUND).unwrap();
    let pool = &scenario.config.pools[0];
    assert_eq!(pool.replicas_per_instance, 8);
    assert_eq!(pool.price_usd_per_hour, 63.296);
    assert_eq!(pool.engine.max_num_seqs, 1024);
    assert_eq!(pool.engine.max_num_batched_tokens, 8192);
    assert!(pool.engine.async_scheduling && pool.engine.enable_prefix_caching);
    assert_eq!(scenario.pools[0].gpu_memory_utilization, 0.92);
    assert!(scenario.advice.is_empty(), "{:?}", scenario.advice);
    let small = load(&SOUND.replace("ml.p5.48xlarge", "g6.12xlarge")).unwrap();
    let engine = &small.config.pools[0].engine;
    assert_eq!((engine.max_num_seqs, engine.max_num_batched_tokens), (256, 2048));
    assert_eq!(small.config.pools[0].price_usd_per_hour, 4.6016);
}

#[test]
fn the_resolved_text_reads_back() {
    assert_round_trip(&load(SOUND).unwrap());
    insta::assert_snapshot!(
        "resolved",
        load(SOUND).unwrap().to_resolved_toml().replace(env!("CARGO_PKG_VERSION"), "VERSION",)
    );
}

#[test]
fn the_template_loads_without_advice_and_reads_back() {
    let scenario = load(scenario::init_template()).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(scenario.advice, []);
    assert_round_trip(&scenario);
}

#[test]
fn shipped_scenarios_load_and_read_back() {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "toml"))
        .collect();
    files.sort();
    assert!(files.len() >= 9, "{files:?}");
    let mut said = String::new();
    for file in files {
        let scenario = scenario::load(&file, &[]).unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!(Some(scenario.name.as_str()), file.file_stem().and_then(|s| s.to_str()));
        assert_round_trip(&scenario);
        said.push_str(&format!("{}\n", scenario.name));
        for advice in &scenario.advice {
            said.push_str(&format!("  {} {}: {}\n", advice.code, advice.key, advice.text));
        }
    }
    insta::assert_snapshot!("advice_on_shipped_scenarios", said);
}

#[test]
fn listings_cover_all_kinds() {
    use scenario::ListingKind::{Gpus, Instances, Models, Policies, Profiles};
    for kind in [Gpus, Instances, Models, Profiles, Policies] {
        let listing = scenario::listing(kind);
        assert!(!listing.rows.is_empty(), "{kind:?}");
        assert!(listing.rows.iter().all(|row| row.len() == listing.headers.len()), "{kind:?}");
    }
    assert_eq!(
        scenario::listing(Profiles).rows.len(),
        fleetcast::catalog::PROFILES.len(),
        "every shipped profile can be read"
    );
}

#[test]
fn every_kind_of_traffic_and_router_reads_back() {
    let head = &SOUND[..SOUND.find("[traffic").unwrap()];
    for traffic in [
        "[traffic.constant]\nrate_rps = 0.1\nrequests = 7\n",
        "[traffic.gamma]\nrate_rps = 3\ncv = 1.7\n",
        "[traffic.rate-curve]\nwindow = \"1m\"\nrates_rps = [1, 2.5, 0]\nscale = 3\n\
         repeat = true\n",
        "[traffic.closed-loop]\nconcurrency = 4\nrequests = 16\nthink_s = 0.1234567\n",
    ] {
        for lengths in [
            "{ uniform = { min = 1, max = 9 } }",
            "{ normal = { mean = 100.5, sd = 10, min = 1, max = 900 } }",
            "{ log-normal = { median = 1e2, sigma = 0.5, min = 1, max = 900 } }",
            "{ quantiles = { probabilities = [0, 0.3, 1], tokens = [1, 2, 30] } }",
        ] {
            let text = format!(
                "{head}{traffic}input_tokens = {lengths}\noutput_tokens = 3\n\
                 shared_prefix = {{ groups = 2, tokens = 1, zipf = 0.9 }}\n"
            );
            assert_round_trip(&load(&text).unwrap_or_else(|problems| panic!("{problems}")));
        }
    }
    for router in [
        "[router.random]",
        "[router.round-robin]",
        "[router.least-outstanding-requests]",
        "[router.prefix-aware]\nprefix_tokens = 64\nspill_over = 9",
        "[router.kv-aware]\nprefix_weight = 0.5\nscrape_every = \"250ms\"",
    ] {
        assert_round_trip(&load(&format!("{SOUND}{router}\n")).unwrap());
    }
}

#[test]
fn the_hash_follows_content_and_ignores_output() {
    let hash = |text: &str| load(text).unwrap().sha256();
    let plain = hash(SOUND);
    assert_eq!(plain, hash(&format!("{SOUND}[output]\nrequests = \"none\"\n")));
    assert_eq!(plain, hash(&SOUND.replace("horizon = \"10m\"", "horizon_s = 600")));
    assert_ne!(plain, hash(&SOUND.replace("rate_rps = 20", "rate_rps = 21")));
    assert_ne!(plain, hash(&format!("seed = 2\n{SOUND}")));
}

#[test]
fn overrides_reach_indices_names_and_new_keys() {
    for (key, value) in [
        ("pool.0.instances", "4"),
        ("pool.p5.instances", "4"),
        ("seed", "9"),
        ("run.replications", "3"),
        ("slo.\"ttft.p95\"", "1.5s"),
        ("slo.ttft.p95", "1.5s"),
        ("traffic.poisson.input_tokens", "{ fixed = 12 }"),
        ("output.requests", "none"),
    ] {
        let checked = set(key, value);
        let scenario = checked.scenario.unwrap_or_else(|| panic!("{}", checked.diagnostics));
        assert_round_trip(&scenario);
        assert_ne!(scenario.to_resolved_toml(), load(SOUND).unwrap().to_resolved_toml(), "{key}");
    }
    assert_eq!(set("pool.p5.instances", "4").scenario.unwrap().config.pools[0].instances, 4);
}

#[test]
fn goodput_takes_the_tightest_limit_of_each_latency() {
    let slo =
        "[slo]\nttft.p50 = \"500ms\"\nttft.p95 = \"2s\"\ne2e.mean = \"9s\"\nitl.p99 = \"1s\"\n";
    let scenario = load(&format!("{SOUND}{slo}")).unwrap();
    let limits = scenario.config.goodput;
    assert_eq!(limits.ttft.map(|s| s.seconds()), Some(0.5));
    assert_eq!(limits.e2e.map(|s| s.seconds()), Some(9.0));
    assert_eq!(limits.tpot, None);
    assert_eq!(scenario.slo.len(), 4);
}

/// Spoils one thing in the sound scenario and freezes what is said about it.
macro_rules! complaint {
    ($name:ident, $from:expr => $to:expr) => {
        #[test]
        fn $name() {
            assert!(SOUND.contains($from));
            let checked = check(&SOUND.replace($from, $to));
            assert!(!checked.diagnostics.is_empty());
            insta::assert_snapshot!(stringify!($name), shown(&checked));
        }
    };
}

complaint!(bad_toml, "rate_rps = 20" => "rate_rps = 20rps\nbroken = [1,");
complaint!(unknown_key, "instances = 1" => "instances = 1\nreplicas_per_instanse = 8");
complaint!(unknown_key_at_the_top, "name = \"toy\"" => "name = \"toy\"\nsede = 3");
complaint!(
    unknown_engine_key,
    "num_gpu_blocks = 27000" =>
        "num_gpu_blocks = 27000\nmax_num_sequences = 3"
);
complaint!(missing_name, "name = \"toy\"\n" => "");
complaint!(missing_pool_keys, "instance_type = \"ml.p5.48xlarge\"\ninstances = 1\n" => "");
complaint!(unknown_instance, "ml.p5.48xlarge" => "ml.p5.46xlarge");
complaint!(unknown_model, "llama-3.1-8b" => "lama-3.1-8b");
complaint!(no_price, "ml.p5.48xlarge" => "p5e.48xlarge");
complaint!(zero_instances, "instances = 1" => "instances = 0");
complaint!(negative_instances, "instances = 1" => "instances = -3");
complaint!(fractional_instances, "instances = 1" => "instances = 1.5");
complaint!(enormous_instances, "instances = 1" => "instances = 99999999999999999999999999");
complaint!(nan_rate, "rate_rps = 20" => "rate_rps = nan");
complaint!(infinite_rate, "rate_rps = 20" => "rate_rps = inf");
complaint!(negative_rate, "rate_rps = 20" => "rate_rps = -20.0");
complaint!(zero_rate, "rate_rps = 20" => "rate_rps = 0");
complaint!(rate_as_text, "rate_rps = 20" => "rate_rps = \"20/s\"");
complaint!(duration_without_unit, "\"10m\"" => "600");
complaint!(duration_with_unknown_unit, "\"10m\"" => "\"10 mins\"");
complaint!(duration_beyond_the_clock, "\"10m\"" => "\"214d\"");
complaint!(duration_negative, "\"10m\"" => "\"-5m\"");
complaint!(duration_zero, "\"10m\"" => "\"0s\"");
complaint!(duration_twice, "horizon = \"10m\"" => "horizon = \"10m\"\nhorizon_s = 600");
complaint!(seconds_beyond_the_clock, "horizon = \"10m\"" => "horizon_s = 1e30");
complaint!(warm_up_too_long, "horizon = \"10m\"" => "horizon = \"10m\"\nwarm_up = \"10m\"");
complaint!(no_end, "horizon = \"10m\"" => "");
complaint!(
    too_many_gpus,
    "model =" =>
        "tensor_parallel_size = 2\nreplicas_per_instance = 8\n\
         model ="
);
complaint!(
    tensor_parallel_beyond_gpus,
    "ml.p5.48xlarge\"" =>
        "g6.xlarge\"\ntensor_parallel_size = 4"
);
complaint!(uneven_heads, "model =" => "tensor_parallel_size = 3\nmodel =");
complaint!(unknown_profile, "model =" => "profile = \"llama-3-8b-h10\"\nmodel =");
complaint!(profile_file_missing, "model =" => "profile = \"no/such.toml\"\nmodel =");
complaint!(
    no_step_time,
    "[pool.step_time]\nfixed_s = 0.006\nper_prefill_token_s = 16e-6\n\
     per_decode_seq_s = 10e-6\nper_kv_token_s = 39e-9\n" =>
        ""
);
complaint!(
    free_steps,
    "fixed_s = 0.006\nper_prefill_token_s = 16e-6\n\
     per_decode_seq_s = 10e-6\nper_kv_token_s = 39e-9" =>
        "fixed_s = 0"
);
complaint!(
    falling_table,
    "fixed_s = 0.006" =>
        "fixed_s = 0.006\ntokens_table = [[8, 0.01], [4, 0.02]]"
);
complaint!(malformed_table, "fixed_s = 0.006" => "fixed_s = 0.006\ntokens_table = [[8, 0.01, 3]]");
complaint!(other_version, "max_model_len = 8192" => "max_model_len = 8192\nversion = \"0.11.0\"");
complaint!(
    not_simulated,
    "max_model_len = 8192" =>
        "max_model_len = 8192\nspeculative_config = { method = \"eagle\" }"
);
complaint!(
    fewer_tokens_than_seqs,
    "max_model_len = 8192" =>
        "max_model_len = 8192\nmax_num_batched_tokens = 64\n\
         max_num_seqs = 128"
);
complaint!(
    unchunked_step_too_small,
    "max_model_len = 8192" =>
        "max_model_len = 8192\nenable_chunked_prefill = false\n\
         max_num_batched_tokens = 4096"
);
complaint!(kv_pool_too_small, "num_gpu_blocks = 27000" => "num_gpu_blocks = 400");
complaint!(kv_derived, "num_gpu_blocks = 27000" => "");
complaint!(
    context_too_long_for_the_gpu,
    "ml.p5.48xlarge\"\ninstances = 1\nmodel = \"llama-3.1-8b\"\n\
     [pool.engine]\nmax_model_len = 8192\nnum_gpu_blocks = 27000" =>
        "ml.g6.xlarge\"\ninstances = 1\nmodel = \"llama-3.1-8b\"\n\
         [pool.engine]"
);
complaint!(
    model_does_not_fit,
    "model = \"llama-3.1-8b\"\n[pool.engine]\n\
     max_model_len = 8192\nnum_gpu_blocks = 27000" =>
        "model = \"llama-3.3-70b\"\n[pool.engine]\n\
         max_model_len = 8192"
);
complaint!(
    no_model_and_no_blocks,
    "model = \"llama-3.1-8b\"\n[pool.engine]\n\
     max_model_len = 8192\nnum_gpu_blocks = 27000" =>
        ""
);
complaint!(
    bad_choice,
    "max_model_len = 8192" =>
        "max_model_len = 8192\nscheduling_policy = \"fifo\""
);
complaint!(
    no_traffic,
    "[traffic.poisson]\nrate_rps = 20\ninput_tokens = 1024\n\
     output_tokens = { fixed = 256 }\n" =>
        ""
);
complaint!(unknown_traffic, "traffic.poisson" => "traffic.poison");
complaint!(
    two_traffics,
    "[traffic.poisson]" =>
        "[traffic.constant]\nrate_rps = 1\n[traffic.poisson]"
);
complaint!(unknown_router, "[traffic.poisson]" => "[router.least-outstanding]\n[traffic.poisson]");
complaint!(no_lengths, "input_tokens = 1024" => "");
complaint!(unknown_lengths, "{ fixed = 256 }" => "{ lognormal = { median = 3 } }");
complaint!(reversed_range, "{ fixed = 256 }" => "{ uniform = { min = 9, max = 3 } }");
complaint!(
    broken_quantiles,
    "{ fixed = 256 }" =>
        "{ quantiles = { probabilities = [0, 0.5, 0.9], tokens = [1, 2, 3] } }"
);
complaint!(
    uneven_quantiles,
    "{ fixed = 256 }" =>
        "{ quantiles = { probabilities = [0, 1], tokens = [1, 2, 3] } }"
);
complaint!(
    empty_rate_curve,
    "traffic.poisson]\nrate_rps = 20" =>
        "traffic.rate-curve]\nwindow = \"1m\"\nrates_rps = [0, 0]"
);
complaint!(
    rate_curve_too_short,
    "traffic.poisson]\nrate_rps = 20" =>
        "traffic.rate-curve]\nwindow = \"1m\"\nrates_rps = [3, 5]"
);
complaint!(
    closed_loop_never_full,
    "traffic.poisson]\nrate_rps = 20" =>
        "traffic.closed-loop]\nconcurrency = 64\nrequests = 32"
);
complaint!(
    trace_missing,
    "[traffic.poisson]\nrate_rps = 20\ninput_tokens = 1024\n\
     output_tokens = { fixed = 256 }" =>
        "[traffic.trace]\npath = \"data/tiny-trase.csv\""
);
complaint!(
    trace_changed,
    "[traffic.poisson]\nrate_rps = 20\ninput_tokens = 1024\n\
     output_tokens = { fixed = 256 }" =>
        "[traffic.trace]\npath = \"data/tiny-trace.csv\"\n\
         sha256 = \"0\""
);
complaint!(prompts_too_long, "input_tokens = 1024" => "input_tokens = 9000");
complaint!(
    some_prompts_too_long,
    "input_tokens = 1024" =>
        "input_tokens = { uniform = { min = 100, max = 9000 } }"
);
complaint!(answers_cut, "input_tokens = 1024" => "input_tokens = 8000");
complaint!(
    prefix_covers_all,
    "input_tokens = 1024" =>
        "input_tokens = 1024\nshared_prefix = { groups = 3, tokens = 2048 }"
);
complaint!(
    router_without_cache,
    "num_gpu_blocks = 27000" =>
        "num_gpu_blocks = 27000\nenable_prefix_caching = false\n\
         [router.prefix-aware]"
);
complaint!(
    slo_below_service_time,
    "[traffic.poisson]" =>
        "[slo]\nttft.p95 = \"10ms\"\ne2e.p99 = \"1s\"\n\
         [traffic.poisson]"
);
complaint!(
    slo_unknown,
    "[traffic.poisson]" =>
        "[slo]\n\"ttft.95\" = \"1s\"\n\"throughput.mean\" = \"1s\"\n\
         [traffic.poisson]"
);
complaint!(
    slo_twice,
    "[traffic.poisson]" =>
        "[slo]\n\"ttft.p95\" = \"1s\"\nttft.p95 = \"2s\"\n\
         [traffic.poisson]"
);
complaint!(
    sampling_too_fine,
    "[traffic.poisson]" =>
        "[output]\nsample_every = \"1us\"\n[traffic.poisson]"
);

complaint!(pinned_far_above_the_estimate, "num_gpu_blocks = 27000" => "num_gpu_blocks = 40000");
complaint!(
    trace_of_another_format,
    "[traffic.poisson]\nrate_rps = 20\ninput_tokens = 1024\n\
     output_tokens = { fixed = 256 }" =>
        "[traffic.trace]\npath = \"data/tiny-trace.csv\"\n\
         format = \"mooncake-jsonl\""
);

#[test]
fn no_pools() {
    let end = SOUND.find("[run]").unwrap();
    let traffic = &SOUND[SOUND.find("[traffic").unwrap()..];
    let text = format!("{}pool = []\n[run]\nhorizon = \"1m\"\n{traffic}", &SOUND[..end]);
    insta::assert_snapshot!(check(&text).diagnostics.to_string());
}

#[test]
fn duplicate_pools() {
    let at = SOUND.find("[[pool]]").unwrap();
    let end = SOUND.find("[traffic").unwrap();
    let text = format!("{}{}{}", &SOUND[..end], &SOUND[at..end], &SOUND[end..]);
    insta::assert_snapshot!(check(&text).diagnostics.to_string());
}

const PROFILE: &str = r#"[[profile]]
name = "mine"
model = "qwen3-8b"
gpu = "l4"
tensor_parallel_size = 2
engine = { name = "vllm", version = "0.32.0" }
[profile.step_time]
fixed_s = 0.01
[profile.region]
input_tokens = [16, 512]
"#;

fn with_profile(profile: &str) -> String {
    let start = SOUND.find("[pool.step_time]").unwrap();
    let end = SOUND.find("[traffic").unwrap();
    let pool = SOUND[..start].replace("model =", "profile = \"mine\"\nmodel =");
    format!("{pool}{}{profile}", &SOUND[end..])
}

#[test]
fn profile_mismatch() {
    insta::assert_snapshot!(check(&with_profile(PROFILE)).diagnostics.to_string());
}

#[test]
fn a_profile_that_fits_is_used_and_its_region_compared() {
    let fitting = PROFILE.replace("\"l4\"", "\"h100\"").replace("size = 2", "size = 1");
    let scenario = load(&with_profile(&fitting)).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(scenario.profiles.len(), 1);
    assert!(!scenario.profiles[0].in_calibrated_range);
    let codes: Vec<&str> = scenario.advice.iter().map(|a| a.code).collect();
    assert_eq!(codes, ["profile-model", "extrapolated-lengths"]);
    assert_round_trip(&scenario);
    let wide = fitting.replace("[16, 512]", "[16, 4096]");
    assert!(load(&with_profile(&wide)).unwrap().profiles[0].in_calibrated_range);
}

#[test]
fn all_problems_of_a_file_are_shown_together() {
    let text = SOUND
        .replace("horizon = \"10m\"", "horizon = 600")
        .replace("instances = 1", "instances = 0")
        .replace("rate_rps = 20", "rate_rps = nan")
        .replace("fixed_s = 0.006", "fixed = 0.006");
    let checked = check(&text);
    assert_eq!(checked.diagnostics.errors(), 4, "{}", checked.diagnostics);
    insta::assert_snapshot!(checked.diagnostics.to_string());
}

#[test]
fn overrides_are_named_in_messages() {
    let overrides: Vec<(String, String)> = [
        ("pool.p6.instances", "4"),
        ("pool.7.instances", "4"),
        ("pool.0.instances", "many"),
        ("pool.0.instance", "4"),
        ("name.x", "4"),
        ("pool..x", "4"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .to_vec();
    let checked = scenario::check_str("toy.toml", SOUND, &folder(), &overrides);
    insta::assert_snapshot!(checked.diagnostics.to_string());
}

#[test]
fn a_scenario_needs_no_model_when_blocks_and_step_times_are_given() {
    let text = SOUND.replace("model = \"llama-3.1-8b\"\n", "");
    let scenario = load(&text).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!((&scenario.pools[0].model, &scenario.pools[0].memory), (&None, &None));
    assert_round_trip(&scenario);
}

#[test]
fn a_missing_file_is_said_to_be_missing() {
    let problems = scenario::load(Path::new("no/such.toml"), &[]).unwrap_err();
    assert_eq!(problems.errors(), 1);
    assert!(problems.to_string().contains("no/such.toml"));
}

#[test]
fn rendering_in_colour_says_the_same() {
    let diagnostics = check(&SOUND.replace("instances = 1", "instances = 0")).diagnostics;
    let plain = diagnostics.render(false);
    let mut stripped = String::new();
    let mut escape = false;
    for c in diagnostics.render(true).chars() {
        match (escape, c) {
            (false, '\u{1b}') => escape = true,
            (true, 'm') => escape = false,
            (true, _) => {}
            (false, c) => stripped.push(c),
        }
    }
    assert_eq!(plain, stripped);
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        /// Whatever the text, there is an answer.
        #[test]
        fn arbitrary_text_never_panics(text in "\\PC{0,200}") {
            let _ = check(&text).diagnostics.to_string();
        }

        /// Whatever the text of a profile, there is an answer.
        #[test]
        fn arbitrary_profiles_never_panic(text in "[ -~\n]{0,200}") {
            let _ = scenario::profile::parse("any.toml", &text).map_err(|p| p.to_string());
        }

        /// A sound scenario with one line replaced by anything gives an answer too.
        #[test]
        fn a_spoiled_line_never_panics(line in 0usize..21, text in "[ -~]{0,40}") {
            let mut lines: Vec<&str> = SOUND.lines().collect();
            let at = line.min(lines.len() - 1);
            lines[at] = &text;
            let checked = check(&lines.join("\n"));
            let _ = checked.diagnostics.to_string();
            if let Some(scenario) = checked.scenario {
                assert_round_trip(&scenario);
            }
        }

        /// Any value under any known key gives an answer.
        #[test]
        fn any_value_under_any_key_never_panics(
            key in prop::sample::select(vec![
                "name", "seed", "run.horizon", "run.warm_up", "pool", "pool.0.engine",
                "pool.0.engine.block_size", "pool.0.engine.max_model_len", "pool.0.instances",
                "pool.0.engine.num_gpu_blocks", "pool.0.tensor_parallel_size", "pool.0.profile",
                "pool.0.step_time.fixed_s", "pool.0.step_time.tokens_table", "traffic",
                "traffic.poisson.input_tokens", "traffic.poisson.rate_rps", "slo", "slo.ttft",
                "pool.0.engine.gpu_memory_utilization", "pool.0.engine.max_num_batched_tokens",
                "pool.0.engine.max_num_seqs", "output", "router", "profile",
            ]),
            value in prop::sample::select(vec![
                "0", "1", "-1", "1e300", "nan", "-inf", "true", "\"\"", "[]", "[[]]", "{}",
                "4294967295", "9223372036854775807", "\"1s\"", "1979-05-27", "[{}]", "é",
                "16777216",
                "{ quantiles = { probabilities = [0, 1], tokens = [0, 0] } }",
            ]),
        ) {
            let checked = set(key, value);
            let _ = checked.diagnostics.to_string();
            if let Some(scenario) = checked.scenario {
                assert_round_trip(&scenario);
            }
        }
    }
}

/// The only finding's code, and all text.
fn refusal(checked: &Checked) -> (String, String) {
    let codes: Vec<&str> = checked.diagnostics.problems().iter().map(|p| p.code).collect();
    assert_eq!(codes.len(), 1, "{}", checked.diagnostics);
    (codes[0].to_owned(), shown(checked))
}

#[test]
fn what_would_only_fail_or_hang_in_the_run_is_found_by_check() {
    let lengths = "input_tokens = 5, output_tokens = 5";
    for (key, value, code) in [
        ("router", "{ kv-aware = { scrape_every = \"1ps\" } }".to_owned(), "bad-value"),
        ("run.replications", "10001".to_owned(), "bad-value"),
        ("pool.0.step_time.per_decode_seq_s", "18".to_owned(), "bad-value"),
        ("pool.0.step_time", "{ fixed_s = 1e-30 }".to_owned(), "free-steps"),
        (
            "traffic",
            format!(
                "{{ rate-curve = {{ window = \"1s\", rates_rps = [1e6], scale = 1e6, repeat = \
                 true, {lengths} }} }}"
            ),
            "bad-traffic",
        ),
        (
            "traffic.poisson.shared_prefix",
            "{ groups = 100000000, tokens = 5 }".to_owned(),
            "bad-value",
        ),
    ] {
        let (found, text) = refusal(&set(key, &value));
        assert_eq!(found, code, "{text}");
    }
    let pool = &SOUND[SOUND.find("[[pool]]").unwrap()..SOUND.find("[traffic").unwrap()];
    let fleet = SOUND.replace("instances = 1\n", "instances = 100000\n")
        + &pool.replace("\"p5\"", "\"q\"").replace("instances = 1\n", "instances = 99999\n");
    let (code, text) = refusal(&check(&fleet));
    assert_eq!(code, "too-many-replicas", "{text}");
}

#[test]
fn an_override_may_give_seconds_where_the_file_gives_a_text() {
    let scenario = set("run.horizon_s", "20").scenario.unwrap();
    assert_eq!(scenario.config.horizon.unwrap().seconds(), 20.0);
    let twice = SOUND.replace("horizon = \"10m\"", "horizon = \"10m\"\nhorizon_s = 600");
    assert_eq!(refusal(&check(&twice)).0, "contradiction");
}

#[test]
fn a_percentile_with_a_point_and_no_quotes_says_how_to_write_it() {
    let text = refusal(&check(&format!("{SOUND}[slo]\nttft.p99.9 = \"1s\"\n"))).1;
    assert!(text.contains("write \"ttft.p99.9\" = \"1s\""), "{text}");
}

#[test]
fn a_limit_on_gaps_says_that_goodput_does_not_look_at_it() {
    let scenario = load(&format!("{SOUND}[slo]\nitl.p99 = \"1s\"\n")).unwrap();
    assert_eq!(scenario.advice[0].code, "goodput-without-itl");
}

#[test]
fn thousands_of_slips_are_shown_in_part_and_counted_in_full() {
    let keys: String = (0..20_000).map(|i| format!("k{i} = {i}\n")).collect();
    let checked = check(&format!("{SOUND}{keys}"));
    assert_eq!(checked.diagnostics.errors(), 20_000);
    let text = checked.diagnostics.to_string();
    assert_eq!(text.matches("unknown key").count(), 200);
    assert!(text.ends_with("and 19800 more\n\n"), "{}", &text[text.len() - 300..]);
    let last = checked.diagnostics.problems().last().unwrap();
    let at = checked.diagnostics.location(last).unwrap();
    assert_eq!((at.file, at.line, at.column), ("toy.toml", SOUND.lines().count() + 20_000, 1));
    let slo: String = (0..20_000).map(|i| format!("\"ttft.p0.{i:05}1\" = \"1s\"\n")).collect();
    assert_eq!(refusal(&check(&format!("{SOUND}[slo]\n{slo}"))).0, "too-many-terms");
    let pools = "[[pool]]\n".repeat(20_000);
    let pools = check(&format!("name = \"many\"\n{pools}{}", traffic_part()));
    assert_eq!(refusal(&pools).0, "too-many-pools");
}

fn traffic_part() -> String {
    format!("{}\n[run]\nhorizon = \"1m\"\n", &SOUND[SOUND.find("[traffic").unwrap()..])
}

#[test]
fn a_trace_whose_first_row_cannot_be_replayed_is_found_by_check() {
    let dir = tempfile::tempdir().unwrap();
    let row = r#"{"timestamp":0,"input_length":600,"output_length":5,"hash_ids":[1,2]}"#;
    std::fs::write(dir.path().join("t.jsonl"), row).unwrap();
    let head = &SOUND[..SOUND.find("[traffic").unwrap()];
    let text = format!("{head}[traffic.trace]\npath = \"t.jsonl\"\n");
    let (code, text) = refusal(&scenario::check_str("toy.toml", &text, dir.path(), &[]));
    assert_eq!(code, "trace-unreadable");
    assert!(text.contains("t.jsonl:1: ") && text.contains("give `hash_block_size`"), "{text}");
}

#[cfg(unix)]
#[test]
fn a_device_is_no_trace_and_no_endless_scenario() {
    let head = &SOUND[..SOUND.find("[traffic").unwrap()];
    let (_, text) = refusal(&check(&format!("{head}[traffic.trace]\npath = \"/dev/zero\"\n")));
    assert!(text.contains("not a regular file"), "{text}");
    let (code, text) = refusal(&scenario::check(Path::new("/dev/zero"), &[]));
    assert_eq!(code, "scenario-unreadable");
    assert!(text.contains("longer than 16 MiB"), "{text}");
}

#[test]
fn a_step_too_short_for_whole_prompts_is_told_before_the_run_stalls() {
    let text = SOUND.replace(
        "max_model_len = 8192",
        "max_model_len = 8192\nenable_chunked_prefill = false\nmax_num_scheduled_tokens = 64",
    );
    assert_eq!(load(&text).unwrap().advice[0].code, "unscheduled-prompts");
}
