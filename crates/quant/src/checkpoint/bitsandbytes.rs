//! bitsandbytes: 4-bit floats from a table with a scale per 64 weights or more, or int8 rows.
//!
//! ```text
//! weight                              [n k / 2, 1]   two codes a byte, the first one high
//! weight.quant_map                    f32 [16]       what a code stands for
//! weight.absmax                       f32 [blocks]   the scale of each `blocksize` weights, read row
//!                                                    by row; or, quantized a second time,
//!                                     u8 [blocks]        absmax = nested_quant_map[code]
//! weight.nested_quant_map             f32 [256]                   * nested_absmax[block / 256]
//! weight.nested_absmax                f32 [..]                    + nested_offset
//! weight.quant_state.bitsandbytes__nf4   u8, JSON: blocksize, shape, nested_offset, ...; or `fp4`
//!
//! weight   i8 [n, k]      LLM.int8
//! SCB      f32 [n]        the largest magnitude of each output: w = weight * (SCB / 127)
//! ```
//!
//! The library rounds the product once more, to the type it computes in; here it stays f32. With
//! int8 it multiplies by 1/127 where this divides by 127: the two differ in the last bit of the
//! scale. LLM.int8 computes columns of large activations in 16 bits; here all of them are int8 in
//! groups of 32, which is what that is for.
//!
//! # Papers
//!
//! Dettmers et al., *QLoRA*, 2023; *LLM.int8()*, 2022.

use pelton_tensor::{DType, TensorView};
use serde_json::Value;

use super::ignored::Ignored;
use super::matrix::{Groups, Matrix, Meaning, Opened, Shared};
use super::packing::Stored;
use super::plain_codes::{PlainCodes, Sharing};
use super::setting::Setting;
use super::tensors::{Tensors, scales, wrong};
use super::{CheckpointMethod, Found, Kind, ROOT, Scheme, unpackable};
use crate::Result;

/// Most bytes of the JSON that describes a matrix.
const MOST_STATE_BYTES: usize = 1 << 16;
/// Most weights that share a scale.
const MOST_BLOCK: i64 = 1 << 16;

/// The method.
pub(super) struct BitsAndBytes;

/// Settings of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Config {
    FourBits,
    Int8,
}

impl CheckpointMethod for BitsAndBytes {
    fn names(&self) -> &'static [&'static str] {
        &["bitsandbytes"]
    }

    fn supported(&self) -> &'static str {
        "NF4 and FP4 with and without double quantization, int8 rows"
    }

    fn scheme(&self, config: &Value) -> Result<Scheme> {
        let root = Setting::new(ROOT, config);
        let flag = |name: &str| root.get(name).flag(false);
        let four = flag("load_in_4bit")? || flag("_load_in_4bit")?;
        let eight = flag("load_in_8bit")? || flag("_load_in_8bit")?;
        let kind = match (four, eight) {
            (true, false) => Config::FourBits,
            (false, true) => Config::Int8,
            _ => {
                let expected = "exactly one of `load_in_4bit` and `load_in_8bit` to be true";
                return Err(root.get("load_in_4bit").error(expected));
            }
        };
        let lists = ["llm_int8_skip_modules", "modules_to_not_convert"].map(|name| root.get(name));
        Ok(Scheme { ignored: Ignored::read(&lists)?, kind: Box::new(kind) })
    }
}

impl Kind for Config {
    fn words(&self) -> String {
        match self {
            Self::FourBits => "bitsandbytes, 4-bit floats".to_owned(),
            Self::Int8 => "bitsandbytes, int8".to_owned(),
        }
    }

    fn activations(&self) -> Option<String> {
        (*self == Self::Int8).then(|| "int8 per token, outliers in 16 bits".to_owned())
    }

    fn is_turned(&self) -> bool {
        true
    }

    fn find<'a>(&self, tensors: &Tensors<'a>, shape: [usize; 2]) -> Result<Option<Found<'a>>> {
        match self {
            Self::FourBits => four_bits(tensors, shape),
            Self::Int8 => int8(tensors, shape),
        }
    }
}

fn int8<'a>(tensors: &Tensors<'a>, shape: [usize; 2]) -> Result<Option<Found<'a>>> {
    let Some(weight) = tensors.get("weight").filter(|view| view.dtype == DType::I8) else {
        return Ok(None);
    };
    let order = tensors.get("weight_format");
    if let Some(order) = order.filter(|order| order.data.iter().any(|byte| *byte != 0)) {
        return Err(wrong(&order, "0 (rows in their own order)", "the order of a GPU kernel"));
    }
    let scale = tensors.need("SCB", &[DType::F32], &[shape[0]])?;
    let sharing = Sharing::TensorOrRow;
    let codes = PlainCodes { shape, weight, scale, zero: None, sharing, divisor: 127.0 };
    let mut found = codes.checked()?;
    found.views.extend(order);
    Ok(Some(found))
}

