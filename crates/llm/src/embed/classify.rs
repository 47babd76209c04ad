//! Labels of texts, by a classifier.

use pelton_model::embed::TypedTokens;

use super::{EmbedInput, EmbedTicket, Embedder, waiting};
use crate::error::LlmError;

/// Probabilities of the labels of texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Classes {
    /// One list per text, with a probability for each of [`EmbedInfo::labels`](super::EmbedInfo).
    pub probabilities: Vec<Vec<f64>>,
    /// Tokens of each text, special tokens included.
    pub n_tokens: Vec<usize>,
}

/// Texts that are checked and ready to be classified.
#[derive(Debug)]
pub struct PreparedClasses {
    texts: Vec<TypedTokens>,
}

impl PreparedClasses {
    /// Tokens of all texts, special tokens included.
    pub fn n_tokens(&self) -> usize {
        self.texts.iter().map(|text| text.tokens.len()).sum()
    }
}

impl Embedder {
    /// Turns texts into tokens on the calling thread, and checks everything.
    ///
    /// # Errors
    ///
    /// As [`Embedder::prepare`], and when the model is no classifier.
    pub fn prepare_classes(
        &self,
        inputs: &[EmbedInput],
        truncate: bool,
    ) -> Result<PreparedClasses, LlmError> {
        if !self.is_classifier() {
            return Err(self.wrong_task("makes vectors of texts and knows no labels"));
        }
        let prompt = self.prompt(None)?;
        Ok(PreparedClasses { texts: self.inputs(inputs, prompt, truncate)? })
    }

    /// Puts texts into the queue; `reply` is called on the thread that computes, once, unless the
    /// ticket is dropped before.
    ///
    /// # Errors
    ///
    /// As [`Embedder::submit`].
    pub fn submit_classes(
        &self,
        prepared: PreparedClasses,
        reply: impl FnOnce(Result<Classes, LlmError>) + Send + 'static,
    ) -> Result<EmbedTicket, LlmError> {
        let n_tokens = prepared.texts.iter().map(|text| text.tokens.len()).collect();
        let classes = self.spec.classes.as_ref().expect("invariant: prepared by a classifier");
        let activation = classes.activation;
        let finish = move |logits: Result<Vec<Vec<f32>>, LlmError>| {
            let classes = logits.and_then(|logits| {
                let not_finite = logits.iter().position(|row| row.iter().any(|x| !x.is_finite()));
                if let Some(index) = not_finite {
                    return Err(LlmError::NotFinite { index });
                }
                let probabilities = logits.iter().map(|row| activation.apply(row)).collect();
                Ok(Classes { probabilities, n_tokens })
            });
            reply(classes);
        };
        self.queue.push(prepared.texts, Box::new(finish))
    }

    /// Probabilities of the labels of texts; waits for them.
    ///
    /// # Errors
    ///
    /// As [`prepare_classes`](Self::prepare_classes) and [`submit_classes`](Self::submit_classes).
    pub fn classify(&self, inputs: &[EmbedInput], truncate: bool) -> Result<Classes, LlmError> {
        let prepared = self.prepare_classes(inputs, truncate)?;
        waiting(|reply| self.submit_classes(prepared, reply))
    }
}
