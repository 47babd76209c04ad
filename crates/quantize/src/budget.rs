//! A budget for all matrices, divided among them.

use pelton_kernels::Cpu;
use pelton_model::{CpuDevice, LayerShape, ModelFiles};

use crate::allocate::choose;
use crate::calibrate::Samples;
use crate::config::Bits;
use crate::layer::Work;
use crate::sensitivity::{SHAPE_BITS, measure};
use crate::{QuantizeError, Result, Target, source};

/// Bits of each module. `None` when it was stopped.
///
/// # Errors
///
/// Without texts, and when the budget cannot be met: says the least that can.
pub(crate) fn divide(
    files: &mut ModelFiles,
    layers: &[LayerShape],
    (target, samples): (Target, Option<&Samples>),
    cpu: &Cpu,
    work: &Work<'_>,
) -> Result<Option<Bits>> {
    let Some(samples) = samples else {
        return Err(QuantizeError::Option(
            "`--target-bpw` or `--target-size` without `--calibration`: the text shows which \
             matrices matter"
                .to_owned(),
        ));
    };
    let own = layers.iter().flat_map(|layer| &layer.matrices);
    let own: Vec<_> = own.filter(|matrix| !work.options.keeps(&matrix.module)).collect();
    let n_weights: u64 = own.iter().map(|matrix| (matrix.shape[0] * matrix.shape[1]) as u64).sum();
    let own_bytes: u64 = own.iter().map(|matrix| source::n_stored_bytes(files, matrix)).sum();
    // Everything that is not a weight of these matrices.
    let rest_bits = match target {
        Target::BitsPerWeight(_) => 0,
        Target::Bytes(_) => 8 * (source::n_bytes(files) - own_bytes),
    } + SHAPE_BITS * own.len() as u64;
    let budget = match target {
        Target::BitsPerWeight(bits) => (bits * n_weights as f64) as u64,
        Target::Bytes(n) => n.saturating_mul(8),
    };
    let Some(measured) = measure(files, layers, samples, CpuDevice::new(cpu.clone()), work)? else {
        return Ok(None);
    };
    let (modules, widths): (Vec<String>, Vec<_>) = measured.into_iter().unzip();
    match choose(&widths, budget.saturating_sub(rest_bits)) {
        Ok(chosen) => {
            let bits = chosen.iter().zip(&widths).map(|(idx, widths)| widths[*idx].bits);
            Ok(Some(modules.into_iter().zip(bits).collect()))
        }
        Err(least) => Err(QuantizeError::Option(match target {
            Target::BitsPerWeight(bits) => {
                let least = (least + rest_bits) as f64 / n_weights as f64;
                let least = (least * 1000.0).ceil() / 1000.0;
                format!(
                    "`--target-bpw` is {bits}: the least that these matrices can have is {least}"
                )
            }
            Target::Bytes(n) => {
                let least = (least + rest_bits).div_ceil(8);
                format!(
                    "`--target-size` is {n} bytes: the least that the folder can have is {least}"
                )
            }
        })),
    }
}
