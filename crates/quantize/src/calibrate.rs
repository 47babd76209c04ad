//! Text through the model, one layer at a time.

use std::collections::BTreeMap;

use pelton_base::TokenId;
use pelton_model::{
    ArchSpec, CpuDevice, LayerMatrix, LayerShape, LayerWalk, ModelFiles, Reads, TextRows,
};
use pelton_quant::solve::Hessian;
use pelton_tensor::DType;
use serde::Serialize;

use crate::hessians::{self, Hessians, MOST_BYTES};
use crate::layer::Work;
use crate::{Options, QuantizeError, Result, sensitivity};

/// Tokens whose rows are added to Hessians at once, or a little more.
const ADDED_TOKENS: usize = 2048;

/// The texts of a calibration.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples(Vec<Vec<TokenId>>);

impl Samples {
    /// Tokens that a calibration needs at least.
    pub const LEAST_TOKENS: usize = 64;

    /// Cuts a text into windows of `length` tokens, `prefix` included, and takes `n_samples` of them
    /// in an order that `seed` gives; all of them where there are fewer.
    ///
    /// # Errors
    ///
    /// When the text is shorter than [`LEAST_TOKENS`](Self::LEAST_TOKENS).
    pub fn choose(
        tokens: &[TokenId],
        prefix: &[TokenId],
        length: usize,
        n_samples: usize,
        seed: u64,
    ) -> Result<Self> {
        let (n_tokens, least) = (tokens.len(), Self::LEAST_TOKENS);
        if n_tokens < least {
            return Err(QuantizeError::Calibration { n_tokens, least });
        }
        let prefix = &prefix[..prefix.len().min(length.saturating_sub(1))];
        let room = (length - prefix.len()).max(1);
        // A short end counts only where it is all there is.
        let whole = tokens.chunks(room).filter(|window| window.len() == room.min(n_tokens));
        let mut windows: Vec<&[TokenId]> = whole.collect();
        let mut state = seed;
        for i in (1..windows.len()).rev() {
            windows.swap(i, below(&mut state, i + 1));
        }
        windows.truncate(n_samples.max(1));
        Ok(Self(windows.into_iter().map(|window| [prefix, window].concat()).collect()))
    }

    /// Number of texts.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none; never true.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Tokens of all texts.
    pub fn n_tokens(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// The first texts, as many as have at most `n_tokens` tokens; at least one.
    pub(crate) fn first(&self, n_tokens: usize) -> Self {
        let mut left = n_tokens;
        let fits = |tokens: &&Vec<TokenId>| {
            let is_first = left == n_tokens;
            let fits = tokens.len() <= left;
            left = left.saturating_sub(tokens.len());
            fits || is_first
        };
        Self(self.0.iter().take_while(fits).cloned().collect())
    }

    /// All tokens, each text behind its length.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|tokens| {
            std::iter::once(tokens.len() as u32).chain(tokens.iter().map(|token| token.0))
        })
    }

    pub(crate) fn longest(&self) -> usize {
        self.0.iter().map(Vec::len).max().unwrap_or(0)
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014), scaled to `n`.
fn below(state: &mut u64, n: usize) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut x = *state;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((u128::from(x ^ (x >> 31)) * n as u128) >> 64) as usize
}

/// The memory that a quantization takes beside the mapped source, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Needs {
    /// Rows between layers.
    pub activation_bytes: u64,
    /// The largest layer in f32: packed, as values, and rounded.
    pub layer_bytes: u64,
    /// Hessians of the largest layer, or of as many of its experts as are gathered together, the
    /// rows that are added to them, and the factors of one.
    pub hessian_bytes: u64,
}

