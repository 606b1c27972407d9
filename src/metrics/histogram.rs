//! An HDR-style histogram of microseconds with three significant digits, exact sum and exact
//! maximum, built for one fast `record` and for arithmetic progressions of samples.

use crate::units::{Fix, PS_PER_S, Span};

/// Sub-buckets per power of two; 2048 keeps the relative width of a bucket below 1/1024.
const HALF: u64 = 1024;
const HALF_BITS: u32 = 10;

/// Histogram of times. Values below 2,048 µs have buckets of 1 µs; above, a bucket is at most
/// 1/1024 of its value wide, as in an HDR histogram with three significant digits. Samples are
/// rounded down to whole microseconds for their bucket; sum and maximum are exact.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LatencyHistogram {
    counts: Vec<u64>,
    n: u64,
    sum: Fix,
    max: Fix,
}

fn bucket_of(us: u64) -> usize {
    let shift = (64 - HALF_BITS - 1).saturating_sub(us.leading_zeros());
    ((u64::from(shift) * HALF) + (us >> shift)) as usize
}

/// Largest value in the bucket.
fn bucket_top(index: usize) -> u64 {
    let index = index as u64;
    let shift = (index / HALF).saturating_sub(1);
    let base = index - shift * HALF;
    (((base + 1) << shift) - 1).max(base)
}

impl LatencyHistogram {
    /// Records `times` samples of `value`.
    #[inline]
    pub fn record_fix(&mut self, value: Fix, times: u64) {
        if times == 0 {
            return;
        }
        let index = bucket_of(value.micros());
        if index >= self.counts.len() {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += times;
        self.n += times;
        self.sum.0 += value.0 * u128::from(times);
        self.max = self.max.max(value);
    }

    /// Records one sample.
    #[inline]
    pub fn record(&mut self, value: Span) {
        self.record_fix(Fix::from_span(value), 1);
    }

    /// Records `times` samples of each of `first`, `first + increment`, ... (`steps` values),
    /// bucket by bucket.
    pub fn record_progression(&mut self, first: Fix, increment: Fix, steps: u64, times: u64) {
        if times == 0 || steps == 0 {
            return;
        }
        let mut done = 0u64;
        while done < steps {
            let value = Fix(first.0 + increment.0 * u128::from(done));
            let index = bucket_of(value.micros());
            let in_bucket = if increment.0 == 0 {
                steps - done
            } else {
                let next_us = bucket_top(index) + 1;
                let edge = Fix::from_span(Span::from_micros(next_us)).0;
                let fit = (edge - value.0).div_ceil(increment.0);
                u64::try_from(fit).unwrap_or(u64::MAX).min(steps - done)
            };
            if index >= self.counts.len() {
                self.counts.resize(index + 1, 0);
            }
            self.counts[index] += in_bucket * times;
            done += in_bucket;
        }
        self.n += steps * times;
        let k = u128::from(steps);
        self.sum.0 += (first.0 * k + increment.0 * (k * (k - 1) / 2)) * u128::from(times);
        self.max = self.max.max(Fix(first.0 + increment.0 * (k - 1)));
    }

    /// Adds all samples of `other`.
    pub fn merge(&mut self, other: &Self) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.n += other.n;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// Samples recorded.
    #[must_use]
    pub const fn n(&self) -> u64 {
        self.n
    }

    /// Exact mean in seconds; `None` without samples.
    #[must_use]
    pub fn mean_s(&self) -> Option<f64> {
        (self.n > 0).then(|| {
            let scale = PS_PER_S as f64 * f64::from(1u32 << crate::units::FIX_BITS);
            self.sum.0 as f64 / self.n as f64 / scale
        })
    }

    /// Exact maximum in seconds; `None` without samples.
    #[must_use]
    pub fn max_s(&self) -> Option<f64> {
        (self.n > 0).then(|| self.max.floor().seconds())
    }

    /// Nearest-rank percentile in seconds: the largest value of the bucket that holds the sample
    /// of rank ceil(share·n), never above the maximum. `share` in 0..=1.
    #[must_use]
    pub fn percentile_s(&self, share: f64) -> Option<f64> {
        if self.n == 0 {
            return None;
        }
        let rank = ((share * self.n as f64).ceil() as u64).clamp(1, self.n);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                let top = Span::from_micros(bucket_top(index)).seconds();
                return Some(top.min(self.max.floor().seconds()));
            }
        }
        self.max_s()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_tile_the_axis() {
        let mut expected_low = 0;
        for index in 0..12_000 {
            let top = bucket_top(index);
            assert_eq!(bucket_of(expected_low), index, "low edge {expected_low}");
            assert_eq!(bucket_of(top), index, "top edge {top}");
            assert!(top - expected_low < (expected_low / HALF).max(1));
            expected_low = top + 1;
        }
    }

    #[test]
    fn a_progression_equals_its_samples() {
        for (first, increment, steps) in
            [(5_000u64, 3u64, 4_000u64), (1, 1, 10), (900_000, 0, 7), (100, 5_000, 900)]
        {
            let fix = |us: u64| Fix(Fix::from_span(Span::from_micros(us)).0 + 12_345);
            let mut one = LatencyHistogram::default();
            let mut all = LatencyHistogram::default();
            let step = Fix(Fix::from_span(Span::from_micros(increment)).0 / 7);
            for i in 0..steps {
                one.record_fix(Fix(fix(first).0 + step.0 * u128::from(i)), 3);
            }
            all.record_progression(fix(first), step, steps, 3);
            assert_eq!(one, all);
        }
    }
}
