"""A small model of a load test against one engine: enough of vLLM V1 to predict the mean latencies
that a benchmark reports, and no more.

Knows the step-time coefficients and a benchmark's settings. Leaves out: preemption (the KV cache
must hold what runs), block edges, and priorities. Requests are served first come, first served;
decoding sequences come before prompts; a prompt is cut to the token budget unless chunked prefill
is off. With asynchronous scheduling a batch is fixed when the batch before it starts.
"""

import random
from bisect import insort
from collections import deque
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True)
class Run:
    """One load point as the benchmark drove it. Exactly one of `rate` and `concurrency` is given
    for an open or a closed loop; `in_flight_max` is the client's own cap (None: no cap)."""

    input_tokens: float
    output_tokens: float
    rate: float | None = None
    concurrency: int | None = None
    duration_s: float = 60.0
    warmup_s: float = 0.0  # requests sent before are not counted
    stagger_s: float = 0.0  # a closed loop's first requests leave one after another, this apart
    completed_only: bool = False  # count only what ends within the duration
    in_flight_max: int | None = None
    cached_tokens: int = 0  # prompt tokens found in the prefix cache
    long_input_tokens: float | None = None  # second kind of prompt
    long_share: float = 0.0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    chunked_prefill: bool = True
    async_scheduling: bool = False
    seed: int = 1


class Request:
    """One request: what it asks for and when things happened to it."""

    __slots__ = ("sent", "ready", "prompt", "done", "output", "first", "end")

    def __init__(self, sent, ready, prompt, done, output):
        self.sent = sent
        self.ready = ready  # when it reaches the engine's queue
        self.prompt = prompt
        self.done = done  # prompt tokens computed so far
        self.output = output
        self.first = None
        self.end = None


def whole(mean, rng):
    """A whole number of tokens, at least one, with this mean."""
    low = int(mean)
    return max(1, low + (rng.random() < mean - low))


class Client:
    """Sends requests as the load generator did."""

    def __init__(self, run, frontend_s):
        self.run = run
        self.frontend_s = frontend_s
        self.rng = random.Random(run.seed)
        self.sent = []
        self.in_flight = 0
        self.due = deque()  # send times that the cap holds back
        self.next_arrival = None
        if run.rate is not None:
            self.next_arrival = self.rng.expovariate(run.rate)

    def make(self, now):
        run, rng = self.run, self.rng
        long = run.long_input_tokens is not None and rng.random() < run.long_share
        prompt = whole(run.long_input_tokens if long else run.input_tokens, rng)
        request = Request(
            now, now + self.frontend_s, prompt, min(run.cached_tokens, prompt - 1),
            whole(run.output_tokens, rng),
        )
        self.sent.append(request)
        self.in_flight += 1
        return request

    def start(self):
        """The first requests of a closed loop."""
        return [self.make(n * self.run.stagger_s) for n in range(self.run.concurrency or 0)]

    def arrivals(self, until):
        """Requests of an open loop sent up to `until`."""
        out = []
        cap = self.run.in_flight_max
        while self.next_arrival is not None and self.next_arrival <= until:
            if self.next_arrival > self.run.duration_s:
                self.next_arrival = None
                break
            if cap is None or self.in_flight < cap:
                out.append(self.make(self.next_arrival))
            else:
                self.due.append(self.next_arrival)
            self.next_arrival += self.rng.expovariate(self.run.rate)
        return out

    def ended(self, now, count):
        """Requests sent because `count` others ended."""
        self.in_flight -= count
        out = []
        for _ in range(count):
            if self.run.concurrency is not None:
                if now < self.run.duration_s:
                    out.append(self.make(now))
            elif self.due:
                self.due.popleft()
                out.append(self.make(now))
        return out


