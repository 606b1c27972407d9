//! Releases of vLLM and what they decide differently. A *profile* is a line of releases whose
//! schedules are the same; each was checked against schedules recorded with some of its releases.
//! Knows release numbers and rules by name, nothing of how engines carry them out.

use std::fmt;
use std::str::FromStr;

/// A release of vLLM, `major.minor.patch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    /// 0 so far.
    pub major: u32,
    /// Counts up with each release line.
    pub minor: u32,
    /// Patch; 0 when it is not stated.
    pub patch: u32,
}

impl Release {
    /// The newest release whose rules are implemented.
    pub const NEWEST: Self = Self::new(0, 32, 0);

    /// `major.minor.patch`.
    #[must_use]
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// True from `0.minor.0` on.
    #[must_use]
    pub fn is_since(self, minor: u32) -> bool {
        self >= Self::new(0, minor, 0)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A text that is not a release number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a release of vLLM, such as 0.20.2")]
pub struct NotARelease;

impl FromStr for Release {
    type Err = NotARelease;

    /// Reads `0.20.2`, `v0.20`, `0.20.2.post1`, `0.20.2rc1` or `0.20.2+cu128`; what follows the
    /// patch number changes no rule.
    fn from_str(text: &str) -> Result<Self, NotARelease> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let text = text.split('+').next().unwrap_or(text);
        let mut parts = text.split('.');
        let (major, minor) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        let number = |part: &str| part.parse::<u16>().map(u32::from).map_err(|_| NotARelease);
        let (patch, rest) = match parts.next() {
            None => ("0", ""),
            Some(part) => {
                part.split_at(part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len()))
            }
        };
        let is_suffix = |s: &str| ["rc", "post", "dev"].iter().any(|known| s.starts_with(known));
        if !(rest.is_empty() || is_suffix(rest)) || !parts.all(is_suffix) {
            return Err(NotARelease);
        }
        // `0.20.post1` has no patch; an empty one is a mistake.
        let patch = if patch.is_empty() && !rest.is_empty() { "0" } else { patch };
        Ok(Self { major: number(major)?, minor: number(minor)?, patch: number(patch)? })
    }
}

/// A line of releases with the same rules, named after its first release that was run. Ordered, so
/// that a rule holds from one profile on. The letters are those of the list of differences in
/// ARCHITECTURE.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum VersionProfile {
    /// 0.10.2 and 0.11.0.
    V0_11,
    /// 0.12.0 and 0.14.1.
    V0_12,
    /// 0.20.2 and 0.22.1.
    V0_20,
    /// 0.24.0.
    V0_24,
    /// 0.26.0.
    V0_26,
    /// 0.28.0.
    V0_28,
    /// 0.30.0.
    V0_30,
    /// 0.32.0.
    V0_32,
}

/// How sure it is that a profile is a release's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verified {
    /// Schedules recorded with this very release are reproduced.
    Replayed,
    /// Taken by what is documented of the releases on either side.
    Nearest,
}

impl VersionProfile {
    /// All profiles, the oldest first.
    pub const ALL: [Self; 8] = [
        Self::V0_11,
        Self::V0_12,
        Self::V0_20,
        Self::V0_24,
        Self::V0_26,
        Self::V0_28,
        Self::V0_30,
        Self::V0_32,
    ];

    /// The profile that a release is simulated with. Between the releases that were run the change
    /// is placed where the packages show it: the gate at 0.19, resumed requests at 0.11.2, the rest
    /// at the first release that was seen to have it.
    #[must_use]
    pub fn of(release: Release) -> (Self, Verified) {
        const RUN: [(Release, VersionProfile); 11] = [
            (Release::new(0, 10, 2), VersionProfile::V0_11),
            (Release::new(0, 11, 0), VersionProfile::V0_11),
            (Release::new(0, 12, 0), VersionProfile::V0_12),
            (Release::new(0, 14, 1), VersionProfile::V0_12),
            (Release::new(0, 20, 2), VersionProfile::V0_20),
            (Release::new(0, 22, 1), VersionProfile::V0_20),
            (Release::new(0, 24, 0), VersionProfile::V0_24),
            (Release::new(0, 26, 0), VersionProfile::V0_26),
            (Release::new(0, 28, 0), VersionProfile::V0_28),
            (Release::new(0, 30, 0), VersionProfile::V0_30),
            (Release::new(0, 32, 0), VersionProfile::V0_32),
        ];
        const SINCE: [(Release, VersionProfile); 7] = [
            (Release::new(0, 31, 0), VersionProfile::V0_32),
            (Release::new(0, 30, 0), VersionProfile::V0_30),
            (Release::new(0, 27, 0), VersionProfile::V0_28),
            (Release::new(0, 26, 0), VersionProfile::V0_26),
            (Release::new(0, 24, 0), VersionProfile::V0_24),
            (Release::new(0, 19, 0), VersionProfile::V0_20),
            (Release::new(0, 11, 2), VersionProfile::V0_12),
        ];
        if let Some(&(_, profile)) = RUN.iter().find(|(run, _)| *run == release) {
            return (profile, Verified::Replayed);
        }
        let since = SINCE.iter().find(|(since, _)| release >= *since);
        (since.map_or(Self::V0_11, |&(_, profile)| profile), Verified::Nearest)
    }

