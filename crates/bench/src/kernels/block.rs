//! The parts of a measurement: blocks, their calls, and their sizes.

use std::ops::ControlFlow;

use pelton_kernels::{Cpu, beyond_caches_bytes};
use pelton_tensor::available_memory_bytes;

use super::experts::Experts;
use crate::shared::BLOCK_TOKENS;
use crate::{BenchError, Result};

/// One operation in one variant and shape: set up once, called with several numbers of rows.
pub(super) struct Block {
    /// Layout, element type or flavour; empty if there is only one.
    pub(super) variant: String,
    /// Shape of the operands in words.
    pub(super) shape: String,
    /// The arithmetic that its operations use.
    pub(super) multiplier: Multiplier,
    /// Sets up, and passes each call to the visitor until the visitor breaks.
    pub(super) calls: Box<Calls>,
}

/// See [`Block::calls`].
pub(super) type Calls = dyn Fn(&Cpu, &mut Visitor<'_>) -> ControlFlow<()>;

/// Times a call; breaks when it is time to stop.
pub(super) type Visitor<'a> = dyn FnMut(Call<'_>) -> ControlFlow<()> + 'a;

/// One call that can be repeated at will.
pub(super) struct Call<'a> {
    /// The work of the call.
    pub(super) cost: Cost,
    /// Carries the call out once.
    pub(super) run: &'a mut dyn FnMut(),
}

/// The work of a call, independent of how a kernel does it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// Rows (M).
    pub(super) n_rows: usize,
    /// Bytes that it must move; 0 if bytes do not describe the call.
    pub(super) n_bytes: usize,
    /// Operations that it must do; 0 if operations do not describe the call.
    pub(super) n_ops: usize,
}

/// Which arithmetic ceiling an operation is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Multiplier {
    /// Integer dot products of quantized weights and activations.
    Int8,
    /// Products of bf16 weights and activations, and those of attention with what bf16 holds, as pairs
    /// or widened.
    Bf16,
    /// Everything else: the other float layouts are widened to f32.
    F32,
}

/// Most query heads of attention.
const MAX_HEADS: usize = 1024;
/// Most elements of a head.
const MAX_HEAD_DIM: usize = 1024;
/// Most tokens of a context.
const MAX_CONTEXT: usize = 1 << 20;
/// Most tokens of a block of keys and values.
const MAX_BLOCK_TOKENS: usize = 1024;

/// The sizes that attention is measured with; those that are absent or empty stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttentionSizes {
    /// Query heads, KV heads, elements per head; of rotations and stored rows, too.
    pub heads: Option<[usize; 3]>,
    /// Tokens that a decoding row sees.
    pub contexts: Vec<usize>,
    /// Tokens of a block of keys and values.
    pub block_tokens: Option<usize>,
}

/// The shapes that are measured.
#[derive(Clone)]
pub(super) struct Sizes {
    /// Weight matrices `[n, k]`.
    pub(super) matrices: &'static [[usize; 2]],
    /// Rows of a product: decoding, speculation, batches, prompts.
    pub(super) matmul_rows: &'static [usize],
    /// A layer of experts.
    pub(super) experts: Experts,
    /// Rows of the small operations: decoding and prompts.
    pub(super) rows: &'static [usize],
    /// Width of a layer.
    pub(super) width: usize,
    /// Width of the middle of a feed-forward block.
    pub(super) ffn: usize,
    /// Logits of a row.
    pub(super) vocab: usize,
    /// Query heads, KV heads, elements per head.
    pub(super) heads: [usize; 3],
    /// Tokens that a decoding row sees.
    pub(super) contexts: Vec<usize>,
    /// Tokens of a block of keys and values.
    pub(super) block_tokens: usize,
    /// Tokens of a prompt.
    pub(super) prompt: usize,
    /// Memory that weights, keys and values fill together.
    pub(super) beyond_caches_bytes: usize,
}

