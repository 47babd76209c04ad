//! Attention over pages.
//!
//! ```text
//! for each row (position p) and head:     keys of positions  max(0, p + 1 - window) ..= p + ahead
//!                                         of its segment, where there are segments
//!   (M, Z, O) = (sink, 1, 0)              or (-inf, 0, 0) without sinks
//!   for each span of 2,048 positions, ascending, fixed to multiples of 2,048:
//!    (M', Z', O') = (-inf, 0, 0)
//!    for each chunk of 256 positions of the span, ascending, fixed to multiples of 256:
//!     s[t]  = softcap(scale · Σ_d q[d] k[t][d] + slope · (t - p))    in blocks of d   (score.rs)
//!                                              + bias[t - p]           where a table has a bias by distance
//!     m     = max s                 e[t] = exp(s[t] - m)                           (softmax.rs)
//!     z     = Σ e[t]                                    position t in lane t % 16, then halving
//!     o[d]  = Σ e[t] v[t][d]                            in blocks of t               (weigh.rs)
//!     merge (m, z, o) into (M', Z', O')                                              (merge.rs)
//!    merge (M', Z', O') into (M, Z, O)
//!   out = O / Z
//!
//! in blocks:   of each 32 terms the first 16 and the last 16 are summed from 0, of each pair
//!              fma(a[i + 1], b[i + 1], sum), then fma(a[i], b[i], sum);  total += first + last
//! bf16, fp8:   q[d] = bf16(scale · q[d]) and then no scale; e[t] = bf16(exp(..)), before z
//! int8:        q[d] as for bf16; s[t] = (Σ_d q[d] k[t][d]) · key scale[t];
//!              o[d] = Σ bf16(e[t] · value scale[t]) v[t][d]
//! ```
//!
//! **Products of bf16.** Where keys and values are bf16, or fp8 or int8, whose numbers bf16 has as
//! well, queries and weights are rounded to bf16, so that tile registers multiply them
//! (`tiles.rs`), or an instruction for pairs (`paired`); the other kernels multiply the same
//! numbers as floats, in the order that tiles have. A factor is 0 or at least 2⁻⁵⁰ in magnitude,
//! also a scale of int8: no sum is then subnormal, which tiles and pairs would take for 0 and
//! floats would not. Rounding a query or a weight errs by as much as the rounding of each key and
//! value does, or by less (`docs/performance-machines.md` has the cost). Weights without scales are
//! summed after they are rounded, so that their quotients add up to 1; those with scales are summed
//! before.
//!
//! **Canonical order.** A chunk is computed on its own, by the positions of its keys alone; chunks
//! merge in ascending order to spans, and spans to the result. The bits do not depend on the other
//! rows of a call, on how a prompt was cut, on where its pages lie, on the number of threads, or on
//! which thread computed which chunk. Spans are there so that a thread can merge the chunks that it
//! computed, while they are in its cache.
//!
//! **Trees.** Rows may be a tree of drafts, verified at once. The order above is then by the
//! position that a key *counts as* for the row: `first_position + depth` for the tokens of its
//! path, never where the key lies in the cache. So a row of a tree has the bits of the last row of
//! a chain of its path: same chunks, same lanes, same terms, and no term of another branch, not
//! even a zero. A window counts such positions too. The price: below `first_position` none; above,
//! a row computes the key groups of its path by itself (at most 16 scores for each that it needs)
//! and reads the values of its path one by one, a few hundredths of a step at usual sizes (64
//! drafts, paths of 8, a thousand tokens before).
//!
//! **Encoders.** With `ahead` a row sees positions after itself as well, to the end of its sequence
//! (all rows of the sequence are in the call, or before it in the cache). Nothing else changes:
//! chunks still count from position 0 of the sequence, so a text has the same bits alone and in any
//! batch. The visible positions depend on the length of the sequence, so a text must be computed
//! whole.
//!
//! **Sinks.** A sink is a learned logit that takes weight and gives nothing. A row starts as if it
//! had seen it, so it merges first, once per row, whatever the chunks; a row whose window shows
//! no position gives zeros.
//!
//! **Values in keys.** Where a value is the beginning of its key (latent attention: one KV head for
//! all heads, keys of 576 of which 512 are the value), only keys are stored. Their groups are
//! transposed in scratch, and then everything is as above, to the bit.
//!
//! **Work.** An item is up to 64 (query row, head) pairs of one KV head, 192 on AVX-512, 512 with tile
//! registers: the heads of a group share each K and V brought into cache, and so do the rows of a
//! prompt; groups of more than 16 heads are several items. When there are fewer items than the team
//! can share evenly, items are cut by spans and chunks as well, so that one long sequence uses every
//! thread; a second, small wave merges. Both ways give the same bits.
//!
//! ```text
//! many items      item -> all its chunks, merged as they come
//! few items       (item, stretch) -> partial[item][stretch];   item -> merge ascending
//! decoding        the same, but all heads of a stretch by one thread, where chunks are many (run.rs);
//!                 or of a block of the chunk, where that is faster                     (paired)
//! ```
//!
//! **Bytes and operations.** Decoding reads each position's key and value once per KV head (and
//! once more, from cache, for each further 16 heads of it), for `4 · head_dim · group` operations
//! and `group` exponentials:
//!
//! ```text
//!                    f32     bf16, f16    fp8     int8         d = head_dim
//! bytes               8 d       4 d        2 d     2 d + 8      per position and KV head
//! head_dim 64         512       256        128     136
//! head_dim 128       1024       512        256     264
//! to widen 16           0      1             8       2          operations, per 4 flat rows (AVX-512)
//! ```
//!
//! A group of four heads does eight multiply-adds of sixteen lanes per line of bf16: the peak of
//! one Zen 4 core needs 29 GB/s, about the bandwidth that it has (with products of pairs twice as
//! much). So arithmetic and reads must overlap: the lines of the values are prefetched while keys
//! are multiplied, and the lines of the next keys while values are (`coming.rs`). Where heads take turns
//! at the blocks of the cache, keys follow each other in memory and need no prefetch.
//!
//! A prompt of `m` rows does `m` times the operations on `m · group / 64` times the bytes (192 and 512
//! in place of 64, as above), which at a few thousand positions come from the third-level cache.
//!
//! **Numbers out of range.** A NaN score makes its own row NaN, and no other row. A row with no
//! visible key (a window of 0) gives zeros, and so does a row whose scores are all `-inf`.
//!
//! Tried and dropped: sums in ascending order with unrounded weights for bf16 (as for f32; tiles
//! have another order); weights of int8 rounded twice, before their scales and after (more error); a
//! running maximum across chunks (one pass less, but the bits then depend on the cut); scores of
//! masked positions as `-inf` in the value sum (0 · inf of a later row's value is NaN: masked
//! positions are not touched at all); trees as a mask over cache positions (the
//! masked ones shift the lanes and chunks of those behind, and with them the bits).
//!
//! # Paper
//!
//! Milakov and Gimelshein, *Online normalizer calculation for softmax*, 2018; Dao et al.,
//! *FlashAttention*, 2022, and *Flash-Decoding*, 2023 (the cut by chunks; ours is fixed); Kwon et
//! al., *PagedAttention*, 2023; Miao et al., *SpecInfer*, 2023 (trees); Xiao et al., *Efficient
//! Streaming Language Models with Attention Sinks*, 2023 (ours are learned logits); Press, Smith
//! and Lewis, *Train Short, Test Long*, 2022 (slopes); Raffel et al., *Exploring the Limits of Transfer
//! Learning with a Unified Text-to-Text Transformer*, 2020 (biases by distance).

