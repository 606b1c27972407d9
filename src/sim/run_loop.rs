//! The loop: takes the first event in the order of [`super::event`], lets whom it concerns act, and
//! notes when each wants to act next. Everything between two events is the engines' affair.

use super::audit;
use super::config::SimConfig;
use super::endpoint::{Delivery, Endpoint, HangUp};
use super::event::{Rank, source};
use super::result::{Recorder, RunResult, add_totals};
use super::tally::{Overhead, Place, Tally};
use super::traffic::Traffic;
use super::{Progress, SimError};
use crate::engine::replica::Replica;
use crate::engine::request::RequestId;
use crate::kernel::wake::{WakeKey, WakeQueue};
use crate::router::Router;
use crate::signals::{Signals, Snapshot};
use crate::units::{SimTime, Span};
use std::collections::VecDeque;
use std::error::Error;
use std::ops::ControlFlow;

/// Events between two calls of the progress callback.
const PROGRESS_EVENTS: u64 = 1 << 14;

/// Wakes at one instant that count as standing still, on top of a few for each replica. A run with
/// steps of no duration at all would never end otherwise.
const LIVELOCK_WAKES: u64 = 1 << 20;

/// Why the loop ended.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// All requests ended.
    Finished,
    /// The drain limit struck.
    DrainLimit,
    /// These can never make progress.
    Stalled(Vec<RequestId>),
}

/// A simulation under way.
pub struct Simulation<'a, R, Rec> {
    config: &'a SimConfig,
    now: SimTime,
    events: u64,
    /// Wakes at `now`.
    wakes_now: u64,
    /// Last event other than scrapes and samples.
    last_activity: SimTime,
    last_sample: SimTime,
    replicas: Vec<R>,
    /// Requests inside each replica.
    inside: Vec<u32>,
    /// Pending wakes, by replica.
    wakes: WakeQueue,
    /// The next arrival, by far the most frequent event that is not a wake.
    arrival: WakeKey,
    /// Pending events of all else, by [`source`].
    sources: WakeQueue,
    /// Requests on their way to each pool; the way takes a constant time, so they come in order.
    deliveries: Vec<VecDeque<Delivery>>,
    signals: Signals,
    endpoint: Endpoint<'a, Rec>,
}

impl<'a, R: Replica, Rec: Recorder> Simulation<'a, R, Rec> {
    /// A simulation at its start.
    pub fn new(
        config: &'a SimConfig,
        replicas: Vec<R>,
        router: Router,
        traffic: Traffic,
        recorder: &'a mut Rec,
    ) -> Self {
        let overheads: Vec<Overhead> = config
            .pools
            .iter()
            .map(|pool| Overhead { routing: pool.routing_latency, frontend: pool.frontend_latency })
            .collect();
        let pools = config.pools.len();
        let endpoint = Endpoint {
            traffic,
            router,
            in_flight: Default::default(),
            aborts: Default::default(),
            tally: Tally::new(recorder, config.goodput, config.warm_up, &overheads),
            overheads: overheads.iter().map(|overhead| overhead.total()).collect(),
            last_end: SimTime::ZERO,
            changed: false,
        };
        let mut simulation = Self {
            config,
            now: SimTime::ZERO,
            events: 0,
            wakes_now: 0,
            last_activity: SimTime::ZERO,
            last_sample: SimTime::ZERO,
            inside: vec![0; replicas.len()],
            wakes: WakeQueue::new(replicas.len()),
            arrival: WakeKey::NEVER,
            sources: WakeQueue::new(source::DELIVERIES as usize + pools),
            deliveries: (0..pools).map(|_| VecDeque::new()).collect(),
            signals: Signals::new(replicas.len()),
            replicas,
            endpoint,
        };
        simulation.announce_all();
        simulation
    }

