//! Keys and values that are multiplied as they lie in the cache, put in order in registers. What is
//! read next is prefetched between the products.

use std::arch::x86_64::__m512i;

use super::super::HALF;
use super::super::interleaved::{Interleave, LINE, Values, prefetch};
use super::PAIRS;
use super::blocks::Group;
use crate::simd::LANES;
use crate::simd::pairs::Terms;

/// Keys of `V` groups as they lie in the cache.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a, T, const V: usize> {
    /// `[key_dim][16]`.
    lines: [&'a [[T; LANES]]; V],
    /// Bytes from the keys of each group to what is read for its tokens next.
    next: [usize; V],
}

impl<'a, T, const V: usize> Keys<'a, T, V> {
    /// The keys of these groups, if all of them exist.
    #[inline(always)]
    pub(super) fn of(groups: &[Option<Group<'a, T>>; V]) -> Option<Self> {
        let mut keys = Self { lines: [&[]; V], next: [0; V] };
        for (v, group) in groups.iter().enumerate() {
            let group = group.as_ref()?;
            (keys.lines[v], keys.next[v]) = (group.lines, group.next);
        }
        Some(keys)
    }
}

impl<T: Interleave, const V: usize> Terms<V> for Keys<'_, T, V> {
    #[inline(always)]
    fn len(self) -> usize {
        self.lines.iter().map(|lines| lines.len()).min().unwrap_or(0) / 2
    }

    #[inline]
    #[target_feature(
        enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi"
    )]
    unsafe fn load(self, t: usize, nr: usize) -> __m512i {
        // SAFETY: a group has twice as many lines as pairs.
        unsafe {
            let even = self.lines.get_unchecked(nr).as_ptr().add(2 * t);
            prefetch(even.wrapping_byte_add(*self.next.get_unchecked(nr)));
            T::pairs_vbmi(&*even, &*even.add(1))
        }
    }
}

/// Values of a block as they lie in the cache, `V` times sixteen elements from the first.
#[derive(Clone, Copy)]
pub(super) struct Lines<T> {
    halves: [*const [T; LANES]; 2],
    /// Bytes from each half to what is read for its columns next.
    next: [usize; 2],
    /// Vectors of a value.
    n_vectors: usize,
}

impl<T: Interleave> Lines<T> {
    /// `n` elements from `first` on of the values of a block, all of whose columns exist.
    pub(super) fn new(values: &Values<'_, T>, first: usize, n: usize, padded: usize) -> Self {
        let [(low, to_low), (high, to_high)] = [0, 1].map(|half| values.half(half));
        let is_whole = |half: &[T]| half.len() == HALF * padded && first + n <= padded;
        assert!(is_whole(low) && is_whole(high), "invariant: values are whole blocks");
        let halves = [low, high].map(|half| half[first..].as_ptr().cast());
        Self { halves, next: [to_low, to_high], n_vectors: padded / LANES }
    }
}

impl<T: Interleave, const V: usize> Terms<V> for Lines<T> {
    #[inline(always)]
    fn len(self) -> usize {
        PAIRS
    }

    #[inline]
    #[target_feature(
        enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi"
    )]
    unsafe fn load(self, t: usize, nr: usize) -> __m512i {
        let half = t / (PAIRS / 2);
        // SAFETY: halves have sixteen values, as was asserted.
        unsafe {
            let first = *self.halves.get_unchecked(half);
            let even = first.add(2 * t % HALF * self.n_vectors + nr);
            let odd = even.add(self.n_vectors);
            if (nr * size_of::<[T; LANES]>()).is_multiple_of(LINE) {
                let next = *self.next.get_unchecked(half);
                prefetch(even.wrapping_byte_add(next));
                prefetch(odd.wrapping_byte_add(next));
            }
            T::pairs_vbmi(&*even, &*odd)
        }
    }
}
