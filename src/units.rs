//! Units of the simulator: points in time, spans of time, and the fixed-point time in which the
//! clock of one engine runs. Conversions between seconds and integers happen here and nowhere else.
//! Knows nothing of any other room.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// Picoseconds in one second.
pub const PS_PER_S: u64 = 1_000_000_000_000;
/// Picoseconds in one microsecond.
pub const PS_PER_US: u64 = 1_000_000;
/// Fractional bits of a picosecond in [`Fix`].
pub const FIX_BITS: u32 = 20;

/// Why a number of seconds is not a time.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum TimeError {
    /// Not a number, or infinite.
    #[error("{0} is not a finite number of seconds")]
    NotFinite(f64),
    /// Below zero.
    #[error("{0} s is negative")]
    Negative(f64),
    /// Beyond the range of the clock (about 213 days).
    #[error("{0} s is beyond the clock's range of 18446744 s (213 days)")]
    TooLong(f64),
}

fn ps_from_seconds(seconds: f64) -> Result<u64, TimeError> {
    if !seconds.is_finite() {
        return Err(TimeError::NotFinite(seconds));
    }
    if seconds < 0.0 {
        return Err(TimeError::Negative(seconds));
    }
    let ps = (seconds * PS_PER_S as f64).round();
    // u64::MAX as f64 rounds up to 2^64, so `<` keeps the conversion exact.
    if ps < u64::MAX as f64 { Ok(ps as u64) } else { Err(TimeError::TooLong(seconds)) }
}

/// A point in simulated time: picoseconds since the start of the run (range 213 days).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SimTime(pub u64);

/// A length of simulated time in picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(pub u64);

impl SimTime {
    /// The start of the run.
    pub const ZERO: Self = Self(0);
    /// The last representable point; events beyond the horizon saturate here.
    pub const MAX: Self = Self(u64::MAX);

    /// A point `seconds` after the start.
    ///
    /// # Errors
    /// When `seconds` is not finite, negative, or beyond the clock.
    pub fn from_seconds(seconds: f64) -> Result<Self, TimeError> {
        ps_from_seconds(seconds).map(Self)
    }

    /// A point `us` microseconds after the start, saturating.
    #[must_use]
    pub const fn from_micros(us: u64) -> Self {
        Self(us.saturating_mul(PS_PER_US))
    }

    /// Seconds since the start, for reports.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.0 as f64 / PS_PER_S as f64
    }

    /// Time since `earlier`; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// A span of `seconds`.
    ///
    /// # Errors
    /// When `seconds` is not finite, negative, or beyond the clock.
    pub fn from_seconds(seconds: f64) -> Result<Self, TimeError> {
        ps_from_seconds(seconds).map(Self)
    }

    /// A span of `us` microseconds, saturating.
    #[must_use]
    pub const fn from_micros(us: u64) -> Self {
        Self(us.saturating_mul(PS_PER_US))
    }

    /// Seconds, for reports.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.0 as f64 / PS_PER_S as f64
    }
}

impl Add<Span> for SimTime {
    type Output = Self;
    /// Saturates: a draw past the horizon stays past the horizon.
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub for SimTime {
    type Output = Span;
    fn sub(self, earlier: Self) -> Span {
        debug_assert!(self >= earlier, "time ran backwards: {self} before {earlier}");
        Span(self.0 - earlier.0)
    }
}

impl Add for Span {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Span {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        debug_assert!(self >= other, "a span below zero");
        Self(self.0 - other.0)
    }
}

impl fmt::Display for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.seconds())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.seconds())
    }
}

/// Time with [`FIX_BITS`] fractional bits of a picosecond, as a point or as a length. The clock of
/// an engine runs in this unit, so a run of steps may be split anywhere and give the same ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fix(pub u128);

impl Fix {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// Exactly `time`.
    #[must_use]
    pub const fn from_time(time: SimTime) -> Self {
        Self((time.0 as u128) << FIX_BITS)
    }

    /// Exactly `span`.
    #[must_use]
    pub const fn from_span(span: Span) -> Self {
        Self((span.0 as u128) << FIX_BITS)
    }

    /// The whole picosecond at or before this point (saturating at the end of the clock).
    #[must_use]
    pub const fn floor(self) -> SimTime {
        let ps = self.0 >> FIX_BITS;
        if ps > u64::MAX as u128 { SimTime::MAX } else { SimTime(ps as u64) }
    }

    /// Whole microseconds in this length, rounded down.
    #[must_use]
    pub const fn micros(self) -> u64 {
        ((self.0 >> FIX_BITS) / PS_PER_US as u128) as u64
    }
}

impl Add for Fix {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Fix {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_picoseconds_or_an_error() {
        assert_eq!(SimTime::from_seconds(1.5).unwrap(), SimTime(1_500_000_000_000));
        assert_eq!(SimTime::from_seconds(-1.0), Err(TimeError::Negative(-1.0)));
        assert!(matches!(SimTime::from_seconds(f64::NAN), Err(TimeError::NotFinite(_))));
        assert!(matches!(SimTime::from_seconds(f64::INFINITY), Err(TimeError::NotFinite(_))));
        assert!(matches!(SimTime::from_seconds(1.9e7), Err(TimeError::TooLong(_))));
        assert!(SimTime::from_seconds(213.0 * 86_400.0).is_ok());
    }

    #[test]
    fn fix_floors_to_the_picosecond() {
        let half = Fix(1 << (FIX_BITS - 1));
        let time = Fix::from_time(SimTime(7));
        assert_eq!((time + half).floor(), SimTime(7));
        assert_eq!((time + half + half).floor(), SimTime(8));
    }
}
