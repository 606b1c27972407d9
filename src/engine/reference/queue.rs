//! The waiting queue: first come first served, or a heap by priority. Knows requests by id and by
//! the facts that order them, nothing else.

use crate::engine::config::SchedulingPolicy;
use crate::engine::request::RequestId;
use crate::units::SimTime;
use std::collections::{BTreeSet, VecDeque};

/// What orders requests under the priority policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// Smaller first.
    priority: i32,
    /// Then earlier first.
    arrival: SimTime,
    /// Then the id as decimal text: vLLM's request ids are strings, so 10 comes before 9.
    id_text: String,
    id: RequestId,
}

impl Rank {
    pub(super) fn new(priority: i32, arrival: SimTime, id: RequestId) -> Self {
        Self { priority, arrival, id_text: id.0.to_string(), id }
    }
}

/// Requests that wait, the head first.
#[derive(Debug)]
pub(super) enum WaitingQueue {
    Fcfs(VecDeque<RequestId>),
    Priority(BTreeSet<Rank>),
}

impl WaitingQueue {
    pub(super) fn new(policy: SchedulingPolicy) -> Self {
        match policy {
            SchedulingPolicy::Fcfs => Self::Fcfs(VecDeque::new()),
            SchedulingPolicy::Priority => Self::Priority(BTreeSet::new()),
        }
    }

    pub(super) fn len(&self) -> u32 {
        match self {
            Self::Fcfs(queue) => queue.len() as u32,
            Self::Priority(heap) => heap.len() as u32,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn head(&self) -> Option<RequestId> {
        match self {
            Self::Fcfs(queue) => queue.front().copied(),
            Self::Priority(heap) => heap.first().map(|rank| rank.id),
        }
    }

    /// A new request joins.
    pub(super) fn push(&mut self, rank: Rank) {
        match self {
            Self::Fcfs(queue) => queue.push_back(rank.id),
            Self::Priority(heap) => {
                heap.insert(rank);
            }
        }
    }

    /// A preempted request comes back: to the front, or to its place in the heap.
    pub(super) fn push_preempted(&mut self, rank: Rank) {
        match self {
            Self::Fcfs(queue) => queue.push_front(rank.id),
            Self::Priority(heap) => {
                heap.insert(rank);
            }
        }
    }

    /// `id` leaves, from wherever it stands.
    pub(super) fn remove(&mut self, id: RequestId) {
        match self {
            Self::Fcfs(queue) => queue.retain(|&other| other != id),
            Self::Priority(heap) => heap.retain(|rank| rank.id != id),
        }
    }

    /// All requests, the head first.
    pub(super) fn in_order(&self) -> Vec<RequestId> {
        match self {
            Self::Fcfs(queue) => queue.iter().copied().collect(),
            Self::Priority(heap) => heap.iter().map(|rank| rank.id).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(priority: i32, arrival: u64, id: u64) -> Rank {
        Rank::new(priority, SimTime(arrival), RequestId(id))
    }

    fn order(queue: &WaitingQueue) -> Vec<u64> {
        queue.in_order().into_iter().map(|id| id.0).collect()
    }

    #[test]
    fn fcfs_puts_the_preempted_first_and_the_last_preempted_before_them() {
        let mut queue = WaitingQueue::new(SchedulingPolicy::Fcfs);
        queue.push(rank(0, 5, 1));
        queue.push(rank(-1, 6, 2));
        queue.push_preempted(rank(0, 1, 3));
        queue.push_preempted(rank(0, 2, 4));
        assert_eq!(order(&queue), [4, 3, 1, 2]);
        queue.remove(RequestId(1));
        assert_eq!(order(&queue), [4, 3, 2]);
        assert_eq!(queue.head(), Some(RequestId(4)));
    }

    #[test]
    fn priority_orders_by_priority_then_arrival_then_id_as_text() {
        let mut queue = WaitingQueue::new(SchedulingPolicy::Priority);
        for waiting in [rank(1, 0, 1), rank(0, 9, 2), rank(0, 7, 9), rank(0, 7, 10)] {
            queue.push(waiting);
        }
        queue.push_preempted(rank(-1, 50, 3));
        assert_eq!(order(&queue), [3, 10, 9, 2, 1]);
        assert_eq!(queue.len(), 5);
    }
}
