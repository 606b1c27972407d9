//! A request as the engine receives it, and what its tokens are. Two prompts share a prefix as far
//! as their segment lists agree token by token; no token text exists.

use crate::units::SimTime;

/// Number of a request within a run; unique, in order of arrival at the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// An endless sequence of tokens. Tokens are equal exactly when stream and position are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

impl StreamId {
    const OUTPUT: u64 = 1 << 62;
    const OWN: u64 = 2 << 62;

    /// A stream that several prompts may quote (a system prompt, a hashed block); `n` < 2^62.
    #[must_use]
    pub const fn shared(n: u64) -> Self {
        Self(n & (Self::OUTPUT - 1))
    }

    /// The output of request `id`.
    #[must_use]
    pub const fn output(id: RequestId) -> Self {
        Self(Self::OUTPUT | id.0)
    }

    /// The request whose output this is.
    #[must_use]
    pub const fn author(self) -> Option<RequestId> {
        if self.0 >> 62 == 1 { Some(RequestId(self.0 & (Self::OUTPUT - 1))) } else { None }
    }

    /// Prompt text that only request `id` has.
    #[must_use]
    pub const fn own(id: RequestId) -> Self {
        Self(Self::OWN | id.0)
    }
}

/// The first `len` tokens of `stream`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Which tokens.
    pub stream: StreamId,
    /// How many, from the first.
    pub len: u32,
}

/// Prompt tokens as a list of segments. One segment is stored inline, as most generated prompts
/// have just one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    len: u32,
    segments: Segments,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segments {
    One(Segment),
    Many(Box<[Segment]>),
}

impl Prompt {
    /// A prompt of one segment.
    #[must_use]
    pub const fn single(stream: StreamId, len: u32) -> Self {
        Self { len, segments: Segments::One(Segment { stream, len }) }
    }

    /// A prompt of several segments; empty segments are dropped.
    #[must_use]
    pub fn from_segments(segments: impl IntoIterator<Item = Segment>) -> Self {
        let kept: Vec<Segment> = segments.into_iter().filter(|s| s.len > 0).collect();
        let len = kept.iter().map(|s| s.len).sum();
        match kept.as_slice() {
            [one] => Self { len, segments: Segments::One(*one) },
            _ => Self { len, segments: Segments::Many(kept.into_boxed_slice()) },
        }
    }

    /// Tokens in all.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// True for a prompt of no tokens.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The segments in order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        match &self.segments {
            Segments::One(one) => std::slice::from_ref(one),
            Segments::Many(many) => many,
        }
    }
}

/// A request as it enters the engine's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineRequest {
    /// Its number.
    pub id: RequestId,
    /// When it reached the endpoint; orders requests of equal priority.
    pub arrival: SimTime,
    /// Smaller is served first under the priority policy.
    pub priority: i32,
    /// Prompt tokens; at least one.
    pub prompt: Prompt,
    /// Output tokens it will make unless `max_model_len` cuts it; at least one.
    pub max_tokens: u32,
    /// Do not read the prefix cache (its blocks are cached all the same).
    pub skip_cache: bool,
    /// Counts in latency figures (false during warm-up).
    pub measured: bool,
}
