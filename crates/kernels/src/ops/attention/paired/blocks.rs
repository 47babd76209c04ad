//! Blocks of keys and of values in memory, in the order in which they are multiplied.

use std::arch::x86_64::{__m512i, _mm512_storeu_si512};

use super::super::BLOCK;
use super::super::interleaved::{Interleave, LINE, Values, prefetch};
use super::PAIRS;
use crate::simd::LANES;

/// Blocks of keys or of values, and what is done with them.
pub(super) struct Blocks<'a> {
    pub(super) memory: &'a mut [f32],
    /// Whether each block has a place of its own.
    pub(super) keeps: bool,
    /// Whether blocks are put in order, before they are multiplied.
    pub(super) arranges: bool,
    /// Whether keys and values are multiplied as they lie in the cache, in no block, where they all
    /// exist.
    pub(super) is_direct: bool,
}

impl Blocks<'_> {
    /// The block of `V` vectors that begins after `n_before` floats, where blocks are kept.
    #[inline(always)]
    pub(super) fn block<const V: usize>(&mut self, n_before: usize) -> &mut Block<V> {
        let at = if self.keeps { n_before } else { 0 };
        let rows = self.memory[at..].as_chunks_mut().0.as_chunks_mut().0;
        rows.first_chunk_mut().expect("invariant: there is room for every block")
    }
}

/// Pairs of 32 terms by `V` vectors.
pub(super) type Block<const V: usize> = [[[f32; LANES]; V]; PAIRS];

/// Keys of sixteen columns, as they lie in the cache.
pub(super) struct Group<'a, T> {
    /// `[key_dim][16]`.
    pub(super) lines: &'a [[T; LANES]],
    /// Bytes from the keys to what is read for their tokens next.
    pub(super) next: usize,
}

/// Writes sixteen pairs.
#[inline]
#[target_feature(enable = "avx512f")]
fn store(pairs: __m512i, row: &mut [f32; LANES]) {
    // SAFETY: a row is 64 bytes.
    unsafe { _mm512_storeu_si512(row.as_mut_ptr().cast(), pairs) };
}

/// Puts 32 elements from `start` on of the keys of `V` groups in order; zeros where the sequence
/// has ended.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")]
pub(super) fn arrange_keys<T: Interleave, const V: usize>(
    groups: &[Option<Group<'_, T>>; V],
    start: usize,
    block: &mut Block<V>,
) {
    for (v, group) in groups.iter().enumerate() {
        let Some(Group { lines, next }) = group else {
            block.iter_mut().for_each(|row| row[v] = [0.0; LANES]);
            continue;
        };
        let lines: &[[T; LANES]; BLOCK] =
            lines[start..].first_chunk().expect("invariant: keys are whole blocks");
        for pair in 0..PAIRS {
            let (even, odd) = (&lines[2 * pair], &lines[2 * pair + 1]);
            // SAFETY: this function has the features.
            unsafe { store(T::pairs_vbmi(even, odd), &mut block[pair][v]) };
            if (2 * pair * size_of::<[T; LANES]>()).is_multiple_of(LINE) {
                prefetch(even.as_ptr().wrapping_byte_add(*next));
            }
        }
    }
}

/// Puts the values of a block in order, of `V` times sixteen elements from `first` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")]
pub(super) fn arrange_values<T: Interleave, const V: usize>(
    values: &Values<'_, T>,
    first: usize,
    block: &mut Block<V>,
) {
    for (half, rows) in block.chunks_exact_mut(PAIRS / 2).enumerate() {
        if !values.has(half) {
            rows.fill([[0.0; LANES]; V]);
            continue;
        }
        for (pair, row) in rows.iter_mut().enumerate() {
            let even: &[[T; LANES]; V] = values.lines(half, 2 * pair, first);
            let odd: &[[T; LANES]; V] = values.lines(half, 2 * pair + 1, first);
            for v in 0..V {
                // SAFETY: this function has the features.
                unsafe { store(T::pairs_vbmi(&even[v], &odd[v]), &mut row[v]) };
                if (v * size_of::<[T; LANES]>()).is_multiple_of(LINE) {
                    values.prefetch_coming(half, &even[v]);
                    values.prefetch_coming(half, &odd[v]);
                }
            }
        }
    }
}
