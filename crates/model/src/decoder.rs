//! One decoder for every architecture: tokens in, logits out, or what the head would read.
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
//! That is what most models do. What others do differently is in the spec: no norm before a mixer
//! (it reads `x`), a norm of what it adds, both mixers beside each other (the second norm is taken
//! before attention is added), learned positions, kinds of tokens or a norm at the start, norms of the
//! sum in place of what is added, no norm at the end. Encoders are such models whose attention is not
//! causal: their texts are computed whole, for what the last layer makes of them.
//!
//! A step holds any number of sequences with any number of rows each: prefill, a chunk of it, and
//! decoding are one case. In the last layer only the rows whose logits are asked for go on after
//! attention; the other rows have done their work when their keys and values are stored.
//!
//! **Architecture invariant:** nothing here knows an architecture's name, a weight format or a
//! device.

use pelton_base::TokenId;
use pelton_kernels::{KvDtype, KvShape};

use crate::arch::{ArchSpec, Mixer, Residual};
use crate::backend::{AttentionOp, Backend, ForwardSequence, GreedyRows, Head, LatentOp, Step};
use crate::kv::{KvFootprint, SwapStore};
use crate::layer::{Linear, MixerWeights, Module, Norm};
use crate::load::{LayerWeights, Weights};
use crate::rope::RopeTable;

/// A loaded model on a device.
#[derive(Debug)]
pub struct Decoder<B: Backend> {
    spec: ArchSpec,
    kv_dtype: KvDtype,
    ropes: Vec<RopeTable>,
    weights: Weights<B>,
    backend: B,
    buffers: Buffers<B>,
}

/// One step: tokens of any sequences, and the rows whose logits are wanted.
#[derive(Clone, Copy, Debug)]
pub struct ForwardInput<'a> {
    /// `[m]`, each below the vocabulary's size.
    pub tokens: &'a [TokenId],
    /// Whose tokens these are; their rows follow each other and cover all of `tokens`.
    pub sequences: &'a [ForwardSequence<'a>],
    /// Rows whose logits are wanted, in the order in which they are wanted.
    pub logits_rows: &'a [usize],
}

/// What a step is made for.
enum Wanted<'a> {
    /// But for these rows.
    Logits(GreedyRows<'a>),
    /// What the head would read.
    Hidden,
}

/// Rows between operations, kept from step to step.
#[derive(Debug)]
struct Buffers<B: Backend> {
    positions: Vec<usize>,
    slots: Vec<u32>,
    /// Rows of the table of learned positions, where there is one.
    position_rows: Vec<TokenId>,
    /// The residual stream, `[m, hidden]`.
    x: B::Buf,
    /// A norm's output, `[m, hidden]`, read by the projections and the head.
    normed: B::Buf,
    /// What a mixer adds to the residual, `[m, hidden]`.
    delta: B::Buf,
    /// That after a norm of its own, `[m, hidden]`.
    normed_delta: B::Buf,
    /// Queries, keys and values, or queries alone; `[m, query_width]`, one per distinct width.
    qkv: Vec<(usize, B::Buf)>,
    /// Output of attention, `[m, out_width]`, one per distinct width.
    attended: Vec<(usize, B::Buf)>,
    /// The rows of the last layer's `attended`, one per distinct width, and of its `x` that go on.
    kept_attended: Vec<(usize, B::Buf)>,
    kept_x: B::Buf,
}

/// `x = norm(x + delta)`; `delta` is scratch afterwards.
fn add_and_norm<B: Backend>(
    backend: &mut B,
    x: &mut B::Buf,
    delta: &mut B::Buf,
    norm: Option<&Norm<B>>,
) {
    backend.add(x, delta);
    if let Some(norm) = norm {
        backend.norm(x, norm, delta);
        std::mem::swap(x, delta);
    }
}

/// The buffer of this width.
fn of_width<T>(buffers: &mut [(usize, T)], width: usize) -> &mut T {
    let found = buffers.iter_mut().find(|(w, _)| *w == width);
    &mut found.expect("invariant: there is a buffer for every width of the spec").1
}

