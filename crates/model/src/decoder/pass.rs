//! One pass over the layers: the rows between operations, and the wiring of a layer.

use pelton_base::TokenId;

use super::inputs::InputRows;
use super::laps::{Clock, StepOp};
use super::streams::StreamRows;
use super::{Buffers, ForwardInput, Reads, ScoredRows};
use crate::arch::{ArchSpec, LayerSpec, MemoryPlace, Mixer, Mlp, Residual, Wiring};
use crate::device::{
    AttentionOp, ConvOp, CrossOp, GreedyRows, Head, LatentOp, Ops, RecurrentOp, SelectiveOp,
    ShiftMixer, ShiftOp,
};
use crate::layer::{Module, Norm};
use crate::load::{EncoderWeights, LayerWeights, Weights};
use crate::rope::RopeTable;

/// Rows between operations. References are swapped where the roles of two buffers are.
pub(super) struct Pass<'p, D: Ops> {
    /// Held to the end of the step.
    _turn: D::Turn,
    pub(super) device: &'p mut D,
    /// The rows of `x`: all of them, and after [`keep`](Self::keep) those asked for.
    pub(super) rows: D::Rows<'p>,
    /// The rows asked for.
    kept: D::Rows<'p>,
    kept_rows: &'p [usize],
    pub(super) x: &'p mut D::Buf,
    kept_x: &'p mut D::Buf,
    pub(super) normed: &'p mut D::Buf,
    pub(super) delta: &'p mut D::Buf,
    pub(super) normed_delta: &'p mut D::Buf,
    first_values: &'p mut D::Buf,
    /// Vectors of the tokens for each layer.
    pub(super) inputs: Option<&'p mut InputRows<D>>,
    source_kv: Option<&'p mut D::Buf>,
    /// Residual streams, where there are more than one.
    pub(super) streams: Option<&'p mut StreamRows<D>>,
    qkv: &'p mut [Vec<(usize, D::Buf)>; 2],
    attended: &'p mut [Vec<(usize, D::Buf)>; 2],
    kept_attended: &'p mut [Vec<(usize, D::Buf)>; 2],
    /// Rows of the table of learned positions; scratch afterwards.
    position_rows: &'p mut Vec<TokenId>,
    /// Kinds of the tokens, or none where all have the first.
    token_kinds: &'p [TokenId],
    /// Notes the time of each operation where that is asked for.
    pub(super) clock: Clock<'p>,
}

/// One layer in one pass.
pub(super) struct Layer<'p, D: Ops> {
    pub(super) spec: &'p LayerSpec,
    pub(super) weights: &'p LayerWeights<D>,
    /// Index of the layer.
    pub(super) idx: usize,
    /// Where its keys and values lie, or those that it reads, and its state.
    pub(super) place: MemoryPlace,
    /// Whether it is the last one, after whose attention only the rows asked for go on.
    pub(super) is_last: bool,
    /// Norm of what the layer leaves: the first one of the next layer, or the final one.
    pub(super) next_norm: Option<&'p Norm<D>>,
}

impl<D: Ops> Layer<'_, D> {
    /// Whether it has a sequence mixer.
    pub(super) fn mixes_rows(&self) -> bool {
        !matches!(self.weights.attention, Mixer::Absent(_))
    }

    /// Whether its channel mixer reads a norm, and not the residual stream.
    pub(super) fn mlp_reads_norm(&self) -> bool {
        self.spec.wiring.pre_norm && !self.spec.mlp.reads_stream()
    }

    /// Whether it has a channel mixer.
    pub(super) fn mixes_channels(&self) -> bool {
        !matches!(self.weights.mlp, Mlp::Absent(_))
    }
}

