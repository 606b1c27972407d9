//! Round robin over all replicas. Models a plain load balancer in front of equal targets
//! (`round_robin` of an Application Load Balancer or of a HyperPod inference router): each replica
//! in turn, in order of number. Leaves out: weights, and the independent cursors of several
//! balancer nodes.

use super::RequestHead;
use super::fleet::FleetShape;

/// Whose turn it is.
#[derive(Debug, Clone, Default)]
pub struct RoundRobin {
    next: u32,
}

impl RoundRobin {
    /// The next replica, passing over pools that cannot take the request.
    #[inline]
    pub fn route(&mut self, fleet: &FleetShape, head: &RequestHead<'_>) -> Option<u32> {
        let replicas = fleet.replicas();
        if replicas == 0 {
            return None;
        }
        // Two rounds over the pools are enough: the first may start in the midst of one.
        for _ in 0..=fleet.pools().len() {
            let pool = &fleet.pools()[fleet.pool_of(self.next) as usize];
            let after =
                if pool.takes(head.prompt.len()) { self.next + 1 } else { pool.members().end };
            let chosen = self.next;
            self.next = if after < replicas { after } else { 0 };
            if pool.takes(head.prompt.len()) {
                return Some(chosen);
            }
        }
        None
    }
}
