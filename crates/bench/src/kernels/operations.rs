//! The operations between the products of a step, for plans: rows and attention.
//!
//! ```text
//! rows        one row and 512 rows of each operation      a line: seconds = fixed + elements
//! attention   a decoding row with as many query heads as stored heads, and with four times as many:
//!             the part that reading takes, and the part of each query head; a prompt of 512 tokens
//! ```

use std::ops::ControlFlow;

use pelton_kernels::{Cpu, KvDtype};
use pelton_plan::{MeasuredAttention, MeasuredLine, MeasuredRows};

use super::block::{Block, Sizes};
use super::timing::Timing;
use super::{pages, rows};

/// Stored heads of the attention that is measured.
const KV_HEADS: usize = 8;
/// Query heads of each stored head in the second measurement.
const SHARING: usize = 4;

/// Times the calls of blocks.
pub(super) struct Clock<'a> {
    pub(super) cpu: &'a Cpu,
    pub(super) seconds: f64,
    pub(super) is_stopped: &'a dyn Fn() -> bool,
}

impl Clock<'_> {
    /// Rows and seconds of each call of a block; `None` when the caller stopped.
    fn times(&self, block: &Block) -> Option<Vec<(f64, f64)>> {
        let mut times = Some(Vec::new());
        let _ = (block.calls)(self.cpu, &mut |call| match Timing::of(
            call.run,
            self.seconds,
            self.is_stopped,
        )
        .zip(times.as_mut())
        {
            Some((timing, times)) => {
                times.push((call.cost.n_rows as f64, timing.seconds));
                ControlFlow::Continue(())
            }
            None => {
                times = None;
                ControlFlow::Break(())
            }
        });
        times
    }

    /// The line through the first and the last call of the first of these blocks, whose rows have
    /// `width` elements.
    fn line(&self, blocks: &[Block], width: usize) -> Option<MeasuredLine> {
        let times = self.times(&blocks[0])?;
        let (few, many) = (times[0], *times.last()?);
        let elements = |(rows, seconds): (f64, f64)| (rows * width as f64, seconds);
        Some(MeasuredLine::through(elements(few), elements(many)))
    }

    /// Operations on rows; `None` when the caller stopped.
    pub(super) fn rows(&self, sizes: &Sizes) -> Option<MeasuredRows> {
        let [n_heads, n_kv_heads, head_dim] = sizes.heads;
        let norms = rows::rms_norm(sizes);
        let is_bf16 = |block: &&Block| block.variant == KvDtype::Bf16.name();
        let stores = pages::store(sizes);
        let at = stores.iter().position(|block| is_bf16(&block)).unwrap_or(0);
        Some(MeasuredRows {
            // The second one also adds, as those of a layer do.
            norm: self.line(&norms[1..], sizes.width)?,
            quantize: self.line(&rows::quantize(sizes), sizes.width)?,
            activation: self.line(&rows::gated(sizes), sizes.ffn)?,
            rotation: self.line(&rows::rope(sizes), n_heads * head_dim)?,
            store: self.line(&stores[at..], 2 * n_kv_heads * head_dim)?,
        })
    }

    /// Attention with one stored type; `None` when the caller stopped.
    pub(super) fn attention(&self, dtype: KvDtype, sizes: &Sizes) -> Option<MeasuredAttention> {
        let [_, n_kv_heads, head_dim] = sizes.heads;
        let with = |sharing: usize| Sizes {
            heads: [n_kv_heads * sharing, n_kv_heads, head_dim],
            ..sizes.clone()
        };
        let [alone, _] = pages::attention_of(dtype, &with(1));
        let [shared, prompt] = pages::attention_of(dtype, &with(SHARING));
        let seconds = |block: &Block| Some(self.times(block)?[0].1);
        let (alone, shared, prompt) = (seconds(&alone)?, seconds(&shared)?, seconds(&prompt)?);
        // Elements of the keys and values of a token.
        let width = (2 * n_kv_heads * head_dim) as f64;
        let context = sizes.contexts[0] as f64;
        let seen = (sizes.prompt * (sizes.prompt + 1) / 2) as f64;
        let line = MeasuredLine::through((1.0, alone), (SHARING as f64, shared));
        Some(MeasuredAttention {
            kv_dtype: dtype.name().to_owned(),
            read_s: line.fixed_s / (context * width),
            query_s: line.s_per_element / (context * width),
            prompt_query_s: prompt / (seen * width * SHARING as f64),
        })
    }
}

/// The sizes that rows and attention are measured with.
pub(super) fn sizes(is_quick: bool) -> Sizes {
    let base = if is_quick { Sizes::quick() } else { Sizes::full() };
    let [_, n_kv_heads, head_dim] = base.heads;
    let (n_kv_heads, contexts) = match is_quick {
        true => (n_kv_heads, base.contexts.clone()),
        false => (KV_HEADS, vec![1024]),
    };
    Sizes { contexts, heads: [n_kv_heads * SHARING, n_kv_heads, head_dim], ..base }
}
