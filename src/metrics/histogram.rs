//! An HDR-style histogram of microseconds with three significant digits, exact sum and exact
//! maximum, built for one fast `record` and for arithmetic progressions of samples.

use crate::units::{FIX_BITS, Fix, PS_PER_S, PS_PER_US, Span};

/// Sub-buckets per power of two; 2048 keeps the relative width of a bucket below 1/1024.
const HALF: u64 = 1024;
const HALF_BITS: u32 = 10;
/// Units of [`Fix`] in a microsecond.
const UNITS_PER_US: u64 = PS_PER_US << FIX_BITS;
/// Samples that are cheaper counted one by one than by the edges of their buckets.
const FEW: u32 = 8;

/// Histogram of times. Values below 2,048 µs have buckets of 1 µs; above, a bucket is at most
/// 1/1024 of its value wide, as in an HDR histogram with three significant digits. Samples are
/// rounded down to whole microseconds for their bucket; sum and maximum are exact.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LatencyHistogram {
    counts: Vec<u64>,
    sum: Fix,
    max: Fix,
}

fn bucket_of(us: u64) -> usize {
    let shift = (64 - HALF_BITS - 1).saturating_sub(us.leading_zeros());
    ((u64::from(shift) * HALF) + (us >> shift)) as usize
}

/// Whole microseconds in `value`, rounded down. Below 213 days without a 128-bit division.
fn micros(value: Fix) -> u64 {
    match u64::try_from(value.0 >> FIX_BITS) {
        Ok(ps) => ps / PS_PER_US,
        Err(_) => value.micros(),
    }
}

/// Largest value in the bucket.
fn bucket_top(index: usize) -> u64 {
    let index = index as u64;
    let shift = (index / HALF).saturating_sub(1);
    let base = index - shift * HALF;
    (((base + 1) << shift) - 1).max(base)
}

impl LatencyHistogram {
    /// Makes room for bucket `index`.
    #[inline]
    fn reach(&mut self, index: usize) {
        if index >= self.counts.len() {
            self.grow(index);
        }
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        self.counts.resize(index + 1, 0);
    }

    /// Records `times` samples of `value`.
    #[inline]
    pub fn record_fix(&mut self, value: Fix, times: u64) {
        if times == 0 {
            return;
        }
        let index = bucket_of(micros(value));
        self.reach(index);
        self.counts[index] += times;
        self.sum.0 += value.0 * u128::from(times);
        if value > self.max {
            self.max = value;
        }
    }

    /// Records one sample.
    #[inline]
    pub fn record(&mut self, value: Span) {
        if value.0 == 0 {
            // Most waits for blocks and most losses to preemption.
            self.reach(0);
            self.counts[0] += 1;
            return;
        }
        let index = bucket_of(value.0 / PS_PER_US);
        self.reach(index);
        self.counts[index] += 1;
        let value = Fix::from_span(value);
        self.sum += value;
        if value > self.max {
            self.max = value;
        }
    }

    /// Records `times` samples of each of `first`, `first + increment`, ... (`steps` values),
    /// bucket by bucket.
    #[inline]
    pub fn record_progression(&mut self, first: Fix, increment: Fix, steps: u64, times: u64) {
        if steps == 1 {
            return self.record_fix(first, times);
        }
        if times == 0 || steps == 0 {
            return;
        }
        // Up to 17 s the figures fit 64 bits, whose products and quotients are several times
        // cheaper.
        match (u64::try_from(first.0), u64::try_from(increment.0), u32::try_from(steps)) {
            (Ok(first), Ok(increment), Ok(steps)) => {
                self.progress_narrow(first, increment, steps, times);
            }
            _ => self.progress_wide(first, increment, steps, times),
        }
    }

