//! The sequences of a step in the form of the kernels.

use pelton_kernels::AttentionSeq;

use crate::device::{ForwardSequence, StepRows};

const _: () = assert!(ForwardSequence::ROOT == AttentionSeq::ROOT);

/// Memory for the sequences of a step, kept from layer to layer; empty between operations.
#[derive(Debug, Default)]
pub(super) struct Sequences(Vec<AttentionSeq<'static>>);

impl Sequences {
    /// Calls `f` with the sequences of a step and their block tables in one memory group.
    pub(super) fn with(
        &mut self,
        rows: &StepRows<'_>,
        group: usize,
        f: impl FnOnce(&[AttentionSeq<'_>]),
    ) {
        let mut sequences: Vec<AttentionSeq<'_>> = std::mem::take(&mut self.0);
        sequences.extend(rows.sequences.iter().map(|sequence| AttentionSeq {
            rows: sequence.rows.clone(),
            first_position: sequence.first_position,
            block_table: sequence.block_tables.group(group),
            tree: sequence.tree,
        }));
        f(&sequences);
        sequences.clear();
        // Collecting into elements of the same layout keeps the memory.
        let kept = sequences.into_iter().map(|_| unreachable!("invariant: it is empty"));
        self.0 = kept.collect();
    }
}
