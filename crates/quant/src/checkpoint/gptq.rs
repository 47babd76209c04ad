//! GPTQ: 2, 3, 4 or 8 bits with a scale and zero point per group of inputs.
//!
//! ```text
//! qweight  i32 [k bits / 32, n]    column `n` is a stream of bits, low ones first: code of input j
//!                                  at bit `j bits`; codes of 3 bits cross from word to word
//! qzeros   i32 [groups, n bits / 32]    the same along the outputs
//! scales   f16 [groups, n]
//! g_idx    i32 [k]                 group of each input; without it, `j / group_size`
//! w[n][j] = scales[g][n] * (code - zero[g][n])
//! ```
//!
//! `checkpoint_format` says what a zero point is: files of version 1 (`gptq`) store it less one,
//! those of version 2 (`gptq_v2`) as it is. A stored 15 of version 1 is the zero point 16, as the
//! kernels that most people ran with these files have it; some reference code wraps it to 0.
//!
//! Modules that `dynamic` takes out (`-:` and a regular expression) are plain; other schemes for
//! some modules are refused. A family that stores its matrices transposed (GPT-2) has them in the
//! order above once they are quantized, and so has bitsandbytes. The order of the Marlin kernel is
//! undone by `marlin`.
//!
//! With `desc_act` inputs were quantized in the order of their importance and `g_idx` is scattered.
//! Its inputs are then packed sorted by group, which is exact: see
//! [`QuantizedTensor::order`](super::QuantizedTensor::order).
//!
//! # Paper
//!
//! Frantar et al., *GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
//! Transformers*, 2022.

use pelton_tensor::{DType, TensorView};
use serde_json::Value;

use super::ignored::Ignored;
use super::marlin::Marlin;
use super::matrix::{Groups, Matrix, Meaning, Opened, Shared};
use super::packing::Stored;
use super::patterns::Pattern;
use super::setting::{GroupSize, Setting};
use super::tensors::{FLOATS, Tensors, group_indices, scales, stream_bits, stream_row, word};
use super::{CheckpointMethod, Found, Kind, ROOT, Scheme, packed_len, unpackable};
use crate::Result;

/// The method.
pub(super) struct Gptq;

/// Settings of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Config {
    bits: usize,
    group_size: GroupSize,
    /// Whether zero points are stored less one.
    is_v1: bool,
    desc_act: bool,
    sym: bool,
}

impl CheckpointMethod for Gptq {
    fn names(&self) -> &'static [&'static str] {
        &["gptq"]
    }

    fn supported(&self) -> &'static str {
        "2, 3, 4, 8 bits, any group size, act-order, zero points of version 1 and 2, Marlin's order"
    }

    fn scheme(&self, config: &Value) -> Result<Scheme> {
        let root = Setting::new(ROOT, config);
        let bits = root.get("bits");
        let bits = match bits.whole()? {
            Some(n @ (2 | 3 | 4 | 8)) => n as usize,
            _ => return Err(bits.error("2, 3, 4 or 8")),
        };
        let format = root.either("checkpoint_format", "format");
        let is_flagged = ["is_marlin_format", "use_marlin_format"].map(|name| root.get(name));
        let is_flagged =
            is_flagged.iter().map(|flag| flag.flag(false)).collect::<Result<Vec<_>>>()?;
        if is_flagged.contains(&true) || format.text()? == Some("marlin") {
            return Marlin.scheme(config);
        }
        let mut ignored = Ignored::read(&[root.get("modules_to_not_convert")])?;
        let dynamic = root.get("dynamic");
        for (pattern, field) in dynamic.members()? {
            match pattern.strip_prefix("-:") {
                Some(expression) => ignored.add(Pattern::expression(&field, expression)?),
                None => {
                    let expected = "only entries with `-:`, because all modules need one scheme";
                    return Err(dynamic.error(expected));
                }
            }
        }
        root.get("pack_dtype").one_of(&["int32"])?;
        let kind = Config {
            bits,
            group_size: root.get("group_size").group_size()?,
            is_v1: format.one_of(&["gptq", "gptq_v2"])? == "gptq",
            desc_act: root.get("desc_act").flag(false)?,
            sym: root.get("sym").flag(true)?,
        };
        Ok(Scheme { ignored, kind: Box::new(kind) })
    }
}