mod chunk;
mod coming;
mod cut;
mod input;
#[cfg(target_arch = "x86_64")]
mod interleaved;
mod merge;
#[cfg(target_arch = "x86_64")]
mod paired;
mod run;
mod score;
mod softmax;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod tree;
mod weigh;
mod weigh_keys;
#[cfg(target_arch = "x86_64")]
mod widened;

use half::{bf16, f16};

use crate::ops::kv;
use chunk::Kernels;

pub use input::{AttentionInput, AttentionSeq, DistanceBias};

/// Positions per chunk: part of the canonical order, not a tuning knob.
const CHUNK: usize = 256;
/// Chunks of a span, whose results merge before they join those of other spans: part of the canonical
/// order, too.
const SPAN: usize = 8;
/// Terms of a sum that are added up as two halves before they join it: what one product of tile
/// registers takes.
const BLOCK: usize = 32;
/// Terms of half a block.
const HALF: usize = BLOCK / 2;

/// The attention kernels of one instruction set.
#[derive(Debug)]
pub(crate) struct Table {
    /// Most flat rows of an item: those that share each key and value brought into cache.
    flat_rows: usize,
    of_f32: Kernels<f32>,
    of_bf16: Kernels<bf16>,
    of_f16: Kernels<f16>,
    of_fp8: Kernels<u8>,
    of_int8: Kernels<i8>,
    merge: unsafe fn(&mut merge::State<'_>, &merge::State<'_>),
    finish: unsafe fn(&[f32], f32, &mut [f32]),
    pub(crate) kv: &'static kv::Table,
}

