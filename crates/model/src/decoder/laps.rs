//! The time of each operation of a step, for a decoder that is asked for it.
//!
//! ```text
//! begin ──embed──┤──norm──┤──project──┤──attend──┤──out──┤──norm──┤──mlp──┤ ...   a lap per operation
//! ```
//!
//! A lap ends where the next one begins, so all laps of a step together are the step. A decoder that is
//! not asked reads no clock and allocates nothing.

use std::time::Instant;

/// An operation of a step.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum StepOp {
    /// Embeddings, and the first norm.
    Embed,
    /// Queries, keys and values: their product, rotation and storage.
    Project,
    /// Attention over the stored keys and values.
    Attend,
    /// The product after attention.
    Out,
    /// Norms and sums.
    Norm,
    /// The perceptron: both products and what is between them.
    Mlp,
    /// Choosing the rows that have logits.
    Gather,
    /// Logits, or the likeliest tokens.
    Head,
}

impl StepOp {
    /// Every operation, in the order of a step.
    pub const ALL: [Self; 8] = [
        Self::Embed,
        Self::Project,
        Self::Attend,
        Self::Out,
        Self::Norm,
        Self::Mlp,
        Self::Gather,
        Self::Head,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Project => "qkv",
            Self::Attend => "attention",
            Self::Out => "out",
            Self::Norm => "norm",
            Self::Mlp => "mlp",
            Self::Gather => "gather",
            Self::Head => "head",
        }
    }
}

/// One operation of one step.
#[derive(Clone, Copy, Debug)]
pub struct Lap {
    /// The operation.
    pub op: StepOp,
    /// The layer; 0 for what comes before them, and the last one for what comes after.
    pub layer: usize,
    /// Rows of the step.
    pub n_rows: usize,
    /// Its begin.
    pub began: Instant,
    /// Its end.
    pub ended: Instant,
}

/// The clock of one step; without a list it does nothing.
pub(super) struct Clock<'p> {
    laps: Option<&'p mut Vec<Lap>>,
    at: Option<Instant>,
    layer: usize,
    n_rows: usize,
}

impl<'p> Clock<'p> {
    /// Starts where `laps` is a list to add to.
    pub(super) fn start(laps: Option<&'p mut Vec<Lap>>, n_rows: usize) -> Self {
        let at = laps.as_ref().map(|_| Instant::now());
        Self { laps, at, layer: 0, n_rows }
    }

    /// The next laps are of this layer.
    pub(super) fn enter(&mut self, layer: usize) {
        self.layer = layer;
    }

    /// Ends a lap.
    pub(super) fn lap(&mut self, op: StepOp) {
        if let Some((laps, began)) = self.laps.as_mut().zip(self.at) {
            let ended = Instant::now();
            laps.push(Lap { op, layer: self.layer, n_rows: self.n_rows, began, ended });
            self.at = Some(ended);
        }
    }
}
