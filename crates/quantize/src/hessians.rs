//! The Hessians of a layer, or of as many of its experts as are gathered together.
//!
//! ```text
//! part 0    q, k, v, out, shared expert, expert 0, expert 1    the places of all these, [k, k] each
//! part 1    expert 2, expert 3, ..                              once part 0 is solved
//! ```
//!
//! Most models have room for one part; where Hessians of all experts take more than [`MOST_BYTES`],
//! the texts go through the layer once for each part.
//!
//! An expert that saw few rows knows little of its inputs. Below [`LEAST_ROWS`] its gate and up are
//! solved for the rows of all experts, which come from the same norm; its down is rounded to
//! nearest, because the hidden layers of other experts say nothing of its own. On a small mixture
//! (`crates/cli/tests/quantize_experts.rs`) rows of its own lost less from about eight on, at any
//! number less than rounding to nearest; larger models have more to learn, so twice as many are asked.

use std::collections::BTreeMap;

use pelton_model::{LayerMatrix, LayerShape, Reads};
use pelton_quant::solve::{self, Hessian};

/// Bytes of Hessians that are gathered together, where those of a layer without its experts and of
/// one expert take no more.
pub(crate) const MOST_BYTES: u64 = 2 << 30;
/// Rows that an expert has to see, so that its matrices are solved for these.
pub(crate) const LEAST_ROWS: u64 = 16;

/// The number of the expert that reads at a place.
pub(crate) fn expert(reads: Reads) -> Option<usize> {
    match reads {
        Reads::Expert(expert) | Reads::ExpertHidden(expert) => Some(expert),
        _ => None,
    }
}

fn expert_of(matrix: &LayerMatrix) -> Option<usize> {
    matrix.reads.and_then(expert)
}

/// Bytes of the Hessians of some matrices.
fn bytes_of(matrices: &[LayerMatrix]) -> u64 {
    let places: BTreeMap<Reads, usize> =
        matrices.iter().filter_map(|m| Some((m.reads?, m.shape[1]))).collect();
    places.values().map(|k| Hessian::bytes(*k)).sum()
}

/// Bytes of the Hessians of one part of a layer, and of the factors of one.
pub(crate) fn bytes(part: &LayerShape, layer: &LayerShape) -> u64 {
    let widest = part.matrices.iter().map(|matrix| matrix.shape[1]).max().unwrap_or(0) as u64;
    // The rows of all experts stay from part to part.
    let ups = layer.matrices.iter().filter(|matrix| matches!(matrix.reads, Some(Reads::Expert(_))));
    let divided = ups.map(|matrix| Hessian::bytes(matrix.shape[1])).max().unwrap_or(0);
    bytes_of(&part.matrices) + divided + 16 * widest * widest
}

/// Bytes of the rows of `n_tokens` tokens that are gathered for a part of a layer whose router
/// chooses `n_chosen` experts, and of what adding them takes.
pub(crate) fn bytes_to_add(part: &LayerShape, n_tokens: usize, n_chosen: usize) -> u64 {
    // A token goes to so many experts, whichever they are.
    let places: BTreeMap<(bool, Reads), usize> = part
        .matrices
        .iter()
        .filter_map(|matrix| {
            let reads = match matrix.reads? {
                Reads::Expert(_) => (true, Reads::Expert(0)),
                Reads::ExpertHidden(_) => (true, Reads::ExpertHidden(0)),
                reads => (false, reads),
            };
            Some((reads, matrix.shape[1]))
        })
        .collect();
    let widths =
        places.iter().map(|((is_of_experts, _), k)| k * if *is_of_experts { n_chosen } else { 1 });
    let widest = places.values().copied().max().unwrap_or(0);
    4 * (widths.sum::<usize>() as u64) * n_tokens as u64 + Hessian::bytes_to_add(widest, n_tokens)
}