impl Needs {
    /// The memory for these layers and texts.
    pub fn new(
        spec: &ArchSpec,
        layers: &[LayerShape],
        samples: Option<&Samples>,
        options: &Options,
    ) -> Self {
        let weights = |layer: &LayerShape| -> u64 {
            layer.matrices.iter().map(|matrix| (matrix.shape[0] * matrix.shape[1]) as u64).sum()
        };
        let largest = layers.iter().map(weights).max().unwrap_or(0);
        // The turned layer, beside the one that is solved.
        let turned = if options.rotate { 4 * largest } else { 0 };
        let Some(samples) = samples else {
            let layer_bytes = 8 * largest + turned;
            return Self { activation_bytes: 0, layer_bytes, hessian_bytes: 0 };
        };
        // Tokens whose rows are gathered before they are added to Hessians.
        let n_added = samples.n_tokens().min(ADDED_TOKENS - 1 + samples.longest());
        let hessians = |(idx, layer): (usize, &LayerShape)| -> u64 {
            let n_chosen = spec.layers[idx].mlp.experts().map_or(0, |moe| moe.router.top_k);
            let parts = hessians::parts(layer, MOST_BYTES);
            let bytes = |part: &LayerShape| {
                hessians::bytes(part, layer) + hessians::bytes_to_add(part, n_added, n_chosen)
            };
            parts.iter().map(bytes).max().unwrap_or(0)
        };
        // A budget is divided before the first layer is solved: rows for each matrix.
        let n_rows = match options.target {
            None => samples.n_tokens(),
            Some(_) => {
                let n_matrices: usize = layers.iter().map(|layer| layer.matrices.len()).sum();
                let n_probed = samples.first(sensitivity::MOST_TOKENS).n_tokens();
                samples.n_tokens().max((n_matrices + 2) * n_probed)
            }
        };
        Self {
            activation_bytes: (n_rows * TextRows::n_floats(spec) * 4) as u64,
            layer_bytes: 16 * largest + turned,
            hessian_bytes: layers.iter().enumerate().map(hessians).max().unwrap_or(0),
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.activation_bytes + self.layer_bytes + self.hessian_bytes
    }
}

/// Rows, and the sum of squares of each input, of each place that matrices of a layer read.
pub(crate) type Squares = BTreeMap<Reads, (u64, Vec<f64>)>;

/// The rows of all texts between two layers.
pub(crate) struct Calibration {
    walk: LayerWalk<CpuDevice>,
    /// Each text.
    rows: Vec<TextRows>,
}

impl Calibration {
    /// Embeds all texts. `None` when it was stopped.
    pub(crate) fn begin(
        files: &ModelFiles,
        device: CpuDevice,
        samples: &Samples,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Self>> {
        let mut walk = LayerWalk::new(files, device, samples.longest())?;
        let mut rows = Vec::with_capacity(samples.len());
        for tokens in &samples.0 {
            if is_stopped() {
                return Ok(None);
            }
            rows.push(walk.embed(tokens));
        }
        walk.drop_embeddings();
        Ok(Some(Self { walk, rows }))
    }

    /// The same, with layers computed in bf16 where they are stored in it.
    pub(crate) fn keeping_bf16(self) -> Self {
        Self { walk: self.walk.keeping_bf16(), ..self }
    }

    /// The rows of all texts, to be changed.
    pub(crate) fn rows_mut(&mut self) -> &mut [TextRows] {
        &mut self.rows
    }

    /// The rows of all texts.
    pub(crate) fn rows(&self) -> &Vec<TextRows> {
        &self.rows
    }

    /// Goes on with other rows.
    pub(crate) fn set_rows(&mut self, rows: Vec<TextRows>) {
        self.rows = rows;
    }

    /// Numbers of a row.
    pub(crate) fn width(&self) -> usize {
        self.walk.spec().hidden_size
    }

    /// Loads a layer, as it is patched.
    pub(crate) fn load(&mut self, files: &ModelFiles, layer: usize) -> Result<()> {
        Ok(self.walk.load(files, layer)?)
    }

    /// Runs the rows of some texts through the loaded layer.
    pub(crate) fn run(&mut self, rows: &mut [TextRows]) {
        rows.iter_mut().for_each(|rows| self.walk.run(rows, None));
    }

    /// Runs all texts through the loaded layer, and gathers what matrices of `part` read, which is
    /// some of the layer's. `divided` is what its experts read, where that is known. `None` when it
    /// was stopped.
    pub(crate) fn gather(
        &mut self,
        files: &ModelFiles,
        part: &LayerShape,
        divided: Option<Hessian>,
        work: &Work<'_>,
    ) -> Result<Option<Hessians>> {
        let is_bf16 = |matrix: &LayerMatrix| {
            let stored = files.stored(&matrix.tensor());
            matrix.reads.is_none() || stored.is_some_and(|view| view.dtype == DType::Bf16)
        };
        let is_bf16 = self.walk.keeps_bf16() && part.matrices.iter().all(is_bf16);
        let mut hessians = Hessians::new(part, divided, |k| {
            let hessian = Hessian::new(k, work.cpu);
            if is_bf16 { hessian.in_bf16() } else { hessian }
        });
        let mut x = TextRows::default();
        // Added once the passes are over, whose threads stay awake and would take the processors.
        let mut shown: BTreeMap<Reads, Vec<f32>> = BTreeMap::new();
        let mut n_tokens = 0;
        for (nth, rows) in self.rows.iter().enumerate() {
            if (work.watch.is_stopped)() {
                return Ok(None);
            }
            x.clone_from(rows);
            self.walk.show(&mut x, &mut |reads, rows: &[f32]| {
                if hessians.takes(reads) {
                    shown.entry(reads).or_default().extend_from_slice(rows);
                }
            });
            n_tokens += rows.x.len() / self.walk.spec().hidden_size;
            if n_tokens < ADDED_TOKENS && nth + 1 < self.rows.len() {
                continue;
            }
            n_tokens = 0;
            for (reads, rows) in &mut shown {
                hessians.add(*reads, rows).map_err(|source| {
                    let reader = part.matrices.iter().find(|matrix| matrix.reads == Some(*reads));
                    let module = reader.map_or(String::new(), |matrix| matrix.module.clone());
                    QuantizeError::Matrix { module, source }
                })?;
                rows.clear();
            }
        }
        Ok(Some(hessians.finish()))
    }

    /// Runs all texts through a layer as it is stored, for good. Returns the rows and the sums of squares
    /// of what is read at each place; `None` when it was stopped.
    pub(crate) fn squares(
        &mut self,
        files: &ModelFiles,
        (layer, shape): (usize, &LayerShape),
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Squares>> {
        self.walk.load(files, layer)?;
        let places = shape.matrices.iter().filter_map(|m| Some((m.reads?, m.shape[1])));
        let mut sums: Squares = places.map(|(reads, k)| (reads, (0, vec![0.0; k]))).collect();
        for rows in &mut self.rows {
            if is_stopped() {
                return Ok(None);
            }
            self.walk.run(
                rows,
                Some(&mut |reads, rows: &[f32]| {
                    let Some((n, sums)) = sums.get_mut(&reads) else { return };
                    *n += (rows.len() / sums.len()) as u64;
                    for row in rows.chunks_exact(sums.len()) {
                        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x).powi(2));
                    }
                }),
            );
        }
        Ok(Some(sums))
    }

