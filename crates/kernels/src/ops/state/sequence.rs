//! The sequences of a step, and the spans of chunks that their rows fall into.

use std::cell::RefCell;
use std::ops::Range;

use super::{CHUNK, StateStore};

/// One sequence's part of a step of recurrent layers.
///
/// ```text
/// positions   border ......... first_position ...... | ........ | ...
///             |- open chunk -|------ rows -----------|- rows ---|- rows      chunks of 64
///             ^ state of the lane before the step     ^ folded to  ^ state after it
/// ```
#[derive(Clone, Debug)]
pub struct StateSeq<'a> {
    /// Its rows in the step.
    pub rows: Range<usize>,
    /// Position of the first of these rows.
    pub first_position: usize,
    /// Lane of the sequence; no other sequence of the step has it.
    pub lane: usize,
    /// Border of the lane's state before the step: a multiple of [`CHUNK`], and
    /// `border <= first_position <= border + CHUNK`. Border 0 means a state of zeros and inputs of
    /// zeros before it, whatever the lane holds.
    ///
    /// Where `first_position` is `border + CHUNK`, the step folds the full chunk of the lane first.
    pub border: usize,
    /// `(border, snapshot)` in ascending order, all above `border`: the state is copied to the
    /// snapshot when the step folds it to that border. Borders that the step does not reach are
    /// passed over.
    pub saves: &'a [(usize, u32)],
    /// For rows that are a tree of drafts, the parent of each: the index (in `rows`) of a row
    /// before it, or [`ROOT`](Self::ROOT) for a child of the last computed token.
    ///
    /// The rows of a tree lie in one chunk. Row `i` takes the place after that of row `i - 1` in
    /// the open chunk, counts as position `first_position + depth`, and sees what is before
    /// `first_position`, its ancestors and itself.
    pub tree: Option<&'a [u32]>,
}

/// The part of a sequence's rows that one chunk has.
#[derive(Clone, Debug)]
pub(super) struct Span {
    /// Rows in the step; none where the step only folds the chunk.
    pub(super) rows: Range<usize>,
    /// Place of the first row in the chunk.
    pub(super) first_slot: usize,
    /// Whether the state before the chunk is zero, whatever the memory holds.
    pub(super) is_first: bool,
    /// Whether the step goes on beyond the chunk, so that it is folded.
    pub(super) is_folded: bool,
    /// The snapshot of the state after the chunk.
    pub(super) save: Option<u32>,
}

impl StateSeq<'_> {
    /// The parent of a draft that follows the last computed token.
    pub const ROOT: u32 = u32::MAX;

    /// Number of chunks that the step looks at.
    pub(super) fn n_spans(&self) -> usize {
        if self.rows.is_empty() { 0 } else { (self.slot(0) + self.rows.len()).div_ceil(CHUNK) }
    }

    /// Place of row `row` of the sequence, counted from the border before the step.
    fn slot(&self, row: usize) -> usize {
        self.first_position - self.border + row
    }

    /// The rows in chunk `chunk`, counted from the lane's own.
    pub(super) fn span(&self, chunk: usize) -> Span {
        let first = self.slot(0);
        let row = |slot: usize| self.rows.start + slot.saturating_sub(first).min(self.rows.len());
        let (start, end) = (chunk * CHUNK, (chunk + 1) * CHUNK);
        let border = self.border + end;
        let is_folded = chunk + 1 < self.n_spans();
        let save = self.saves.iter().find(|(at, _)| *at == border);
        Span {
            rows: row(start)..row(end),
            first_slot: first.clamp(start, end) - start,
            is_first: self.border + start == 0,
            is_folded,
            save: save.filter(|_| is_folded).map(|(_, snapshot)| *snapshot),
        }
    }

    /// The row before row `row` of the sequence, or [`ROOT`](Self::ROOT) before the step.
    pub(super) fn parent(&self, row: usize) -> u32 {
        match self.tree {
            Some(parents) => parents[row],
            None => (row as u32).wrapping_sub(1),
        }
    }

    fn check(&self, store: &StateStore) {
        let Self { border, first_position, .. } = *self;
        assert!(border.is_multiple_of(CHUNK), "invariant: border {border} ends a chunk");
        let is_inside = (border..=border.saturating_add(CHUNK)).contains(&first_position);
        assert!(is_inside, "invariant: position {first_position} continues border {border}");
        let n_rows = u32::try_from(self.rows.len());
        let end = n_rows.ok().and_then(|n| first_position.checked_add(n as usize + CHUNK));
        assert!(end.is_some(), "invariant: positions are counted in a word");
        let lanes = store.shape().n_lanes;
        assert!(self.lane < lanes, "invariant: lane {} of {lanes}", self.lane);
        let mut last = border;
        for &(at, snapshot) in self.saves {
            assert!(at > last, "invariant: saves ascend after border {border}");
            let n = store.shape().n_snapshots;
            assert!((snapshot as usize) < n, "invariant: snapshot {snapshot} of {n}");
            last = at;
        }
        let Some(parents) = self.tree else { return };
        assert_eq!(parents.len(), self.rows.len(), "invariant: one parent per row");
        let end = first_position % CHUNK + parents.len();
        assert!(end <= CHUNK, "invariant: a tree lies in one chunk");
        for (row, &parent) in parents.iter().enumerate() {
            let is_before = parent == Self::ROOT || (parent as usize) < row;
            assert!(is_before, "invariant: row {row} follows its parent {parent}");
        }
    }
}

/// Asserts every promise that the operations rely on: rows ascend within `n_rows`, and no lane or
/// snapshot is written by two sequences.
pub(super) fn check(sequences: &[StateSeq<'_>], store: &StateStore, n_rows: usize) {
    thread_local! {
        static SEEN: RefCell<Vec<bool>> = const { RefCell::new(Vec::new()) };
    }
    SEEN.with_borrow_mut(|seen| {
        let n_lanes = store.shape().n_lanes;
        seen.clear();
        seen.resize(n_lanes + store.shape().n_snapshots, false);
        let mut row = 0;
        for sequence in sequences {
            assert!(sequence.rows.start >= row, "invariant: rows of sequences ascend, none shared");
            assert!(sequence.rows.end >= sequence.rows.start, "invariant: rows of one ascend");
            row = sequence.rows.end;
            sequence.check(store);
            let was_seen = std::mem::replace(&mut seen[sequence.lane], true);
            assert!(!was_seen, "invariant: lane {} is used once in a step", sequence.lane);
            for &(_, snapshot) in sequence.saves {
                let was_seen = std::mem::replace(&mut seen[n_lanes + snapshot as usize], true);
                assert!(!was_seen, "invariant: snapshot {snapshot} is saved to once in a step");
            }
        }
        assert!(row <= n_rows, "invariant: the input has row {row}");
    });
}

/// The ancestors of row `row` of a tree, in order, as indices into `out`, which is returned cut.
pub(super) fn ancestors<'a>(parents: &[u32], row: usize, out: &'a mut [u8; CHUNK]) -> &'a [u8] {
    let mut n = 0;
    let mut node = parents[row];
    while node != StateSeq::ROOT {
        out[n] = node as u8;
        node = parents[node as usize];
        n += 1;
    }
    out[..n].reverse();
    &out[..n]
}
