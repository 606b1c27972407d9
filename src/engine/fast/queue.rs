//! The waiting queue of the fast engine, under both policies. Entries of requests that left early
//! stay until they come up.

use crate::engine::config::SchedulingPolicy;
use crate::engine::fast::slots::{Slots, Standing};
use crate::engine::request::RequestId;
use crate::units::SimTime;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Order under the priority policy: priority, arrival, then the request number as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    priority: i32,
    arrival: SimTime,
    text: (u128, u32),
    slot: u32,
}

/// Sorts numbers as their decimal texts sort: digits aligned to the left, shorter first on a tie.
fn as_text(id: RequestId) -> (u128, u32) {
    let digits = id.0.checked_ilog10().unwrap_or(0) + 1;
    (u128::from(id.0) * 10u128.pow(20 - digits), digits)
}

#[derive(Debug)]
enum Order {
    Fcfs(VecDeque<u32>),
    Priority(BinaryHeap<Reverse<Rank>>),
}

/// Requests waiting for admission, by slot.
#[derive(Debug)]
pub struct WaitingQueue {
    order: Order,
    len: u32,
}

impl WaitingQueue {
    /// An empty queue.
    pub fn new(policy: SchedulingPolicy) -> Self {
        let order = match policy {
            SchedulingPolicy::Fcfs => Order::Fcfs(VecDeque::new()),
            SchedulingPolicy::Priority => Order::Priority(BinaryHeap::new()),
        };
        Self { order, len: 0 }
    }

    /// Requests waiting.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// A new request joins.
    pub fn push(&mut self, slots: &Slots, index: u32) {
        self.len += 1;
        match &mut self.order {
            Order::Fcfs(queue) => queue.push_back(index),
            Order::Priority(heap) => heap.push(Reverse(rank(slots, index))),
        }
    }

    /// A preempted request comes back: to the front, or to its rank.
    pub fn push_preempted(&mut self, slots: &Slots, index: u32) {
        self.len += 1;
        match &mut self.order {
            Order::Fcfs(queue) => queue.push_front(index),
            Order::Priority(heap) => heap.push(Reverse(rank(slots, index))),
        }
    }

    /// The next to be admitted.
    pub fn head(&mut self, slots: &mut Slots) -> Option<u32> {
        loop {
            let index = match &self.order {
                Order::Fcfs(queue) => *queue.front()?,
                Order::Priority(heap) => heap.peek()?.0.slot,
            };
            if slots[index].standing != Standing::Gone {
                return Some(index);
            }
            self.drop_head();
            slots.free_gone(index);
        }
    }

    /// Removes what [`Self::head`] returned.
    pub fn pop(&mut self) {
        self.drop_head();
        self.len -= 1;
    }

    /// A waiting request left; its entry stays until it comes up.
    pub fn left_early(&mut self) {
        self.len -= 1;
    }

    fn drop_head(&mut self) {
        match &mut self.order {
            Order::Fcfs(queue) => {
                queue.pop_front();
            }
            Order::Priority(heap) => {
                heap.pop();
            }
        }
    }

    /// Everyone waiting, in queue order.
    pub fn in_order(&self, slots: &Slots) -> Vec<RequestId> {
        let live = |index: &u32| slots[*index].standing != Standing::Gone;
        match &self.order {
            Order::Fcfs(queue) => queue.iter().copied().filter(live).map(|i| slots[i].id).collect(),
            Order::Priority(heap) => {
                let mut ranks: Vec<Rank> = heap.iter().map(|r| r.0).collect();
                ranks.sort_unstable();
                ranks.iter().map(|r| r.slot).filter(live).map(|i| slots[i].id).collect()
            }
        }
    }
}

fn rank(slots: &Slots, index: u32) -> Rank {
    let (priority, arrival) = slots.rank(index);
    Rank { priority, arrival, text: as_text(slots[index].id), slot: index }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_sort_as_text() {
        let mut ids: Vec<u64> = vec![0, 9, 10, 100, 11, 2, 1, u64::MAX, 19, 99];
        let mut texts: Vec<String> = ids.iter().map(u64::to_string).collect();
        ids.sort_by_key(|&id| as_text(RequestId(id)));
        texts.sort();
        assert_eq!(ids.iter().map(u64::to_string).collect::<Vec<_>>(), texts);
    }
}