/// A layer in parts whose Hessians take at most so many bytes together; an expert is in one of
/// them.
pub(crate) fn parts(layer: &LayerShape, most_bytes: u64) -> Vec<LayerShape> {
    let mut parts: Vec<Vec<LayerMatrix>> = vec![Vec::new()];
    let mut n_bytes = 0;
    for own in layer.matrices.chunk_by(|a, b| expert_of(a) == expert_of(b)) {
        let own_bytes = bytes_of(own);
        let is_expert = own.first().and_then(expert_of).is_some();
        if is_expert && n_bytes > 0 && n_bytes + own_bytes > most_bytes {
            parts.push(Vec::new());
            n_bytes = 0;
        }
        n_bytes += own_bytes;
        parts.last_mut().expect("invariant: a part").extend_from_slice(own);
    }
    let part = |matrices| LayerShape { matrices, ..layer.clone() };
    parts.into_iter().map(part).collect()
}

/// The Hessian of each place that matrices of a part of a layer read.
#[derive(Debug, Default)]
pub(crate) struct Hessians {
    places: BTreeMap<Reads, Hessian>,
    /// Rows of each place.
    n_rows: BTreeMap<Reads, u64>,
    /// The place of the rows that are divided among experts.
    divided: Option<Reads>,
    /// Whether that was known before.
    is_known: bool,
}

impl Hessians {
    /// Hessians without rows, made by `new` for a number of inputs; `divided` is that of the rows
    /// that are divided among experts, where it is known.
    pub(crate) fn new(
        part: &LayerShape,
        divided: Option<Hessian>,
        new: impl Fn(usize) -> Hessian,
    ) -> Self {
        let of_matrices = part.matrices.iter().filter_map(|m| Some((m.reads?, m.shape[1])));
        let mut widths: BTreeMap<Reads, usize> = of_matrices.collect();
        let is_up = |reads: &Reads| matches!(reads, Reads::Expert(_));
        let of_experts = widths.iter().find(|(reads, _)| is_up(reads)).map(|(_, k)| *k);
        widths.extend(part.divided.zip(of_experts));
        let places = widths.into_iter().map(|(reads, k)| (reads, new(k)));
        let mut hessians =
            Self { places: places.collect(), divided: part.divided, ..Self::default() };
        if let Some((reads, known)) = part.divided.zip(divided) {
            hessians.places.insert(reads, known);
            hessians.is_known = true;
        }
        hessians
    }

    /// Whether rows that are read at a place are wanted.
    pub(crate) fn takes(&self, reads: Reads) -> bool {
        let is_known = self.is_known && self.divided == Some(reads);
        self.places.contains_key(&reads) && !is_known
    }

    /// Adds rows that were read at a place, where they are wanted.
    pub(crate) fn add(&mut self, reads: Reads, rows: &[f32]) -> solve::Result<()> {
        let is_taken = self.takes(reads);
        let hessian = self.places.get_mut(&reads).filter(|_| is_taken);
        hessian.map_or(Ok(()), |hessian| hessian.add(rows))
    }

    /// Fills all of them, and drops those of experts that saw few rows.
    pub(crate) fn finish(mut self) -> Self {
        let places = std::mem::take(&mut self.places);
        for (reads, hessian) in places {
            let n_rows = hessian.n_rows();
            self.n_rows.insert(reads, n_rows);
            if expert(reads).is_none() || n_rows >= LEAST_ROWS {
                self.places.insert(reads, hessian.finish());
            }
        }
        self
    }

    /// The Hessian of the rows that are divided among experts, for the next part.
    pub(crate) fn into_divided(mut self) -> Option<Hessian> {
        self.divided.and_then(|reads| self.places.remove(&reads))
    }

    /// The Hessian of a place.
    pub(crate) fn get(&self, reads: Reads) -> Option<&Hessian> {
        self.places.get(&reads)
    }

    /// Replaces the Hessian of a place.
    pub(crate) fn insert(&mut self, reads: Reads, hessian: Hessian) {
        self.places.insert(reads, hessian);
    }

    /// The place that a matrix is solved for; `None` where nothing was gathered for it.
    pub(crate) fn of(&self, matrix: &LayerMatrix) -> Option<(Reads, &Hessian)> {
        let reads = matrix.reads?;
        let place = match reads {
            Reads::Expert(_) if self.is_few(reads) => self.divided?,
            _ => reads,
        };
        Some((place, self.get(place)?))
    }

