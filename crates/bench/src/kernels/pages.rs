//! Attention over pages, and storing keys and values in them, for every stored type.
//!
//! Decoding reads the keys and values of the context once, `2 · context · n_kv_heads · head_dim`
//! elements, and does `4 · context · n_heads · head_dim` operations. A prompt of `m` tokens does
//! them for contexts of 1 to `m`, on keys and values that need to come from memory but once.
//! Storing moves as many elements as a context of its rows, from f32 to the stored type.
//!
//! Each call takes another layer, and the layers together are larger than the caches.

use std::ops::ControlFlow;

use pelton_kernels::{
    AttentionInput, AttentionSeq, Cpu, KvCache, KvDtype, KvShape, StoreKv, StridedRows,
};

use super::block::{Block, Call, Cost, Multiplier, Sizes, activations};
use crate::shared::BLOCK_TOKENS;

/// The name of a stored type.
fn name(dtype: KvDtype) -> String {
    dtype.name().to_owned()
}

/// Decoding rows in contexts of several lengths, a prompt, and the end of a long one.
pub(super) fn attention(sizes: &Sizes) -> Vec<Block> {
    let mut blocks = Vec::new();
    for dtype in KvDtype::ALL {
        for &context in &sizes.contexts {
            blocks.push(attend("decode", Layers::new(dtype, context, sizes), 1));
        }
        blocks.push(attend("prefill", Layers::new(dtype, sizes.prompt, sizes), sizes.prompt));
        // The last part of a long prompt.
        let longest = sizes.contexts.iter().copied().max().unwrap_or(0);
        if longest > sizes.prompt {
            blocks.push(attend("prefill", Layers::new(dtype, longest, sizes), sizes.prompt));
        }
    }
    blocks
}

/// A decoding row in the first of the contexts, and a prompt, with one stored type.
pub(super) fn attention_of(dtype: KvDtype, sizes: &Sizes) -> [Block; 2] {
    [
        attend("decode", Layers::new(dtype, sizes.contexts[0], sizes), 1),
        attend("prefill", Layers::new(dtype, sizes.prompt, sizes), sizes.prompt),
    ]
}

/// New rows: one of a decoding sequence, and a prompt.
pub(super) fn store(sizes: &Sizes) -> Vec<Block> {
    let of_dtype = |dtype: KvDtype| {
        let layers = Layers::new(dtype, sizes.prompt, sizes);
        let [_, n_kv_heads, head_dim] = sizes.heads;
        Block {
            variant: name(dtype),
            shape: format!("[M, {n_kv_heads} x {head_dim}]"),
            multiplier: Multiplier::F32,
            calls: Box::new(move |cpu, visit| {
                let mut kv = layers.filled(cpu);
                let x = activations(layers.context * layers.width());
                let rows = StridedRows::dense(&x, layers.width());
                let mut at = 0;
                for n_rows in [1, layers.context] {
                    let slots: Vec<u32> = (0..n_rows as u32).collect();
                    let mut run = || {
                        let input = StoreKv { k: rows, v: Some(rows), slots: &slots };
                        cpu.store_kv(&mut kv, at % layers.n_layers, &input);
                        at += 1;
                    };
                    let n_elements = 2 * n_rows * layers.width();
                    let n_bytes = n_elements * (size_of::<f32>() + dtype.n_bytes());
                    let cost = Cost { n_rows, n_bytes, n_ops: 0 };
                    visit(Call { cost, run: &mut run })?;
                }
                ControlFlow::Continue(())
            }),
        }
    };
    KvDtype::ALL.map(of_dtype).into()
}

/// The last `n_rows` tokens of the context attend to it.
fn attend(what: &str, layers: Layers, n_rows: usize) -> Block {
    let Layers { dtype, context, n_heads, n_kv_heads, head_dim, block_tokens, n_layers } = layers;
    let blocks_of = match block_tokens {
        BLOCK_TOKENS => String::new(),
        n => format!(", blocks of {n}"),
    };
    Block {
        variant: format!("{what} {}", name(dtype)),
        shape: format!("{n_heads}/{n_kv_heads} x {head_dim}, {context} tokens{blocks_of}"),
        multiplier: match dtype {
            KvDtype::F32 | KvDtype::F16 => Multiplier::F32,
            KvDtype::Bf16 | KvDtype::Fp8 | KvDtype::Int8 => Multiplier::Bf16,
        },
        calls: Box::new(move |cpu, visit| {
            let kv = layers.filled(cpu);
            let q = activations(n_rows * n_heads * head_dim);
            let mut out = vec![0.0; q.len()];
            let blocks: Vec<u32> = (0..context.div_ceil(block_tokens) as u32).collect();
            let first_position = context - n_rows;
            let rows = 0..n_rows;
            let sequence = AttentionSeq { rows, first_position, block_table: &blocks, tree: None };
            let input = AttentionInput {
                q: StridedRows::dense(&q, n_heads * head_dim),
                n_heads,
                sequences: &[sequence],
                scale: 1.0 / (head_dim as f32).sqrt(),
                ahead: 0,
                window: None,
                segment: None,
                softcap: None,
                slopes: None,
                bias: None,
                sinks: None,
            };
            let mut at = 0;
            let mut run = || {
                cpu.paged_attention(&kv, at % n_layers, &input, &mut out);
                at += 1;
            };
            let n_seen: usize = (first_position + 1..=context).sum();
            let n_bytes = 2 * context * layers.width() * dtype.n_bytes();
            let n_ops = 4 * n_seen * n_heads * head_dim;
            let cost = Cost { n_rows, n_bytes, n_ops };
            visit(Call { cost, run: &mut run })
        }),
    }
}

/// Pages of one sequence in enough layers.
#[derive(Clone, Copy)]
struct Layers {
    dtype: KvDtype,
    context: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    block_tokens: usize,
    n_layers: usize,
}

impl Layers {
    fn new(dtype: KvDtype, context: usize, sizes: &Sizes) -> Self {
        let [n_heads, n_kv_heads, head_dim] = sizes.heads;
        let block_tokens = sizes.block_tokens;
        let one = Self { dtype, context, n_heads, n_kv_heads, head_dim, block_tokens, n_layers: 1 };
        let n_layers = sizes.beyond_caches_bytes.div_ceil(one.shape().n_bytes()).max(1);
        Self { n_layers, ..one }
    }

    /// Elements of the keys, and of the values, of one token.
    fn width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    fn shape(&self) -> KvShape {
        KvShape {
            n_layers: self.n_layers,
            n_blocks: self.context.div_ceil(self.block_tokens),
            block_size: self.block_tokens,
            n_kv_heads: self.n_kv_heads,
            key_dim: self.head_dim,
            value_dim: self.head_dim,
            values_in_keys: false,
            dtype: self.dtype,
            gap: 0,
        }
    }

    /// A cache in which every slot of every layer was written: pages that were never touched would
    /// all be one page of zeros, and in the cache.
    fn filled(&self, cpu: &Cpu) -> KvCache {
        let mut kv = KvCache::new(self.shape());
        let slots: Vec<u32> =
            (0..self.context.next_multiple_of(self.block_tokens) as u32).collect();
        let x = activations(slots.len() * self.width());
        let rows = StridedRows::dense(&x, self.width());
        for layer in 0..self.n_layers {
            cpu.store_kv(&mut kv, layer, &StoreKv { k: rows, v: Some(rows), slots: &slots });
        }
        kv
    }
}
