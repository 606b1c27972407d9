//! Scenario files: from TOML text to checked, plain data for the other rooms, with every problem of
//! a file shown at once. The only room that knows the vocabulary of scenarios and profiles; reads
//! the scenario, the profiles and (for its hash) the trace that it names, and writes nothing.

mod checks;
mod duration;
mod engine;
mod memory;
mod method;
mod pool;
pub mod problem;
pub mod profile;
mod profiles;
mod read;
mod resolved;
mod router;
mod template;
pub mod text;
mod traffic;
mod tree;

pub use engine::BlocksFrom;
pub use memory::{GraphMemory, KvCacheDtype, MemoryBudget, MemoryInputs};
pub use method::{
    LatencyMetric, LatencyStat, OutputOptions, REPLICATIONS_MAX, RequestsFile, SloTerm,
};
pub use pool::PoolSetup;
pub use problem::{Diagnostics, Severity};
pub use profile::{Profile, Region};
pub use template::init_template;

use crate::catalog::{self, Listing};
use crate::sim::config::SimConfig;
use crate::workload::spec::TrafficSpec;
use method::RunSection;
use pool::PoolSection;
use problem::{Problem, Problems, Source};
use profiles::ProfileShelf;
use read::Reader;
use std::io::ErrorKind;
use std::path::Path;
use text::TextError;

/// Most pools of a scenario.
const POOLS_MAX: usize = 1_000;
/// Largest seed: what a TOML integer holds.
const SEED_MAX: u64 = i64::MAX as u64;

/// A scenario, checked and with every default made explicit.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Its name in results.
    pub name: String,
    /// What it is about.
    pub description: Option<String>,
    /// The fleet, its router and the method of one run.
    pub config: SimConfig,
    /// What arrives.
    pub traffic: TrafficSpec,
    /// SHA-256 of the trace file in hex, for trace traffic.
    pub trace_sha256: Option<String>,
    /// Independent runs, each with its own seed.
    pub replications: u32,
    /// What counts as good; empty without an SLO.
    pub slo: Vec<SloTerm>,
    /// What `run --out` writes.
    pub output: OutputOptions,
    /// What each pool was resolved from, in the order of `config.pools`.
    pub pools: Vec<PoolSetup>,
    /// Profiles in use, in order of first use.
    pub profiles: Vec<ProfileUse>,
    /// What the reader should know.
    pub advice: Vec<Advice>,
}

/// A profile in use.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileUse {
    /// The profile; sources and points are only there when it was read from its file.
    pub profile: Profile,
    /// The traffic lies inside the region that the profile covers, as far as the scenario tells;
    /// the run knows more.
    pub in_calibrated_range: bool,
}

/// A piece of advice in words that do not depend on the file's lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// Short name in kebab case.
    pub code: &'static str,
    /// Dotted path of the key.
    pub key: String,
    /// What is so.
    pub text: String,
    /// What to do about it.
    pub next: String,
}

/// A scenario and all that was found about it.
#[derive(Debug, Clone)]
pub struct Checked {
    /// The scenario; `None` when there are errors.
    pub scenario: Option<Scenario>,
    /// Errors and advice with file, line and caret.
    pub diagnostics: Diagnostics,
}

impl Scenario {
    /// The scenario as TOML with every default explicit; reading it gives this scenario again,
    /// from any folder and without looking anything up but the trace.
    #[must_use]
    pub fn to_resolved_toml(&self) -> String {
        resolved::text(self)
    }

    /// SHA-256 in hex of the resolved scenario without its output options; a trace and profiles
    /// enter by the hash of their content.
    #[must_use]
    pub fn sha256(&self) -> String {
        profile::sha256_hex(resolved::hashed_text(self).as_bytes())
    }
}

