//! Errors of loading a model and of running a request.

use std::path::PathBuf;
use std::time::Duration;

use pelton_base::{ParamError, TokenId};
use pelton_engine::{Panicked, SpecMethod, SubmitError};
use pelton_model::ModelError;
use pelton_sched::{ChoiceError, Refusal};
use pelton_text::{FolderError, TemplateError, TextError};

use crate::admission::NotAdmitted;
use crate::hub::HubError;
pub use crate::memory::KvShortage;

/// A model that cannot be loaded or a request that cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LlmError {
    /// The name of a model is no folder, no file and no hub id.
    #[error("no model `{name}`: {why}")]
    UnknownModel {
        /// The name as it was given.
        name: String,
        /// The forms that were tried.
        why: String,
    },
    /// A file that is no model of any kind.
    #[error("{} is not a model: {why}", path.display())]
    NotAModel {
        /// The file.
        path: PathBuf,
        /// The files that would be a model.
        why: String,
    },
    /// The model cannot be downloaded from the hub.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The checkpoint cannot be loaded.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// `PELTON_KERNELS` names kernels that this machine cannot run.
    #[error(transparent)]
    Kernels(#[from] pelton_kernels::UnknownKernels),
    /// The engine cannot be started.
    #[error(transparent)]
    Engine(#[from] pelton_engine::ExecutorError),
    /// The tokenizer cannot be loaded, or cannot encode a text.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The chat template does not accept these messages.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The chat template in place of the model's own cannot be used.
    #[error(transparent)]
    ChosenTemplate(#[from] FolderError),
    /// A request for a chat to a model without a usable chat template.
    #[error("{model} cannot chat: {why}; use a plain completion")]
    NoTemplate {
        /// The model.
        model: String,
        /// The reason.
        why: String,
    },
    /// A request for text to a model that only makes vectors.
    #[error(
        "{model} is an embedding model ({architecture}): it makes vectors of texts and cannot generate \
         text"
    )]
    NotGenerative {
        /// The model.
        model: String,
        /// Its family.
        architecture: String,
    },
    /// A text with a gap for a model whose vocabulary has no tokens for it.
    #[error(
        "`suffix`: this model cannot fill a gap: its tokenizer has none of the tokens with which models \
         of code write one, such as <|fim_prefix|>"
    )]
    NoGap,
    /// A text for a vector has no token.
    #[error("input {index} is empty: expected at least one token")]
    EmptyInput {
        /// Number of the text, from 0.
        index: usize,
    },
    /// A text for a vector is too long.
    #[error(
        "input {index} has {n_tokens} tokens or more, at most {limit} fit; `truncate` cuts it to that"
    )]
    InputTooLong {
        /// Number of the text, from 0.
        index: usize,
        /// Tokens of the text, as far as they were counted.
        n_tokens: usize,
        /// Most tokens of a text.
        limit: usize,
    },
    /// A text of a pair cannot be scored.
    #[error("`{param}`: {why}")]
    Pair {
        /// The text, such as `documents[3]`.
        param: String,
        /// The fault and the way out.
        why: String,
        /// Whether it has too many tokens.
        is_too_long: bool,
    },
    /// A request that a model for vectors or labels is not made for.
    #[error("{model} {why}")]
    WrongTask {
        /// The model.
        model: String,
        /// The kind of the model, and the requests that it answers.
        why: String,
    },
    /// A vector has an element that is not a finite number.
    #[error("the vector of input {index} is not finite: the model overflows; try `--compute f32`")]
    NotFinite {
        /// Number of the text, from 0.
        index: usize,
    },
    /// The tokenizer has more tokens than the model has rows in its embedding.
    #[error(
        "the tokenizer of {model} has {n_tokenizer} tokens, the embedding has {n_embedding} rows: \
         expected at most as many tokens as rows"
    )]
    VocabMismatch {
        /// The model.
        model: String,
        /// Tokens of the tokenizer.
        n_tokenizer: usize,
        /// Rows of the embedding.
        n_embedding: usize,
    },
    /// A form that cannot be enforced.
    #[error("{}{why}", if path.is_empty() { String::new() } else { format!("`{path}`: ") })]
    Form {
        /// The place in the request, such as `response_format.json_schema.schema.properties.a`.
        path: String,
        /// The reason.
        why: String,
    },
    /// A setting contradicts the model or the machine.
    #[error("`{option}`: {why}")]
    Option {
        /// The option.
        option: &'static str,
        /// The fault and the expected value.
        why: String,
    },
    /// `generation_config.json` cannot be read or has a value out of range.
    #[error("{}: {why}", path.display())]
    GenerationConfig {
        /// The file.
        path: PathBuf,
        /// The field and its expected value.
        why: String,
    },
    /// Keys and values of the context need more memory than there is for them.
    #[error("{0}")]
    KvMemory(KvShortage),
    /// The system refuses the memory of a step.
    #[error("a step of {n_tokens} tokens: {source}")]
    StepMemory {
        /// Most tokens of a step.
        n_tokens: usize,
        /// The refusal.
        source: pelton_tensor::MemoryRefused,
    },
    /// The prompt has no token.
    #[error("the prompt is empty: expected at least one token")]
    EmptyPrompt,
    /// The prompt leaves no room for an answer.
    #[error("the prompt has {n_prompt} tokens; at most {limit} fit into the context of {context}")]
    ContextLength {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// Most tokens of a prompt.
        limit: usize,
        /// Most tokens of a sequence.
        context: usize,
    },
    /// The prompt is longer than the encoder of the model reads in one step.
    #[error("the prompt has {n_prompt} tokens; the encoder reads at most {limit}")]
    SourceLength {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// Most tokens of a prompt.
        limit: usize,
    },
    /// A token id beyond the vocabulary.
    #[error("`{param}`: token {token} is not below the vocabulary size {vocab_size}")]
    TokenOutOfRange {
        /// The parameter that holds it.
        param: &'static str,
        /// The token.
        token: TokenId,
        /// Tokens that the model knows.
        vocab_size: usize,
    },
    /// A drafting method that was not loaded with the model.
    #[error("`speculation.method`: `{asked}` was not loaded with this model; there is {available}")]
    NoSuchDrafter {
        /// Its name.
        asked: &'static str,
        /// Names of the methods that can be chosen.
        available: String,
    },
    /// A parameter is out of its range.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// The engine refuses the request now and may accept it later.
    #[error("{why}{}", try_again(*.retry_after))]
    Refused {
        /// The limit that is reached.
        overload: Overload,
        /// The figures, in words.
        why: String,
        /// Time after which the request may be accepted; `None` where no time will help.
        retry_after: Option<Duration>,
    },
    /// The gatekeeper of the caller turned the request away.
    #[error(transparent)]
    NotAdmitted(#[from] NotAdmitted),
    /// The engine is stopping and accepts no request.
    #[error("the engine is stopping and accepts no more requests")]
    Stopped,
    /// The engine panicked twice and accepts no request until it is started anew.
    #[error("the engine has failed and accepts no more requests; start it anew")]
    Failed,
    /// The template or the tokenizer panicked on this request.
    #[error(transparent)]
    Panicked(#[from] Panicked),
    /// The engine can never accept the request.
    #[error("the engine does not accept the request: {why}")]
    Unacceptable {
        /// The reason.
        why: String,
    },
}

/// The limit that refuses a request for now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Overload {
    /// Waiting requests of all tenants together.
    Queue,
    /// Waiting requests of one tenant.
    TenantQueue,
    /// The expected time to the first token, which exceeds the request's target.
    Deadline,
}

