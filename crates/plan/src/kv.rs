//! Bytes of keys and values, by the arithmetic that allocates them.
//!
//! [`KvFootprint`] and [`StateShape`] size the memory of the engine; this module asks them, and adds what
//! a step reads.

use pelton_base::limits::STEP_TOKENS;
use pelton_model::{ArchSpec, CpuDevice, Device, KvDtype, KvFootprint, StateDtype, StateShape};
use serde::Serialize;

/// Bytes of keys and values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KvSizes {
    /// Whether they are kept: a model that computes vectors of texts needs none after a step.
    #[serde(skip)]
    pub is_kept: bool,
    /// Stored type.
    pub dtype: &'static str,
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Bytes of a block of the pool, scales and padding included.
    pub block_bytes: u64,
    /// Bytes of one token over all layers.
    pub token_bytes: u64,
    /// Tokens of the sequences below.
    pub context_tokens: usize,
    /// Bytes of one sequence, in whole blocks. Layers with a window hold the blocks of their window alone,
    /// and while a prompt is computed those of one step.
    pub sequence_bytes: u64,
    /// Bytes of one sequence if all layers kept all tokens.
    pub unfreed_bytes: u64,
    /// Bytes of the states of one sequence in recurrent layers, the rows of an open chunk included.
    pub state_bytes: u64,
    /// Stored type of these states.
    #[serde(skip)]
    pub(crate) state_dtype: StateDtype,
    /// Elements of the states of one sequence, without the rows of its open chunk.
    #[serde(skip)]
    pub(crate) n_state_elements: usize,
    /// Bytes that attention of a row reads of each token that it sees, layer by layer.
    #[serde(skip)]
    layer_bytes: Vec<f64>,
    /// Most positions that a row sees in each layer; none in recurrent ones.
    #[serde(skip)]
    windows: Vec<Option<usize>>,
    /// One block of the pool.
    #[serde(skip)]
    block: KvFootprint,
}

impl KvSizes {
    /// The sizes for sequences of `context_tokens` tokens, with states in f32.
    pub fn new(
        spec: &ArchSpec,
        dtype: KvDtype,
        block_tokens: usize,
        context_tokens: usize,
    ) -> Self {
        let mut grouped = spec.clone();
        grouped.group_windows();
        let block = KvFootprint::new::<CpuDevice>(&grouped, dtype, block_tokens);
        let block_bytes = block.block_bytes() as u64;
        let token_bytes = block.token_bytes(spec) as u64;
        let n_blocks = context_tokens.div_ceil(block_tokens) as u64;
        let n_held = block.blocks_of(context_tokens, STEP_TOKENS) as u64;
        let states = StateShape::of(spec, StateDtype::F32);
        let place_bytes = token_bytes as f64 / spec.n_kv_places().max(1) as f64;
        let layer_bytes = spec.kv_shares().into_iter().map(|share| share * place_bytes).collect();
        Self {
            is_kept: spec.generates(),
            dtype: dtype.name(),
            block_tokens,
            block_bytes,
            token_bytes,
            context_tokens,
            sequence_bytes: block_bytes.saturating_mul(n_held),
            unfreed_bytes: token_bytes.saturating_mul(block_tokens as u64).saturating_mul(n_blocks),
            state_bytes: CpuDevice::state_bytes(&states).lane as u64,
            state_dtype: states.dtype,
            n_state_elements: states.layers.iter().map(|layer| layer.matrix()).sum(),
            layer_bytes,
            windows: spec.layers.iter().map(|layer| layer.mixer.most_seen()).collect(),
            block,
        }
    }

    /// The same with the states of the recurrent layers of `spec` in another type.
    #[must_use]
    pub fn with_states_in(self, spec: &ArchSpec, state_dtype: StateDtype) -> Self {
        let one = CpuDevice::state_bytes(&StateShape::of(spec, state_dtype));
        Self { state_dtype, state_bytes: one.lane as u64, ..self }
    }

    /// Whether nothing is kept.
    pub(crate) fn are_none(&self) -> bool {
        !self.is_kept
    }

    /// Bytes of a pool in which `n_sequences` sequences never wait for a block, and of their states.
    pub fn pool_bytes(&self, n_sequences: usize) -> u64 {
        if !self.is_kept {
            return 0;
        }
        let n_blocks = self.block.blocks_for(self.context_tokens, STEP_TOKENS, n_sequences);
        let states = self.state_bytes.saturating_mul(n_sequences as u64);
        self.block_bytes.saturating_mul(n_blocks as u64).saturating_add(states)
    }

    /// Most sequences that never wait in a pool of `n_bytes`; any number where nothing is kept.
    pub fn n_sequences(&self, n_bytes: u64) -> usize {
        if !self.is_kept {
            return usize::MAX;
        }
        let n_blocks = self.block.blocks_of(self.context_tokens, STEP_TOKENS).max(1) as u64;
        let sequence = self.block_bytes.saturating_mul(n_blocks).saturating_add(self.state_bytes);
        let for_copy = self.block_bytes.saturating_mul(self.block.blocks_for(0, 0, 0) as u64);
        (n_bytes.saturating_sub(for_copy) / sequence.max(1)) as usize
    }

    /// Most tokens of each of `n_sequences` sequences in a pool of `n_bytes`, in whole blocks.
    pub fn n_tokens(&self, n_bytes: u64, n_sequences: usize) -> usize {
        let states = self.state_bytes.saturating_mul(n_sequences as u64);
        let n_bytes = n_bytes.saturating_sub(states);
        let n_blocks = (n_bytes / self.block_bytes.max(1)) as usize;
        let n_blocks = n_blocks.saturating_sub(self.block.blocks_for(0, 0, 0));
        let of_one = n_blocks / n_sequences.max(1);
        // The most blocks of tokens that take no more of the pool, found by halving.
        let (mut fits, mut exceeds) = (0, of_one.max(self.context_tokens / self.block_tokens) + 1);
        while exceeds - fits > 1 {
            let half = fits.midpoint(exceeds);
            let is_fit = self.block.blocks_of(half * self.block_tokens, STEP_TOKENS) <= of_one;
            *(if is_fit { &mut fits } else { &mut exceeds }) = half;
        }
        fits * self.block_tokens
    }

    /// Positions that attention of one row sees behind `n_tokens` tokens, layer by layer.
    pub(crate) fn seen(&self, n_tokens: f64) -> impl Iterator<Item = f64> {
        self.windows.iter().map(move |w| w.map_or(n_tokens, |most| n_tokens.min(most as f64)))
    }

    /// Positions that all rows of a prompt see together, layer by layer.
    pub(crate) fn seen_by_prompt(&self, n_tokens: f64) -> impl Iterator<Item = f64> {
        let triangle = |n: f64| n * (n + 1.0) / 2.0;
        self.windows.iter().map(move |window| match window {
            Some(most) if n_tokens > *most as f64 => {
                let most = *most as f64;
                triangle(most) + (n_tokens - most) * most
            }
            _ => triangle(n_tokens),
        })
    }

    /// Bytes that attention of one row reads behind `n_tokens` tokens, over all layers.
    pub(crate) fn read_bytes(&self, n_tokens: f64) -> f64 {
        self.seen(n_tokens).zip(&self.layer_bytes).map(|(seen, bytes)| seen * bytes).sum()
    }
}
