//! Numbers as text for the large files: whole numbers and picosecond times, written digit by digit
//! into a byte buffer, so that a row costs no allocation and no rounding. Knows `units` only.

use crate::units::PS_PER_S;

/// Digits of the longest `u64`.
const DIGITS_MAX: usize = 20;
/// Fractional digits of a picosecond in seconds.
const FRACTION: usize = 12;

/// Appends `value` in decimal.
pub fn push_u64(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0u8; DIGITS_MAX];
    let mut at = DIGITS_MAX;
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends `ps` picoseconds as seconds, exactly, without trailing zeros.
pub fn push_seconds(out: &mut Vec<u8>, ps: u64) {
    push_u64(out, ps / PS_PER_S);
    let mut rest = ps % PS_PER_S;
    if rest == 0 {
        return;
    }
    let mut digits = [b'0'; FRACTION];
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let end = digits.iter().rposition(|&d| d != b'0').map_or(0, |last| last + 1);
    out.push(b'.');
    out.extend_from_slice(&digits[..end]);
}

/// Appends `text` as a CSV field, in quotes when it needs them.
pub fn push_field(out: &mut Vec<u8>, text: &str) {
    if !text.bytes().any(|b| matches!(b, b',' | b'"' | b'\n' | b'\r')) {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    out.push(b'"');
    for byte in text.bytes() {
        if byte == b'"' {
            out.push(b'"');
        }
        out.push(byte);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(ps: u64) -> String {
        let mut out = Vec::new();
        push_seconds(&mut out, ps);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn picoseconds_are_written_exactly() {
        for (ps, text) in [
            (0, "0"),
            (1, "0.000000000001"),
            (1_500_000_000_000, "1.5"),
            (12_000_000_000_000, "12"),
            (u64::MAX, "18446744.073709551615"),
        ] {
            assert_eq!(seconds(ps), text);
        }
    }

    #[test]
    fn text_parses_back_to_the_same_picoseconds() {
        for ps in [7, 999_999_999_999, 1_000_000_000_001, 123_456_789_012_345] {
            let text = seconds(ps);
            let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
            let fraction: u64 = format!("{fraction:0<12}").parse().unwrap();
            assert_eq!(whole.parse::<u64>().unwrap() * PS_PER_S + fraction, ps);
        }
    }

    #[test]
    fn fields_with_commas_and_quotes_are_quoted() {
        for (text, field) in [("p5", "p5"), ("a,b", "\"a,b\""), ("say \"x\"", "\"say \"\"x\"\"\"")]
        {
            let mut out = Vec::new();
            push_field(&mut out, text);
            assert_eq!(String::from_utf8(out).unwrap(), field);
        }
    }
}