/// One layer's sequence mixer in one step.
enum MixerOp<'p, D: Ops> {
    Gqa(AttentionOp<'p, D>),
    Cross(CrossOp<'p, D>),
    Mla(LatentOp<'p, D>),
    Recurrent(RecurrentOp<'p, D>),
    Selective(SelectiveOp<'p, D>),
    ShortConv(ConvOp<'p, D>),
    Shift(ShiftOp<'p, D>),
}

impl<'p, D: Ops> MixerOp<'p, D> {
    /// The first or only mixer of a layer, or the second one.
    fn new(rows: D::Rows<'p>, place: &Layer<'p, D>, nth: usize) -> Self {
        let (MemoryPlace { pages, state }, group) = (place.place, place.spec.kv_group);
        match &place.weights.attention {
            Mixer::Parallel(Module { spec, weights }) if nth == 0 => {
                let (recurrent, weights) = (&spec.recurrent, &weights.recurrent);
                Self::Recurrent(RecurrentOp { rows, layer: state, recurrent, weights })
            }
            Mixer::Parallel(Module { spec, weights }) => {
                let (gqa, weights) = (&spec.attention, &weights.attention);
                Self::Gqa(AttentionOp { rows, place: pages, group, gqa, weights })
            }
            Mixer::SelectiveScan(Module { spec: scan, weights }) => {
                Self::Selective(SelectiveOp { rows, layer: state, scan, weights })
            }
            Mixer::Gqa(Module { spec: gqa, weights }) => {
                Self::Gqa(AttentionOp { rows, place: pages, group, gqa, weights })
            }
            Mixer::CrossAttention(Module { spec: cross, weights }) => {
                Self::Cross(CrossOp { rows, place: pages, group, cross, weights })
            }
            Mixer::Mla(Module { spec: mla, weights }) => {
                Self::Mla(LatentOp { rows, place: pages, group, mla, weights })
            }
            Mixer::Recurrent(Module { spec: recurrent, weights }) => {
                Self::Recurrent(RecurrentOp { rows, layer: state, recurrent, weights })
            }
            Mixer::ShortConv(Module { spec: conv, weights }) => {
                Self::ShortConv(ConvOp { rows, layer: state, conv, weights })
            }
            Mixer::TimeMix(Module { spec, weights }) => {
                let mixer = ShiftMixer::Time(spec, weights);
                Self::Shift(ShiftOp { rows, layer: state, mixer })
            }
            Mixer::ChannelMix(Module { spec, weights }) => {
                let mixer = ShiftMixer::Channel(spec, weights);
                Self::Shift(ShiftOp { rows, layer: state, mixer })
            }
            Mixer::Absent(_) => unreachable!("invariant: layers without a mixer skip it"),
        }
    }
}

/// The buffer of this width.
fn of_width<T>(buffers: &mut [(usize, T)], width: usize) -> &mut T {
    let found = buffers.iter_mut().find(|(w, _)| *w == width);
    &mut found.expect("invariant: there is a buffer for every width of the spec").1
}

impl<'p, D: Ops> Pass<'p, D> {
    /// Begins a step on the rows that `buffers` has placed.
    pub(super) fn begin(
        device: &'p mut D,
        buffers: &'p mut Buffers<D>,
        input: &ForwardInput<'p>,
        ropes: &[RopeTable],
    ) -> Self {
        let Buffers { all, kept, x, kept_x, normed, delta, normed_delta, .. } = buffers;
        let rows = device.place_rows(all.rows(input.sequences));
        let kept = device.place_rows(kept.rows(input.sequences));
        let turn = device.begin_step(rows, ropes);
        Self {
            _turn: turn,
            device,
            rows,
            kept,
            kept_rows: input.logits_rows,
            x,
            kept_x,
            normed,
            delta,
            normed_delta,
            inputs: buffers.inputs.as_mut(),
            streams: buffers.streams.as_mut(),
            first_values: &mut buffers.first_values,
            source_kv: buffers.source_kv.as_mut(),
            qkv: &mut buffers.qkv,
            attended: &mut buffers.attended,
            kept_attended: &mut buffers.kept_attended,
            position_rows: &mut buffers.position_rows,
            token_kinds: &buffers.token_kinds,
            clock: Clock::start(None, 0),
        }
    }

    /// Writes the embeddings of tokens and what is added to them to `x`, and their first norm.
    pub(super) fn embed(&mut self, spec: &ArchSpec, weights: &Weights<D>, tokens: &[TokenId]) {
        self.embed_placed(spec, weights, weights.positions.as_ref(), tokens);
        let Self { device, x, delta, position_rows: rows, .. } = self;
        if let Some(table) = &weights.token_types {
            rows.clear();
            rows.extend_from_slice(self.token_kinds);
            rows.resize(tokens.len(), TokenId(0));
            device.embed(table, rows, delta);
            device.add(x, delta);
        }
        if let Some(norm) = &weights.embedding_norm {
            device.norm(x, norm, delta);
            std::mem::swap(x, delta);
        }
        if let Some(inputs) = &weights.inputs {
            self.make_inputs(inputs, tokens);
        }
        if let Some(streams) = &weights.streams {
            self.split_streams(streams);
            return self.clock.lap(StepOp::Embed);
        }
        let Self { device, x, .. } = self;
        // A walk loads its layers later.
        if let Some(norm) = weights.layers.first().and_then(LayerWeights::first_norm) {
            device.norm(x, norm, self.normed);
        }
        self.clock.lap(StepOp::Embed);
    }

    /// The same for the tokens of sources, up to the first norm of the encoder.
    pub(super) fn embed_source(
        &mut self,
        spec: &ArchSpec,
        weights: &Weights<D>,
        encoder: &EncoderWeights<D>,
        tokens: &[TokenId],
    ) {
        self.embed_placed(spec, weights, encoder.positions.as_ref(), tokens);
        let Self { device, x, delta, normed, .. } = self;
        if let Some(norm) = &encoder.embedding_norm {
            device.norm(x, norm, delta);
            std::mem::swap(x, delta);
        }
        if let Some(norm) = encoder.layers.first().and_then(LayerWeights::first_norm) {
            device.norm(x, norm, normed);
        }
        self.clock.lap(StepOp::Embed);
    }

    /// Writes the embeddings of tokens, scaled, and those of their positions to `x`.
    fn embed_placed(
        &mut self,
        spec: &ArchSpec,
        weights: &Weights<D>,
        positions: Option<&D::Weight>,
        tokens: &[TokenId],
    ) {
        let Self { device, x, delta, position_rows: rows, .. } = self;
        device.embed(&weights.embedding, tokens, x);
        if spec.embedding_scale != 1.0 {
            device.scale(x, spec.embedding_scale);
        }
        if let Some(table) = positions {
            device.embed(table, rows, delta);
            device.add(x, delta);
        }
    }

    /// Stores the keys and values that a layer of the decoder reads of the encoder's last rows.
    pub(super) fn store_source(&mut self, layer: &Layer<'p, D>, has_norm: bool, kv: &mut D::Kv) {
        let Self { device, x, normed, source_kv, .. } = self;
        let Mixer::CrossAttention(Module { spec: cross, weights }) = &layer.weights.attention
        else {
            return;
        };
        let (place, group) = (layer.place.pages, layer.spec.kv_group);
        let op = CrossOp { rows: self.rows, place, group, cross, weights };
        let rows = source_kv.as_deref_mut().expect("invariant: a buffer for what is stored");
        device.store_source(&op, if has_norm { normed } else { x }, kv, rows);
        self.clock.lap(StepOp::Project);
    }

    /// Projects the rows for attention, and stores what later tokens see.
    pub(super) fn project(&mut self, layer: &Layer<'p, D>, kv: &mut D::Kv) {
        let has_norm = layer.weights.attention_norm.is_some();
        let input = if has_norm { &*self.normed } else { &*self.x };
        for (nth, width) in layer.spec.mixer.query_widths().into_iter().enumerate() {
            if width == 0 {
                continue;
            }
            let qkv = of_width(&mut self.qkv[nth], width);
            match MixerOp::new(self.rows, layer, nth) {
                MixerOp::Gqa(op) => self.device.qkv_rope_store(&op, input, kv, qkv),
                MixerOp::Cross(op) => self.device.linear(self.rows, &op.weights.q, input, qkv),
                MixerOp::Mla(op) => self.device.latent_project_store(&op, input, kv, qkv),
                MixerOp::Recurrent(op) => {
                    self.device.linear(self.rows, &op.weights.input, input, qkv);
                }
                MixerOp::Selective(op) => {
                    self.device.linear(self.rows, &op.weights.input, input, qkv);
                }
                MixerOp::ShortConv(op) => {
                    self.device.linear(self.rows, &op.weights.input, input, qkv);
                }
                // Rows are mixed with the rows before them first.
                MixerOp::Shift(_) => {}
            }
        }
        self.clock.lap(StepOp::Project);
    }

    /// Goes on to the channel mixer of a layer that has no other one.
    pub(super) fn skip_mixer(&mut self, layer: &Layer<'p, D>) {
        if !layer.is_last {
            return;
        }
        self.keep_stream();
        if let Some(norm) = &layer.weights.mlp_norm {
            // A norm's output may lie in a form that cannot be taken apart.
            self.device.norm(self.x, norm, self.normed);
        }
        self.clock.lap(StepOp::Gather);
    }

    /// Attention of the projected rows, and its sum with the residual stream.
    pub(super) fn attend(&mut self, layer: &Layer<'p, D>, kv: &mut D::Kv) {
        self.mix_rows(layer, kv);
        if layer.is_last {
            self.keep(layer.spec.mixer.out_widths());
        }
        self.add_mixed(layer);
    }

    /// Output of the sequence mixer.
    pub(super) fn mix_rows(&mut self, layer: &Layer<'p, D>, kv: &mut D::Kv) {
        let (mixer, device) = (&layer.spec.mixer, &mut *self.device);
        let has_norm = layer.weights.attention_norm.is_some();
        let input = if has_norm { &*self.normed } else { &*self.x };
        let widths = mixer.query_widths().into_iter().zip(mixer.out_widths());
        for (nth, (query_width, out_width)) in widths.enumerate() {
            if query_width == 0 {
                continue;
            }
            let qkv = of_width(&mut self.qkv[nth], query_width);
            let attended = of_width(&mut self.attended[nth], out_width);
            match MixerOp::new(self.rows, layer, nth) {
                MixerOp::Gqa(op) => device.paged_attention(&op, qkv, kv, attended),
                MixerOp::Cross(op) => device.cross_attention(&op, qkv, kv, attended),
                MixerOp::Mla(op) => device.latent_attention(&op, qkv, kv, attended),
                MixerOp::Recurrent(op) => device.recurrence(&op, qkv, kv, attended),
                MixerOp::Selective(op) => device.selective_scan(&op, qkv, kv, attended),
                MixerOp::ShortConv(op) => device.short_conv(&op, qkv, kv, attended),
                MixerOp::Shift(op) => device.shift(&op, input, self.first_values, kv, attended),
            }
        }
        self.clock.lap(StepOp::Attend);
    }

    /// The projection of what attention gave, its sum with the residual stream, and the next norm.
    pub(super) fn add_mixed(&mut self, layer: &Layer<'p, D>) {
        let attended = if layer.is_last { &mut *self.kept_attended } else { &mut *self.attended };
        let widths = layer.spec.mixer.out_widths();
        let [out, second] = layer.weights.attention.outs();
        let out = out.expect("invariant: the layer has a mixer");
        self.device.linear(self.rows, out, of_width(&mut attended[0], widths[0]), self.delta);
        if let Some(out) = second {
            let attended = of_width(&mut attended[1], widths[1]);
            self.device.linear(self.rows, out, attended, self.normed_delta);
            self.device.add(self.delta, self.normed_delta);
        }
        self.clock.lap(StepOp::Out);
        let post_norm = layer.weights.attention_post_norm.as_ref();
        self.finish_delta(&layer.spec.wiring, post_norm);
        if layer.weights.streams.is_some() {
            self.add_low(layer);
            return self.clock.lap(StepOp::Norm);
        }
        let mlp_norm = match layer.spec.wiring.residual {
            // The norm that attention read, but for the last layer, where fewer rows go on.
            Residual::ParallelOneNorm if layer.is_last => layer.weights.attention_norm.as_ref(),
            _ if !layer.mixes_channels() => layer.next_norm,
            _ => layer.weights.mlp_norm.as_ref(),
        };
        if let Residual::OfNorms { kept, added } = layer.spec.wiring.residual {
            self.rescale(layer.weights.attention_norm.as_ref(), [kept[0], added[0]]);
        }
        let Self { device, x, delta, normed, .. } = self;
        match (mlp_norm, layer.spec.wiring.residual) {
            (Some(norm), Residual::Sequential | Residual::OfNorms { .. }) => {
                device.add_norm(x, delta, norm, normed)
            }
            (_, Residual::Normed) => self.add_and_norm(post_norm),
            (norm, _) => {
                if let Some(norm) = norm {
                    device.norm(x, norm, normed);
                }
                device.add(x, delta);
            }
        }
        self.clock.lap(StepOp::Norm);
    }

    /// The channel mixer, its sum with the residual stream, and the norm after it: to `normed`, or as
    /// floats to `normed_delta` where `is_read` says that the host reads it.
    pub(super) fn mix_channels(&mut self, layer: &Layer<'p, D>, is_read: bool) {
        let wiring = &layer.spec.wiring;
        let input = if layer.mlp_reads_norm() { &*self.normed } else { &*self.x };
        self.device.mlp(self.rows, &layer.weights.mlp, input, self.delta);
        self.clock.lap(StepOp::Mlp);
        let post_norm = layer.weights.mlp_post_norm.as_ref();
        self.finish_delta(wiring, post_norm);
        if let Residual::OfNorms { kept, added } = wiring.residual {
            self.rescale(layer.weights.mlp_norm.as_ref(), [kept[1], added[1]]);
        }
        if layer.weights.streams.is_some() {
            self.device.add(self.x, self.delta);
            self.correct_streams(layer);
            return self.clock.lap(StepOp::Norm);
        }
        if layer.weights.input.is_some() || layer.weights.scale.is_some() {
            self.device.add(self.x, self.delta);
            self.finish_layer(layer);
            let Self { device, x, normed, normed_delta, .. } = self;
            if let Some(norm) = layer.next_norm {
                device.norm(x, norm, if is_read { normed_delta } else { normed });
            }
            return self.clock.lap(StepOp::Norm);
        }
        let Self { device, x, delta, normed, normed_delta, .. } = self;
        match layer.next_norm {
            Some(norm) if is_read => device.add_norm(x, delta, norm, normed_delta),
            Some(norm) => device.add_norm(x, delta, norm, normed),
            None if wiring.residual == Residual::Normed => self.add_and_norm(post_norm),
            None => device.add(x, delta),
        }
        self.clock.lap(StepOp::Norm);
    }

    /// Logits of the rows that are left, or their likeliest tokens; `is_normed` says whether the model
    /// has a norm after the last layer.
    pub(super) fn head(
        mut self,
        head: &Head<'_, D>,
        is_normed: bool,
        logits: &mut Vec<f32>,
        greedy: GreedyRows<'_>,
    ) {
        let input = if is_normed { &*self.normed } else { &*self.x };
        self.device.head(self.rows, head, input, logits, greedy);
        self.clock.lap(StepOp::Head);
    }

    /// Logits of the first rows that are left, and then of the scored ones, a piece at a time. Each
    /// piece is normed anew from the residual stream, because a norm's output may lie in a form that
    /// cannot be taken apart.
    pub(super) fn head_in_pieces(
        self,
        head: &Head<'_, D>,
        norm: Option<&Norm<D>>,
        logits: &mut Vec<f32>,
        greedy: GreedyRows<'_>,
        scored: ScoredRows<'_>,
    ) {
        let Self { device, rows, kept_rows, x, normed, delta, .. } = self;
        let n_plain = kept_rows.len() - scored.n_rows;
        let mut places: Vec<usize> = (0..n_plain).collect();
        let mut compute = |places: &[usize], logits: &mut Vec<f32>, greedy: GreedyRows<'_>| {
            device.gather_rows(x, places, delta);
            match norm {
                Some(norm) => {
                    device.norm(delta, norm, normed);
                    device.head(rows, head, normed, logits, greedy);
                }
                None => device.head(rows, head, delta, logits, greedy),
            }
        };
        match n_plain {
            0 => logits.clear(),
            _ => compute(&places, logits, greedy),
        }
        let (mut piece, mut tokens) = (Vec::new(), Vec::new());
        for first in (0..scored.n_rows).step_by(scored.piece_rows.max(1)) {
            let end = scored.n_rows.min(first + scored.piece_rows.max(1));
            places.clear();
            places.extend(n_plain + first..n_plain + end);
            let none = GreedyRows { n_rows: 0, n_sampled: 0, tokens: &mut tokens };
            compute(&places, &mut piece, none);
            for (i, row) in piece.chunks_exact(piece.len() / (end - first)).enumerate() {
                (scored.each)(first + i, row);
            }
        }
    }

    /// Copies to the host what the matrices of a layer read at a place that has a buffer.
    pub(super) fn read_input(&self, reads: Reads, layer: &Layer<'_, D>, out: &mut Vec<f32>) {
        let has_norm = match reads {
            Reads::Mixer => layer.weights.attention_norm.is_some(),
            _ => layer.mlp_reads_norm(),
        };
        if reads != Reads::Attended {
            return self.device.read(if has_norm { self.normed } else { self.x }, out);
        }
        let width = layer.spec.mixer.out_width();
        let found = self.attended[0].iter().find(|(own, _)| *own == width);
        let (_, attended) = found.expect("invariant: there is a buffer for every width");
        self.device.read(attended, out);
    }

    /// Copies the rows that are left to the host, their norm where `is_normed`.
    pub(super) fn read(self, is_normed: bool, out: &mut Vec<f32>) {
        self.device.read(if is_normed { self.normed_delta } else { self.x }, out);
    }

    /// Goes on with the rows asked for.
    fn keep(&mut self, out_widths: [usize; 2]) {
        for (nth, width) in out_widths.into_iter().enumerate().filter(|(_, width)| *width > 0) {
            let attended = of_width(&mut self.attended[nth], width);
            let kept_attended = of_width(&mut self.kept_attended[nth], width);
            self.device.gather_rows(attended, self.kept_rows, kept_attended);
        }
        self.keep_stream();
        self.clock.lap(StepOp::Gather);
    }

    /// Goes on with the rows asked for of the residual stream, and of what tokens have beside it.
    fn keep_stream(&mut self) {
        self.device.gather_rows(self.x, self.kept_rows, self.kept_x);
        std::mem::swap(&mut self.x, &mut self.kept_x);
        if let Some(inputs) = &mut self.inputs {
            inputs.keep(self.device, self.kept_rows);
        }
        if let Some(streams) = &mut self.streams {
            streams.keep(self.device, self.kept_rows);
        }
        self.rows = self.kept;
    }

    /// Norms and scales `delta`, which a mixer adds to the residual stream, as the wiring says.
    fn finish_delta(&mut self, wiring: &Wiring, post_norm: Option<&Norm<D>>) {
        let Self { device, delta, normed_delta, .. } = self;
        if let Some(norm) = post_norm.filter(|_| wiring.residual != Residual::Normed) {
            device.norm(delta, norm, normed_delta);
            std::mem::swap(delta, normed_delta);
        }
        if wiring.scale != 1.0 {
            device.scale(delta, wiring.scale);
        }
    }

    /// `x = kept · norm(x)`, `delta = added · delta`; the norm that the mixer read may lie in a form that
    /// cannot be taken apart, so it is computed anew.
    fn rescale(&mut self, norm: Option<&Norm<D>>, [kept, added]: [f32; 2]) {
        let Self { device, x, delta, normed_delta, .. } = self;
        if let Some(norm) = norm {
            device.norm(x, norm, normed_delta);
            std::mem::swap(x, normed_delta);
        }
        for (rows, factor) in [(x, kept), (delta, added)] {
            if factor != 1.0 {
                device.scale(rows, factor);
            }
        }
    }

    /// `x = norm(x + delta)`; `delta` is scratch afterwards.
    fn add_and_norm(&mut self, norm: Option<&Norm<D>>) {
        let Self { device, x, delta, .. } = self;
        device.add(x, delta);
        if let Some(norm) = norm {
            device.norm(x, norm, delta);
            std::mem::swap(x, delta);
        }
    }
}