/// Reads and checks a scenario file. `overrides` are dotted keys and values laid over the file, as
/// in `--set pool.0.instances=4`; `--seed` and `--replications` are `seed` and
/// `run.replications`.
///
/// # Errors
/// All problems together; advice alone is no error and stands in [`Scenario::advice`].
pub fn load(path: &Path, overrides: &[(String, String)]) -> Result<Scenario, Diagnostics> {
    into_result(check(path, overrides))
}

/// Reads and checks a text called `name` in messages, whose relative paths start at `folder`.
///
/// # Errors
/// See [`load`].
pub fn load_str(
    name: &str,
    text: &str,
    folder: &Path,
    overrides: &[(String, String)],
) -> Result<Scenario, Diagnostics> {
    into_result(check_str(name, text, folder, overrides))
}

fn into_result(checked: Checked) -> Result<Scenario, Diagnostics> {
    checked.scenario.ok_or(checked.diagnostics)
}

/// As [`load`], and hands out the advice with its places too.
#[must_use]
pub fn check(path: &Path, overrides: &[(String, String)]) -> Checked {
    let name = path.display().to_string();
    let folder = path.parent().unwrap_or(Path::new(""));
    match text::read(path) {
        Ok(text) => check_str(&name, &text, folder, overrides),
        Err(error) => {
            let code = match &error {
                TextError::Io(io) if io.kind() == ErrorKind::NotFound => "scenario-missing",
                _ => "scenario-unreadable",
            };
            let problem = Problem::error(code, format!("cannot read {name}: {error}"))
                .help("`fleetcast init` writes a scenario to start from");
            let diagnostics = Diagnostics::new(Vec::new(), vec![problem]);
            Checked { scenario: None, diagnostics }
        }
    }
}

/// As [`load_str`], and hands out the advice with its places too.
#[must_use]
pub fn check_str(name: &str, text: &str, folder: &Path, overrides: &[(String, String)]) -> Checked {
    let problems = Problems::default();
    let mut sources = vec![Source { name: name.to_owned(), text: text.to_owned() }];
    let mut root = tree::parse(0, text, &problems);
    let mut shelf = ProfileShelf::new(folder, Vec::new());
    let mut scenario = None;
    // A file with syntax errors is only half read: more findings would mislead.
    if !problems.any_error() {
        for (key, value) in overrides {
            let source = u32::try_from(sources.len()).unwrap_or(u32::MAX);
            tree::set(&mut root, source, key, value, &problems);
            sources.push(Source { name: "--set".to_owned(), text: format!("{key}={value}") });
        }
        shelf.sources = sources;
        scenario = read_scenario(&root, folder, &mut shelf, &problems);
        sources = shelf.sources;
    }
    if problems.any_error() {
        scenario = None;
    }
    let diagnostics = Diagnostics::new(sources, problems.into_inner());
    if let Some(scenario) = &mut scenario {
        scenario.advice = diagnostics.problems().iter().map(advice_of).collect();
    }
    Checked { scenario, diagnostics }
}

fn advice_of(problem: &Problem) -> Advice {
    Advice {
        code: problem.code,
        key: problem.key.clone(),
        text: problem.title.clone(),
        next: problem.help.join("; "),
    }
}

