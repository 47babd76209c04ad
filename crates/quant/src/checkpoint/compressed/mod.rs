//! compressed-tensors: integers of up to 8 bits in words, int8 and fp8 as they are, 4-bit floats,
//! and matrices of which half the weights are zero.
//!
//! ```text
//! config_groups ── targets ──> Config ── format ──> packed   integers in words
//!                                                   fp4      NVFP4 and MXFP4
//!                                                   (plain)  int8 and fp8, a byte per weight
//! sparsity_config ───────────────────────────────> sparse   two of four weights, of floats or bytes
//! ```
//!
//! Each of these is a file beside this one; `int-quantized`, `float-quantized` and
//! `naive-quantized` are a `weight` of bytes in its own shape, which other methods have too
//! (`plain_codes`). Modules may have different schemes, each a group with the modules that it is
//! for (`targets`).
//!
//! Scales of activations (`input_scale` and the like) belong to kernels that round activations,
//! which these do not.

mod fp4;
mod packed;
mod sparse;
mod targets;

use pelton_tensor::{DType, TensorView};
use serde_json::Value;

use super::ignored::Ignored;
use super::plain_codes::{PlainCodes, Sharing};
use super::setting::{GroupSize, Setting};
use super::tensors::{Tensors, wrong};
use super::{CheckpointMethod, Found, Kind, ROOT, Scheme};
use crate::Result;
use fp4::{MX_GROUP, NV_GROUP};
use sparse::Sparse;
use targets::Targets;

/// Most outputs or inputs of a block.
const MOST_BLOCK: usize = 1 << 16;
/// The compressor of weights of which half are zero.
const SPARSE: &str = "sparse-24-bitmask";

/// The method.
pub(super) struct CompressedTensors;

/// Settings of a checkpoint.
#[derive(Debug)]
struct Schemes {
    kinds: Vec<(Targets, Config)>,
    is_sparse: bool,
}

/// Settings of the weights of one group of modules.
#[derive(Clone, Debug, PartialEq)]
struct Config {
    format: &'static str,
    bits: usize,
    is_float: bool,
    is_symmetric: bool,
    strategy: Strategy,
    activations: Option<String>,
}

/// The weights that share a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Strategy {
    Tensor,
    Channel,
    Group(GroupSize),
    Block([usize; 2]),
}

impl CheckpointMethod for CompressedTensors {
    fn names(&self) -> &'static [&'static str] {
        &["compressed-tensors"]
    }

    fn supported(&self) -> &'static str {
        "pack-quantized of 2 to 8 bits, int-, float- and naive-quantized of 8 bits, NVFP4 and MXFP4, 2:4 \
         sparse, several schemes"
    }

    fn scheme(&self, config: &Value) -> Result<Scheme> {
        let root = Setting::new(ROOT, config);
        let sparsity = root.get("sparsity_config").get("format");
        let is_sparse = sparsity.one_of(&["dense", SPARSE])? == SPARSE;
        let groups = root.get("config_groups");
        let mut kinds = Vec::new();
        for (_, group) in groups.members()? {
            let own = group.get("format");
            let format = if own.is_present() { own } else { root.get("format") };
            kinds.push((Targets::read(&group.get("targets"))?, Config::read(&group, &format)?));
        }
        if kinds.is_empty() && !is_sparse {
            return Err(groups.error("a group with a scheme"));
        }
        let ignored = Ignored::read(&[root.get("ignore")])?;
        Ok(Scheme { ignored, kind: Box::new(Schemes { kinds, is_sparse }) })
    }
}

/// Formats that are read.
const FORMATS: &[&str] =
    &[PACKED, "int-quantized", "float-quantized", "naive-quantized", NVFP4, MXFP4];
const PACKED: &str = "pack-quantized";
const NVFP4: &str = "nvfp4-pack-quantized";
const MXFP4: &str = "mxfp4-pack-quantized";

impl Config {
    fn read(group: &Setting<'_>, format: &Setting<'_>) -> Result<Self> {
        if !format.is_present() {
            return Err(format.error(format!("one of {}", FORMATS.join(", "))));
        }
        let format = format.one_of(FORMATS)?;
        let weights = group.get("weights");
        let bits = weights.get("num_bits");
        let is_fp4 = [NVFP4, MXFP4].contains(&format);
        let n_bits = match bits.whole()? {
            Some(4) if is_fp4 => 4,
            Some(n @ 2..=8) if !is_fp4 && (n == 8 || format == PACKED) => n as usize,
            _ => return Err(bits.error("8; 2 to 8 for pack-quantized weights; 4 for 4-bit floats")),
        };
        let is_float = weights.get("type").one_of(&["int", "float"])? == "float";
        if is_fp4 != (is_float && n_bits == 4) || (is_float && format == PACKED) {
            return Err(bits.error(
                "for floats: 8 bits that are not packed, or 4 in a format of 4-bit floats",
            ));
        }
        let symmetric = weights.get("symmetric");
        let is_symmetric = symmetric.flag(true)?;
        if is_fp4 && !is_symmetric {
            return Err(symmetric.error("true for 4-bit floats"));
        }
        let strategy = weights.get("strategy");
        let strategy = match strategy.text()? {
            Some("tensor") => Strategy::Tensor,
            Some("channel") => Strategy::Channel,
            Some("group") => Strategy::Group(weights.get("group_size").group_size()?),
            Some("tensor_group") if is_fp4 => {
                Strategy::Group(weights.get("group_size").group_size()?)
            }
            None if weights.get("group_size").is_present() => {
                Strategy::Group(weights.get("group_size").group_size()?)
            }
            None => Strategy::Tensor,
            Some("block") => {
                let block = weights.get("block_structure");
                match block.pair(MOST_BLOCK)? {
                    Some(block) => Strategy::Block(block),
                    None => return Err(block.error("two lengths")),
                }
            }
            Some(_) => {
                let known = "one of tensor, channel, group, block; tensor_group for 4-bit floats";
                return Err(strategy.error(known));
            }
        };
        let group_size = weights.get("group_size");
        let needed = if format == NVFP4 { NV_GROUP } else { MX_GROUP };
        if is_fp4 && strategy != Strategy::Group(GroupSize::Inputs(needed)) {
            return Err(
                group_size.error(format!("{needed} with a strategy of groups, for {format}"))
            );
        }
        let inputs = group.get("input_activations");
        let activations = if inputs.is_present() {
            let kind = inputs.get("type").one_of(&["int", "float"])?;
            let bits = inputs.get("num_bits").whole()?.unwrap_or(8);
            let when = if inputs.get("dynamic").flag(false)? { "dynamic" } else { "static" };
            Some(format!("{kind}{bits}, {when}"))
        } else {
            None
        };
        Ok(Self { format, bits: n_bits, is_float, is_symmetric, strategy, activations })
    }

