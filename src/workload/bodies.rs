//! What generated requests ask for: lengths and shared prefixes, each from a random stream of its
//! own, so that changing one leaves the draws of the others alone. Knows nothing of time.

use super::spec::{BodySpec, LengthSpec, SharedPrefixSpec};
use super::{RequestBody, WorkloadError};
use crate::engine::request::{Prompt, RequestId, Segment, StreamId};
use crate::kernel::rng::{Cause, Stream, Zipf};

/// Most shared prefixes: their popularity table takes 8 bytes each.
pub(crate) const GROUPS_MAX: u32 = 1 << 24;

/// Draws request bodies without end.
pub(super) struct Bodies {
    input: Lengths,
    output: Lengths,
    prefix: Option<SharedPrefix>,
}

impl Bodies {
    /// Checks `spec` and opens its random streams.
    ///
    /// # Errors
    /// When a length distribution or the shared prefix is out of range.
    pub(super) fn new(spec: &BodySpec, seed: u64) -> Result<Self, WorkloadError> {
        let lengths = |key, spec, cause| Lengths::new(key, spec, Stream::new(seed, cause, 0));
        let prefix = spec.shared_prefix.as_ref();
        Ok(Self {
            input: lengths("bodies.input_tokens", &spec.input_tokens, Cause::InputLengths)?,
            output: lengths("bodies.output_tokens", &spec.output_tokens, Cause::OutputLengths)?,
            prefix: prefix.map(|spec| SharedPrefix::new(spec, seed)).transpose()?,
        })
    }

    /// The body of request `id`.
    #[inline]
    pub(super) fn draw(&mut self, id: RequestId) -> RequestBody {
        let input_tokens = self.input.draw();
        let prompt = match &mut self.prefix {
            None => Prompt::single(StreamId::own(id), input_tokens),
            Some(prefix) => prefix.prompt(id, input_tokens),
        };
        RequestBody {
            prompt,
            output_tokens: self.output.draw(),
            priority: 0,
            skip_cache: false,
            abort_after: None,
        }
    }
}

struct SharedPrefix {
    tokens: u32,
    popularity: Zipf,
    stream: Stream,
}

impl SharedPrefix {
    fn new(spec: &SharedPrefixSpec, seed: u64) -> Result<Self, WorkloadError> {
        let SharedPrefixSpec { groups, tokens, zipf } = *spec;
        if !(1..=GROUPS_MAX).contains(&groups) {
            let problem = format!("{groups} is not in 1..={GROUPS_MAX}");
            return Err(WorkloadError::spec("bodies.shared_prefix.groups", problem));
        }
        if !(zipf >= 0.0 && zipf.is_finite()) {
            let problem = format!("{zipf} is not a finite number of at least 0");
            return Err(WorkloadError::spec("bodies.shared_prefix.zipf", problem));
        }
        let stream = Stream::new(seed, Cause::PrefixGroups, 0);
        Ok(Self { tokens, popularity: Zipf::new(groups, zipf), stream })
    }

    fn prompt(&mut self, id: RequestId, input_tokens: u32) -> Prompt {
        let group = self.popularity.draw(&mut self.stream);
        let shared = self.tokens.min(input_tokens);
        Prompt::from_segments([
            Segment { stream: StreamId::shared(group), len: shared },
            Segment { stream: StreamId::own(id), len: input_tokens - shared },
        ])
    }
}

/// A distribution of token counts and its stream.
struct Lengths {
    law: Law,
    stream: Stream,
}

enum Law {
    Fixed(u32),
    Uniform { min: u32, count: u64 },
    Normal { mean: f64, sd: f64, range: Range },
    LogNormal { median: f64, sigma: f64, range: Range },
    Quantiles(Quantiles),
}

/// Inclusive bounds, the lower at least 1.
struct Range {
    min: u32,
    max: u32,
}

impl Range {
    fn new(key: &str, min: u32, max: u32) -> Result<Self, WorkloadError> {
        if max == 0 || min > max {
            let problem = format!("{min}..={max} holds no length of at least 1");
            return Err(WorkloadError::spec(key, problem));
        }
        Ok(Self { min: min.max(1), max })
    }

    fn round(&self, tokens: f64) -> u32 {
        // The conversion saturates, so anything below or above falls to the bounds.
        ((tokens + 0.5) as u32).clamp(self.min, self.max)
    }
}

