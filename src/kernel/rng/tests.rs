//! Tests of streams and distributions: names, ranges, agreement with `rand_distr`, committed bits.

use super::*;
use rand_distr::Distribution;
use sha2::{Digest, Sha256};

const DRAWS: usize = 20_000;

fn stream(cause: Cause) -> Stream {
    Stream::new(7, cause, 0)
}

fn take(n: usize, mut draw: impl FnMut() -> f64) -> Vec<f64> {
    (0..n).map(|_| draw()).collect()
}

fn mean_and_variance(xs: &[f64]) -> (f64, f64) {
    let n = xs.len() as f64;
    let mean = xs.iter().sum::<f64>() / n;
    (mean, xs.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n)
}

/// Largest distance between two empirical distribution functions.
fn ks_distance(mut a: Vec<f64>, mut b: Vec<f64>) -> f64 {
    a.sort_by(f64::total_cmp);
    b.sort_by(f64::total_cmp);
    let (mut i, mut j, mut worst) = (0, 0, 0.0_f64);
    while i < a.len() && j < b.len() {
        let x = a[i].min(b[j]);
        i += a[i..].iter().take_while(|&&y| y <= x).count();
        j += b[j..].iter().take_while(|&&y| y <= x).count();
        let gap = i as f64 / a.len() as f64 - j as f64 / b.len() as f64;
        worst = worst.max(gap.abs());
    }
    worst
}

/// Our draws against `rand_distr`'s (Kolmogorov–Smirnov at the 0.1 % level) and against the true
/// mean and variance (five standard errors; `kurtosis` gives that of the variance).
fn check(name: &str, ours: &[f64], theirs: impl Distribution<f64>, truth: [f64; 3]) {
    let mut generator = ChaCha8Rng::seed_from_u64(99);
    let reference = take(ours.len(), || theirs.sample(&mut generator));
    let n = ours.len() as f64;
    let distance = ks_distance(ours.to_vec(), reference);
    let limit = 1.95 * (2.0 / n).sqrt();
    assert!(distance < limit, "{name}: distributions are {distance} apart, limit {limit}");
    let [mean, variance, kurtosis] = truth;
    let (m, v) = mean_and_variance(ours);
    let mean_limit = 5.0 * (variance / n).sqrt();
    assert!((m - mean).abs() < mean_limit, "{name}: mean {m}, expected {mean} ± {mean_limit}");
    let variance_limit = 5.0 * variance * ((kurtosis - 1.0) / n).sqrt();
    assert!((v - variance).abs() < variance_limit, "{name}: variance {v}, expected {variance}");
}

#[test]
fn exponential_agrees_with_rand_distr() {
    let mut s = stream(Cause::Arrivals);
    let xs = take(DRAWS, || s.exponential());
    check("exponential", &xs, rand_distr::Exp1, [1.0, 1.0, 9.0]);
}

#[test]
fn normal_agrees_with_rand_distr() {
    let mut s = stream(Cause::InputLengths);
    let xs = take(DRAWS, || s.normal());
    check("normal", &xs, rand_distr::StandardNormal, [0.0, 1.0, 3.0]);
}

#[test]
fn log_normal_agrees_with_rand_distr() {
    let sigma = 0.5_f64;
    let mut s = stream(Cause::OutputLengths);
    let xs = take(DRAWS, || s.log_normal(1.0, sigma));
    let w = (sigma * sigma).exp();
    let kurtosis = w.powi(4) + 2.0 * w.powi(3) + 3.0 * w.powi(2) - 3.0;
    let theirs = rand_distr::LogNormal::new(0.0, sigma).unwrap();
    check("log-normal", &xs, theirs, [w.sqrt(), (w - 1.0) * w, kurtosis]);
}

#[test]
fn gamma_agrees_with_rand_distr_on_both_sides_of_shape_one() {
    for shape in [0.1, 0.5, 1.0, 2.5, 40.0] {
        let (gamma, mut s) = (Gamma::new(shape), stream(Cause::Supply));
        let xs = take(DRAWS, || gamma.draw(&mut s));
        let theirs = rand_distr::Gamma::new(shape, 1.0).unwrap();
        check(&format!("gamma {shape}"), &xs, theirs, [shape, shape, 3.0 + 6.0 / shape]);
    }
}

#[test]
fn zipf_agrees_with_rand_distr() {
    let (zipf, mut s) = (Zipf::new(50, 1.2), stream(Cause::PrefixGroups));
    let xs = take(DRAWS, || zipf.draw(&mut s) as f64 + 1.0);
    let weight = |k: i32| f64::from(k).powf(-1.2);
    let total: f64 = (1..=50).map(weight).sum();
    let moment = |p: i32, m: f64| -> f64 {
        (1..=50).map(|k| (f64::from(k) - m).powi(p) * weight(k)).sum::<f64>() / total
    };
    let mean = moment(1, 0.0);
    let variance = moment(2, mean);
    let kurtosis = moment(4, mean) / variance / variance;
    let theirs = rand_distr::Zipf::new(50.0, 1.2).unwrap();
    check("zipf", &xs, theirs, [mean, variance, kurtosis]);
}

