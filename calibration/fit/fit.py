#!/usr/bin/env python3
"""Fits the step-time profiles to published measurements and writes them.

    python3 calibration/fit/fit.py            fit, write calibration/*.toml and the README's tables
    python3 calibration/fit/fit.py --keep     write them with the factors of the last fit

Needs Python 3.11 and nothing else. The measurements are in measurements.toml, the roofline in
steptime.py, the model of a load test in bench.py. Deterministic: same input, same files.
"""

import argparse
import json
import sys
import tomllib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import bench
import solve
import steptime

HERE = Path(__file__).resolve().parent
OUT = HERE.parent
FACTORS = HERE / "factors.json"
UNITS = {"req_per_s": "req/s"}
METRICS = {
    "ttft_mean": "ttft.mean",
    "tpot_mean": "tpot.mean",
    "e2e_mean": "e2e.mean",
    "req_per_s": "throughput.requests_per_s",
}


@dataclass(frozen=True)
class Free:
    """A factor that is fitted: where it starts and its bounds."""

    start: float
    low: float
    high: float


@dataclass(frozen=True)
class Given:
    """A factor that is not fitted, and why it has this value."""

    value: float
    why: str


@dataclass(frozen=True)
class Profile:
    """What one fit is made of. Factors named `frontend_s@source` and `layer_s@source` hold for that
    source only and do not enter the profile."""

    name: str
    model: str
    gpu: str
    title: str
    factors: dict
    largest_graph: int
    head: str  # TOML before the step time
    region: str  # TOML of the region but for its batches
    notes: tuple  # comment lines


PROFILES = (
    Profile(
        name="llama-3-8b-h100",
        model="llama-3-8b",
        gpu="h100-sxm",
        title="Llama-3-8B class dense models, bf16, TP1, H100 SXM 80 GB",
        factors={
            "memory": Given(
                0.78,
                "share of 3.35 TB/s that single GEMMs of this model's sizes reach in public "
                "operator timings (aiconfigurator, vLLM 0.24, Apache-2.0)",
            ),
            "compute": Free(0.63, 0.2, 1.0),
            "kv": Free(0.87, 0.3, 1.0),
            "attention": Given(
                0.5,
                "share of 989 TFLOP/s that prefill attention of this shape reaches at 2,048-4,096 "
                "tokens in the same timings (0.39-0.56)",
            ),
            "layer_s": Free(4.5e-5, 1e-7, 1e-3),
            "decode_seq_s": Free(2.2e-5, 1e-7, 1e-3),
            "prefill_seq_s": Free(4e-4, 1e-6, 1e-1),
            "frontend_s": Free(0.018, 1e-3, 0.1),
            "layer_s@qwen3-14b": Free(1e-5, 1e-7, 1e-3),
            "frontend_s@qwen3-14b": Free(0.005, 1e-3, 0.1),
        },
        largest_graph=512,
        head='''name = "llama-3-8b-h100"
description = "8B-class dense models such as Llama-3.1-8B in bf16 on one H100 SXM"
model = "llama-3.1-8b"
gpu = "h100"
tensor_parallel_size = 1''',
        region='''input_tokens = [200, 4096]
output_tokens = [62, 1390]
concurrency = [1, 440]
kv_usage = [0.0, 0.4]''',
        notes=(
            "Prompts above about 1,000 tokens are known only from Qwen3-14B (up to 4,096), carried "
            "over by the shape of the model; nothing above 4,096 tokens, more than 128 sequences "
            "of an 8B model, speculative decoding, fp8 weights or an fp8 KV cache has been "
            "checked. The frontend latency is that of the KubeCon load test (client, network and "
            "API server together): the Qwen3-14B test shows 13 ms less.",
        ),
    ),
    Profile(
        name="qwen3-8b-fp8-l4",
        model="qwen3-8b-fp8",
        gpu="l4",
        title="Qwen3-8B-FP8, TP1, L4 24 GB",
        factors={
            "memory": Free(0.87, 0.3, 1.0),
            "compute": Free(0.3, 0.05, 1.0),
            "kv": Free(0.9, 0.3, 1.0),
            "attention": Given(
                0.3,
                "assumed near the share of the matrix products; one prompt length cannot separate "
                "the two",
            ),
            "layer_s": Free(5e-5, 1e-7, 1e-3),
            "decode_seq_s": Free(7e-5, 1e-7, 1e-3),
            "prefill_seq_s": Given(0.0, "lost beside a prefill of 1.6 s"),
            "frontend_s": Given(
                0.02, "assumed; 1 % of the TTFT of a 4,108-token prompt, not separable from it"
            ),
        },
        largest_graph=256,
        head='''name = "qwen3-8b-fp8-l4"
description = "Qwen3-8B with FP8 weights on one L4"
model = "qwen3-8b-fp8"
gpu = "l4"
tensor_parallel_size = 1''',
        region='''input_tokens = [256, 4108]
output_tokens = [64, 256]
concurrency = [1, 16]
kv_usage = [0.0, 0.8]''',
        notes=(
            "Prefill is known at one prompt length (4,108 tokens) and with the default Marlin "
            "kernel; Triton kernels need 1.07-1.11 s for that prompt instead of 1.6 s. A GPU held "
            "at its 72 W cap for long needs about 2 s. More than 16 sequences has not been "
            "checked. In the closed-loop tests requests move in lockstep, so the split of E2E into "
            "TTFT and TPOT depends on the order of events within a step: E2E is fitted there, the "
            "split is not.",
        ),
    ),
)

