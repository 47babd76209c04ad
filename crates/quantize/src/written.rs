//! From weights to a matrix in the layout of a method: the one place that pairs the two.

use pelton_quant::checkpoint::{
    Written, WrittenTensor, aqlm_tensors, awq_tensors, bitnet_tensors, fp4_tensors, fp8_tensors,
    gptq_tensors, gptq_v2_tensors, hqq_tensors, int8_tensors, llm_int8_tensors, nf4_tensors,
    packed_tensors, quip_tensors,
};
use pelton_quant::solve::aqlm::{self, Aqlm};
use pelton_quant::solve::fp4::{self, Fp4};
use pelton_quant::solve::fp8::{self, Fp8};
use pelton_quant::solve::gptq::Factor;
use pelton_quant::solve::hqq::{self, Hqq};
use pelton_quant::solve::int8::{self, Int8};
use pelton_quant::solve::nf4::{self, Nf4};
use pelton_quant::solve::quip::{self, Quip};
use pelton_quant::solve::ternary::{self, Ternary};
use pelton_quant::solve::{Grid, Hessian, Result, Solved, Weights, rtn};

use crate::{Method, Options};

/// Rounds every weight to nearest, in the layout that the method writes.
pub(crate) fn rounded(
    weights: Weights<'_>,
    options: &Options,
    grid: &Grid,
    n_threads: usize,
) -> Result<Written> {
    Ok(match options.method {
        Method::Rtn | Method::Gptq | Method::Awq => {
            in_words(rtn::solve(weights, grid, n_threads)?, options)
        }
        Method::SmoothQuant | Method::Int8 => {
            Written::new(int8::solve(weights, grid.group, n_threads)?, int8_tensors, Int8::weights)
        }
        Method::LlmInt8 => Written::new(
            int8::solve(weights, grid.group, n_threads)?,
            llm_int8_tensors,
            Int8::weights,
        ),
        Method::Fp8 => {
            let layout = fp8::Layout { kind: options.fp8, group: grid.group };
            Written::new(fp8::solve(weights, layout, None, n_threads)?, fp8_tensors, Fp8::weights)
        }
        Method::Nf4 => {
            let block = grid.group.inputs(weights.shape[1]);
            let solved = nf4::solve(weights, block, n_threads)?;
            Written::new(solved, |solved: &Nf4| nf4_tensors(solved, "float32"), Nf4::weights)
        }
        Method::Mxfp4 => {
            Written::new(fp4::solve(weights, fp4::Kind::Mx, n_threads)?, fp4_tensors, Fp4::weights)
        }
        Method::Nvfp4 => {
            Written::new(fp4::solve(weights, fp4::Kind::Nv, n_threads)?, fp4_tensors, Fp4::weights)
        }
        Method::Hqq => {
            Written::new(hqq::solve(weights, grid, n_threads)?, hqq_tensors, Hqq::weights)
        }
        Method::Quip => {
            let solved = quip::solve(weights, grid.bits, None, n_threads)?;
            Written::new(solved, quip_tensors, Quip::weights)
        }
        Method::Aqlm => in_codebooks(weights, options, grid, None, n_threads)?,
        Method::BitNet => {
            Written::new(ternary::solve(weights, n_threads)?, bitnet_tensors, Ternary::weights)
        }
    })
}

/// Sums of codebooks; without a Hessian each vector gets its own nearest one.
pub(crate) fn in_codebooks(
    weights: Weights<'_>,
    options: &Options,
    grid: &Grid,
    hessian: Option<&Hessian>,
    n_threads: usize,
) -> Result<Written> {
    let solved = aqlm::solve(weights, grid.bits, hessian, options.gptq, n_threads)?;
    Ok(Written::new(solved, aqlm_tensors, Aqlm::weights))
}

/// Rounds one input after the other, and makes each error good in those that follow; for methods that
/// [compensate](Method::compensates).
pub(crate) fn compensated(
    weights: Weights<'_>,
    options: &Options,
    hessian: &Hessian,
    factor: &Factor,
    n_threads: usize,
) -> Result<Written> {
    Ok(match options.method {
        Method::Fp8 => {
            let layout = fp8::Layout { kind: options.fp8, group: options.grid.group };
            let squares = hessian.squares();
            let solved = fp8::compensated(weights, layout, &squares, factor, n_threads)?;
            Written::new(solved, fp8_tensors, Fp8::weights)
        }
        Method::Mxfp4 | Method::Nvfp4 => {
            let kind = if options.method == Method::Mxfp4 { fp4::Kind::Mx } else { fp4::Kind::Nv };
            let solved = fp4::compensated(weights, kind, factor, n_threads)?;
            Written::new(solved, fp4_tensors, Fp4::weights)
        }
        Method::LlmInt8 => {
            let solved = int8::compensated(weights, options.grid.group, factor, n_threads)?;
            Written::new(solved, llm_int8_tensors, Int8::weights)
        }
        Method::Quip => {
            let calibrated = Some((hessian, factor));
            let solved = quip::solve(weights, options.grid.bits, calibrated, n_threads)?;
            Written::new(solved, quip_tensors, Quip::weights)
        }
        Method::BitNet => {
            let solved = ternary::compensated(weights, hessian, factor, n_threads)?;
            Written::new(solved, bitnet_tensors, Ternary::weights)
        }
        method => {
            assert!(matches!(method, Method::Int8 | Method::SmoothQuant), "a method of int8 rows");
            let solved = int8::compensated(weights, options.grid.group, factor, n_threads)?;
            Written::new(solved, int8_tensors, Int8::weights)
        }
    })
}

/// Integer codes in the layout of the method.
pub(crate) fn in_words(solved: Solved, options: &Options) -> Written {
    let tensors: fn(&Solved) -> Vec<WrittenTensor> = match options.method {
        _ if options.target.is_some() => packed_tensors,
        Method::Awq => awq_tensors,
        // Readers trust zero points of version 1 only where all are the middle.
        _ if !options.grid.symmetric => gptq_v2_tensors,
        _ => gptq_tensors,
    };
    Written::new(solved, tensors, Solved::weights)
}
