//! Portable mathematics: the transcendental functions that may reach results, from the `libm` crate
//! alone, so that every platform gives the same bits. Knows nothing of any other room.

/// Natural logarithm.
#[must_use]
pub fn ln(x: f64) -> f64 {
    libm::log(x)
}

/// Natural logarithm of 1 + x, exact for small x.
#[must_use]
pub fn ln_1p(x: f64) -> f64 {
    libm::log1p(x)
}

/// e to the power of x.
#[must_use]
pub fn exp(x: f64) -> f64 {
    libm::exp(x)
}

/// e to the power of x, minus 1, exact for small x.
#[must_use]
pub fn exp_m1(x: f64) -> f64 {
    libm::expm1(x)
}

/// `base` to the power of `exponent`.
#[must_use]
pub fn pow(base: f64, exponent: f64) -> f64 {
    libm::pow(base, exponent)
}

/// Sine of an angle in radians.
#[must_use]
pub fn sin(x: f64) -> f64 {
    libm::sin(x)
}

/// Cosine of an angle in radians.
#[must_use]
pub fn cos(x: f64) -> f64 {
    libm::cos(x)
}

/// Logarithm of the absolute value of the gamma function.
#[must_use]
pub fn ln_gamma(x: f64) -> f64 {
    libm::lgamma(x)
}

/// Probability that a standard normal variable is at most `x`.
#[must_use]
pub fn normal_cdf(x: f64) -> f64 {
    0.5 * libm::erfc(-x / std::f64::consts::SQRT_2)
}

/// The `x` with `normal_cdf(x) = p`: algorithm AS 241, routine PPND16 (M. J. Wichura, "The
/// Percentage Points of the Normal Distribution", Applied Statistics 37(3), 1988), about 16 digits.
/// Minus and plus infinity at 0 and 1, NaN outside.
#[must_use]
pub fn normal_quantile(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180625 - q * q;
        return q * polynomial(r, &CENTRE_TOP) / polynomial(r, &CENTRE_BOTTOM);
    }
    let tail = if q < 0.0 { p } else { 1.0 - p };
    if tail == 0.0 {
        return f64::INFINITY.copysign(q);
    }
    let r = (-ln(tail)).sqrt();
    let x = if r <= 5.0 {
        polynomial(r - 1.6, &SHOULDER_TOP) / polynomial(r - 1.6, &SHOULDER_BOTTOM)
    } else {
        polynomial(r - 5.0, &TAIL_TOP) / polynomial(r - 5.0, &TAIL_BOTTOM)
    };
    x.copysign(q)
}

/// Horner's rule; `coefficients` from the highest power to the constant.
fn polynomial(x: f64, coefficients: &[f64; 8]) -> f64 {
    coefficients.iter().fold(0.0, |sum, c| sum * x + c)
}

/// Numerator of AS 241 for |p - 0.5| <= 0.425.
const CENTRE_TOP: [f64; 8] = [
    2509.0809287301227,
    33430.57558358813,
    67265.7709270087,
    45921.95393154987,
    13731.69376550946,
    1971.5909503065513,
    133.14166789178438,
    3.3871328727963665,
];

/// Denominator there.
const CENTRE_BOTTOM: [f64; 8] = [
    5226.495278852854,
    28729.085735721943,
    39307.89580009271,
    21213.794301586597,
    5394.196021424751,
    687.1870074920579,
    42.31333070160091,
    1.0,
];

/// Numerator for tails down to exp(-25).
const SHOULDER_TOP: [f64; 8] = [
    0.0007745450142783414,
    0.022723844989269184,
    0.2417807251774506,
    1.2704582524523684,
    3.6478483247632045,
    5.769497221460691,
    4.630337846156546,
    1.4234371107496835,
];

/// Denominator there.
const SHOULDER_BOTTOM: [f64; 8] = [
    1.0507500716444169e-09,
    0.0005475938084995345,
    0.015198666563616457,
    0.14810397642748008,
    0.6897673349851,
    1.6763848301838038,
    2.053191626637759,
    1.0,
];

/// Numerator beyond.
const TAIL_TOP: [f64; 8] = [
    2.0103343992922881e-07,
    2.7115555687434876e-05,
    0.0012426609473880784,
    0.026532189526576124,
    0.29656057182850487,
    1.7848265399172913,
    5.463784911164114,
    6.657904643501103,
];

/// Denominator beyond.
const TAIL_BOTTOM: [f64; 8] = [
    2.0442631033899397e-15,
    1.421511758316446e-07,
    1.8463183175100548e-05,
    0.0007868691311456133,
    0.014875361290850615,
    0.1369298809227358,
    0.599832206555888,
    1.0,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_quantile_inverts_the_cdf_from_tail_to_tail() {
        for i in -80..=80 {
            let x = f64::from(i) / 10.0;
            let p = normal_cdf(x);
            // Near 1 the probability itself has lost the digits.
            let tolerance = if x < 4.0 { 1e-9 } else { 0.1 };
            if p < 1.0 {
                let back = normal_quantile(p);
                assert!((back - x).abs() < tolerance, "{x} came back as {back}");
            }
        }
    }

    #[test]
    fn normal_quantile_agrees_with_published_values() {
        // The two check values printed with AS 241.
        assert!((normal_quantile(0.25) - -0.674_489_750_196_081_7).abs() < 1e-15);
        assert!((normal_quantile(1e-20) - -9.262_340_089_798_408).abs() < 1e-14);
        assert_eq!(normal_quantile(0.5), 0.0);
        assert_eq!(normal_quantile(0.0), f64::NEG_INFINITY);
        assert_eq!(normal_quantile(1.0), f64::INFINITY);
        assert!(normal_quantile(1.5).is_nan());
        assert!(normal_quantile(-0.5).is_nan());
    }

    #[test]
    fn functions_are_those_of_their_names() {
        assert!((ln(exp(1.25)) - 1.25).abs() < 1e-15);
        assert!((ln_1p(1e-12) - 1e-12).abs() < 1e-24);
        assert!((exp_m1(1e-12) - 1e-12).abs() < 1e-24);
        assert_eq!(pow(2.0, 10.0), 1024.0);
        assert!((sin(1.0).powi(2) + cos(1.0).powi(2) - 1.0).abs() < 1e-15);
        assert!((ln_gamma(5.0) - ln(24.0)).abs() < 1e-14);
    }
}
