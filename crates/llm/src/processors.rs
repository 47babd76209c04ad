//! Logits processors of a request's own.

use std::fmt;
use std::sync::Arc;

use pelton_base::TokenId;
use pelton_engine::LogitsProcessor;

/// Starts a processor for an answer to the prompt that it is given.
type Begin = dyn Fn(&[TokenId]) -> Box<dyn LogitsProcessor> + Send + Sync;

/// Code of the caller that changes logits before a token is chosen.
///
/// It runs after the processors that the sampling parameters ask for, on the thread that computes
/// all answers, so every answer waits for it. Two lists are equal when they hold the same
/// processors in the same order.
#[derive(Clone, Default)]
pub struct Processors(Vec<Arc<Begin>>);

impl Processors {
    /// Adds a processor. `begin` is called once for each answer, with the tokens of its prompt,
    /// because each answer has a state of its own.
    pub fn push(
        &mut self,
        begin: impl Fn(&[TokenId]) -> Box<dyn LogitsProcessor> + Send + Sync + 'static,
    ) {
        self.0.push(Arc::new(begin));
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The processors of one answer.
    pub(crate) fn begin(&self, prompt: &[TokenId]) -> Vec<Box<dyn LogitsProcessor>> {
        self.0.iter().map(|begin| begin(prompt)).collect()
    }
}

impl PartialEq for Processors {
    fn eq(&self, other: &Self) -> bool {
        let same = |(a, b): (&Arc<Begin>, &Arc<Begin>)| Arc::ptr_eq(a, b);
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(same)
    }
}

impl fmt::Debug for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Processors({})", self.0.len())
    }
}