/// Seconds, rounded up and at least one, so that clients do not all retry at once.
pub(crate) fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

fn try_again(wait: Option<Duration>) -> String {
    wait.map_or_else(String::new, |wait| format!("; try again in {} s", whole_seconds(wait)))
}

/// Time after which to retry where the engine does not estimate it.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Translates refusals of the scheduler.
impl From<Refusal> for LlmError {
    fn from(refusal: Refusal) -> Self {
        let why = refusal.to_string();
        match refusal {
            Refusal::EmptyPrompt => Self::EmptyPrompt,
            Refusal::NothingToGenerate => {
                let (param, expected, got) = ("max_tokens", "at least 1", "0".to_owned());
                Self::Param(ParamError { param, expected, got })
            }
            Refusal::PromptTooLong { n_prompt, limit } => {
                // An answer has at least one token.
                Self::ContextLength { n_prompt, limit, context: limit + 1 }
            }
            Refusal::TenantQueueFull { retry_after, .. } => {
                let retry_after = Some(retry_after);
                Self::Refused { overload: Overload::TenantQueue, why, retry_after }
            }
            Refusal::DeadlineUnreachable { retry_after, .. } => {
                Self::Refused { overload: Overload::Deadline, why, retry_after }
            }
            _ => Self::Unacceptable { why },
        }
    }
}

/// Translates refusals of the engine; the one place that knows all of its reasons.
impl From<SubmitError> for LlmError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Full { limit } => {
                let why = format!("{limit} requests are waiting already");
                Self::Refused { overload: Overload::Queue, why, retry_after: Some(RETRY_AFTER) }
            }
            SubmitError::Stopped => Self::Stopped,
            SubmitError::Failed => Self::Failed,
            SubmitError::Refused(refusal) => refusal.into(),
            SubmitError::EmptyPrompt => Refusal::EmptyPrompt.into(),
            SubmitError::NothingToGenerate => Refusal::NothingToGenerate.into(),
            SubmitError::TooLong { n_prompt, limit } => {
                Refusal::PromptTooLong { n_prompt, limit }.into()
            }
            SubmitError::SourceTooLong { n_source, limit } => {
                Self::SourceLength { n_prompt: n_source, limit }
            }
            SubmitError::NotOfSources { param } => {
                let expected = "absent with a model whose prompts an encoder reads: they have no \
                                logits";
                Self::Param(ParamError { param, expected, got: "a request for them".to_owned() })
            }
            SubmitError::Invalid(error) => error.into(),
            SubmitError::NoSuchDrafter { asked, available } => {
                let everywhere = [SpecMethod::Off, SpecMethod::Auto].map(SpecMethod::name);
                let all: Vec<&str> = everywhere.into_iter().chain(available).collect();
                Self::NoSuchDrafter { asked, available: all.join(", ") }
            }
            other => Self::Unacceptable { why: other.to_string() },
        }
    }
}

