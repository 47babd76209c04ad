//! HQQ: 1 to 8 bits with a scale and a zero point, seldom whole, per group.
//!
//! ```text
//! the matrix, read row by row, as [rows, columns]:   axis 1: [n k / g, g]    a scale per row
//!                                                    axis 0: [g, n k / g]    a scale per column
//!                                                    without `group_size` g it stays [n, k]
//! W_q     u8 [rows / c, columns]   c = 8 / bits codes a byte: code of row `r` is in row `r % (rows / c)`,
//!                                  the first rows' highest
//!         i32 [rows / 10, columns] of 3 bits, ten a word in the same way from bit 27 down, rounded up
//! scale, zero   f16, bf16, f32     as many as rows, or columns
//! nbits, group_size, axis, shape, packing, ...   each a small tensor; numbers, and text as bytes
//! w = scale * (code - zero)
//! ```
//!
//! Zero points are what the method optimizes, seldom whole: along the inputs (axis 1) the affine
//! layouts keep them beside the scales, as they are. Where they were rounded (`round_zero`) the
//! layouts of GPTQ are smaller. Along the outputs (axis 0) neighbours in a row share no scale,
//! which no layout has, and the matrix becomes `f32`. The bytes may be called floats
//! (`view_as_float`), which changes their type and nothing else. Scales that are quantized
//! themselves are not read: the library cannot write them to safetensors.
//!
//! # Source
//!
//! Badri and Shaji, *Half-Quadratic Quantization of Large Machine Learning Models*, 2023.

use pelton_tensor::{DType, TensorView};
use serde_json::Value;

use super::ignored::Ignored;
use super::matrix::{Groups, Matrix, Meaning, Opened, Shared};
use super::packing::{Found, Stored};
use super::setting::{MOST_GROUP, Setting};
use super::tensors::{FLOATS, Tensors, number, scales, stated_shape, word, wrong, wrong_type};
use super::{CheckpointMethod, Kind, ROOT, Scheme, unpackable};
use crate::Result;

/// The method.
pub(super) struct Hqq;

/// Settings for matrices whose tensors do not state them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Config {
    bits: Option<i64>,
    group_size: Option<i64>,
    axis: Option<i64>,
}

impl CheckpointMethod for Hqq {
    fn names(&self) -> &'static [&'static str] {
        &["hqq"]
    }

    fn supported(&self) -> &'static str {
        "1 to 8 bits, both axes, any group size, scales in full"
    }

    fn scheme(&self, config: &Value) -> Result<Scheme> {
        let root = Setting::new(ROOT, config);
        let weights = root.get("quant_config").get("weight_quant_params");
        let kind = Config {
            // 1.58 bits are stored as two.
            bits: weights.get("nbits").whole().unwrap_or(Some(2)),
            group_size: weights.get("group_size").whole()?,
            axis: weights.get("axis").whole()?,
        };
        let lists = ["skip_modules", "modules_to_not_convert"].map(|name| root.get(name));
        Ok(Scheme { ignored: Ignored::read(&lists)?, kind: Box::new(kind) })
    }
}

impl Kind for Config {
    fn words(&self) -> String {
        let said = |name: &str, value: Option<i64>| value.map(|n| format!(", {name} {n}"));
        let parts =
            [said("bits", self.bits), said("groups of", self.group_size), said("axis", self.axis)];
        format!("HQQ{}", parts.into_iter().flatten().collect::<String>())
    }

    fn find<'a>(&self, tensors: &Tensors<'a>, shape: [usize; 2]) -> Result<Option<Found<'a>>> {
        let Some(codes) = tensors.get("W_q") else { return Ok(None) };
        for flag in ["quant_scale", "quant_zero"] {
            if let Some(view) = tensors.get(flag)
                && number(&view)? != 0.0
            {
                return Err(wrong(&view, "0: scales and zero points that are not quantized", "1"));
            }
        }
        let grid = Grid::read(self, tensors, shape)?;
        if codes.data.len() != grid.n_bytes() {
            let expected = format!("{} bytes of codes of {} bits", grid.n_bytes(), grid.bits);
            return Err(wrong(&codes, expected, format!("{} bytes", codes.data.len())));
        }
        let shared = |name: &str| {
            let shape = if grid.is_by_row { [grid.rows, 1] } else { [1, grid.columns] };
            let Some(view) = tensors.get(name) else {
                return Err(tensors.missing(name, &format!("{shape:?}")));
            };
            if !FLOATS.contains(&view.dtype) {
                return Err(wrong_type(&view, FLOATS));
            }
            if view.shape != shape && view.n_elements() != 1 {
                return Err(wrong(&view, format!("shape {shape:?}"), format!("{:?}", view.shape)));
            }
            Ok(view)
        };
        let (scale, zero) = (shared("scale")?, shared("zero")?);
        let about = ABOUT.iter().filter_map(|name| tensors.get(name));
        let views = [codes, scale, zero].into_iter().chain(about).collect();
        let stored = Parts { shape, grid, codes, scale, zero };
        Ok(Some(Found { order: None, views, stored: Box::new(stored) }))
    }
}

