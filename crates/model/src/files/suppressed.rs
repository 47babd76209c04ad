//! The tokens that a model's authors forbid.

use pelton_base::{SuppressedTokens, TokenId, limits};

use super::ModelFiles;
use crate::config::generation_suppressed;
use crate::error::ModelError;

const GENERATION_CONFIG: &str = "generation_config.json";
const KEY: &str = "tokenizer.ggml.suppress_tokens";

impl ModelFiles {
    /// The tokens that are never sampled: `suppress_tokens` and `begin_suppress_tokens` of
    /// `generation_config.json`, or `tokenizer.ggml.suppress_tokens` of a GGUF file.
    ///
    /// Ids outside of the vocabulary are dropped, as those of end tokens are.
    ///
    /// # Errors
    ///
    /// Names the file and the field that is no list of token ids.
    pub fn suppressed_tokens(&self) -> Result<SuppressedTokens, ModelError> {
        let vocab_size = self.config().vocab_size;
        if let Some(gguf) = self.gguf() {
            let ids = gguf.i32_array(KEY)?.unwrap_or_default();
            let is_known = |id: &i32| (0..vocab_size as i64).contains(&i64::from(*id));
            let known = ids.iter().filter(|id| is_known(id)).map(|id| TokenId(*id as u32));
            let mut always: Vec<TokenId> = known.take(limits::ALLOWED_TOKENS).collect();
            always.sort_unstable();
            always.dedup();
            return Ok(SuppressedTokens { always: always.into(), ..SuppressedTokens::default() });
        }
        let file = self.path().join(GENERATION_CONFIG);
        if !file.exists() {
            return Ok(SuppressedTokens::default());
        }
        generation_suppressed(&super::read_limited(&file)?, vocab_size)
            .map_err(ModelError::config(file))
    }
}
