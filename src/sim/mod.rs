//! The simulation loop: the only room that schedules events. Puts traffic, router, replicas and
//! recorders together and advances simulated time in the total order of events.

pub mod config;
pub mod result;
