//! A linear recurrence and attention side by side (TII, 2025: Falcon-H1): both read the layer's input,
//! and what they project is added.
//!
//! ```text
//! x ─┬─ recurrence ── out ─┬─> + ──> delta
//!    └─ attention  ── out ─┘
//! ```
//!
//! The layer keeps pages of keys and values and a state.

use super::kind::Stages;
use super::{
    Found, Gqa, GqaWeights, Kept, Kind, Linear, MixerKind, Packed, PlannedTensors, Recurrent,
    RecurrentWeights,
};
use crate::device::Device;
use crate::error::ModelError;
use crate::export::Listing;
use crate::load::{Lookup, Packer};
use crate::parameters::Parameters;

/// A linear recurrence and attention side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Parallel {
    /// The recurrence.
    pub recurrent: Recurrent,
    /// The attention.
    pub attention: Gqa,
}

/// Packed weights of a recurrence and of attention.
#[derive(Debug)]
pub struct ParallelWeights<B: Device> {
    /// Of the recurrence.
    pub recurrent: RecurrentWeights<B>,
    /// Of the attention.
    pub attention: GqaWeights<B>,
}

/// Tensors of a recurrence and of attention.
pub struct ParallelPlan<'a> {
    recurrent: <Recurrent as Kind>::Plan<'a>,
    attention: <Gqa as Kind>::Plan<'a>,
}

impl Kind for Parallel {
    type Plan<'a> = ParallelPlan<'a>;
    type Weights<B: Device> = ParallelWeights<B>;

    fn n_weights(&self, hidden_size: usize) -> usize {
        self.recurrent.n_weights(hidden_size) + self.attention.n_weights(hidden_size)
    }

    fn parameters(&self, hidden_size: usize, head_rows: usize) -> Parameters {
        let attention = self.attention.parameters(hidden_size, head_rows);
        self.recurrent.parameters(hidden_size, head_rows).and(attention)
    }
}

impl MixerKind for Parallel {
    fn n_heads(&self) -> usize {
        self.attention.n_heads
    }

    fn kept(&self) -> Kept {
        Kept { state: self.recurrent.kept().state, pages: self.attention.kept().pages }
    }

    fn window(&self) -> Option<usize> {
        self.attention.window
    }

    fn is_causal(&self) -> bool {
        self.attention.is_causal
    }

    fn query_width(&self) -> usize {
        self.recurrent.query_width() + self.attention.query_width()
    }

    fn out_width(&self) -> usize {
        self.recurrent.out_width() + self.attention.out_width()
    }

    fn out<B: Device>(weights: &ParallelWeights<B>) -> Option<&Linear<B>> {
        Some(&weights.recurrent.out)
    }
}

impl<'a> Found<'a> for ParallelPlan<'a> {
    fn tensors(&self) -> PlannedTensors<'_, 'a> {
        let mut all = self.recurrent.tensors();
        let PlannedTensors { linears, by_head, vectors, n_made } = self.attention.tensors();
        all.linears.extend(linears);
        all.by_head.extend(by_head);
        all.vectors.extend(vectors);
        all.n_made += n_made;
        all
    }
}

impl<B: Device> Packed<B> for ParallelWeights<B> {
    fn matrices(&self) -> Vec<&B::Weight> {
        [self.recurrent.matrices(), self.attention.matrices()].concat()
    }

    fn inputs(&self) -> Vec<&Linear<B>> {
        [self.recurrent.inputs(), self.attention.inputs()].concat()
    }
}

impl Stages for Parallel {
    fn plan<'a>(
        &self,
        lookup: &Lookup<'a, '_>,
        layer: usize,
    ) -> Result<ParallelPlan<'a>, ModelError> {
        let recurrent = self.recurrent.plan(lookup, layer)?;
        Ok(ParallelPlan { recurrent, attention: self.attention.plan(lookup, layer)? })
    }

    fn pack<B: Device>(
        &self,
        plan: &ParallelPlan<'_>,
        packer: &mut Packer<'_, B>,
    ) -> Result<ParallelWeights<B>, ModelError> {
        let recurrent = self.recurrent.pack(&plan.recurrent, packer)?;
        let attention = self.attention.pack(&plan.attention, packer)?;
        Ok(ParallelWeights { recurrent, attention })
    }

    fn list<'a>(
        &self,
        plan: ParallelPlan<'a>,
        layer: usize,
        list: &mut Listing<'a, '_>,
    ) -> Result<(), ModelError> {
        self.recurrent.list(plan.recurrent, layer, list)?;
        self.attention.list(plan.attention, layer, list)
    }
}
