//! How weights lie in memory.

pub mod codes;
pub(crate) mod float;
pub(crate) mod int;
mod packed;
mod storage;
pub(crate) mod table;
mod version;

pub use packed::{BAND_BYTES, PackedMatrix, Rows};
pub use storage::Storage;
pub use table::WeightLayout;
pub(crate) use table::with_layout;
pub use version::LAYOUT_VERSION;

use pelton_tensor::ActivationGroup;

/// Output rows per panel: the 32-bit lanes of the widest register.
pub const PANEL: usize = 16;

/// Inputs that share one scale, in weights and activations.
pub const GROUP: usize = 32;

impl WeightLayout {
    /// Weights per block: a row is a whole number of blocks.
    pub fn block_len(self) -> usize {
        with_layout!(self, I => <I as int::IntLayout>::LEN, F => <F as float::FloatLayout>::LEN)
    }

    /// Bytes of one source row of `k` weights.
    ///
    /// # Panics
    ///
    /// When `k` is not a multiple of [`block_len`](Self::block_len).
    pub fn row_bytes(self, k: usize) -> usize {
        self.check_width(k);
        with_layout!(self,
            I => int::row_bytes::<I>(k),
            F => <F as float::FloatLayout>::row_bytes(k)
        )
    }

    /// Whether activations must be quantized for this layout.
    pub fn needs_quantized_input(self) -> bool {
        with_layout!(self, _I => true, _F => false)
    }

    /// The largest groups of activations that products with this layout take.
    pub fn widest_group(self) -> ActivationGroup {
        match with_layout!(self, I => <I as int::IntLayout>::SCALE_LEN, _F => 0) {
            usize::MAX => ActivationGroup::Row,
            128.. => ActivationGroup::Of128,
            64.. => ActivationGroup::Of64,
            _ => ActivationGroup::Of32,
        }
    }

    /// Bytes of one panel of `k` inputs.
    fn panel_bytes(self, k: usize) -> usize {
        self.check_width(k);
        with_layout!(self,
            I => int::panel_bytes::<I>(k),
            F => <F as float::FloatLayout>::panel_bytes(k)
        )
    }

    fn check_width(self, k: usize) {
        let block = self.block_len();
        assert!(k.is_multiple_of(block), "k = {k} is not a multiple of the block of {block}");
    }

    /// Writes one source row to its lane of a panel of zeros.
    fn place_row(self, row: &[u8], panel: &mut [u8], lane: usize) {
        with_layout!(self,
            I => int::place_row::<I>(row, panel, lane),
            F => <F as float::FloatLayout>::place(row, panel, lane)
        );
    }

    /// The weights of one lane of a panel, dequantized.
    fn unpack_lane(self, panel: &[u8], lane: usize, out: &mut [f32]) {
        with_layout!(self,
            I => int::unpack_lane::<I>(panel, lane, out),
            F => float::unpack_lane::<F>(panel, lane, out)
        );
    }
}
