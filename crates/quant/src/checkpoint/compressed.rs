//! compressed-tensors: integers of up to 8 bits in words, int8 and fp8 as they are, with scales.
//!
//! ```text
//! weight_packed      i32 [n, k bits / 32]  a stream of bits in each row, low ones first; the last
//!                                          word may be part empty. Of bits that do not divide 32
//!                                          older files have `32 / bits` whole codes a word instead:
//!                                          [n, k / (32 / bits)], which is longer
//! weight_shape       i64 or i32 [2]        n, k
//! weight_scale       [n, groups]           or [n, 1], [1] where a row or a matrix shares one
//! weight_zero_point  i32 [.., groups]      packed along the outputs in the same way; or i8 [n, groups]
//! weight_g_idx       i32 [k]               group of each input; all -1 or absent: `j / group_size`
//! w[n][j] = scale * ((code - 2^(bits - 1)) - zero),  zero points with the same offset when packed
//!
//! weight             i8 or fp8 [n, k]      `int-quantized`, `float-quantized`, `naive-quantized`
//! ```
//!
//! Scales of activations (`input_scale` and the like) belong to kernels that round activations, which
//! these do not.

use pelton_tensor::{DType, TensorView};
use serde_json::Value;

use super::gptq::sorted_by_group;
use super::ignored::Ignored;
use super::matrix::{Groups, Matrix, Meaning, Shared};
use super::packing::Stored;
use super::plain_codes::{PlainCodes, Sharing};
use super::setting::{GroupSize, Setting};
use super::tensors::{
    FLOATS, Tensors, group_indices, scales, stream_bits, stream_row, word, wrong,
};
use super::{CheckpointMethod, Found, Kind, ROOT, Scheme};
use crate::Result;

/// Most outputs or inputs of a block.
const MOST_BLOCK: usize = 1 << 16;

/// The method.
pub(super) struct CompressedTensors;

/// What the one group of a configuration says of weights.
#[derive(Clone, Debug, PartialEq)]
struct Config {
    format: &'static str,
    bits: usize,
    is_float: bool,
    is_symmetric: bool,
    strategy: Strategy,
    activations: Option<String>,
}

/// Which weights share a scale.
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
        "pack-quantized of 2 to 8 bits, int-, float- and naive-quantized of 8 bits, one scheme for all"
    }

    fn scheme(&self, config: &Value) -> Result<Scheme> {
        let root = Setting::new(ROOT, config);
        let sparsity = root.get("sparsity_config").get("format");
        if !matches!(sparsity.text()?, None | Some("dense")) {
            return Err(sparsity.error("\"dense\": sparse weights are not read"));
        }
        let groups = root.get("config_groups");
        let members = groups.members()?;
        let mut kinds = Vec::new();
        for (_, group) in &members {
            let own = group.get("format");
            let format = if own.is_present() { own } else { root.get("format") };
            kinds.push(Config::read(group, &format)?);
        }
        let Some(kind) = kinds.first() else {
            return Err(groups.error("a group with a scheme"));
        };
        if kinds.iter().any(|other| other != kind) {
            return Err(groups.error("one scheme for all modules"));
        }
        let ignored = Ignored(root.get("ignore").texts()?);
        Ok(Scheme { ignored, kind: Box::new(kind.clone()) })
    }
}

/// Formats that are read.
const FORMATS: &[&str] = &["pack-quantized", "int-quantized", "float-quantized", "naive-quantized"];

impl Config {
    fn read(group: &Setting<'_>, format: &Setting<'_>) -> Result<Self> {
        if !format.is_present() {
            return Err(format.error(format!("one of {}", FORMATS.join(", "))));
        }
        let format = format.one_of(FORMATS)?;
        let weights = group.get("weights");
        let bits = weights.get("num_bits");
        let n_bits = match bits.whole()? {
            Some(n @ 2..=8) if n == 8 || format == "pack-quantized" => n as usize,
            _ => return Err(bits.error("8, or 2 to 8 where weights are packed")),
        };
        let is_float = weights.get("type").one_of(&["int", "float"])? == "float";
        if is_float && (n_bits, format == "pack-quantized") != (8, false) {
            return Err(bits.error("8 bits that are not packed, for floats"));
        }
        let strategy = weights.get("strategy");
        let strategy = match strategy.text()? {
            Some("tensor") => Strategy::Tensor,
            Some("channel") => Strategy::Channel,
            Some("group") => Strategy::Group(weights.get("group_size").group_size()?),
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
            Some(_) => return Err(strategy.error("one of tensor, channel, group, block")),
        };
        let inputs = group.get("input_activations");
        let activations = if inputs.is_present() {
            let kind = inputs.get("type").one_of(&["int", "float"])?;
            let bits = inputs.get("num_bits").whole()?.unwrap_or(8);
            let when = if inputs.get("dynamic").flag(false)? { "dynamic" } else { "static" };
            Some(format!("{kind}{bits}, {when}"))
        } else {
            None
        };
        Ok(Self {
            format,
            bits: n_bits,
            is_float,
            is_symmetric: weights.get("symmetric").flag(true)?,
            strategy,
            activations,
        })
    }

