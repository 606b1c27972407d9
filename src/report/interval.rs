//! How sure a figure is across replications: the two-sided Student t interval of the mean of
//! independent replications. Plain arithmetic only, so it is the same on every platform.

/// Confidence of every interval.
pub const CONFIDENCE: f64 = 0.95;

/// 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom (any statistical table).
const T_975: [f64; 30] = [
    12.706_205, 4.302_653, 3.182_446, 2.776_445, 2.570_582, 2.446_912, 2.364_624, 2.306_004,
    2.262_157, 2.228_139, 2.200_985, 2.178_813, 2.160_369, 2.144_787, 2.131_450, 2.119_905,
    2.109_816, 2.100_922, 2.093_024, 2.085_963, 2.079_614, 2.073_873, 2.068_658, 2.063_899,
    2.059_539, 2.055_529, 2.051_831, 2.048_407, 2.045_230, 2.042_272,
];

/// 97.5 % quantile of the normal distribution.
const Z_975: f64 = 1.959_963_985;

/// 97.5 % quantile of Student's t. Above 30 degrees of freedom by the Cornish-Fisher expansion
/// around the normal quantile (Abramowitz and Stegun 26.7.5), whose error there is below 1e-6.
#[must_use]
pub fn t_975(degrees_of_freedom: u32) -> Option<f64> {
    let index = degrees_of_freedom.checked_sub(1)? as usize;
    if let Some(&t) = T_975.get(index) {
        return Some(t);
    }
    let nu = f64::from(degrees_of_freedom);
    let z = Z_975;
    let (z3, z5, z7) = (z * z * z, z * z * z * z * z, z * z * z * z * z * z * z);
    let g1 = (z3 + z) / 4.0;
    let g2 = (5.0 * z5 + 16.0 * z3 + 3.0 * z) / 96.0;
    let g3 = (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / 384.0;
    Some(z + g1 / nu + g2 / (nu * nu) + g3 / (nu * nu * nu))
}

/// The 95 % interval of the mean of `values`, one of each replication; `None` for fewer than two.
#[must_use]
pub fn t_interval(values: &[f64]) -> Option<[f64; 2]> {
    let n = u32::try_from(values.len()).ok()?;
    let t = t_975(n.checked_sub(1)?)?;
    let count = f64::from(n);
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    let half = t * (squares / (count - 1.0) / count).sqrt();
    Some([mean - half, mean + half])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expansion_meets_known_quantiles() {
        for (nu, t) in [(31, 2.039_513), (40, 2.021_075), (60, 2.000_298), (120, 1.979_930)] {
            assert!((t_975(nu).unwrap() - t).abs() < 2e-6, "{nu}");
        }
        let mut before = f64::INFINITY;
        for nu in 1..200 {
            let t = t_975(nu).unwrap();
            assert!(t < before && t > Z_975, "{nu}");
            before = t;
        }
    }

    #[test]
    fn an_interval_needs_two_values_and_shrinks_to_none_when_they_agree() {
        assert_eq!(t_interval(&[]), None);
        assert_eq!(t_interval(&[1.0]), None);
        assert_eq!(t_interval(&[0.5, 0.5, 0.5]), Some([0.5, 0.5]));
        // Mean 2, standard deviation 1, n 3: half width 4.302653/sqrt(3).
        let [low, high] = t_interval(&[1.0, 2.0, 3.0]).unwrap();
        assert!((low - (2.0 - 2.484_138)).abs() < 1e-6, "{low}");
        assert!((high - (2.0 + 2.484_138)).abs() < 1e-6, "{high}");
    }
}
