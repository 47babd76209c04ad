//! How attention is divided into heads.

use pelton_base::limits;

use crate::fields::{ConfigError, Field};

const MOST_HEAD_DIM: usize = 1024;

/// The fields that together say how attention is divided into heads.
pub(crate) struct HeadFields<'a> {
    pub(crate) hidden_size: usize,
    pub(crate) n_heads: Field<'a>,
    pub(crate) n_kv_heads: Field<'a>,
    pub(crate) head_dim: Field<'a>,
    pub(crate) default_head_dim: Option<usize>,
}

/// Heads that divide as they should.
pub(crate) struct Heads {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl HeadFields<'_> {
    pub(crate) fn read(&self) -> Result<Heads, ConfigError> {
        let hidden_size = self.hidden_size;
        let n_heads = self.n_heads.count(limits::MODEL_WIDTH)?;
        let n_kv_heads = match self.n_kv_heads.non_null() {
            Some(field) => field.count(limits::MODEL_WIDTH)?,
            None => n_heads,
        };
        if !n_heads.is_multiple_of(n_kv_heads) {
            return Err(self.n_kv_heads.error(format!("a divisor of the {n_heads} query heads")));
        }
        let head_dim = match (self.head_dim.non_null(), self.default_head_dim) {
            (Some(field), _) => field.count(MOST_HEAD_DIM)?,
            (None, Some(default)) => default,
            (None, None) if hidden_size.is_multiple_of(n_heads) => hidden_size / n_heads,
            (None, None) => {
                return Err(self
                    .n_heads
                    .error(format!("a divisor of the hidden size, {hidden_size}")));
            }
        };
        if !head_dim.is_multiple_of(2) || head_dim > MOST_HEAD_DIM {
            let found =
                if self.head_dim.non_null().is_some() { &self.head_dim } else { &self.n_heads };
            return Err(found.error(format!(
                "heads of an even width up to {MOST_HEAD_DIM}, this makes {head_dim}"
            )));
        }
        if n_heads.checked_mul(head_dim).is_none_or(|width| width > limits::MODEL_WIDTH) {
            return Err(self.n_heads.error(format!(
                "at most {} elements in all heads, each has {head_dim}",
                limits::MODEL_WIDTH
            )));
        }
        Ok(Heads { n_heads, n_kv_heads, head_dim })
    }
}