    /// Inputs that share a scale.
    fn group_len(&self, k: usize) -> usize {
        match self.strategy {
            Strategy::Group(size) => size.of(k),
            Strategy::Block([_, columns]) => columns,
            _ => k.max(1),
        }
    }

    fn packed<'a>(&self, tensors: &Tensors<'a>, shape: [usize; 2]) -> Result<Found<'a>> {
        let [n, k] = shape;
        let words = match tensors.get("weight_packed") {
            Some(view) if view.shape == [n, Words::padded(self.bits).len(k)] => {
                // The same words where both are: of 4 bits, say, or of a row in one word.
                let dense = Words::dense(self.bits);
                if view.shape == [n, dense.len(k)] { dense } else { Words::padded(self.bits) }
            }
            _ => Words::dense(self.bits),
        };
        let packed = tensors.need("weight_packed", &[DType::I32], &[n, words.len(k)])?;
        let own_shape = tensors.need("weight_shape", &[DType::I64, DType::I32], &[2])?;
        if stated_shape(&own_shape) != shape.map(|len| len as i64) {
            let got = format!("{:?}", stated_shape(&own_shape));
            return Err(wrong(&own_shape, format!("{shape:?}"), got));
        }
        let is_shared = self.strategy == Strategy::Tensor;
        let n_groups = k.div_ceil(self.group_len(k));
        let scale_shape = if is_shared { vec![1] } else { vec![n, n_groups] };
        let scale = tensors.need("weight_scale", FLOATS, &scale_shape)?;
        let zero = match tensors.get("weight_zero_point") {
            Some(view) if view.dtype == DType::I32 && !self.is_symmetric => {
                let shape = if is_shared { vec![1] } else { vec![words.len(n), n_groups] };
                tensors.find("weight_zero_point", &[DType::I32], &shape)?
            }
            Some(_) => tensors.find("weight_zero_point", &[DType::I8], &scale_shape)?,
            None if self.is_symmetric => None,
            None => {
                return Err(tensors.missing("weight_zero_point", "for weights that have some"));
            }
        };
        let g_idx = tensors.find("weight_g_idx", &[DType::I32], &[k])?;
        let g_idx = g_idx.filter(|view| view.data.iter().any(|byte| *byte != 0xff));
        let groups = match &g_idx {
            Some(view) => Some(group_indices(view, n_groups)?),
            None => None,
        };
        let views = [Some(packed), Some(own_shape), Some(scale), zero, g_idx];
        Ok(Found {
            order: groups.as_deref().and_then(sorted_by_group),
            views: views.into_iter().flatten().collect(),
            stored: Box::new(Packed {
                shape,
                words,
                packed,
                scale,
                zero,
                groups: match groups {
                    Some(of) => Groups::Mapped { of, n: n_groups },
                    None if is_shared => Groups::Blocks { rows: n.max(1), columns: k.max(1) },
                    None => Groups::Blocks { rows: 1, columns: self.group_len(k) },
                },
                n_groups: if is_shared { 1 } else { n_groups },
            }),
        })
    }
}

impl Kind for Config {
    fn words(&self) -> String {
        let kind = if self.is_float { "float" } else { "int" };
        let sharing = match self.strategy {
            Strategy::Tensor => "a scale per matrix".to_owned(),
            Strategy::Channel => "a scale per output".to_owned(),
            Strategy::Group(size) => size.to_string(),
            Strategy::Block([rows, columns]) => format!("blocks of {rows} x {columns}"),
        };
        let sides = if self.is_symmetric { "symmetric" } else { "asymmetric" };
        format!("compressed-tensors {}, {kind}{}, {sharing}, {sides}", self.format, self.bits)
    }

    fn activations(&self) -> Option<String> {
        self.activations.clone()
    }