ENGINES = {
    "llama-3-8b-h100": '''name = "vllm"
version = "0.11.0 - 0.23.0"
flags = ["--dtype bfloat16", "--max-num-seqs 128"]''',
    "qwen3-8b-fp8-l4": '''name = "vllm"
version = "0.29.0"
flags = ["--attention-backend FLASHINFER", "--no-enable-prefix-caching"]''',
}


class Data:
    """Measurements of one profile."""

    def __init__(self, profile, text):
        self.profile = profile
        self.sources = text["source"]
        self.models = {name: steptime.Model(**body) for name, body in text["model"].items()}
        self.gpu = steptime.Gpu(**text["gpu"][profile.gpu])
        self.runs = [r for r in text["run"] if r["profile"] == profile.name]
        self.steps = [s for s in text["step"] if s["profile"] == profile.name]

    def coefficients(self, factors, model, source):
        values = {k: factors[k] for k in steptime.Efficiency.__dataclass_fields__}
        values["layer_s"] = factors.get(f"layer_s@{source}", values["layer_s"])
        efficiency = steptime.Efficiency(**values)
        return steptime.coefficients(
            self.models[model], self.gpu, efficiency, self.profile.largest_graph
        )

    def predicted(self, factors, run):
        """What bench.py makes of one load point."""
        source = run["source"]
        return bench.metrics(
            self.coefficients(factors, run["model"], source),
            bench.Run(**run["bench"]),
            factors.get(f"frontend_s@{source}", factors["frontend_s"]),
        )

    def batch(self, factors):
        """Least and most sequences that decoded together in what the profile's own model was fitted
        on: in the single steps as measured, in load tests as bench.py has them."""
        ours = [r for r in self.runs + self.steps
                if r["fitted"] and r["model"] == self.profile.model]
        sizes = set()
        for point in ours:
            sizes |= {point["batch"]} if "batch" in point else self.predicted(factors, point)["batches"]
        return min(sizes), max(sizes)

    def points(self, factors):
        """Every measured figure with its prediction, in file order."""
        out = []
        for run in self.runs:
            source = run["source"]
            predicted = self.predicted(factors, run)
            for metric, measured in run["measured"].items():
                fitted = run["fitted"]
                fitted = metric in fitted if isinstance(fitted, list) else fitted
                out.append(Point(source, run["id"], METRICS[metric], measured, predicted[metric],
                                 UNITS.get(metric, "ms"), fitted))
        for step in self.steps:
            batch, context = step["batch"], step["context"]
            predicted = 1e3 * self.coefficients(factors, step["model"], step["source"]).step(
                0, 0, 0, batch, batch * context
            )
            out.append(Point(step["source"], step["id"], "step", step["measured_ms"], predicted,
                             "ms", step["fitted"]))
        return out


