//! KV cache of one engine: which blocks each request holds, what an allocation needs, when blocks
//! become findable or fall out of use, and what a prompt can reuse. Rules of vLLM's KV cache
//! manager; owns the pool and the identities of chains. Knows nothing of queues, budgets or time.

use super::blocks::{BlockId, BlockPool, NULL};
use super::chains::{ChainId, Chains};
use super::groups::Group;
use super::hits::{self, Hit};
use super::state::RequestState;
use crate::engine::config::{EngineConfig, KvGroup};
use std::collections::BTreeSet;

/// Blocks of one request in one KV group, in the order of its tokens; the null block where the
/// group has let go of a block or never took one.
#[derive(Debug, Clone, Default)]
pub(super) struct GroupBlocks {
    pub(super) blocks: Vec<BlockId>,
    /// How many of them, from the first, were looked at for caching.
    cached: usize,
    /// How many of them, from the first, have fallen out of use.
    dropped: usize,
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

/// Why nothing was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Too few free blocks.
    NoRoom,
    /// The hit ends with a Mamba state that is computed in this very step.
    StateUnderWay,
}

/// Pool, identities, and the settings that allocation looks at.
#[derive(Debug)]
pub(super) struct KvCache {
    pub(super) pool: BlockPool,
    chains: Chains,
    groups: Vec<Group>,
    block_size: u32,
    max_model_len: u32,
    caching: bool,
    /// Every full block is cached, also those of windows and states.
    dense: bool,
    /// Blocks that steps in flight still read are in use.
    keeps_in_flight: bool,
    /// Group and chain of the Mamba states cached since the schedule call began.
    states_under_way: BTreeSet<(u32, ChainId)>,
}

impl KvCache {
    pub(super) fn new(config: &EngineConfig) -> Self {
        Self {
            pool: BlockPool::new(config.num_gpu_blocks),
            chains: Chains::default(),
            groups: Group::all(config),
            block_size: config.block_size,
            max_model_len: config.max_model_len,
            caching: config.enable_prefix_caching,
            dense: config.prefix_cache_retention_interval.is_none(),
            keeps_in_flight: true,
            states_under_way: BTreeSet::new(),
        }
    }

    /// A hit of nothing.
    pub(super) fn no_hit(&self) -> Hit {
        Hit::none(self.groups.len())
    }

    /// True when prompts are looked up and blocks cached.
    pub(super) const fn caching(&self) -> bool {
        self.caching
    }

    /// Tokens that a hit holds, a multiple of the block size.
    pub(super) const fn tokens(&self, hit: &Hit) -> u32 {
        hit.length * self.block_size
    }

    /// A schedule call begins: what was cached before has been computed when its step starts.
    pub(super) fn begin_call(&mut self) {
        self.states_under_way.clear();
    }

    /// The longest run of cached blocks at the start of the known tokens. At least one token is
    /// left to compute, so a sequence of exactly k blocks hits k - 1 of them. Where full attention
    /// would have hit more, the request remembers it as a place worth caching.
    pub(super) fn lookup(&mut self, request: &mut RequestState) -> Hit {
        self.identify(request);
        let most = (request.known().saturating_sub(1) / self.block_size) as usize;
        let hit = hits::longest(&self.groups, &self.pool, &request.table.chain[..most]);
        if hit.full_length > hit.length {
            request.junction = hit.full_length * self.block_size;
        }
        hit
    }

    /// Makes room for `tokens` more tokens after the computed ones and the hit, takes the hit
    /// blocks and the missing ones, and caches the blocks that will be full (at schedule time,
    /// before they are computed, so that a later request of the same call can hit them). Blocks
    /// out of use are let go even when there is no room then.
    pub(super) fn allocate(
        &mut self,
        request: &mut RequestState,
        hit: &Hit,
        tokens: u32,
        gate: AdmissionGate,
    ) -> Result<(), Refusal> {
        if self.ends_in_state_under_way(request, hit) {
            return Err(Refusal::StateUnderWay);
        }
        let whole = request.known().min(self.max_model_len);
        if gate.whole_prompt {
            let need =
                self.need(request, hit, |group, held| group.new_blocks_of_whole(held, whole));
            self.room_for(need, gate)?;
        }
        let computed = request.computed + self.tokens(hit);
        self.drop_out_of_use(request, computed);
        let end = computed + tokens;
        let target = end.min(self.max_model_len);
        let need = self.need(request, hit, |group, held| group.new_blocks(held, target));
        self.room_for(need, gate)?;
        self.take_hit(request, hit);
        self.take_new(request, target);
        self.cache(request, end.min(request.known()));
        Ok(())
    }

