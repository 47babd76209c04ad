//! From weights to a matrix in the layout of a method: the one place that pairs the two.

use pelton_quant::checkpoint::{
    Written, WrittenTensor, awq_tensors, fp4_tensors, fp8_tensors, gptq_tensors, hqq_tensors,
    int8_tensors, llm_int8_tensors, nf4_tensors, packed_tensors,
};
use pelton_quant::solve::fp4::{self, Fp4};
use pelton_quant::solve::fp8::{self, Fp8};
use pelton_quant::solve::hqq::{self, Hqq};
use pelton_quant::solve::int8::{self, Int8};
use pelton_quant::solve::nf4::{self, Nf4};
use pelton_quant::solve::{Grid, Result, Solved, Weights, rtn};

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
            Written::new(int8::solve(weights, n_threads)?, int8_tensors, Int8::weights)
        }
        Method::LlmInt8 => {
            Written::new(int8::solve(weights, n_threads)?, llm_int8_tensors, Int8::weights)
        }
        Method::Fp8 => {
            let block = grid.group.map_or([1, weights.shape[1]], |block| [block, block]);
            Written::new(fp8::solve(weights, block, n_threads)?, fp8_tensors, Fp8::weights)
        }
        Method::Nf4 => {
            let block = grid.group.unwrap_or(weights.shape[1]);
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
    })
}

/// Integer codes in the layout of the method.
pub(crate) fn in_words(solved: Solved, options: &Options) -> Written {
    let tensors: fn(&Solved) -> Vec<WrittenTensor> = match options.method {
        _ if options.target.is_some() => packed_tensors,
        Method::Awq => awq_tensors,
        _ => gptq_tensors,
    };
    Written::new(solved, tensors, Solved::weights)
}
