//! One decoder for every architecture: tokens in, logits or the rows of the last layer out.
//!
//! ```text
//! tokens [m] ── embed ──> x ── norm ──> h ── q·k·v, rope, store ── attention ── out ──> delta
//!                         ^                                                              |
//!                         |             h <── norm ── x += delta <───────────────────────┘
//!                         |             └── perceptron ──> delta ──┐
//!                         └──────────────── x += delta <───────────┘           per layer
//! h of the rows asked for ── head ──> logits [n, vocab], or the likeliest token of each
//! ```
//!
//! Most models are wired so. The spec says where a model differs: no norm before a mixer (it reads
//! `x`), a norm of a mixer's output, both mixers side by side (the second norm is taken before
//! attention is added), learned positions, token types or a norm at the start, norms of the sum in
//! place of the output, no norm at the end. Encoders are models whose attention is not causal: a text
//! is computed whole, and the rows of the last layer are the result.
//!
//! A step holds any number of sequences with any number of rows each: prefill, a chunk of it, and
//! decoding are one case. In the last layer only the rows whose logits are asked for go on after
//! attention; the other rows are done once their keys and values are stored.
//!
//! `pass.rs` has the wiring of a layer; `kv.rs` the memory of sequences; `inputs.rs` the vectors
//! that tokens have for each layer; `source.rs` the encoder's part of a step; `streams.rs` residual
//! streams side by side; `walk.rs` runs one layer at a time for calibration, and `taps.rs` shows
//! what its matrices read.
//!
//! **Architecture invariant:** nothing here knows an architecture's name, a weight format or a
//! device.

mod buffers;
mod inputs;
mod kv;
mod laps;
mod pass;
mod source;
mod streams;
mod taps;
mod walk;

use pelton_base::TokenId;
use pelton_tensor::{KvDtype, StateDtype};

use crate::arch::{ArchSpec, MemoryPlace};
use crate::device::{ForwardSequence, GreedyRows, Head, Ops};
use crate::layer::{Kept, Linear, Mixer};
use crate::load::Weights;
use crate::rope::RopeTable;
use buffers::Buffers;
use laps::Clock;
pub use laps::{Lap, StepOp};
use pass::{Layer, Pass};
use source::SourceSplit;
pub use taps::{Reads, Tap};
pub use walk::{LayerWalk, TextRows};

/// A loaded model on a device.
#[derive(Debug)]
pub struct Decoder<D: Ops> {
    spec: ArchSpec,
    kv_dtype: KvDtype,
    state_dtype: StateDtype,
    ropes: Vec<RopeTable>,
    /// The place of each layer's memory.
    places: Vec<MemoryPlace>,
    weights: Weights<D>,
    device: D,
    buffers: Buffers<D>,
    /// The time of each operation, where that is asked for.
    laps: Option<Vec<Lap>>,
}

/// One step: tokens of any sequences, and the rows whose logits are wanted.
#[derive(Clone, Copy, Debug)]
pub struct ForwardInput<'a> {
    /// `[m]`, each below the vocabulary's size.
    pub tokens: &'a [TokenId],
    /// The sequences that the tokens belong to; their rows follow each other and cover `tokens`.
    pub sequences: &'a [ForwardSequence<'a>],
    /// Rows whose logits are wanted, in the order in which they are wanted.
    pub logits_rows: &'a [usize],
}

/// Rows whose logits are looked at a few rows at a time: logits of all rows of a long prompt would take
/// gigabytes.
pub struct ScoredRows<'a> {
    /// How many of the rows asked for these are; they are the last ones, behind greedy ones.
    pub n_rows: usize,
    /// Most rows whose logits lie in memory together; at least one.
    pub piece_rows: usize,
    /// Takes the index of a row among these and its logits, `[vocab]`; called once per row, in order.
    pub each: &'a mut dyn FnMut(usize, &[f32]),
}

impl std::fmt::Debug for ScoredRows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScoredRows")
            .field("n_rows", &self.n_rows)
            .field("piece_rows", &self.piece_rows)
            .finish_non_exhaustive()
    }
}