impl Sizes {
    /// Shapes of models of 0.5 to 1 billion parameters, and the experts of Qwen3 30B A3B, beyond
    /// the caches of this machine.
    pub(super) fn full() -> Self {
        Self {
            matrices: &[[2048, 2048], [8192, 2048], [2048, 8192], [896, 4864]],
            matmul_rows: &[1, 2, 5, 8, 32, 64, 512],
            experts: Experts { n_experts: 128, top_k: 8, matrix: [1536, 2048] },
            rows: &[1, 512],
            width: 2048,
            ffn: 8192,
            vocab: 128_256,
            heads: [32, 8, 64],
            contexts: vec![128, 1024, 4096],
            block_tokens: BLOCK_TOKENS,
            prompt: 512,
            beyond_caches_bytes: beyond_caches_bytes(),
        }
    }

    /// These sizes with what is chosen for attention.
    ///
    /// # Errors
    ///
    /// Heads, contexts or blocks that attention does not take, or that memory does not hold.
    pub(super) fn with(self, chosen: &AttentionSizes) -> Result<Self> {
        let heads = chosen.heads.unwrap_or(self.heads);
        let contexts =
            if chosen.contexts.is_empty() { self.contexts } else { chosen.contexts.clone() };
        let block_tokens = chosen.block_tokens.unwrap_or(self.block_tokens);
        let [n_heads, n_kv_heads, head_dim] = heads;
        let has_groups = n_kv_heads > 0 && n_heads > 0 && n_heads.is_multiple_of(n_kv_heads);
        let has_pairs = head_dim > 0 && head_dim.is_multiple_of(2);
        if !has_groups || !has_pairs || n_heads > MAX_HEADS || head_dim > MAX_HEAD_DIM {
            return Err(BenchError::invalid(format!(
                "heads {n_heads}/{n_kv_heads}x{head_dim}: expected up to {MAX_HEADS} query heads that KV \
                 heads divide, and an even size of at most {MAX_HEAD_DIM}"
            )));
        }
        let longest = contexts.iter().copied().chain([self.prompt]).max().unwrap_or(0);
        if contexts.contains(&0) || longest > MAX_CONTEXT {
            let message = format!("contexts are from 1 to {MAX_CONTEXT} tokens");
            return Err(BenchError::invalid(message));
        }
        if !(1..=MAX_BLOCK_TOKENS).contains(&block_tokens) {
            let message = format!("blocks have from 1 to {MAX_BLOCK_TOKENS} tokens");
            return Err(BenchError::invalid(message));
        }
        // Keys and values as f32, and the activations that they are stored from.
        let per_token = 3 * n_kv_heads * head_dim * size_of::<f32>();
        let n_bytes = (longest.next_multiple_of(block_tokens) * per_token) as u64;
        if let Some(there) = available_memory_bytes().filter(|there| n_bytes > *there) {
            let needs = format!("a layer of {longest} tokens takes {} MB", n_bytes / 1_000_000);
            return Err(BenchError::invalid_with_hint(
                format!("{needs}, and there are {} MB of memory", there / 1_000_000),
                "choose a shorter --context, or fewer KV heads in --heads",
            ));
        }
        Ok(Self { heads, contexts, block_tokens, ..self })
    }

    /// Sizes at which everything runs in a moment.
    pub(super) fn quick() -> Self {
        Self {
            matrices: &[[48, 256]],
            matmul_rows: &[1, 5],
            experts: Experts { n_experts: 4, top_k: 2, matrix: [48, 256] },
            rows: &[1, 3],
            width: 256,
            ffn: 512,
            vocab: 1000,
            heads: [4, 2, 32],
            contexts: vec![40],
            block_tokens: BLOCK_TOKENS,
            prompt: 20,
            beyond_caches_bytes: 0,
        }
    }
}

/// Numbers like activations: of both signs, none of them extreme.
pub(super) fn activations(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.1).sin()).collect()
}
