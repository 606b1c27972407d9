//! What a router knows of the fleet by configuration: pools of replicas, numbered through, and the
//! longest sequence each pool serves. Knows nothing of engines.

/// A pool as a router sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolShape {
    /// Number of its first replica within the fleet.
    pub first: u32,
    /// How many replicas it has, numbered from `first`.
    pub replicas: u32,
    /// Longest prompt plus output, in tokens.
    pub max_model_len: u32,
}

impl PoolShape {
    /// True when a prompt of `prompt_tokens` leaves room for a token and someone can serve it.
    #[must_use]
    pub const fn takes(&self, prompt_tokens: u32) -> bool {
        self.replicas > 0 && prompt_tokens < self.max_model_len
    }

    /// Numbers of its replicas.
    #[must_use]
    pub const fn members(&self) -> std::ops::Range<u32> {
        self.first..self.first + self.replicas
    }
}

/// All pools, in order of priority.
#[derive(Debug, Clone)]
pub struct FleetShape {
    pools: Vec<PoolShape>,
    pool_of: Vec<u32>,
}

impl FleetShape {
    /// A fleet of pools given as (replicas, `max_model_len`).
    #[must_use]
    pub fn new(pools: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let mut shape = Self { pools: Vec::new(), pool_of: Vec::new() };
        for (pool, (replicas, max_model_len)) in (0u32..).zip(pools) {
            shape.pools.push(PoolShape { first: shape.replicas(), replicas, max_model_len });
            shape.pool_of.extend((0..replicas).map(|_| pool));
        }
        shape
    }

    /// Replicas of all pools.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        u32::try_from(self.pool_of.len()).expect("replicas are numbered in 32 bits")
    }

    /// The pools.
    #[must_use]
    pub fn pools(&self) -> &[PoolShape] {
        &self.pools
    }

    /// The pool of `replica`.
    #[must_use]
    #[inline]
    pub fn pool_of(&self, replica: u32) -> u32 {
        self.pool_of[replica as usize]
    }

    /// Numbers of the replicas that take a prompt of `prompt_tokens`, ascending.
    pub fn eligible(&self, prompt_tokens: u32) -> impl Iterator<Item = u32> + '_ {
        self.pools.iter().filter(move |pool| pool.takes(prompt_tokens)).flat_map(PoolShape::members)
    }
}
