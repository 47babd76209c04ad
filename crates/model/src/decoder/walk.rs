//! One layer at a time: the rows that pass from layer to layer, and what each matrix reads.
//!
//! ```text
//! tokens ── embed ──> x ── layer 0 ──> x ── layer 1 ──> x ...        x on the host, any number of texts
//!                          │ norm ──────────────▶ Mixer               reads of q, k, v
//!                          │ attention ─────────▶ Attended            of the output projection
//!                          │ norm ──────────────▶ Mlp                 of gate and up
//!                          └ activation ────────▶ Hidden              of down
//! ```
//!
//! [`taps`](super::taps) has the places inside of latent attention and of mixtures of experts.
//!
//! Only one layer's weights are loaded, in f32 or [in bf16](LayerWalk::keeping_bf16), so a model of
//! any size can be walked. Between layers the rows lie on the host, because a layer is run over all
//! texts before the next one is loaded; with them lie the keys and values that later layers read, and
//! the vectors that tokens have for each layer.

use std::collections::BTreeMap;

use pelton_base::TokenId;
use pelton_base::limits::BLOCK_TOKENS;
use pelton_quant::Compute;
use pelton_tensor::{DType, KvDtype, StateDtype, TensorView};

use super::pass::{Layer, Pass};
use super::taps::{Reads, Shown, Tap};
use super::{Buffers, ForwardInput};
use crate::arch::ArchSpec;
use crate::device::{BlockTables, ForwardSequence, InnerOps, MatrixSource, Ops};
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::kv::{KvFootprint, KvShape};
use crate::layer::Norm;
use crate::load::{LayerWeights, Weights, walk_ends, walk_layer};
use crate::rope::RopeTable;
use crate::state::{Lane, StateShape};

/// One text between two layers.
#[derive(Clone, Debug, Default)]
pub struct TextRows {
    /// The residual stream, `[tokens, hidden]`; the active one of several.
    pub x: Vec<f32>,
    /// All residual streams, `[tokens, n * hidden]`; empty where there is one alone, which is `x`.
    streams: Vec<f32>,
    /// The tokens' vectors for each layer, `[tokens, n_layers * width]`; empty where there are none.
    inputs: Vec<f32>,
    /// Keys and values that later layers read, by the layer that stored them: blocks of a cache.
    pages: BTreeMap<usize, Vec<u8>>,
}

impl TextRows {
    /// All residual streams, `[tokens, n * hidden]`; empty where there is one alone.
    pub fn streams(&self) -> &[f32] {
        &self.streams
    }

    /// Most floats of a token.
    pub fn n_floats(spec: &ArchSpec) -> usize {
        let inputs = spec.layer_inputs.map_or(0, |inputs| inputs.width * spec.layers.len());
        let (widest, _) = spec.kv_sizes();
        let n_streams = spec.streams.map_or(0, |streams| streams.n);
        (1 + n_streams) * spec.hidden_size + inputs + spec.kv_sources().len() * widest.n_elements()
    }
}

/// A model that is run layer by layer.
#[derive(Debug)]
pub struct LayerWalk<D: Ops> {
    spec: ArchSpec,
    ropes: Vec<RopeTable>,
    device: D,
    buffers: Buffers<D>,
    kv: D::Kv,
    tables: Vec<u32>,
    n_tokens: usize,
    /// Embeddings and what is added to them, until they are no longer needed.
    ends: Option<Weights<D>>,
    layer: Option<(usize, LayerWeights<D>)>,
    /// The layers whose keys and values other layers read.
    sources: Vec<usize>,
    /// Whether matrices in bf16 are computed in bf16.
    keeps_bf16: bool,
    /// Buffers in which the inputs of a layer's matrices are shown.
    shown: Shown<D>,
}