    /// The release it is named after.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V0_11 => "0.11",
            Self::V0_12 => "0.12",
            Self::V0_20 => "0.20",
            Self::V0_24 => "0.24",
            Self::V0_26 => "0.26",
            Self::V0_28 => "0.28",
            Self::V0_30 => "0.30",
            Self::V0_32 => "0.32",
        }
    }

    /// a. Released blocks without a hash go to the front of the free queue; before, every released
    /// block went to its end.
    #[must_use]
    pub fn queues_unhashed_blocks_first(self) -> bool {
        self >= Self::V0_24
    }

    /// b. An admission can be made to wait until the whole known sequence fits.
    #[must_use]
    pub fn has_whole_prompt_gate(self) -> bool {
        self >= Self::V0_20
    }

    /// c. The prefix-cache statistics count each look at the head of the queue, not each admission.
    #[must_use]
    pub fn counts_every_lookup(self) -> bool {
        self < Self::V0_28
    }

    /// d. `long_prefill_token_threshold` does not bind a request that is alone.
    #[must_use]
    pub fn spares_lone_requests(self) -> bool {
        self >= Self::V0_32
    }

    /// e. The prefix-cache statistics keep resumed requests apart.
    #[must_use]
    pub fn counts_resumed_apart(self) -> bool {
        self >= Self::V0_12
    }

    /// f. With async scheduling a request takes part in one more step after its last token was
    /// scheduled.
    #[must_use]
    pub fn schedules_past_the_last_token(self) -> bool {
        self < Self::V0_12
    }

    /// g. A draft model gets lookahead slots, as EAGLE does.
    #[must_use]
    pub fn looks_ahead_for_draft_models(self) -> bool {
        self >= Self::V0_20
    }

    /// h. Lookahead slots are allocated on admission too, not only from the next step on.
    #[must_use]
    pub fn looks_ahead_on_admission(self) -> bool {
        self >= Self::V0_24
    }

    /// i. Each request takes input slots for its drafts out of the input budget.
    #[must_use]
    pub fn takes_input_slots(self) -> bool {
        self >= Self::V0_28
    }

    /// j. Sliding-window and Mamba blocks are cached sparsely, by
    /// `prefix_cache_retention_interval`; before, all of them were.
    #[must_use]
    pub fn caches_windows_sparsely(self) -> bool {
        self >= Self::V0_30
    }

    /// k. Window blocks are kept until the tokens of steps in flight are processed; before, they
    /// were released by tokens scheduled.
    #[must_use]
    pub fn keeps_windows_in_flight(self) -> bool {
        self >= Self::V0_26
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(text: &str) -> (VersionProfile, Verified) {
        VersionProfile::of(text.parse().unwrap())
    }

    #[test]
    fn releases_are_read_with_what_packages_append() {
        for (text, release) in [
            ("0.20.2", Release::new(0, 20, 2)),
            ("v0.20", Release::new(0, 20, 0)),
            ("0.20.2.post1", Release::new(0, 20, 2)),
            ("0.9.0rc2", Release::new(0, 9, 0)),
            ("0.20.2+cu128", Release::new(0, 20, 2)),
            ("0.30.1.dev12+gabc.d1", Release::new(0, 30, 1)),
        ] {
            assert_eq!(text.parse(), Ok(release), "{text}");
        }
        for text in
            ["", "v", "latest", "0", "0.", "0.x", "0.20.", "0.20.2.1", "0.20x", "-1.2", "0.+9"]
        {
            assert_eq!(text.parse::<Release>(), Err(NotARelease), "{text}");
        }
    }

    #[test]
    fn releases_that_were_run_are_verified_and_others_take_the_documented_side() {
        use Verified::{Nearest, Replayed};
        for (text, expected) in [
            ("0.9.2", (VersionProfile::V0_11, Nearest)),
            ("0.11.0", (VersionProfile::V0_11, Replayed)),
            ("0.11.1", (VersionProfile::V0_11, Nearest)),
            ("0.11.2", (VersionProfile::V0_12, Nearest)),
            ("0.18.0", (VersionProfile::V0_12, Nearest)),
            ("0.19.0", (VersionProfile::V0_20, Nearest)),
            ("0.22.1", (VersionProfile::V0_20, Replayed)),
            ("0.23.0", (VersionProfile::V0_20, Nearest)),
            ("0.24.0", (VersionProfile::V0_24, Replayed)),
            ("0.27.0", (VersionProfile::V0_28, Nearest)),
            ("0.29.1", (VersionProfile::V0_28, Nearest)),
            ("0.31.0", (VersionProfile::V0_32, Nearest)),
            ("0.32.0", (VersionProfile::V0_32, Replayed)),
            ("0.40.0", (VersionProfile::V0_32, Nearest)),
        ] {
            assert_eq!(profile(text), expected, "{text}");
        }
    }

    #[test]
    fn newer_releases_never_take_an_older_profile() {
        let mut last = VersionProfile::V0_11;
        for minor in 6..40 {
            for patch in 0..4 {
                let (profile, _) = VersionProfile::of(Release::new(0, minor, patch));
                assert!(profile >= last, "0.{minor}.{patch}");
                last = profile;
            }
        }
    }
}
