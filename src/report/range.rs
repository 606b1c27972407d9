//! Did the run stay where its profiles may be believed? The scenario room judges what the traffic
//! says beforehand; here the load that came of it is judged too.

use serde::{Deserialize, Serialize};

use crate::report::figures::{Figures, PoolFigures};
use crate::report::format::{count, figure, plain};
use crate::scenario::profile::{EXTRAPOLATED_LENGTHS, EXTRAPOLATED_LOAD};
use crate::scenario::{ProfileUse, Region, Scenario};
use crate::workload::spec::TrafficSpec;

/// A profile as an answer names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileFigures {
    /// Its name.
    pub name: String,
    /// Hash of its file, in hexadecimal.
    pub sha256: String,
    /// Traffic and load stayed within the region on which it was fitted, as far as it names one.
    pub in_calibrated_range: bool,
}

/// Every profile in use.
#[must_use]
pub fn profile_figures(scenario: &Scenario, figures: &Figures) -> Vec<ProfileFigures> {
    let departures = departures(scenario, figures);
    let one = |in_use: &ProfileUse| {
        let name = in_use.profile.name.clone();
        let left = departures.iter().any(|departure| departure.profile == name);
        ProfileFigures {
            sha256: in_use.profile.sha256.clone(),
            in_calibrated_range: in_use.in_calibrated_range && !left,
            name,
        }
    };
    scenario.profiles.iter().map(one).collect()
}

/// A run left the region of a profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    /// [`EXTRAPOLATED_LENGTHS`] or [`EXTRAPOLATED_LOAD`].
    pub code: &'static str,
    /// Which profile.
    pub profile: String,
    /// In which figures, in words.
    pub by: Vec<String>,
}

/// Profiles whose region the run left, and in which figures.
#[must_use]
pub fn departures(scenario: &Scenario, figures: &Figures) -> Vec<Departure> {
    // What lengths a generator draws is judged beforehand; those of a trace show in the run.
    let replayed = matches!(scenario.traffic, TrafficSpec::Trace(_));
    let mut found = Vec::new();
    for ProfileUse { profile, .. } in &scenario.profiles {
        let (mut lengths, mut load) = (Vec::new(), Vec::new());
        for (setup, pool) in scenario.pools.iter().zip(&figures.pools) {
            if setup.profile.as_deref() != Some(profile.name.as_str()) {
                continue;
            }
            load.extend(load_outside(&profile.region, pool));
            if replayed {
                lengths.extend(lengths_outside(&profile.region, pool));
            }
        }
        for (code, by) in [(EXTRAPOLATED_LENGTHS, lengths), (EXTRAPOLATED_LOAD, load)] {
            if !by.is_empty() {
                found.push(Departure { code, profile: profile.name.clone(), by });
            }
        }
    }
    found
}

/// The middle nine tenths of lengths may not leave those measured.
fn lengths_outside(region: &Region, pool: &PoolFigures) -> Vec<String> {
    let lengths = [
        ("prompts", region.input_tokens, pool.input_tokens),
        ("outputs", region.output_tokens, pool.output_tokens),
    ];
    let outside = |(what, fitted, seen): (&str, Option<[f64; 2]>, Option<[u64; 2]>)| {
        let ([low, high], [from, to]) = (fitted?, seen?);
        ((from as f64) < low || to as f64 > high).then(|| {
            let (low, high) = (figure(low), figure(high));
            format!("{what} of {from} to {to} tokens (5 to 95 %), fitted to {low} to {high}")
        })
    };
    lengths.into_iter().filter_map(outside).collect()
}

/// Batches may not grow beyond those measured, nor stay below them on average; KV usage may not
/// rise above what was seen. Requests running bound the batch from above, and those in flight do
/// where a profile says nothing of batches.
fn load_outside(region: &Region, pool: &PoolFigures) -> Vec<String> {
    let mut by = Vec::new();
    if let (Some([low, high]), Some(mean)) = (region.batch.or(region.concurrency), pool.batch_mean)
        && (f64::from(pool.running_max) > high || mean < low)
    {
        by.push(format!(
            "up to {} requests running and {} in a batch on average (n = {} steps), fitted to {} \
             to {}",
            count(u64::from(pool.running_max)),
            figure(mean),
            count(pool.steps),
            plain(low),
            plain(high)
        ));
    }
    if let (Some([_, high]), Some(most)) = (region.kv_usage, pool.kv.usage_max)
        && most > high
    {
        let whole = |share: f64| format!("{:.0} %", share * 100.0);
        by.push(format!("KV usage up to {}, fitted to {}", whole(most), whole(high)));
    }
    by
}