impl From<ChoiceError> for LlmError {
    fn from(ChoiceError { option, why }: ChoiceError) -> Self {
        Self::Option { option, why }
    }
}

/// A use of memory that a person can make smaller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum MemoryUse {
    /// The packed weights.
    Weights,
    /// Keys and values, and the store that they are swapped to.
    KeysAndValues,
    /// The activations of one step.
    Step,
}

impl LlmError {
    /// The use that there is too little memory for, where that is the fault.
    pub fn lacks_memory_for(&self) -> Option<MemoryUse> {
        match self {
            Self::Model(error) if error.lacks_memory() => Some(MemoryUse::Weights),
            Self::KvMemory(_) | Self::Engine(pelton_engine::ExecutorError::KvRefused { .. }) => {
                Some(MemoryUse::KeysAndValues)
            }
            Self::StepMemory { .. } => Some(MemoryUse::Step),
            _ => None,
        }
    }

    /// The same error of the form that `field` asks for: a form without a place of its own in the
    /// request, such as a regular expression, has that of the field.
    pub(crate) fn in_form_of(self, field: &str) -> Self {
        match self {
            Self::Form { path, why } if path.is_empty() => {
                Self::Form { path: field.to_owned(), why }
            }
            error => error,
        }
    }

    /// The request parameter at fault, where there is one.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::EmptyPrompt | Self::ContextLength { .. } | Self::SourceLength { .. } => {
                Some("prompt")
            }
            Self::EmptyInput { .. } | Self::InputTooLong { .. } => Some("input"),
            Self::TokenOutOfRange { param, .. } => Some(param),
            Self::Param(error) => Some(error.param),
            Self::NoSuchDrafter { .. } => Some("speculation.method"),
            Self::NoGap => Some("suffix"),
            Self::NoTemplate { .. } | Self::Template(_) => Some("messages"),
            _ => None,
        }
    }

    /// Whole seconds after which the same request may be accepted; `None` where it never will be,
    /// or where the time is unknown.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        match self {
            Self::Refused { retry_after, .. } => retry_after.map(whole_seconds),
            Self::NotAdmitted(refusal) => refusal.retry_after_seconds(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_for_now_says_when_to_try_again() {
        let retry_after = Duration::from_millis(2300);
        let (ttft, expected) = (Duration::from_millis(200), Duration::from_millis(900));
        let tenant = "blue".to_owned();
        let full = Refusal::TenantQueueFull { tenant, limit: 4, retry_after };
        let late = Refusal::DeadlineUnreachable { ttft, expected, retry_after: Some(retry_after) };
        for (refusal, expected, word) in
            [(full, Overload::TenantQueue, "`blue`"), (late, Overload::Deadline, "900 ms")]
        {
            let error = LlmError::from(refusal);
            assert_eq!(error.retry_after_seconds(), Some(3), "rounded up");
            let text = error.to_string();
            assert!(text.contains(word) && text.ends_with("try again in 3 s"), "{text}");
            assert!(matches!(error, LlmError::Refused { overload, .. } if overload == expected));
        }
        let never = Refusal::DeadlineUnreachable { ttft, expected, retry_after: None };
        let never = LlmError::from(never);
        assert_eq!(never.retry_after_seconds(), None);
        assert!(never.to_string().ends_with("the target is 200 ms"), "{never}");
        let busy = LlmError::from(SubmitError::Full { limit: 7 });
        assert_eq!(busy.retry_after_seconds(), Some(1));
        assert_eq!(whole_seconds(Duration::ZERO), 1);
        for (retry_after, seconds) in [(Some(retry_after), Some(3)), (None, None)] {
            let (why, is_fault) = ("two requests a minute".to_owned(), false);
            let refusal = NotAdmitted { why, code: "limit", retry_after, is_fault };
            assert_eq!(LlmError::NotAdmitted(refusal).retry_after_seconds(), seconds);
        }
    }

    #[test]
    fn what_is_never_taken_names_its_parameter() {
        let long = Refusal::PromptTooLong { n_prompt: 9, limit: 7 };
        for (refusal, param) in [
            (Refusal::EmptyPrompt, "prompt"),
            (Refusal::NothingToGenerate, "max_tokens"),
            (long, "prompt"),
        ] {
            let error = LlmError::from(refusal);
            assert_eq!((error.param(), error.retry_after_seconds()), (Some(param), None));
        }
    }
}