/// One layer's sequence mixer in one step.
enum MixerOp<'a, B: Backend> {
    Gqa(AttentionOp<'a, B>),
    Mla(LatentOp<'a, B>),
}

impl<'a, B: Backend> MixerOp<'a, B> {
    fn new(step: Step<'a>, layer: usize, mixer: &'a MixerWeights<B>) -> Self {
        match mixer {
            Mixer::Gqa(Module { spec: gqa, weights }) => {
                Self::Gqa(AttentionOp { step, layer, gqa, weights })
            }
            Mixer::Mla(Module { spec: mla, weights }) => {
                Self::Mla(LatentOp { step, layer, mla, weights })
            }
        }
    }

    /// Projects, and stores what later tokens see.
    fn project_store(&self, backend: &mut B, x: &B::Buf, kv: &mut B::Kv, qkv: &mut B::Buf) {
        match self {
            Self::Gqa(op) => backend.qkv_rope_store(op, x, kv, qkv),
            Self::Mla(op) => backend.latent_project_store(op, x, kv, qkv),
        }
    }

    /// What the output projection reads.
    fn attend(&self, backend: &mut B, qkv: &B::Buf, kv: &B::Kv, out: &mut B::Buf) {
        match self {
            Self::Gqa(op) => backend.paged_attention(op, qkv, kv, out),
            Self::Mla(op) => backend.latent_attention(op, qkv, kv, out),
        }
    }
}

impl<B: Backend> Decoder<B> {
    pub(crate) fn new(spec: ArchSpec, weights: Weights<B>, backend: B, kv_dtype: KvDtype) -> Self {
        let hidden = spec.hidden_size;
        let per_width = |width: &dyn Fn(&Mixer) -> usize| {
            let mut widths: Vec<usize> =
                spec.layers.iter().map(|layer| width(&layer.mixer)).collect();
            widths.sort_unstable();
            widths.dedup();
            widths.into_iter().map(|width| (width, backend.buffer(width))).collect()
        };
        // What reads a norm of a layer: of two norms side by side, each writes the same buffer.
        let inputs: Vec<&Linear<B>> = (weights.layers.iter())
            .flat_map(|layer| layer.attention.inputs().into_iter().chain(layer.mlp.inputs()))
            .collect();
        // Reordered inputs are read as f32, because quantized groups cannot be permuted.
        let normed = match inputs.iter().any(|linear| linear.is_reordered()) {
            true => backend.buffer(hidden),
            false => {
                let readers = inputs.iter().flat_map(|linear| linear.weights());
                let head = weights.head.as_ref().unwrap_or(&weights.embedding);
                backend.input_buffer(hidden, readers.chain([head]))
            }
        };
        let buffers = Buffers {
            positions: Vec::new(),
            slots: Vec::new(),
            position_rows: Vec::new(),
            x: backend.buffer(hidden),
            normed,
            delta: backend.buffer(hidden),
            normed_delta: backend.buffer(hidden),
            qkv: per_width(&Mixer::query_width),
            attended: per_width(&Mixer::out_width),
            kept_attended: per_width(&Mixer::out_width),
            kept_x: backend.buffer(hidden),
        };
        let ropes = spec.ropes.iter().map(|rope| rope.table(spec.max_context)).collect();
        Self { spec, kv_dtype, ropes, weights, backend, buffers }
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
    pub fn forward(&mut self, kv: &mut B::Kv, input: &ForwardInput<'_>, logits: &mut Vec<f32>) {
        self.forward_through(self.spec.layers.len(), kv, input, logits);
    }

    /// Like [`forward`](Self::forward), but only through the first `n_layers` layers, and from there to
    /// the last norm and the head: the logits of an early exit. Their KV is that of a whole pass.
    ///
    /// Elhoushi et al., "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding", ACL
    /// 2024; any model can be left early, one that was trained for it is right more often.
    ///
    /// # Panics
    ///
    /// Like `forward`, and when there are not so many layers, or none are asked for.
    pub fn forward_through(
        &mut self,
        n_layers: usize,
        kv: &mut B::Kv,
        input: &ForwardInput<'_>,
        logits: &mut Vec<f32>,
    ) {
        let none = GreedyRows { n_rows: 0, n_sampled: 0, tokens: &mut Vec::new() };
        self.forward_greedy(n_layers, kv, input, logits, none);
    }

    /// Like [`forward_through`](Self::forward_through), but the last rows asked for want no logits: of
    /// these only the likeliest token is told, and none of their logits ever lies in memory. It is the
    /// token of the logits that [`forward`](Self::forward) would write.
    ///
    /// # Shapes
    ///
    /// `logits` becomes `[logits_rows - greedy.n_rows, vocab_size]`; its memory is reused.
    ///
    /// # Panics
    ///
    /// Like `forward_through`, and when there are not so many rows.
    pub fn forward_greedy(
        &mut self,
        n_layers: usize,
        kv: &mut B::Kv,
        input: &ForwardInput<'_>,
        logits: &mut Vec<f32>,
        greedy: GreedyRows<'_>,
    ) {
        let (n_all, n_rows) = (self.spec.layers.len(), input.logits_rows.len());
        assert!((1..=n_all).contains(&n_layers), "{n_layers} of {n_all} layers");
        assert!(greedy.n_rows <= n_rows, "{} of {n_rows} rows", greedy.n_rows);
        greedy.tokens.clear();
        self.step(n_layers, kv, input, Wanted::Logits(greedy), logits);
    }

    /// Computes whole texts and writes what the last layer makes of the rows asked for, normed where
    /// the model norms it: what the head would read.
    ///
    /// `kv` is [one that nothing outlives](Self::try_new_passing_kv): every layer stores its keys and
    /// values where the layer before had its own. So each sequence begins at position 0.
    ///
    /// # Shapes
    ///
    /// `hidden` becomes `[logits_rows, hidden_size]`; its memory is reused.
    ///
    /// # Panics
    ///
    /// As [`forward`](Self::forward), and when a sequence does not begin at position 0.
    pub fn hidden(&mut self, kv: &mut B::Kv, input: &ForwardInput<'_>, hidden: &mut Vec<f32>) {
        let is_whole = |sequence: &ForwardSequence<'_>| sequence.first_position == 0;
        assert!(input.sequences.iter().all(is_whole), "texts begin at position 0");
        self.step(self.spec.layers.len(), kv, input, Wanted::Hidden, hidden);
    }

    fn step(
        &mut self,
        n_layers: usize,
        kv: &mut B::Kv,
        input: &ForwardInput<'_>,
        wanted: Wanted<'_>,
        logits: &mut Vec<f32>,
    ) {
        self.place_rows(input, B::kv_block_size(kv));
        let Self { spec, weights, backend, buffers, .. } = self;
        let Buffers { positions, slots, position_rows, x, normed, delta, normed_delta, .. } =
            buffers;
        let Buffers { qkv, attended, kept_attended, kept_x, .. } = buffers;
        let (mut x, mut kept_x) = (x, kept_x);
        let is_hidden = matches!(wanted, Wanted::Hidden);
        let step = Step { positions, slots, sequences: input.sequences };

        if input.tokens.is_empty() {
            return logits.clear();
        }
        let _turn = backend.begin_step(&step, &self.ropes);
        backend.embed(&weights.embedding, input.tokens, x);
        if spec.embedding_scale != 1.0 {
            backend.scale(x, spec.embedding_scale);
        }
        if let Some(table) = &weights.positions {
            backend.embed(table, position_rows, delta);
            backend.add(x, delta);
        }
        if let Some(table) = &weights.token_types {
            position_rows.clear();
            position_rows.resize(input.tokens.len(), TokenId(0));
            backend.embed(table, position_rows, delta);
            backend.add(x, delta);
        }
        if let Some(norm) = &weights.embedding_norm {
            backend.norm(x, norm, delta);
            std::mem::swap(x, delta);
        }
        if let Some(norm) = &weights.layers[0].attention_norm {
            backend.norm(x, norm, normed);
        }
        for (layer, layer_weights) in weights.layers[..n_layers].iter().enumerate() {
            let LayerWeights { attention, mlp, .. } = layer_weights;
            let (mixer, wiring) = (&spec.layers[layer].mixer, spec.layers[layer].wiring);
            let kv_layer = if is_hidden { 0 } else { layer };
            let op = MixerOp::new(step, kv_layer, attention);
            let qkv = of_width(qkv, mixer.query_width());
            let has_norm = layer_weights.attention_norm.is_some();
            op.project_store(backend, if has_norm { normed } else { x }, kv, qkv);
            let is_last = layer + 1 == n_layers;
            if is_last && input.logits_rows.is_empty() {
                return logits.clear();
            }
            let mut attended = of_width(attended, mixer.out_width());
            op.attend(backend, qkv, kv, attended);
            if is_last {
                let kept_attended = of_width(kept_attended, mixer.out_width());
                backend.gather_rows(attended, input.logits_rows, kept_attended);
                backend.gather_rows(x, input.logits_rows, kept_x);
                attended = kept_attended;
                std::mem::swap(&mut x, &mut kept_x);
            }
            backend.linear(attention.out(), attended, delta);
            let is_normed = wiring.residual == Residual::Normed;
            let post_norm = layer_weights.attention_post_norm.as_ref();
            if let Some(norm) = post_norm.filter(|_| !is_normed) {
                backend.norm(delta, norm, normed_delta);
                std::mem::swap(delta, normed_delta);
            }
            if wiring.scale != 1.0 {
                backend.scale(delta, wiring.scale);
            }
            let mlp_norm = match wiring.residual {
                // What attention read, but for the last layer, where fewer rows go on.
                Residual::ParallelOneNorm if is_last => layer_weights.attention_norm.as_ref(),
                _ => layer_weights.mlp_norm.as_ref(),
            };
            match (mlp_norm, wiring.residual) {
                (Some(norm), Residual::Sequential) => backend.add_norm(x, delta, norm, normed),
                (_, Residual::Normed) => add_and_norm(backend, x, delta, post_norm),
                (norm, _) => {
                    if let Some(norm) = norm {
                        backend.norm(x, norm, normed);
                    }
                    backend.add(x, delta);
                }
            }
            backend.mlp(mlp, if wiring.pre_norm { normed } else { x }, delta);
            let post_norm = layer_weights.mlp_post_norm.as_ref();
            if let Some(norm) = post_norm.filter(|_| !is_normed) {
                backend.norm(delta, norm, normed_delta);
                std::mem::swap(delta, normed_delta);
            }
            if wiring.scale != 1.0 {
                backend.scale(delta, wiring.scale);
            }
            let next_norm = match weights.layers[..n_layers].get(layer + 1) {
                Some(next) => next.attention_norm.as_ref(),
                None => weights.final_norm.as_ref(),
            };
            // Who reads rows wants floats, whatever the head reads.
            let is_read = is_last && is_hidden;
            match next_norm {
                Some(norm) if is_read => backend.add_norm(x, delta, norm, normed_delta),
                Some(norm) => backend.add_norm(x, delta, norm, normed),
                None if is_normed => add_and_norm(backend, x, delta, post_norm),
                None => backend.add(x, delta),
            }
        }
        let Wanted::Logits(greedy) = wanted else {
            let is_normed = weights.final_norm.is_some();
            backend.read(if is_normed { normed_delta } else { x }, logits);
            return;
        };
        let head = Head {
            weight: weights.head.as_ref().unwrap_or(&weights.embedding),
            bias: weights.head_bias.as_ref(),
            scale: spec.logit_scale,
            softcap: spec.logit_softcap,
        };
        backend.head(&head, normed, logits, greedy);
    }

    /// Position and KV slot of every row; checks the input's contract on the way.
    fn place_rows(&mut self, input: &ForwardInput<'_>, block_size: usize) {
        let Buffers { positions, slots, .. } = &mut self.buffers;
        positions.clear();
        slots.clear();
        for sequence in input.sequences {
            assert_eq!(sequence.rows.start, positions.len(), "rows follow each other");
            for row in 0..sequence.rows.len() {
                let place = sequence.first_position + row;
                // A draft of a tree lies after the ones before it, but follows its parent.
                let position = match sequence.tree.map(|parents| parents[row]) {
                    None => place,
                    Some(ForwardSequence::ROOT) => sequence.first_position,
                    Some(parent) => positions[sequence.rows.start + parent as usize] + 1,
                };
                positions.push(position);
                let block = sequence.block_table[place / block_size] as usize;
                let slot = block * block_size + place % block_size;
                slots.push(u32::try_from(slot).expect("slots are counted in 32 bits"));
            }
            let end = positions[sequence.rows.start..].iter().max().map_or(0, |last| last + 1);
            let most = self.spec.max_context;
            assert!(end <= most, "position {end} is beyond the context of {most}");
        }
        assert_eq!(positions.len(), input.tokens.len(), "rows cover the tokens");
        let position_rows = &mut self.buffers.position_rows;
        position_rows.clear();
        if let Some(table) = self.spec.positions {
            let rows = self.buffers.positions.iter().map(|position| position + table.first_row);
            position_rows.extend(rows.map(|row| TokenId(row as u32)));
        }
        for token in input.tokens {
            assert!((token.0 as usize) < self.spec.vocab_size, "token {token} is not a token");
        }
    }

    /// A KV cache for this model.
    ///
    /// # Panics
    ///
    /// When the memory is refused; [`try_new_kv`](Self::try_new_kv) answers instead.
    pub fn new_kv(&self, n_blocks: usize, block_size: usize) -> B::Kv {
        self.try_new_kv(n_blocks, block_size).expect("memory for the KV cache")
    }

    /// A KV cache for this model.
    ///
    /// # Errors
    ///
    /// When the memory is refused.
    pub fn try_new_kv(&self, n_blocks: usize, block_size: usize) -> std::io::Result<B::Kv> {
        self.backend.new_kv(&self.kv_shape(n_blocks, block_size))
    }

    /// A place for the keys and values of one layer of whole texts, in f32: what
    /// [`hidden`](Self::hidden) needs.
    ///
    /// # Errors
    ///
    /// When the memory is refused.
    pub fn try_new_passing_kv(&self, n_blocks: usize, block_size: usize) -> std::io::Result<B::Kv> {
        let shape = self.kv_shape(n_blocks, block_size);
        self.backend.new_kv(&KvShape { n_layers: 1, dtype: KvDtype::F32, ..shape })
    }

    /// Copies one block of a cache over another, in all layers.
    pub fn copy_kv_block(&self, kv: &mut B::Kv, from: u32, to: u32) {
        self.backend.copy_kv_block(kv, from, to);
    }

    /// Copies the KV of the token at position `from` of a sequence to position `to`, in all layers: what
    /// a path of a draft tree that was right needs.
    pub fn copy_kv_position(&self, kv: &mut B::Kv, block_table: &[u32], from: usize, to: usize) {
        let block_size = B::kv_block_size(kv);
        let slot = |position: usize| {
            let block = block_table[position / block_size] as usize;
            u32::try_from(block * block_size + position % block_size).expect("slots have 32 bits")
        };
        self.backend.copy_kv_slot(kv, slot(from), slot(to));
    }

    /// Copies one block of a cache to a block of a swap store, in all layers.
    pub fn swap_kv_out(&self, kv: &B::Kv, block: u32, store: &mut SwapStore, host_block: u32) {
        self.backend.read_kv_block(kv, block, store.block_mut(host_block));
    }

    /// Copies one block of a swap store to a block of a cache, in all layers.
    pub fn swap_kv_in(&self, kv: &mut B::Kv, store: &SwapStore, host_block: u32, block: u32) {
        self.backend.write_kv_block(kv, block, store.block(host_block));
    }

    /// What is built.
    pub fn spec(&self) -> &ArchSpec {
        &self.spec
    }

    /// The device.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// How keys and values are stored.
    pub fn kv_dtype(&self) -> KvDtype {
        self.kv_dtype
    }

    /// Bytes of one block of `block_size` tokens over all layers, keys and values.
    pub fn kv_bytes_per_block(&self, block_size: usize) -> usize {
        B::kv_block_bytes(&self.kv_shape(1, block_size))
    }

    /// What a cache of `n_blocks` blocks and a swap store of `n_host_blocks` beside it take.
    pub fn kv_footprint(
        &self,
        n_blocks: usize,
        block_size: usize,
        n_host_blocks: usize,
    ) -> KvFootprint {
        KvFootprint { shape: self.kv_shape(n_blocks, block_size), n_host_blocks }
    }

    /// Bytes of weights that one decoded token reads: everything but the rows of the embedding
    /// table that are not looked up, and the experts that are not chosen.
    pub fn weight_bytes(&self) -> usize {
        let layers = &self.weights.layers;
        let mixers = layers.iter().flat_map(|layer| layer.attention.matrices());
        let matrices = mixers.chain(self.head());
        let perceptrons = layers.iter().map(|layer| layer.mlp.active_bytes()).sum::<usize>();
        matrices.map(B::weight_bytes).sum::<usize>() + perceptrons
    }

    /// The matrix of the head; encoders have none.
    fn head(&self) -> Option<&B::Weight> {
        let head = self.weights.head.as_ref().unwrap_or(&self.weights.embedding);
        self.spec.ends.head.then_some(head)
    }

    /// Bytes of all weights in memory: every matrix, the padding of its panels included, and every
    /// vector.
    pub fn memory_bytes(&self) -> u64 {
        self.weights.n_bytes
    }

    /// Every matrix that a token passes through, the head included.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &B::Weight> {
        let layers =
            self.weights.layers.iter().flat_map(|layer| {
                layer.attention.matrices().into_iter().chain(layer.mlp.matrices())
            });
        layers.chain(self.head())
    }

    fn kv_shape(&self, n_blocks: usize, block_size: usize) -> KvShape {
        KvFootprint::new(&self.spec, self.kv_dtype, block_size).with_blocks(n_blocks).shape
    }
}
