//! Inputs of the products inside of the last fused operations: they lie in scratch until the next one.

use super::CpuDevice;
use crate::arch::Mla;
use crate::device::{ExpertRows, InnerOps};

impl InnerOps for CpuDevice {
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
