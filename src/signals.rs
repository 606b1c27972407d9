//! What production would show of a fleet: metrics scraped at a period, with their age, missing
//! before the first scrape. Routers read these and nothing else of an engine, so that a policy
//! cannot use knowledge that a real one does not have. May know `units` and the engine's metric
//! figures.

use crate::engine::record::ReplicaState;
use crate::units::{SimTime, Span};

/// Metrics of one replica as they stood when they were scraped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    /// When they were scraped.
    pub taken: SimTime,
    /// What they said.
    pub state: ReplicaState,
}

impl Snapshot {
    /// How old the figures are at `now`.
    #[must_use]
    pub const fn age(&self, now: SimTime) -> Span {
        now.since(self.taken)
    }

    /// `vllm:kv_cache_usage_perc`, 0..=1; 0 for a replica without blocks.
    #[must_use]
    pub fn kv_usage(&self) -> f64 {
        if self.state.usable_blocks == 0 {
            return 0.0;
        }
        f64::from(self.state.used_blocks) / f64::from(self.state.usable_blocks)
    }
}

/// The last scrape of each replica.
#[derive(Debug, Clone)]
pub struct Signals {
    snapshots: Vec<Option<Snapshot>>,
}

impl Signals {
    /// Signals of `replicas` replicas, none of them scraped yet.
    #[must_use]
    pub fn new(replicas: usize) -> Self {
        Self { snapshots: vec![None; replicas] }
    }

    /// A scrape of `replica`.
    pub fn publish(&mut self, replica: u32, snapshot: Snapshot) {
        self.snapshots[replica as usize] = Some(snapshot);
    }

    /// The last scrape of `replica`; `None` before the first.
    #[must_use]
    pub fn of(&self, replica: u32) -> Option<&Snapshot> {
        self.snapshots[replica as usize].as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_ages_and_is_missing_before_the_first_scrape() {
        let mut signals = Signals::new(2);
        assert_eq!(signals.of(1), None);
        let state = ReplicaState { used_blocks: 3, usable_blocks: 12, ..ReplicaState::default() };
        signals.publish(1, Snapshot { taken: SimTime(5), state });
        let seen = signals.of(1).expect("just published");
        assert_eq!(seen.age(SimTime(12)), Span(7));
        assert!((seen.kv_usage() - 0.25).abs() < f64::EPSILON);
        assert_eq!(signals.of(0), None);
    }

    #[test]
    fn a_replica_without_blocks_uses_none() {
        let snapshot = Snapshot { taken: SimTime::ZERO, state: ReplicaState::default() };
        assert!(snapshot.kv_usage().abs() < f64::EPSILON);
    }
}
