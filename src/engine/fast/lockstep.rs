//! The running requests that decode one token in every step. Their counters are functions of the
//! step number, so a run of steps costs nothing per member: the context sum is linear, block
//! demand follows from a histogram of phases modulo the block size, and the next to finish is the
//! head of a heap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Step numbers start here, so that a step number minus computed tokens is never negative.
pub const FIRST_STEP: u64 = 1 << 32;

/// A member's place in lockstep, from its slot.
#[derive(Debug, Clone, Copy)]
pub struct Membership {
    /// Step number minus computed tokens after that step.
    pub base: u64,
    /// Counts in latency figures.
    pub measured: bool,
}

/// (step that schedules the last token, slot, generation of the slot).
type Finish = (u64, u32, u32);

/// Members by the step of their last token: those that joined in the order in which they will end
/// queue up, the others lie in a heap.
#[derive(Debug, Default)]
struct Finishes {
    in_order: VecDeque<Finish>,
    others: BinaryHeap<Reverse<Finish>>,
}

impl Finishes {
    #[inline]
    fn push(&mut self, finish: Finish) {
        if self.in_order.back().is_none_or(|last| last.0 <= finish.0) {
            self.in_order.push_back(finish);
        } else {
            self.others.push(Reverse(finish));
        }
    }

    /// The earliest, and whether it is at the front of the queue.
    #[inline]
    fn first(&self) -> Option<(Finish, bool)> {
        if self.others.is_empty() {
            return self.in_order.front().map(|&finish| (finish, true));
        }
        match (self.in_order.front(), self.others.peek()) {
            (Some(&a), Some(&Reverse(b))) => Some(if a.0 <= b.0 { (a, true) } else { (b, false) }),
            (Some(&a), None) => Some((a, true)),
            (None, Some(&Reverse(b))) => Some((b, false)),
            (None, None) => None,
        }
    }

    #[inline]
    fn pop(&mut self) {
        match self.first() {
            Some((_, true)) => {
                self.in_order.pop_front();
            }
            Some((_, false)) => {
                self.others.pop();
            }
            None => {}
        }
    }
}

/// Members that advance together.
#[derive(Debug)]
pub struct Lockstep {
    block_size: u64,
    /// Block size minus 1 when that is a power of two, to spare divisions; else 0.
    mask: u64,
    /// Number of the last schedule call made.
    pub step: u64,
    /// Members.
    pub members: u32,
    /// Members that count in latency figures.
    pub measured: u32,
    base_sum: u64,
    /// Members by base modulo block size.
    phases: Vec<u32>,
    finishes: Finishes,
    /// Entries of `finishes` whose member left before its last token.
    stale: u32,
}

impl Lockstep {
    /// No members.
    pub fn new(block_size: u32) -> Self {
        Self {
            block_size: u64::from(block_size),
            mask: if block_size.is_power_of_two() { u64::from(block_size - 1) } else { 0 },
            step: FIRST_STEP,
            members: 0,
            measured: 0,
            base_sum: 0,
            phases: vec![0; block_size as usize],
            finishes: Finishes::default(),
            stale: 0,
        }
    }

    /// Phase of a step number.
    #[inline]
    const fn phase(&self, step: u64) -> usize {
        (if self.mask > 0 { step & self.mask } else { step % self.block_size }) as usize
    }

    /// Whole block-size cycles in `steps` steps.
    #[inline]
    const fn cycles(&self, steps: u64) -> u64 {
        if self.mask > 0 { steps >> self.mask.count_ones() } else { steps / self.block_size }
    }

    /// A member joins: from the next step on it decodes with the others.
    pub fn join(&mut self, member: Membership, finish_step: u64, slot: u32, generation: u32) {
        self.members += 1;
        self.measured += u32::from(member.measured);
        self.base_sum += member.base;
        let phase = self.phase(member.base);
        self.phases[phase] += 1;
        self.finishes.push((finish_step, slot, generation));
    }

    /// A member leaves before its last token; its entry among the finishes goes stale.
    pub fn desert(&mut self, member: Membership) {
        self.stale += 1;
        self.leave(member);
    }

    /// A member whose finish was popped leaves.
    pub fn leave(&mut self, member: Membership) {
        self.members -= 1;
        self.measured -= u32::from(member.measured);
        self.base_sum -= member.base;
        let phase = self.phase(member.base);
        self.phases[phase] -= 1;
    }

    /// Σ computed tokens of the members after the last step.
    pub fn context(&self) -> u64 {
        u64::from(self.members) * self.step - self.base_sum
    }