impl Kind for Config {
    fn words(&self) -> String {
        format!(
            "GPTQ, {} bits, {}, {}, zero points of version {}{}",
            self.bits,
            self.group_size,
            if self.sym { "symmetric" } else { "asymmetric" },
            if self.is_v1 { 1 } else { 2 },
            if self.desc_act { ", act-order" } else { "" },
        )
    }

    fn is_turned(&self) -> bool {
        true
    }

    fn find<'a>(&self, tensors: &Tensors<'a>, shape: [usize; 2]) -> Result<Option<Found<'a>>> {
        if tensors.get("qweight").is_none() {
            return Ok(None);
        }
        let [n, k] = shape;
        let whole = "a matrix whose rows and columns are whole words of 32 bits";
        let words = |len| packed_len(len, self.bits, 32);
        let (Some(k_words), Some(n_words)) = (words(k), words(n)) else {
            return Err(unpackable(tensors, shape, whole));
        };
        let n_groups = k.div_ceil(self.group_size.of(k));
        let qweight = tensors.need("qweight", &[DType::I32], &[k_words, n])?;
        let qzeros = tensors.need("qzeros", &[DType::I32], &[n_groups, n_words])?;
        let scales = tensors.need("scales", FLOATS, &[n_groups, n])?;
        let g_idx = tensors.find("g_idx", &[DType::I32], &[k])?;
        if self.desc_act && g_idx.is_none() {
            return Err(tensors.missing("g_idx", &format!("[{k}]")));
        }
        let groups = match &g_idx {
            Some(view) => group_indices(view, n_groups)?,
            None => (0..k).map(|j| (j / self.group_size.of(k)) as u32).collect(),
        };
        Ok(Some(Found {
            order: sorted_by_group(&groups),
            views: [Some(qweight), Some(qzeros), Some(scales), g_idx]
                .into_iter()
                .flatten()
                .collect(),
            stored: Box::new(Parts {
                config: *self,
                shape,
                qweight,
                qzeros,
                scales,
                groups,
                n_groups,
            }),
        }))
    }
}

/// The inputs in the order of their groups, where that is not their own.
pub(super) fn sorted_by_group(groups: &[u32]) -> Option<Vec<u32>> {
    if groups.is_sorted() {
        return None;
    }
    let mut order: Vec<u32> = (0..groups.len() as u32).collect();
    order.sort_by_key(|j| groups[*j as usize]);
    Some(order)
}

/// The tensors of one matrix.
struct Parts<'a> {
    config: Config,
    shape: [usize; 2],
    qweight: TensorView<'a>,
    qzeros: TensorView<'a>,
    scales: TensorView<'a>,
    groups: Vec<u32>,
    n_groups: usize,
}

impl<'a> Stored<'a> for Parts<'a> {
    fn open(&self) -> Result<Opened<'a>> {
        let Config { bits, is_v1, .. } = self.config;
        let [n, _] = self.shape;
        // Both are stored with a row per group; a matrix needs a row per output.
        let by_group = scales(&self.scales)?;
        let per_group = (0..n).flat_map(|row| (0..self.n_groups).map(move |g| (row, g)));
        let values = per_group.clone().map(|(row, g)| by_group[g * n + row]).collect();
        let n_words = n * bits / 32;
        let zero = |(row, g)| {
            let word = |i| word(self.qzeros.data, g * n_words + i);
            f32::from(stream_bits(word, row * bits, bits)) + if is_v1 { 1.0 } else { 0.0 }
        };
        let zeros = per_group.map(zero).collect();
        let groups = Groups::Mapped { of: self.groups.clone(), n: self.n_groups };
        let qweight = self.qweight.data;
        Ok(Matrix {
            shape: self.shape,
            codes: Box::new(move |row, out| {
                stream_row(|i| word(qweight, i * n + row), bits, out);
            }),
            meaning: Meaning::Integer { most: ((1_u16 << bits) - 1) as u8 },
            scales: Shared { values, groups: groups.clone() },
            zeros: Shared { values: zeros, groups },
            divisor: 1.0,
        }
        .into())
    }
}