/// The result of a step.
enum Wanted<'a> {
    /// Logits of the rows asked for; of some of them the likeliest token alone, and of the last ones
    /// a few rows at a time.
    Logits(GreedyRows<'a>, Option<ScoredRows<'a>>),
    /// The rows asked for as the last layer leaves them.
    Hidden,
}

impl<D: Ops> Decoder<D> {
    pub(crate) fn new(
        spec: ArchSpec,
        weights: Weights<D>,
        device: D,
        (kv_dtype, state_dtype): (KvDtype, StateDtype),
    ) -> Self {
        let hidden = spec.hidden_size;
        // Every projection that reads a norm; two norms side by side write the same buffer.
        let of_encoder = weights.encoder.iter().flat_map(|encoder| &encoder.layers);
        let inputs: Vec<&Linear<D>> = (weights.layers.iter().chain(of_encoder))
            .flat_map(|layer| layer.attention.inputs().into_iter().chain(layer.mlp.inputs()))
            .collect();
        // Reordered inputs are read as f32, because quantized groups cannot be permuted; so are
        // rows that are mixed with the rows before them.
        let shifts_tokens = spec.layers.iter().any(|layer| layer.mixer.shifts_tokens());
        let normed = match shifts_tokens || inputs.iter().any(|linear| linear.is_reordered()) {
            true => device.buffer(hidden),
            false => {
                let readers = inputs.iter().flat_map(|linear| linear.weights());
                let head = weights.head.as_ref().unwrap_or(&weights.embedding);
                device.input_buffer(hidden, readers.chain([head]))
            }
        };
        let buffers = Buffers::new(&spec, &device, normed);
        let ropes = spec.ropes.iter().map(|rope| rope.table(spec.max_context)).collect();
        let places = spec.memory_places();
        Self { spec, kv_dtype, state_dtype, ropes, places, weights, device, buffers, laps: None }
    }

    /// Computes the step and writes the logits of the rows asked for.
    ///
    /// Keys and values of every row are stored in `kv`; the blocks of a sequence must hold those of
    /// all positions before its first row.
    ///
    /// # Shapes
    ///
    /// `logits` becomes `[logits_rows, vocab_size]`; its memory is reused.
    ///
    /// # Panics
    ///
    /// When the input breaks its contract (a token outside of the vocabulary, a position outside of
    /// the context, rows that are not covered, a block table that is too short).
    pub fn forward(&mut self, kv: &mut D::Kv, input: &ForwardInput<'_>, logits: &mut Vec<f32>) {
        self.forward_through(self.spec.layers.len(), kv, input, logits);
    }

    /// Like [`forward`](Self::forward), but only through the first `n_layers` layers, and from there to
    /// the last norm and the head: the logits of an early exit. Their KV is that of a whole pass.
    ///
    /// Elhoushi et al., "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding", ACL
    /// 2024. Any model can be left early; a model that was trained for it is right more often.
    ///
    /// # Panics
    ///
    /// Like `forward`, and when `n_layers` is zero or more than the model has.
    pub fn forward_through(
        &mut self,
        n_layers: usize,
        kv: &mut D::Kv,
        input: &ForwardInput<'_>,
        logits: &mut Vec<f32>,
    ) {
        let none = GreedyRows { n_rows: 0, n_sampled: 0, tokens: &mut Vec::new() };
        self.forward_greedy(n_layers, kv, input, logits, none);
    }