impl Lengths {
    fn new(key: &str, spec: &LengthSpec, stream: Stream) -> Result<Self, WorkloadError> {
        let number = |name: &str, value: f64, min: f64| {
            if value >= min && value.is_finite() {
                return Ok(value);
            }
            let problem = format!("{value} is not a finite number of at least {min}");
            Err(WorkloadError::spec(format!("{key}.{name}"), problem))
        };
        let law = match spec {
            LengthSpec::Fixed(tokens) => Law::Fixed(Range::new(key, *tokens, *tokens)?.min),
            LengthSpec::Uniform { min, max } => {
                let Range { min, max } = Range::new(key, *min, *max)?;
                Law::Uniform { min, count: u64::from(max - min) + 1 }
            }
            LengthSpec::Normal { mean, sd, min, max } => Law::Normal {
                mean: number("mean", *mean, 0.0)?,
                sd: number("sd", *sd, 0.0)?,
                range: Range::new(key, *min, *max)?,
            },
            LengthSpec::LogNormal { median, sigma, min, max } => Law::LogNormal {
                median: number("median", *median, 0.0)?,
                sigma: number("sigma", *sigma, 0.0)?,
                range: Range::new(key, *min, *max)?,
            },
            LengthSpec::Quantiles { probabilities, tokens } => {
                Law::Quantiles(Quantiles::new(key, probabilities, tokens)?)
            }
        };
        Ok(Self { law, stream })
    }

    /// Fixed lengths are so common, and so cheap, that a call would cost more than the draw.
    #[inline]
    fn draw(&mut self) -> u32 {
        if let Law::Fixed(tokens) = self.law {
            return tokens;
        }
        self.draw_from_law()
    }

    #[inline(never)]
    fn draw_from_law(&mut self) -> u32 {
        let Self { law, stream } = self;
        match law {
            Law::Fixed(tokens) => *tokens,
            Law::Uniform { min, count } => *min + stream.below(*count) as u32,
            Law::Normal { mean, sd, range } => range.round(*mean + *sd * stream.normal()),
            Law::LogNormal { median, sigma, range } => {
                range.round(stream.log_normal(*median, *sigma))
            }
            Law::Quantiles(quantiles) => quantiles.at(stream.unit()),
        }
    }
}

/// A quantile function, linear between its points.
struct Quantiles {
    probabilities: Vec<f64>,
    tokens: Vec<u32>,
}

impl Quantiles {
    fn new(key: &str, probabilities: &[f64], tokens: &[u32]) -> Result<Self, WorkloadError> {
        let bad = |name, problem| Err(WorkloadError::spec(format!("{key}.{name}"), problem));
        if probabilities.len() != tokens.len() {
            let (p, t) = (probabilities.len(), tokens.len());
            return bad("tokens", format!("{t} values for {p} probabilities"));
        }
        if probabilities.first() != Some(&0.0) || probabilities.last() != Some(&1.0) {
            return bad("probabilities", "must begin with 0 and end with 1".into());
        }
        let ascends = |pair: &[f64]| pair[0] < pair[1];
        if let Some(pair) = probabilities.windows(2).find(|pair| !ascends(pair)) {
            let problem = format!("must ascend, but {} comes before {}", pair[0], pair[1]);
            return bad("probabilities", problem);
        }
        if let Some(pair) = tokens.windows(2).find(|pair| pair[0] > pair[1]) {
            let problem = format!("must not fall, but {} comes before {}", pair[0], pair[1]);
            return bad("tokens", problem);
        }
        Ok(Self { probabilities: probabilities.to_vec(), tokens: tokens.to_vec() })
    }

