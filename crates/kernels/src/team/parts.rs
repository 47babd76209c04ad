//! A mutable slice shared by the tiles of an operation: the only pointer arithmetic of the row and
//! attention operations.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice of which each tile of one operation takes a part.
///
/// ```text
/// slice   |--------|--------|--------|-----|
///          tile 0   tile 1   tile 2   tile 3      no two overlap: the operation's promise
/// ```
pub(crate) struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: threads get disjoint `&mut [T]` out of it (the promise of `part`), which may be sent to
// them when `T` is `Send`, and share `&[T]` (of `shared`), as it is `Sync`.
unsafe impl<T: Send + Sync> Sync for Parts<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    /// Borrows the whole slice, for as long as parts of it are in use.
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// The elements of `range`.
    ///
    /// # Panics
    ///
    /// When the range is not within the slice.
    ///
    /// # Safety
    ///
    /// No two parts that are alive at the same time overlap.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "invariant: part within slice");
        // SAFETY: the range is inside the borrowed slice, and disjoint from all others alive.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// The elements of `range`, to be read.
    ///
    /// # Panics
    ///
    /// When the range is not within the slice.
    ///
    /// # Safety
    ///
    /// No part that is alive at the same time overlaps it.
    pub(crate) unsafe fn shared(&self, range: Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.len, "invariant: part within slice");
        // SAFETY: the range is inside the borrowed slice, and nothing writes it, as promised.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }
}
