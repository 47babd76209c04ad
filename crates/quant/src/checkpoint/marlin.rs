//! Marlin: GPTQ's 4 bits, symmetric, in the order of a GPU kernel, undone here.
//!
//! ```text
//! B   i32 [k / 16, 2 n]    tiles of 16 inputs by 64 outputs, 1024 codes in 128 words. A word is 8
//!                          codes, and is what one of the 32 threads of a warp reads at a time:
//!     thread t             outputs t / 4 and t / 4 + 8 of the first, second, third and fourth 16
//!     reads                inputs 2 (t % 4) + 0, 1, 8, 9 of each
//!     nibbles 0, 1, .. 7   are of these eight the 0th, 2nd, 4th, 6th, 1st, 3rd, 5th, 7th
//! s   f16 [groups, n]      outputs in another order: of each 64 the `i`th at 8 (i % 8) + i / 8, or where a
//!                          row is one group of each 32 in runs of 2
//! w[n][j] = s * (code - 8)
//! ```
//!
//! Two kinds of checkpoints have it: those of GPTQ with `checkpoint_format: marlin` or
//! `is_marlin_format`, and those that call the method itself `marlin`.
//!
//! # Paper
//!
//! Frantar et al., *MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on Large Language
//! Models*, 2024.

use pelton_tensor::{DType, TensorView};
use serde_json::Value;

use super::ignored::Ignored;
use super::matrix::{Groups, Matrix, Meaning, Opened, Shared};
use super::packing::{Found, Stored};
use super::setting::{GroupSize, Setting};
use super::tensors::{FLOATS, Tensors, scales, word};
use super::{CheckpointMethod, Kind, ROOT, Scheme, unpackable};
use crate::Result;

/// Inputs and outputs of a tile.
const TILE: [usize; 2] = [16, 64];
const TILE_CODES: usize = TILE[0] * TILE[1];
/// Codes of a word.
const WORD_CODES: usize = 8;

/// The method.
pub(super) struct Marlin;

/// Settings of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Config {
    group_size: GroupSize,
}

impl CheckpointMethod for Marlin {
    fn names(&self) -> &'static [&'static str] {
        &["marlin"]
    }

    fn supported(&self) -> &'static str {
        "4 bits, symmetric, any group size"
    }

    fn scheme(&self, config: &Value) -> Result<Scheme> {
        let root = Setting::new(ROOT, config);
        let bits = root.get("bits");
        if !matches!(bits.whole()?, None | Some(4)) {
            return Err(bits.error("4"));
        }
        for (name, expected) in [("sym", true), ("desc_act", false)] {
            let field = root.get(name);
            if field.flag(expected)? != expected {
                return Err(field.error(format!("{expected}, the only value that Marlin stores")));
            }
        }
        let kind = Config { group_size: root.get("group_size").group_size()? };
        let ignored = Ignored::read(&[root.get("modules_to_not_convert")])?;
        Ok(Scheme { ignored, kind: Box::new(kind) })
    }
}

impl Kind for Config {
    fn words(&self) -> String {
        format!("Marlin, 4 bits, {}, symmetric", self.group_size)
    }

    fn find<'a>(&self, tensors: &Tensors<'a>, shape: [usize; 2]) -> Result<Option<Found<'a>>> {
        if tensors.get("B").is_none() {
            return Ok(None);
        }
        let [n, k] = shape;
        if !k.is_multiple_of(TILE[0]) || !n.is_multiple_of(TILE[1]) {
            return Err(unpackable(tensors, shape, "a matrix in tiles of 64 rows and 16 columns"));
        }
        let columns = self.group_size.of(k);
        let words = tensors.need("B", &[DType::I32], &[k / TILE[0], n * TILE[0] / WORD_CODES])?;
        let scale = tensors.need("s", FLOATS, &[k.div_ceil(columns), n])?;
        // Scratch memory of the GPU kernel.
        let workspace = tensors.get("workspace");
        let views = [Some(words), Some(scale), workspace].into_iter().flatten().collect();
        let stored = Parts { shape, columns, words, scale };
        Ok(Some(Found { order: None, views, stored: Box::new(stored) }))
    }

    fn is_turned(&self) -> bool {
        true
    }
}

/// Where each code of a tile is, `[input][output]`, counted in nibbles.
fn places() -> [u16; TILE_CODES] {
    let mut places = [0; TILE_CODES];
    for (place, slot) in (0..TILE_CODES).map(|place| (place, place / WORD_CODES)) {
        let (thread, quarter) = (slot / 4, slot % 4);
        let eighth = [0, 2, 4, 6, 1, 3, 5, 7][place % WORD_CODES];
        let input = 2 * (thread % 4) + [0, 1, 8, 9][eighth % 4];
        let output = quarter * 16 + thread / 4 + eighth / 4 * 8;
        places[input * TILE[1] + output] = place as u16;
    }
    places
}

/// Where the scale of each output is in a run of 64, or of 32 where rows are one group.
fn scale_place(output: usize, is_row: bool) -> usize {
    if is_row {
        // Runs of two outputs, of four such runs 8 apart.
        let (run, i) = (output / 32 * 32, output % 32);
        run + i % 8 / 2 * 8 + i / 8 * 2 + i % 2
    } else {
        let (run, i) = (output / 64 * 64, output % 64);
        run + i % 8 * 8 + i / 8
    }
}

/// The tensors of one matrix.
struct Parts<'a> {
    shape: [usize; 2],
    /// Inputs that share a scale.
    columns: usize,
    words: TensorView<'a>,
    scale: TensorView<'a>,
}

impl<'a> Stored<'a> for Parts<'a> {
    fn open(&self) -> Result<Opened<'a>> {
        let ([n, k], columns) = (self.shape, self.columns);
        let n_groups = k.div_ceil(columns);
        let by_group = scales(&self.scale)?;
        let cells = (0..n).flat_map(|row| (0..n_groups).map(move |g| (row, g)));
        let is_row = n_groups == 1;
        let values = cells.map(|(row, g)| by_group[g * n + scale_place(row, is_row)]).collect();
        let (data, places) = (self.words.data, places());
        Ok(Matrix {
            shape: self.shape,
            codes: Box::new(move |row, out| {
                for (j, out) in out.iter_mut().enumerate() {
                    let tile = j / TILE[0] * (n / TILE[1]) + row / TILE[1];
                    let place = places[j % TILE[0] * TILE[1] + row % TILE[1]];
                    let at = tile * TILE_CODES + usize::from(place);
                    *out = (word(data, at / WORD_CODES) >> (at % WORD_CODES * 4) & 15) as u8;
                }
            }),
            meaning: Meaning::Integer { most: 15 },
            scales: Shared { values, groups: Groups::Blocks { rows: 1, columns } },
            zeros: Shared::all(8.0, self.shape),
            divisor: 1.0,
        }
        .into())
    }
}
