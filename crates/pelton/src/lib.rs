//! Run language models on the processor you have.
//!
//! ```
//! use pelton::{ChatRequest, Llm, LlmOptions, Message, Runtime, RuntimeOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = Runtime::new(RuntimeOptions::from_env(None))?;
//! let llm = Llm::load(&runtime, &pelton::story(), &LlmOptions::default(), &mut |_| {})?;
//! let mut generation = llm.default_generation();
//! generation.max_tokens = Some(20);
//! let messages = vec![Message::new("user", "Tell me about a wolf.")];
//! let mut answer = llm.chat(ChatRequest::new(messages, generation))?;
//! while let Some(event) = answer.blocking_next() {
//!     print!("{}", event.text);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! This crate has the names of [`pelton_llm`] and those of the crates below that its interface
//! mentions, and no code of its own but [`story`]. The folder `examples` has a program for each
//! task: `generate`, `chat`, `stream`, `embed`, `logits_processor` and `own_proposer`. For embedding
//! models begin at [`Embedder`], for other models at [`Llm`].
#![forbid(unsafe_code)]

pub use pelton_base::{
    Dry, Dynatemp, FinishReason, Mirostat, ParamError, SamplerStage, SamplingParams, TokenId,
    Usage, Xtc,
};
pub use pelton_llm::*;
pub use pelton_sched::Choices;
pub use pelton_text::{ChatTemplate, EncodeOptions, Message, Tokenizer};

/// Drafting with code of your own: implement [`Proposer`](proposer::Proposer), and name it in
/// [`LlmOptions::proposers`].
pub mod proposer {
    pub use pelton_base::{Request, RequestId};
    pub use pelton_engine::spec::{Abilities, Odds, Proposer, ProposerError, Row, Seen};
    pub use pelton_sched::DraftTree;
}

/// The small story model that is part of the library: a toy for first steps and tests, which needs
/// no download.
pub fn story() -> ModelRef {
    let bytes = include_bytes!("../../cli/model/story-q8_0.gguf");
    ModelRef::Embedded { name: "story", bytes }
}