@dataclass(frozen=True)
class Point:
    """One measured figure beside its prediction."""

    source: str
    what: str
    metric: str
    measured: float
    predicted: float
    unit: str
    fitted: bool

    @property
    def error(self):
        return self.predicted / self.measured - 1.0


class Residuals:
    """Relative errors of the fitted points as a function of the free factors; picklable."""

    def __init__(self, data, free, given):
        self.data, self.free, self.given = data, free, given

    def __call__(self, values):
        factors = dict(zip(self.free, values)) | self.given
        return [p.error for p in self.data.points(factors) if p.fitted]


def fit(profile, data, evaluate):
    """Least squares of the relative errors; returns all factors."""
    free = {k: f for k, f in profile.factors.items() if isinstance(f, Free)}
    given = {k: f.value for k, f in profile.factors.items() if isinstance(f, Given)}
    values, cost = solve.least_squares(
        Residuals(data, list(free), given),
        [f.start for f in free.values()],
        [f.low for f in free.values()],
        [f.high for f in free.values()],
        rounds=10,
        evaluate=evaluate,
    )
    print(f"{profile.name}: sum of squared relative errors {cost:.4f}", file=sys.stderr)
    # Rounded so that the committed factors give the committed files exactly.
    rounded = {k: float(f"{v:.4g}") for k, v in zip(free, values)}
    return rounded | given


def mape(points):
    """Mean absolute relative error in %."""
    return 100.0 * sum(abs(p.error) for p in points) / len(points)


def summary(points):
    """Errors in one line each for fitted and held-out points."""
    fitted = [p for p in points if p.fitted]
    held = [p for p in points if not p.fitted]
    return (
        f"fitted on {len(fitted)} figures, mean absolute error {mape(fitted):.1f} %, "
        f"largest {max(abs(p.error) for p in fitted) * 100:.1f} %",
        f"held out {len(held)} figures, mean absolute error {mape(held):.1f} %, "
        f"largest {max(abs(p.error) for p in held) * 100:.1f} %",
    )


def implied(data, factors):
    """What the factors mean, as comment lines."""
    model, gpu = data.models[data.profile.model], data.gpu
    rows = [
        ("weights streamed at", factors["memory"] * gpu.bytes_per_s / 1e9, "GB/s",
         factors["memory"], gpu.bytes_per_s / 1e9),
        ("KV cache read at", factors["kv"] * gpu.bytes_per_s / 1e9, "GB/s", factors["kv"],
         gpu.bytes_per_s / 1e9),
        ("matrix products at", factors["compute"] * gpu.flops_per_s / 1e12, "TFLOP/s",
         factors["compute"], gpu.flops_per_s / 1e12),
        ("prefill attention at", factors["attention"] * gpu.flops_per_s / 1e12, "TFLOP/s",
         factors["attention"], gpu.flops_per_s / 1e12),
    ]
    lines = [
        f"{what:21s} {value:6.0f} {unit:8s} = {share:.3f} of the datasheet's {peak:.0f}"
        for what, value, unit, share, peak in rows
    ]
    lines.append(f"a step spends {factors['layer_s'] * 1e6:.1f} us a layer whatever it holds, "
                 f"{factors['decode_seq_s'] * 1e6:.1f} us a decoding")
    lines.append(f"sequence and {factors['prefill_seq_s'] * 1e3:.2f} ms a sequence in prefill; "
                 f"{model.weight_bytes / 1e9:.2f} GB of weights are streamed")
    for name, factor in data.profile.factors.items():
        if isinstance(factor, Given):
            lines.append(f"{name} is not fitted: {factor.why}")
    return lines


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def wrapped(lines):
    """Comment lines of at most 100 columns."""
    out = []
    for line in lines:
        words, current = line.split(" "), "#"
        for word in words:
            if len(current) + 1 + len(word) > 100:
                out.append(current)
                current = "#  "
            current += " " + word
        out.append(current)
    return out


