//! The library face: messages in, events out.
//!
//! ```text
//!   RuntimeOptions --new--> Runtime (thread team, tuning)
//!   ModelRef --resolve--> files --load on a Runtime--> Llm
//!   ChatRequest --template--> text --tokenizer--> tokens --EngineHandle--> token streams
//!   token streams --Detokenizer--> text --StopMatcher--> Event, Event, ... Finish
//! ```
//!
//! An [`Llm`] is shared (`Arc`) and answers any number of requests at once; each answer is a
//! [`Generating`], whose drop aborts the request. Nothing here needs an async runtime: events can
//! be awaited or waited for.
//!
//! [`Llm::load`] takes the [`Runtime`] of the process and a [`ModelRef`]: a folder, a `.gguf` file,
//! a repository on a [`hub`], a model in one of the [`stores`] of this machine, or bytes that are part of the program.
//!
//! **Architecture invariant:** this crate knows text, tokens and streams; it knows neither HTTP nor
//! how a step is computed.
#![forbid(unsafe_code)]

mod admission;
mod beam;
mod best;
mod border;
mod chat;
mod checks;
mod defaults;
mod draft;
mod embed;
mod error;
mod event;
mod form;
mod generating;
pub mod hub;
mod input;
mod llm;
mod load;
mod memory;
mod options;
mod processors;
mod reference;
mod request;
mod runtime;
mod samplers;
mod scheduling;
mod service;
mod source;
mod speculation;
mod stop;
pub mod stores;
mod texts;

pub use admission::{Asked, Gatekeeper, NotAdmitted};
pub use beam::{BeamAnswer, BeamParams, BeamRequest, BeamScore, BeamSearch, EarlyStopping};
pub use best::BestOf;
pub use chat::{ChatOptions, Dialect, Thoughts};
pub use embed::{
    Classes, Cut, EmbedInfo, EmbedInput, EmbedMetrics, EmbedModel, EmbedOptions, EmbedRequest,
    EmbedTicket, Embedder, Embeddings, PreparedClasses, PreparedEmbed, PreparedScores,
    ScoreRequest, Scores, cosine,
};
pub use error::{KvShortage, LlmError, MemoryUse, Overload};
pub use event::{
    CallPiece, Event, EventToken, Finish, Logprob, PromptToken, Released, Timings, TopToken,
};
pub use generating::Generating;
pub use llm::{Llm, LlmInfo, LlmParts, StateInfo};
pub use options::LlmOptions;
pub use pelton_base::limits::BLOCK_TOKENS;
pub use pelton_engine::spec::Verification;
pub use pelton_engine::{
    EngineMetrics, Fault, LogitsProcessor, LogprobsMode, Mark, MarkKind, Mix, Panicked, Quantiles,
    RowContext, SpecConfig, SpecMethod, SpecStats, Trace,
};
pub use pelton_kernels::NodePolicy;
pub use pelton_model::embed::{Pooling, TypedTokens, UnknownPooling};
pub use pelton_parse::{Tool, ToolCall, ToolChoice};
pub use processors::Processors;
pub use reference::{LocalModel, ModelRef};
pub use request::{ChatRequest, CompletionRequest, Generation, InputOptions, Prompt, Truncation};
pub use runtime::{Runtime, RuntimeOptions, WeightNodes};
pub use samplers::{DEFAULT_MIROSTAT, SamplerOrder};
pub use service::Service;
pub use source::{LoadProgress, check_vocabulary};
pub use speculation::Speculation;
pub use stop::{StopMatcher, StopOutcome};
pub use texts::{DRY_BREAKERS, SamplingTexts};

// The parrot of the tests beside this crate, for the tests inside it.
#[cfg(test)]
extern crate self as pelton_llm;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
