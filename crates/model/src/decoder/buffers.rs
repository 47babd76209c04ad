//! The rows between the operations of a step.

use pelton_base::TokenId;

use super::ForwardInput;
use super::inputs::InputRows;
use super::streams::StreamRows;
use crate::arch::{ArchSpec, EncoderSpec, LayerSpec, LearnedPositions, Mixer};
use crate::device::{Ops, RowPlan};

/// Rows between operations, kept from step to step.
#[derive(Debug)]
pub(super) struct Buffers<D: Ops> {
    /// Places of all rows.
    pub(super) all: RowPlan,
    /// Places of the rows asked for.
    pub(super) kept: RowPlan,
    /// Rows of the table of learned positions, where there is one.
    pub(super) position_rows: Vec<TokenId>,
    /// Kinds of the tokens of a step, where there is a table of them; empty where all are the first.
    pub(super) token_kinds: Vec<TokenId>,
    /// The residual stream, `[m, hidden]`.
    pub(super) x: D::Buf,
    /// A norm's output, `[m, hidden]`, read by the projections and the head.
    pub(super) normed: D::Buf,
    /// Output of a mixer, which is added to the residual stream, `[m, hidden]`.
    pub(super) delta: D::Buf,
    /// Output of a mixer after a norm of its own, `[m, hidden]`.
    pub(super) normed_delta: D::Buf,
    /// Values of the first layer, which later layers mix with their own, in families that do so.
    pub(super) first_values: D::Buf,
    /// Queries, keys and values, or queries alone; `[m, query_width]`, one per distinct width of the
    /// first or only mixer of layers, and of the second one.
    pub(super) qkv: [Vec<(usize, D::Buf)>; 2],
    /// Output of attention, `[m, out_width]`, likewise.
    pub(super) attended: [Vec<(usize, D::Buf)>; 2],
    /// Rows of the last layer's `attended` that go on, likewise.
    pub(super) kept_attended: [Vec<(usize, D::Buf)>; 2],
    /// Keys and values of the rows of an encoder for one layer, `[m, 2 * width]`, where there is one.
    pub(super) source_kv: Option<D::Buf>,
    /// Rows of the last layer's `x` that go on.
    pub(super) kept_x: D::Buf,
    /// Vectors of the tokens for each layer, where they have such.
    pub(super) inputs: Option<InputRows<D>>,
    /// Residual streams, where there are more than one.
    pub(super) streams: Option<StreamRows<D>>,
}

impl<D: Ops> Buffers<D> {
    /// Buffers for a model of this shape; `normed` is the one that norms write.
    pub(super) fn new(spec: &ArchSpec, device: &D, normed: D::Buf) -> Self {
        let hidden = spec.hidden_size;
        let per_width = |widths_of: &dyn Fn(&Mixer) -> [usize; 2]| {
            [0, 1].map(|nth| {
                let width = |layer: &LayerSpec| widths_of(&layer.mixer)[nth];
                let of_encoder = spec.encoder.iter().flat_map(|encoder| &encoder.layers);
                let mut widths: Vec<usize> =
                    spec.layers.iter().chain(of_encoder).map(width).collect();
                widths.sort_unstable();
                widths.dedup();
                widths.retain(|width| *width > 0);
                widths.into_iter().map(|width| (width, device.buffer(width))).collect()
            })
        };
        Self {
            all: RowPlan::default(),
            kept: RowPlan::default(),
            position_rows: Vec::new(),
            token_kinds: Vec::new(),
            x: device.buffer(hidden),
            normed,
            delta: device.buffer(hidden),
            normed_delta: device.buffer(hidden),
            first_values: device.buffer(hidden),
            qkv: per_width(&Mixer::query_widths),
            attended: per_width(&Mixer::out_widths),
            kept_attended: per_width(&Mixer::out_widths),
            source_kv: spec.cross_width().map(|width| device.buffer(2 * width)),
            kept_x: device.buffer(hidden),
            inputs: InputRows::new(spec, device),
            streams: StreamRows::new(spec, device),
        }
    }

    /// Places every row and those asked for; checks the input's contract on the way.
    pub(super) fn place(&mut self, spec: &ArchSpec, input: &ForwardInput<'_>, block_size: usize) {
        check_tokens(spec, input);
        self.place_rows(spec, input, block_size);
    }

    /// As [`place`](Self::place), for rows whose tokens are not looked up in the embedding.
    pub(super) fn place_rows(
        &mut self,
        spec: &ArchSpec,
        input: &ForwardInput<'_>,
        block_size: usize,
    ) {
        let most = spec.encoder.as_ref().map_or(spec.max_context, |encoder| encoder.max_own);
        self.place_within((spec, spec.positions, most), input, block_size);
    }

    /// Places the rows of sources, for the encoder.
    pub(super) fn place_sources(
        &mut self,
        (spec, encoder): (&ArchSpec, &EncoderSpec),
        input: &ForwardInput<'_>,
        block_size: usize,
    ) {
        check_tokens(spec, input);
        self.place_within((spec, encoder.positions, encoder.max_source), input, block_size);
    }

    /// Places rows whose positions are below `most`.
    fn place_within(
        &mut self,
        (spec, table, most): (&ArchSpec, Option<LearnedPositions>, usize),
        input: &ForwardInput<'_>,
        block_size: usize,
    ) {
        let Self { all, kept, position_rows, .. } = self;
        all.place(input.sequences, spec.n_kv_groups(), block_size);
        kept.gather(all, input.logits_rows);
        let positions = all.positions();
        let end = positions.iter().max().map_or(0, |last| last + 1);
        assert!(end <= most, "position {end} is beyond the context of {most}");
        assert_eq!(positions.len(), input.tokens.len(), "rows cover the tokens");
        position_rows.clear();
        if let Some(table) = table {
            let rows = positions.iter().map(|position| position + table.first_row);
            position_rows.extend(rows.map(|row| TokenId(row as u32)));
        }
    }
}

/// Panics unless the embedding has a row for each token.
fn check_tokens(spec: &ArchSpec, input: &ForwardInput<'_>) {
    for token in input.tokens {
        assert!((token.0 as usize) < spec.vocab_size, "token {token} is not a token");
    }
}
