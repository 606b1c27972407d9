//! When generated requests come: even, Poisson and gamma gaps, and Poisson arrivals under a rate
//! curve. Knows rates and the clock; nothing of what the requests ask for.
//!
//! No clock here drifts. Gaps are rounded to whole picoseconds and added as integers (the rounding
//! errors are independent and below half a picosecond each); even gaps are added in units of 2^-64
//! ps; under a rate curve the window starts are integers and only the position inside the current
//! window is a float. Beyond the range of `SimTime` a clock has no more arrivals.

use super::WorkloadError;
use super::spec::ArrivalSpec;
use crate::kernel::rng::{Gamma, Stream};
use crate::units::{PS_PER_S, SimTime, Span};

/// Highest rate accepted, in requests per second: gaps of 1,000 ps leave the clock its meaning.
const RATE_RPS_MAX: f64 = 1e9;
/// 2^64: one more than the last picosecond of the clock, and the number of units in one.
const TWO_POW_64: f64 = 18_446_744_073_709_551_616.0;

/// A sequence of arrival times, none before the last.
pub(super) enum ArrivalClock {
    /// Even gaps.
    Constant(EvenClock),
    /// Exponential gaps.
    Poisson(GapClock),
    /// Gamma gaps.
    Gamma(GapClock, Gamma),
    /// Poisson arrivals under a rate that changes from window to window.
    Curve(CurveClock),
}

impl ArrivalClock {
    /// Checks `spec` and starts at time zero.
    ///
    /// # Errors
    /// When a rate, a coefficient of variation, the scale or the window is out of range.
    pub(super) fn new(spec: &ArrivalSpec) -> Result<Self, WorkloadError> {
        match spec {
            ArrivalSpec::Constant { rate_rps } => {
                Ok(Self::Constant(EvenClock::new(gap_ps(*rate_rps)?)))
            }
            ArrivalSpec::Poisson { rate_rps } => {
                Ok(Self::Poisson(GapClock { now_ps: 0, scale_ps: gap_ps(*rate_rps)? }))
            }
            ArrivalSpec::Gamma { rate_rps, cv } => {
                if !(1e-3..=1e3).contains(cv) {
                    let problem =
                        format!("{cv} is outside 0.001..=1000 (use constant arrivals for 0)");
                    return Err(WorkloadError::spec("arrivals.cv", problem));
                }
                let cv2 = cv * cv;
                let clock = GapClock { now_ps: 0, scale_ps: gap_ps(*rate_rps)? * cv2 };
                Ok(Self::Gamma(clock, Gamma::new(1.0 / cv2)))
            }
            ArrivalSpec::RateCurve { window, rates_rps, scale, repeat } => {
                CurveClock::new(*window, rates_rps, *scale, *repeat).map(Self::Curve)
            }
        }
    }

    /// The next arrival; `None` after the last, or beyond the clock's range.
    pub(super) fn next(&mut self, stream: &mut Stream) -> Option<SimTime> {
        match self {
            Self::Constant(clock) => clock.next(),
            Self::Poisson(clock) => clock.advance(stream.exponential()),
            Self::Gamma(clock, gamma) => clock.advance(gamma.draw(stream)),
            Self::Curve(clock) => clock.next(stream),
        }
    }

    /// The end of the last window of a rate curve; `None` for what goes on for ever.
    pub(super) fn end(&self) -> Option<SimTime> {
        match self {
            Self::Curve(clock) => (!clock.repeat).then_some(SimTime(clock.cycle_ps)),
            Self::Constant(_) | Self::Poisson(_) | Self::Gamma(..) => None,
        }
    }
}

/// Mean gap in picoseconds at a checked rate.
fn gap_ps(rate_rps: f64) -> Result<f64, WorkloadError> {
    if rate_rps > 0.0 && rate_rps <= RATE_RPS_MAX {
        return Ok(PS_PER_S as f64 / rate_rps);
    }
    let problem = format!("{rate_rps} is not a rate above 0 and at most {RATE_RPS_MAX} per second");
    Err(WorkloadError::spec("arrivals.rate_rps", problem))
}

/// Even gaps: arrival k at k/rate, to the precision of the rate itself.
pub(super) struct EvenClock {
    /// Units of 2^-64 ps.
    now: u128,
    /// `None` when the first gap is already beyond the clock.
    gap: Option<u128>,
}

impl EvenClock {
    fn new(gap_ps: f64) -> Self {
        let gap = (gap_ps < TWO_POW_64).then_some((gap_ps * TWO_POW_64) as u128);
        Self { now: 0, gap }
    }

    fn next(&mut self) -> Option<SimTime> {
        self.now = self.now.checked_add(self.gap?)?;
        Some(SimTime((self.now >> 64) as u64))
    }
}

/// Random gaps, each rounded to the picosecond.
pub(super) struct GapClock {
    now_ps: u64,
    /// Multiplies each draw.
    scale_ps: f64,
}

impl GapClock {
    fn advance(&mut self, draw: f64) -> Option<SimTime> {
        let gap = draw * self.scale_ps + 0.5;
        if gap >= TWO_POW_64 {
            return None;
        }
        self.now_ps = self.now_ps.checked_add(gap as u64)?;
        Some(SimTime(self.now_ps))
    }
}

