//! The event core: random streams, portable mathematics, the ordered set of wake-up times and the
//! order of events at one instant. No word of language models in here.

pub mod math;
pub mod rng;
pub mod wake;
