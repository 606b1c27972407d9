//! The clients' side of the engines: traffic, router, requests in flight, clients that will hang
//! up, and the books. Takes what engines report. Schedules nothing.

use super::aborts::Aborts;
use super::in_flight::{Entry, InFlight};
use super::result::Recorder;
use super::tally::{Place, Tally};
use super::traffic::Traffic;
use crate::engine::record::EngineRecord;
use crate::engine::replica::EngineSink;
use crate::engine::request::{EngineRequest, RequestId};
use crate::router::{RequestHead, Router};
use crate::signals::Signals;
use crate::units::{Fix, SimTime, Span};
use crate::workload::WorkloadError;

/// Everything on the clients' side.
pub struct Endpoint<'a, Rec> {
    pub traffic: Traffic,
    pub router: Router,
    pub in_flight: InFlight,
    pub aborts: Aborts,
    pub tally: Tally<'a, Rec>,
    /// From arrival to the engine's queue, by pool.
    pub overheads: Vec<Span>,
    /// When the last request ended or was refused.
    pub last_end: SimTime,
    /// The next arrival, the next hang-up or the end of traffic may have changed since the loop
    /// last looked.
    pub changed: bool,
}

/// A request on its way to an engine.
#[derive(Debug)]
pub struct Delivery {
    pub replica: u32,
    pub request: EngineRequest,
}

/// A client that hangs up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HangUp {
    /// On a request that an engine has.
    InEngine { id: RequestId, replica: u32 },
    /// On a request that had not reached its engine; it has ended.
    OnTheWay,
}

impl<Rec: Recorder> Endpoint<'_, Rec> {
    /// The next request arrives at `now` and is routed. `None` when it goes no further: refused, or
    /// its client will have hung up before it reaches the engine.
    ///
    /// # Errors
    /// When traffic cannot be drawn.
    #[inline]
    pub fn arrive(
        &mut self,
        now: SimTime,
        signals: &Signals,
    ) -> Result<Option<Delivery>, WorkloadError> {
        let (id, body) = self.traffic.take()?;
        let prompt_tokens = body.prompt.len();
        let head = RequestHead { id, prompt: &body.prompt, priority: body.priority };
        let valid = prompt_tokens > 0 && body.output_tokens > 0;
        let chosen = if valid { self.router.route(&head, signals) } else { None };
        let Some(replica) = chosen else {
            self.in_flight.skip(id);
            self.tally.refused(id, now, prompt_tokens);
            self.request_ended(now);
            return Ok(None);
        };
        let pool = self.router.fleet().pool_of(replica);
        self.in_flight.begin(id, Entry { arrival: now, replica, prompt_tokens });
        self.tally.routed(pool);
        if let Some(patience) = body.abort_after {
            self.aborts.push(now + patience, id, &self.in_flight);
            self.changed = true;
            // A hang-up comes before a delivery of the same instant.
            if patience <= self.overheads[pool as usize] {
                return Ok(None);
            }
        }
        let request = EngineRequest {
            id,
            arrival: now,
            priority: body.priority,
            prompt: body.prompt,
            max_tokens: body.output_tokens,
            skip_cache: body.skip_cache,
            measured: self.tally.measures(now),
        };
        Ok(Some(Delivery { replica, request }))
    }

    /// The next client hangs up at `now`.
    pub fn hang_up(&mut self, now: SimTime) -> HangUp {
        let (at, id) = self.aborts.pop(&self.in_flight).expect("a hang-up is pending");
        debug_assert_eq!(at, now);
        let entry = self.in_flight.get(id).expect("hang-ups are of requests in flight");
        self.changed = true;
        let replica = entry.replica;
        let pool = self.router.fleet().pool_of(replica);
        if now - entry.arrival > self.overheads[pool as usize] {
            return HangUp::InEngine { id, replica };
        }
        self.in_flight.end(id);
        self.tally.hung_up_early(now, id, Place { pool, replica }, entry);
        self.router.ended(replica);
        self.request_ended(now);
        HangUp::OnTheWay
    }

    /// What the engine of `replica` reports at `now` goes here.
    #[inline]
    pub fn sink<'s>(&'s mut self, now: SimTime, replica: u32) -> Sink<'s, Self> {
        let pool = self.router.fleet().pool_of(replica);
        Sink { endpoint: self, now, place: Place { pool, replica }, left: 0 }
    }

    #[inline]
    fn request_ended(&mut self, now: SimTime) {
        self.changed |= self.traffic.ended(now);
        self.last_end = now;
    }
}

/// Takes the reports of one replica at one instant.
pub struct Sink<'s, E> {
    endpoint: &'s mut E,
    now: SimTime,
    place: Place,
    /// Requests that left the engine.
    pub left: u32,
}

impl<Rec: Recorder> EngineSink for Sink<'_, Endpoint<'_, Rec>> {
    #[inline]
    fn finished(&mut self, record: EngineRecord) {
        let Self { endpoint, now, place, left } = self;
        assert!(record.finished == *now, "{:?} ended at another time than now", record.id);
        let entry = endpoint.in_flight.end(record.id);
        assert!(entry.replica == place.replica, "{:?} ended where it was not sent", record.id);
        debug_assert_eq!(record.measured, endpoint.tally.measures(entry.arrival));
        endpoint.tally.left_engine(&record, *place, entry);
        endpoint.router.ended(place.replica);
        endpoint.changed |= endpoint.aborts.ended(record.id, &endpoint.in_flight);
        endpoint.request_ended(*now);
        *left += 1;
    }

    #[inline]
    fn inter_token(&mut self, members: u32, first: Fix, increment: Fix, steps: u64) {
        let pool = &mut self.endpoint.tally.pools[self.place.pool as usize];
        pool.result.latency.itl.record_progression(first, increment, steps, u64::from(members));
    }
}
