//! Owned memory for arrays: aligned, zeroed, on huge pages and on all NUMA nodes where that pays.
//!
//! ```text
//! less than 2 MiB      [ map: n_bytes ]                            starts on a page of 4 KiB
//!
//! 2 MiB or more        [ gap | n_bytes ............ | rest ]       one map of n_bytes + 2 MiB
//!                            ^ multiple of 2 MiB
//!                            [ 2M ][ 2M ] ... [4K..]               advised MADV_HUGEPAGE
//! ```
//!
//! A decoder reads gigabytes in a fixed order. With pages of 4 KiB every 4 KiB cost a walk of the
//! page tables; with pages of 2 MiB the walks all but vanish. The kernel backs a range by a huge
//! page only where a whole aligned one fits, hence the start on 2 MiB. Gap and rest are never
//! touched, so they are addresses and not memory; the advice covers the buffer alone, so that its
//! last part takes small pages rather than a huge one, and a buffer costs what it says.
//!
//! `PELTON_HUGE_PAGES=off` asks for small pages instead, even where the system gives huge pages to
//! every process; any other value and none mean on. It is read once.
//!
//! **The first write places a page.** Reserving touches nothing: a page comes into being when it is
//! first written, by default on the NUMA node of the writing thread. That node is a matter of
//! chance where all threads read all weights, so [`AlignedBuf::interleave`] spreads the pages
//! instead.
//!
//! Tried and dropped: the allocator of the standard library (`alloc_zeroed` keeps freed memory, and
//! an alignment above a page makes it write the zeros itself); explicit huge pages (`MAP_HUGETLB`
//! needs a pool reserved by an administrator).

mod placement;
mod pool;
mod vec;

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::OnceLock;

use bytemuck::Pod;
use memmap2::MmapMut;

use crate::MemoryRefused;
pub use placement::Placement;
pub use pool::{PagePool, Part};
pub use vec::AlignedVec;

/// Alignment of every [`AlignedBuf`], in bytes: one cache line, and one AVX-512 register.
pub const ALIGNMENT: usize = 64;

/// A huge page; buffers of at least this many bytes start on one and ask the system for them.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Whether large buffers ask for huge pages.
#[derive(Clone, Copy, Debug, PartialEq)]
enum HugePages {
    /// Large buffers ask for huge pages.
    On,
    /// Huge pages are refused, even where the system gives them unasked.
    Off,
}

impl HugePages {
    /// Reads `PELTON_HUGE_PAGES`.
    fn get() -> Self {
        static ASKED: OnceLock<HugePages> = OnceLock::new();
        *ASKED.get_or_init(|| Self::parse(std::env::var_os("PELTON_HUGE_PAGES").as_deref()))
    }

    fn parse(value: Option<&OsStr>) -> Self {
        if value.is_some_and(|value| value == "off") { Self::Off } else { Self::On }
    }
}

/// A zeroed byte buffer aligned to [`ALIGNMENT`] (and to 2 MiB when it is that large), for KV pages,
/// scratch rows, and as a chunk of the packed weights of a [`PagePool`].
///
/// The memory is an anonymous map: untouched pages cost nothing, and dropping the buffer gives
/// them back at once. Make few and large ones, since each takes at least a page.
#[derive(Default)]
pub struct AlignedBuf {
    /// `None` when the buffer is empty; the map is never resized.
    map: Option<MmapMut>,
    /// The buffer's bytes in the map.
    range: Range<usize>,
}

impl AlignedBuf {
    /// Reserves `n_bytes` zeroed bytes.
    ///
    /// # Panics
    ///
    /// When the system refuses the memory; see [`AlignedBuf::try_zeroed`].
    pub fn zeroed(n_bytes: usize) -> Self {
        match Self::try_zeroed(n_bytes) {
            Ok(buf) => buf,
            Err(refused) => panic!("{refused}"),
        }
    }

