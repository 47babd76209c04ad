//! Weights that are rounded while they are loaded, each as [`export`](super::export) writes it.
//!
//! ```text
//! items of the file to be ──▶ stored tensor, type      one entry for each that changes its type
//! parts of the plan       ──▶ looked up by the tensor that they are rows of
//! ```
//!
//! One list decides for both, so a model that is rounded at a load has the weights of the file that
//! an export in the same format writes. Two things differ where a file of the family is not its
//! folder to the bit: factors that files have in their weights stay beside them, and inputs that
//! files put in another order stay in their own.

use std::collections::BTreeMap;
use std::fmt;

use pelton_quant::{Compute, RoundTo};
use pelton_tensor::DType;

use super::item::{Item, Source};
use super::tensors::{self, Formats};
use super::{folder, written};
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::load::{Part, Plan};

/// The type of a part once it is rounded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Rounded {
    /// Its rows are rounded as they are packed.
    Packed(DType),
    /// Its rows are rounded as they are stored, and are turned to columns of f32 afterwards: a file
    /// keeps them in one tensor with others.
    Stored(DType),
}

/// Names the change in the recipe of a packed matrix.
impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packed(dtype) => write!(f, " as {dtype}"),
            Self::Stored(dtype) => write!(f, " stored as {dtype}"),
        }
    }
}

/// The types of all weights that are rounded while they are loaded.
#[derive(Clone, Debug)]
pub(crate) struct Rounding {
    to: RoundTo,
    /// By the name of the stored tensor, and whether its rows are turned first.
    types: BTreeMap<(String, bool), DType>,
}

impl Rounding {
    /// Decides about every weight.
    ///
    /// # Errors
    ///
    /// [`ModelError::Rounded`] where a matrix is quantized already; as [`check`](crate::check).
    pub(crate) fn new(files: &ModelFiles, to: RoundTo) -> Result<Self, ModelError> {
        let spec = files.spec()?;
        let refuse = |found| {
            let file = files.tensors().origin().to_owned();
            Err(ModelError::Rounded { file, to: to.name(), found })
        };
        if let Some(scheme) = files.scheme() {
            return refuse(scheme.words());
        }
        let plan = Plan::new(files, &spec)?;
        for part in plan.matrices().into_iter().flatten() {
            if !is_float(part.view.dtype) {
                let name = part.view.name.escape_debug();
                return refuse(format!("`{name}` in {}", part.view.dtype));
            }
        }
        let format = Some(to.format());
        let formats = Formats { matrices: format, embedding: format, head: format };
        let mut types = BTreeMap::new();
        match files.gguf() {
            Some(gguf) => add(&mut types, tensors::of_gguf(gguf, &formats)?),
            None if files.arch().is_exported() => {
                let written = written::spec(&spec, &files.arch().gguf);
                add(&mut types, folder::of_folder(files, &spec, &written, &formats)?);
            }
            None => {
                for part in unwritten(&plan) {
                    let dtype = formats.stored_as("", part.view.dtype, &part.shape, false)?;
                    types.insert(key(part), dtype);
                }
            }
        }
        let n_rounded = types.values().filter(|dtype| !is_float(**dtype)).count();
        let n_own = types.values().filter(|dtype| **dtype == to.dtype()).count();
        if n_own < n_rounded {
            let n_others = n_rounded - n_own;
            tracing::warn!(
                "{n_others} of {n_rounded} matrices are rounded to q8_0 in place of {to}, whose blocks \
                 do not divide their rows"
            );
        }
        Ok(Self { to, types })
    }

    /// The format that was asked for.
    pub(crate) fn to(&self) -> RoundTo {
        self.to
    }

    /// The type that a part becomes, unless it stays as it is.
    pub(crate) fn of(&self, part: &Part<'_>) -> Option<Rounded> {
        let (name, is_turned) = key(part);
        let own = self.types.get(&(name.clone(), is_turned));
        let dtype = *own.or_else(|| self.types.get(&(name, false)))?;
        // Elements of one number can be rounded as well before as after they are turned.
        let is_rounded_first = own.is_none() && !is_float(dtype);
        let rounded =
            if is_rounded_first { Rounded::Stored(dtype) } else { Rounded::Packed(dtype) };
        (dtype != part.view.dtype).then_some(rounded)
    }
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::Bf16)
}

fn key(part: &Part<'_>) -> (String, bool) {
    (part.view.name.to_owned(), part.turned.is_some())
}

/// Adds the stored tensors of these items.
fn add(types: &mut BTreeMap<(String, bool), DType>, items: Vec<Item<'_>>) {
    for Item { dtype, source, .. } in items {
        match source {
            Source::Stored(view) => {
                types.insert((view.name.to_owned(), false), dtype);
            }
            Source::Matrix { parts, .. } => {
                types.extend(parts.iter().map(|scaled| (key(&scaled.part), dtype)));
            }
            // Vectors are f32 once they are loaded, whatever they were stored in.
            Source::Vector { .. } | Source::Made(_) => {}
        }
    }
}

/// The matrices that are rounded in families that are not written as files: all but tables of
/// positions and kinds of tokens, and those that are computed in f32.
fn unwritten<'p, 'a>(plan: &'p Plan<'a>) -> Vec<&'p Part<'a>> {
    let of_encoder = plan.encoder.iter().flat_map(|encoder| &encoder.positions);
    let tables = plan.positions.iter().chain(&plan.token_types).chain(of_encoder);
    let kept: Vec<&str> = tables.map(|table| table.view.name).collect();
    let runs = plan.runs(Compute::Auto).into_iter();
    let runs = runs.filter(|(_, compute)| *compute == Compute::Auto).flat_map(|(run, _)| run);
    runs.filter(|part| !kept.contains(&part.view.name)).collect()
}
