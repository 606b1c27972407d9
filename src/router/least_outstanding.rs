//! Least outstanding requests. Models SageMaker's LEAST_OUTSTANDING_REQUESTS and the
//! `least_outstanding_requests` of an Application Load Balancer: the replica with the fewest
//! requests sent and not yet ended; of equals the first. Counts are exact and immediate. Leaves
//! out: a balancer of several nodes, each with a count of its own, and any weight for the size of
//! an instance (SageMaker has none).

use super::RequestHead;
use super::fleet::FleetShape;
use super::outstanding::Outstanding;

/// The replica that the policy takes.
#[inline]
#[must_use]
pub fn route(fleet: &FleetShape, load: &Outstanding, head: &RequestHead<'_>) -> Option<u32> {
    load.least(fleet, head.prompt.len())
}
