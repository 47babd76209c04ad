//! Drafts by the first layers of the model itself.
//!
//! ```text
//! draft i    layers 1 .. n ─▶ last norm ─▶ head ─▶ token      KV of these layers is that of a whole pass
//! verify     all layers over the last known token and all drafts
//! ```
//!
//! A draft costs `n / n_layers` of a step and the head, and no memory: its KV lies where
//! verification writes the same bits again. So it can only be made where the KV is: this proposer
//! hands out [`BLANK`]s, and the executor, which knows `n`, fills them in before it verifies them.
//!
//! Elhoushi et al., "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding", ACL
//! 2024. Where the paper keeps the hidden states of the first layers for verification, this
//! computes them again: one forward pass is one kind of pass, and its first layers are the cheaper
//! part of it.

use super::{Abilities, BLANK, Odds, Proposer, ProposerError, Row, Seen};
use pelton_base::{Request, RequestId};

/// As many blanks as are wanted.
#[derive(Debug)]
pub struct EarlyExit;

impl Proposer for EarlyExit {
    fn name(&self) -> &'static str {
        "early-exit"
    }

    fn abilities(&self) -> Abilities {
        Abilities { is_late: true, ..Abilities::default() }
    }

    fn add(&mut self, _request: &Request) {}

    fn look(&mut self, _row: &Row<'_>, most: usize) -> (usize, usize) {
        (most, 0)
    }

    fn propose(
        &mut self,
        rows: &mut [Row<'_>],
        _odds: Option<&mut Odds>,
    ) -> Result<(), ProposerError> {
        for row in rows {
            row.drafts.extend(std::iter::repeat_n(BLANK, row.n_drafts));
        }
        Ok(())
    }

    fn is_catching_up(&self, _row: &Row<'_>) -> bool {
        false
    }

    fn observe(&mut self, _seen: &Seen<'_>) {}

    fn finished(&mut self, _id: RequestId) {}
}
