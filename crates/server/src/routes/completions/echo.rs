//! The prompts of a request, for answers that show them.

use pelton_llm::{CompletionRequest, Generating, Llm, Prompt};

use super::convert::Echo;
use crate::wire::{Ids, Shown};

/// The texts of the prompts as they were sent; `None` for those that were sent as tokens, or cut.
pub(super) struct Texts {
    texts: Vec<Option<String>>,
    shown: Shown,
    keep_special: bool,
}

impl Texts {
    /// The texts that the answers need.
    pub(super) fn of(request: &CompletionRequest, shown: Shown) -> Self {
        let is_cut = request.generation.input.truncate.is_some();
        let text = |prompt: &Prompt| match prompt {
            Prompt::Text(text) if shown.echo && !is_cut => Some(text.clone()),
            _ => None,
        };
        let texts = request.prompts.iter().map(text).collect();
        Self { texts, shown, keep_special: request.generation.keep_special }
    }

    /// The prompts as the answers show them; none where they do not.
    pub(super) fn echoes(self, llm: &Llm, generating: &Generating) -> Vec<Echo> {
        let Shown { echo, token_ids, .. } = self.shown;
        if !echo && !token_ids {
            return Vec::new();
        }
        let per_prompt = generating.n_choices() / self.texts.len().max(1);
        let texts = self.texts.into_iter().enumerate();
        let show = |(idx, text): (usize, Option<String>)| {
            let tokens = generating.prompt(idx * per_prompt);
            let decode = || llm.tokenizer().decode(tokens, !self.keep_special);
            let text = if echo { text.unwrap_or_else(decode) } else { String::new() };
            Echo { text, tokens: token_ids.then(|| Ids::of(tokens)) }
        };
        texts.map(show).collect()
    }
}
