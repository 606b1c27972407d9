//! Where a pool's profile is found: embedded in the scenario, shipped with the program, or in a
//! file beside the scenario. Each is read once.

use super::problem::{Problem, Problems, Source};
use super::profile::{self, Profile};
use super::read::{Found, Reader};
use super::{resolved, text, tree};
use crate::catalog::{self, Listing};
use std::path::{Path, PathBuf};

/// Profiles found so far, by the name that pools use.
pub(super) struct ProfileShelf {
    folder: PathBuf,
    found: Vec<(String, Profile)>,
    /// Names that were looked for and are wrong; reported once.
    failed: Vec<String>,
    /// Texts that were read, so that problems in them can be shown.
    pub sources: Vec<Source>,
}

impl ProfileShelf {
    /// A shelf that looks for files from `folder`; `sources` are the texts read so far.
    pub fn new(folder: &Path, sources: Vec<Source>) -> Self {
        Self { folder: folder.to_owned(), found: Vec::new(), failed: Vec::new(), sources }
    }

    /// Reads the `[[profile]]` tables of the scenario.
    pub fn take_embedded(&mut self, root: &mut Reader<'_>) {
        for mut r in root.tables("profile") {
            let stated = r.text("sha256").map(|found| found.value.to_owned());
            let profile = profile::read_core(&mut r);
            let place = r.place_of("name");
            if let Some(mut profile) = profile {
                profile.sha256 = stated.unwrap_or_else(|| {
                    profile::sha256_hex(resolved::profile_text(&profile).as_bytes())
                });
                if self.found.iter().any(|(name, _)| *name == profile.name) {
                    let title = format!("profile `{}` stands here twice", profile.name);
                    let problem = Problem::error("duplicate-name", title);
                    r.report("name", problem.at(place, "expected a name of its own"));
                }
                self.found.push((profile.name.clone(), profile));
            } else if let Some(name) = r.text("name") {
                self.failed.push(name.value.to_owned());
            }
            r.finish();
        }
    }

    /// A profile that was found before, by its own name.
    pub fn named(&self, name: &str) -> Option<&Profile> {
        self.found.iter().map(|(_, profile)| profile).find(|profile| profile.name == name)
    }

    /// The profile that `wanted` names; reported when there is none.
    pub fn find(&mut self, r: &Reader<'_>, wanted: Found<&str>) -> Option<Profile> {
        let name = wanted.value;
        if let Some((_, profile)) = self.found.iter().find(|(known, _)| known == name) {
            return Some(profile.clone());
        }
        if self.failed.iter().any(|known| known == name) {
            return None;
        }
        let shipped = catalog::PROFILES.iter().find(|(known, _)| *known == name);
        let read = if let Some((_, text)) = shipped {
            self.read(&format!("calibration/{name}.toml"), (*text).to_owned(), r.problems())
        } else if name.ends_with(".toml") {
            let file = self.folder.join(name);
            match text::read(&file) {
                Ok(text) => self.read(&file.display().to_string(), text, r.problems()),
                Err(error) => {
                    let title = format!("cannot read profile: {error}");
                    let problem = Problem::error("profile-missing", title)
                        .at(wanted.place, "expected a readable file")
                        .help("a relative path starts at the folder of the scenario file");
                    r.report("profile", problem);
                    None
                }
            }
        } else {
            self.unknown(r, wanted);
            None
        };
        match read {
            Some(profile) => {
                self.refuse_namesake(r, wanted, &profile);
                self.found.push((name.to_owned(), profile.clone()));
                Some(profile)
            }
            None => {
                self.failed.push(name.to_owned());
                None
            }
        }
    }

    fn read(&mut self, file: &str, text: String, problems: &Problems) -> Option<Profile> {
        let source = u32::try_from(self.sources.len()).unwrap_or(u32::MAX);
        let node = tree::parse(source, &text, problems);
        let profile = profile::read(&node, &text, problems);
        self.sources.push(Source { name: file.to_owned(), text });
        profile
    }

    /// Results name profiles, so two different ones must not share a name.
    fn refuse_namesake(&self, r: &Reader<'_>, wanted: Found<&str>, profile: &Profile) {
        let namesake = self
            .found
            .iter()
            .any(|(_, other)| other.name == profile.name && other.sha256 != profile.sha256);
        if namesake {
            let title = format!("two different profiles are called `{}`", profile.name);
            let problem = Problem::error("duplicate-name", title)
                .at(wanted.place, "the second one")
                .help("change `name` in one of the files");
            r.report("profile", problem);
        }
    }

    fn unknown(&self, r: &Reader<'_>, wanted: Found<&str>) {
        let embedded = self.found.iter().map(|(name, _)| name.as_str());
        let shipped = catalog::PROFILES.iter().map(|(name, _)| *name);
        let names: Vec<&str> = embedded.chain(shipped).collect();
        let mut problem =
            Problem::error("unknown-profile", format!("there is no profile `{}`", wanted.value))
                .at(wanted.place, "expected the name of a profile, or a path ending in .toml");
        if !names.is_empty() {
            problem = problem.nearest(wanted.value, names);
        }
        r.report("profile", problem.help("`fleetcast catalog profiles` lists those shipped"));
    }
}

/// Profiles shipped with the program; one that cannot be read is left out.
pub(super) fn list() -> Listing {
    let range = |range: Option<[f64; 2]>| {
        range.map_or_else(String::new, |[low, high]| format!("{low} to {high}"))
    };
    let rows = catalog::PROFILES
        .iter()
        .filter_map(|(name, text)| profile::parse(name, text).ok())
        .map(|p| {
            vec![
                p.name,
                p.model,
                p.gpu,
                p.tensor_parallel_size.to_string(),
                format!("{} {}", p.engine.name, p.engine.version),
                range(p.region.concurrency),
                range(p.region.batch),
                range(p.region.input_tokens),
                range(p.region.output_tokens),
                p.points.len().to_string(),
            ]
        })
        .collect();
    Listing {
        headers: vec![
            "profile",
            "model",
            "gpu",
            "tensor_parallel_size",
            "engine",
            "concurrency",
            "batch",
            "input_tokens",
            "output_tokens",
            "points",
        ],
        rows,
    }
}
