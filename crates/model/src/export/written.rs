//! The spec of a file to be, where its family's files have in the weights what folders say beside
//! them.

use crate::arch::{ArchSpec, Mixer, Multipliers, Stored};

/// The spec by which the file will be read, which computes the same as `spec` does with the folder's
/// weights.
pub(super) fn spec(spec: &ArchSpec, stored: &Stored) -> ArchSpec {
    let mut written = spec.clone();
    if stored.has_factors_in_weights {
        // A table with two factors is two tables.
        written.tied_embeddings &= spec.embedding_scale == spec.logit_scale;
        (written.embedding_scale, written.logit_scale) = (1.0, 1.0);
        written.multipliers = Multipliers::ONE;
    }
    for layer in &mut written.layers {
        if let Mixer::Recurrent(recurrent) = &mut layer.mixer {
            recurrent.order = stored.value_heads;
        }
    }
    written
}