    #[inline]
    fn progress_narrow(&mut self, first: u64, increment: u64, steps: u32, times: u64) {
        let k = u64::from(steps);
        let total =
            u128::from(first) * u128::from(k) + u128::from(increment) * u128::from(k * (k - 1) / 2);
        let wide_last = u128::from(first) + u128::from(increment) * u128::from(k - 1);
        let Ok(last) = u64::try_from(wide_last) else {
            let (first, increment) = (u128::from(first), u128::from(increment));
            return self.progress_wide(Fix(first), Fix(increment), k, times);
        };
        self.sum.0 += total * u128::from(times);
        self.max = self.max.max(Fix(wide_last));
        self.reach(bucket_of(last / UNITS_PER_US));
        if steps > FEW {
            return self.count_narrow(last, increment, k, times);
        }
        let mut value = first;
        for _ in 0..steps {
            self.counts[bucket_of(value / UNITS_PER_US)] += times;
            value = value.wrapping_add(increment);
        }
    }

    #[cold]
    fn progress_wide(&mut self, first: Fix, increment: Fix, steps: u64, times: u64) {
        let k = u128::from(steps);
        let last = Fix(first.0 + increment.0 * (k - 1));
        self.sum.0 += (first.0 * k + increment.0 * (k * (k - 1) / 2)) * u128::from(times);
        self.max = self.max.max(last);
        self.reach(bucket_of(micros(last)));
        self.count_wide(first, increment, steps, times);
    }

    /// Counts `steps` values up to `last`, in units of [`Fix`], whose buckets exist.
    #[inline]
    fn count_narrow(&mut self, last: u64, increment: u64, steps: u64, times: u64) {
        let last_bucket = bucket_of(last / UNITS_PER_US);
        let mut left = steps;
        loop {
            let value = last - increment * (left - 1);
            let index = bucket_of(value / UNITS_PER_US);
            if index == last_bucket {
                self.counts[index] += left * times;
                return;
            }
            // The edge lies at or below `last`, so it does not overflow and the values rise.
            let edge = (bucket_top(index) + 1) * UNITS_PER_US;
            let fit = (edge - value).div_ceil(increment);
            self.counts[index] += fit * times;
            left -= fit;
        }
    }

    /// The same for any size.
    #[cold]
    fn count_wide(&mut self, first: Fix, increment: Fix, steps: u64, times: u64) {
        let mut done = 0u64;
        while done < steps {
            let value = Fix(first.0 + increment.0 * u128::from(done));
            let index = bucket_of(micros(value));
            let in_bucket = if increment.0 == 0 {
                steps - done
            } else {
                let next_us = bucket_top(index) + 1;
                let edge = Fix::from_span(Span::from_micros(next_us)).0;
                let fit = (edge - value.0).div_ceil(increment.0);
                u64::try_from(fit).unwrap_or(u64::MAX).min(steps - done)
            };
            self.counts[index] += in_bucket * times;
            done += in_bucket;
        }
    }