    /// Runs all texts through a layer with its new weights. `false` when it was stopped.
    pub(crate) fn advance(
        &mut self,
        files: &ModelFiles,
        layer: usize,
        work: &Work<'_>,
    ) -> Result<bool> {
        if layer + 1 == self.walk.spec().layers.len() {
            return Ok(true);
        }
        self.walk.load(files, layer)?;
        for rows in &mut self.rows {
            if (work.watch.is_stopped)() {
                return Ok(false);
            }
            self.walk.run(rows, None);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(n: u32) -> Vec<TokenId> {
        (0..n).map(TokenId).collect()
    }

    #[test]
    fn samples_are_whole_windows_in_an_order_of_the_seed() {
        let (text, prefix) = (tokens(1000), [TokenId(7777)]);
        let choose = |n, seed| Samples::choose(&text, &prefix, 100, n, seed).expect("samples");
        let all = choose(1000, 0);
        assert_eq!((all.len(), all.n_tokens(), all.longest()), (10, 1000, 100));
        for sample in &all.0 {
            assert_eq!((sample[0], sample[1].0 % 99), (prefix[0], 0));
        }
        let mut sorted = all.0.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), 10, "no window twice");
        assert_eq!(choose(3, 1), choose(3, 1));
        assert_ne!(choose(3, 1), choose(3, 2));
        assert_eq!(choose(3, 1).0, choose(9, 1).0[..3], "more samples go on with the same ones");
    }

    #[test]
    fn short_texts_are_one_sample_or_an_error() {
        let short = Samples::choose(&tokens(64), &[], 100, 8, 0).expect("enough");
        assert_eq!((short.len(), short.n_tokens()), (1, 64));
        let error = Samples::choose(&tokens(63), &[], 100, 8, 0).expect_err("too short");
        assert!(error.to_string().contains("63 tokens: expected at least 64"), "{error}");
    }
}
