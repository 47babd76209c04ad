//! AWQ, as its GEMM kernels store it: 4 bits with a scale and zero point per group of inputs.
//!
//! ```text
//! qweight  i32 [k, n / 8]         a word holds 8 outputs; nibble 0, 1, ... 7 is output
//! qzeros   i32 [groups, n / 8]        0, 2, 4, 6, 1, 3, 5, 7 of these
//! scales   f16 [groups, n]
//! w[n][j] = scales[j / group_size][n] * (code - zero)
//! ```
//!
//! The method scales each input by its activations to make the weights easier to round. That factor
//! is folded into the norms before the weights and needs nothing here.
//!
//! # Paper
//!
//! Lin et al., *AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration*,
//! 2023.

use pelton_tensor::{DType, TensorView};
use serde_json::Value;

use super::ignored::Ignored;
use super::matrix::{Groups, Matrix, Meaning, Opened, Shared};
use super::packing::Stored;
use super::setting::{GroupSize, Setting};
use super::tensors::{FLOATS, Tensors, scales, word};
use super::{CheckpointMethod, Found, Kind, ROOT, Scheme, packed_len, unpackable};
use crate::Result;

/// Nibble of each of the 8 outputs in a word.
pub(super) const NIBBLE: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The method.
pub(super) struct Awq;

/// Settings of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Config {
    group_size: GroupSize,
}

impl CheckpointMethod for Awq {
    fn names(&self) -> &'static [&'static str] {
        &["awq"]
    }

    fn supported(&self) -> &'static str {
        "4 bits in the GEMM order, any group size"
    }

    fn scheme(&self, config: &Value) -> Result<Scheme> {
        let root = Setting::new(ROOT, config);
        // The second names are those of the library that came before.
        let bits = root.either("bits", "w_bit");
        if bits.whole()? != Some(4) {
            return Err(bits.error("4"));
        }
        root.either("version", "format").one_of(&["gemm"])?;
        let backend = root.get("backend");
        if backend.text()? == Some("llm-awq") {
            return Err(backend.error("`autoawq`: weights in the order of AutoAWQ"));
        }
        let zero_point = root.get("zero_point");
        if !zero_point.flag(true)? {
            return Err(zero_point.error("true"));
        }
        let kind = Config { group_size: root.either("group_size", "q_group_size").group_size()? };
        let ignored = Ignored::read(&[root.get("modules_to_not_convert")])?;
        Ok(Scheme { ignored, kind: Box::new(kind) })
    }
}

impl Kind for Config {
    fn words(&self) -> String {
        format!("AWQ, 4 bits, {}, GEMM order", self.group_size)
    }

    fn find<'a>(&self, tensors: &Tensors<'a>, shape: [usize; 2]) -> Result<Option<Found<'a>>> {
        if tensors.get("qweight").is_none() {
            return Ok(None);
        }
        let [n, k] = shape;
        let Some(n_words) = packed_len(n, 4, 32) else {
            return Err(unpackable(tensors, shape, "a matrix with a multiple of 8 rows"));
        };
        let n_groups = k.div_ceil(self.group_size.of(k));
        let qweight = tensors.need("qweight", &[DType::I32], &[k, n_words])?;
        let qzeros = tensors.need("qzeros", &[DType::I32], &[n_groups, n_words])?;
        let scales = tensors.need("scales", FLOATS, &[n_groups, n])?;
        Ok(Some(Found {
            order: None,
            views: vec![qweight, qzeros, scales],
            stored: Box::new(Parts { config: *self, shape, qweight, qzeros, scales }),
        }))
    }
}

/// The tensors of one matrix.
struct Parts<'a> {
    config: Config,
    shape: [usize; 2],
    qweight: TensorView<'a>,
    qzeros: TensorView<'a>,
    scales: TensorView<'a>,
}

/// The code of output `output` in row `row` of packed words.
fn code(data: &[u8], n: usize, row: usize, output: usize) -> u8 {
    (word(data, row * (n / 8) + output / 8) >> (NIBBLE[output % 8] * 4) & 15) as u8
}

impl<'a> Stored<'a> for Parts<'a> {
    fn open(&self) -> Result<Opened<'a>> {
        let [n, k] = self.shape;
        let columns = self.config.group_size.of(k);
        let n_groups = k.div_ceil(columns);
        // Both are stored with a row per group; a matrix needs a row per output.
        let by_group = scales(&self.scales)?;
        let per_group = (0..n).flat_map(|row| (0..n_groups).map(move |g| (row, g)));
        let values = per_group.clone().map(|(row, g)| by_group[g * n + row]).collect();
        let zeros =
            per_group.map(|(row, g)| f32::from(code(self.qzeros.data, n, g, row))).collect();
        let groups = Groups::Blocks { rows: 1, columns };
        let qweight = self.qweight.data;
        Ok(Matrix {
            shape: self.shape,
            codes: Box::new(move |row, out| {
                out.iter_mut().enumerate().for_each(|(j, o)| *o = code(qweight, n, j, row));
            }),
            meaning: Meaning::Integer { most: 15 },
            scales: Shared { values, groups: groups.clone() },
            zeros: Shared { values: zeros, groups },
            divisor: 1.0,
        }
        .into())
    }
}