/// Writes the table of an instruction set: the kernels of chunks of f32, f16, bf16, fp8 and int8, and
/// of everything else.
macro_rules! table {
    (
        $(#[$meta:meta])* $name:ident,
        $shell:ident,
        [$f32:expr, $f16:expr, $bf16:expr, $fp8:expr, $int8:expr $(,)?],
        $flat_rows:expr,
        $kv:ident
    ) => {
        $(#[$meta])*
        pub(crate) static $name: Table = Table {
            flat_rows: $flat_rows,
            of_f32: $f32,
            of_bf16: $bf16,
            of_f16: $f16,
            of_fp8: $fp8,
            of_int8: $int8,
            merge: merge::merge_shells::$shell,
            finish: merge::finish_shells::$shell,
            kv: &kv::$kv,
        };
    };
    ($(#[$meta:meta])* $name:ident, $shell:ident) => {
        table!(
            $(#[$meta])* $name,
            $shell,
            [
                Kernels::of(chunk::f32_shells::$shell),
                Kernels::of(chunk::f16_shells::$shell),
                Kernels::of(chunk::bf16_shells::$shell),
                Kernels::of(chunk::fp8_shells::$shell),
                Kernels::of(chunk::int8_shells::$shell),
            ],
            cut::FLAT_ROWS,
            $name
        );
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
    avx512,
    [
        Kernels::of(widened::chunk),
        Kernels::of(widened::chunk),
        Kernels::of(widened::chunk),
        Kernels::of(widened::chunk),
        Kernels::of(widened::chunk),
    ],
    widened::FLAT_ROWS,
    AVX512
);
table!(
    #[cfg(target_arch = "x86_64")]
    AVX512VNNI,
    avx512,
    [
        Kernels::of(widened::chunk),
        Kernels::of(widened::chunk),
        paired::kernels_where_faster(),
        paired::kernels_where_faster(),
        paired::kernels_where_faster(),
    ],
    widened::FLAT_ROWS,
    AVX512
);
// With pairs wherever there are their instructions, so that tests reach them.
#[cfg(test)]
table!(
    #[cfg(target_arch = "x86_64")]
    AVX512_BF16,
    avx512,
    [
        Kernels::of(widened::chunk),
        Kernels::of(widened::chunk),
        paired::kernels(),
        paired::kernels(),
        paired::kernels(),
    ],
    widened::FLAT_ROWS,
    AVX512
);
table!(
    #[cfg(target_arch = "x86_64")]
    AMX,
    avx512,
    [
        Kernels::of(widened::chunk),
        Kernels::of(widened::chunk),
        Kernels::of(tiles::chunk),
        Kernels::of(tiles::chunk),
        Kernels::of(tiles::chunk),
    ],
    tiles::FLAT_ROWS,
    AVX512
);
