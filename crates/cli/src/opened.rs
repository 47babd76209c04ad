//! Models for programs that are not this command line, such as the Python package: opened by the
//! keys of the configuration file, so that every choice has one name everywhere.

use std::fmt;
use std::sync::Arc;

use pelton_llm::{Embedder, Llm};

use crate::failure::Failure;
use crate::flags::{Chosen, Flag, lay_over, table};
use crate::{interrupt, model};

/// Logs on stderr. Panics in the code of a request are left out: the caller gets them as errors.
const LOGS: &str = "warn,pelton_engine::guard=off";

/// A model that was opened.
#[derive(Clone, Debug)]
pub enum Opened {
    /// A model that generates text.
    Text(Arc<Llm>),
    /// A model for vectors of texts.
    Vectors(Arc<Embedder>),
}

/// The reason why a model was not opened.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NotOpened {
    /// Whether the caller gave something that cannot be used.
    pub is_input: bool,
    /// The mistake, and the way out.
    pub message: String,
}

impl fmt::Display for NotOpened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for NotOpened {}

impl NotOpened {
    fn of(failure: &Failure) -> Self {
        let line = failure.line().unwrap_or_default();
        let message = line.trim_end().trim_start_matches("error: ").to_owned();
        Self { is_input: failure.is_input(), message }
    }
}

/// Keys of the settings that [`open`] takes: those of the configuration file that concern a model
/// and not a server.
pub fn setting_keys() -> Vec<String> {
    table().filter(|flag| flag.concerns_models()).map(Flag::key).collect()
}

/// Downloads (where needed) and loads a model, with a progress bar on stderr if it takes a while.
/// Without the setting `model` it is the story model inside the program.
///
/// `vectors` says what the model is for: `Some(true)` for vectors of texts, `Some(false)` for text,
/// `None` for what its files say.
///
/// # Errors
///
/// Names the setting, or the file and field of the model, that is wrong.
pub fn open(settings: &[(String, String)], vectors: Option<bool>) -> Result<Opened, NotOpened> {
    // Ctrl-C is the caller's, also during a download.
    interrupt::hand_over();
    let chosen = read(settings).map_err(|failure| NotOpened::of(&failure))?;
    load(&chosen, vectors).map_err(|failure| NotOpened::of(&failure))
}

fn read(settings: &[(String, String)]) -> crate::failure::Result<Chosen> {
    let mut values = Vec::with_capacity(settings.len());
    for (key, text) in settings {
        let flag = table().find(|flag| flag.concerns_models() && flag.key() == *key);
        let flag = flag.ok_or_else(|| {
            Failure::new(format!("`{key}` is no setting: expected {}", setting_keys().join(", ")))
        })?;
        let value = flag.kind.parse(text);
        values.push((flag, value.map_err(|why| Failure::new(format!("`{key}`: {why}")))?));
    }
    let mut chosen = Chosen::default();
    lay_over(&values, &mut chosen);
    chosen.resolve()
}

fn load(chosen: &Chosen, vectors: Option<bool>) -> crate::failure::Result<Opened> {
    crate::install_tracing(LOGS, true, crate::args::LogFormat::Text);
    let reference = model::reference(Some(&chosen.model))?;
    let vectors = match vectors {
        Some(vectors) => vectors,
        None => model::resolve(&reference)?.is_embedding_model()?,
    };
    let runtime = chosen.runtime()?;
    Ok(match vectors {
        true => {
            chosen.warn_of_text();
            Opened::Vectors(model::load_embedder(&runtime, &reference, &chosen.embed_options())?)
        }
        false => {
            let llm = model::load(&runtime, &reference, &chosen.llm)?;
            chosen.warn_of_idle(llm.info());
            Opened::Text(llm)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn settings_are_those_of_the_file_without_those_of_a_server() {
        let chosen = read(&settings(&[
            ("max_context", "128"),
            ("kv_memory", "4MiB"),
            ("prefix_cache", "false"),
            ("spec", "draft:story-draft"),
        ]));
        let chosen = chosen.expect("well formed");
        assert_eq!((chosen.llm.max_context, chosen.llm.kv_bytes), (Some(128), Some(4 << 20)));
        assert!(!chosen.llm.choices.prefix_cache && chosen.llm.draft.is_some());
        for key in ["port", "sandbox", "prot"] {
            let failure = read(&settings(&[(key, "1")])).expect_err(key);
            let error = NotOpened::of(&failure);
            assert!(error.is_input && error.message.contains("max_context"), "{error}");
            assert!(error.message.starts_with(&format!("`{key}` is no setting")), "{error}");
        }
    }

    #[test]
    fn a_value_that_cannot_be_read_names_its_key() {
        let error = open(&settings(&[("max_running", "many")]), None).expect_err("no number");
        assert!(error.is_input && error.message.starts_with("`max_running`: expected"), "{error}");
        let error = open(&settings(&[("model", "./nowhere")]), None).expect_err("no file");
        assert!(error.message.contains("./nowhere"), "{error}");
    }

    #[test]
    fn the_story_model_opens_for_text_and_for_vectors() {
        let settings = settings(&[("max_context", "64"), ("threads", "1"), ("max_running", "1")]);
        assert!(matches!(open(&settings, None), Ok(Opened::Text(_))));
        assert!(matches!(open(&settings, Some(true)), Ok(Opened::Vectors(_))));
    }
}
