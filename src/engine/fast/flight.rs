//! Batches in flight: at most two, in place, with their buffers reused. Knows nothing of what is in
//! them.

use crate::units::Fix;

/// A sequence of its own in a batch in flight, outside the lockstep.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Which request.
    pub slot: u32,
    /// Tokens scheduled.
    pub tokens: u32,
    /// Computed tokens before them.
    pub before: u32,
    /// The step gives it a token.
    pub gives_token: bool,
    /// The token is its last.
    pub finishes: bool,
}

/// A step whose schedule call has been applied and whose output has not been processed.
#[derive(Debug, Default)]
pub struct Batch {
    /// Step number in the lockstep's count.
    pub step: u64,
    /// Exact start.
    pub start: Fix,
    /// Exact end.
    pub end: Fix,
    /// Lockstep members scheduled.
    pub members: u32,
    /// Those of them that are measured.
    pub measured: u32,
    /// Sequences of their own.
    pub entries: Vec<Entry>,
    /// Lockstep members whose last token this step gives, once they have left the lockstep.
    pub draining: Vec<u32>,
    /// Number among the steps that scheduled tokens or preempted something.
    pub number: u64,
}

/// Up to two batches, oldest first.
#[derive(Debug, Default)]
pub struct Flight {
    batches: [Batch; 2],
    first: usize,
    len: usize,
}

impl Flight {
    /// Batches in flight.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// The batch at `index`, oldest first.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&Batch> {
        (index < self.len).then(|| &self.batches[(self.first + index) & 1])
    }

    /// The oldest.
    #[inline]
    pub fn front(&self) -> Option<&Batch> {
        self.get(0)
    }

    /// Oldest first.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &Batch> {
        (0..self.len).map(|index| &self.batches[(self.first + index) & 1])
    }

    /// Does something to each.
    #[inline]
    pub fn for_each(&mut self, mut act: impl FnMut(&mut Batch)) {
        for index in 0..self.len {
            act(&mut self.batches[(self.first + index) & 1]);
        }
    }

    /// The place of the next batch, whose buffers are empty; [`Self::push`] makes it count.
    #[inline]
    pub fn next(&mut self) -> &mut Batch {
        assert!(self.len < 2, "at most two batches are in flight");
        &mut self.batches[(self.first + self.len) & 1]
    }

    /// Puts the batch at [`Self::next`] in flight.
    #[inline]
    pub fn push(&mut self) {
        self.len += 1;
    }

    /// Takes the oldest out; give its buffers back with [`Self::keep`].
    #[inline]
    pub fn pop(&mut self) -> Option<Batch> {
        if self.len == 0 {
            return None;
        }
        let oldest = &mut self.batches[self.first];
        let batch = Batch {
            entries: std::mem::take(&mut oldest.entries),
            draining: std::mem::take(&mut oldest.draining),
            ..*oldest
        };
        self.first = (self.first + 1) & 1;
        self.len -= 1;
        Some(batch)
    }

    /// Takes the buffers of the batch that was popped last back for reuse.
    #[inline]
    pub fn keep(&mut self, mut batch: Batch) {
        batch.entries.clear();
        batch.draining.clear();
        let place = &mut self.batches[(self.first + 1) & 1];
        // With one batch left the vacated place is the other one; with none either will do.
        debug_assert!(place.entries.is_empty() && place.draining.is_empty());
        place.entries = batch.entries;
        place.draining = batch.draining;
    }
}