def number(value, digits=6):
    return repr(float(f"{value:.{digits}g}"))


def profile_text(data, factors, points):
    """The profile file."""
    profile = data.profile
    c = data.coefficients(factors, profile.model, None)
    lines = [f"# Step-time profile: {profile.title}."]
    lines += wrapped(("Written by calibration/fit/fit.py; edit the measurements or the script, not "
                      "this file.", *summary(points)))
    lines += ["#", "# Implied efficiencies:"] + wrapped(implied(data, factors))
    lines += ["#", "# Limits:"] + wrapped(profile.notes)
    lines += ["", profile.head, f"frontend_latency_s = {number(factors['frontend_s'])}"]
    lines += ["", "[engine]", ENGINES[profile.name], "", "[step_time]"]
    lines += [f"fixed_s = {number(c.fixed_s)}", "tokens_table = ["]
    lines += [f"    [{tokens}, {number(seconds)}]," for tokens, seconds in c.tokens_table]
    lines += ["]"]
    for key in ("per_prefill_token_s", "per_prefill_seq_s", "per_decode_seq_s", "per_kv_token_s",
                "per_prefill_attention_s"):
        lines.append(f"{key} = {number(getattr(c, key))}")
    sizes = [str(s) for s in c.graph_sizes]
    lines.append("graph_sizes = [")
    for at in range(0, len(sizes), 16):
        lines.append("    " + ", ".join(sizes[at:at + 16]) + ",")
    low, high = data.batch(factors)
    lines += ["]", "", "[region]", profile.region, f"batch = [{low}, {high}]"]
    used = {p.source for p in points}
    for name in (n for n in data.sources if n in used):
        source = data.sources[name]
        lines += ["", "[[source]]", f"id = {quoted(name)}"]
        lines += [f"{key} = {quoted(source[key])}" for key in ("title", "where", "licence", "note")]
    for p in points:
        lines += ["", "[[point]]", f"source = {quoted(p.source)}", f"what = {quoted(p.what)}",
                  f"metric = {quoted(p.metric)}", f"measured = {number(p.measured)}",
                  f"predicted = {number(p.predicted)}", f"unit = {quoted(p.unit)}",
                  f"error_pct = {round(100 * p.error, 2)}", f"fitted = {str(p.fitted).lower()}"]
    return "\n".join(lines) + "\n"


def table_text(points):
    """The points as a Markdown table."""
    rows = ["| load point | metric | measured | predicted | unit | error % | |",
            "|---|---|---:|---:|---|---:|---|"]
    for p in points:
        rows.append(
            f"| {p.what} | {p.metric} | {p.measured:.5g} | {p.predicted:.5g} | {p.unit} "
            f"| {100 * p.error:+.1f} | {'fitted' if p.fitted else '**held out**'} |"
        )
    return "\n".join(rows)


def spliced(text, name, body):
    """`text` with the part between the two markers of `name` replaced."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before, rest = text.split(begin)
    return before + begin + "\n" + body + "\n" + end + rest.split(end)[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="keep the factors of the last fit")
    options = parser.parse_args()
    text = tomllib.loads((HERE / "measurements.toml").read_text())
    known = json.loads(FACTORS.read_text()) if options.keep else {}
    readme = OUT / "README.md"
    page = readme.read_text()
    with ProcessPoolExecutor() as pool:
        for profile in PROFILES:
            data = Data(profile, text)
            factors = known.get(profile.name) or fit(profile, data, pool.map)
            known[profile.name] = factors
            points = data.points(factors)
            (OUT / f"{profile.name}.toml").write_text(profile_text(data, factors, points))
            lead = "\n".join(f"* {line}" for line in summary(points))
            page = spliced(page, profile.name, f"{lead}\n\n{table_text(points)}")
            print("\n".join([profile.name, *summary(points)]))
    readme.write_text(page)
    FACTORS.write_text(json.dumps(known, indent=2) + "\n")


if __name__ == "__main__":
    main()
