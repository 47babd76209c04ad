//! Names of models, and where their files are.

use std::io::Read;
use std::path::{Path, PathBuf};

use pelton_model::ModelFiles;

use crate::hub::{Hub, HubConfig, HubError, HubId, HubProgress};
use crate::{LlmError, stores};

/// A model by name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ModelRef {
    /// A folder in the Hugging Face layout, or a `.gguf` file.
    Path(PathBuf),
    /// A repository on the hub.
    Hub(HubId),
    /// A `.gguf` file in the cache of another program.
    Stored {
        /// Its name there.
        name: String,
        /// The file.
        path: PathBuf,
    },
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
    /// form `org/name[@revision][:file.gguf]`, else a model in the cache of Ollama or llama.cpp.
    ///
    /// # Errors
    ///
    /// [`LlmError::UnknownModel`] when it is none of them.
    pub fn parse(text: &str) -> Result<Self, LlmError> {
        let path = Path::new(text);
        if path.exists() {
            return Ok(Self::Path(path.to_owned()));
        }
        let unknown = |why: String| LlmError::UnknownModel { name: text.to_owned(), why };
        let looks_local = text.is_empty() || text.starts_with(['.', '/', '~']);
        if looks_local {
            return Err(unknown("no such file or folder".to_owned()));
        }
        let names_file = text.ends_with(".gguf") && !text.contains(':');
        let is_of_hub = text.matches('/').count() == 1 && !names_file;
        // `org/name:tag` is a name on the hub; with fewer or more parts it may be one of Ollama.
        if !is_of_hub && let Some(path) = stores::find(text) {
            return Ok(Self::Stored { name: text.to_owned(), path });
        }
        match HubId::parse(text) {
            Ok(id) if !names_file => Ok(Self::Hub(id)),
            Err(HubError::BadId { why, .. }) if is_of_hub => {
                Err(unknown(format!("no such file or folder, and no hub id: {why}")))
            }
            _ if text.contains('/') || names_file => {
                let expected = "expected a folder, a .gguf file, or a hub id org/name";
                Err(unknown(format!("no such file or folder; {expected}")))
            }
            _ => {
                let why = "no such file or folder, and no model of Ollama or llama.cpp here";
                Err(unknown(why.to_owned()))
            }
        }
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
            Self::Stored { name, .. } => name.clone(),
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
            Self::Stored { path, .. } => Ok(LocalModel::Path(path.clone())),
            Self::Path(path) if path.exists() => {
                check_kind(path)?;
                Ok(LocalModel::Path(path.clone()))
            }
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

/// Refuses a file that is no model of any kind, by its beginning or its name.
///
/// # Errors
///
/// [`LlmError::NotAModel`] says what the file is, where its name tells, and what would be a model.
fn check_kind(path: &Path) -> Result<(), LlmError> {
    const EXPECTED: &str = "expected a .gguf file, or a folder with config.json and .safetensors";
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase();
    if !path.is_file() || ["safetensors", "json"].contains(&ending.as_str()) {
        return Ok(());
    }
    let mut beginning = Vec::new();
    // A file that cannot be read says so when it is opened.
    let Ok(file) = std::fs::File::open(path) else { return Ok(()) };
    if file.take(32).read_to_end(&mut beginning).is_err() || beginning.starts_with(b"GGUF") {
        return Ok(());
    }
    let why = match ending.as_str() {
        _ if beginning.starts_with(b"version https://git-lfs") => {
            "it is a pointer of git-lfs; `git lfs pull` fetches the file itself".to_owned()
        }
        "gguf" if beginning.is_empty() => "expected a GGUF file, got an empty one".to_owned(),
        "gguf" => "it does not begin as a GGUF file; expected a file downloaded whole".to_owned(),
        "bin" | "pt" | "pth" | "ckpt" => {
            format!("it looks like weights pickled by PyTorch, which can hold programs; {EXPECTED}")
        }
        "onnx" => format!("it looks like a model for ONNX; {EXPECTED}"),
        _ => EXPECTED.to_owned(),
    };
    Err(LlmError::NotAModel { path: path.to_owned(), why })
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
    fn a_file_that_is_no_model_is_refused_by_what_it_is() {
        let folder = tempfile::tempdir().expect("temp");
        let resolved = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).expect("written");
            ModelRef::Path(path).resolve(&mut |_| {}).map_err(|error| error.to_string())
        };
        for name in ["README.md", "weights.bin", "empty"] {
            let bytes: &[u8] = if name == "empty" { b"" } else { b"# A model" };
            let error = resolved(name, bytes).expect_err(name);
            assert!(error.contains("not a model") && error.contains(".gguf"), "{error}");
        }
        resolved("sha256-of-ollama", b"GGUF and more").expect("by its beginning");
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
        let error = resolved("m.gguf", pointer).expect_err("a pointer");
        assert!(error.contains("git lfs pull"), "{error}");
        assert!(resolved("empty.gguf", b"").expect_err("empty").contains("empty one"));
    }

    #[test]
    fn a_name_that_is_nothing_says_what_was_expected() {
        for text in ["", "./nope", "/nope", "nope", "nope/model.gguf", "a/b/c"] {
            let error = ModelRef::parse(text).expect_err(text).to_string();
            assert!(error.contains("no such file or folder"), "{error}");
        }
    }
}