impl<D: InnerOps> LayerWalk<D> {
    /// Begins a walk over texts of at most `n_tokens` tokens.
    ///
    /// # Errors
    ///
    /// As [`load`](crate::load()), when the texts are longer than the context, and when layers mix
    /// in the values of the first one.
    pub fn new(files: &ModelFiles, device: D, n_tokens: usize) -> Result<Self, ModelError> {
        let spec = files.spec()?;
        if n_tokens == 0 || n_tokens > spec.max_context {
            return Err(ModelError::Context { asked: n_tokens, most: spec.max_context });
        }
        if spec.encoder.is_some() {
            let why = "the model has an encoder, which is not walked layer by layer";
            return Err(ModelError::Export(why.to_owned()));
        }
        if let Some(layer) = spec.layers.iter().position(|layer| layer.mixer.reads_first_values()) {
            let why = "whose values a walk from layer to layer does not keep";
            return Err(ModelError::Export(format!("layer {layer} reads the first layer, {why}")));
        }
        let ends = walk_ends(files, &spec, &device)?;
        let n_blocks = n_tokens.div_ceil(BLOCK_TOKENS);
        let shape = KvFootprint::new::<D>(&spec, KvDtype::F32, BLOCK_TOKENS).with_blocks(n_blocks);
        let mut states = StateShape::of(&spec, StateDtype::F32).with_room(1, 0);
        states.layers.truncate(1);
        let kv = device.new_kv(&KvShape { n_layers: 1, ..shape.shape }, &states);
        let kv = kv.map_err(ModelError::io(files.path()))?;
        let tables = (0..spec.n_kv_groups()).flat_map(|_| 0..n_blocks as u32).collect();
        let normed = device.buffer(spec.hidden_size);
        let buffers = Buffers::new(&spec, &device, normed);
        let ropes = spec.ropes.iter().map(|rope| rope.table(spec.max_context)).collect();
        let sources = spec.kv_sources();
        Ok(Self {
            spec,
            ropes,
            device,
            buffers,
            kv,
            tables,
            n_tokens,
            ends: Some(ends),
            layer: None,
            sources,
            keeps_bf16: false,
            shown: Shown::default(),
        })
    }

    /// The same walk with matrices in bf16, and patches over them, computed in bf16: many times as fast
    /// on processors that multiply it. Layers with experts are computed in f32 all the same.
    #[must_use]
    pub fn keeping_bf16(self) -> Self {
        Self { keeps_bf16: true, ..self }
    }

    /// Whether matrices that are stored in bf16 are computed in it, but for layers with experts.
    pub fn keeps_bf16(&self) -> bool {
        self.keeps_bf16
    }

    /// The spec of the model.
    pub fn spec(&self) -> &ArchSpec {
        &self.spec
    }

    /// The rows of a text before the first layer.
    ///
    /// # Panics
    ///
    /// When the embeddings have been dropped, there are no tokens or too many, or a token is outside
    /// of the vocabulary.
    pub fn embed(&mut self, tokens: &[TokenId]) -> TextRows {
        let Self { spec, ropes, device, buffers, tables, n_tokens, ends, .. } = self;
        assert!((1..=*n_tokens).contains(&tokens.len()), "1 to {n_tokens} tokens");
        let ends = ends.as_ref().expect("the embeddings are loaded");
        let sequence = sequence(tables, spec, tokens.len());
        let input = ForwardInput { tokens, sequences: &[sequence], logits_rows: &[] };
        buffers.place(spec, &input, BLOCK_TOKENS);
        let mut pass = Pass::begin(device, buffers, &input, ropes);
        pass.embed(spec, ends, tokens);
        let mut text = TextRows::default();
        pass.read_inputs(&mut text.inputs);
        pass.read_streams(&mut text.streams);
        pass.read(false, &mut text.x);
        text
    }

    /// Drops the embeddings, once all texts are embedded.
    pub fn drop_embeddings(&mut self) {
        self.ends = None;
    }

    /// Loads a layer in the place of the one before.
    ///
    /// # Errors
    ///
    /// As [`load`](crate::load()).
    pub fn load(&mut self, files: &ModelFiles, layer: usize) -> Result<(), ModelError> {
        self.layer = None;
        let weights = walk_layer(files, &self.spec, &self.device, layer, self.keeps_bf16)?;
        self.layer = Some((layer, weights));
        Ok(())
    }

    /// Runs the rows of one text through the loaded layer, in place. `tap` gets what the layer's
    /// matrices read, where that is shown, an expert's rows in ascending order.
    ///
    /// # Panics
    ///
    /// When no layer is loaded, `x` is not the rows of a text, or a layer whose keys and values the loaded
    /// one reads was not run before.
    pub fn run(&mut self, text: &mut TextRows, tap: Option<&mut Tap<'_>>) {
        self.pass(text, tap, false);
    }

    /// As [`run`](Self::run), for the sake of the taps alone: it ends once all inputs are shown, and
    /// what the rows of the text then hold has no meaning.
    ///
    /// # Panics
    ///
    /// As [`run`](Self::run).
    pub fn show(&mut self, text: &mut TextRows, tap: &mut Tap<'_>) {
        self.pass(text, Some(tap), true);
    }

