//! QuIP#: vectors of a lattice between two Hadamard transforms.
//!
//! ```text
//! Qidxs        i64 [n, k / 32]    codes of E8P12, 16 bits for eight weights (`e8p`); of E8P12RVQ4B twice as
//!                                 many columns, the second half a finer matrix; of E8P12RVQ3B half as many
//!                                 again, bytes of the finer codebook E81B (`e81b`)
//! SU, SV       f16 [k], [n]       signs and scales of inputs and outputs
//! Wscale       []                 a scale of all
//! codebook_id  i64 []             7: E8P12, 17: E8P12RVQ4B, 18: E8P12RVQ3B
//! scaleWH      [k]                optional: what inputs are divided by
//! fuse_scales  [2] or [3]         of `qkv_proj` (q, k, v) and `upgate_proj` (up, gate), which hold several
//!                                 projections, a factor of each
//!
//! G            the vectors of Qidxs, or first + finer / 3.45, or of 3 bits / 2.04    [n, k]
//! T            H(n) G H(k)^T                                          unscaled, see `hadamard`
//! w[r][j] = T[r][j] / sqrt(n k) * SU[j] * SV[r] * Wscale * fuse_scales (/ scaleWH[j])    in f64, from
//!           left to right, then rounded to f32
//! ```
//!
//! Along the rows the transform is rounded to f32: exactly where there is one codebook, whose
//! numbers are multiples of 1/4. The matrix is computed as a whole, when its first row is asked
//! for, and packed as `f32`: sixteen times what is stored in 2 bits. The checkpoint is read and
//! runs; a kernel that transforms the activations and looks codes up would be the way to run it
//! fast.
//!
//! Checkpoints of the authors have their settings under `quip_params` in `config.json`. Other
//! packings are refused.
//!
//! # Paper
//!
//! Tseng et al., *QuIP#: Even Better LLM Quantization with Hadamard Incoherence and Lattice
//! Codebooks*, 2024.

use std::sync::OnceLock;

use pelton_kernels::WeightLayout;
use pelton_tensor::{DType, TensorView};
use serde_json::Value;

use super::floats::Floats;
use super::ignored::Ignored;
use super::matrix::Opened;
use super::packing::{Found, Stored};
use super::setting::Setting;
use super::tensors::{FLOATS, Tensors, number, scales, wrong};
use super::{CheckpointMethod, Kind, ROOT, Scheme, unpackable};
use crate::Result;
use crate::quip::{
    BLOCK, BOOKS, Books, Codebook, Codes, DIM, FINER_WORD, Finer, Hadamard, Scales, weights,
};

/// The method.
pub(super) struct Quip;

/// Settings of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Config {
    /// Divisor of the finer matrix, where it is not that of its codebook.
    finer: Option<f64>,
}

/// The codebooks of a module, and the tensor that names them.
fn books<'a>(tensors: &Tensors<'a>) -> Result<(TensorView<'a>, &'static Books)> {
    let id = tensors.get("codebook_id");
    let Some(id) = id else { return Err(tensors.missing("codebook_id", "[]")) };
    let which = number(&id)?;
    match BOOKS.iter().find(|books| books.id == which) {
        Some(books) => Ok((id, books)),
        None => {
            let known = BOOKS.iter().map(|books| format!("{} ({})", books.id, books.name));
            let expected = known.collect::<Vec<_>>().join(" or ");
            Err(wrong(&id, expected, which.to_string()))
        }
    }
}

impl CheckpointMethod for Quip {
    fn names(&self) -> &'static [&'static str] {
        &["quip"]
    }

    fn supported(&self) -> &'static str {
        "QuIP# with the codebooks E8P12, E8P12RVQ3B and E8P12RVQ4B"
    }

    fn scheme(&self, config: &Value) -> Result<Scheme> {
        let root = Setting::new(ROOT, config);
        let names: Vec<&str> = BOOKS.iter().map(|books| books.name).collect();
        let name = root.get("codebook").one_of(&names)?;
        let expected = BOOKS.iter().find(|books| books.name == name).map(|books| books.version);
        let version = root.get("codebook_version");
        if let Some(expected) = expected
            && version.whole()?.is_some_and(|version| version != expected)
        {
            return Err(version.error(format!("{expected} of {name}")));
        }
        let rank = root.get("lora_rank");
        if !matches!(rank.whole()?, None | Some(0)) {
            return Err(rank.error("0, because low-rank corrections are not supported"));
        }
        let finer = root.get("resid_scale_override");
        let kind = Config { finer: finer.positive()? };
        let ignored = Ignored::read(&[root.get("modules_to_not_convert")])?;
        Ok(Scheme { ignored, kind: Box::new(kind) })
    }
}

