//! Attention over pages.
//!
//! ```text
//! for each row (position p) and head:     keys of positions  max(0, p + 1 - window) ..= p
//!   for each chunk of 256 positions, ascending, fixed to multiples of 256:
//!     s[t]  = softcap(scale · Σ_d q[d] k[t][d])         fused, d ascending           (chunk.rs)
//!     m     = max s                 e[t] = exp(s[t] - m)
//!     z     = Σ e[t]                                    position t in lane t % 16, then halving
//!     o[d]  = Σ e[t] v[t][d]                            fused, t ascending
//!     merge (m, z, o) into the row's (M, Z, O)                                      (merge.rs)
//!   out = O / Z
//! ```
//!
//! **Canonical order.** A chunk is computed from nothing, by the position of its keys alone, and
//! chunks merge in ascending order. Which rows share a call, how a prompt was cut, where its pages
//! lie, how many threads there are and who computed which chunk leave no trace in the bits.
//!
//! **Work.** An item is (up to 16 query rows x heads of one group, KV head): the heads of a group
//! share each loaded K and V, and so do the rows of a prompt. When there are fewer items than the
//! team can share evenly, items are cut by chunks as well, so that one long sequence uses every
//! thread; a second, small wave merges. Both ways give the same bits.
//!
//! ```text
//! many items      item -> all its chunks, merged as they come
//! few items       (item, chunk) -> partial[item][chunk];   item -> merge ascending
//! ```
//!
//! **Bytes and operations.** Decoding reads `2 · context · head_dim · bytes` per KV head once, for
//! `4 · context · head_dim · group` operations and `context · group` exponentials. A prompt of `m`
//! rows does `m` times the operations on `m · group / 16` times the bytes, most of them from cache.
//!
//! **Refusals.** Out of range numbers are the model's: a NaN score makes that row NaN, and no
//! other. A row with no visible key (a window of 0) gives zeros, and so does one whose scores are
//! all `-inf`.
//!
//! Tried and dropped: a running maximum across chunks (one pass less, but the bits then depend on
//! the cut); scores of masked positions as `-inf` in the value sum (0 · inf of a later row's value
//! is NaN: masked positions are not touched at all).
//!
//! # Paper
//!
//! Milakov and Gimelshein, *Online normalizer calculation for softmax*, 2018; Dao et al.,
//! *FlashAttention*, 2022, and *Flash-Decoding*, 2023 (the cut by chunks; ours is fixed); Kwon et
//! al., *PagedAttention*, 2023.

mod chunk;
mod input;
mod merge;
mod run;
#[cfg(test)]
mod tests;

pub use input::{AttentionInput, AttentionSeq};

/// Positions per chunk: part of the canonical order, not a tuning knob.
const CHUNK: usize = 256;

/// The attention kernels of one instruction set.
#[derive(Debug)]
pub(crate) struct Table {
    chunk_f32: unsafe fn(&chunk::Chunk<'_, f32>, &mut [f32], &mut merge::State<'_>),
    chunk_bf16: unsafe fn(&chunk::Chunk<'_, u16>, &mut [f32], &mut merge::State<'_>),
    merge: unsafe fn(&mut merge::State<'_>, &merge::State<'_>),
    finish: unsafe fn(&[f32], f32, &mut [f32]),
}

macro_rules! table {
    ($(#[$meta:meta])* $name:ident, $shell:ident) => {
        $(#[$meta])*
        pub(crate) static $name: Table = Table {
            chunk_f32: chunk::f32_shells::$shell,
            chunk_bf16: chunk::bf16_shells::$shell,
            merge: merge::merge_shells::$shell,
            finish: merge::finish_shells::$shell,
        };
    };
}
table!(SCALAR, scalar);
table!(
    #[cfg(target_arch = "x86_64")]
    AVX2,
    avx2
);
table!(
    #[cfg(target_arch = "x86_64")]
    AVX512,
    avx512
);