class Engine:
    """One engine between two steps."""

    def __init__(self, coefficients, run):
        self.coefficients = coefficients
        self.run = run
        self.waiting = deque()
        self.prefill = []  # admitted, prompt not yet computed
        self.decoding = 0
        self.kv_tokens = 0  # that the decoding sequences attend to in the next step
        self.finish = {}  # step number -> requests whose last token it makes
        self.step = 0
        self.batches = set()  # sequences that decoded in a step

    def compose(self):
        """The prompt chunks of the next step; admits what fits."""
        run, chunks = self.run, []
        budget = run.max_num_batched_tokens - self.decoding
        for request in self.prefill:
            chunk = min(request.prompt - request.done, budget)
            if chunk > 0:
                chunks.append((request, chunk))
                budget -= chunk
        while self.waiting and budget > 0:
            if self.decoding + len(self.prefill) >= run.max_num_seqs:
                break
            chunk = self.waiting[0].prompt - self.waiting[0].done
            if chunk > budget and not run.chunked_prefill:
                break
            chunk = min(chunk, budget)
            request = self.waiting.popleft()
            self.prefill.append(request)
            chunks.append((request, chunk))
            budget -= chunk
        return chunks

    def execute(self, chunks, now):
        """Runs one step from `now`; returns its end and how many requests it ended."""
        tokens = sum(chunk for _, chunk in chunks)
        attention = sum(chunk * (2 * request.done + chunk) for request, chunk in chunks)
        now += self.coefficients.step(
            tokens, len(chunks), attention, self.decoding, self.kv_tokens
        )
        self.step += 1
        if self.decoding:
            self.batches.add(self.decoding)
        self.kv_tokens += self.decoding
        over = self.finish.pop(self.step, [])
        for request in over:
            request.end = now
            self.kv_tokens -= request.prompt + request.output
            self.decoding -= 1
        ended = len(over)
        for request, chunk in chunks:
            request.done += chunk
            if request.done < request.prompt:
                continue
            self.prefill.remove(request)
            request.first = now
            if request.output == 1:
                request.end = now
                ended += 1
                continue
            self.decoding += 1
            self.kv_tokens += request.prompt + 1
            self.finish.setdefault(self.step + request.output - 1, []).append(request)
        return now, ended


def simulate(coefficients, run, frontend_s):
    """Runs the benchmark and returns its requests and the sizes of decode batches."""
    client, engine = Client(run, frontend_s), Engine(coefficients, run)
    queue = []  # (ready, number, request): on the way to the engine, first to arrive first

    def send(requests):
        for request in requests:
            insort(queue, (request.ready, next(numbers), request))

    numbers = count()
    send(client.start())
    now = known_until = 0.0  # a batch under asynchronous scheduling knows what came until then
    while True:
        send(client.arrivals(now))
        seen = known_until if run.async_scheduling else now
        while queue and queue[0][0] <= seen:
            engine.waiting.append(queue.pop(0)[2])
        chunks = engine.compose()
        known_until = now
        if not chunks and not engine.decoding:
            if engine.waiting:
                raise ValueError("a prompt exceeds max_num_batched_tokens without chunked prefill")
            later = [queue[0][0]] if queue else []
            if client.next_arrival is not None:
                later.append(client.next_arrival)
            if not later:
                return client.sent, engine.batches
            now = known_until = max(now, min(later))
            continue
        now, ended = engine.execute(chunks, now)
        send(client.arrivals(now))
        send(client.ended(now, ended))
        if run.completed_only and now > run.duration_s:
            return client.sent, engine.batches


def metrics(coefficients, run, frontend_s):
    """The figures that benchmark reports give: means in ms, rates per second; and the sizes of
    decode batches."""
    sent, batches = simulate(coefficients, run, frontend_s)
    limit = run.duration_s if run.completed_only else float("inf")
    kept = [r for r in sent if r.end is not None and r.end <= limit and r.sent >= run.warmup_s]
    many = [r for r in kept if r.output > 1]
    span = max(r.end for r in kept) - run.warmup_s
    return {
        "ttft_mean": 1e3 * sum(r.first - r.sent for r in kept) / len(kept),
        "tpot_mean": 1e3 * sum((r.end - r.first) / (r.output - 1) for r in many) / len(many),
        "e2e_mean": 1e3 * sum(r.end - r.sent for r in kept) / len(kept),
        "req_per_s": len(kept) / span,
        "batches": batches,
    }