    /// Announces what is pending at the start.
    fn announce_all(&mut self) {
        if self.config.router.reads_signals() {
            self.announce_periodic(source::SCRAPE, Rank::Scrape, self.config.scrape_every);
        }
        if let Some(period) = self.config.sample_every {
            self.announce_periodic(source::SAMPLE, Rank::Sample, period);
        }
        if let (Some(limit), Some(horizon)) =
            (self.config.drain_limit, self.endpoint.traffic.horizon())
        {
            self.sources.set(source::END, horizon + limit, Rank::End as u8);
        }
        for replica in 0..self.replicas.len() {
            self.announce_wake(replica as u32);
        }
        self.announce_clients();
    }

    /// Runs to the end and hands out the totals.
    ///
    /// # Errors
    /// When traffic cannot be drawn, time stands still or runs past the clock, or `progress` asks
    /// to stop.
    pub fn run<E: Error + 'static>(
        mut self,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<RunResult, SimError<E>> {
        let verdict = self.advance(progress)?;
        Ok(self.finish(verdict))
    }

    fn advance<E: Error + 'static>(
        &mut self,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Verdict, SimError<E>> {
        loop {
            if self.endpoint.in_flight.live() == 0 && self.is_over() {
                return Ok(Verdict::Finished);
            }
            let key = self.wakes.first().min(self.sources.first()).min(self.arrival);
            if key.is_never() {
                return Ok(self.stalled());
            }
            if key.at() != self.now {
                // Times that do not fit saturate there: no latency could be told from it.
                if key.at() == SimTime::MAX && !self.is_stuck() {
                    return Err(SimError::EndOfClock);
                }
                self.move_to(key.at());
            }
            self.events += 1;
            if self.events.is_multiple_of(PROGRESS_EVENTS) && progress(&self.progress()).is_break()
            {
                return Err(SimError::Interrupted { at: self.now });
            }
            match Rank::of(key) {
                Rank::Output | Rank::Schedule => self.wake(key.source())?,
                Rank::Arrival => self.arrive()?,
                Rank::Delivery => self.deliver(key.source() - source::DELIVERIES),
                Rank::Abort => self.hang_up(),
                Rank::Scrape | Rank::Sample | Rank::End if self.is_stuck() => {
                    return Ok(self.stalled());
                }
                Rank::Scrape => {
                    self.scrape();
                    continue;
                }
                Rank::Sample => {
                    self.sample();
                    continue;
                }
                Rank::End => return Ok(Verdict::DrainLimit),
            }
            self.last_activity = self.now;
        }
    }

    fn move_to(&mut self, at: SimTime) {
        assert!(at > self.now, "events run forwards, not from {} to {at}", self.now);
        self.endpoint.tally.flush();
        self.now = at;
        self.wakes_now = 0;
    }

    /// True when nobody is inside, nobody will come and no engine has anything left to do.
    fn is_over(&self) -> bool {
        self.arrival.is_never() && self.wakes.is_empty()
    }

    /// True when only scrapes, samples and the drain limit are pending.
    fn is_stuck(&self) -> bool {
        self.is_over()
            && !self.sources.is_pending(source::ABORT)
            && self.deliveries.iter().all(VecDeque::is_empty)
    }

    fn stalled(&self) -> Verdict {
        let stalled: Vec<RequestId> = self.replicas.iter().flat_map(Replica::stalled).collect();
        assert!(!stalled.is_empty(), "requests are in flight, but no engine wants to be woken");
        Verdict::Stalled(stalled)
    }

    fn progress(&self) -> Progress {
        let arrived = self.endpoint.traffic.arrived();
        Progress {
            now: self.now,
            events: self.events,
            arrived,
            ended: arrived - self.endpoint.in_flight.live(),
        }
    }

