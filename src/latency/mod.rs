//! How long a step takes: from the shape of a batch to fixed-point time. A model of step time with
//! integer coefficients, so that the time of any run of steps has an exact closed form.
//!
//! `T = fixed + table(n) + prefill_token·p + prefill_seq·s_p + decode_seq·s_d + kv·S +
//! attention·A`, where n is all scheduled tokens, p prefill tokens, s_p and s_d sequences in
//! prefill and in decode, S the KV tokens that decoding sequences attend to, and A the sum over
//! prefill chunks of chunk·(2·context + chunk) (half of it is the number of query-key pairs, to
//! within half a chunk). Leaves out: dispersion, communication that does not overlap, and any term
//! that depends on what ran before. Knows `units` only.

use std::sync::Arc;

use crate::units::{FIX_BITS, Fix, PS_PER_S, Span};

/// What a step computes. A sequence with one scheduled token is a decode row, whatever it computes
/// (this is what the attention kernels see); a sequence with more is a prefill row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Tokens of sequences that have two or more tokens in this step.
    pub prefill_tokens: u32,
    /// Sequences with two or more tokens.
    pub prefill_seqs: u32,
    /// Σ chunk·(2·context + chunk) over those sequences; context = computed tokens before the step.
    pub prefill_attention: u64,
    /// Sequences with one token.
    pub decode_seqs: u32,
    /// KV tokens that those attend to: Σ (computed tokens before the step + 1).
    pub decode_context: u64,
}

impl StepShape {
    /// Tokens in all.
    #[must_use]
    pub const fn tokens(&self) -> u32 {
        self.prefill_tokens + self.decode_seqs
    }
}

/// A point of the piecewise-linear table: a batch of `tokens` costs `cost` (before other terms).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TablePoint {
    /// Scheduled tokens.
    pub tokens: u32,
    /// Seconds.
    pub seconds: f64,
}

/// Coefficients in seconds, as people write them; [`StepTimeModel::new`] makes them integers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Coefficients {
    /// Seconds for any step.
    pub fixed_s: f64,
    /// Non-decreasing table over scheduled tokens; empty means zero. Below the first point the
    /// first value holds; above the last the last slope goes on.
    pub tokens_table: Vec<TablePoint>,
    /// Seconds per prefill token.
    pub per_prefill_token_s: f64,
    /// Seconds per sequence in prefill.
    pub per_prefill_seq_s: f64,
    /// Seconds per decoding sequence.
    pub per_decode_seq_s: f64,
    /// Seconds per KV token attended to in decode.
    pub per_kv_token_s: f64,
    /// Seconds per unit of `prefill_attention`.
    pub per_prefill_attention_s: f64,
    /// Decode-only batches are padded up to the next of these sizes before the table is read (the
    /// captured CUDA graph sizes); ascending, empty for none.
    pub graph_sizes: Vec<u32>,
}

/// Why coefficients make no step-time model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LatencyError {
    /// A coefficient is negative, not finite or absurdly large.
    #[error("`{key}` is {value}; expected 0 or more, below 1000 s (17 s for what is per item)")]
    BadCoefficient {
        /// Field name.
        key: &'static str,
        /// What was given.
        value: f64,
    },
    /// The table does not rise.
    #[error(
        "point {index} of `tokens_table` does not rise: tokens must increase, seconds must not \
         decrease"
    )]
    TableNotRising {
        /// Which point, from 0.
        index: usize,
    },
}

/// Step-time model with integer coefficients (units of 2^-20 ps). Copies share one body, so that a
/// large fleet reads the same few lines of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepTimeModel(Arc<Model>);

#[derive(PartialEq, Eq)]
struct Model {
    fixed: u128,
    table: Vec<(u32, u128)>,
    prefill_token: u64,
    prefill_seq: u64,
    decode_seq: u64,
    kv_token: u64,
    attention: u64,
    graph_sizes: Vec<u32>,
    /// `decode_cost` by number of sequences, for the usual batch sizes.
    by_decode_seqs: Vec<u128>,
}

/// Batch sizes whose decode cost is kept at hand.
const USUAL_SEQS: u32 = 1024;

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // What is kept at hand follows from the rest.
        f.debug_struct("Model")
            .field("fixed", &self.fixed)
            .field("table", &self.table)
            .field("prefill_token", &self.prefill_token)
            .field("prefill_seq", &self.prefill_seq)
            .field("decode_seq", &self.decode_seq)
            .field("kv_token", &self.kv_token)
            .field("attention", &self.attention)
            .field("graph_sizes", &self.graph_sizes)
            .finish_non_exhaustive()
    }
}

