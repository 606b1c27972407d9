//! Chance: named random streams, one per cause and entity, and the distributions drawn from them.
//! A stream depends on the seed, its cause and its entity number alone, so adding a consumer never
//! shifts the draws of another and two policies see the same traffic. Knows `kernel::math` only.

use super::math;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// What a stream of random numbers is for. The numbers are part of every published result: a new
/// cause takes a new number, and no number is used twice or changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum Cause {
    /// Gaps between generated arrivals.
    Arrivals = 1,
    /// Prompt lengths.
    InputLengths = 2,
    /// Output lengths.
    OutputLengths = 3,
    /// Which shared prefix a prompt opens with.
    PrefixGroups = 4,
    /// Choices of a router.
    Router = 5,
    /// Life-cycle delays of an instance.
    Provisioning = 6,
    /// Availability of capacity in a pool.
    Supply = 7,
    /// Failures of an instance.
    Failures = 8,
    /// Turns and think times of sessions.
    Sessions = 9,
    /// Clients that hang up.
    Aborts = 10,
    /// Accepted draft tokens under speculative decoding.
    Speculation = 11,
    /// Resampling of data for intervals.
    Bootstrap = 12,
    /// Starting points of a fit.
    Fit = 13,
    /// Seeds of replications after the first.
    Replications = 14,
}

/// Opens the key of every stream; a change of the key layout must change it.
const KEY_DOMAIN: [u8; 8] = *b"flcast01";

/// A named stream of random numbers: ChaCha8, whose key is (seed, cause, entity) itself, so
/// different names can never meet in one stream.
#[derive(Debug, Clone)]
pub struct Stream {
    generator: ChaCha8Rng,
}

impl Stream {
    /// The stream of `cause` for `entity` (number of a traffic stream, instance, pool, ...) in a
    /// run with `seed`.
    #[must_use]
    pub fn new(seed: u64, cause: Cause, entity: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&KEY_DOMAIN);
        key[8..16].copy_from_slice(&seed.to_le_bytes());
        key[16..24].copy_from_slice(&(cause as u64).to_le_bytes());
        key[24..].copy_from_slice(&entity.to_le_bytes());
        Self { generator: ChaCha8Rng::from_seed(key) }
    }

    /// 64 random bits.
    pub fn u64(&mut self) -> u64 {
        self.generator.next_u64()
    }

    /// Uniform in [0, 1), a multiple of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.u64() >> 11) as f64 * TWO_POW_MINUS_53
    }

    /// Uniform in (0, 1], a multiple of 2^-53; its logarithm is finite.
    pub fn open_unit(&mut self) -> f64 {
        ((self.u64() >> 11) + 1) as f64 * TWO_POW_MINUS_53
    }

    /// Uniform over 0, 1, ..., n - 1, without bias (D. Lemire, "Fast Random Integer Generation in
    /// an Interval", ACM TOMACS 29(1), 2019).
    ///
    /// # Panics
    /// When `n` is 0: nothing can be drawn from nothing.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "a draw below zero");
        let mut product = u128::from(self.u64()) * u128::from(n);
        if (product as u64) < n {
            let biased = n.wrapping_neg() % n;
            while (product as u64) < biased {
                product = u128::from(self.u64()) * u128::from(n);
            }
        }
        (product >> 64) as u64
    }

    /// Exponential with mean 1, by inversion.
    pub fn exponential(&mut self) -> f64 {
        -math::ln(self.open_unit())
    }

    /// Standard normal, by inversion of one symmetric uniform draw.
    pub fn normal(&mut self) -> f64 {
        // 52 bits and a half: strictly between 0 and 1, and p is as likely as 1 - p.
        let p = ((self.u64() >> 12) as f64 + 0.5) * (2.0 * TWO_POW_MINUS_53);
        math::normal_quantile(p)
    }

    /// Log-normal: `median` times e to the power of a normal draw with deviation `sigma`.
    pub fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        median * math::exp(sigma * self.normal())
    }
}

const TWO_POW_MINUS_53: f64 = 1.0 / (1_u64 << 53) as f64;

/// Gamma distribution with scale 1, by rejection (G. Marsaglia and W. W. Tsang, "A Simple Method
/// for Generating Gamma Variables", ACM TOMS 26(3), 2000); below shape 1 by their boost from shape
/// + 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gamma {
    d: f64,
    c: f64,
    /// 1/shape below shape 1.
    boost: Option<f64>,
}

impl Gamma {
    /// The distribution with `shape`, which is its mean and its variance.
    ///
    /// # Panics
    /// When `shape` is not a positive finite number.
    #[must_use]
    pub fn new(shape: f64) -> Self {
        assert!(shape > 0.0 && shape.is_finite(), "a gamma shape of {shape}");
        let (raised, boost) =
            if shape < 1.0 { (shape + 1.0, Some(1.0 / shape)) } else { (shape, None) };
        let d = raised - 1.0 / 3.0;
        Self { d, c: 1.0 / (9.0 * d).sqrt(), boost }
    }

    /// One draw; it may round to 0 when the shape is far below 1.
    pub fn draw(&self, stream: &mut Stream) -> f64 {
        let raised = self.draw_raised(stream);
        match self.boost {
            None => raised,
            Some(inverse_shape) => raised * math::exp(math::ln(stream.open_unit()) * inverse_shape),
        }
    }

    fn draw_raised(&self, stream: &mut Stream) -> f64 {
        // Accepts more than 95 % of the proposals whatever the shape.
        loop {
            let x = stream.normal();
            let t = 1.0 + self.c * x;
            if t <= 0.0 {
                continue; // Outside the proposal's support: a rejection.
            }
            let v = t * t * t;
            let u = stream.open_unit();
            let x2 = x * x;
            if u < 1.0 - 0.0331 * x2 * x2
                || math::ln(u) < 0.5 * x2 + self.d * (1.0 - v + math::ln(v))
            {
                return self.d * v;
            }
        }
    }
}

/// Zipf over n ranks: rank k (from 0) has weight 1/(k + 1)^exponent.
#[derive(Debug, Clone, PartialEq)]
pub struct Zipf {
    ranks: u64,
    /// Cumulated shares; empty when all ranks are alike.
    cumulated: Vec<f64>,
}

impl Zipf {
    /// The distribution over `ranks` ranks; takes 8 bytes a rank unless `exponent` is 0.
    ///
    /// # Panics
    /// When there is no rank, or `exponent` is negative or not finite.
    #[must_use]
    pub fn new(ranks: u32, exponent: f64) -> Self {
        assert!(ranks > 0, "a Zipf distribution over nothing");
        assert!(exponent >= 0.0 && exponent.is_finite(), "a Zipf exponent of {exponent}");
        if exponent == 0.0 {
            return Self { ranks: u64::from(ranks), cumulated: Vec::new() };
        }
        let mut sum = 0.0;
        let mut cumulated: Vec<f64> = (1..=ranks)
            .map(|k| {
                sum += math::pow(f64::from(k), -exponent);
                sum
            })
            .collect();
        for share in &mut cumulated {
            *share /= sum;
        }
        Self { ranks: u64::from(ranks), cumulated }
    }

    /// One rank, from 0.
    pub fn draw(&self, stream: &mut Stream) -> u64 {
        if self.cumulated.is_empty() {
            return stream.below(self.ranks);
        }
        let u = stream.unit();
        // The last share is sum/sum = 1 > u, so the search ends inside the table.
        self.cumulated.partition_point(|&share| share <= u) as u64
    }
}

#[cfg(test)]
mod tests;