    /// Rows that a matrix read.
    pub(crate) fn n_rows(&self, matrix: &LayerMatrix) -> Option<u64> {
        self.n_rows.get(&matrix.reads?).copied()
    }

    /// Whether a place is an expert's that saw few rows.
    pub(crate) fn is_few(&self, reads: Reads) -> bool {
        let n_rows = self.n_rows.get(&reads);
        expert(reads).is_some() && n_rows.is_some_and(|n_rows| *n_rows < LEAST_ROWS)
    }
}

#[cfg(test)]
mod tests {
    use pelton_base::TokenId;
    use pelton_kernels::Cpu;
    use pelton_model::{CpuDevice, ModelFiles, layer_shape};
    use pelton_testkit::golden::decoder_named;

    use super::*;
    use crate::calibrate::{Calibration, Samples};
    use crate::layer::Work;
    use crate::{Method, Options, Watch};

    #[test]
    fn parts_of_a_layer_see_what_the_whole_layer_sees_in_the_memory_that_they_may_take() {
        let temp = tempfile::tempdir().expect("temp");
        decoder_named("deepseek-v3").checkpoint.write_bare_folder(temp.path());
        let files = ModelFiles::open(temp.path()).expect("opens");
        let text: Vec<TokenId> = (0..300_u32).map(|i| TokenId(i * 7919 % 256)).collect();
        let samples = Samples::choose(&text, &[], 24, 2, 0).expect("samples");
        let watch = Watch { is_stopped: &|| false, progress: &|_, _| () };
        let options = Options::new(Method::Gptq);
        let [one, three] = [1, 3].map(|n| Cpu::new(Some(n)).expect("kernels"));
        let work = |cpu| {
            let (options, most_bytes) = (&options, MOST_BYTES);
            Work { options, bits: None, cpu, n_matrices: 0, most_bytes, watch }
        };
        let device = CpuDevice::with_threads(Some(1)).expect("a device");
        let begun = Calibration::begin(&files, device, &samples, &|| false);
        let mut calibration = begun.expect("embeds").expect("not stopped");
        let layer = files.spec().expect("a spec").layers.len() - 1;
        let shape = layer_shape(&files, layer).expect("a layer");
        calibration.load(&files, layer).expect("loads");
        let whole = calibration.gather(&files, &shape, None, &work(&one)).expect("numbers");
        let whole = whole.expect("not stopped");
        assert_eq!(parts(&shape, MOST_BYTES), std::slice::from_ref(&shape));

        // What every row goes through is a part, and two experts are.
        let of = |matrix: &&LayerMatrix, own| expert_of(matrix) == own;
        let own = |own| shape.matrices.iter().filter(|m| of(m, own)).cloned().collect::<Vec<_>>();
        let most = 2 * bytes_of(&own(Some(0)));
        let cut = parts(&shape, most);
        assert_eq!(cut.len(), 5, "a mixture of eight experts");
        assert_eq!(cut[0].matrices, own(None));
        let n_few = shape.matrices.iter().filter(|m| m.reads.is_some_and(|r| whole.is_few(r)));
        let n_few = n_few.count();
        assert!(n_few > 0 && n_few < 24, "{n_few} of few rows");
        let (mut divided, mut n_seen) = (None, 0);
        for (nth, part) in cut.into_iter().enumerate() {
            assert!(nth == 0 || bytes_of(&part.matrices) <= most, "{part:?}");
            let gathered =
                calibration.gather(&files, &part, divided.take(), &work(&three)).expect("numbers");
            let gathered = gathered.expect("not stopped");
            for matrix in &part.matrices {
                // One weight for each input, and so each number of the Hessian.
                let seen = |hessian: &Hessian| hessian.energy(&vec![1.0; hessian.k()]).to_bits();
                let of = |all: &Hessians| all.of(matrix).map(|(place, own)| (place, seen(own)));
                assert_eq!(of(&gathered), of(&whole), "{matrix:?}");
                assert_eq!(gathered.n_rows(matrix), whole.n_rows(matrix), "{matrix:?}");
            }
            n_seen += part.matrices.len();
            divided = gathered.into_divided();
        }
        assert_eq!(n_seen, shape.matrices.len());
    }
}