    /// Adds all samples of `other`.
    pub fn merge(&mut self, other: &Self) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// Samples recorded; counted up from the buckets.
    #[must_use]
    pub fn n(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Exact mean in seconds; `None` without samples.
    #[must_use]
    pub fn mean_s(&self) -> Option<f64> {
        let n = self.n();
        (n > 0).then(|| {
            let scale = PS_PER_S as f64 * f64::from(1u32 << FIX_BITS);
            self.sum.0 as f64 / n as f64 / scale
        })
    }

    /// Exact maximum in seconds; `None` without samples.
    #[must_use]
    pub fn max_s(&self) -> Option<f64> {
        (!self.counts.is_empty()).then(|| self.max.floor().seconds())
    }

    /// Nearest-rank percentile in seconds: the largest value of the bucket that holds the sample
    /// of rank ceil(share·n), never above the maximum. `share` in 0..=1.
    #[must_use]
    pub fn percentile_s(&self, share: f64) -> Option<f64> {
        let n = self.n();
        if n == 0 {
            return None;
        }
        let rank = ((share * n as f64).ceil() as u64).clamp(1, n);
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

/// Histogram of token counts, in buckets of the same relative width.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LengthHistogram {
    counts: Vec<u64>,
}

impl LengthHistogram {
    /// Counts one length.
    #[inline]
    pub fn record(&mut self, tokens: u32) {
        let index = bucket_of(u64::from(tokens));
        if index >= self.counts.len() {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += 1;
    }

    /// Adds all lengths of `other`.
    pub fn merge(&mut self, other: &Self) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
    }

    /// Nearest-rank percentile in tokens, to within a bucket; `None` without samples.
    #[must_use]
    pub fn percentile(&self, share: f64) -> Option<u64> {
        let n: u64 = self.counts.iter().sum();
        let rank = ((share * n as f64).ceil() as u64).clamp(1, n.max(1));
        let mut seen = 0;
        let reached = |&(_, count): &(usize, &u64)| {
            seen += count;
            seen >= rank
        };
        self.counts.iter().enumerate().find(reached).map(|(index, _)| bucket_top(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn a_progression_equals_its_samples(
            first_bits in 0u32..70,
            first_low in any::<u64>(),
            increment_bits in 0u32..62,
            increment_low in any::<u64>(),
            steps in 1u64..400,
            times in 1u64..5,
        ) {
            let of_bits = |bits: u32, low: u64| Fix((u128::from(low) << 6) >> (70 - bits));
            let first = of_bits(first_bits, first_low);
            let increment = of_bits(increment_bits, increment_low);
            let mut one = LatencyHistogram::default();
            let mut all = LatencyHistogram::default();
            for i in 0..steps {
                one.record_fix(Fix(first.0 + increment.0 * u128::from(i)), times);
            }
            all.record_progression(first, increment, steps, times);
            prop_assert_eq!(one, all);
        }

        #[test]
        fn percentiles_are_those_of_an_hdr_histogram(
            bits in prop::collection::vec((0u32..44, any::<u64>()), 1..300),
            shares in prop::collection::vec(0.0f64..=1.0, 1..10),
        ) {
            // An HDR histogram with three digits hands out the largest value of the bucket; ours
            // never exceeds the maximum.
            let mut hdr = hdrhistogram::Histogram::<u64>::new_with_bounds(1, 1 << 50, 3).unwrap();
            let mut ours = LatencyHistogram::default();
            for (bits, low) in bits {
                let us = (low >> 1) >> (63 - bits);
                hdr.record(us).unwrap();
                ours.record(Span::from_micros(us));
            }
            let exact = [0.0, 0.5, 0.9, 0.95, 0.99, 1.0];
            for share in shares.into_iter().chain(exact) {
                let expected = hdr.value_at_quantile(share).min(hdr.max());
                let max = ours.max_s().unwrap();
                let bucket = Span::from_micros(expected).seconds().min(max);
                // At share 0 the crate gives the smallest value of the first bucket.
                let seen = ours.percentile_s(share).unwrap();
                let first = Span::from_micros(hdr.highest_equivalent(hdr.min())).seconds();
                let wanted = if share == 0.0 { first.min(max) } else { bucket };
                prop_assert_eq!(seen, wanted, "share {}", share);
            }
        }

        #[test]
        fn a_span_is_recorded_as_its_fix(ps in any::<u64>()) {
            let mut spans = LatencyHistogram::default();
            let mut fixes = LatencyHistogram::default();
            spans.record(Span(ps));
            fixes.record_fix(Fix::from_span(Span(ps)), 1);
            prop_assert_eq!(spans, fixes);
        }
    }

    #[test]
    fn lengths_come_back_by_rank() {
        let mut lengths = LengthHistogram::default();
        assert_eq!(lengths.percentile(0.5), None);
        for tokens in 1..=100 {
            lengths.record(tokens);
        }
        let mut twice = lengths.clone();
        twice.merge(&lengths);
        for share in [0.05, 0.5, 0.95, 1.0] {
            assert_eq!(lengths.percentile(share), Some((share * 100.0) as u64));
            assert_eq!(twice.percentile(share), lengths.percentile(share));
        }
    }

    #[test]
    fn merged_histograms_hold_all_samples() {
        let (mut low, mut high, mut both) =
            (LatencyHistogram::default(), LatencyHistogram::default(), LatencyHistogram::default());
        for us in [3, 3_000, 3_000_000] {
            low.record(Span::from_micros(us));
            high.record(Span::from_micros(us * 7));
            both.record(Span::from_micros(us));
            both.record(Span::from_micros(us * 7));
        }
        low.merge(&high);
        assert_eq!(low, both);
        assert_eq!((low.n(), low.max_s()), (6, Some(21.0)));
        assert_eq!(LatencyHistogram::default().percentile_s(0.5), None);
        assert_eq!(LatencyHistogram::default().mean_s(), None);
    }
}
