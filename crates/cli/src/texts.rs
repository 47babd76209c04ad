//! A model's tokenizer and chat template, without its weights.

use std::path::Path;

use pelton_llm::{LlmOptions, LocalModel, check_vocabulary};
use pelton_model::ModelFiles;
use pelton_tensor::{Gguf, MappedFile};
use pelton_text::{ChatTemplate, Tokenizer};

use crate::failure::{Failure, Result};

/// Whether the tokenizer of a folder's model is in files of its own: where a GGUF file is the whole model,
/// it is in there, whatever lies beside it.
fn has_tokenizer(folder: &Path) -> bool {
    let has = |name: &str| folder.join(name).exists();
    let is_gguf = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.path().extension().is_some_and(|end| end == "gguf"))
    };
    let holds_gguf = || std::fs::read_dir(folder).is_ok_and(|mut entries| entries.any(is_gguf));
    has("tokenizer.json") || Tokenizer::is_in(folder) && (has("config.json") || !holds_gguf())
}

/// A tokenizer and, where the model has one, its chat template.
pub(crate) struct Texts {
    /// Text to tokens and back.
    pub(crate) tokenizer: Tokenizer,
    /// Messages to text.
    pub(crate) template: Option<ChatTemplate>,
}

impl Texts {
    /// Reads them from a model's files; a folder may hold only the tokenizer's files.
    ///
    /// # Errors
    ///
    /// Names the file that is missing or malformed.
    pub(crate) fn open(place: &LocalModel) -> Result<Self> {
        match place {
            LocalModel::Embedded(bytes) => {
                let name = Path::new("(embedded model)");
                Self::from_gguf(&Gguf::from_mapped(MappedFile::from_static(name, bytes))?)
            }
            LocalModel::Path(path) if path.is_dir() && has_tokenizer(path) => Ok(Self {
                tokenizer: Tokenizer::from_folder(path)?,
                template: ChatTemplate::from_folder(path)?,
            }),
            LocalModel::Path(path) if path.is_dir() => {
                // A folder around a single GGUF file.
                let files = ModelFiles::open(path)?;
                match files.gguf() {
                    Some(gguf) => Self::from_gguf(gguf),
                    None => Err(Failure::new(format!(
                        "{}: expected `tokenizer.json`, or the files of another tokenizer, in this folder",
                        path.display()
                    ))),
                }
            }
            LocalModel::Path(path) => Self::from_gguf(&Gguf::open(path)?),
        }
    }

    /// The same of a model whose weights are read, too.
    ///
    /// # Errors
    ///
    /// As of [`open`](Self::open), and a tokenizer with more tokens than the embedding has rows.
    pub(crate) fn of(place: &LocalModel, files: &ModelFiles) -> Result<Self> {
        let texts = Self::open(place)?;
        let name = files.path().display().to_string();
        check_vocabulary(&name, &texts.tokenizer, files.config().vocab_size)?;
        Ok(texts)
    }

    /// Lays the flags over the model's own template.
    ///
    /// # Errors
    ///
    /// A template that does not exist or is not valid.
    pub(crate) fn choose(mut self, options: &LlmOptions) -> Result<Self> {
        if let Some(name) = &options.chat_template {
            self.template = Some(ChatTemplate::choose(name, &self.tokenizer)?);
        }
        let kwargs = options.chat_template_kwargs.clone();
        self.template = self.template.map(|template| template.with_args(kwargs));
        Ok(self)
    }

    fn from_gguf(gguf: &Gguf) -> Result<Self> {
        Ok(Self {
            tokenizer: Tokenizer::from_gguf(gguf)?,
            template: ChatTemplate::from_gguf(gguf)?,
        })
    }
}
