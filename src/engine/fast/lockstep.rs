//! The running requests that decode one token in every step. Their counters are functions of the
//! step number, so a run of steps costs nothing per member: the context sum is linear, block
//! demand follows from a histogram of phases modulo the block size, and the next to finish is the
//! head of a heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

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

/// Members that advance together.
#[derive(Debug)]
pub struct Lockstep {
    block_size: u64,
    /// Number of the last schedule call made.
    pub step: u64,
    /// Members.
    pub members: u32,
    /// Members that count in latency figures.
    pub measured: u32,
    base_sum: u64,
    /// Members by base modulo block size.
    phases: Vec<u32>,
    /// (step that schedules the last token, slot, generation of the slot).
    finish: BinaryHeap<Reverse<(u64, u32, u32)>>,
}

impl Lockstep {
    /// No members.
    pub fn new(block_size: u32) -> Self {
        Self {
            block_size: u64::from(block_size),
            step: FIRST_STEP,
            members: 0,
            measured: 0,
            base_sum: 0,
            phases: vec![0; block_size as usize],
            finish: BinaryHeap::new(),
        }
    }

    /// A member joins: from the next step on it decodes with the others.
    pub fn join(&mut self, member: Membership, finish_step: u64, slot: u32, generation: u32) {
        self.members += 1;
        self.measured += u32::from(member.measured);
        self.base_sum += member.base;
        self.phases[(member.base % self.block_size) as usize] += 1;
        self.finish.push(Reverse((finish_step, slot, generation)));
    }

    /// A member leaves (its heap entry goes stale).
    pub fn leave(&mut self, member: Membership) {
        self.members -= 1;
        self.measured -= u32::from(member.measured);
        self.base_sum -= member.base;
        self.phases[(member.base % self.block_size) as usize] -= 1;
    }

    /// Σ computed tokens of the members after the last step.
    pub fn context(&self) -> u64 {
        u64::from(self.members) * self.step - self.base_sum
    }

    /// Step and slot of the next to finish; `current` tells live entries from stale ones.
    pub fn next_finish(&mut self, current: impl Fn(u32, u32) -> bool) -> Option<(u64, u32)> {
        while let Some(&Reverse((step, slot, generation))) = self.finish.peek() {
            if current(slot, generation) {
                return Some((step, slot));
            }
            self.finish.pop();
        }
        None
    }

    /// A step at or before which the next member finishes (stale entries may make it early).
    pub fn earliest_finish(&self) -> Option<u64> {
        self.finish.peek().map(|&Reverse((step, _, _))| step)
    }

    /// Removes what [`Self::next_finish`] returned from the heap.
    pub fn pop_finish(&mut self) {
        self.finish.pop();
    }

    /// Blocks that the members need in the next step.
    pub fn next_demand(&self) -> u32 {
        self.phases[(self.step % self.block_size) as usize]
    }

    /// Blocks that the members need over the next `steps` steps.
    pub fn demand(&self, steps: u64) -> u64 {
        let cycles = steps / self.block_size;
        let mut sum = cycles * u64::from(self.members);
        let mut at = (self.step % self.block_size) as usize;
        for _ in 0..steps % self.block_size {
            sum += u64::from(self.phases[at]);
            at = if at + 1 == self.phases.len() { 0 } else { at + 1 };
        }
        sum
    }

    /// Most steps, up to `limit`, whose demand `free` blocks can meet.
    pub fn steps_within(&self, free: u32, limit: u64) -> u64 {
        let free = u64::from(free);
        if (limit / self.block_size + 1) * u64::from(self.members) <= free {
            return limit;
        }
        let cycles = free / u64::from(self.members.max(1));
        let mut left = free - cycles * u64::from(self.members);
        let mut steps = cycles * self.block_size;
        let mut at = (self.step % self.block_size) as usize;
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

    /// Σ over the next `steps` steps of the demand up to and including each.
    pub fn demand_sum(&self, steps: u64) -> u128 {
        let cycles = steps / self.block_size;
        let rest = steps % self.block_size;
        let members = u128::from(self.members);
        let (mut prefix, mut over_rest, mut over_cycle) = (0u128, 0u128, 0u128);
        let span = if cycles > 0 { self.block_size } else { rest };
        let mut at = (self.step % self.block_size) as usize;
        for i in 0..span {
            prefix += u128::from(self.phases[at]);
            over_cycle += prefix;
            if i < rest {
                over_rest += prefix;
            }
            at = if at + 1 == self.phases.len() { 0 } else { at + 1 };
        }
        let (q, bs) = (u128::from(cycles), u128::from(self.block_size));
        let whole = if q == 0 { 0 } else { q * over_cycle + bs * members * (q * (q - 1) / 2) };
        whole + over_rest + u128::from(rest) * q * members
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
            assert_eq!(lock.demand_sum(steps), u128::from(sum));
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
