//! Figures as people read them: a few significant digits, thousands apart, a dash for what does
//! not exist. For screens only; files carry exact numbers.

use crate::units::Span;

/// What stands where a figure does not exist.
pub const NONE: &str = "–";

/// A count with thousands apart: `12,345`.
#[must_use]
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Three significant digits for small numbers, whole ones with thousands apart from 1,000 on;
/// what would be rounded to nothing is said to be smaller than that.
#[must_use]
pub fn figure(value: f64) -> String {
    let size = value.abs();
    // The limits are where rounding gives one digit more: 9.995 is written 10.0.
    if size >= 999.5 {
        let sign = if value < 0.0 { "-" } else { "" };
        return format!("{sign}{}", count(size.round() as u64));
    }
    if size >= 99.95 {
        format!("{value:.0}")
    } else if size >= 9.995 {
        format!("{value:.1}")
    } else if size >= 0.0995 || size == 0.0 {
        format!("{value:.2}")
    } else if size >= 0.0005 {
        format!("{value:.3}")
    } else {
        (if value < 0.0 { ">-0.001" } else { "<0.001" }).to_owned()
    }
}

/// A figure, or a dash.
#[must_use]
pub fn maybe(value: Option<f64>) -> String {
    value.map_or(NONE.to_owned(), figure)
}

/// A number that someone wrote, as they wrote it or, when very small or large, with an exponent.
#[must_use]
pub fn plain(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 || (1e-6..1e15).contains(&size) {
        format!("{value}")
    } else {
        format!("{value:e}")
    }
}

/// A share in per cent, or a dash.
#[must_use]
pub fn percent(share: Option<f64>) -> String {
    share.map_or(NONE.to_owned(), |share| format!("{:.1} %", share * 100.0))
}

/// USD with cents, or a dash.
#[must_use]
pub fn usd(value: Option<f64>) -> String {
    let Some(value) = value else { return NONE.to_owned() };
    let cents = (value.abs() * 100.0).round() as u64;
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}${}.{:02}", count(cents / 100), cents % 100)
}

/// A length of time with a unit that suits it.
#[must_use]
pub fn span(span: Span) -> String {
    let s = span.seconds();
    if s == 0.0 || (1.0..120.0).contains(&s) {
        format!("{} s", plain(s))
    } else if s < 1.0 {
        format!("{} ms", plain(s * 1000.0))
    } else if s < 7200.0 {
        format!("{} min", figure_trimmed(s / 60.0))
    } else {
        format!("{} h", figure_trimmed(s / 3600.0))
    }
}

/// [`figure`] without zeros behind the point.
fn figure_trimmed(value: f64) -> String {
    let text = figure(value);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_three_digits() {
        for (value, text) in [
            (0.0, "0.00"),
            (0.0004, "<0.001"),
            (0.0123, "0.012"),
            (0.1, "0.10"),
            (9.994, "9.99"),
            (9.996, "10.0"),
            (99.96, "100"),
            (999.6, "1,000"),
            (12_345.6, "12,346"),
            (-1234.0, "-1,234"),
        ] {
            assert_eq!(figure(value), text);
        }
        assert_eq!(maybe(None), NONE);
    }

    #[test]
    fn numbers_as_written_do_not_fill_the_line() {
        for (value, text) in [(0.0, "0"), (0.25, "0.25"), (1e-300, "1e-300"), (2e15, "2e15")] {
            assert_eq!(plain(value), text);
        }
    }

    #[test]
    fn money_and_time_have_units() {
        assert_eq!(usd(Some(1234.5)), "$1,234.50");
        assert_eq!(usd(Some(0.004)), "$0.00");
        assert_eq!(usd(None), NONE);
        for (us, text) in [
            (0, "0 s"),
            (2_500, "2.5 ms"),
            (60_000_000, "60 s"),
            (600_000_000, "10 min"),
            (9_000_000_000, "2.5 h"),
        ] {
            assert_eq!(span(Span::from_micros(us)), text);
        }
    }
}