/// Poisson arrivals under a rate that is constant within each window. The arrivals of a Poisson
/// process of rate 1 are mapped back through the cumulated rate (time change), so every draw is
/// used and windows of any length and rate come out right, also those far shorter than a gap.
pub(super) struct CurveClock {
    window_ps: u64,
    /// Expected arrivals in each window.
    masses: Vec<f64>,
    repeat: bool,
    index: usize,
    /// Start of window `index`.
    start_ps: u64,
    /// Expected arrivals from the window's start to the last arrival in it.
    used: f64,
    /// Expected arrivals in all windows together.
    cycle_mass: f64,
    cycle_ps: u64,
}

impl CurveClock {
    fn new(
        window: Span,
        rates_rps: &[f64],
        scale: f64,
        repeat: bool,
    ) -> Result<Self, WorkloadError> {
        if window == Span::ZERO {
            return Err(WorkloadError::spec("arrivals.window", "a window of 0 s holds nothing"));
        }
        if !(scale > 0.0 && scale.is_finite()) {
            let problem = format!("{scale} is not a finite number above 0");
            return Err(WorkloadError::spec("arrivals.scale", problem));
        }
        let mut masses = Vec::with_capacity(rates_rps.len());
        for (i, rate) in rates_rps.iter().enumerate() {
            let scaled = rate * scale;
            if !(0.0..=RATE_RPS_MAX).contains(&scaled) {
                let key = format!("arrivals.rates_rps[{i}]");
                let problem = format!("{rate} × scale {scale} is not in 0..={RATE_RPS_MAX}");
                return Err(WorkloadError::spec(key, problem));
            }
            masses.push(scaled * window.seconds());
        }
        let cycle_mass = masses.iter().sum();
        if cycle_mass == 0.0 {
            let problem = "all rates are 0, so no request would ever come";
            return Err(WorkloadError::spec("arrivals.rates_rps", problem));
        }
        let cycle_ps = window.0.saturating_mul(masses.len() as u64);
        let window_ps = window.0;
        Ok(Self {
            window_ps,
            masses,
            repeat,
            index: 0,
            start_ps: 0,
            used: 0.0,
            cycle_mass,
            cycle_ps,
        })
    }

    fn next(&mut self, stream: &mut Stream) -> Option<SimTime> {
        let mut ahead = stream.exponential();
        loop {
            let mass = *self.masses.get(self.index)?;
            let reached = self.used + ahead;
            if reached < mass {
                self.used = reached;
                return self.start_ps.checked_add(self.offset_ps(reached / mass)).map(SimTime);
            }
            ahead = (ahead - (mass - self.used)).max(0.0);
            self.used = 0.0;
            self.index += 1;
            self.start_ps = self.start_ps.checked_add(self.window_ps)?;
            if self.index == self.masses.len() && self.repeat {
                self.index = 0;
                ahead = self.skip_cycles(ahead)?;
            }
        }
    }

    /// Offset into the window at `share` of its length; inside it even when rounding says its end.
    fn offset_ps(&self, share: f64) -> u64 {
        ((share * self.window_ps as f64) as u64).min(self.window_ps - 1)
    }

