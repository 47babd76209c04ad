//! Encoder-decoder models: the encoder's part of a step.
//!
//! ```text
//! sequence    | source, n_source tokens | up to a whole block | own tokens of the decoder ... |
//! position    0                                               own_start
//! this step   |------ encoder --------->|   not computed      |------ decoder --------------->|
//!
//! source rows ── embed ── layers (each row sees its whole source) ── last norm ──> h
//! h ── k·v of each layer of the decoder ──▶ pages of the source's positions
//! ```
//!
//! A source is computed whole, in one step. While the encoder runs, its layers keep the keys and values of
//! their rows where the decoder's first layer will have its own for the same tokens.

use std::ops::Range;

use pelton_base::TokenId;

use super::laps::Clock;
use super::pass::{Layer, Pass};
use super::{Decoder, ForwardInput};
use crate::device::{ForwardSequence, Ops};

/// The rows of a step in which sources are read: those of the encoder, and those of the decoder.
pub(super) struct SourceSplit<'a> {
    pub(super) sources: Part<'a>,
    pub(super) own: Part<'a>,
}

/// Some rows of a step, numbered anew.
#[derive(Default)]
pub(super) struct Part<'a> {
    tokens: Vec<TokenId>,
    sequences: Vec<ForwardSequence<'a>>,
    logits_rows: Vec<usize>,
}

impl<'a> Part<'a> {
    pub(super) fn input(&self) -> ForwardInput<'_> {
        let Self { tokens, sequences, logits_rows } = self;
        ForwardInput { tokens, sequences, logits_rows }
    }

    /// Takes rows of a sequence, the first of which is at `first_position`.
    fn push(
        &mut self,
        input: &ForwardInput<'a>,
        sequence: ForwardSequence<'a>,
        rows: Range<usize>,
        first_position: usize,
    ) {
        let first = self.tokens.len();
        self.tokens.extend_from_slice(&input.tokens[rows]);
        self.sequences.push(ForwardSequence {
            rows: first..self.tokens.len(),
            first_position,
            ..sequence
        });
    }
}

impl<'a> SourceSplit<'a> {
    /// Splits the rows of a step; `None` where no source is read in it.
    ///
    /// # Panics
    ///
    /// When a step has a part of a source, or when logits of a source are asked for.
    pub(super) fn new(input: &ForwardInput<'a>, block_size: usize) -> Option<Self> {
        let reads = |sequence: &ForwardSequence<'_>| sequence.first_position < sequence.n_source;
        if !input.sequences.iter().any(reads) {
            return None;
        }
        let mut split = Self { sources: Part::default(), own: Part::default() };
        // Row of the decoder's part that each row of the step is, if it is one.
        let mut own_rows: Vec<Option<usize>> = vec![None; input.tokens.len()];
        for sequence in input.sequences {
            let mut rows = sequence.rows.clone();
            let mut first_position = sequence.first_position;
            if reads(sequence) {
                let (n_source, own_start) = (sequence.n_source, sequence.own_start(block_size));
                assert!(first_position == 0 && rows.len() >= own_start, "a source is read whole");
                let source = ForwardSequence { n_source: 0, ..sequence.clone() };
                split.sources.push(input, source, rows.start..rows.start + n_source, 0);
                rows.start += own_start;
                first_position = own_start;
            }
            if rows.is_empty() {
                continue;
            }
            for (i, row) in rows.clone().enumerate() {
                own_rows[row] = Some(split.own.tokens.len() + i);
            }
            split.own.push(input, sequence.clone(), rows, first_position);
        }
        let own = |row: &usize| own_rows[*row].expect("rows of a source have no logits");
        split.own.logits_rows.extend(input.logits_rows.iter().map(own));
        Some(split)
    }
}

impl<D: Ops> Decoder<D> {
    /// Runs the encoder over whole sources, and stores what the decoder reads of them.
    pub(super) fn encode(&mut self, kv: &mut D::Kv, input: &ForwardInput<'_>) {
        let Self { spec, weights, device, buffers, ropes, laps, places, .. } = self;
        let (Some(encoder), Some(own)) = (&spec.encoder, &weights.encoder) else {
            panic!("a source in a model without an encoder");
        };
        buffers.place_sources((spec, encoder), input, D::kv_block_size(kv));
        let mut pass = Pass::begin(device, buffers, input, ropes);
        pass.clock = Clock::start(laps.as_mut(), input.tokens.len());
        pass.embed_source(spec, weights, own, input.tokens);
        for (i, (layer_spec, layer_weights)) in encoder.layers.iter().zip(&own.layers).enumerate() {
            let layer = Layer {
                spec: layer_spec,
                weights: layer_weights,
                idx: i,
                place: places[0],
                // All rows go on.
                is_last: false,
                next_norm: match own.layers.get(i + 1) {
                    Some(next) => next.first_norm(),
                    None => own.final_norm.as_ref(),
                },
            };
            pass.clock.enter(i);
            pass.project(&layer, kv);
            pass.attend(&layer, kv);
            pass.mix_channels(&layer, false);
        }
        for (i, (layer_spec, layer_weights)) in spec.layers.iter().zip(&weights.layers).enumerate()
        {
            let layer = Layer {
                spec: layer_spec,
                weights: layer_weights,
                idx: i,
                place: places[i],
                is_last: false,
                next_norm: None,
            };
            pass.clock.enter(i);
            pass.store_source(&layer, own.final_norm.is_some(), kv);
        }
    }
}
