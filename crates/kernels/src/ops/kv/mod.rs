//! The paged KV cache: how keys and values lie in memory, and how they are written.
//!
//! ```text
//! buffer   [layer][block]               one block of one layer is contiguous:
//! block    |K head 0|K head 1|..|V head 0|V head 1|..|           int8 only: |K scales|V scales|
//! K head   [group of 16 tokens][key_dim][16]       lanes are tokens: q·k needs no horizontal sum
//! V head   [token][value_dim, padded to 16]        lanes are elements: p·v needs none either
//! scales   [head][token, padded to 16]             f32: 16 of them are one key group's
//! slot     block * block_size + place in the block
//! ```
//!
//! Narrower layers may share the blocks of a wider one, side by side ([`KvPart`]):
//!
//! ```text
//! blocks of one layer        |K head 0|K head 1|V head 0|V head 1|K head 0|K head 1|V head 0|V head 1|
//! blocks of two narrower ones|  K a   |  V a   |  K b   |  V b   |  K a   |  V a   |  K b   |  V b   |
//! ```
//!
//! Where a value is the beginning of its key (latent attention), there are no V heads and no V
//! scales: attention transposes the keys that it needs.
//!
//! Bytes of a token in one layer and KV head, where `d` is the size of key and value, in whole 16s:
//!
//! ```text
//! f32    2 · 4 d            exact
//! bf16   2 · 2 d            8 bits of precision, the range of f32
//! f16    2 · 2 d            11 bits, infinite from 65520 on
//! fp8    2 · d              E4M3: 4 bits, at most 448 (larger ones stop there)
//! int8   2 · (d + 4)        round(x / scale), scale = max|x| / 127 over the head of the token
//!
//! latent, 576 elements of which 512 are the value: 2304, 1152, 1152, 576, 580
//! ```
//!
//! Writing a token moves `n_kv_heads · (key_dim + value_dim)` elements; its key is scattered over
//! `key_dim` cache lines (16 tokens share them), its value is contiguous. Reading, which happens
//! once per later token, is contiguous for both: that is the trade. int8 reads each head twice,
//! first for its largest element.
//!
//! A block size that is no multiple of 16 pads the keys of each block to whole groups, a head size
//! that is no multiple of 16 pads the values; padding is never used in a result.
//!
//! Every type is rounded to nearest, ties to even; a NaN stays a NaN. Subnormals are kept, but bf16
//! below 2⁻⁵⁰ becomes zero, so that sums of products of bf16 are never subnormal: instructions
//! differ there. An int8 head
//! with an element that is not finite gets the scale NaN: every row that attends to it becomes NaN.
//!
//! Tried and dropped: K as `[token][key_dim]` (a horizontal sum per token and head costs as much
//! as the dot product at `key_dim` 64); fp8 by its bits and a product with 2¹²⁰ (its subnormals,
//! one element in eighty of a usual head, are then subnormal f32, which many processors multiply
//! a hundred times slower; by way of f16 they are not); one scale per block (a token written later
//! would round the earlier ones again, and with them their bits).

mod cache;
mod convert;
mod element;
mod relocate;
mod shape;
mod store;
#[cfg(test)]
pub(crate) mod tests;

pub use cache::KvCache;
pub(crate) use convert::SCALAR;
pub(crate) use convert::Table;
#[cfg(target_arch = "x86_64")]
pub(crate) use convert::{AVX2, AVX512};
pub(crate) use element::KvElement;
pub use pelton_tensor::KvDtype;
pub use shape::{KvLayer, KvPart, KvShape};
pub use store::{StoreKv, StridedRows};