    fn room_for(&self, need: u32, gate: AdmissionGate) -> Result<(), Refusal> {
        if need + gate.reserve > self.pool.free_count() { Err(Refusal::NoRoom) } else { Ok(()) }
    }

    /// Free blocks that an allocation takes: `new` ones of each group, given what it holds and
    /// hits, and those of the hit that are in the free queue now.
    fn need(&self, request: &RequestState, hit: &Hit, new: impl Fn(&Group, u32) -> u32) -> u32 {
        let tables = request.table.groups.iter().zip(&hit.blocks);
        let need = |(group, (table, hit)): (&Group, (&GroupBlocks, &Vec<BlockId>))| {
            let held = (table.blocks.len() + hit.len()) as u32;
            let free = hit.iter().filter(|&&id| self.pool.is_free(id)).count() as u32;
            new(group, held) + free
        };
        self.groups.iter().zip(tables).map(need).sum()
    }

    /// The hit blocks of all groups leave the free queue before a new block is taken from it.
    fn take_hit(&mut self, request: &mut RequestState, hit: &Hit) {
        for (table, hit) in request.table.groups.iter_mut().zip(&hit.blocks) {
            for &id in hit.iter().filter(|&&id| id != NULL) {
                self.pool.touch(id);
            }
            table.blocks.extend(hit);
            table.cached += hit.len();
        }
    }

    /// Takes the blocks that are missing for the first `target` tokens.
    fn take_new(&mut self, request: &mut RequestState, target: u32) {
        for (group, table) in self.groups.iter().zip(&mut request.table.groups) {
            let new = group.new_blocks(table.blocks.len() as u32, target) as usize;
            let entries = group.entries(target) as usize;
            if entries > table.blocks.len() {
                table.blocks.resize(entries - new, NULL);
                table.blocks.extend(self.pool.take(new as u32));
            }
        }
    }

    /// Lets go of the blocks that no step after the first `computed` tokens reads.
    fn drop_out_of_use(&mut self, request: &mut RequestState, computed: u32) {
        let in_flight = if self.keeps_in_flight { request.in_flight } else { 0 };
        let computed = computed.saturating_sub(in_flight);
        for (group, table) in self.groups.iter().zip(&mut request.table.groups) {
            let end = (group.out_of_use(computed) as usize).min(table.blocks.len());
            if table.dropped < end {
                self.pool.release(&held(&table.blocks[table.dropped..end]));
                table.blocks[table.dropped..end].fill(NULL);
                table.dropped = end;
            }
        }
    }

    /// Makes the blocks that lie within the first `tokens` tokens findable: all of full attention,
    /// of the others those worth keeping.
    pub(super) fn cache(&mut self, request: &mut RequestState, tokens: u32) {
        if !self.caching {
            return;
        }
        self.identify(request);
        let full = (tokens / self.block_size) as usize;
        // The end of the prompt, less the token that is always computed, and the junction.
        let edges = [request.prompt.len() - 1, request.junction].map(|edge| edge / self.block_size);
        let table = &mut request.table;
        for ((number, group), blocks) in (0..).zip(&self.groups).zip(&mut table.groups) {
            for index in blocks.cached..full {
                let id = blocks.blocks[index];
                if id == NULL || !(self.dense || group.keeps(index as u32, edges)) {
                    continue;
                }
                let chain = table.chain[index];
                self.pool.cache(id, number, chain);
                if group.kind == (KvGroup::Mamba { align: true }) {
                    self.states_under_way.insert((number, chain));
                }
            }
            blocks.cached = blocks.cached.max(full);
        }
    }

    /// The state that a hit ends with is read by the first step after it, so it must have been
    /// computed by an earlier one. As in vLLM an older copy does not help.
    fn ends_in_state_under_way(&self, request: &RequestState, hit: &Hit) -> bool {
        let Some(last) = hit.length.checked_sub(1) else { return false };
        let chain = request.table.chain[last as usize];
        (0..self.groups.len() as u32).any(|group| self.states_under_way.contains(&(group, chain)))
    }

    /// `request` lets go of all its blocks, group by group.
    pub(super) fn release(&mut self, request: &mut RequestState) {
        for table in &mut request.table.groups {
            self.pool.release(&held(&table.blocks));
            *table = GroupBlocks::default();
        }
    }

    /// Names the full blocks among the known tokens.
    fn identify(&mut self, request: &mut RequestState) {
        let known = request.known();
        let chain = &mut request.table.chain;
        self.chains.extend(chain, request.id, &request.prompt, known, self.block_size);
    }
}

/// All but the null block.
fn held(blocks: &[BlockId]) -> Vec<BlockId> {
    blocks.iter().copied().filter(|&id| id != NULL).collect()
}
