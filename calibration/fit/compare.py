"""Simulated against measured: runs calibration/check/*.toml on the fleetcast program.

    cargo build --release
    python3 calibration/fit/compare.py target/release/fleetcast

Writes the table in calibration/README.md; Python 3.11, no packages. The fit itself uses bench.py, a
second and simpler model of the same benchmarks: this is the check that the program agrees.
"""

import argparse
import json
import subprocess
import tomllib
from pathlib import Path

from fit import HERE, OUT, spliced

# Check file: load point in measurements.toml.
CHECKS = {
    "kubecon-r1": "kubecon 1 req/s",
    "kubecon-r31": "kubecon 31.4 req/s",
    "kubecon-r62": "kubecon 61.8 req/s",
    "kubecon-r92": "kubecon 92.2 req/s",
    "kubecon-saturated": "kubecon 183.4 req/s",
    "l4-c1": "aggregated, 1 in flight per GPU",
    "l4-c2": "aggregated, 2 in flight per GPU",
    "l4-c4": "aggregated, 4 in flight per GPU",
    "l4-c6": "aggregated, 6 in flight per GPU",
    "l4-c8": "aggregated, 8 in flight per GPU",
    "l4-c12": "aggregated, 12 in flight per GPU",
}


def simulated(program, check):
    """Mean latencies in ms and the rate, under the names of measurements.toml; the sample size."""
    path = OUT / "check" / f"{check}.toml"
    ran = subprocess.run([program, "run", path, "--json", "--quiet"], capture_output=True, text=True)
    if ran.returncode != 0:
        raise SystemExit(f"{path}: exit code {ran.returncode}\n{ran.stderr}")
    summary = json.loads(ran.stdout)
    figures = {f"{name}_mean": 1000 * summary["latency_s"][name]["mean"]
               for name in ("ttft", "tpot", "e2e")}
    figures["req_per_s"] = summary["throughput"]["requests_per_s"]
    return figures, summary["latency_s"]["e2e"]["n"]


def metric_name(key):
    return ("throughput.requests_per_s", "req/s") if key == "req_per_s" else (
        key.replace("_", "."), "ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the fleetcast program")
    program = parser.parse_args().program
    data = tomllib.loads((HERE / "measurements.toml").read_text())
    runs = {run["id"]: run for run in data["run"]}
    rows, errors = [], {"fitted": [], "held out": []}
    for check, load in CHECKS.items():
        figures, n = simulated(program, check)
        fitted = runs[load]["fitted"]
        for key, measured in runs[load]["measured"].items():
            error = 100 * (figures[key] / measured - 1)
            seen = fitted if isinstance(fitted, bool) else key in fitted
            kind = "fitted" if seen else "held out"
            errors[kind].append(abs(error))
            metric, unit = metric_name(key)
            rows.append(f"| `{check}` | {n:,} | {metric} | {measured:.5g} | {figures[key]:.5g} "
                        f"| {unit} | {error:+.1f} | {kind if seen else '**held out**'} |")
    lead = [f"* {kind}: {len(all_)} figures, mean absolute error {sum(all_) / len(all_):.1f} %, "
            f"largest {max(all_):.1f} %" for kind, all_ in errors.items()]
    head = ["| check | requests | metric | measured | simulated | unit | error % | |",
            "|---|---:|---|---:|---:|---|---:|---|"]
    readme = OUT / "README.md"
    body = "\n".join([*lead, "", *head, *rows])
    readme.write_text(spliced(readme.read_text(), "checks", body))
    print("\n".join(lead))


if __name__ == "__main__":
    main()