    fn find<'a>(&self, tensors: &Tensors<'a>, shape: [usize; 2]) -> Result<Option<Found<'a>>> {
        if tensors.get("weight_packed").is_some() {
            if self.format != "pack-quantized" {
                let packed = tensors.get("weight_packed").expect("just found");
                return Err(wrong(&packed, format!("a `weight` of {}", self.format), "it packed"));
            }
            return self.packed(tensors, shape).map(Some);
        }
        let codes: &[DType] =
            if self.is_float { &[DType::F8E4M3, DType::F8E5M2] } else { &[DType::I8] };
        let Some(weight) = tensors.get("weight").filter(|view| codes.contains(&view.dtype)) else {
            return Ok(None);
        };
        let Some(scale) = tensors.get("weight_scale") else {
            return Err(tensors.missing("weight_scale", "of its scales"));
        };
        let zero = tensors.get("weight_zero_point").filter(|_| !self.is_float);
        if zero.is_none() && !self.is_symmetric && !self.is_float {
            return Err(tensors.missing("weight_zero_point", "for weights that have some"));
        }
        let sharing = match self.strategy {
            Strategy::Tensor | Strategy::Channel => Sharing::TensorOrRow,
            Strategy::Group(size) => Sharing::Blocks([1, size.of(shape[1])]),
            Strategy::Block(block) => Sharing::Blocks(block),
        };
        PlainCodes { shape, weight, scale, zero, sharing, divisor: 1.0 }.checked().map(Some)
    }
}

/// The two numbers of a `weight_shape`.
fn stated_shape(view: &TensorView<'_>) -> [i64; 2] {
    match view.data.as_chunks::<8>().0 {
        [n, k] => [i64::from_le_bytes(*n), i64::from_le_bytes(*k)],
        _ => [0, 1].map(|i| i64::from(word(view.data, i).cast_signed())),
    }
}

/// How codes lie in words of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Words {
    bits: usize,
    /// Whether a code may cross from one word to the next.
    is_dense: bool,
}

impl Words {
    fn dense(bits: usize) -> Self {
        Self { bits, is_dense: true }
    }

    fn padded(bits: usize) -> Self {
        Self { bits, is_dense: false }
    }

    /// Words of `n` codes.
    fn len(self, n: usize) -> usize {
        if self.is_dense {
            n.saturating_mul(self.bits).div_ceil(32)
        } else {
            n.div_ceil(32 / self.bits)
        }
    }

    /// Code `index` of these words.
    fn code(self, word: impl Fn(usize) -> u32, index: usize) -> u8 {
        let per_word = 32 / self.bits;
        let at = if self.is_dense {
            index * self.bits
        } else {
            index / per_word * 32 + index % per_word * self.bits
        };
        stream_bits(word, at, self.bits)
    }
}

/// The tensors of one packed matrix.
struct Packed<'a> {
    shape: [usize; 2],
    words: Words,
    packed: TensorView<'a>,
    scale: TensorView<'a>,
    zero: Option<TensorView<'a>>,
    groups: Groups,
    n_groups: usize,
}

impl<'a> Stored<'a> for Packed<'a> {
    fn open(&self) -> Result<Matrix<'a>> {
        let [n, k] = self.shape;
        let words = self.words;
        let middle = f32::from(1_u16 << (words.bits - 1));
        let grouped = |values| Shared { values, groups: self.groups.clone() };
        let zeros = match &self.zero {
            None => Shared::all(middle, self.shape),
            Some(view) if view.dtype == DType::I8 => {
                let zeros = view.data.iter().map(|zero| f32::from(zero.cast_signed()) + middle);
                grouped(zeros.collect())
            }
            Some(view) => {
                let n_rows = if self.scale.n_elements() == 1 { 1 } else { n };
                let cells = (0..n_rows).flat_map(|row| (0..self.n_groups).map(move |g| (row, g)));
                let zero = |(row, g)| words.code(|i| word(view.data, i * self.n_groups + g), row);
                grouped(cells.map(zero).map(f32::from).collect())
            }
        };
        let (data, row_words) = (self.packed.data, words.len(k));
        Ok(Matrix {
            shape: self.shape,
            codes: Box::new(move |row, out| {
                let word = |i| word(data, row * row_words + i);
                if words.is_dense {
                    stream_row(word, words.bits, out);
                } else {
                    out.iter_mut().enumerate().for_each(|(j, out)| *out = words.code(word, j));
                }
            }),
            meaning: Meaning::Integer { most: ((1_u16 << words.bits) - 1) as u8 },
            scales: grouped(scales(&self.scale)?),
            zeros,
        })
    }
}