fn read_scenario(
    root: &tree::Node,
    folder: &Path,
    shelf: &mut ProfileShelf,
    problems: &Problems,
) -> Option<Scenario> {
    let mut r = Reader::root(root, problems)?;
    let name = profile::required_text(&mut r, "name", "name = \"chat-peak\"");
    let description = r.text("description").map(|found| found.value.to_owned());
    let seed = r.integer("seed", 0..=SEED_MAX).map_or(1, |found| found.value);
    shelf.take_embedded(&mut r);
    let run = method::read_run(&mut r);
    let pools = read_pools(&mut r, shelf);
    let routing = router::read(&mut r);
    let traffic = traffic::read(&mut r, folder);
    let slo = method::read_slo(&mut r);
    let output = method::read_output(&mut r);
    r.finish();
    let (pools, traffic, routing) = (pools?, traffic?, routing?);
    let parts = checks::Parts {
        run: &run,
        pools: &pools,
        traffic: &traffic,
        slo: &slo,
        sample_every: output.sample_every,
    };
    checks::check(&parts, &routing.router, problems);
    let profiles = profiles_in_use(&pools, shelf, &parts, problems);
    let slo: Vec<SloTerm> = slo.into_iter().map(|(term, _)| term).collect();
    let RunSection { horizon, warm_up, drain_limit, replications, .. } = run;
    let (configs, setups) = pools.into_iter().map(|pool| (pool.config, pool.setup)).unzip();
    Some(Scenario {
        name: name?,
        description,
        config: SimConfig {
            seed,
            horizon,
            warm_up,
            drain_limit,
            sample_every: output.sample_every,
            scrape_every: routing.scrape_every,
            pools: configs,
            router: routing.router,
            goodput: method::goodput_limits(&slo),
        },
        traffic: traffic.spec,
        trace_sha256: traffic.trace_sha256,
        replications,
        slo,
        output,
        pools: setups,
        profiles,
        advice: Vec::new(),
    })
}

/// All pools, or `None` when one of them is wrong.
fn read_pools(r: &mut Reader<'_>, shelf: &mut ProfileShelf) -> Option<Vec<PoolSection>> {
    let before = r.problems().count();
    let readers = r.tables("pool");
    if readers.is_empty() {
        if !r.has("pool") {
            r.missing("pool", "[[pool]] with name, instance_type and instances");
        } else if r.problems().count() == before {
            let problem = Problem::error("no-pools", "there are no pools")
                .at(r.place_of("pool"), "expected at least one [[pool]]");
            r.report("pool", problem);
        }
        return None;
    }
    if readers.len() > POOLS_MAX {
        let problem = Problem::error("too-many-pools", format!("{} pools", readers.len()))
            .at(r.place_of("pool"), format!("expected at most {POOLS_MAX}"))
            .help("equal pools are one pool with more `instances`");
        r.report("pool", problem);
        return None;
    }
    let mut names: Vec<String> = Vec::new();
    let mut pools = Vec::with_capacity(readers.len());
    for mut pool in readers {
        let section = pool::read(&mut pool, shelf);
        if let Some(name) = pool.text("name") {
            if names.iter().any(|known| known == name.value) {
                let title = format!("two pools are called `{}`", name.value);
                let problem = Problem::error("duplicate-name", title)
                    .at(name.place, "expected a name of its own");
                pool.report("name", problem);
            }
            names.push(name.value.to_owned());
        }
        pool.finish();
        pools.push(section);
    }
    pools.into_iter().collect()
}

fn profiles_in_use(
    pools: &[PoolSection],
    shelf: &ProfileShelf,
    parts: &checks::Parts<'_>,
    problems: &Problems,
) -> Vec<ProfileUse> {
    let mut in_use: Vec<ProfileUse> = Vec::new();
    for pool in pools {
        let Some(profile) = pool.setup.profile.as_deref().and_then(|name| shelf.named(name)) else {
            continue;
        };
        let inside = checks::check_region(parts, pool, profile, problems);
        match in_use.iter_mut().find(|known| known.profile.name == profile.name) {
            Some(known) => known.in_calibrated_range &= inside,
            None => {
                in_use.push(ProfileUse { profile: profile.clone(), in_calibrated_range: inside })
            }
        }
    }
    in_use
}

/// What can be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListingKind {
    /// GPUs.
    Gpus,
    /// Instance types with prices.
    Instances,
    /// Models.
    Models,
    /// Profiles shipped with the program.
    Profiles,
    /// Routing policies.
    Policies,
}

/// What a scenario can name.
#[must_use]
pub fn listing(kind: ListingKind) -> Listing {
    match kind {
        ListingKind::Gpus => catalog::list_gpus(),
        ListingKind::Instances => catalog::list_instances(),
        ListingKind::Models => catalog::list_models(),
        ListingKind::Profiles => profiles::list(),
        ListingKind::Policies => router::list(),
    }
}
