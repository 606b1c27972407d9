//! The order of events at one instant. Knows nothing of what they do.
//!
//! Events are handled in the order (time, rank, source). A source has one pending event at most;
//! among equal ranks the replica, pool or request with the smaller number goes first.

use crate::engine::replica::WakeKind;
use crate::kernel::wake::WakeKey;

/// Kinds of events in the order in which they happen at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rank {
    /// Clients hang up; before outputs, as a step that ends now gives them nothing more.
    Abort,
    /// Steps end, by replica. What ends here may release an arrival of this very instant.
    Output,
    /// Requests reach the endpoint, by number, and are routed.
    Arrival,
    /// Requests reach an engine's queue.
    Delivery,
    /// Schedule calls, by replica; they see all arrivals of the instant.
    Schedule,
    /// Signals are scraped, after all that happens at the instant (see
    /// [`crate::engine::replica::Replica::observe`]): an arrival never sees a scrape of its own
    /// instant.
    Scrape,
    /// Time series are sampled, after all that happens at the instant.
    Sample,
    /// The drain limit strikes; everything of that instant still counts.
    End,
}

impl Rank {
    const ALL: [Self; 8] = [
        Self::Abort,
        Self::Output,
        Self::Arrival,
        Self::Delivery,
        Self::Schedule,
        Self::Scrape,
        Self::Sample,
        Self::End,
    ];

    /// The rank of a pending event.
    #[inline]
    pub const fn of(key: WakeKey) -> Self {
        Self::ALL[key.rank() as usize]
    }
}

impl From<WakeKind> for Rank {
    #[inline]
    fn from(kind: WakeKind) -> Self {
        match kind {
            WakeKind::Output => Self::Output,
            WakeKind::Schedule => Self::Schedule,
        }
    }
}

/// Number of a source of events other than replicas; the deliveries to pool `p` are source
/// [`source::DELIVERIES`]` + p`.
pub mod source {
    /// Scrapes.
    pub const SCRAPE: u32 = 0;
    /// Samples.
    pub const SAMPLE: u32 = 1;
    /// Clients that hang up.
    pub const ABORT: u32 = 2;
    /// Arrivals.
    pub const ARRIVAL: u32 = 3;
    /// The drain limit.
    pub const END: u32 = 4;
    /// Deliveries to the first pool.
    pub const DELIVERIES: u32 = 5;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SimTime;

    #[test]
    fn a_rank_survives_its_key() {
        for rank in Rank::ALL {
            assert_eq!(Rank::of(WakeKey::new(SimTime(3), rank as u8, 9)), rank);
        }
        assert!(Rank::ALL.is_sorted());
    }
}