    /// Inputs that share a scale.
    fn group_len(&self, k: usize) -> usize {
        match self.strategy {
            Strategy::Group(size) => size.of(k),
            Strategy::Block([_, columns]) => columns,
            _ => k.max(1),
        }
    }
}

impl Config {
    fn words(&self) -> String {
        let kind = if self.is_float { "float" } else { "int" };
        let sharing = match self.strategy {
            Strategy::Tensor => "a scale per matrix".to_owned(),
            Strategy::Channel => "a scale per output".to_owned(),
            Strategy::Group(size) => size.to_string(),
            Strategy::Block([rows, columns]) => format!("blocks of {rows} x {columns}"),
        };
        let sides = if self.is_symmetric { "symmetric" } else { "asymmetric" };
        format!("{}, {kind}{}, {sharing}, {sides}", self.format, self.bits)
    }

    fn find<'a>(&self, tensors: &Tensors<'a>, shape: [usize; 2]) -> Result<Option<Found<'a>>> {
        if let Some(packed) = tensors.get("weight_packed") {
            return match self.format {
                PACKED => self.packed(tensors, shape).map(Some),
                NVFP4 => self.fp4(tensors, shape, NV_GROUP).map(Some),
                MXFP4 => self.fp4(tensors, shape, MX_GROUP).map(Some),
                _ => {
                    let expected =
                        format!("a plain `weight`, because the format is {}", self.format);
                    Err(wrong(&packed, expected, "packed weights"))
                }
            };
        }
        let Some(weight) = tensors.get("weight").filter(|view| self.has_codes(view.dtype)) else {
            return Ok(None);
        };
        self.plain(tensors, shape, weight)?.checked().map(Some)
    }

    /// Whether a type is that of codes.
    fn has_codes(&self, dtype: DType) -> bool {
        match self.is_float {
            true => [DType::F8E4M3, DType::F8E5M2].contains(&dtype),
            false => dtype == DType::I8,
        }
    }

    /// These codes, a byte each, with the scales beside them.
    fn plain<'a>(
        &self,
        tensors: &Tensors<'a>,
        shape: [usize; 2],
        weight: TensorView<'a>,
    ) -> Result<PlainCodes<'a>> {
        let Some(scale) = tensors.get("weight_scale") else {
            return Err(tensors.missing("weight_scale", "of its scales"));
        };
        let zero = tensors.get("weight_zero_point").filter(|_| !self.is_float);
        if zero.is_none() && !self.is_symmetric && !self.is_float {
            return Err(
                tensors.missing("weight_zero_point", "of the scales, for asymmetric weights")
            );
        }
        let sharing = match self.strategy {
            Strategy::Tensor | Strategy::Channel => Sharing::TensorOrRow,
            Strategy::Group(size) => Sharing::Blocks([1, size.of(shape[1])]),
            Strategy::Block(block) => Sharing::Blocks(block),
        };
        Ok(PlainCodes { shape, weight, scale, zero, sharing, divisor: 1.0 })
    }
}

impl Kind for Schemes {
    fn words(&self) -> String {
        let mut words: Vec<String> = self.kinds.iter().map(|(_, kind)| kind.words()).collect();
        words.dedup();
        words.extend(self.is_sparse.then(|| "2:4 sparse".to_owned()));
        format!("compressed-tensors {}", words.join("; "))
    }

    fn activations(&self) -> Option<String> {
        self.kinds.iter().find_map(|(_, kind)| kind.activations.clone())
    }

    fn find<'a>(&self, tensors: &Tensors<'a>, shape: [usize; 2]) -> Result<Option<Found<'a>>> {
        let close = |(targets, kind): &'_ (Targets, Config)| {
            targets.closeness(&tensors.module).map(|closeness| (closeness, kind.clone()))
        };
        // Among equally close groups the first one counts.
        let own = self.kinds.iter().filter_map(close).min_by_key(|(closeness, _)| *closeness);
        let own = own.map(|(_, kind)| kind);
        let sparse = if self.is_sparse { Sparse::find(tensors, shape)? } else { None };
        match (own, sparse) {
            (Some(kind), Some(sparse)) if kind.has_codes(sparse.dtype()) => {
                let weight = sparse.kept();
                sparse.codes(kind.plain(tensors, shape, weight)?).map(Some)
            }
            (_, Some(sparse)) => sparse.floats().map(Some),
            (Some(kind), None) => kind.find(tensors, shape),
            (None, None) => Ok(None),
        }
    }
}