fn four_bits<'a>(tensors: &Tensors<'a>, shape: [usize; 2]) -> Result<Option<Found<'a>>> {
    let state = ["nf4", "fp4"]
        .into_iter()
        .find_map(|kind| tensors.get(&format!("weight.quant_state.bitsandbytes__{kind}")));
    let (Some(state), Some(weight)) = (state, tensors.get("weight")) else { return Ok(None) };
    let [n, k] = shape;
    let Some(n_bytes) = n.checked_mul(k).map(|n| n.div_ceil(2)) else {
        return Err(unpackable(tensors, shape, "a matrix that fits in memory"));
    };
    // Any type may carry the bytes: `bnb_4bit_quant_storage`.
    if weight.data.len() != n_bytes {
        let got = format!("{} bytes", weight.data.len());
        return Err(wrong(&weight, format!("{n_bytes} bytes of two codes"), got));
    }
    let about = State::read(&state, shape)?;
    let n_blocks = (n * k).div_ceil(about.block);
    let map = tensors.need("weight.quant_map", &[DType::F32], &[16])?;
    let absmax = tensors.need("weight.absmax", &[DType::F32, DType::U8], &[n_blocks])?;
    let nested = if absmax.dtype == DType::U8 {
        let Some(block) = about.nested_block else {
            return Err(wrong(&state, "a `nested_blocksize` for scales of bytes", "none"));
        };
        let n_nested = n_blocks.div_ceil(block);
        Some([
            tensors.need("weight.nested_quant_map", &[DType::F32], &[256])?,
            tensors.need("weight.nested_absmax", &[DType::F32], &[n_nested])?,
        ])
    } else {
        None
    };
    let mut views = vec![weight, state, map, absmax];
    views.extend(nested.iter().flatten());
    let stored = FourBits { shape, weight, map, absmax, nested, about };
    Ok(Some(Found { order: None, views, stored: Box::new(stored) }))
}

/// Contents of the JSON beside a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
struct State {
    block: usize,
    nested_block: Option<usize>,
    nested_offset: f32,
}

impl State {
    fn read(view: &TensorView<'_>, shape: [usize; 2]) -> Result<Self> {
        let error = |expected: &str, got: String| wrong(view, expected, got);
        if view.data.len() > MOST_STATE_BYTES {
            return Err(error("a short text", format!("{} bytes", view.data.len())));
        }
        let value: Value = serde_json::from_slice(view.data)
            .map_err(|parse| error("JSON that describes the matrix", parse.to_string()))?;
        let whole = |name: &str| value.get(name).filter(|v| !v.is_null()).map(Value::as_i64);
        let block = |name: &str| match whole(name) {
            None => Ok(None),
            Some(Some(n @ 1..=MOST_BLOCK)) => Ok(Some(n as usize)),
            Some(_) => {
                let expected = format!("`{name}` from 1 to {MOST_BLOCK} weights per scale");
                Err(error(&expected, "another value".to_owned()))
            }
        };
        let found: Option<Vec<u64>> = value
            .get("shape")
            .and_then(Value::as_array)
            .and_then(|dims| dims.iter().map(Value::as_u64).collect());
        if found.as_deref() != Some(&shape.map(|len| len as u64)) {
            let expected = format!("the shape {shape:?}");
            return Err(error(&expected, format!("{:?}", found.unwrap_or_default())));
        }
        let offset = match value.get("nested_offset").filter(|v| !v.is_null()) {
            None => 0.0,
            Some(offset) => offset.as_f64().unwrap_or(f64::NAN) as f32,
        };
        if !offset.is_finite() {
            return Err(error("a finite nested_offset", offset.to_string()));
        }
        let Some(own) = block("blocksize")? else {
            return Err(error("a `blocksize`", "none".to_owned()));
        };
        Ok(Self { block: own, nested_block: block("nested_blocksize")?, nested_offset: offset })
    }
}

/// The tensors of one matrix.
struct FourBits<'a> {
    shape: [usize; 2],
    weight: TensorView<'a>,
    map: TensorView<'a>,
    absmax: TensorView<'a>,
    /// Table and scales of the scales.
    nested: Option<[TensorView<'a>; 2]>,
    about: State,
}

impl<'a> Stored<'a> for FourBits<'a> {
    fn open(&self) -> Result<Opened<'a>> {
        let State { block, nested_block, nested_offset } = self.about;
        let values = match &self.nested {
            None => scales(&self.absmax)?,
            Some([map, absmax]) => {
                let (map, outer) = (scales(map)?, scales(absmax)?);
                let nested_block = nested_block.expect("invariant: it was looked for");
                let codes = self.absmax.data.iter().enumerate();
                codes
                    .map(|(i, code)| {
                        map[usize::from(*code)] * outer[i / nested_block] + nested_offset
                    })
                    .collect()
            }
        };
        if let Some(bad) = values.iter().find(|scale| !scale.is_finite()) {
            return Err(wrong(&self.absmax, "finite scales", bad.to_string()));
        }
        let mut table = [0.0; 16];
        table.copy_from_slice(&scales(&self.map)?);
        let (data, k) = (self.weight.data, self.shape[1]);
        Ok(Matrix {
            shape: self.shape,
            codes: Box::new(move |row, out| {
                for (j, out) in out.iter_mut().enumerate() {
                    let at = row * k + j;
                    *out = if at % 2 == 0 { data[at / 2] >> 4 } else { data[at / 2] & 15 };
                }
            }),
            meaning: Meaning::Table(table),
            scales: Shared { values, groups: Groups::Flat { len: block } },
            zeros: Shared::all(0.0, self.shape),
            divisor: 1.0,
        }
        .into())
    }
}
