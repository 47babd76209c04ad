//! Attention of decoders to the rows of an encoder.

use pelton_kernels::{Activations, AttentionInput, StoreKv, StridedRows};

use super::linear::multiply;
use super::{CpuDevice, CpuKv};
use crate::device::{CrossOp, CrossOps};

impl CrossOps for CpuDevice {
    fn store_source(
        &mut self,
        op: &CrossOp<'_, Self>,
        x: &Activations,
        kv: &mut CpuKv,
        kv_rows: &mut Activations,
    ) {
        let kv_rows = kv_rows.floats_mut(x.n_rows());
        multiply(&self.cpu, &mut self.input, &op.weights.kv, x, kv_rows);
        let width = op.cross.width();
        let half = |offset| StridedRows { data: &*kv_rows, stride: 2 * width, offset };
        let store = StoreKv { k: half(0), v: Some(half(width)), slots: op.rows.slots(op.group) };
        let layer = kv.layer(op.place);
        self.cpu.store_kv(&mut kv.pages, layer, &store);
    }

    fn cross_attention(
        &mut self,
        op: &CrossOp<'_, Self>,
        q: &Activations,
        kv: &CpuKv,
        out: &mut Activations,
    ) {
        let Self { cpu, sequences, .. } = self;
        let out = out.floats_mut(q.n_rows());
        sequences.with_sources(&op.rows, op.group, |sequences| {
            let input = AttentionInput {
                q: StridedRows::dense(q.floats(), op.cross.width()),
                n_heads: op.cross.n_heads,
                sequences,
                scale: op.cross.scale,
                window: None,
                // Each row sees its source to the end.
                ahead: usize::MAX,
                segment: None,
                softcap: None,
                slopes: None,
                bias: None,
                sinks: None,
            };
            cpu.paged_attention(&kv.pages, kv.layer(op.place), &input, out);
        });
    }
}