fn fixed_point(key: &'static str, seconds: f64) -> Result<u128, LatencyError> {
    if !(0.0..1000.0).contains(&seconds) {
        return Err(LatencyError::BadCoefficient { key, value: seconds });
    }
    // Powers of two scale exactly; the product is rounded once.
    Ok((seconds * PS_PER_S as f64 * f64::from(1u32 << FIX_BITS)).round() as u128)
}

fn narrow(key: &'static str, seconds: f64) -> Result<u64, LatencyError> {
    let wide = fixed_point(key, seconds)?;
    u64::try_from(wide).map_err(|_| LatencyError::BadCoefficient { key, value: seconds })
}

impl StepTimeModel {
    /// Checks the coefficients and turns them into integers.
    ///
    /// # Errors
    /// When a coefficient is negative, not finite or too large, or the table does not rise.
    pub fn new(c: &Coefficients) -> Result<Self, LatencyError> {
        let mut table: Vec<(u32, u128)> = Vec::with_capacity(c.tokens_table.len());
        for (index, point) in c.tokens_table.iter().enumerate() {
            let cost = fixed_point("tokens_table", point.seconds)?;
            if let Some(&(tokens, before)) = table.last()
                && (point.tokens <= tokens || cost < before)
            {
                return Err(LatencyError::TableNotRising { index });
            }
            table.push((point.tokens, cost));
        }
        Ok(Self::of(Model {
            fixed: fixed_point("fixed_s", c.fixed_s)?,
            table,
            prefill_token: narrow("per_prefill_token_s", c.per_prefill_token_s)?,
            prefill_seq: narrow("per_prefill_seq_s", c.per_prefill_seq_s)?,
            decode_seq: narrow("per_decode_seq_s", c.per_decode_seq_s)?,
            kv_token: narrow("per_kv_token_s", c.per_kv_token_s)?,
            attention: narrow("per_prefill_attention_s", c.per_prefill_attention_s)?,
            graph_sizes: c.graph_sizes.clone(),
            by_decode_seqs: Vec::new(),
        }))
    }

    /// `fixed + per_token · tokens + per_seq · sequences`, exactly: the clock of recorded
    /// schedules.
    ///
    /// # Errors
    /// When a coefficient is too large for the clock.
    pub fn affine(fixed: Span, per_token: Span, per_seq: Span) -> Result<Self, LatencyError> {
        let narrow = |key, span: Span| {
            u64::try_from(Fix::from_span(span).0)
                .map_err(|_| LatencyError::BadCoefficient { key, value: span.seconds() })
        };
        Ok(Self::of(Model {
            fixed: Fix::from_span(fixed).0,
            table: Vec::new(),
            prefill_token: narrow("per_token", per_token)?,
            prefill_seq: narrow("per_seq", per_seq)?,
            // A decoding sequence is one token of one sequence.
            decode_seq: narrow("per_token + per_seq", per_token + per_seq)?,
            kv_token: 0,
            attention: 0,
            graph_sizes: Vec::new(),
            by_decode_seqs: Vec::new(),
        }))
    }

    fn of(mut model: Model) -> Self {
        model.by_decode_seqs = (0..=USUAL_SEQS).map(|n| model.decode_cost(n)).collect();
        Self(Arc::new(model))
    }

    /// Duration of a step. A step of no tokens takes no time.
    #[must_use]
    pub fn step(&self, shape: &StepShape) -> Fix {
        if shape.tokens() == 0 {
            return Fix::ZERO;
        }
        let tokens = if shape.prefill_tokens == 0 {
            self.0.padded(shape.decode_seqs)
        } else {
            shape.tokens()
        };
        Fix(self.0.fixed
            + self.0.table_cost(tokens)
            + u128::from(self.0.prefill_token) * u128::from(shape.prefill_tokens)
            + u128::from(self.0.prefill_seq) * u128::from(shape.prefill_seqs)
            + u128::from(self.0.decode_seq) * u128::from(shape.decode_seqs)
            + u128::from(self.0.kv_token) * u128::from(shape.decode_context)
            + u128::from(self.0.attention) * u128::from(shape.prefill_attention))
    }

    /// Duration of a decode-only step of `decode_seqs` members that attend to `context` KV tokens;
    /// the same as [`Self::step`] of that shape.
    #[must_use]
    #[inline]
    pub fn decode_step(&self, decode_seqs: u32, context: u64) -> Fix {
        let by_seqs = match self.0.by_decode_seqs.get(decode_seqs as usize) {
            Some(&cost) => cost,
            None => self.0.decode_cost(decode_seqs),
        };
        Fix(by_seqs + u128::from(self.0.kv_token) * u128::from(context))
    }

