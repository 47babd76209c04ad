//! A growable array that begins at a cache line.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};

use super::{ALIGNMENT, AlignedBuf, HUGE_PAGE_BYTES};

/// A cache line.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; ALIGNMENT]);

/// Elements that begin at a multiple of [`ALIGNMENT`] bytes, in memory that is kept and used again when
/// the array shrinks and grows: on huge pages from 2 MiB on, where the system has them.
///
/// A large vector of floats from the allocator begins 16 bytes behind a cache line, where every access of
/// 64 bytes takes two lines.
#[derive(Clone, Debug)]
pub struct AlignedVec<T> {
    memory: Memory,
    len: usize,
    elements: PhantomData<T>,
}

/// Zeros, or what was written.
#[derive(Clone, Debug)]
enum Memory {
    Lines(Vec<Line>),
    Pages(AlignedBuf),
}

impl<T: Pod> AlignedVec<T> {
    /// An empty array, which takes no memory yet.
    pub const fn new() -> Self {
        Self { memory: Memory::Lines(Vec::new()), len: 0, elements: PhantomData }
    }

    /// Makes this an array of `n` elements: those that were there, then others that are zeros, or
    /// what they were when the array was last as long.
    pub fn resize(&mut self, n: usize) {
        let n_bytes = n.checked_mul(size_of::<T>()).expect("an array that fits in memory");
        if n_bytes > self.memory.bytes().len() {
            self.memory.grow(n_bytes);
        }
        self.len = n;
    }
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Lines(lines) => bytemuck::cast_slice(lines),
            Self::Pages(buf) => buf.bytes(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Lines(lines) => bytemuck::cast_slice_mut(lines),
            Self::Pages(buf) => buf.bytes_mut(),
        }
    }

    /// Memory that the system refuses as pages is asked of the allocator, which explains its refusals.
    fn grow(&mut self, n_bytes: usize) {
        let n_lines = n_bytes.div_ceil(ALIGNMENT);
        let before = self.bytes().len();
        let twice = (n_lines * ALIGNMENT).max(2 * before);
        let pages = (n_bytes >= HUGE_PAGE_BYTES).then(|| AlignedBuf::try_zeroed(twice).ok());
        if let Some(mut pages) = pages.flatten() {
            pages.bytes_mut()[..before].copy_from_slice(self.bytes());
            *self = Self::Pages(pages);
        } else if let Self::Lines(lines) = self {
            lines.resize(n_lines, Line::zeroed());
        } else {
            let mut lines = vec![Line::zeroed(); n_lines];
            bytemuck::cast_slice_mut(&mut lines)[..before].copy_from_slice(self.bytes());
            *self = Self::Lines(lines);
        }
    }
}

impl<T: Pod> Default for AlignedVec<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Pod> Deref for AlignedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(self.memory.bytes())[..self.len]
    }
}

impl<T: Pod> DerefMut for AlignedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(self.memory.bytes_mut())[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_keeps_its_elements_and_its_memory_and_begins_at_a_cache_line() {
        let mut array = AlignedVec::<f32>::new();
        assert!(array.is_empty());
        for n in [3, 100, 20, 5000, 700_000] {
            let before = array.to_vec();
            array.resize(n);
            assert_eq!(array.len(), n);
            assert!((array.as_ptr() as usize).is_multiple_of(ALIGNMENT), "{n} elements");
            let kept = before.len().min(n);
            assert_eq!(array[..kept], before[..kept], "{n} elements");
            array.fill(n as f32);
        }
        let at = array.as_ptr();
        array.resize(1);
        array.resize(700_000);
        assert_eq!((array.as_ptr(), array[699_999]), (at, 700_000.0));
    }
}
