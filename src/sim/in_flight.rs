//! Requests between their arrival and their end: a window over request numbers, which are dense
//! and rising, from the oldest that is still inside. 16 bytes a number. Knows nothing of engines.

use crate::engine::request::RequestId;
use crate::units::SimTime;
use std::collections::VecDeque;

/// Marks a number whose request has ended.
const ENDED: u32 = u32::MAX;

/// A request in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// When it reached the endpoint.
    pub arrival: SimTime,
    /// Where it was sent.
    pub replica: u32,
    /// Prompt tokens.
    pub prompt_tokens: u32,
}

/// The window.
#[derive(Debug, Default)]
pub struct InFlight {
    entries: VecDeque<Entry>,
    /// Number of the first entry.
    base: u64,
    live: u64,
}

impl InFlight {
    /// Requests in flight.
    #[inline]
    pub const fn live(&self) -> u64 {
        self.live
    }

    /// The next request arrived and was routed.
    #[inline]
    pub fn begin(&mut self, id: RequestId, entry: Entry) {
        debug_assert_eq!(id.0, self.base + self.entries.len() as u64, "numbers are dense");
        debug_assert!(entry.replica != ENDED);
        self.entries.push_back(entry);
        self.live += 1;
    }

    /// The next request arrived and was refused.
    pub fn skip(&mut self, id: RequestId) {
        debug_assert_eq!(id.0, self.base + self.entries.len() as u64, "numbers are dense");
        if self.entries.is_empty() {
            self.base += 1;
        } else {
            self.entries.push_back(Entry {
                arrival: SimTime::ZERO,
                replica: ENDED,
                prompt_tokens: 0,
            });
        }
    }

    /// A request in flight; `None` when it has ended.
    #[inline]
    pub fn get(&self, id: RequestId) -> Option<Entry> {
        let place = usize::try_from(id.0.checked_sub(self.base)?).ok()?;
        self.entries.get(place).copied().filter(|entry| entry.replica != ENDED)
    }

    /// A request ended.
    #[inline]
    pub fn end(&mut self, id: RequestId) -> Entry {
        let place = id.0.checked_sub(self.base).expect("a request ends once");
        let entry = &mut self.entries[place as usize];
        assert!(entry.replica != ENDED, "a request ends once");
        let ended = *entry;
        entry.replica = ENDED;
        self.live -= 1;
        while self.entries.front().is_some_and(|entry| entry.replica == ENDED) {
            self.entries.pop_front();
            self.base += 1;
        }
        ended
    }

    /// Requests in flight, in order of number.
    pub fn iter(&self) -> impl Iterator<Item = (RequestId, &Entry)> {
        let numbered = (self.base..).map(RequestId).zip(&self.entries);
        numbered.filter(|(_, entry)| entry.replica != ENDED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(replica: u32) -> Entry {
        Entry { arrival: SimTime(u64::from(replica)), replica, prompt_tokens: 1 }
    }

    #[test]
    fn the_window_follows_the_oldest_request() {
        let mut window = InFlight::default();
        window.skip(RequestId(0));
        for id in 1..4 {
            window.begin(RequestId(id), entry(id as u32));
        }
        window.skip(RequestId(4));
        window.begin(RequestId(5), entry(5));
        assert_eq!(window.end(RequestId(2)), entry(2));
        assert_eq!(window.get(RequestId(2)), None);
        assert_eq!(window.get(RequestId(0)), None);
        assert_eq!(window.get(RequestId(9)), None);
        assert_eq!(window.get(RequestId(3)), Some(entry(3)));
        assert_eq!(window.end(RequestId(1)), entry(1));
        assert_eq!(window.base, 3);
        assert_eq!(window.end(RequestId(3)), entry(3));
        assert_eq!((window.base, window.live()), (5, 1));
        assert_eq!(window.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [5]);
    }

    #[test]
    #[should_panic(expected = "a request ends once")]
    fn a_request_cannot_end_twice() {
        let mut window = InFlight::default();
        window.begin(RequestId(0), entry(0));
        window.begin(RequestId(1), entry(0));
        window.end(RequestId(1));
        window.end(RequestId(1));
    }
}