    /// The rounded value at `p` in [0, 1).
    fn at(&self, p: f64) -> u32 {
        let above = self.probabilities.partition_point(|&q| q <= p);
        // The first probability is 0 and the last is 1, so p lies between two points.
        let (p0, p1) = (self.probabilities[above - 1], self.probabilities[above]);
        let (t0, t1) = (f64::from(self.tokens[above - 1]), f64::from(self.tokens[above]));
        let tokens = t0 + (t1 - t0) * ((p - p0) / (p1 - p0));
        ((tokens + 0.5) as u32).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(spec: &LengthSpec, n: usize) -> Vec<u32> {
        let stream = Stream::new(11, Cause::InputLengths, 0);
        let mut lengths = Lengths::new("lengths", spec, stream).unwrap();
        (0..n).map(|_| lengths.draw()).collect()
    }

    /// Every draw lies in `min..=max`; the mean is `mean` within `tolerance`.
    fn check(spec: &LengthSpec, min: u32, max: u32, mean: f64, tolerance: f64) {
        let draws = draws(spec, 50_000);
        assert!(draws.iter().all(|t| (min..=max).contains(t)), "{spec:?} leaves {min}..={max}");
        let found = draws.iter().map(|&t| f64::from(t)).sum::<f64>() / draws.len() as f64;
        assert!((found - mean).abs() < tolerance, "{spec:?} has mean {found}, expected {mean}");
    }

    #[test]
    fn lengths_keep_their_bounds_and_means() {
        check(&LengthSpec::Fixed(9), 9, 9, 9.0, 1e-9);
        check(&LengthSpec::Uniform { min: 1, max: 6 }, 1, 6, 3.5, 0.05);
        check(&LengthSpec::Uniform { min: 0, max: 2 }, 1, 2, 1.5, 0.02);
        let normal = LengthSpec::Normal { mean: 100.0, sd: 10.0, min: 1, max: 1_000 };
        check(&normal, 1, 1_000, 100.0, 0.3);
        let cut = LengthSpec::Normal { mean: 10.0, sd: 100.0, min: 5, max: 20 };
        check(&cut, 5, 20, 12.5, 0.6);
        let log = LengthSpec::LogNormal { median: 200.0, sigma: 0.5, min: 1, max: u32::MAX };
        check(&log, 1, u32::MAX, 200.0 * 0.125_f64.exp(), 3.0);
        let quantiles = LengthSpec::Quantiles {
            probabilities: vec![0.0, 0.5, 1.0],
            tokens: vec![0, 100, 1_000],
        };
        check(&quantiles, 1, 1_000, 300.0, 7.0);
    }

    #[test]
    fn quantiles_hit_their_points() {
        let q = Quantiles::new("q", &[0.0, 0.25, 1.0], &[4, 8, 8]).unwrap();
        assert_eq!([q.at(0.0), q.at(0.125), q.at(0.25), q.at(0.999)], [4, 6, 8, 8]);
    }

    #[test]
    fn prefix_groups_are_shared_and_the_rest_is_not() {
        let spec = BodySpec {
            input_tokens: LengthSpec::Uniform { min: 1, max: 200 },
            output_tokens: LengthSpec::Fixed(5),
            shared_prefix: Some(SharedPrefixSpec { groups: 3, tokens: 100, zipf: 1.0 }),
        };
        let mut bodies = Bodies::new(&spec, 1).unwrap();
        let mut groups = [0; 3];
        for id in (0..600).map(RequestId) {
            let prompt = bodies.draw(id).prompt;
            let segments = prompt.segments();
            assert_eq!(segments[0].len, prompt.len().min(100));
            groups[segments[0].stream.0 as usize] += 1;
            let own = segments.get(1).copied();
            let expected = prompt.len().checked_sub(100).filter(|&len| len > 0);
            assert_eq!(own, expected.map(|len| Segment { stream: StreamId::own(id), len }));
        }
        // Shares of 6/11, 3/11 and 2/11.
        assert!(groups.is_sorted_by(|a, b| a > b), "{groups:?}");
    }

    #[test]
    fn a_change_in_one_law_leaves_the_others_alone() {
        let log = LengthSpec::LogNormal { median: 50.0, sigma: 1.0, min: 1, max: 9_999 };
        let spec = BodySpec {
            input_tokens: log.clone(),
            output_tokens: log.clone(),
            shared_prefix: Some(SharedPrefixSpec { groups: 8, tokens: 4, zipf: 0.0 }),
        };
        let outputs = |spec: &BodySpec| -> Vec<u32> {
            let mut bodies = Bodies::new(spec, 2).unwrap();
            (0..100).map(|id| bodies.draw(RequestId(id)).output_tokens).collect()
        };
        let changed = BodySpec {
            input_tokens: LengthSpec::Fixed(1),
            output_tokens: log,
            shared_prefix: None,
        };
        assert_eq!(outputs(&spec), outputs(&changed));
    }

    #[test]
    fn bad_values_name_their_key() {
        let bad = |spec: LengthSpec| {
            let stream = Stream::new(0, Cause::InputLengths, 0);
            match Lengths::new("input_tokens", &spec, stream) {
                Ok(_) => panic!("{spec:?} was accepted"),
                Err(error) => error.to_string(),
            }
        };
        let quantiles = |p: &[f64], t: &[u32]| {
            bad(LengthSpec::Quantiles { probabilities: p.to_vec(), tokens: t.to_vec() })
        };
        assert!(bad(LengthSpec::Fixed(0)).contains("no length of at least 1"));
        assert!(bad(LengthSpec::Uniform { min: 5, max: 4 }).contains("5..=4"));
        let normal = LengthSpec::Normal { mean: f64::NAN, sd: 1.0, min: 1, max: 2 };
        assert!(bad(normal).starts_with("input_tokens.mean: NaN"));
        let log = LengthSpec::LogNormal { median: 1.0, sigma: -1.0, min: 1, max: 2 };
        assert!(bad(log).starts_with("input_tokens.sigma: -1"));
        assert!(quantiles(&[0.0, 1.0], &[1]).contains("1 values for 2 probabilities"));
        assert!(quantiles(&[], &[]).contains("begin with 0"));
        assert!(quantiles(&[0.0, 0.5], &[1, 2]).contains("end with 1"));
        assert!(quantiles(&[0.0, 0.6, 0.5, 1.0], &[1, 2, 3, 4]).contains("0.6 comes before 0.5"));
        assert!(quantiles(&[0.0, f64::NAN, 1.0], &[1, 2, 3]).contains("must ascend"));
        assert!(quantiles(&[0.0, 1.0], &[2, 1]).contains("2 comes before 1"));
        let groups = |groups, zipf| {
            let spec = SharedPrefixSpec { groups, tokens: 1, zipf };
            SharedPrefix::new(&spec, 0).err().map(|error| error.to_string())
        };
        assert!(groups(0, 0.0).unwrap().starts_with("bodies.shared_prefix.groups: 0"));
        assert!(groups(1, -0.5).unwrap().starts_with("bodies.shared_prefix.zipf: -0.5"));
    }
}
