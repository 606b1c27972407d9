//! Numbers and time stamps as trace files write them, read exactly: decimals without a detour over
//! floats, dates by the civil calendar. Works on the bytes of one field; knows no format.

use crate::units::PS_PER_S;

/// Stamps in picoseconds beyond this magnitude are refused: 10^18 s is longer than any calendar.
const STAMP_PS_MAX: u128 = 1_000_000_000_000_000_000_000_000_000_000;
/// Significant digits kept of a decimal; the rest is far below a picosecond.
const DIGITS_MAX: u32 = 30;

/// Unit of a column of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Milliseconds,
    Microseconds,
    Nanoseconds,
}

impl Unit {
    /// The unit that a column name ends with, as in `arrival_us`, and the rest of the name.
    pub(super) fn of_name(name: &str) -> Option<(&str, Self)> {
        let (base, suffix) = name.rsplit_once('_')?;
        let unit = match suffix {
            "s" | "sec" | "seconds" => Self::Seconds,
            "ms" => Self::Milliseconds,
            "us" => Self::Microseconds,
            "ns" => Self::Nanoseconds,
            _ => return None,
        };
        Some((base, unit))
    }

    /// Its name in messages.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Milliseconds => "milliseconds",
            Self::Microseconds => "microseconds",
            Self::Nanoseconds => "nanoseconds",
        }
    }

    /// Power of ten of picoseconds in one.
    const fn exponent(self) -> i32 {
        match self {
            Self::Seconds => 12,
            Self::Milliseconds => 9,
            Self::Microseconds => 6,
            Self::Nanoseconds => 3,
        }
    }

    /// Picoseconds in one.
    pub(super) const fn ps(self) -> i128 {
        10_i128.pow(self.exponent() as u32)
    }
}

/// Picoseconds of a number of `unit`s that is not negative, as in `17`, `0.25` or `5e-05`; parts of
/// a picosecond are dropped. `None` when the text is anything else or out of range.
pub(super) fn decimal_ps(text: &[u8], unit: Unit) -> Option<i128> {
    if let Some(whole) = digits(text) {
        return Some(i128::from(whole) * unit.ps());
    }
    let (mantissa, exponent) = split_exponent(text)?;
    let (value, power) = decimal(mantissa)?;
    let power = power.checked_add(exponent)?.checked_add(unit.exponent())?;
    if value == 0 {
        return Some(0);
    }
    let ps = if power >= 0 {
        value.checked_mul(10_u128.checked_pow(power.unsigned_abs())?)?
    } else {
        10_u128.checked_pow(power.unsigned_abs()).map_or(0, |divisor| value / divisor)
    };
    (ps <= STAMP_PS_MAX).then_some(ps as i128)
}

/// A token count: a whole number that fits 32 bits, also when written as `374.0`.
pub(super) fn token_count(text: &[u8]) -> Option<u32> {
    let whole = match text.iter().position(|&b| b == b'.') {
        Some(dot) if text[dot + 1..].iter().all(|&b| b == b'0') => &text[..dot],
        _ => text,
    };
    u32::try_from(digits(whole)?).ok()
}

/// One to eighteen digits and nothing else, as most fields are.
fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 18 {
        return None;
    }
    // One branch a field, not one a digit.
    let (mut value, mut foreign) = (0_u64, false);
    for b in text {
        let digit = b.wrapping_sub(b'0');
        foreign |= digit > 9;
        value = value.wrapping_mul(10).wrapping_add(digit.into());
    }
    (!foreign).then_some(value)
}

fn split_exponent(text: &[u8]) -> Option<(&[u8], i32)> {
    let Some(e) = text.iter().position(|b| b.eq_ignore_ascii_case(&b'e')) else {
        return Some((text, 0));
    };
    let exponent = std::str::from_utf8(&text[e + 1..]).ok()?.parse().ok()?;
    Some((&text[..e], exponent))
}

/// `value`·10^`power` of digits with at most one point among them.
fn decimal(text: &[u8]) -> Option<(u128, i32)> {
    let (mut value, mut power, mut kept) = (0_u128, 0_i32, 0);
    let (mut point, mut any) = (false, false);
    for &b in text {
        if b == b'.' && !point {
            point = true;
            continue;
        }
        if !b.is_ascii_digit() {
            return None;
        }
        any = true;
        if kept < DIGITS_MAX {
            value = value * 10 + u128::from(b - b'0');
            kept += u32::from(value > 0);
            power -= i32::from(point);
        } else {
            power = power.checked_add(i32::from(!point))?;
        }
    }
    any.then_some((value, power))
}

/// Picoseconds from 1970-01-01 00:00 UTC to a date as in `2023-11-16 18:15:46.6805900`, with a
/// space or a `T` in the middle, with or without fraction and zone (no zone is read as UTC); digits
/// below a picosecond are dropped. `None` when the text is anything else.
pub(super) fn datetime_ps(text: &[u8]) -> Option<i128> {
    let (date, rest) = text.split_at_checked(10)?;
    let (separator, rest) = rest.split_at_checked(1)?;
    let (time, rest) = rest.split_at_checked(8)?;
    let shape = date[4] == b'-' && date[7] == b'-' && time[2] == b':' && time[5] == b':';
    if !shape || !matches!(separator[0], b' ' | b'T') {
        return None;
    }
    let days = days_from_civil(number(&date[..4])?, number(&date[5..7])?, number(&date[8..])?)?;
    let (hour, minute) = (number(&time[..2])?, number(&time[3..5])?);
    let second = number(&time[6..])?;
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let (fraction_ps, zone) = fraction(rest)?;
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second - zone_seconds(zone)?;
    Some(i128::from(seconds) * i128::from(PS_PER_S) + i128::from(fraction_ps))
}

