//! Recurrent layers: states of fixed size, and the arithmetic that advances them.
//!
//! ```text
//! positions   0 ............ 63 | 64 ........... 127 | 128 ...... p      chunks of 64, from 0
//!             |---- folded into the state S ---------| border |-- open chunk --|
//!
//! row p       reads S at its chunk's border, and keys, updates and decays of the open chunk
//! fold        once per chunk, when the first row of the next one is computed
//! ```
//!
//! A recurrence that advances token by token would read and write its state for each; this one
//! reads it for each and writes it once in 64. Drafts that are rejected are rows of the open chunk
//! that get overwritten, so nothing has to be undone.
//!
//! | file | content |
//! |---|---|
//! | [`shape`], [`store`] | lanes and snapshots: how states lie in memory |
//! | [`sequence`] | the sequences of a step, and the chunks that their rows fall into |
//! | [`conv`] | the causal convolution over time |
//! | [`scan`], [`input`] | the recurrence: how a step is shared by the team |
//! | [`dots`], [`project`], [`solve`] | its kernels |
//! | [`element`] | the types in which states are stored at borders |
//! | [`selective`] | the recurrence with a decay per channel and element of its state |
//! | [`wkv`], [`wkv_row`] | the recurrence with removal keys of its own (RWKV-7) |
//! | [`replay`] | where recurrences that go row by row begin, and what they keep |
//!
//! **Canonical order.** It depends on the positions of a row and of its chunk alone:
//!
//! ```text
//! k[i]·k[t], k[i]·q[t]      fma, d ascending                         lanes are rows i
//! Sᵀk[t], Sᵀq[t]            fma, d ascending from 0                  lanes are values
//! G[t]                      g added in order, from 0 at the border
//! known, o[t]               exp(G[t]) · projection, then fma(exp(G[t] - G[i]) · dot, u[i], ..),
//!                           i ascending by position                  lanes are values
//! u[t]                      beta · (v - known)
//! S'                        exp(G[63]) · S, then fma(k[i], exp(G[63] - G[i]) · u[i], ..), i ascending
//! by channel                G[t,d] for each element d of a key; exp(G[t]) ∘ k[t] and exp(G[t]) ∘ q[t]
//!                           read S; dots are fma(x[d], exp(G[t,d] - G[i,d]) · k[i,d], ..), d ascending;
//!                           S' takes exp(G[63] - G[i]) ∘ k[i] and u[i]
//! convolution               bias or 0, then fma(w[j], x, ..), j ascending
//! ```
//!
//! Where states are stored in bf16, `S` at a border is rounded to it, to nearest with ties to even, when
//! it is stored, and widened wherever it is read.
//!
//! No sum crosses lanes, so a row alone, a tile of four and every instruction set add alike. Rows
//! that are not seen are not added, not even as zeros; so a row of a tree of drafts has the bits of
//! the last row of a chain of its path.
//!
//! **Architecture invariant:** the chunk of 64 is part of the result's definition.
//!
//! **Bytes and operations** of a value head of `d x e`, where `n` rows of the chunk are open:
//!
//! ```text
//! a decoding row    4 d e + 4 n (d / group + e) bytes     4 d e + 4 n (d / group + e) operations
//! by channel        4 d e + 4 n (2 d + e) bytes
//! 64 rows           8 d e + the rows bytes                64 · (6 d e + 130 (d / group + e))
//! ```
//!
//! One Zen 5 core, 16 heads of 128 x 128 with the delta rule: a row after 0, 32 and 63 open rows takes
//! 46, 78 and 99 microseconds where states come from memory (1.0, 1.6 and 2.0 MiB: about 22 GB/s of
//! the 32 that a plain sum reads); a prompt of 512 does 55,000 rows per second, 120 GFLOP/s. With
//! AVX2 these are 73, 107 and 129 microseconds and 25,000 rows. With decays by channel they are 55, 102
//! and 124 microseconds and about 24,000 rows; with AVX2 88, 154 and 183 microseconds and 11,000 rows
//! (measured beside other work).
//!
//! A thread takes neighbouring heads, whose states lie one behind the other, so that what it
//! prefetches beyond one state is its next. Two Zen 5 cores took up to 28 % less time per decoded
//! row than with heads from one counter, and as much for prompts, within 5 %.
//!
//! Not done: inner products in striped lanes, as norms have them (each product would need a sum
//! across lanes); the triangular system by inversion (other bits for a row alone).

mod conv;
mod dots;
mod element;
mod input;
mod project;
mod replay;
mod scan;
mod selective;
mod sequence;
mod shape;
mod solve;
mod store;
#[cfg(test)]
mod tests;
mod wkv;
mod wkv_row;

pub use conv::{ConvInput, ConvWeights};
pub use input::{Decays, HeadOrder, ScanInput, ScanShape};
pub use pelton_tensor::StateDtype;
pub use selective::SelectiveInput;
pub use sequence::StateSeq;
pub use shape::{StateLayer, StateShape};
pub use store::StateStore;
pub use wkv::{WkvInput, WkvWeights};

/// Positions per chunk of a recurrent layer: part of the canonical order, not a tuning knob.
pub const CHUNK: usize = 64;

/// Most taps of a convolution.
const MAX_TAPS: usize = 16;

/// The kernels of one instruction set.
#[derive(Debug)]
pub(crate) struct Table {
    dots: unsafe fn(dots::Dots<'_>),
    project: unsafe fn(project::Project<'_>),
    solve: unsafe fn(solve::Solve<'_>),
    fold: unsafe fn(project::Fold<'_>),
    conv: unsafe fn(&conv::Row<'_>, &mut [f32]),
    softplus: unsafe fn(&[f32], &mut [f32]),
    selective: unsafe fn(&selective::Row<'_>, &mut [f32], &mut [f32]),
    wkv_prepare: unsafe fn(&wkv_row::Raw<'_>, &mut [f32]),
    wkv_advance: unsafe fn(&wkv_row::Advance<'_>, &mut [f32], &mut [f32]),
    wkv_finish: unsafe fn(&wkv_row::Finish<'_>, &mut [f32]),
}

macro_rules! table {
    ($(#[$meta:meta])* $name:ident, $shell:ident) => {
        $(#[$meta])*
        pub(crate) static $name: Table = Table {
            dots: dots::dots_shells::$shell,
            project: project::project_shells::$shell,
            solve: solve::solve_shells::$shell,
            fold: project::fold_shells::$shell,
            conv: conv::row_shells::$shell,
            softplus: selective::softplus_shells::$shell,
            selective: selective::row_shells::$shell,
            wkv_prepare: wkv_row::prepare_shells::$shell,
            wkv_advance: wkv_row::advance_shells::$shell,
            wkv_finish: wkv_row::finish_shells::$shell,
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
