//! Lengths of time as people write them: `250ms`, `15m`, `1h30m`. Exact: text becomes picoseconds
//! without passing through floating point, and back.

use crate::units::Span;

/// Units in falling order, with their picoseconds. `m` is minutes, `ms` milliseconds.
const UNITS: [(&str, u128); 8] = [
    ("d", 86_400_000_000_000_000),
    ("h", 3_600_000_000_000_000),
    ("m", 60_000_000_000_000),
    ("s", 1_000_000_000_000),
    ("ms", 1_000_000_000),
    ("us", 1_000_000),
    ("ns", 1_000),
    ("ps", 1),
];

/// Why a text is no length of time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Something else stands there.
    #[error("not a number with a unit")]
    Malformed,
    /// A number without a unit.
    #[error("the unit is missing")]
    NoUnit,
    /// A unit that does not exist.
    #[error("`{0}` is no unit of time")]
    UnknownUnit(String),
    /// Beyond 213 days.
    #[error("beyond the clock's range of 213 days")]
    TooLong,
    /// Below zero.
    #[error("negative")]
    Negative,
}

/// Reads a length of time, such as `250ms`, `1.5s` or `1h30m`.
///
/// # Errors
/// When the text is none, or reaches beyond the clock.
pub fn parse(text: &str) -> Result<Span, DurationError> {
    let mut rest = text.trim();
    if rest.starts_with('-') {
        return Err(DurationError::Negative);
    }
    if rest.is_empty() {
        return Err(DurationError::Malformed);
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_');
        let Some(number_end) = number_end else { return Err(DurationError::NoUnit) };
        let (number, after) = rest.split_at(number_end);
        let after = after.trim_start();
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == ' ').unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        total = total.checked_add(scaled(number, unit_ps(unit)?)?).ok_or(DurationError::TooLong)?;
        rest = next.trim_start();
    }
    u64::try_from(total).map(Span).map_err(|_| DurationError::TooLong)
}

fn unit_ps(unit: &str) -> Result<u128, DurationError> {
    let name = match unit {
        "min" => "m",
        "µs" | "μs" => "us",
        other => other,
    };
    UNITS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, ps)| *ps)
        .ok_or_else(|| DurationError::UnknownUnit(unit.to_owned()))
}

/// `number` times `unit`, rounded to the nearest picosecond.
fn scaled(number: &str, unit: u128) -> Result<u128, DurationError> {
    let digits = number.replace('_', "");
    let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    if whole.is_empty() || fraction.contains('.') || fraction.len() > 18 {
        return Err(DurationError::Malformed);
    }
    let whole: u128 = whole.parse().map_err(|_| DurationError::TooLong)?;
    let mut ps = whole.checked_mul(unit).ok_or(DurationError::TooLong)?;
    if !fraction.is_empty() {
        let parts: u128 = fraction.parse().map_err(|_| DurationError::Malformed)?;
        let denominator = 10u128.pow(fraction.len() as u32);
        ps += (parts * unit + denominator / 2) / denominator;
    }
    Ok(ps)
}

/// The shortest text that [`parse`] reads back exactly: a whole number of the largest unit up to
/// seconds that divides it.
#[must_use]
pub fn format(span: Span) -> String {
    let ps = u128::from(span.0);
    let fitting = UNITS[3..].iter().find(|(_, unit)| ps.is_multiple_of(*unit));
    match fitting {
        Some((name, unit)) => format!("{}{name}", ps / unit),
        None => unreachable!("one picosecond divides every length"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_picoseconds_exactly() {
        for (text, ps) in [
            ("250ms", 250_000_000_000),
            ("15m", 900_000_000_000_000),
            ("1h30m", 5_400_000_000_000_000),
            ("2 d", 172_800_000_000_000_000),
            ("1.5s", 1_500_000_000_000),
            ("0s", 0),
            ("0.1ns", 100),
            ("3µs", 3_000_000),
            ("5min", 300_000_000_000_000),
            ("18446744073709551615ps", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(Span(ps)), "{text}");
            assert_eq!(parse(&format(Span(ps))), Ok(Span(ps)), "{text}");
        }
        assert_eq!(format(Span(90_000_000_000_000)), "90s");
        assert_eq!(format(Span(1_500_000_000_000)), "1500ms");
    }

    #[test]
    fn anything_else_is_refused() {
        use DurationError as E;
        for (text, error) in [
            ("", E::Malformed),
            ("10", E::NoUnit),
            ("-1s", E::Negative),
            ("1.2.3s", E::Malformed),
            ("s", E::Malformed),
            ("3 weeks", E::UnknownUnit("weeks".into())),
            ("214d", E::TooLong),
            ("99999999999999999999999999999999999999999d", E::TooLong),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
    }
}
