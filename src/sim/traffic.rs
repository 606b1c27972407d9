//! When the next request reaches the endpoint: arrivals of an open loop by their own times, those
//! of a closed loop as ends release them; cut off at the horizon. Draws one request ahead and
//! numbers requests in order of arrival. Knows nothing of routing or engines.

use crate::engine::request::RequestId;
use crate::units::SimTime;
use crate::workload::{Load, RequestBody, SourceEnd, SourceNotes, WorkloadError};
use std::collections::VecDeque;

/// Traffic of a run as it is drawn.
pub struct Traffic {
    load: Load,
    horizon: Option<SimTime>,
    /// The next request; its time is that of an open loop, meaningless in a closed one.
    next: Option<(SimTime, RequestBody)>,
    /// Number of `next`.
    next_id: RequestId,
    /// Closed loop: instants at which requests are released and how many; the delay from end to
    /// release is constant, so they come in order.
    released: VecDeque<(SimTime, u64)>,
    last_arrival: SimTime,
    /// The horizon refused a request.
    cut: bool,
}

impl Traffic {
    /// Traffic from the start of the run.
    ///
    /// # Errors
    /// When the first request cannot be drawn.
    pub fn new(load: Load, horizon: Option<SimTime>) -> Result<Self, WorkloadError> {
        let concurrency = match load {
            Load::Open(_) => 0,
            Load::Closed { concurrency, .. } => u64::from(concurrency),
        };
        let mut traffic = Self {
            load,
            horizon,
            next: None,
            next_id: RequestId(0),
            released: VecDeque::new(),
            last_arrival: SimTime::ZERO,
            cut: false,
        };
        traffic.draw()?;
        traffic.release(SimTime::ZERO, concurrency);
        Ok(traffic)
    }

    /// When the next request arrives, as far as is known.
    #[inline]
    pub fn next_at(&self) -> Option<SimTime> {
        let (at, _) = self.next.as_ref()?;
        match self.load {
            Load::Open(_) => Some(*at),
            Load::Closed { .. } => self.released.front().map(|&(at, _)| at),
        }
    }

    /// Takes the request that arrives at [`Self::next_at`]; call only when there is one.
    ///
    /// # Errors
    /// When the request after it cannot be drawn.
    pub fn take(&mut self) -> Result<(RequestId, RequestBody), WorkloadError> {
        let at = self.next_at().expect("an arrival is pending");
        let (_, body) = self.next.take().expect("an arrival is pending");
        if let Some(front) = self.released.front_mut() {
            front.1 -= 1;
            if front.1 == 0 {
                self.released.pop_front();
            }
        }
        let id = self.next_id;
        self.next_id.0 += 1;
        self.last_arrival = at;
        self.draw()?;
        Ok((id, body))
    }

    /// A request ended at `at`; in a closed loop it releases the next after the think time. True
    /// when the next arrival or the end of traffic may have changed.
    #[inline]
    pub fn ended(&mut self, at: SimTime) -> bool {
        match self.load {
            Load::Closed { think, .. } if self.next.is_some() => {
                self.release(at + think, 1);
                true
            }
            Load::Closed { .. } | Load::Open(_) => false,
        }
    }

    /// When the traffic was over; `None` while more may come. It is over at the end of its period,
    /// or with its last arrival when it has none.
    pub fn over_at(&self) -> Option<SimTime> {
        let over = self.cut || self.next.is_none();
        over.then(|| self.period_end().unwrap_or(self.last_arrival))
    }

    /// The end of the period in which requests were to arrive: the horizon, or else the end of a
    /// rate curve. `None` when it is the requests that end it: the number asked for has come, or a
    /// trace without a horizon is at its last row.
    pub fn period_end(&self) -> Option<SimTime> {
        if self.cut || self.next.is_some() {
            return self.horizon;
        }
        match &self.load {
            Load::Closed { .. } => None,
            Load::Open(source) => match source.end() {
                SourceEnd::Count => None,
                SourceEnd::LastArrival => self.horizon,
                SourceEnd::Period(end) => self.horizon.or(Some(end)),
            },
        }
    }

    /// The latest moment at which traffic can be over, if there is a horizon.
    pub const fn horizon(&self) -> Option<SimTime> {
        self.horizon
    }

    /// Requests taken.
    pub const fn arrived(&self) -> u64 {
        self.next_id.0
    }

    /// What the source changed.
    pub fn notes(&self) -> SourceNotes {
        match &self.load {
            Load::Open(source) => source.notes(),
            Load::Closed { bodies, .. } => bodies.notes(),
        }
    }

    fn beyond_horizon(&self, at: SimTime) -> bool {
        self.horizon.is_some_and(|horizon| at >= horizon)
    }

    fn release(&mut self, at: SimTime, count: u64) {
        if count == 0 {
            return;
        }
        if self.beyond_horizon(at) {
            // Later releases would lie beyond it too.
            self.cut = true;
            return;
        }
        match self.released.back_mut() {
            Some((last, waiting)) if *last == at => *waiting += count,
            _ => self.released.push_back((at, count)),
        }
    }

    fn draw(&mut self) -> Result<(), WorkloadError> {
        let id = self.next_id;
        self.next = match &mut self.load {
            Load::Open(source) => source.next_arrival(id)?.map(|next| (next.at, next.body)),
            Load::Closed { bodies, .. } => bodies.next_body(id)?.map(|body| (SimTime::ZERO, body)),
        };
        if let (Load::Open(_), Some((at, _))) = (&self.load, &self.next) {
            assert!(*at >= self.last_arrival, "a source gives arrivals in order of time");
            if self.beyond_horizon(*at) {
                self.cut = true;
                self.next = None;
            }
        }
        Ok(())
    }
}
