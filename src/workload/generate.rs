//! From a description of traffic to its source: generated requests, lazily drawn, one at a time.
//! Knows arrivals and bodies; nothing of what becomes of the requests.

use super::arrivals::ArrivalClock;
use super::bodies::Bodies;
use super::spec::TrafficSpec;
use super::trace::TraceSource;
use super::{
    Arrival, ArrivalSource, BodySource, Load, RequestBody, SourceEnd, SourceNotes, WorkloadError,
};
use crate::engine::request::RequestId;
use crate::kernel::rng::{Cause, Stream};

/// The source of the traffic that `spec` describes, in the run with `seed`. Generated requests are
/// drawn from the streams of their causes; a trace is read as it is needed.
///
/// # Errors
/// When a value of `spec` is out of range, or its trace cannot be opened or is of another format.
pub fn open_load(spec: &TrafficSpec, seed: u64) -> Result<Load, WorkloadError> {
    match spec {
        TrafficSpec::Open { arrivals, requests, bodies } => Ok(Load::Open(Box::new(Generated {
            clock: ArrivalClock::new(arrivals)?,
            gaps: Stream::new(seed, Cause::Arrivals, 0),
            bodies: Bodies::new(bodies, seed)?,
            left: requests.unwrap_or(u64::MAX),
            end: SourceEnd::Count,
        }))),
        TrafficSpec::Closed { concurrency, requests, think, bodies } => {
            if *concurrency == 0 {
                let problem = "0 requests in flight would do nothing";
                return Err(WorkloadError::spec("concurrency", problem));
            }
            let bodies = Bodies::new(bodies, seed)?;
            Ok(Load::Closed {
                concurrency: *concurrency,
                think: *think,
                bodies: Box::new(Released { bodies, left: *requests }),
            })
        }
        TrafficSpec::Trace(spec) => Ok(Load::Open(Box::new(TraceSource::open(spec)?))),
    }
}

/// Generated arrivals (open loop).
struct Generated {
    clock: ArrivalClock,
    gaps: Stream,
    bodies: Bodies,
    left: u64,
    end: SourceEnd,
}

impl ArrivalSource for Generated {
    fn next_arrival(&mut self, id: RequestId) -> Result<Option<Arrival>, WorkloadError> {
        if self.left == 0 {
            return Ok(None);
        }
        let Some(at) = self.clock.next(&mut self.gaps) else {
            self.left = 0; // Past the last window or the clock: nothing comes after it.
            self.end = self.clock.end().map_or(SourceEnd::LastArrival, SourceEnd::Period);
            return Ok(None);
        };
        self.left -= 1;
        Ok(Some(Arrival { at, body: self.bodies.draw(id) }))
    }

    fn end(&self) -> SourceEnd {
        self.end
    }

    fn notes(&self) -> SourceNotes {
        SourceNotes::default()
    }
}

/// Generated bodies (closed loop).
struct Released {
    bodies: Bodies,
    left: u64,
}

impl BodySource for Released {
    fn next_body(&mut self, id: RequestId) -> Result<Option<RequestBody>, WorkloadError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        Ok(Some(self.bodies.draw(id)))
    }

    fn notes(&self) -> SourceNotes {
        SourceNotes::default()
    }
}
