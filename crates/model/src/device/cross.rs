//! Operations of decoders that attend to the rows of an encoder: see
//! [`CrossAttention`](crate::layer::CrossAttention).

use super::Device;
use crate::kv::KvPlace;
use crate::layer::{CrossAttention, CrossAttentionWeights};

/// One layer's attention to the sources of sequences in one step.
#[derive(Debug)]
pub struct CrossOp<'a, D: Device> {
    /// All rows of the step: of the encoder where keys and values are stored, of the decoder where they
    /// are read.
    pub rows: D::Rows<'a>,
    /// Where its keys and values lie in blocks.
    pub place: KvPlace,
    /// Memory group of the layer.
    pub group: usize,
    /// Shapes.
    pub cross: &'a CrossAttention,
    /// Weights.
    pub weights: &'a CrossAttentionWeights<D>,
}

/// The operations of models with an encoder.
pub trait CrossOps: Device {
    /// Projects the rows of an encoder to the keys and values of one layer of the decoder, and stores
    /// them: `x` is `[m, hidden]`, `kv_rows` becomes `[m, 2 * width]`.
    fn store_source(
        &mut self,
        op: &CrossOp<'_, Self>,
        x: &Self::Buf,
        kv: &mut Self::Kv,
        kv_rows: &mut Self::Buf,
    );

    /// Attention of each row to the whole source of its sequence: `q` is `[m, width]`, and `out`
    /// becomes so.
    fn cross_attention(
        &mut self,
        op: &CrossOp<'_, Self>,
        q: &Self::Buf,
        kv: &Self::Kv,
        out: &mut Self::Buf,
    );
}
