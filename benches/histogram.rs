//! Cost of the latency histogram: a sample of its own, and the arithmetic progression of token
//! gaps that a stretch of decode steps leaves behind.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use fleetcast::metrics::LatencyHistogram;
use fleetcast::units::{Fix, Span};

/// Gaps of a batch of 77 with 1,150 tokens each, by the step time of the speed workloads.
const FIRST_GAP: Span = Span::from_micros(10_223);
/// 77 tokens more at 39 ns.
const GROWTH: Span = Span::from_micros(3);

fn histogram(c: &mut Criterion) {
    let mut group = c.benchmark_group("histogram");
    group.bench_function("record", |b| {
        let mut histogram = LatencyHistogram::default();
        let mut us = 0;
        b.iter(|| {
            us = (us + 104_729) % 10_000_000;
            histogram.record(Span::from_micros(us));
        });
    });
    for steps in [4u64, 64, 4096] {
        group.bench_function(BenchmarkId::new("progression", steps), |b| {
            let mut histogram = LatencyHistogram::default();
            let (first, growth) = (Fix::from_span(FIRST_GAP), Fix::from_span(GROWTH));
            b.iter(|| histogram.record_progression(first, growth, steps, 77));
        });
    }
    group.finish();
}

criterion_group!(benches, histogram);
criterion_main!(benches);