/// Small tensors that describe a matrix; some of them are not read.
const ABOUT: &[&str] = &[
    "nbits",
    "group_size",
    "axis",
    "shape",
    "packing",
    "view_as_float",
    "unpack_view_dtype",
    "compute_dtype",
    "quant_scale",
    "quant_zero",
    "offload_meta",
    "encoded_state_dict",
    "stores_quant_config",
    "channel_wise",
    "optimize",
    "round_zero",
];

/// How codes lie in `W_q`.
#[derive(Clone, Copy, Debug)]
struct Grid {
    /// Bits of a stored code: 8, 4, 3, 2 or 1.
    bits: usize,
    rows: usize,
    columns: usize,
    /// Rows of words.
    step: usize,
    /// Whether rows share scales, not columns.
    is_by_row: bool,
}

impl Grid {
    fn read(config: &Config, tensors: &Tensors<'_>, shape: [usize; 2]) -> Result<Self> {
        let [n, k] = shape;
        // A tensor's number or, without one, the configuration's.
        let whole = |name: &str, said: Option<i64>| match tensors.get(name) {
            None => Ok(said),
            Some(view) => Ok(Some(number(&view)? as i64)),
        };
        let wrong_number = |name: &str, expected: &str, got: Option<i64>| {
            let got = got.map_or("nothing (it is missing)".to_owned(), |got| got.to_string());
            crate::QuantError::Checkpoint {
                tensor: format!("{}.{name}", tensors.module),
                expected: expected.to_owned(),
                got,
            }
        };
        if let Some(view) = tensors.find("shape", &[DType::I64, DType::I32], &[2])?
            && stated_shape(&view) != shape.map(|len| len as i64)
        {
            let got = format!("{:?}", stated_shape(&view));
            return Err(wrong(&view, format!("{shape:?}"), got));
        }
        let bits = match (tensors.get("nbits").map(|view| number(&view)).transpose()?, config.bits)
        {
            // Ternary codes take two bits.
            (Some(x), _) if (1.5..1.6).contains(&x) => 2,
            (Some(x), _) => x as i64,
            (None, said) => said.unwrap_or(0),
        };
        let bits = match bits {
            5 | 6 | 8 => 8,
            1..=4 => bits as usize,
            _ => return Err(wrong_number("nbits", "1, 2, 3, 4, 5, 6 or 8", Some(bits))),
        };
        let axis = whole("axis", config.axis)?;
        if !matches!(axis, Some(0 | 1)) {
            return Err(wrong_number("axis", "0 or 1", axis));
        }
        let is_by_row = axis == Some(1);
        let Some(n_weights) = n.checked_mul(k) else {
            return Err(unpackable(tensors, shape, "a matrix that fits in memory"));
        };
        let (rows, columns) = match whole("group_size", config.group_size)? {
            None => (n, k),
            Some(g @ 1..=MOST_GROUP) if n_weights.is_multiple_of(g as usize) => {
                let g = g as usize;
                if is_by_row { (n_weights / g, g) } else { (g, n_weights / g) }
            }
            got => {
                let expected = format!("a divisor of the {n_weights} weights up to {MOST_GROUP}");
                return Err(wrong_number("group_size", &expected, got));
            }
        };
        let per_word = if bits == 3 { 10 } else { 8 / bits };
        if bits != 3 && !rows.is_multiple_of(per_word) {
            let expected = format!("a number that leaves rows in multiples of {per_word}");
            return Err(wrong_number("group_size", &expected, Some(rows as i64)));
        }
        Ok(Self { bits, rows, columns, step: rows.div_ceil(per_word), is_by_row })
    }

    fn n_bytes(&self) -> usize {
        let word_bytes = if self.bits == 3 { 4 } else { 1 };
        self.step.saturating_mul(self.columns).saturating_mul(word_bytes)
    }

    /// The code of weight `at` of the matrix read row by row.
    fn code(&self, data: &[u8], at: usize) -> u8 {
        let (row, column) = (at / self.columns, at % self.columns);
        let (part, index) = (row / self.step, row % self.step * self.columns + column);
        match self.bits {
            3 => (word(data, index) >> (27 - 3 * part) & 7) as u8,
            8 => data[index],
            bits => data[index] >> (8 - bits * (part + 1)) & ((1 << bits) - 1),
        }
    }
}

/// The tensors of one matrix.
struct Parts<'a> {
    shape: [usize; 2],
    grid: Grid,
    codes: TensorView<'a>,
    scale: TensorView<'a>,
    zero: TensorView<'a>,
}

impl<'a> Stored<'a> for Parts<'a> {
    fn open(&self) -> Result<Opened<'a>> {
        let (shape, grid, data) = (self.shape, self.grid, self.codes.data);
        let shared = |view: &TensorView<'_>| {
            let values = scales(view)?;
            if let [value] = values[..] {
                return Ok(Shared::all(value, shape));
            }
            let groups = match grid.is_by_row {
                true => Groups::Flat { len: grid.columns },
                false => Groups::Strided { n: grid.columns },
            };
            Ok(Shared { values, groups })
        };
        let k = shape[1];
        Ok(Matrix {
            shape,
            codes: Box::new(move |row, out| {
                out.iter_mut().enumerate().for_each(|(j, o)| *o = grid.code(data, row * k + j));
            }),
            meaning: Meaning::Integer { most: ((1_u16 << grid.bits) - 1) as u8 },
            scales: shared(&self.scale)?,
            zeros: shared(&self.zero)?,
            divisor: 1.0,
        }
        .into())
    }
}
