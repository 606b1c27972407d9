//! Cost of the event queue: the earliest event handled and its source set anew, and a source that
//! stops and starts again, for 16 to 4,096 sources.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use fleetcast::kernel::wake::WakeQueue;
use fleetcast::units::{SimTime, Span};

const SOURCES: [u32; 3] = [16, 256, 4096];

/// Gaps between the events of one source, up to 1 µs, by a linear congruence (Knuth's MMIX).
fn gaps() -> impl Iterator<Item = Span> {
    let mut state = 1u64;
    std::iter::repeat_with(move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Span(state >> 44)
    })
}

fn full_queue(sources: u32) -> WakeQueue {
    let mut queue = WakeQueue::new(sources as usize);
    for (source, gap) in (0..sources).zip(gaps()) {
        queue.set(source, SimTime::ZERO + gap, 0);
    }
    queue
}

fn event_queue(c: &mut Criterion) {
    let gaps: Vec<Span> = gaps().take(1 << 12).collect();
    let mut group = c.benchmark_group("event_queue");
    for sources in SOURCES {
        group.bench_function(BenchmarkId::new("first_and_set", sources), |b| {
            let mut queue = full_queue(sources);
            let mut gap = gaps.iter().cycle();
            b.iter(|| {
                let first = queue.first();
                let gap = gap.next().copied().unwrap_or_default();
                queue.set(first.source(), first.at() + gap, 0);
                first
            });
        });
        group.bench_function(BenchmarkId::new("clear_and_set", sources), |b| {
            let mut queue = full_queue(sources);
            let mut source = 0;
            b.iter(|| {
                source = (source + 7) % sources;
                queue.clear(source);
                queue.set(source, SimTime::ZERO + gaps[source as usize], 0);
                black_box(queue.first())
            });
        });
    }
    group.finish();
}

criterion_group!(benches, event_queue);
criterion_main!(benches);
