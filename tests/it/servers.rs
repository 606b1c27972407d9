//! Engines too simple to be wrong: queues whose behaviour is known from books, behind the face of a
//! real engine; and traffic from lists. For tests of the loop, the routers and the counting.

use fleetcast::engine::config::{EngineConfig, KvGroup, SchedulingPolicy, VersionProfile};
use fleetcast::engine::record::{EngineRecord, EngineTotals, FinishReason, ReplicaState};
use fleetcast::engine::replica::{EngineSink, Replica, Wake, WakeKind};
use fleetcast::engine::request::{EngineRequest, Prompt, RequestId, StreamId};
use fleetcast::latency::{Coefficients, StepTimeModel};
use fleetcast::router::RouterConfig;
use fleetcast::sim::config::{GoodputLimits, PoolConfig, SimConfig};
use fleetcast::sim::result::{Recorder, RequestRow, RunResult, SampleRow};
use fleetcast::sim::{self, SimError};
use fleetcast::units::{Fix, SimTime, Span};
use fleetcast::workload::{
    Arrival, ArrivalSource, BodySource, Load, RequestBody, SourceNotes, WorkloadError,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::rc::Rc;

/// How a [`Server`] serves.
#[derive(Clone)]
pub struct Service {
    /// Jobs at a time.
    pub servers: u32,
    /// Requests in a job; they start and end together.
    pub batch: u32,
    /// A job takes this long to the first token,
    pub fixed: Span,
    /// plus this for each prompt token of its longest prompt,
    pub per_prompt_token: Span,
    /// then this for each further token of its longest answer.
    pub gap: Span,
    /// Longer prompts are never admitted and block the queue.
    pub prompt_max: u32,
    /// Calls are written here, if anywhere.
    pub log: Option<Log>,
}

/// Calls of all engines in order: time in picoseconds, replica, call.
pub type Log = Rc<RefCell<Vec<(u64, u32, &'static str)>>>;

impl Service {
    /// One request at a time, `fixed` for each.
    pub fn fixed(fixed: Span) -> Self {
        Self {
            servers: 1,
            batch: 1,
            fixed,
            per_prompt_token: Span::ZERO,
            gap: Span::ZERO,
            prompt_max: u32::MAX,
            log: None,
        }
    }

    /// One request at a time, so long for each prompt token.
    pub fn per_prompt_token(span: Span) -> Self {
        Self { per_prompt_token: span, ..Self::fixed(Span::ZERO) }
    }
}

struct Job {
    start: SimTime,
    end: SimTime,
    members: Vec<(EngineRequest, SimTime)>,
}

/// A first-come-first-served queue.
pub struct Server {
    service: Service,
    number: u32,
    waiting: VecDeque<(EngineRequest, SimTime)>,
    jobs: Vec<Job>,
    aborts: Vec<RequestId>,
    /// When something last changed; the next schedule call is due then.
    changed: SimTime,
    totals: EngineTotals,
}

impl Server {
    pub fn new(service: Service, number: u32) -> Self {
        Self {
            service,
            number,
            waiting: VecDeque::new(),
            jobs: Vec::new(),
            aborts: Vec::new(),
            changed: SimTime::ZERO,
            totals: EngineTotals::default(),
        }
    }

    fn log(&self, now: SimTime, call: &'static str) {
        if let Some(log) = &self.service.log {
            log.borrow_mut().push((now.0, self.number, call));
        }
    }

    fn can_start(&self) -> bool {
        (self.jobs.len() as u32) < self.service.servers
            && self.waiting.front().is_some_and(|(r, _)| r.prompt.len() <= self.service.prompt_max)
    }

    fn start(&mut self, now: SimTime) {
        while self.can_start() {
            let take = self.waiting.len().min(self.service.batch as usize);
            let members: Vec<_> = self.waiting.drain(..take).collect();
            let longest = |of: fn(&EngineRequest) -> u32| {
                members.iter().map(|(request, _)| u64::from(of(request))).max().unwrap_or(0)
            };
            let Service { fixed, per_prompt_token, gap, .. } = self.service;
            let first = Span(fixed.0 + per_prompt_token.0 * longest(|r| r.prompt.len()));
            let rest = Span(gap.0 * (longest(|r| r.max_tokens) - 1));
            self.totals.steps += 1;
            self.totals.busy += Fix::from_span(first + rest);
            self.jobs.push(Job { start: now, end: now + first + rest, members });
        }
    }

    fn end<S: EngineSink>(&mut self, now: SimTime, sink: &mut S) {
        self.carry_out_aborts(now, sink);
        let (ended, going) = self.jobs.drain(..).partition(|job| job.end <= now);
        self.jobs = going;
        for job in ended {
            let start: SimTime = job.start;
            let first = now.since(start).0
                - self.service.gap.0
                    * job
                        .members
                        .iter()
                        .map(|(r, _)| u64::from(r.max_tokens) - 1)
                        .max()
                        .unwrap_or(0);
            for (request, enqueued) in job.members {
                let gaps = u64::from(request.max_tokens) - 1;
                self.totals.output_tokens += gaps + 1;
                if gaps > 0 && request.measured {
                    sink.inter_token(1, Fix::from_span(self.service.gap), Fix::ZERO, gaps);
                }
                let times = Some((start, start + Span(first)));
                sink.finished(record(&request, enqueued, times, now, FinishReason::Length));
            }
        }
    }

    /// Aborts take effect while no job runs or when one ends.
    fn carry_out_aborts<S: EngineSink>(&mut self, now: SimTime, sink: &mut S) {
        for id in std::mem::take(&mut self.aborts) {
            if let Some(at) = self.waiting.iter().position(|(request, _)| request.id == id) {
                let (request, enqueued) = self.waiting.remove(at).expect("just found");
                sink.finished(record(&request, enqueued, None, now, FinishReason::Abort));
            }
            for job in &mut self.jobs {
                if let Some(at) = job.members.iter().position(|(request, _)| request.id == id) {
                    let (request, enqueued) = job.members.remove(at);
                    let times = Some((job.start, now));
                    sink.finished(record(&request, enqueued, times, now, FinishReason::Abort));
                }
            }
        }
    }
}

fn record(
    request: &EngineRequest,
    enqueued: SimTime,
    times: Option<(SimTime, SimTime)>,
    now: SimTime,
    reason: FinishReason,
) -> EngineRecord {
    let completed = reason == FinishReason::Length;
    EngineRecord {
        id: request.id,
        enqueued,
        first_scheduled: times.map(|(start, _)| start),
        first_token: times.map(|(_, first)| first).filter(|_| completed),
        finished: now,
        reason,
        prompt_tokens: request.prompt.len(),
        output_tokens: if completed { request.max_tokens } else { 0 },
        cached_tokens: 0,
        preemptions: 0,
        kv_wait: Span::ZERO,
        preempted_before_first_token: Span::ZERO,
        preempted_after_first_token: Span::ZERO,
        measured: request.measured,
    }
}

impl Replica for Server {
    fn enqueue<S: EngineSink>(&mut self, now: SimTime, request: EngineRequest, _: &mut S) {
        self.log(now, "enqueue");
        self.changed = now;
        self.waiting.push_back((request, now));
    }

    fn abort<S: EngineSink>(&mut self, now: SimTime, id: RequestId, sink: &mut S) {
        self.log(now, "abort");
        self.changed = now;
        self.aborts.push(id);
        if self.jobs.is_empty() {
            self.carry_out_aborts(now, sink);
        }
    }

    fn next_wake(&self) -> Option<Wake> {
        let output = self.jobs.iter().map(|job| Wake { at: job.end, kind: WakeKind::Output }).min();
        let schedule =
            self.can_start().then_some(Wake { at: self.changed, kind: WakeKind::Schedule });
        output.into_iter().chain(schedule).min()
    }

    fn wake<S: EngineSink>(&mut self, now: SimTime, sink: &mut S) {
        let wake = self.next_wake().expect("woken as announced");
        assert_eq!(wake.at, now);
        self.changed = now;
        match wake.kind {
            WakeKind::Output => {
                self.log(now, "output");
                self.end(now, sink);
            }
            WakeKind::Schedule => {
                self.log(now, "schedule");
                self.start(now);
            }
        }
    }

    fn observe(&self, _: SimTime) -> ReplicaState {
        let running = self.in_flight() - self.waiting.len() as u32;
        ReplicaState {
            running,
            waiting: self.waiting.len() as u32,
            used_blocks: running,
            usable_blocks: 100,
        }
    }

    fn totals(&self) -> EngineTotals {
        self.totals.clone()
    }

    fn busy_after(&self, at: SimTime) -> Fix {
        let after = self.jobs.iter().map(|job| job.end.since(job.start.max(at)).0);
        Fix::from_span(Span(after.sum()))
    }

    fn in_flight(&self) -> u32 {
        let running: usize = self.jobs.iter().map(|job| job.members.len()).sum();
        (running + self.waiting.len()) as u32
    }

    fn stalled(&self) -> Vec<RequestId> {
        if self.next_wake().is_some() {
            return Vec::new();
        }
        self.waiting.iter().map(|(request, _)| request.id).collect()
    }
}

/// A request with text of its own.
pub fn body(id: u64, prompt: u32, output: u32) -> RequestBody {
    RequestBody {
        prompt: Prompt::single(StreamId::own(RequestId(id)), prompt),
        output_tokens: output,
        priority: 0,
        skip_cache: false,
        abort_after: None,
    }
}

/// Requests from an iterator.
pub struct Listed<I>(pub I);

impl<I: Iterator<Item = Arrival> + Send> ArrivalSource for Listed<I> {
    fn next_arrival(&mut self, _: RequestId) -> Result<Option<Arrival>, WorkloadError> {
        Ok(self.0.next())
    }

    fn notes(&self) -> SourceNotes {
        SourceNotes::default()
    }
}

impl<I: Iterator<Item = RequestBody> + Send> BodySource for Listed<I> {
    fn next_body(&mut self, _: RequestId) -> Result<Option<RequestBody>, WorkloadError> {
        Ok(self.0.next())
    }

    fn notes(&self) -> SourceNotes {
        SourceNotes::default()
    }
}

/// Open traffic.
pub fn open<I>(arrivals: I) -> Load
where
    I: IntoIterator<Item = Arrival>,
    I::IntoIter: Send + 'static,
{
    Load::Open(Box::new(Listed(arrivals.into_iter())))
}

/// Open traffic at given microseconds, of requests of 10 prompt tokens and one output token.
pub fn open_at(micros: &[u64]) -> Load {
    let numbered = (0u64..).zip(micros.to_vec());
    open(numbered.map(|(id, us)| Arrival { at: SimTime::from_micros(us), body: body(id, 10, 1) }))
}

/// Closed traffic.
pub fn closed<I>(concurrency: u32, think: Span, bodies: I) -> Load
where
    I: IntoIterator<Item = RequestBody>,
    I::IntoIter: Send + 'static,
{
    Load::Closed { concurrency, think, bodies: Box::new(Listed(bodies.into_iter())) }
}

/// A pool of `instances` replicas without overheads.
pub fn pool(instances: u32, max_model_len: u32) -> PoolConfig {
    let engine = EngineConfig {
        version: VersionProfile::V0_32,
        max_num_seqs: 256,
        max_num_active_seqs: None,
        max_num_batched_tokens: 8192,
        max_num_scheduled_tokens: None,
        max_model_len,
        block_size: 16,
        num_gpu_blocks: 1000,
        enable_prefix_caching: false,
        enable_chunked_prefill: true,
        policy: SchedulingPolicy::Fcfs,
        watermark: 0.0,
        scheduler_reserve_full_isl: false,
        long_prefill_token_threshold: 0,
        long_prefill_token_threshold_adaptive: false,
        async_scheduling: false,
        prefix_cache_retention_interval: Some(0),
        kv_groups: vec![KvGroup::Full],
        speculation: None,
    };
    PoolConfig {
        name: "p".into(),
        instance_type: "ml.p5.48xlarge".into(),
        instances,
        replicas_per_instance: 1,
        engine,
        step_time: StepTimeModel::new(&Coefficients::default()).expect("zeros are fine"),
        routing_latency: Span::ZERO,
        frontend_latency: Span::ZERO,
        price_usd_per_hour: 1.0,
    }
}

/// A fleet of these pools with round robin and nothing else asked for.
pub fn fleet(pools: Vec<PoolConfig>) -> SimConfig {
    SimConfig {
        seed: 1,
        horizon: None,
        warm_up: SimTime::ZERO,
        drain_limit: None,
        sample_every: None,
        scrape_every: Span::ZERO,
        pools,
        router: RouterConfig::RoundRobin,
        goodput: GoodputLimits::default(),
    }
}

/// Keeps everything.
#[derive(Default)]
pub struct Kept {
    pub requests: Vec<RequestRow>,
    pub samples: Vec<SampleRow>,
}

impl Recorder for Kept {
    fn request(&mut self, row: &RequestRow) {
        self.requests.push(row.clone());
    }

    fn sample(&mut self, row: &SampleRow) {
        self.samples.push(row.clone());
    }
}

/// Runs servers that serve as `service` says.
pub fn run<Rec: Recorder>(
    config: &SimConfig,
    service: &Service,
    load: Load,
    recorder: &mut Rec,
) -> Result<RunResult, SimError<Infallible>> {
    let next = RefCell::new(0..);
    let make = |_: &PoolConfig| {
        let number = next.borrow_mut().next().unwrap_or(0);
        Ok(Server::new(service.clone(), number))
    };
    sim::run(config, make, load, recorder, &mut |_| ControlFlow::Continue(()))
}
