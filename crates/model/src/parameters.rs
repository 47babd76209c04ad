//! The parameters of a model by its specification alone, without a file.
//!
//! ```text
//! matrix   one that is packed as a whole: q, k and v stacked, gate and up stacked, each expert alone
//! vector   norms, biases, slopes, sinks, corrections of routers: f32, whatever the matrices are
//! ```
//!
//! The list is in the form that the loader packs, so that the bytes of a matrix are those of
//! [`Device::packed_size`](crate::Device::packed_size) for its shape. `tests/footprint.rs` loads every
//! family and compares.

use crate::arch::{ArchSpec, NormKind};

/// Part that a matrix has in a step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MatrixRole {
    /// Vectors of tokens, looked up row by row; also the head where the model shares them.
    Embedding,
    /// Rows that are looked up: positions, types of tokens.
    Table,
    /// Every row of a step is multiplied with it.
    Product,
    /// The same, computed in f32 whatever the other weights are: routers.
    Exact,
    /// The same as a product, and f32 in every converted file: the low-rank factors of time mixes.
    LowRank,
    /// The same, and turned while it is loaded where a file has it beside other rows, which quantized
    /// blocks do not survive: the keys' half of latent attention.
    Turned,
    /// Rows with logits are multiplied with it.
    Head,
}

/// A matrix, or several of the same shape.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MatrixShape {
    /// Part that it has in a step.
    pub role: MatrixRole,
    /// Outputs, the padding of heads included.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    /// How many there are: one per expert.
    pub n_copies: usize,
    /// How many of them one row goes through.
    pub n_active: usize,
}

/// All parameters of a model or of a part of one.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Parameters {
    /// Matrices.
    pub matrices: Vec<MatrixShape>,
    /// Elements of all vectors.
    pub n_vector_elements: usize,
}

impl MatrixShape {
    /// One matrix.
    pub(crate) fn one(role: MatrixRole, n: usize, k: usize) -> Self {
        Self { role, n, k, n_copies: 1, n_active: 1 }
    }

    /// Elements of all copies.
    pub fn n_elements(&self) -> u64 {
        (self.n as u64).saturating_mul(self.k as u64).saturating_mul(self.n_copies as u64)
    }

    /// Elements that one row goes through.
    pub fn n_active_elements(&self) -> u64 {
        (self.n as u64).saturating_mul(self.k as u64).saturating_mul(self.n_active as u64)
    }
}

impl Parameters {
    /// Products `[n, k]`, one after the other.
    pub(crate) fn products(shapes: &[[usize; 2]]) -> Self {
        let product = |&[n, k]: &[usize; 2]| MatrixShape::one(MatrixRole::Product, n, k);
        Self { matrices: shapes.iter().map(product).collect(), n_vector_elements: 0 }
    }

    /// The same with a vector of `n` elements more, where there is one.
    pub(crate) fn vector(mut self, is_there: bool, n: usize) -> Self {
        if is_there {
            self.n_vector_elements += n;
        }
        self
    }

    /// The same `n_copies` times, of which a row goes through `n_active`.
    pub(crate) fn copied(mut self, n_copies: usize, n_active: usize) -> Self {
        for matrix in &mut self.matrices {
            (matrix.n_copies, matrix.n_active) = (n_copies, n_active);
        }
        self.n_vector_elements = self.n_vector_elements.saturating_mul(n_copies);
        self
    }

    /// The same in an encoder, which rows of the decoder do not go through.
    pub(crate) fn of_source(mut self) -> Self {
        self.matrices.iter_mut().for_each(|matrix| matrix.n_active = 0);
        self
    }

    /// These and other ones.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.matrices.extend(other.matrices);
        self.n_vector_elements += other.n_vector_elements;
        self
    }

    fn with(mut self, role: MatrixRole, n: usize, k: usize) -> Self {
        self.matrices.push(MatrixShape::one(role, n, k));
        self
    }

    /// One more matrix that is computed in f32.
    pub(crate) fn exact(self, n: usize, k: usize) -> Self {
        self.with(MatrixRole::Exact, n, k)
    }

    /// One more matrix that converted files keep in f32.
    pub(crate) fn low_rank(self, n: usize, k: usize) -> Self {
        self.with(MatrixRole::LowRank, n, k)
    }

    /// One more matrix that may be turned while it is loaded.
    pub(crate) fn turned(self, n: usize, k: usize) -> Self {
        self.with(MatrixRole::Turned, n, k)
    }
}

impl ArchSpec {
    /// All parameters, as they are packed for a device that wants the rows of each head of a matrix of
    /// heads in multiples of `head_rows` ([`Device::HEAD_ROWS`](crate::Device::HEAD_ROWS)).
    pub fn parameters(&self, head_rows: usize) -> Parameters {
        let hidden = self.hidden_size;
        let per_norm = match self.norm {
            NormKind::Rms => hidden,
            NormKind::Layer { .. } => 2 * hidden,
        };
        let mut all = Parameters::default().with(MatrixRole::Embedding, self.vocab_size, hidden);
        if let Some(positions) = self.positions {
            all = all.with(MatrixRole::Table, positions.n_rows, hidden);
        }
        if self.ends.n_token_types > 0 {
            all = all.with(MatrixRole::Table, self.ends.n_token_types, hidden);
        }
        let width = self.layer_inputs.map_or(0, |inputs| inputs.width);
        if let Some(inputs) = self.layer_inputs {
            let all_layers = self.layers.len() * width;
            all = all
                .with(MatrixRole::Table, inputs.n_rows, all_layers)
                .with(MatrixRole::Product, all_layers, hidden)
                .vector(true, width);
        }
        if let Some(streams) = self.streams {
            all = all.and(streams.outer(hidden));
        }
        for (i, layer) in self.layers.iter().enumerate() {
            let n_norms = layer.norms(i, &self.ends).into_iter().filter(|has_norm| *has_norm);
            all = all
                .vector(true, n_norms.count() * per_norm)
                .and(layer.mixer.parameters(hidden, head_rows))
                .and(layer.mlp.parameters(hidden, head_rows))
                .vector(self.scales_layers, 1);
            if width > 0 {
                let products = [[width, hidden], [hidden, width]];
                all = all.and(Parameters::products(&products)).vector(true, per_norm);
            }
            if let Some(streams) = self.streams {
                all = all.and(streams.of_layer(hidden));
            }
        }
        if let Some(encoder) = &self.encoder {
            if let Some(positions) = encoder.positions {
                all = all.with(MatrixRole::Table, positions.n_rows, hidden);
            }
            for (i, layer) in encoder.layers.iter().enumerate() {
                let n_norms = layer.norms(i, &self.ends).into_iter().filter(|has_norm| *has_norm);
                let mixer = layer.mixer.parameters(hidden, head_rows).of_source();
                let mlp = layer.mlp.parameters(hidden, head_rows).of_source();
                all = all.vector(true, n_norms.count() * per_norm).and(mixer).and(mlp);
            }
            all = all.vector(encoder.final_norm, per_norm).vector(self.embedding_norm, per_norm);
        }
        if !self.tied_embeddings {
            all = all.with(MatrixRole::Head, self.vocab_size, hidden);
        }
        all.vector(self.embedding_norm, per_norm)
            .vector(self.ends.final_norm, per_norm)
            .vector(self.head_bias, self.vocab_size)
    }

    /// Whether the embedding is also the head, which every step multiplies with.
    pub fn has_shared_head(&self) -> bool {
        self.tied_embeddings && self.ends.head
    }
}