    /// Like [`forward_through`](Self::forward_through), but the last rows asked for get no logits: only
    /// their likeliest token is written, and none of their logits ever lies in memory. It is the token
    /// of the logits that [`forward`](Self::forward) would write.
    ///
    /// # Shapes
    ///
    /// `logits` becomes `[logits_rows - greedy.n_rows, vocab_size]`; its memory is reused.
    ///
    /// # Panics
    ///
    /// Like `forward_through`, and when `greedy.n_rows` is more than the rows asked for.
    pub fn forward_greedy(
        &mut self,
        n_layers: usize,
        kv: &mut D::Kv,
        input: &ForwardInput<'_>,
        logits: &mut Vec<f32>,
        greedy: GreedyRows<'_>,
    ) {
        let (n_all, n_rows) = (self.spec.layers.len(), input.logits_rows.len());
        assert!((1..=n_all).contains(&n_layers), "{n_layers} of {n_all} layers");
        assert!(greedy.n_rows <= n_rows, "{} of {n_rows} rows", greedy.n_rows);
        greedy.tokens.clear();
        self.step(n_layers, kv, input, Wanted::Logits(greedy, None), logits);
    }

    /// Like [`forward`](Self::forward) with greedy rows, and with rows that are scored: their logits
    /// are computed a few rows at a time and handed to [`ScoredRows::each`]. They are the logits that
    /// `forward` would write.
    ///
    /// # Shapes
    ///
    /// `logits` becomes `[logits_rows - greedy.n_rows - scored.n_rows, vocab_size]`.
    ///
    /// # Panics
    ///
    /// Like `forward`, and when greedy and scored rows are more than the rows asked for.
    pub fn forward_scored<'a>(
        &mut self,
        kv: &mut D::Kv,
        input: &ForwardInput<'_>,
        logits: &mut Vec<f32>,
        greedy: GreedyRows<'a>,
        scored: ScoredRows<'a>,
    ) {
        let (n_layers, n_rows) = (self.spec.layers.len(), input.logits_rows.len());
        let n_last = greedy.n_rows + scored.n_rows;
        assert!(n_last <= n_rows, "{n_last} of {n_rows} rows");
        greedy.tokens.clear();
        let scored = Some(scored).filter(|scored| scored.n_rows > 0);
        self.step(n_layers, kv, input, Wanted::Logits(greedy, scored), logits);
    }

    /// Computes whole texts and writes the rows asked for as the last layer leaves them, normed where
    /// the model has a final norm: the input of a head.
    ///
    /// `kv` is [of one layer](Self::try_new_passing_kv): every layer stores its keys and values over
    /// those of the layer before, where no layer reads those of another one. So each sequence begins at
    /// position 0.
    ///
    /// # Shapes
    ///
    /// `hidden` becomes `[logits_rows, hidden_size]`; its memory is reused.
    ///
    /// # Panics
    ///
    /// As [`forward`](Self::forward), and when a sequence does not begin at position 0.
    pub fn hidden(&mut self, kv: &mut D::Kv, input: &ForwardInput<'_>, hidden: &mut Vec<f32>) {
        self.hidden_typed(kv, input, &[], hidden);
    }

    /// As [`hidden`](Self::hidden), with a row of the table of token types for each token; without
    /// any, all tokens have the first.
    ///
    /// # Panics
    ///
    /// As [`hidden`](Self::hidden), and when there are types and not one for each token, or one is
    /// beyond the table.
    pub fn hidden_typed(
        &mut self,
        kv: &mut D::Kv,
        input: &ForwardInput<'_>,
        types: &[TokenId],
        hidden: &mut Vec<f32>,
    ) {
        let (n_types, n_tokens) = (self.spec.ends.n_token_types, input.tokens.len());
        assert!(types.is_empty() || types.len() == n_tokens, "a type for each token");
        assert!(types.iter().all(|kind| (kind.0 as usize) < n_types), "{n_types} types of tokens");
        self.buffers.token_kinds.clear();
        self.buffers.token_kinds.extend_from_slice(types);
        let is_whole = |sequence: &ForwardSequence<'_>| sequence.first_position == 0;
        assert!(input.sequences.iter().all(is_whole), "texts begin at position 0");
        self.step(self.spec.layers.len(), kv, input, Wanted::Hidden, hidden);
        self.buffers.token_kinds.clear();
    }

    fn step(
        &mut self,
        n_layers: usize,
        kv: &mut D::Kv,
        input: &ForwardInput<'_>,
        wanted: Wanted<'_>,
        out: &mut Vec<f32>,
    ) {
        match SourceSplit::new(input, D::kv_block_size(kv)) {
            None => self.step_own(n_layers, kv, input, wanted, out),
            Some(split) => {
                self.encode(kv, &split.sources.input());
                self.step_own(n_layers, kv, &split.own.input(), wanted, out);
            }
        }
    }

    /// A step of rows that an encoder has no part in.
    fn step_own(
        &mut self,
        n_layers: usize,
        kv: &mut D::Kv,
        input: &ForwardInput<'_>,
        wanted: Wanted<'_>,
        out: &mut Vec<f32>,
    ) {
        self.buffers.place(&self.spec, input, D::kv_block_size(kv));
        if input.tokens.is_empty() {
            return out.clear();
        }
        let Self { spec, weights, device, buffers, ropes, laps, places, .. } = self;
        let is_hidden = matches!(wanted, Wanted::Hidden);
        // Texts are computed whole, so that a layer may store over what the one before it stored.
        let is_passing = is_hidden && !spec.shares_pages();
        // Where no logits are asked for, layers behind the last one that keeps something change nothing.
        let keeps = |mixer: &Mixer| mixer.kept() != Kept::default();
        let last_keeping = spec.layers[..n_layers].iter().rposition(|own| keeps(&own.mixer));
        if input.logits_rows.is_empty() && last_keeping.is_none() {
            return out.clear();
        }
        let ends_at = last_keeping.filter(|_| input.logits_rows.is_empty());
        let mut pass = Pass::begin(device, buffers, input, ropes);
        pass.clock = Clock::start(laps.as_mut(), input.tokens.len());
        pass.embed(spec, weights, input.tokens);
        let layers = spec.layers.iter().zip(&weights.layers).take(n_layers);
        for (i, (layer_spec, layer_weights)) in layers.enumerate() {
            let is_last = i + 1 == n_layers;
            let layer = Layer {
                spec: layer_spec,
                weights: layer_weights,
                idx: i,
                place: if is_passing { places[i].passing() } else { places[i] },
                is_last,
                next_norm: match is_last {
                    true => weights.final_norm.as_ref(),
                    false => weights.layers[i + 1].first_norm(),
                },
            };
            pass.clock.enter(i);
            pass.predict_streams(&layer);
            if !layer.mixes_rows() {
                pass.skip_mixer(&layer);
                pass.mix_channels(&layer, is_last && is_hidden);
                continue;
            }
            pass.project(&layer, kv);
            if ends_at == Some(i) {
                if layer.spec.mixer.kept().state.is_some() {
                    // Its state moves on with the rows.
                    pass.mix_rows(&layer, kv);
                }
                return out.clear();
            }
            pass.attend(&layer, kv);
            if layer.mixes_channels() {
                pass.mix_channels(&layer, is_last && is_hidden);
            }
        }
        if let Some(streams) = &weights.streams {
            pass.merge_streams(streams, weights.final_norm.as_ref(), is_hidden);
        }
        match wanted {
            Wanted::Hidden => pass.read(weights.final_norm.is_some(), out),
            Wanted::Logits(greedy, scored) => {
                let head = Head {
                    weight: weights.head.as_ref().unwrap_or(&weights.embedding),
                    bias: weights.head_bias.as_ref(),
                    scale: spec.logit_scale,
                    softcap: spec.logit_softcap,
                };
                match scored {
                    None => pass.head(&head, weights.final_norm.is_some(), out, greedy),
                    Some(scored) => {
                        let norm = weights.final_norm.as_ref();
                        pass.head_in_pieces(&head, norm, out, greedy, scored);
                    }
                }
            }
        }
    }

    /// Notes the time of each operation of the steps from now on, until [`take_laps`](Self::take_laps).
    /// Rows that are [scored](Self::forward_scored) have no lap.
    pub fn note_laps(&mut self) {
        self.laps = Some(Vec::new());
    }

    /// The operations of all steps since [`note_laps`](Self::note_laps), in order; no more are noted.
    pub fn take_laps(&mut self) -> Vec<Lap> {
        self.laps.take().unwrap_or_default()
    }

    /// Weights, and their packed bytes, that an operation of a step reads in all layers: of the experts
    /// of a row those that are chosen. None for operations without weights.
    pub fn weights_of(&self, op: StepOp) -> (usize, usize) {
        let hidden = self.spec.hidden_size;
        let layers = || self.spec.layers.iter().zip(&self.weights.layers);
        let outs = || self.weights.layers.iter().flat_map(|layer| layer.attention.outs()).flatten();
        let out_bytes = || outs().flat_map(Linear::weights).map(D::weight_bytes).sum::<usize>();
        let n_outs = || outs().map(|out| out.n * out.k).sum::<usize>();
        match op {
            StepOp::Project => {
                let n = layers().map(|(spec, _)| spec.mixer.n_weights(hidden)).sum::<usize>();
                let matrices = layers().flat_map(|(_, layer)| layer.attention.matrices());
                let n_bytes = matrices.map(D::weight_bytes).sum::<usize>();
                (n - n_outs(), n_bytes - out_bytes())
            }
            StepOp::Out => (n_outs(), out_bytes()),
            StepOp::Mlp => {
                let n = layers().map(|(spec, _)| spec.mlp.n_active_weights(hidden)).sum::<usize>();
                let width = self.spec.layer_inputs.map_or(0, |inputs| inputs.width);
                let tails = layers().flat_map(|(_, layer)| layer.tail());
                let n_bytes = layers().map(|(_, layer)| layer.mlp.active_bytes()).sum::<usize>();
                let of_streams =
                    self.spec.streams.map_or(0, |streams| streams.n_layer_weights(hidden));
                let of_tails = self.spec.layers.len() * (2 * width * hidden + of_streams);
                (n + of_tails, n_bytes + tails.map(D::weight_bytes).sum::<usize>())
            }
            StepOp::Head => {
                let n = self.spec.vocab_size * hidden;
                self.head().map_or((0, 0), |head| (n, D::weight_bytes(head)))
            }
            StepOp::Embed | StepOp::Attend | StepOp::Norm | StepOp::Gather => (0, 0),
        }
    }

    /// The spec of the model.
    pub fn spec(&self) -> &ArchSpec {
        &self.spec
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// How keys and values are stored.
    pub fn kv_dtype(&self) -> KvDtype {
        self.kv_dtype
    }

    /// Bytes of weights that one decoded token reads: everything but the rows of the embedding
    /// table that are not looked up, the experts that are not chosen, and what only an encoder's rows read.
    pub fn weight_bytes(&self) -> usize {
        let layers = &self.weights.layers;
        let mixers = layers.iter().flat_map(|layer| layer.attention.matrices());
        let tails = layers.iter().flat_map(|layer| layer.tail());
        let matrices = mixers.chain(self.head()).chain(tails).chain(self.weights.outer());
        let perceptrons = layers.iter().map(|layer| layer.mlp.active_bytes()).sum::<usize>();
        let of_sources = layers.iter().flat_map(|layer| layer.attention.of_source());
        let n_bytes = matrices.map(D::weight_bytes).sum::<usize>() + perceptrons;
        n_bytes - of_sources.map(D::weight_bytes).sum::<usize>()
    }

    /// The matrix of the head; encoders have none.
    fn head(&self) -> Option<&D::Weight> {
        let head = self.weights.head.as_ref().unwrap_or(&self.weights.embedding);
        self.spec.ends.head.then_some(head)
    }

    /// Bytes of all weights in memory: every matrix, the padding of its panels included, and every
    /// vector.
    pub fn memory_bytes(&self) -> u64 {
        self.weights.n_bytes
    }

    /// Every matrix that a token passes through, the head included.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &D::Weight> {
        let layers = self.weights.layers.iter().flat_map(|layer| {
            let mixers = layer.attention.matrices().into_iter().chain(layer.mlp.matrices());
            mixers.chain(layer.tail())
        });
        layers.chain(self.head()).chain(self.weights.outer())
    }
}
