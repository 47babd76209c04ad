//! fp8: 8-bit floats with a scale per matrix, per output, or per block of 128 by 128.
//!
//! ```text
//! weight            fp8 [n, k]
//! weight_scale      one, or [n] or [n, 1]           per matrix or per output
//! weight_scale_inv  [n / 128, k / 128], rounded up  where `weight_block_size` is set (DeepSeek,
//!                                                   Qwen); a factor, in spite of its name
//! ```
//!
//! The layouts of fp8 have one scale per output, so that a matrix with blocks along its inputs is
//! packed as one matrix per column of blocks, whose products are added. Where that cannot be, in
//! tables of embeddings, it is dequantized: to bf16 where all scales are powers of two, else to
//! f32.

use pelton_tensor::DType;
use serde_json::Value;

use super::ignored::Ignored;
use super::plain_codes::{PlainCodes, Sharing};
use super::setting::Setting;
use super::tensors::{Tensors, wrong};
use super::{CheckpointMethod, Found, Kind, ROOT, Scheme};
use crate::Result;

/// Most outputs or inputs of a block.
const MOST_BLOCK: usize = 1 << 16;

/// The method.
pub(super) struct Fp8;

/// Settings of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
struct Config {
    block: Option<[usize; 2]>,
    activations: &'static str,
}

impl CheckpointMethod for Fp8 {
    fn names(&self) -> &'static [&'static str] {
        &["fp8", "fbgemm_fp8"]
    }

    fn supported(&self) -> &'static str {
        "E4M3 and E5M2 with scales per matrix, per output or per block"
    }

    fn scheme(&self, config: &Value) -> Result<Scheme> {
        let root = Setting::new(ROOT, config);
        root.get("fmt").one_of(&["e4m3", "e5m2", "float8_e4m3fn", "float8_e5m2"])?;
        let kind = Config {
            block: root.get("weight_block_size").pair(MOST_BLOCK)?,
            activations: root.get("activation_scheme").one_of(&["dynamic", "static"])?,
        };
        let lists = ["modules_to_not_convert", "ignored_layers"].map(|name| root.get(name));
        Ok(Scheme { ignored: Ignored::read(&lists)?, kind: Box::new(kind) })
    }
}

impl Kind for Config {
    fn words(&self) -> String {
        match self.block {
            Some([rows, columns]) => format!("FP8, blocks of {rows} x {columns}"),
            None => "FP8, a scale per matrix or output".to_owned(),
        }
    }

    fn activations(&self) -> Option<String> {
        Some(format!("fp8, {}", self.activations))
    }

    fn find<'a>(&self, tensors: &Tensors<'a>, shape: [usize; 2]) -> Result<Option<Found<'a>>> {
        let is_fp8 = |dtype| [DType::F8E4M3, DType::F8E5M2].contains(&dtype);
        let Some(weight) = tensors.get("weight").filter(|view| is_fp8(view.dtype)) else {
            return Ok(None);
        };
        let name = if self.block.is_some() { "weight_scale_inv" } else { "weight_scale" };
        let other = if self.block.is_some() { "weight_scale" } else { "weight_scale_inv" };
        let scale = match (tensors.get(name), tensors.get(other)) {
            (Some(view), None) | (None, Some(view)) => view,
            (Some(_), Some(second)) => {
                return Err(wrong(
                    &second,
                    format!("only `{name}` as the tensor of scales"),
                    "a second tensor of scales",
                ));
            }
            (None, None) => return Err(tensors.missing(name, "of its scales")),
        };
        let sharing = self.block.map_or(Sharing::TensorOrRow, Sharing::Blocks);
        PlainCodes { shape, weight, scale, zero: None, sharing, divisor: 1.0 }.checked().map(Some)
    }
}
