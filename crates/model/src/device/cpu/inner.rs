//! Inputs of the products inside of the last fused operations: they lie in scratch until the next one.

use pelton_kernels::{Activations, Forms};

use super::CpuDevice;
use crate::arch::{Act, Mla};
use crate::device::{ExpertRows, InnerOps};
use crate::layer::TwoLayers;

impl InnerOps for CpuDevice {
    fn hidden_layer(
        &mut self,
        layers: &TwoLayers<Self>,
        shape: (Act, bool, Option<f32>),
        x: &Activations,
    ) -> &[f32] {
        self.activate_hidden(layers, shape, x, Forms::F32);
        self.activated.floats()
    }

    fn latents(&self, mla: &Mla, [queries, keys]: [&mut Vec<f32>; 2]) {
        self.latent.latents(mla, [queries, keys]);
    }

    fn experts(&self, each: &mut dyn FnMut(ExpertRows<'_>)) {
        self.experts.each_expert(each);
    }

    fn expert_sums(&self) -> &[f32] {
        self.experts.sums()
    }
}
