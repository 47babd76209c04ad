//! The parts of a measurement: blocks, their calls, and their sizes.

use std::ops::ControlFlow;

use pelton_kernels::{Cpu, beyond_caches_bytes};

use super::experts::Experts;

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

/// The shapes that are measured.
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
    pub(super) contexts: &'static [usize],
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
            contexts: &[128, 1024, 4096],
            prompt: 512,
            beyond_caches_bytes: beyond_caches_bytes(),
        }
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
            contexts: &[40],
            prompt: 20,
            beyond_caches_bytes: 0,
        }
    }
}

/// Numbers like activations: of both signs, none of them extreme.
pub(super) fn activations(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.1).sin()).collect()
}
