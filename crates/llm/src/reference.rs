//! Names of models, and where their files are.

use std::path::{Path, PathBuf};

use pelton_model::ModelFiles;

use crate::LlmError;
use crate::hub::{Hub, HubConfig, HubId, HubProgress};

/// A model by name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ModelRef {
    /// A folder in the Hugging Face layout, or a `.gguf` file.
    Path(PathBuf),
    /// A repository on the hub.
    Hub(HubId),
    /// A GGUF file that is part of the program.
    Embedded {
        /// Its name.
        name: &'static str,
        /// Its bytes.
        bytes: &'static [u8],
    },
}

/// A model whose files are on this machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LocalModel {
    /// A folder or a `.gguf` file.
    Path(PathBuf),
    /// The bytes of a GGUF file.
    Embedded(&'static [u8]),
}

impl ModelRef {
    /// Reads a model's name as a user types it: an existing path, else a model on the hub in the
    /// form `org/name[@revision][:file.gguf]`.
    ///
    /// # Errors
    ///
    /// [`LlmError::UnknownModel`] when it is neither.
    pub fn parse(text: &str) -> Result<Self, LlmError> {
        let path = Path::new(text);
        if path.exists() {
            return Ok(Self::Path(path.to_owned()));
        }
        let unknown = |why: String| LlmError::UnknownModel { name: text.to_owned(), why };
        let looks_local = text.is_empty()
            || text.starts_with(['.', '/', '~'])
            || (text.ends_with(".gguf") && !text.contains(':'));
        if looks_local {
            return Err(unknown("no such file or folder".to_owned()));
        }
        HubId::parse(text).map(Self::Hub).map_err(|error| {
            unknown(format!(
                "no such file or folder, and no hub id: {error}; \
                 expected a folder, a .gguf file, or org/name[@revision]"
            ))
        })
    }

    /// The name of the model for clients of the server, in logs and in errors.
    pub fn display_name(&self) -> String {
        match self {
            Self::Path(path) => {
                let full = path.canonicalize();
                let path = full.as_deref().unwrap_or(path);
                let is_gguf = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
                let name = if is_gguf { path.file_stem() } else { path.file_name() };
                name.map_or_else(|| "model".to_owned(), |n| n.to_string_lossy().into_owned())
            }
            Self::Hub(id) => id.repo.clone(),
            Self::Embedded { name, .. } => (*name).to_owned(),
        }
    }

    /// Finds the files, downloading them if they are on the hub.
    ///
    /// # Errors
    ///
    /// [`LlmError::UnknownModel`] for a path that does not exist, [`LlmError::Hub`] otherwise.
    pub fn resolve(
        &self,
        progress: &mut dyn FnMut(HubProgress<'_>),
    ) -> Result<LocalModel, LlmError> {
        match self {
            Self::Embedded { bytes, .. } => Ok(LocalModel::Embedded(bytes)),
            Self::Hub(id) => {
                let hub = Hub::new(HubConfig::from_env());
                Ok(LocalModel::Path(hub.download(id, progress)?))
            }
            Self::Path(path) if path.exists() => Ok(LocalModel::Path(path.clone())),
            Self::Path(path) => Err(LlmError::UnknownModel {
                name: path.display().to_string(),
                why: "no such file or folder".to_owned(),
            }),
        }
    }
}

impl LocalModel {
    /// Opens the model's files without loading the weights.
    ///
    /// # Errors
    ///
    /// Names the file and the field or tensor that is wrong.
    pub fn open(&self) -> Result<ModelFiles, LlmError> {
        Ok(match self {
            Self::Path(path) => ModelFiles::open(path)?,
            Self::Embedded(bytes) => ModelFiles::embedded(bytes)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_exists_wins_over_a_hub_id() {
        let folder = tempfile::tempdir().expect("temp");
        let text = folder.path().to_str().expect("text");
        assert_eq!(ModelRef::parse(text).expect("there"), ModelRef::Path(folder.path().into()));
        let hub = ModelRef::parse("org/name@v2").expect("hub id");
        assert_eq!(hub, ModelRef::Hub(HubId::parse("org/name@v2").expect("hub id")));
        assert_eq!(hub.display_name(), "org/name");
        assert_eq!(ModelRef::Path("/x/story-q8.gguf".into()).display_name(), "story-q8");
        assert_eq!(ModelRef::Path("/x/story/".into()).display_name(), "story");
    }

    #[test]
    fn a_name_that_is_nothing_says_what_was_expected() {
        for text in ["", "./nope", "/nope", "nope", "nope/model.gguf", "a/b/c"] {
            let error = ModelRef::parse(text).expect_err(text).to_string();
            assert!(error.contains("no such file or folder"), "{error}");
        }
    }
}
