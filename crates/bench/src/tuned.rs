//! The tuning of the kernels in reports.

use std::fmt;

use pelton_kernels::Tuning;
use serde::{Serialize, Serializer};

use crate::bytes;

/// A [`Tuning`] in the head of a table, and in JSON.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuned(pub(crate) Tuning);

impl fmt::Display for Tuned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tuning { strip_panels, row_block_bytes, min_parallel_bytes } = self.0;
        let [rows, shared] = [row_block_bytes, min_parallel_bytes].map(|n| bytes(n as u64));
        let plural = if strip_panels == 1 { "" } else { "s" };
        write!(
            f,
            "tuning: strips of {strip_panels} panel{plural}, blocks of {rows} of rows, shared from \
             {shared} on"
        )
    }
}

/// The names of [`Tuning`] in JSON.
#[derive(Serialize)]
#[serde(remote = "Tuning")]
struct TuningFields {
    strip_panels: usize,
    row_block_bytes: usize,
    min_parallel_bytes: usize,
}

impl Serialize for Tuned {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        TuningFields::serialize(&self.0, serializer)
    }
}
