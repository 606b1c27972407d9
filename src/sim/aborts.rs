//! Clients that will hang up: a heap of (time, request). Entries of requests that ended first are
//! dropped when they reach the top or when they outnumber the requests in flight. Knows nothing of
//! engines.

use super::in_flight::InFlight;
use crate::engine::request::RequestId;
use crate::units::SimTime;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Dead entries tolerated on top of as many as there are requests in flight.
const SLACK: usize = 64;

/// Pending aborts. The first one is always of a request in flight.
#[derive(Debug, Default)]
pub struct Aborts {
    heap: BinaryHeap<Reverse<(SimTime, RequestId)>>,
}

impl Aborts {
    /// When the next client hangs up, and on which request.
    #[inline]
    pub fn first(&self) -> Option<(SimTime, RequestId)> {
        self.heap.peek().map(|entry| entry.0)
    }

    /// The client of `id`, a request in flight, hangs up at `at` unless the request ends first.
    pub fn push(&mut self, at: SimTime, id: RequestId, in_flight: &InFlight) {
        let live = usize::try_from(in_flight.live()).unwrap_or(usize::MAX);
        if self.heap.len() >= live.saturating_mul(2).saturating_add(SLACK) {
            self.heap.retain(|entry| in_flight.get(entry.0.1).is_some());
        }
        self.heap.push(Reverse((at, id)));
    }

    /// Takes the first entry.
    pub fn pop(&mut self, in_flight: &InFlight) -> Option<(SimTime, RequestId)> {
        let first = self.heap.pop()?.0;
        self.drop_dead(in_flight);
        Some(first)
    }

    /// A request ended and has left `in_flight`. True when another entry is the first now.
    #[inline]
    pub fn ended(&mut self, id: RequestId, in_flight: &InFlight) -> bool {
        let was_first = self.first().is_some_and(|(_, first)| first == id);
        if was_first {
            self.drop_dead(in_flight);
        }
        was_first
    }

    fn drop_dead(&mut self, in_flight: &InFlight) {
        while self.first().is_some_and(|(_, id)| in_flight.get(id).is_none()) {
            self.heap.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::in_flight::Entry;
    use super::*;

    #[test]
    fn the_first_entry_is_of_a_request_in_flight_and_dead_ones_do_not_pile_up() {
        let mut in_flight = InFlight::default();
        let mut aborts = Aborts::default();
        for id in 0..10_000 {
            let id = RequestId(id);
            let entry = Entry { arrival: SimTime(id.0), replica: 0, prompt_tokens: 1 };
            in_flight.begin(id, entry);
            aborts.push(SimTime(1_000_000 - id.0), id, &in_flight);
            if id.0 >= 10 {
                let oldest = RequestId(id.0 - 10);
                in_flight.end(oldest);
                aborts.ended(oldest, &in_flight);
            }
            let (_, first) = aborts.first().expect("requests are in flight");
            assert!(in_flight.get(first).is_some());
            assert!(aborts.heap.len() <= 2 * 11 + SLACK);
        }
        let mut order = Vec::new();
        while let Some((_, id)) = aborts.pop(&in_flight) {
            order.push(id.0);
        }
        assert_eq!(order, (9_990..10_000).rev().collect::<Vec<_>>());
    }
}
