//! What must hold when a run is over: nobody is lost between traffic, router and engines, and no
//! token or block either, as far as engines show them. Failing here is a bug of ours, so these are
//! assertions; they cost O(replicas) and are always on.

use super::endpoint::Delivery;
use super::result::{RequestCounts, RunResult};
use super::tally::Tally;
use crate::engine::replica::Replica;
use crate::units::{SimTime, Span};
use std::collections::VecDeque;

/// Engines hold the requests that they were given and have not reported, and an empty engine holds
/// no blocks.
pub fn replicas<R: Replica>(replicas: &[R], inside: &[u32], now: SimTime) {
    for (number, (replica, &inside)) in replicas.iter().zip(inside).enumerate() {
        let held = replica.in_flight();
        assert!(held == inside, "replica {number} holds {held} requests, was left with {inside}");
        if inside == 0 {
            let used = replica.observe(now + Span(1)).used_blocks;
            assert!(used == 0, "replica {number} is empty but uses {used} blocks");
        }
    }
}

/// Requests by fate add up, in total and by pool; output tokens do when all requests completed.
pub fn counts<Rec>(
    result: &RunResult,
    tally: &Tally<'_, Rec>,
    deliveries: &[VecDeque<Delivery>],
    inside: &[u32],
) {
    adds_up(&result.counts, "the fleet");
    let mut routed = 0;
    for (number, pool) in result.pools.iter().enumerate() {
        adds_up(&pool.counts, &format!("pool {number}"));
        routed += pool.counts.arrived;
        let flow = &tally.pools[number].flow;
        let (seen, made) = (flow.output_tokens + flow.wasted_tokens, pool.engine.output_tokens);
        assert!(seen <= made, "pool {number} delivered {seen} output tokens but made {made}");
        if pool.counts.completed == pool.counts.arrived {
            assert!(seen == made, "pool {number} made {made} output tokens, delivered {seen}");
        }
    }
    assert!(
        result.counts.arrived == routed + result.counts.rejected,
        "arrivals are routed or refused"
    );
    let held: u64 = inside.iter().map(|&inside| u64::from(inside)).sum();
    let under_way: u64 = deliveries.iter().map(|queue| queue.len() as u64).sum();
    assert!(
        result.counts.unfinished >= held + under_way,
        "requests inside engines and on their way are unfinished"
    );
}

fn adds_up(counts: &RequestCounts, whose: &str) {
    let RequestCounts { arrived, completed, rejected, timed_out, failed, unfinished } = *counts;
    let ends = completed + rejected + timed_out + failed + unfinished;
    assert!(arrived == ends, "{whose}: {arrived} requests arrived, {ends} are accounted for");
}
