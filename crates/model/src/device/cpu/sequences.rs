//! The sequences of a step in the form of the kernels.

use pelton_kernels::{AttentionSeq, StateSeq};

use crate::device::{ForwardSequence, StepRows};

const _: () = assert!(ForwardSequence::ROOT == AttentionSeq::ROOT);

/// Memory for the sequences of a step, kept from layer to layer; empty between operations.
#[derive(Debug, Default)]
pub(super) struct Sequences {
    by_pages: Vec<AttentionSeq<'static>>,
    by_lanes: Vec<StateSeq<'static>>,
}

impl Sequences {
    /// Calls `f` with the sequences of a step and their block tables in one memory group, those of
    /// sources left out.
    pub(super) fn with(
        &mut self,
        rows: &StepRows<'_>,
        group: usize,
        block_size: usize,
        f: impl FnOnce(&[AttentionSeq<'_>]),
    ) {
        let mut sequences: Vec<AttentionSeq<'_>> = emptied(std::mem::take(&mut self.by_pages));
        sequences.extend(rows.sequences.iter().map(|sequence| {
            let own_start = sequence.own_start(block_size);
            AttentionSeq {
                rows: sequence.rows.clone(),
                first_position: sequence.first_position - own_start,
                block_table: &sequence.block_tables.group(group)[own_start / block_size..],
                tree: sequence.tree,
            }
        }));
        f(&sequences);
        self.by_pages = emptied(sequences);
    }

    /// Calls `f` with the rows of a step as the last rows of their sources, so that a row that sees all
    /// rows ahead sees the whole source. More rows than the source has tokens are several sequences.
    pub(super) fn with_sources(
        &mut self,
        rows: &StepRows<'_>,
        group: usize,
        f: impl FnOnce(&[AttentionSeq<'_>]),
    ) {
        let mut sequences: Vec<AttentionSeq<'_>> = emptied(std::mem::take(&mut self.by_pages));
        for sequence in rows.sequences {
            let n_source = sequence.n_source;
            for start in sequence.rows.clone().step_by(n_source) {
                let end = sequence.rows.end.min(start + n_source);
                sequences.push(AttentionSeq {
                    rows: start..end,
                    first_position: n_source - (end - start),
                    block_table: sequence.block_tables.group(group),
                    tree: None,
                });
            }
        }
        f(&sequences);
        self.by_pages = emptied(sequences);
    }

    /// Calls `f` with the sequences of a step and their lanes.
    ///
    /// # Panics
    ///
    /// When a sequence has no lane.
    pub(super) fn with_lanes(&mut self, rows: &StepRows<'_>, f: impl FnOnce(&[StateSeq<'_>])) {
        let mut sequences: Vec<StateSeq<'_>> = emptied(std::mem::take(&mut self.by_lanes));
        sequences.extend(rows.sequences.iter().map(|sequence| {
            let lane = sequence.lane.expect("invariant: a lane for each sequence");
            StateSeq {
                rows: sequence.rows.clone(),
                first_position: sequence.first_position,
                lane: lane.idx,
                border: lane.border,
                saves: lane.saves,
                tree: sequence.tree,
            }
        }));
        f(&sequences);
        self.by_lanes = emptied(sequences);
    }
}

/// The memory of a vector for elements that borrow something else.
fn emptied<T, U>(mut sequences: Vec<T>) -> Vec<U> {
    sequences.clear();
    // Collecting into elements of the same layout keeps the memory.
    sequences.into_iter().map(|_| unreachable!("invariant: it is empty")).collect()
}