    #[inline]
    fn wake<E: Error + 'static>(&mut self, replica: u32) -> Result<(), SimError<E>> {
        self.wakes_now += 1;
        if self.wakes_now > LIVELOCK_WAKES + 64 * self.replicas.len() as u64 {
            return Err(SimError::Livelock { at: self.now, wakes: self.wakes_now });
        }
        let mut sink = self.endpoint.sink(self.now, replica);
        self.replicas[replica as usize].wake(self.now, &mut sink);
        self.inside[replica as usize] -= sink.left;
        self.announce_wake(replica);
        if self.endpoint.changed {
            self.announce_clients();
        }
        Ok(())
    }

    #[inline]
    fn arrive<E: Error + 'static>(&mut self) -> Result<(), SimError<E>> {
        if let Some(delivery) = self.endpoint.arrive(self.now, &self.signals)? {
            let pool = self.endpoint.router.fleet().pool_of(delivery.replica);
            if self.endpoint.overheads[pool as usize] == Span::ZERO {
                // Nothing can happen at this instant between the two events.
                self.enqueue(delivery);
            } else {
                let queue = &mut self.deliveries[pool as usize];
                queue.push_back(delivery);
                if queue.len() == 1 {
                    self.announce_delivery(pool);
                }
            }
        }
        if self.endpoint.changed || self.endpoint.traffic.next_at().is_none() {
            self.announce_clients();
        } else {
            self.announce_arrival();
        }
        Ok(())
    }

    #[inline]
    fn deliver(&mut self, pool: u32) {
        let queue = &mut self.deliveries[pool as usize];
        let delivery = queue.pop_front().expect("a delivery is pending");
        self.announce_delivery(pool);
        self.enqueue(delivery);
    }

    #[inline]
    fn enqueue(&mut self, Delivery { replica, request }: Delivery) {
        let mut sink = self.endpoint.sink(self.now, replica);
        self.replicas[replica as usize].enqueue(self.now, request, &mut sink);
        self.inside[replica as usize] += 1;
        self.inside[replica as usize] -= sink.left;
        self.announce_wake(replica);
        if self.endpoint.changed {
            self.announce_clients();
        }
    }

    fn hang_up(&mut self) {
        match self.endpoint.hang_up(self.now) {
            HangUp::OnTheWay => {}
            HangUp::InEngine { id, replica } => {
                let mut sink = self.endpoint.sink(self.now, replica);
                self.replicas[replica as usize].abort(self.now, id, &mut sink);
                self.inside[replica as usize] -= sink.left;
                self.announce_wake(replica);
            }
        }
        self.announce_clients();
    }

    fn scrape(&mut self) {
        for (replica, engine) in (0u32..).zip(&self.replicas) {
            let state = engine.observe(self.now);
            self.signals.publish(replica, Snapshot { taken: self.now, state });
        }
        self.announce_periodic(source::SCRAPE, Rank::Scrape, self.config.scrape_every);
    }

    fn sample(&mut self) {
        self.sample_pools(self.now);
        if let Some(period) = self.config.sample_every {
            self.announce_periodic(source::SAMPLE, Rank::Sample, period);
        }
    }

    fn sample_pools(&mut self, at: SimTime) {
        self.last_sample = at;
        for (index, pool) in (0u32..).zip(self.endpoint.router.fleet().pools()) {
            let members = &self.replicas[pool.first as usize..][..pool.replicas as usize];
            let states = members.iter().map(|replica| replica.observe(self.now));
            self.endpoint.tally.sample(at, index, states);
        }
    }

    fn announce_periodic(&mut self, source: u32, rank: Rank, period: Span) {
        let next = self.now + period;
        // At the end of the clock it cannot come again.
        if next > self.now {
            self.sources.set(source, next, rank as u8);
        } else {
            self.sources.clear(source);
        }
    }

    #[inline]
    fn announce_wake(&mut self, replica: u32) {
        match self.replicas[replica as usize].next_wake() {
            Some(wake) => self.wakes.set(replica, wake.at, Rank::from(wake.kind) as u8),
            None => self.wakes.clear(replica),
        }
    }

    #[inline]
    fn announce_delivery(&mut self, pool: u32) {
        let source = source::DELIVERIES + pool;
        match self.deliveries[pool as usize].front() {
            Some(Delivery { request, .. }) => {
                let at = request.arrival + self.endpoint.overheads[pool as usize];
                self.sources.set(source, at, Rank::Delivery as u8);
            }
            None => self.sources.clear(source),
        }
    }

    #[inline]
    fn announce_arrival(&mut self) {
        self.arrival = match self.endpoint.traffic.next_at() {
            Some(at) => WakeKey::new(at, Rank::Arrival as u8, source::ARRIVAL),
            None => WakeKey::NEVER,
        };
    }

    /// Announces the next arrival, the next hang-up and the end.
    fn announce_clients(&mut self) {
        self.endpoint.changed = false;
        self.announce_arrival();
        match self.endpoint.aborts.first() {
            Some((at, _)) => self.sources.set(source::ABORT, at, Rank::Abort as u8),
            None => self.sources.clear(source::ABORT),
        }
        if let Some(limit) = self.config.drain_limit
            && let Some(over) = self.endpoint.traffic.over_at()
        {
            let at = (over + limit).max(self.now);
            self.sources.set(source::END, at, Rank::End as u8);
        }
    }

    /// Closes the books.
    fn finish(mut self, verdict: Verdict) -> RunResult {
        self.settle();
        let (ended, stalled) = match verdict {
            Verdict::Finished => (self.endpoint.last_end, Vec::new()),
            Verdict::DrainLimit => (self.now, Vec::new()),
            Verdict::Stalled(requests) => (self.last_activity, requests),
        };
        for (id, &entry) in self.endpoint.in_flight.iter() {
            let pool = self.endpoint.router.fleet().pool_of(entry.replica);
            let place = Place { pool, replica: entry.replica };
            self.endpoint.tally.unfinished(id, place, entry);
        }
        self.endpoint.tally.flush();
        self.endpoint.tally.close();
        if self.config.sample_every.is_some() && ended > self.last_sample {
            self.sample_pools(ended);
        }
        let mut result = self.result(ended, stalled);
        self.collect_engines(&mut result);
        audit::replicas(&self.replicas, &self.inside, self.now);
        audit::counts(&result, &self.endpoint.tally, &self.deliveries, &self.inside);
        result
    }

    /// Has engines report what they merged into events to come.
    fn settle(&mut self) {
        for (number, replica) in (0u32..).zip(&mut self.replicas) {
            let mut sink = self.endpoint.sink(self.now, number);
            replica.settle(self.now, &mut sink);
            assert!(sink.left == 0, "requests end when engines are woken");
        }
    }

    /// Adds up what the engines counted, time up to the end of service.
    fn collect_engines(&self, result: &mut RunResult) {
        let until = result.in_service_until();
        let shapes = self.endpoint.router.fleet().pools();
        for ((config, shape), pool) in self.config.pools.iter().zip(shapes).zip(&mut result.pools) {
            pool.replicas = shape.replicas;
            pool.usable_blocks = config.engine.usable_blocks();
            for replica in shape.members() {
                let replica = &self.replicas[replica as usize];
                let mut totals = replica.totals();
                totals.busy.0 -= replica.busy_after(until).0;
                pool.busy += totals.busy;
                add_totals(&mut pool.engine, &totals);
            }
        }
    }

    /// All but what the engines counted.
    fn result(&self, ended: SimTime, stalled: Vec<RequestId>) -> RunResult {
        let Endpoint { traffic, tally, .. } = &self.endpoint;
        let last_completion = tally.last_completion.unwrap_or(ended);
        let measured_to = traffic.period_end().unwrap_or(last_completion);
        RunResult {
            ended,
            events: self.events,
            measured_from: self.config.warm_up,
            measured_to: measured_to.max(self.config.warm_up),
            counts: tally.totals(traffic.arrived()),
            pools: tally.pools.iter().map(|pool| pool.result.clone()).collect(),
            stalled,
            notes: traffic.notes(),
        }
    }
}