    /// Runs the rows of one text through the layer, or `ends_early` once all is shown.
    fn pass(&mut self, text: &mut TextRows, mut tap: Option<&mut Tap<'_>>, ends_early: bool) {
        let Self { spec, ropes, device, buffers, kv, tables, n_tokens, layer, shown, .. } = self;
        let TextRows { x, streams, inputs, pages } = text;
        let (layer_idx, weights) = layer.as_ref().expect("a layer is loaded");
        let hidden = spec.hidden_size;
        let m = x.len() / hidden;
        assert!(x.len() == m * hidden && (1..=*n_tokens).contains(&m), "rows of a text");
        // Rows of a table that is looked up in order; a text may have more rows than the vocabulary
        // has tokens.
        let ids: Vec<TokenId> = (0..m as u32).map(TokenId).collect();
        let rows = put(device, x, [m, hidden]);
        let sequence = sequence(tables, spec, m);
        let input = ForwardInput { tokens: &ids, sequences: &[sequence], logits_rows: &[] };
        buffers.place_rows(spec, &input, BLOCK_TOKENS);
        let n_inputs = inputs.len() / m;
        let inputs = (n_inputs > 0).then(|| put(device, inputs, [m, n_inputs]));
        let n_streams = streams.len() / m;
        let all_streams = (n_streams > 0).then(|| put(device, streams, [m, n_streams]));
        let n_blocks = m.div_ceil(BLOCK_TOKENS) as u32;
        let block_bytes = KvFootprint::new::<D>(spec, KvDtype::F32, BLOCK_TOKENS).place_bytes();
        if let Some(source) = spec.layers[*layer_idx].mixer.source() {
            let stored = pages.get(&source).expect("the layer that stores was run");
            for (block, bytes) in (0..n_blocks).zip(stored.chunks_exact(block_bytes)) {
                device.write_kv_block(kv, block, bytes);
            }
        }
        let mut pass = Pass::begin(device, buffers, &input, ropes);
        let (layer_spec, idx) = (&spec.layers[*layer_idx], *layer_idx);
        let place = spec.memory_places()[idx].passing();
        let layer =
            Layer { spec: layer_spec, weights, idx, place, is_last: false, next_norm: None };
        pass.put(&rows, &ids, weights.first_norm());
        if let Some(inputs) = &inputs {
            pass.put_inputs(inputs, &ids);
        }
        if let Some(all) = &all_streams {
            pass.put_streams(all, &ids);
            pass.predict_streams(&layer);
        }
        if layer.mixes_rows() {
            if let Some(tap) = &mut tap {
                pass.show(Reads::Mixer, &layer, shown, tap);
            }
            pass.project(&layer, kv);
            if let Some(tap) = &mut tap {
                pass.show_latents(&layer, shown, tap);
            }
            if self.sources.contains(layer_idx) {
                let stored = pages.entry(*layer_idx).or_default();
                stored.resize(n_blocks as usize * block_bytes, 0);
                for (block, bytes) in (0..n_blocks).zip(stored.chunks_exact_mut(block_bytes)) {
                    pass.device.read_kv_block(kv, block, bytes);
                }
            }
            pass.mix_rows(&layer, kv);
            if let Some(tap) = &mut tap
                && layer.spec.mixer.out_widths()[1] == 0
            {
                pass.show(Reads::Attended, &layer, shown, tap);
            }
            pass.add_mixed(&layer);
        }
        if !layer.mixes_channels() {
            return pass.read(false, x);
        }
        if let Some(tap) = &mut tap {
            pass.show_mlp(&layer, shown, tap);
            if ends_early && layer.spec.mlp.experts().is_none() {
                return;
            }
        }
        pass.mix_channels(&layer, false);
        if let Some(tap) = &mut tap {
            pass.show_experts(&layer, hidden, shown, tap);
        }
        pass.read_streams(streams);
        pass.read(false, x);
    }
}

impl<'p, D: Ops> Pass<'p, D> {
    /// Puts rows in the place of embeddings: those of a matrix, looked up by their numbers.
    fn put(&mut self, rows: &D::Weight, ids: &[TokenId], norm: Option<&Norm<D>>) {
        self.device.embed(rows, ids, self.x);
        if let Some(norm) = norm {
            self.device.norm(self.x, norm, self.normed);
        }
    }
}

/// One text from its beginning.
fn sequence<'a>(tables: &'a [u32], spec: &ArchSpec, n_rows: usize) -> ForwardSequence<'a> {
    let block_tables = BlockTables::new(tables, spec.n_kv_groups());
    let lane = spec.is_recurrent().then(|| Lane::at(0, 0));
    ForwardSequence {
        rows: 0..n_rows,
        n_source: 0,
        first_position: 0,
        block_tables,
        lane,
        tree: None,
    }
}

/// Rows on the device, as a matrix whose rows are looked up.
fn put<D: Ops>(device: &D, rows: &[f32], shape: [usize; 2]) -> D::Weight {
    let data: Vec<u8> = rows.iter().flat_map(|x| x.to_le_bytes()).collect();
    let view = TensorView { name: "rows", dtype: DType::F32, shape: &shape, data: &data };
    let packed = device.pack(&MatrixSource::Tensors(&[view]), Compute::F32, &mut |_| ());
    packed.expect("invariant: rows of f32 can be packed")
}