fn number(text: &[u8]) -> Option<i64> {
    digits(text).and_then(|value| i64::try_from(value).ok())
}

/// Picoseconds of an optional `.fff`, and what follows it.
fn fraction(text: &[u8]) -> Option<(u64, &[u8])> {
    let Some(text) = text.strip_prefix(b".") else {
        return Some((0, text));
    };
    let end = text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    let kept = end.min(12);
    let value = digits(&text[..kept])?;
    Some((value * 10_u64.pow(12 - kept as u32), &text[end..]))
}

/// Seconds east of UTC of nothing, `Z`, `+hh`, `+hhmm` or `+hh:mm`.
fn zone_seconds(text: &[u8]) -> Option<i64> {
    let (sign, rest) = match text {
        [] | [b'Z'] => return Some(0),
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = match rest {
        [_, _] => (number(rest)?, 0),
        [_, _, b':', _, _] => (number(&rest[..2])?, number(&rest[3..])?),
        [_, _, _, _] => (number(&rest[..2])?, number(&rest[2..])?),
        _ => return None,
    };
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3_600 + minutes * 60))
}

/// Days from 1970-01-01 to a date of the Gregorian calendar (H. Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms", 2013): years are counted from March, so the leap day comes last.
fn days_from_civil(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let month_days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return None,
    };
    if !(1..=month_days).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(text: &str) -> Option<i128> {
        decimal_ps(text.as_bytes(), Unit::Milliseconds)
    }

    #[test]
    fn decimals_are_exact_to_the_picosecond() {
        assert_eq!(ms("17"), Some(17_000_000_000));
        assert_eq!(ms("0.000000001"), Some(1));
        assert_eq!(ms("0.0000000019"), Some(1));
        assert_eq!(ms("1715472000000.123456789"), Some(1_715_472_000_000_123_456_789));
        assert_eq!(ms("5e-05"), Some(50_000));
        assert_eq!(ms("1.5E3"), Some(1_500_000_000_000));
        assert_eq!(ms("0.10000000000000000000000000000000000000000001"), Some(100_000_000));
        assert_eq!(ms("000000000000000000000000000000000000007.0"), Some(7_000_000_000));
        assert_eq!(ms("1e-99"), Some(0));
        assert_eq!(ms("0e999"), Some(0));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "-1",
            "+1",
            "NaN",
            "inf",
            "1e999",
            "1e2147483647",
            "1e",
            "e5",
            ".",
            "1.2.3",
            "1,5",
            "0x10",
            "1 2",
            "1e30",
            "99999999999999999999999999999999999999999999",
        ] {
            assert_eq!(ms(text), None, "{text:?} was read as a time");
        }
    }

    #[test]
    fn dates_are_read_in_every_published_shape() {
        let second = i128::from(PS_PER_S);
        let read = |text: &str| datetime_ps(text.as_bytes());
        assert_eq!(read("1970-01-01 00:00:00"), Some(0));
        assert_eq!(read("2023-11-16 18:15:46.6805900"), Some(1_700_158_546_680_590_000_000));
        assert_eq!(read("2024-05-12 00:00:00.001163+00:00"), Some(1_715_472_000_001_163_000_000));
        assert_eq!(read("2024-02-29T12:00:00Z"), Some(1_709_208_000 * second));
        assert_eq!(read("2024-02-29 14:30:00+0230"), Some(1_709_208_000 * second));
        assert_eq!(read("2024-02-29 07:00:00-05"), Some(1_709_208_000 * second));
        assert_eq!(read("1969-12-31 23:59:59"), Some(-second));
        assert_eq!(read("2024-05-12 00:00:00.0000000000019"), Some(1_715_472_000 * second + 1));
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for text in [
            "",
            "2023-11-16",
            "2023-02-29 00:00:00",
            "2023-13-01 00:00:00",
            "2023-00-01 00:00:00",
            "2023-01-32 00:00:00",
            "2023-01-01 24:00:00",
            "2023-01-01 00:60:00",
            "2023-01-01 00:00:60",
            "2023/01/01 00:00:00",
            "2023-01-01 00:00:00.",
            "2023-01-01 00:00:00 UTC",
            "2023-01-01 00:00:00+1",
            "2023-01-01 00:00:00+25:00",
            "2023-01-01_00:00:00",
            "-123-01-01 00:00:00",
            "2023-01-01 00:00:0é",
        ] {
            assert_eq!(datetime_ps(text.as_bytes()), None, "{text:?} was read as a date");
        }
    }

    #[test]
    fn days_follow_the_calendar_over_four_centuries() {
        let mut expected = days_from_civil(1999, 12, 31).unwrap();
        for year in 2000..2400 {
            for month in 1..=12 {
                for day in (1..=31).filter_map(|day| days_from_civil(year, month, day)) {
                    expected += 1;
                    assert_eq!(day, expected);
                }
            }
        }
        assert_eq!(expected - days_from_civil(1999, 12, 31).unwrap(), 146_097);
    }

    #[test]
    fn token_counts_are_whole_and_fit() {
        let count = |text: &str| token_count(text.as_bytes());
        assert_eq!(count("0"), Some(0));
        assert_eq!(count("4294967295"), Some(u32::MAX));
        assert_eq!(count("374.0"), Some(374));
        for text in ["", "4294967296", "-1", "1.5", ".0", "1e3", "abc", "999999999999999999999"] {
            assert_eq!(count(text), None, "{text:?} was read as a token count");
        }
    }
}
