//! Reading packed bytes into the registers of an instruction set.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

/// Sixteen floats and sixteen quads of bytes in the registers of one instruction set.
///
/// Layouts read their blocks with these operations and with the arithmetic of [`super::Simd`].
pub(crate) trait Bytes: super::Simd {
    /// Sixty-four bytes: `[16 outputs][4 k]`.
    type B: Copy;

    /// Sixty-four bytes from memory.
    fn bytes(self, from: &[u8; 64]) -> Self::B;
    /// `x & mask` of every byte.
    fn and(self, x: Self::B, mask: u8) -> Self::B;
    /// `x | y`.
    fn or(self, x: Self::B, y: Self::B) -> Self::B;
    /// Every 16-bit word shifted down by `n`; bits of the upper byte enter the lower one.
    fn shr(self, x: Self::B, n: usize) -> Self::B;
    /// Every 16-bit word shifted up by `n`; bits of the lower byte enter the upper one.
    fn shl(self, x: Self::B, n: usize) -> Self::B;
    /// `table[x]` of every byte below 16.
    fn lookup(self, table: &[u8; 16], x: Self::B) -> Self::B;
    /// The trit `(x * power mod 256) * 3 >> 8` of every byte; `power` is a power of three.
    fn trit(self, x: Self::B, power: u8) -> Self::B;
    /// Sixteen half-precision numbers.
    fn halves(self, from: &[u8; 32]) -> Self::F;
    /// Sixteen bytes without a sign.
    fn unsigned(self, from: &[u8; 16]) -> Self::F;
    /// Sixteen bytes with a sign.
    fn signed(self, from: &[u8; 16]) -> Self::F;
    /// Sixteen floats from bytes.
    fn floats(self, from: &[u8; 64]) -> Self::F;
    /// Sixteen floats by their bits.
    fn words(self, from: &[u32; 16]) -> Self::F;
    /// Sixteen pairs of bf16: the first of each, and the second.
    fn bf16_pairs(self, from: &[u8; 64]) -> [Self::F; 2];
    /// `table[word >> shift & 15]` of sixteen 32-bit words.
    fn codes(self, table: &[f32; 16], from: &[u8; 64], shift: usize) -> Self::F;
}

/// A packed block in memory.
#[derive(Clone, Copy)]
pub(crate) struct Block(*const u8);

impl Block {
    /// A block at `start`.
    ///
    /// # Safety
    ///
    /// As many bytes as the layout's block has are readable there for as long as this value is
    /// used.
    #[inline(always)]
    pub(crate) unsafe fn new(start: *const u8) -> Self {
        Self(start)
    }

    /// Prefetches the line at `offset`, which may lie anywhere.
    #[inline(always)]
    pub(crate) fn prefetch(self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch may name any address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.0.wrapping_add(offset).cast());
        }
    }

    /// The same to the second level of cache, for which more lines can be on their way at a time.
    #[inline(always)]
    pub(crate) fn prefetch_far<S: Bytes>(self, s: S, offset: usize) {
        s.prefetch(self.0.wrapping_add(offset));
    }

    /// The same block, whose bytes the compiler reads once more instead of keeping them in registers.
    #[inline(always)]
    pub(crate) fn again(self) -> Self {
        #[cfg(target_arch = "x86_64")]
        let from = {
            let mut from = self.0;
            // SAFETY: no instruction.
            unsafe {
                std::arch::asm!(
                    "/* {0} */", inout(reg) from, options(readonly, nostack, preserves_flags)
                );
            }
            from
        };
        #[cfg(not(target_arch = "x86_64"))]
        let from = self.0;
        Self(from)
    }

    /// `N` bytes at `offset`.
    ///
    /// # Safety
    ///
    /// They are inside the block.
    #[inline(always)]
    pub(crate) unsafe fn at<'a, const N: usize>(self, offset: usize) -> &'a [u8; N] {
        // SAFETY: the caller vouches for the range, and bytes have no alignment.
        unsafe { &*self.0.add(offset).cast() }
    }
}