/// Projections that are stored in one module: their name, that of the module, which of its factors
/// is theirs, and which of its tensors are listed with it.
struct Fused {
    own: &'static str,
    module: &'static str,
    factor: usize,
    n_factors: usize,
}

const FUSED: &[Fused] = &[
    Fused { own: "q_proj", module: "qkv_proj", factor: 0, n_factors: 3 },
    Fused { own: "k_proj", module: "qkv_proj", factor: 1, n_factors: 3 },
    Fused { own: "v_proj", module: "qkv_proj", factor: 2, n_factors: 3 },
    Fused { own: "up_proj", module: "upgate_proj", factor: 0, n_factors: 2 },
    Fused { own: "gate_proj", module: "upgate_proj", factor: 1, n_factors: 2 },
];

impl Fused {
    /// The first row of `n` in a module of `n_all`: keys come before the values, which are as many.
    fn first_row(&self, n: usize, n_all: usize) -> Option<usize> {
        match self.factor {
            0 => (n <= n_all).then_some(0),
            factor => n_all.checked_sub(n * (self.n_factors - factor)),
        }
    }
}

impl Kind for Config {
    fn words(&self) -> String {
        match self.finer {
            None => "QuIP#, lattice codebook E8P12".to_owned(),
            Some(finer) => format!("QuIP#, lattice codebook E8P12, residue by {finer}"),
        }
    }

    fn find<'a>(&self, tensors: &Tensors<'a>, shape: [usize; 2]) -> Result<Option<Found<'a>>> {
        if tensors.get("Qidxs").is_some() {
            return self.module(tensors, shape, None).map(Some);
        }
        for fused in FUSED {
            let Some(stem) = tensors.module.strip_suffix(fused.own) else { continue };
            let module = format!("{stem}{}", fused.module);
            let whole = Tensors { source: tensors.source, module };
            if whole.get("Qidxs").is_some() {
                return self.module(&whole, shape, Some(fused)).map(Some);
            }
        }
        Ok(None)
    }
}

impl Config {
    /// A matrix of a module, or some rows of it.
    fn module<'a>(
        &self,
        tensors: &Tensors<'a>,
        shape: [usize; 2],
        fused: Option<&Fused>,
    ) -> Result<Found<'a>> {
        let [n, k] = shape;
        let signs = |name: &str, len: usize| tensors.need(name, FLOATS, &[len]);
        let sv = match tensors.get("SV") {
            Some(view) if fused.is_some() => signs("SV", view.n_elements())?,
            _ => signs("SV", n)?,
        };
        let n_all = sv.n_elements();
        let first_row = match fused {
            None => 0,
            Some(fused) => fused.first_row(n, n_all).ok_or_else(|| {
                wrong(
                    &sv,
                    format!("the rows of {} and of the projections beside it", fused.own),
                    n_all.to_string(),
                )
            })?,
        };
        if !n_all.is_multiple_of(BLOCK[0]) || !k.is_multiple_of(BLOCK[1]) {
            return Err(unpackable(tensors, [n_all, k], "a matrix in blocks of 16 x 64"));
        }
        let (id, books) = books(tensors)?;
        let n_words = k / books.word + books.finer_word.map_or(0, |word| k / word);
        let qidxs = tensors.need("Qidxs", &[DType::I64], &[n_all, n_words])?;
        let su = signs("SU", k)?;
        let transforms = [n_all, k].map(Hadamard::new);
        let [Some(_), Some(_)] = &transforms else {
            let expected = "widths of a power of two, or of one times 12, 20, 28, 36, 52, 60, 108, 116, \
                            124, 140, 156, 172";
            return Err(unpackable(tensors, [n_all, k], expected));
        };
        let scale = tensors.get("Wscale");
        let divisors = tensors.find("scaleWH", FLOATS, &[k])?;
        let factors = match fused {
            None => None,
            Some(fused) => tensors.find("fuse_scales", FLOATS, &[fused.n_factors])?,
        };
        // Where a module holds several projections, each lists some of the tensors.
        let rest = [Some(sv), Some(id), scale, divisors, factors].into_iter().flatten();
        let views: Vec<TensorView<'a>> = match fused {
            None => [qidxs, su].into_iter().chain(rest).collect(),
            Some(Fused { factor: 0, .. }) => vec![qidxs],
            Some(Fused { factor: 1, n_factors: 3, .. }) => vec![su],
            Some(Fused { n_factors: 3, .. }) => rest.collect(),
            Some(_) => std::iter::once(su).chain(rest).collect(),
        };
        let stored = Parts {
            n_all,
            k,
            first_row,
            finer: self.finer.unwrap_or(books.finer),
            books,
            qidxs,
            su,
            sv,
            scale,
            divisors,
            factor: factors.zip(fused.map(|fused| fused.factor)),
        };
        Ok(Found { order: None, views, stored: Box::new(stored) })
    }
}

