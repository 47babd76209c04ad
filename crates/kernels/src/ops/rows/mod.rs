//! Operations on rows of activations: norms, adds, activations, rotary embedding, argmax, streams.
//!
//! ```text
//! op (a method of `Cpu`)   checks shapes, cuts big inputs into tiles for the team
//!   -> Table               one function pointer per operation, chosen with the instruction set
//!     -> shell             `#[target_feature]`, written by `shells!`
//!       -> generic         the algorithm, over `lanes::Simd`, one canonical order
//! ```
//!
//! These operations read and write each activation once or twice: 4 to 16 bytes per element for 1
//! to 40 operations. In a decode step they are a thousandth of the bytes of the weights, so what
//! counts is that they wake the team only when that pays ([`PARALLEL_ELEMENTS`]).
//!
//! Element-wise results cannot depend on the cut. Reductions run within one row and one thread,
//! element `i` in lane `i % 16`, lanes summed by halving.

mod act;
mod argmax;
mod decay;
mod elementwise;
mod experts;
mod gated;
mod gated_norm;
mod heads;
mod layer_norm;
mod lookup;
mod norm;
mod rope;
mod route;
mod sigmoid;
mod streams;

use std::ops::Range;

use pelton_base::Act;

use crate::Cpu;

pub use decay::DecayParams;
pub use gated_norm::{GateOrder, GatedNorm};
pub use heads::HeadSlices;
pub(crate) use layer_norm::{moments, normalize};
pub use norm::HeadLayout;
pub use rope::RopeLayout;
pub use route::Chosen;
pub use streams::StreamRoutes;

/// Below this many elements an operation stays on the calling thread: about two microseconds of
/// work, which is what waking the team costs.
const PARALLEL_ELEMENTS: usize = 32 << 10;

/// Elements that one tile of a parallel operation takes, at least.
const TILE_ELEMENTS: usize = 8 << 10;

/// The row kernels of one instruction set.
///
/// Each function needs the target features of its table; shapes are checked by the methods of
/// [`Cpu`] and again, by slicing, inside.
#[derive(Debug)]
pub(crate) struct Table {
    inverse_rms: unsafe fn(&[f32], f32) -> f32,
    add_inverse_rms: unsafe fn(&mut [f32], &[f32], f32) -> f32,
    scale_by: unsafe fn(&[f32], f32, &[f32], &mut [f32]),
    head_rms_norm: unsafe fn(&mut [f32], &[f32], f32),
    pub(crate) add: unsafe fn(&mut [f32], &[f32]),
    pub(crate) scale: unsafe fn(&mut [f32], f32),
    clamp: unsafe fn(&mut [f32], f32),
    moments: unsafe fn(&[f32], f32) -> [f32; 2],
    normalize: layer_norm::Normalize,
    head_layer_norm: unsafe fn(&mut [f32], usize, &[f32], f32),
    /// Indexed by [`Act`].
    pub(crate) gated: [gated::Kernel; Act::ALL.len()],
    /// Indexed by [`Act`].
    pub(crate) plain: [act::Kernel; Act::ALL.len()],
    /// Indexed by [`GateOrder`].
    gated_norm: [gated_norm::Kernel; 4],
    rope_halves: unsafe fn(&mut [f32], &[f32]),
    rope_pairs: unsafe fn(&mut [f32], &[f32]),
    argmax: unsafe fn(&[f32]) -> usize,
    pub(crate) largest: unsafe fn(&[f32]) -> f32,
    pub(crate) round_to_bf16: unsafe fn(&[f32], &mut [f32]),
    sigmoid_mul: unsafe fn(&mut [f32], &[f32]),
    channel_decays: decay::ChannelKernel,
}

macro_rules! table {
    ($(#[$meta:meta])* $name:ident, $shell:ident) => {
        $(#[$meta])*
        pub(crate) static $name: Table = Table {
            inverse_rms: norm::inverse_rms_shells::$shell,
            add_inverse_rms: norm::add_inverse_rms_shells::$shell,
            scale_by: norm::scale_by_shells::$shell,
            head_rms_norm: norm::head_rms_norm_shells::$shell,
            add: elementwise::add_shells::$shell,
            scale: elementwise::scale_shells::$shell,
            clamp: elementwise::clamp_shells::$shell,
            moments: layer_norm::moments_shells::$shell,
            normalize: layer_norm::normalize_shells::$shell,
            head_layer_norm: layer_norm::head_layer_norm_shells::$shell,
            gated: [
                gated::silu_mul_shells::$shell,
                gated::gelu_tanh_mul_shells::$shell,
                gated::gelu_mul_shells::$shell,
                gated::quick_gelu_mul_shells::$shell,
                gated::relu_mul_shells::$shell,
                gated::relu_squared_mul_shells::$shell,
            ],
            plain: [
                act::silu_shells::$shell,
                act::gelu_tanh_shells::$shell,
                act::gelu_shells::$shell,
                act::quick_gelu_shells::$shell,
                act::relu_shells::$shell,
                act::relu_squared_shells::$shell,
            ],
            gated_norm: [
                gated_norm::norm_then_gate_shells::$shell,
                gated_norm::gate_then_norm_shells::$shell,
                gated_norm::gate_alone_shells::$shell,
                gated_norm::norm_then_sigmoid_shells::$shell,
            ],
            rope_halves: rope::halves_shells::$shell,
            rope_pairs: rope::pairs_shells::$shell,
            argmax: argmax::argmax_shells::$shell,
            largest: argmax::largest_shells::$shell,
            round_to_bf16: elementwise::round_to_bf16_shells::$shell,
            sigmoid_mul: sigmoid::sigmoid_mul_shells::$shell,
            channel_decays: decay::channel_decays_shells::$shell,
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

impl Cpu {
    /// Calls `f` with ranges that together cover `0..n_items`, on the team when `n_items` of
    /// `n_elements` each are worth waking it for.
    pub(crate) fn for_each_part<F>(&self, n_items: usize, n_elements: usize, f: F)
    where
        F: Fn(Range<usize>) + Sync,
    {
        if n_items * n_elements < PARALLEL_ELEMENTS || self.team.n_threads() == 1 {
            return f(0..n_items);
        }
        let per_tile = (TILE_ELEMENTS / n_elements.max(1)).max(1);
        let run = |tile: usize| f(tile * per_tile..n_items.min((tile + 1) * per_tile));
        self.team.for_each_tile_of_table(1, n_items.div_ceil(per_tile), run);
    }
}
