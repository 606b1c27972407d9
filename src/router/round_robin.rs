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
        for _ in fleet.pools() {
            let chosen = self.next;
            let pool = &fleet.pools()[fleet.pool_of(chosen) as usize];
            let takes = pool.takes(head.prompt.len());
            let after = if takes { chosen + 1 } else { pool.members().end };
            self.next = if after < replicas { after } else { 0 };
            if takes {
                return Some(chosen);
            }
        }
        None
    }
}
