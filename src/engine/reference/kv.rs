//! KV cache of one engine: which blocks each request holds, what an allocation needs, when blocks
//! become findable, and what a prompt can reuse. Rules of vLLM's KV cache manager; owns the pool
//! and the identities of chains. Knows nothing of queues, budgets or time.

use super::blocks::{BlockId, BlockPool};
use super::chains::{ChainId, Chains};
use super::state::RequestState;
use crate::engine::config::EngineConfig;

/// Blocks of one request in one KV group, in the order of its tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct GroupBlocks {
    pub(super) blocks: Vec<BlockId>,
    /// How many of them, from the first, are cached.
    cached: usize,
}

/// Blocks of one request, one list for each KV group, and the identities of its full blocks.
#[derive(Debug, Clone)]
pub(super) struct BlockTable {
    pub(super) groups: Vec<GroupBlocks>,
    /// Identities of the full blocks among the known tokens; survive preemption.
    chain: Vec<ChainId>,
}

impl BlockTable {
    pub(super) fn new(groups: usize) -> Self {
        Self { groups: vec![GroupBlocks::default(); groups], chain: Vec::new() }
    }
}

/// Cached blocks at the start of a prompt.
#[derive(Debug, Clone)]
pub(super) struct Hit {
    /// Tokens they hold, a multiple of the block size.
    pub(super) tokens: u32,
    /// The blocks, for each KV group.
    blocks: Vec<Vec<BlockId>>,
}

/// What only an admission must leave free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AdmissionGate {
    /// Blocks that stay free after the allocation (the watermark).
    pub(super) reserve: u32,
    /// The whole known sequence must fit, not only the first chunk.
    pub(super) whole_prompt: bool,
}

impl AdmissionGate {
    /// Running requests pass: they see neither watermark nor gate.
    pub(super) const OPEN: Self = Self { reserve: 0, whole_prompt: false };
}

/// Too few free blocks; nothing was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoRoom;

/// Pool, identities, and the settings that allocation looks at.
#[derive(Debug)]
pub(super) struct KvCache {
    pub(super) pool: BlockPool,
    chains: Chains,
    groups: usize,
    block_size: u32,
    max_model_len: u32,
    caching: bool,
}

impl KvCache {
    pub(super) fn new(config: &EngineConfig) -> Self {
        Self {
            pool: BlockPool::new(config.num_gpu_blocks),
            chains: Chains::default(),
            groups: config.kv_groups.len(),
            block_size: config.block_size,
            max_model_len: config.max_model_len,
            caching: config.enable_prefix_caching,
        }
    }

    /// A hit of nothing.
    pub(super) fn no_hit(&self) -> Hit {
        Hit { tokens: 0, blocks: vec![Vec::new(); self.groups] }
    }

    /// True when prompts are looked up and blocks cached.
    pub(super) const fn caching(&self) -> bool {
        self.caching
    }

    /// The longest run of cached blocks at the start of the known tokens. At least one token is
    /// left to compute, so a sequence of exactly k blocks hits k - 1 of them.
    pub(super) fn lookup(&mut self, request: &mut RequestState) -> Hit {
        self.identify(request);
        let most = (request.known().saturating_sub(1) / self.block_size) as usize;
        let mut hit = self.no_hit();
        for blocks in &mut hit.blocks {
            blocks.extend(
                request.table.chain.iter().take(most).map_while(|&chain| self.pool.lookup(chain)),
            );
            hit.tokens = blocks.len() as u32 * self.block_size;
        }
        hit
    }

    /// Makes room for `tokens` more tokens after the computed ones and the hit, takes the hit
    /// blocks and the missing ones, and caches the blocks that will be full (at schedule time,
    /// before they are computed, so that a later request of the same call can hit them).
    pub(super) fn allocate(
        &mut self,
        request: &mut RequestState,
        hit: &Hit,
        tokens: u32,
        gate: AdmissionGate,
    ) -> Result<(), NoRoom> {
        let free = self.pool.free_count();
        let whole = request.known().min(self.max_model_len);
        if gate.whole_prompt && self.need(request, hit, whole) + gate.reserve > free {
            return Err(NoRoom);
        }
        let end = request.computed + hit.tokens + tokens;
        let target = end.min(self.max_model_len);
        if self.need(request, hit, target) + gate.reserve > free {
            return Err(NoRoom);
        }
        let wanted = target.div_ceil(self.block_size) as usize;
        for (group, hit_blocks) in request.table.groups.iter_mut().zip(&hit.blocks) {
            for &id in hit_blocks {
                self.pool.touch(id);
            }
            group.blocks.extend(hit_blocks);
            group.cached += hit_blocks.len();
            let missing = wanted.saturating_sub(group.blocks.len());
            group.blocks.extend(self.pool.take(missing as u32));
        }
        self.cache(request, end.min(request.known()));
        Ok(())
    }

    /// Free blocks that it takes for `request` to hold its first `tokens` tokens: new ones, and
    /// those of the hit that are in the free queue now.
    fn need(&self, request: &RequestState, hit: &Hit, tokens: u32) -> u32 {
        let wanted = tokens.div_ceil(self.block_size) as usize;
        let need = |(group, hit_blocks): (&GroupBlocks, &Vec<BlockId>)| {
            let missing = wanted.saturating_sub(group.blocks.len() + hit_blocks.len());
            missing + hit_blocks.iter().filter(|&&id| self.pool.is_free(id)).count()
        };
        request.table.groups.iter().zip(&hit.blocks).map(need).sum::<usize>() as u32
    }

    /// Makes the blocks that lie within the first `tokens` tokens findable.
    pub(super) fn cache(&mut self, request: &mut RequestState, tokens: u32) {
        if !self.caching {
            return;
        }
        self.identify(request);
        let full = (tokens / self.block_size) as usize;
        for group in &mut request.table.groups {
            for index in group.cached..full {
                self.pool.cache(group.blocks[index], request.table.chain[index]);
            }
            group.cached = group.cached.max(full);
        }
    }

    /// `request` lets go of all its blocks.
    pub(super) fn release(&mut self, request: &mut RequestState) {
        for group in &mut request.table.groups {
            self.pool.release(&group.blocks);
            group.blocks.clear();
            group.cached = 0;
        }
    }

    /// Names the full blocks among the known tokens.
    fn identify(&mut self, request: &mut RequestState) {
        let known = request.known();
        let chain = &mut request.table.chain;
        self.chains.extend(chain, request.id, &request.prompt, known, self.block_size);
    }
}
