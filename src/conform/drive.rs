//! Plays a case through one engine: arrivals, hang-ups and wake-ups in the order of the recordings'
//! engine loop. Knows the case and the face of a replica; nothing of traces or files.

use super::case::{Arrivals, Case};
use crate::engine::record::EngineRecord;
use crate::engine::replica::{EngineSink, Replica, WakeKind};
use crate::engine::request::RequestId;
use crate::units::{Fix, SimTime, Span};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// What came out of an engine, apart from what it recorded itself.
#[derive(Debug, Default)]
pub struct Played {
    /// Requests that arrived, and when.
    pub arrivals: BTreeMap<RequestId, SimTime>,
    /// Requests that ended.
    pub ended: BTreeMap<RequestId, EngineRecord>,
    /// The last instant at which the engine did something.
    pub end: SimTime,
    /// Gaps between tokens as the engine reported them: members, first, increment, steps.
    pub gaps: Vec<(u32, Fix, Fix, u64)>,
}

/// What happens, in the order of things at one instant: hang-ups before the output of a step that
/// ends then, arrivals before the schedule call that sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    HangUp(usize),
    Output,
    Arrival(usize),
    Schedule,
}

#[derive(Default)]
struct Ends {
    records: Vec<EngineRecord>,
    gaps: Vec<(u32, Fix, Fix, u64)>,
}

impl EngineSink for Ends {
    fn finished(&mut self, record: EngineRecord) {
        self.records.push(record);
    }

    fn inter_token(&mut self, members: u32, first: Fix, increment: Fix, steps: u64) {
        self.gaps.push((members, first, increment, steps));
    }
}

/// Future arrivals and hang-ups.
struct Player<'a> {
    case: &'a Case,
    arrivals: BinaryHeap<Reverse<(SimTime, usize)>>,
    hang_ups: BinaryHeap<Reverse<(SimTime, usize)>>,
    /// Requests that wait for the end of another, by that one's number.
    followers: BTreeMap<usize, Vec<(usize, Span)>>,
    /// Closed loop: the next request to release.
    next_release: usize,
    played: Played,
}

/// Plays `case` through `replica`; gives up after `calls_max` schedule calls.
pub fn play<R: Replica>(case: &Case, replica: &mut R, calls_max: u64) -> Played {
    let mut player = Player::new(case);
    let mut ends = Ends::default();
    let mut calls = 0;
    while let Some((now, event)) = player.next(replica) {
        match event {
            Event::HangUp(number) => {
                player.hang_ups.pop();
                replica.abort(now, RequestId(number as u64), &mut ends);
            }
            Event::Arrival(number) => {
                player.arrivals.pop();
                player.arrive(now, number, replica, &mut ends);
            }
            Event::Output | Event::Schedule => {
                calls += u64::from(event == Event::Schedule);
                if calls > calls_max {
                    break;
                }
                replica.wake(now, &mut ends);
                player.played.end = now;
            }
        }
        for record in ends.records.drain(..) {
            player.end(now, record);
        }
    }
    player.played.gaps = ends.gaps;
    player.played
}

impl<'a> Player<'a> {
    fn new(case: &'a Case) -> Self {
        let mut player = Self {
            case,
            arrivals: BinaryHeap::new(),
            hang_ups: BinaryHeap::new(),
            followers: BTreeMap::new(),
            next_release: 0,
            played: Played::default(),
        };
        match case.arrivals {
            Arrivals::Open => player.plan_open(),
            Arrivals::Closed { concurrency, .. } => {
                for _ in 0..concurrency.min(case.requests.len()) {
                    player.release(SimTime::ZERO);
                }
            }
        }
        player
    }

    fn plan_open(&mut self) {
        for (number, request) in self.case.requests.iter().enumerate() {
            if let Some(at) = request.at {
                self.arrivals.push(Reverse((SimTime::from_micros(at), number)));
            }
            if let Some((first, delay)) = request.after {
                let followers = self.followers.entry(first).or_default();
                followers.push((number, Span::from_micros(delay)));
            }
        }
    }

    /// Closed loop: the next request in the list arrives at `at`, if there is one.
    fn release(&mut self, at: SimTime) {
        if self.next_release < self.case.requests.len() {
            self.arrivals.push(Reverse((at, self.next_release)));
            self.next_release += 1;
        }
    }

    fn next<R: Replica>(&self, replica: &R) -> Option<(SimTime, Event)> {
        let first = |heap: &BinaryHeap<Reverse<(SimTime, usize)>>| heap.peek().map(|r| r.0);
        let wake = replica.next_wake().map(|wake| match wake.kind {
            WakeKind::Output => (wake.at, Event::Output),
            WakeKind::Schedule => (wake.at, Event::Schedule),
        });
        let hang_up = first(&self.hang_ups).map(|(at, number)| (at, Event::HangUp(number)));
        let arrival = first(&self.arrivals).map(|(at, number)| (at, Event::Arrival(number)));
        [hang_up, arrival, wake].into_iter().flatten().min()
    }

    fn arrive<R: Replica>(
        &mut self,
        now: SimTime,
        number: usize,
        replica: &mut R,
        ends: &mut Ends,
    ) {
        if let Some(after) = self.case.requests[number].abort_after_us {
            self.hang_ups.push(Reverse((now + Span::from_micros(after), number)));
        }
        self.played.arrivals.insert(RequestId(number as u64), now);
        replica.enqueue(now, self.case.engine_request(number, now), ends);
    }

    fn end(&mut self, now: SimTime, record: EngineRecord) {
        match self.case.arrivals {
            Arrivals::Open => {
                let number = record.id.0 as usize;
                for (follower, delay) in self.followers.remove(&number).unwrap_or_default() {
                    self.arrivals.push(Reverse((now + delay, follower)));
                }
            }
            Arrivals::Closed { think_us, .. } => self.release(now + Span::from_micros(think_us)),
        }
        self.played.ended.insert(record.id, record);
    }
}
