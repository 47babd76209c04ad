//! Tile registers (Intel AMX): eight matrices of up to 16 rows of 64 bytes, and one instruction
//! that multiplies two of them into a third.
//!
//! ```text
//! C [rows, 16] i32  +=  A [rows, 64] i8  ·  B [16, 16 quads] i8        exact; or fewer inputs
//!
//! C [rows, 16] f32  +=  A [rows, 32] bf16  ·  B [16, 16 pairs] bf16
//!
//! row j of B, output n:  the inputs 2j and 2j + 1 of A that it is multiplied with
//!
//! even, odd = 0
//! for j in 0..16:  even = fma(A[2j], B[j][n].0, even);  odd = fma(A[2j + 1], B[j][n].1, odd)
//! C = C + (even + odd)                                  each rounded to nearest even
//! ```
//!
//! (Measured with random numbers on a Granite Rapids: all of 51,200 outputs had these bits. Like
//! `vdpbf16ps` it takes numbers below 2^-126 for zero.)
//!
//! The compiler never uses these registers, so what one statement leaves in them the next one finds.
//! Their intrinsics are not stable; each instruction is an `asm!` of its own. Linux gives the
//! registers only to a process that asks for them ([`are_supported`]).

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// Rows of a tile, and its outputs.
pub(crate) const ROWS: usize = 16;
/// Inputs of bf16 that one product takes.
pub(crate) const INPUTS: usize = 32;
/// Bytes of a row of a tile, at most.
pub(crate) const ROW_BYTES: usize = 64;

/// Bytes of a tile.
pub(crate) const TILE_BYTES: usize = ROWS * ROW_BYTES;

/// A tile in memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Stored(pub(crate) [u8; TILE_BYTES]);

impl Stored {
    pub(crate) const ZERO: Self = Self([0; TILE_BYTES]);

    /// Its rows.
    pub(crate) fn rows_mut(&mut self) -> &mut [[u8; ROW_BYTES]; ROWS] {
        let rows = self.0.as_chunks_mut().0.first_chunk_mut();
        rows.expect("invariant: a tile has sixteen rows")
    }
}

/// Whether this CPU multiplies tiles of bf16 and of bytes and the system gives this process the
/// registers; asked once.
pub(crate) fn are_supported() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| has_instructions() && is_permitted())
}

/// Whether the CPU says that it has tiles and both products.
fn has_instructions() -> bool {
    const BF16_TILE_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    let is_listed = __cpuid_count(0, 0).eax >= 7;
    is_listed && __cpuid_count(7, 0).edx & BF16_TILE_INT8 == BF16_TILE_INT8
}

/// Asks the system for the registers; all threads of the process get them.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const TILE_DATA: libc::c_ulong = 18;
    // SAFETY: this request takes one number and no pointer.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

/// How to ask is known of Linux alone.
#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// The form of the eight tiles, as the instruction that sets it reads it.
#[repr(C, align(64))]
pub(crate) struct Form {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    n_rows: [u8; 16],
}

impl Form {
    /// Rows and bytes of a row of each tile; no rows where it is not used.
    ///
    /// # Panics
    ///
    /// When a tile is larger than tiles are.
    pub(crate) fn new(tiles: [(usize, usize); 8]) -> Self {
        let mut form = Self {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            n_rows: [0; 16],
        };
        for (i, (n_rows, row_bytes)) in tiles.into_iter().enumerate().filter(|(_, t)| t.0 > 0) {
            let fits = n_rows <= ROWS && (4..=ROW_BYTES).contains(&row_bytes);
            assert!(fits, "invariant: tile {i} of {n_rows} rows of {row_bytes} bytes");
            (form.n_rows[i], form.row_bytes[i]) = (n_rows as u8, row_bytes as u16);
        }
        form
    }
}

/// Proof that this thread has set the form of its tiles; the registers are given back with it.
pub(crate) struct Tiles(());

