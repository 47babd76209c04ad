//! The files of one golden checkpoint.

use std::path::{Path, PathBuf};

use pelton_tensor::{Gguf, GgufWriter, TensorSource};

use super::tokens::{add_to_gguf, tokenizer_json};

/// The files of one golden checkpoint.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    name: String,
    /// The folder of the checkpoint's kind.
    root: PathBuf,
}

impl Checkpoint {
    pub(super) fn new(root: &Path, name: String) -> Self {
        Self { name, root: root.to_owned() }
    }

    /// Name of the folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A file of the folder, which need not exist.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.root.join(&self.name).join(name)
    }

    /// The GGUF file of the same model, where there is one.
    pub fn gguf(&self) -> Option<PathBuf> {
        let path = self.root.join("gguf").join(format!("{}.gguf", self.name));
        path.exists().then_some(path)
    }

    /// Where the weights are: `weights.txt` names another folder that has the same ones.
    fn weights(&self) -> PathBuf {
        let folder = match std::fs::read_to_string(self.file("weights.txt")) {
            Ok(other) => self.root.join(other.trim()),
            Err(_) => self.root.join(&self.name),
        };
        folder.join("model.safetensors")
    }

    /// Writes the model as a folder, with a tokenizer.
    ///
    /// # Panics
    ///
    /// When a file cannot be read or written: this is for tests.
    pub fn write_folder(&self, folder: &Path) {
        std::fs::create_dir_all(folder).expect("a folder for the model");
        let copy = |from: &Path, name: &str| {
            std::fs::copy(from, folder.join(name)).expect("copied");
        };
        copy(&self.file("config.json"), "config.json");
        copy(&self.weights(), "model.safetensors");
        std::fs::write(folder.join("tokenizer.json"), tokenizer_json().to_string())
            .expect("tokenizer.json");
    }

    /// Writes the GGUF file of the model, with a tokenizer; `false` where there is none.
    ///
    /// # Panics
    ///
    /// When a file cannot be read or written: this is for tests.
    pub fn write_gguf(&self, path: &Path) -> bool {
        let Some(bare) = self.gguf() else { return false };
        let bare = Gguf::open(&bare).expect("a golden GGUF file");
        let mut writer = GgufWriter::new();
        for (key, value) in bare.metadata() {
            writer.metadata(key, value.clone());
        }
        add_to_gguf(&mut writer);
        let views: Vec<_> = bare.names().into_iter().filter_map(|name| bare.get(name)).collect();
        for view in &views {
            writer.tensor(view.name, view.dtype, view.shape);
        }
        let mut data = writer.create(path).expect("a file for the model");
        for view in &views {
            data.tensor_data(view.data).expect("tensor data");
        }
        data.finish().expect("the model");
        true
    }
}
