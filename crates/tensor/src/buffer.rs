//! Owned memory for arrays: aligned, zeroed, backed by huge pages where that pays.

use std::fmt;
use std::io;

use bytemuck::Pod;
use memmap2::MmapMut;

/// Alignment of every [`AlignedBuf`], in bytes: one cache line, and one AVX-512 register.
pub const ALIGNMENT: usize = 64;

/// Buffers of at least this many bytes ask the system for huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A zeroed byte buffer aligned to [`ALIGNMENT`], for packed weights, KV pages and scratch rows.
///
/// The memory is an anonymous map: untouched pages cost nothing, and dropping the buffer gives
/// them back at once. Make few and large ones, since each takes at least a page.
pub struct AlignedBuf {
    /// `None` when the buffer is empty; the map is never resized.
    map: Option<MmapMut>,
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
            Err(err) => panic!("cannot reserve {n_bytes} bytes of memory: {err}"),
        }
    }

    /// Reserves `n_bytes` zeroed bytes, or says why the system refuses them.
    ///
    /// # Errors
    ///
    /// The system's own error, when the address space or its commit limit is exhausted.
    pub fn try_zeroed(n_bytes: usize) -> io::Result<Self> {
        if n_bytes == 0 {
            return Ok(Self { map: None });
        }
        let map = MmapMut::map_anon(n_bytes)?;
        debug_assert_eq!(map.as_ptr().align_offset(ALIGNMENT), 0, "maps start on a page");
        #[cfg(target_os = "linux")]
        if n_bytes >= HUGE_PAGE_BYTES {
            // Advice only: a kernel without transparent huge pages answers with an error.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Self { map: Some(map) })
    }

    /// Size in bytes.
    pub fn n_bytes(&self) -> usize {
        self.bytes().len()
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.map.as_deref_mut().unwrap_or(&mut [])
    }

    /// The buffer as elements of `T`.
    ///
    /// # Panics
    ///
    /// When the size in bytes is not a multiple of the size of `T`.
    pub fn as_slice_of<T: Pod>(&self) -> &[T] {
        self.map.as_deref().map_or(&[], bytemuck::cast_slice)
    }

    /// The buffer as elements of `T`, to be written.
    ///
    /// # Panics
    ///
    /// When the size in bytes is not a multiple of the size of `T`.
    pub fn as_mut_slice_of<T: Pod>(&mut self) -> &mut [T] {
        self.map.as_deref_mut().map_or(&mut [], bytemuck::cast_slice_mut)
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.n_bytes());
        copy.bytes_mut().copy_from_slice(self.bytes());
        copy
    }
}

impl Default for AlignedBuf {
    /// An empty buffer.
    fn default() -> Self {
        Self { map: None }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf").field("n_bytes", &self.n_bytes()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_aligned_and_typed() {
        for n_bytes in [0, 4, 64, 4096, 3 << 20] {
            let mut buf = AlignedBuf::zeroed(n_bytes);
            assert_eq!(buf.n_bytes(), n_bytes);
            assert!(buf.bytes().iter().all(|&byte| byte == 0));
            assert!(n_bytes == 0 || (buf.bytes().as_ptr() as usize).is_multiple_of(ALIGNMENT));
            buf.as_mut_slice_of::<f32>().fill(1.5);
            assert_eq!(buf.as_slice_of::<f32>(), vec![1.5; n_bytes / 4]);
            assert_eq!(buf.clone().bytes(), buf.bytes());
        }
    }

    #[test]
    fn memory_that_no_machine_has_is_an_error_not_an_abort() {
        assert!(AlignedBuf::try_zeroed(usize::MAX / 2).is_err());
    }
}