impl Tiles {
    /// Tiles of a form.
    ///
    /// # Safety
    ///
    /// [`are_supported`] has said so. No other `Tiles` of this thread is alive.
    pub(crate) unsafe fn of(form: Form) -> Self {
        let mut tiles = Self(());
        tiles.set(form);
        tiles
    }

    /// Gives the tiles another form; what they held is lost.
    pub(crate) fn set(&mut self, form: Form) {
        // SAFETY: the instructions are there, by `of`, here and below; 64 bytes are read.
        unsafe {
            asm!(
                "ldtilecfg [{form}]",
                form = in(reg) &raw const form,
                options(readonly, nostack, preserves_flags)
            );
        }
    }

    /// All of tile `T` is zero.
    #[inline(always)]
    pub(crate) fn zero<const T: u8>(&mut self) {
        // SAFETY: as above.
        unsafe { asm!("tilezero tmm{t}", t = const T, options(nomem, nostack, preserves_flags)) }
    }

    /// Reads the rows of tile `T`, which lie `stride` bytes apart.
    ///
    /// # Safety
    ///
    /// All rows of the tile can be read.
    #[inline(always)]
    pub(crate) unsafe fn load<const T: u8>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: the caller vouches for the memory.
        unsafe {
            asm!(
                "tileloadd tmm{t}, [{from} + {stride}]",
                t = const T, from = in(reg) from, stride = in(reg) stride,
                options(readonly, nostack, preserves_flags)
            );
        }
    }

    /// As [`load`](Self::load), for rows that come from the second-level cache and are not read
    /// again soon; what is in the first level stays there.
    ///
    /// # Safety
    ///
    /// All rows of the tile can be read.
    #[inline(always)]
    pub(crate) unsafe fn load_once<const T: u8>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: the caller vouches for the memory.
        unsafe {
            asm!(
                "tileloaddt1 tmm{t}, [{from} + {stride}]",
                t = const T, from = in(reg) from, stride = in(reg) stride,
                options(readonly, nostack, preserves_flags)
            );
        }
    }

    /// Writes the rows of tile `T` `stride` bytes apart.
    ///
    /// # Safety
    ///
    /// All rows of the tile can be written.
    #[inline(always)]
    pub(crate) unsafe fn store<const T: u8>(&self, to: *mut u8, stride: usize) {
        // SAFETY: the caller vouches for the memory.
        unsafe {
            asm!(
                "tilestored [{to} + {stride}], tmm{t}",
                t = const T, to = in(reg) to, stride = in(reg) stride,
                options(nostack, preserves_flags)
            );
        }
    }

    /// `C += A · B` of bf16, as at the head of this file. `A` has the rows of `C`.
    #[inline(always)]
    pub(crate) fn dot_bf16<const C: u8, const A: u8, const B: u8>(&mut self) {
        // SAFETY: as above.
        unsafe {
            asm!(
                "tdpbf16ps tmm{c}, tmm{a}, tmm{b}",
                c = const C, a = const A, b = const B,
                options(nomem, nostack, preserves_flags)
            );
        }
    }

    /// `C += A · B` of bytes, those of `A` with a sign and those of `B` without. `A` has the rows of
    /// `C`, and `B` a row for four of its columns.
    #[inline(always)]
    pub(crate) fn dot_signed_unsigned<const C: u8, const A: u8, const B: u8>(&mut self) {
        // SAFETY: as above.
        unsafe {
            asm!(
                "tdpbsud tmm{c}, tmm{a}, tmm{b}",
                c = const C, a = const A, b = const B,
                options(nomem, nostack, preserves_flags)
            );
        }
    }

    /// `C += A · B` of bytes with a sign. `A` has the rows of `C`, and `B` a row for four of its
    /// columns.
    #[inline(always)]
    pub(crate) fn dot_int8<const C: u8, const A: u8, const B: u8>(&mut self) {
        // SAFETY: as above.
        unsafe {
            asm!(
                "tdpbssd tmm{c}, tmm{a}, tmm{b}",
                c = const C, a = const A, b = const B,
                options(nomem, nostack, preserves_flags)
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: as above. A thread without tiles in use is switched faster.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) }
    }
}
