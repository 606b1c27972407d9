//! Was the queue still growing? Mean waiting time by time of arrival, in a handful of windows that
//! widen as the run goes on, so that its length need not be known. An observer of requests with
//! constant memory; integers only.

use crate::units::{SimTime, Span};

/// Windows kept; when a request arrives after the last, neighbours are joined.
const WINDOWS: usize = 64;
/// First width of a window: 1 ms.
const FIRST_WIDTH: Span = Span::from_micros(1000);
/// Growth below this is nobody's concern.
const GROWTH_MIN: Span = Span::from_micros(100_000);

/// Waiting time by time of arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitTrend {
    width_ps: u64,
    windows: [Window; WINDOWS],
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Window {
    wait_ps: u128,
    requests: u64,
}

/// A queue that grew over the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growth {
    /// Mean wait in seconds of requests that arrived in the second quarter of the run.
    pub early_s: f64,
    /// Mean wait in seconds of those of the last quarter.
    pub late_s: f64,
}

impl Default for WaitTrend {
    fn default() -> Self {
        Self { width_ps: FIRST_WIDTH.0, windows: [Window::default(); WINDOWS] }
    }
}

impl WaitTrend {
    /// Takes note of a request that arrived at `arrival` and waited for `wait`.
    pub fn record(&mut self, arrival: SimTime, wait: Span) {
        while arrival.0 / self.width_ps >= WINDOWS as u64 {
            self.widen();
        }
        let window = &mut self.windows[(arrival.0 / self.width_ps) as usize];
        window.wait_ps += u128::from(wait.0);
        window.requests += 1;
    }

    fn widen(&mut self) {
        for i in 0..WINDOWS / 2 {
            let (a, b) = (self.windows[2 * i], self.windows[2 * i + 1]);
            self.windows[i] =
                Window { wait_ps: a.wait_ps + b.wait_ps, requests: a.requests + b.requests };
        }
        self.windows[WINDOWS / 2..].fill(Window::default());
        // 64 windows cover the whole clock long before the width could overflow.
        self.width_ps = self.width_ps.saturating_mul(2);
    }

    /// The growth of the queue, when waits rose from each quarter of the run to the next and the
    /// last quarter waited at least half as long again as the second (the first holds the empty
    /// start). A steady backlog or a peak in the middle is none.
    #[must_use]
    pub fn growth(&self) -> Option<Growth> {
        let used = self.windows.iter().rposition(|w| w.requests > 0)? + 1;
        let mut mean_ps = [0u128; 4];
        for (quarter, mean) in mean_ps.iter_mut().enumerate() {
            let windows = &self.windows[used * quarter / 4..used * (quarter + 1) / 4];
            let requests: u64 = windows.iter().map(|w| w.requests).sum();
            let wait: u128 = windows.iter().map(|w| w.wait_ps).sum();
            *mean = wait.checked_div(u128::from(requests))?;
        }
        let [first, second, third, last] = mean_ps;
        let rises = first < second && second < third && third < last;
        let by = last.saturating_sub(second);
        let grows = rises && 2 * by >= second && by >= u128::from(GROWTH_MIN.0);
        let seconds = |ps: u128| ps as f64 / crate::units::PS_PER_S as f64;
        grows.then(|| Growth { early_s: seconds(second), late_s: seconds(last) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trend(wait_ms: impl Fn(u64) -> u64) -> WaitTrend {
        let mut trend = WaitTrend::default();
        for second in 0..1000 {
            let wait = Span::from_micros(wait_ms(second) * 1000);
            trend.record(SimTime::from_micros(second * 1_000_000), wait);
        }
        trend
    }

    #[test]
    fn a_queue_that_grows_to_the_end_is_told_from_one_that_does_not() {
        let overload = trend(|second| 10 * second).growth().unwrap();
        assert!((overload.early_s - 3.75).abs() < 0.2, "{overload:?}");
        assert!((overload.late_s - 8.75).abs() < 0.2, "{overload:?}");
        assert_eq!(trend(|_| 5_000).growth(), None, "steady backlog");
        assert_eq!(trend(|s| 10 * s.min(1000 - s)).growth(), None, "peak in the middle");
        assert_eq!(trend(|s| 5_000 * s.min(200) / 200).growth(), None, "fills, then holds");
        assert_eq!(trend(|s| s / 50).growth(), None, "too little to matter");
        assert_eq!(WaitTrend::default().growth(), None);
    }

    #[test]
    fn no_request_is_lost_when_windows_widen() {
        let trend = trend(|_| 1);
        assert_eq!(trend.windows.iter().map(|w| w.requests).sum::<u64>(), 1000);
        let mut far = WaitTrend::default();
        far.record(SimTime::MAX, Span::ZERO);
        assert_eq!(far.windows.iter().map(|w| w.requests).sum::<u64>(), 1);
    }
}
