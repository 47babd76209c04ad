//! BitNet b1.58: weights of -1, 0 and 1 with one scale per matrix.
//!
//! ```text
//! weight        u8 [n / 4, k]   bits 2i, 2i + 1 of row r: the code of output `i n / 4 + r`
//! weight_scale  [1]             `linear_class`: "bitlinear" divides by it, "autobitlinear" multiplies
//! w[n][j] = scale * (code - 1)
//! ```
//!
//! Reciprocals are rounded to f32 once, and are seldom numbers that f16 has: such matrices are
//! packed as int8 rows, others as 2-bit ternary blocks of 256 inputs or as 4-bit blocks of fewer.
//!
//! # Paper
//!
//! Ma et al., *The Era of 1-bit LLMs: All Large Language Models are in 1.58 Bits*, 2024.

use pelton_tensor::{DType, TensorView};
use serde_json::Value;

use super::ignored::Ignored;
use super::matrix::{Matrix, Meaning, Opened, Shared};
use super::packing::Stored;
use super::setting::Setting;
use super::tensors::{FLOATS, Tensors, scales, wrong};
use super::{CheckpointMethod, Found, Kind, ROOT, Scheme, unpackable};
use crate::Result;

/// The method.
pub(super) struct BitNet;

/// Settings of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Config {
    divides: bool,
}

impl CheckpointMethod for BitNet {
    fn names(&self) -> &'static [&'static str] {
        &["bitnet"]
    }

    fn supported(&self) -> &'static str {
        "packed ternary weights with one scale per matrix"
    }

    fn scheme(&self, config: &Value) -> Result<Scheme> {
        let root = Setting::new(ROOT, config);
        let class = root.get("linear_class").one_of(&["bitlinear", "autobitlinear"])?;
        let mode = root.get("quantization_mode");
        if mode.one_of(&["offline", "online"])? == "online" {
            return Err(mode.error("\"offline\", because weights are not packed while loading"));
        }
        let ignored = Ignored::read(&[root.get("modules_to_not_convert")])?;
        Ok(Scheme { ignored, kind: Box::new(Config { divides: class == "bitlinear" }) })
    }
}

impl Kind for Config {
    fn words(&self) -> String {
        let how = if self.divides { "divided by" } else { "times" };
        format!("BitNet, ternary {how} a scale per matrix")
    }

    fn activations(&self) -> Option<String> {
        Some("int8, dynamic per token".to_owned())
    }

    fn find<'a>(&self, tensors: &Tensors<'a>, shape: [usize; 2]) -> Result<Option<Found<'a>>> {
        if tensors.get("weight").is_none_or(|view| view.dtype != DType::U8) {
            return Ok(None);
        }
        let [n, k] = shape;
        if !n.is_multiple_of(4) {
            return Err(unpackable(tensors, shape, "a matrix with a multiple of 4 rows"));
        }
        let weight = tensors.need("weight", &[DType::U8], &[n / 4, k])?;
        let scale = tensors.need("weight_scale", FLOATS, &[1])?;
        let stored = Parts { shape, weight, scale, divides: self.divides };
        let views = vec![weight, scale];
        Ok(Some(Found { order: None, views, stored: Box::new(stored) }))
    }
}

/// The tensors of one matrix.
struct Parts<'a> {
    shape: [usize; 2],
    weight: TensorView<'a>,
    scale: TensorView<'a>,
    divides: bool,
}

impl<'a> Stored<'a> for Parts<'a> {
    fn open(&self) -> Result<Opened<'a>> {
        let [n, k] = self.shape;
        let scale = scales(&self.scale)?[0];
        let scale = if self.divides { scale.recip() } else { scale };
        if !scale.is_finite() {
            return Err(wrong(&self.scale, "a scale that can be divided by", scale.to_string()));
        }
        let (data, quarter) = (self.weight.data, n / 4);
        Ok(Matrix {
            shape: self.shape,
            codes: Box::new(move |row, out| {
                let bytes = &data[row % quarter * k..][..k];
                let shift = row / quarter * 2;
                out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = byte >> shift & 3);
            }),
            meaning: Meaning::Integer { most: 3 },
            scales: Shared::all(scale, self.shape),
            zeros: Shared::all(1.0, self.shape),
            divisor: 1.0,
        }
        .into())
    }
}