    /// By how much each decode-only step of `decode_seqs` unchanged members outlasts the one
    /// before: every member attends to one token more.
    #[must_use]
    pub fn decode_increment(&self, decode_seqs: u32) -> Fix {
        Fix(u128::from(self.0.kv_token) * u128::from(decode_seqs))
    }
}

impl Model {
    /// Cost of `tokens` scheduled tokens by the table.
    fn table_cost(&self, tokens: u32) -> u128 {
        let after = self.table.partition_point(|&(t, _)| t <= tokens);
        match (after.checked_sub(1).map(|i| self.table[i]), self.table.get(after)) {
            (None, None) => 0,
            (None, Some(&(_, first))) => first,
            (Some((t0, c0)), Some(&(t1, c1))) => {
                c0 + (c1 - c0) * u128::from(tokens - t0) / u128::from(t1 - t0)
            }
            (Some((t1, c1)), None) => match after.checked_sub(2).map(|i| self.table[i]) {
                Some((t0, c0)) => c1 + (c1 - c0) * u128::from(tokens - t1) / u128::from(t1 - t0),
                None => c1,
            },
        }
    }

    /// Tokens after padding to a captured graph (decode-only batches).
    fn padded(&self, decode_seqs: u32) -> u32 {
        let at = self.graph_sizes.partition_point(|&g| g < decode_seqs);
        self.graph_sizes.get(at).copied().unwrap_or(decode_seqs)
    }

    /// The part of a decode-only step that its members' number decides.
    fn decode_cost(&self, decode_seqs: u32) -> u128 {
        self.fixed
            + self.table_cost(self.padded(decode_seqs))
            + u128::from(self.decode_seq) * u128::from(decode_seqs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> StepTimeModel {
        StepTimeModel::new(&Coefficients {
            fixed_s: 0.006,
            tokens_table: vec![
                TablePoint { tokens: 10, seconds: 0.001 },
                TablePoint { tokens: 20, seconds: 0.003 },
            ],
            per_prefill_token_s: 16e-6,
            per_decode_seq_s: 10e-6,
            per_kv_token_s: 39e-9,
            graph_sizes: vec![1, 8, 16],
            ..Coefficients::default()
        })
        .unwrap()
    }

    #[test]
    fn a_decode_step_grows_by_the_increment() {
        let m = model();
        let shape =
            |context| StepShape { decode_seqs: 5, decode_context: context, ..StepShape::default() };
        let (first, second) = (m.step(&shape(1000)), m.step(&shape(1005)));
        assert_eq!(second, first + m.decode_increment(5));
        assert_eq!(m.decode_step(5, 1000), first);
        let large = StepShape { decode_seqs: 5000, decode_context: 9, ..StepShape::default() };
        assert_eq!(m.decode_step(5000, 9), m.step(&large));
    }

    #[test]
    fn the_affine_clock_is_exact_in_microseconds() {
        let us = Span::from_micros;
        let m = StepTimeModel::affine(us(6204), us(3), us(7)).unwrap();
        let shape = StepShape {
            prefill_tokens: 100,
            prefill_seqs: 2,
            decode_seqs: 5,
            decode_context: 9000,
            prefill_attention: 12345,
        };
        assert_eq!(m.step(&shape), Fix::from_span(us(6204 + 3 * 105 + 7 * 7)));
        assert!(StepTimeModel::affine(us(0), us(0), us(100_000_000)).is_err());
    }

    #[test]
    fn the_table_interpolates_holds_below_and_extends_above() {
        let m = model();
        let at = |n| m.0.table_cost(n);
        assert_eq!(at(1), at(10));
        assert_eq!(at(15) * 2, at(10) + at(20));
        assert_eq!(at(30), at(20) + (at(20) - at(10)));
        assert_eq!(m.0.padded(9), 16);
        assert_eq!(m.0.padded(17), 17);
    }

    #[test]
    fn bad_coefficients_are_refused() {
        for bad in [-1.0, f64::NAN, f64::INFINITY, 1e6] {
            let c = Coefficients { fixed_s: bad, ..Coefficients::default() };
            assert!(matches!(StepTimeModel::new(&c), Err(LatencyError::BadCoefficient { .. })));
        }
        let falling =
            vec![TablePoint { tokens: 2, seconds: 0.2 }, TablePoint { tokens: 3, seconds: 0.1 }];
        let c = Coefficients { tokens_table: falling, ..Coefficients::default() };
        assert_eq!(StepTimeModel::new(&c), Err(LatencyError::TableNotRising { index: 1 }));
    }
}