    /// Reserves `n_bytes` zeroed bytes.
    ///
    /// No page is touched: each comes into being when it is first written.
    ///
    /// # Errors
    ///
    /// When the address space or its commit limit is exhausted; the error shows what is left.
    pub fn try_zeroed(n_bytes: usize) -> Result<Self, MemoryRefused> {
        Self::reserve(n_bytes, HugePages::get()).map_err(|err| MemoryRefused::new(n_bytes, &err))
    }

    fn reserve(n_bytes: usize, huge_pages: HugePages) -> io::Result<Self> {
        if n_bytes == 0 {
            return Ok(Self::default());
        }
        if n_bytes < HUGE_PAGE_BYTES {
            return Ok(Self { map: Some(MmapMut::map_anon(n_bytes)?), range: 0..n_bytes });
        }
        let n_mapped = Self::mapped_bytes(n_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let map = MmapMut::map_anon(n_mapped)?;
        let start = map.as_ptr().align_offset(HUGE_PAGE_BYTES);
        #[cfg(target_os = "linux")]
        {
            let advice = match huge_pages {
                HugePages::On => memmap2::Advice::HugePage,
                HugePages::Off => memmap2::Advice::NoHugePage,
            };
            // Advice only: a kernel without transparent huge pages answers with an error.
            let _ = map.advise_range(advice, start, n_bytes);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = huge_pages;
        Ok(Self { map: Some(map), range: start..start + n_bytes })
    }

    /// Spreads the buffer's pages over NUMA `nodes` in turn, so that all memory controllers serve
    /// every thread; returns the resulting placement.
    ///
    /// Call it before the first write: pages that exist stay where they are. With fewer than two
    /// nodes, or an empty buffer, nothing is done. A refusal does no harm: each page then comes to
    /// the node of the thread that writes it first.
    ///
    /// There is no copy per node: it would read faster still and cost the weights' memory once more
    /// per node.
    #[must_use = "a refusal should be told once"]
    pub fn interleave(&mut self, nodes: &[usize]) -> Placement {
        placement::interleave(self.bytes_mut(), nodes)
    }

    /// Bytes of address space that a buffer of `n_bytes` will take, its gap and rest included;
    /// `None` where no address space is that large.
    pub fn mapped_bytes(n_bytes: usize) -> Option<usize> {
        if n_bytes < HUGE_PAGE_BYTES { Some(n_bytes) } else { n_bytes.checked_add(HUGE_PAGE_BYTES) }
    }

    /// Size in bytes.
    pub fn n_bytes(&self) -> usize {
        self.range.len()
    }

    /// Bytes of address space that the buffer takes, gap and rest included.
    pub fn n_mapped_bytes(&self) -> usize {
        self.map.as_ref().map_or(0, |map| map.len())
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_ref().map_or(&[], |map| &map[self.range.clone()])
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.map.as_mut().map_or(&mut [], |map| &mut map[self.range.clone()])
    }

    /// The buffer as elements of `T`.
    ///
    /// # Panics
    ///
    /// When the size in bytes is not a multiple of the size of `T`.
    pub fn as_slice_of<T: Pod>(&self) -> &[T] {
        // An empty buffer has no address, hence none that is aligned.
        if self.map.is_none() { &[] } else { bytemuck::cast_slice(self.bytes()) }
    }

    /// The buffer as elements of `T`, to be written.
    ///
    /// # Panics
    ///
    /// When the size in bytes is not a multiple of the size of `T`.
    pub fn as_mut_slice_of<T: Pod>(&mut self) -> &mut [T] {
        if self.map.is_none() { &mut [] } else { bytemuck::cast_slice_mut(self.bytes_mut()) }
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.n_bytes());
        copy.bytes_mut().copy_from_slice(self.bytes());
        copy
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf").field("n_bytes", &self.n_bytes()).finish()
    }
}

#[cfg(test)]
mod tests;