/// The tensors of one module.
#[derive(Clone, Copy)]
struct Parts<'a> {
    n_all: usize,
    k: usize,
    /// The first row of the matrix that is meant.
    first_row: usize,
    finer: f64,
    books: &'static Books,
    qidxs: TensorView<'a>,
    su: TensorView<'a>,
    sv: TensorView<'a>,
    scale: Option<TensorView<'a>>,
    divisors: Option<TensorView<'a>>,
    factor: Option<(TensorView<'a>, usize)>,
}

impl<'a> Stored<'a> for Parts<'a> {
    fn open(&self) -> Result<Opened<'a>> {
        let parts = *self;
        let scales = Scales {
            su: scales(&self.su)?,
            sv: scales(&self.sv)?,
            scale: self.scale.as_ref().map_or(Ok(1.0), number)?,
            divisors: self.divisors.as_ref().map(scales).transpose()?,
            factor: match &self.factor {
                None => 1.0,
                Some((view, index)) => f64::from(scales(view)?[*index]),
            },
        };
        if let (Some(view), Some(values)) = (&self.divisors, &scales.divisors)
            && let Some(i) = values.iter().position(|x| *x == 0.0)
        {
            return Err(wrong(view, "divisors other than 0", format!("0 at element {i}")));
        }
        let weights: OnceLock<Vec<f32>> = OnceLock::new();
        let (k, first_row) = (self.k, self.first_row);
        let rows = move |row: usize, out: &mut [f32]| {
            let weights = weights.get_or_init(|| parts.weights(&scales));
            out.copy_from_slice(&weights[(first_row + row) * k..][..k]);
        };
        Ok(Floats { k, rows: Box::new(rows), kind: WeightLayout::F32 }.into())
    }
}

impl Parts<'_> {
    /// All weights of the module, row-major.
    fn weights(&self, scales: &Scales) -> Vec<f32> {
        let k = self.k;
        let (book, bytes) = (Codebook::new(), Finer::new());
        let (first, second) = self.codes();
        weights([self.n_all, k], scales, |row, line| {
            for (vector, line) in line.chunks_exact_mut(DIM).enumerate() {
                let coarse = book.vector(Codes::new(&first, k).code(row, vector));
                line.iter_mut().zip(coarse).for_each(|(line, x)| *line = f64::from(x));
                let finer = match self.books.finer_word {
                    None => continue,
                    Some(FINER_WORD) => bytes.vector(second[row * (k / DIM) + vector]),
                    Some(_) => book.vector(Codes::new(&second, k).code(row, vector)),
                };
                line.iter_mut().zip(finer).for_each(|(line, x)| *line += f64::from(x) / self.finer);
            }
        })
    }

    /// The words of both matrices of codes, which lie side by side in each row; the second may be
    /// empty.
    fn codes(&self) -> (Vec<u8>, Vec<u8>) {
        let rows = self.qidxs.data.chunks_exact((self.qidxs.data.len() / self.n_all.max(1)).max(1));
        let rows = rows.map(|row| row.split_at(self.k / self.books.word * size_of::<u64>()));
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for (coarse, finer) in rows {
            first.extend_from_slice(coarse);
            second.extend_from_slice(finer);
        }
        (first, second)
    }
}
