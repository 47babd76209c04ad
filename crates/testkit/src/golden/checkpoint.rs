//! The files of one golden checkpoint.

use std::path::{Path, PathBuf};

use pelton_tensor::{GgufWriter, MappedFile, Safetensors};

use super::parts::Parts;
use super::recipe::Recipe;
use super::tokens::{add_to_gguf, tokenizer_json};

/// The files of one golden checkpoint.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    name: String,
    /// The folder of the checkpoint's kind.
    root: PathBuf,
}

impl Checkpoint {
    /// The checkpoint of a folder.
    ///
    /// # Panics
    ///
    /// When the path has no name.
    pub fn at(folder: &Path) -> Self {
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        Self { name, root: folder.with_file_name("") }
    }

    /// Name of the folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A file of the folder, which need not exist.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.root.join(&self.name).join(name)
    }

    /// The recipe of the GGUF file.
    fn recipe(&self) -> PathBuf {
        self.root.join("gguf").join(format!("{}.json", self.name))
    }

    /// Whether there is a GGUF file of the same model.
    pub fn has_gguf(&self) -> bool {
        self.recipe().exists()
    }

    /// The bytes of `model.safetensors`.
    fn weights(&self) -> Vec<u8> {
        match std::fs::read(self.file("model.safetensors")) {
            Ok(whole) => whole,
            // `weights.json` names files from the folder of all kinds.
            Err(_) => Parts::read(&self.file("weights.json")).join(&self.root.join("..")),
        }
    }

    /// Writes the model as a folder, without a tokenizer.
    ///
    /// # Panics
    ///
    /// When a file cannot be read or written: this is for tests.
    pub fn write_bare_folder(&self, folder: &Path) {
        std::fs::create_dir_all(folder).expect("a folder for the model");
        std::fs::copy(self.file("config.json"), folder.join("config.json")).expect("config.json");
        std::fs::write(folder.join("model.safetensors"), self.weights()).expect("weights");
    }

    /// Writes the model as a folder, with a tokenizer.
    ///
    /// # Panics
    ///
    /// When a file cannot be read or written: this is for tests.
    pub fn write_folder(&self, folder: &Path) {
        self.write_bare_folder(folder);
        std::fs::write(folder.join("tokenizer.json"), tokenizer_json().to_string())
            .expect("tokenizer.json");
    }

    /// Writes the GGUF file of the model as the `gguf` package does, to the byte.
    ///
    /// # Panics
    ///
    /// When there is none, or a file cannot be read or written: this is for tests.
    pub fn write_bare_gguf(&self, path: &Path) {
        Recipe::read(&self.recipe()).write(&self.tensors(), path);
    }

    /// Writes the GGUF file of the model, with a tokenizer.
    ///
    /// # Panics
    ///
    /// When there is none, or a file cannot be read or written: this is for tests.
    pub fn write_gguf(&self, path: &Path) {
        self.write_gguf_with(path, add_to_gguf);
    }

    /// Writes the GGUF file of the model with further metadata.
    pub(super) fn write_gguf_with(&self, path: &Path, add: impl Fn(&mut GgufWriter)) {
        Recipe::read(&self.recipe()).write_with(&self.tensors(), path, add);
    }

    fn tensors(&self) -> Safetensors {
        let name = self.file("model.safetensors");
        Safetensors::from_mapped(MappedFile::from_vec(name, self.weights())).expect("weights")
    }
}