#[test]
fn zipf_with_exponent_zero_is_uniform_and_stays_inside() {
    let (zipf, mut s) = (Zipf::new(3, 0.0), stream(Cause::PrefixGroups));
    let mut counts = [0_u32; 3];
    for _ in 0..30_000 {
        counts[zipf.draw(&mut s) as usize] += 1;
    }
    assert!(counts.iter().all(|&c| c.abs_diff(10_000) < 500), "{counts:?}");
    assert_eq!(Zipf::new(1, 2.0).draw(&mut s), 0);
}

#[test]
fn units_keep_to_their_intervals() {
    let mut s = stream(Cause::Router);
    for _ in 0..100_000 {
        assert!((0.0..1.0).contains(&s.unit()));
        let open = s.open_unit();
        assert!(open > 0.0 && open <= 1.0);
        assert!(s.normal().is_finite());
    }
}

#[test]
fn below_is_unbiased_and_in_range() {
    let mut s = stream(Cause::Router);
    // With 3·2^62 values, plain truncation would give the low third twice its share.
    let n = 3 << 62;
    let low = (0..30_000).filter(|_| s.below(n) < 1 << 62).count();
    assert!(low.abs_diff(10_000) < 500, "{low} of 30,000 in the first third");
    let mut counts = [0_u32; 7];
    for _ in 0..70_000 {
        counts[s.below(7) as usize] += 1;
    }
    assert!(counts.iter().all(|&c| c.abs_diff(10_000) < 500), "{counts:?}");
    assert_eq!(s.below(1), 0);
}

#[test]
fn a_stream_depends_on_its_name_alone() {
    let draw = |s: &mut Stream| -> Vec<u64> { (0..8).map(|_| s.u64()).collect() };
    let alone = draw(&mut Stream::new(1, Cause::Arrivals, 0));
    let mut other = Stream::new(1, Cause::Router, 0);
    let mut arrivals = Stream::new(1, Cause::Arrivals, 0);
    let mixed: Vec<u64> = (0..8)
        .map(|_| {
            other.u64();
            arrivals.u64()
        })
        .collect();
    assert_eq!(alone, mixed);
    for neighbour in [
        Stream::new(2, Cause::Arrivals, 0),
        Stream::new(1, Cause::InputLengths, 0),
        Stream::new(1, Cause::Arrivals, 1),
        // Seed and entity exchanged: no pair may fold onto another.
        Stream::new(0, Cause::Arrivals, 1),
    ] {
        assert_ne!(alone, draw(&mut neighbour.clone()));
    }
}

fn fingerprint(mut draw: impl FnMut() -> u64) -> String {
    let mut hash = Sha256::new();
    for _ in 0..1_000 {
        hash.update(draw().to_le_bytes());
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The first 1,000 draws of each distribution, bit by bit (first 64 bits of the SHA-256). They
/// change only when results change on purpose; a platform or a dependency must not move them.
#[test]
fn first_thousand_draws_have_the_committed_bits() {
    let small = Gamma::new(0.25);
    let large = Gamma::new(4.0);
    let zipf = Zipf::new(1_000, 0.9);
    let s = |cause| Stream::new(42, cause, 3);
    let (mut a, mut b, mut c) = (s(Cause::Arrivals), s(Cause::InputLengths), s(Cause::Router));
    let (mut d, mut e, mut f) = (s(Cause::OutputLengths), s(Cause::Supply), s(Cause::Failures));
    let (mut g, mut h, mut i) = (s(Cause::PrefixGroups), s(Cause::Fit), s(Cause::Sessions));
    let found = [
        ("u64", fingerprint(|| a.u64())),
        ("unit", fingerprint(|| b.unit().to_bits())),
        ("below", fingerprint(|| c.below(1_000_003))),
        ("exponential", fingerprint(|| d.exponential().to_bits())),
        ("normal", fingerprint(|| e.normal().to_bits())),
        ("log-normal", fingerprint(|| f.log_normal(500.0, 1.5).to_bits())),
        ("gamma 0.25", fingerprint(|| small.draw(&mut g).to_bits())),
        ("gamma 4", fingerprint(|| large.draw(&mut h).to_bits())),
        ("zipf", fingerprint(|| zipf.draw(&mut i))),
    ];
    let expected = [
        ("u64", "3ded3d5a809d857c"),
        ("unit", "ba3226e1baa4096d"),
        ("below", "1e3495f788ae4c99"),
        ("exponential", "fcdd6b9f09aa04d6"),
        ("normal", "d33054ddc863faa1"),
        ("log-normal", "cbee2ac2897ac62e"),
        ("gamma 0.25", "c037d6161838c906"),
        ("gamma 4", "f86e51e97546f3d9"),
        ("zipf", "ab3bc7545e23e648"),
    ];
    assert_eq!(found.each_ref().map(|(name, bits)| (*name, bits.as_str())), expected);
}