    /// Step and slot of the next to finish; `current` tells live entries from stale ones.
    #[inline]
    pub fn next_finish(&mut self, current: impl Fn(u32, u32) -> bool) -> Option<(u64, u32)> {
        while let Some(((step, slot, generation), _)) = self.finishes.first() {
            // Without stale entries the slot, often out of cache, need not be looked at.
            if self.stale == 0 || current(slot, generation) {
                return Some((step, slot));
            }
            self.finishes.pop();
            self.stale -= 1;
        }
        None
    }

    /// A step at or before which the next member finishes (stale entries may make it early).
    #[inline]
    pub fn earliest_finish(&self) -> Option<u64> {
        self.finishes.first().map(|((step, _, _), _)| step)
    }

    /// Removes what [`Self::next_finish`] returned from the heap.
    pub fn pop_finish(&mut self) {
        self.finishes.pop();
    }

    /// Blocks that the members need in the next step.
    pub fn next_demand(&self) -> u32 {
        self.phases[self.phase(self.step)]
    }

    /// Blocks that the members need over the next `steps` steps.
    pub fn demand(&self, steps: u64) -> u64 {
        let cycles = self.cycles(steps);
        let mut sum = cycles * u64::from(self.members);
        let mut at = self.phase(self.step);
        for _ in 0..steps - cycles * self.block_size {
            sum += u64::from(self.phases[at]);
            at = if at + 1 == self.phases.len() { 0 } else { at + 1 };
        }
        sum
    }

    /// Most steps, up to `limit`, whose demand `free` blocks can meet.
    pub fn steps_within(&self, free: u32, limit: u64) -> u64 {
        let free = u64::from(free);
        if (self.cycles(limit) + 1) * u64::from(self.members) <= free {
            return limit;
        }
        let cycles = free / u64::from(self.members.max(1));
        let mut left = free - cycles * u64::from(self.members);
        let mut steps = cycles * self.block_size;
        let mut at = self.phase(self.step);
        while steps < limit {
            let need = u64::from(self.phases[at]);
            if need > left {
                return steps;
            }
            left -= need;
            steps += 1;
            at = if at + 1 == self.phases.len() { 0 } else { at + 1 };
        }
        limit
    }

    /// Demand over the next `steps` steps, and the sum over them of the demand up to and including
    /// each.
    pub fn demand_and_sum(&self, steps: u64) -> (u64, u128) {
        let cycles = self.cycles(steps);
        if cycles == 0 {
            let (mut demand, mut sum) = (0u64, 0u64);
            let mut at = self.phase(self.step);
            for _ in 0..steps {
                demand += u64::from(self.phases[at]);
                sum += demand;
                at = if at + 1 == self.phases.len() { 0 } else { at + 1 };
            }
            return (demand, u128::from(sum));
        }
        let rest = steps - cycles * self.block_size;
        let members = u128::from(self.members);
        let (mut prefix, mut over_rest, mut over_cycle) = (0u128, 0u128, 0u128);
        let mut at = self.phase(self.step);
        for i in 0..self.block_size {
            prefix += u128::from(self.phases[at]);
            over_cycle += prefix;
            if i < rest {
                over_rest += prefix;
            }
            at = if at + 1 == self.phases.len() { 0 } else { at + 1 };
        }
        let (q, bs) = (u128::from(cycles), u128::from(self.block_size));
        let whole = q * over_cycle + bs * members * (q * (q - 1) / 2);
        (self.demand(steps), whole + over_rest + u128::from(rest) * q * members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_follows_the_phases() {
        let mut lock = Lockstep::new(4);
        for computed in [3u64, 4, 4, 9, 14] {
            let base = lock.step - computed;
            lock.join(Membership { base, measured: true }, u64::MAX, 0, 0);
        }
        assert_eq!(lock.context(), 34);
        // By hand: a member needs a block in step i (from 1) when computed + i - 1 is a multiple
        // of 4.
        let needs = |i: u64| {
            [3u64, 4, 4, 9, 14].iter().filter(|c| (*c + i - 1).is_multiple_of(4)).count() as u64
        };
        assert_eq!(u64::from(lock.next_demand()), needs(1));
        for steps in 0..30 {
            let by_hand: u64 = (1..=steps).map(needs).sum();
            assert_eq!(lock.demand(steps), by_hand);
            let sum: u64 = (1..=steps).map(|s| (1..=s).map(needs).sum::<u64>()).sum();
            assert_eq!(lock.demand_and_sum(steps), (by_hand, u128::from(sum)));
        }
        for free in 0..20 {
            for limit in 0..30 {
                let mut steps = 0;
                while steps < limit && lock.demand(steps + 1) <= free {
                    steps += 1;
                }
                assert_eq!(lock.steps_within(free as u32, limit), steps, "{free} {limit}");
            }
        }
    }
}