    /// Passes the cycles that lie wholly before the next arrival, so that a curve with hardly any
    /// traffic costs no more than one with much.
    fn skip_cycles(&mut self, ahead: f64) -> Option<f64> {
        let whole = (ahead / self.cycle_mass).floor();
        if whole < 1.0 {
            return Some(ahead);
        }
        let skipped_ps = (whole as u64).checked_mul(self.cycle_ps)?;
        self.start_ps = self.start_ps.checked_add(skipped_ps)?;
        Some((ahead - whole * self.cycle_mass).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::rng::Cause;

    fn times(spec: &ArrivalSpec, seed: u64, n: usize) -> Vec<SimTime> {
        let mut clock = ArrivalClock::new(spec).unwrap();
        let mut stream = Stream::new(seed, Cause::Arrivals, 0);
        let times: Vec<_> = std::iter::from_fn(|| clock.next(&mut stream)).take(n).collect();
        assert!(times.is_sorted());
        times
    }

    fn curve(window: Span, rates_rps: &[f64], repeat: bool) -> ArrivalSpec {
        ArrivalSpec::RateCurve { window, rates_rps: rates_rps.to_vec(), scale: 1.0, repeat }
    }

    /// Counts follow `expected` within four standard deviations.
    fn check_count(count: usize, expected: f64) {
        let limit = 4.0 * expected.sqrt() + 1.0;
        assert!((count as f64 - expected).abs() < limit, "{count} arrivals, expected {expected}");
    }

    #[test]
    fn even_arrivals_do_not_drift_over_ten_million() {
        let clock = &mut EvenClock::new(gap_ps(3.0).unwrap());
        let last = (0..9_999_999).map_while(|_| clock.next()).last().unwrap();
        let exact = 9_999_999 / 3 * PS_PER_S;
        assert!(last.0.abs_diff(exact) <= 1_000, "{last} after 9,999,999 gaps of a third");
        assert_eq!(times(&ArrivalSpec::Constant { rate_rps: 4.0 }, 0, 2)[1], SimTime(PS_PER_S / 2));
    }

    #[test]
    fn poisson_count_and_gap_variation_are_those_of_the_rate() {
        let spec = ArrivalSpec::Poisson { rate_rps: 20.0 };
        let end = SimTime::from_seconds(5_000.0).unwrap();
        for seed in 0..5 {
            let times = times(&spec, seed, 200_000);
            check_count(times.partition_point(|&t| t < end), 100_000.0);
        }
    }

    #[test]
    fn gamma_gaps_have_the_mean_and_the_variation_asked_for() {
        for cv in [0.2, 0.8, 1.0, 3.0] {
            let times = times(&ArrivalSpec::Gamma { rate_rps: 50.0, cv }, 1, 100_000);
            let gaps: Vec<f64> = times.windows(2).map(|w| (w[1] - w[0]).seconds() * 50.0).collect();
            let n = gaps.len() as f64;
            let mean = gaps.iter().sum::<f64>() / n;
            let sd = (gaps.iter().map(|g| (g - mean) * (g - mean)).sum::<f64>() / n).sqrt();
            assert!((mean - 1.0).abs() < 5.0 * cv / n.sqrt(), "mean gap {mean} at cv {cv}");
            assert!((sd / cv - 1.0).abs() < 0.05, "cv {sd}, asked for {cv}");
        }
    }

    #[test]
    fn curve_gives_each_window_its_share() {
        let minute = Span::from_micros(60_000_000);
        let rates = [5.0, 0.0, 40.0, 12.5];
        let times = times(&curve(minute, &rates, false), 3, usize::MAX);
        for (i, rate) in rates.iter().enumerate() {
            let inside = times.iter().filter(|t| t.0 / minute.0 == i as u64).count();
            check_count(inside, rate * 60.0);
        }
        assert!(times.iter().all(|t| t.0 < 4 * minute.0));
    }

    #[test]
    fn curve_windows_far_shorter_than_a_gap_keep_the_mean_rate() {
        // A window holds a thousandth of a request; redrawing at edges or thinning against a
        // maximum would both still have to give rate × time.
        let window = Span::from_micros(100);
        let times = times(&curve(window, &[0.0, 20.0], true), 5, 20_000);
        let seconds = times.last().unwrap().seconds();
        check_count(times.len(), 10.0 * seconds);
        assert!(times.iter().all(|t| t.0 / window.0 % 2 == 1), "an arrival in a window of rate 0");
    }

    #[test]
    fn curve_of_one_rate_is_poisson_whatever_the_window() {
        let rate = 7.0;
        let plain = times(&ArrivalSpec::Poisson { rate_rps: rate }, 9, 5_000);
        for us in [37, 1_000, 1_000_000, 3_600_000_000] {
            let cut = times(&curve(Span::from_micros(us), &[rate], true), 9, 5_000);
            let apart = plain.iter().zip(&cut).map(|(a, b)| a.0.abs_diff(b.0)).max().unwrap();
            assert!(apart < 1_000_000, "windows of {us} µs move an arrival by {apart} ps");
        }
    }

    #[test]
    fn clocks_end_beyond_their_range() {
        let rare = 1e-12;
        assert!(times(&ArrivalSpec::Constant { rate_rps: rare }, 0, 9).is_empty());
        assert!(times(&ArrivalSpec::Poisson { rate_rps: rare }, 0, 9).is_empty());
        assert!(times(&ArrivalSpec::Gamma { rate_rps: rare, cv: 0.5 }, 0, 9).is_empty());
        assert!(times(&curve(Span::from_micros(1), &[rare], true), 0, 9).is_empty());
        let daily = times(&ArrivalSpec::Constant { rate_rps: 1.0 / 86_400.0 }, 0, 1_000);
        assert_eq!(daily.len(), 213);
    }

    #[test]
    fn bad_values_name_their_key() {
        let bad = |spec: ArrivalSpec| match ArrivalClock::new(&spec) {
            Ok(_) => panic!("{spec:?} was accepted"),
            Err(error) => error.to_string(),
        };
        for rate_rps in [0.0, -1.0, f64::NAN, f64::INFINITY, 2e9] {
            assert!(bad(ArrivalSpec::Poisson { rate_rps }).starts_with("arrivals.rate_rps: "));
        }
        let gamma = |cv| ArrivalSpec::Gamma { rate_rps: 1.0, cv };
        assert!(bad(gamma(0.0)).contains("use constant arrivals"));
        assert!(bad(gamma(f64::NAN)).starts_with("arrivals.cv: "));
        let second = Span::from_micros(1_000_000);
        assert!(bad(curve(Span::ZERO, &[1.0], true)).starts_with("arrivals.window: "));
        assert!(bad(curve(second, &[1.0, -2.0], true)).starts_with("arrivals.rates_rps[1]: -2 "));
        assert!(bad(curve(second, &[], true)).contains("no request would ever come"));
        assert!(bad(curve(second, &[0.0], false)).contains("no request would ever come"));
    }
}
