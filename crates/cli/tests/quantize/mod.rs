//! `pelton quantize`, through the real binary: the folders load, and lose as little as they should.

mod endings;
mod formats;
mod methods;
mod modules;
mod texts;

use std::path::Path;

use crate::common::{Outcome, pelton};
use pelton_tensor::{DType, Safetensors, TensorSource, TensorView, write_safetensors};
use pelton_testkit::TinyModel;
use serde_json::Value;

/// A model whose norms let a few inputs through much larger than others, and two texts.
struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        Self::with_layers(TinyModel::default().n_layers)
    }

    fn with_layers(n_layers: usize) -> Self {
        let folder = tempfile::tempdir().expect("temp");
        let model = folder.path().join("tiny");
        TinyModel { n_layers, ..TinyModel::default() }.write_folder(&model);
        change(&model, |name, values| {
            if name.contains("layernorm") {
                values.iter_mut().step_by(29).for_each(|w| *w *= 12.0);
            }
        });
        let words = ["moth", "lamp", "river", "the", "of", "stone", "a", "under", "quick", "sky"];
        let text = |seed: usize| -> String {
            let word = |i: usize| words[(i * i * 31 + i * seed + i / 7) % words.len()];
            (0..700).map(|i| format!("{} ", word(i))).collect()
        };
        std::fs::write(folder.path().join("seen"), text(3)).expect("written");
        std::fs::write(folder.path().join("held-out"), text(8)).expect("written");
        Self { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    fn quantize(&self, out: &str, flags: &[&str]) -> Outcome {
        let (input, out, text) = (self.path("tiny"), self.path(out), self.path("seen"));
        let args = ["quantize", &input, &out, "--calibration", &text, "--sample-length", "128"];
        pelton(&[&args[..], &["--group", "32", "--json"], flags].concat())
    }

    /// Divergence from the source on the other text, of the weights alone.
    fn kl(&self, model: &str) -> f64 {
        let (model, source, text) = (self.path(model), self.path("tiny"), self.path("held-out"));
        let args = ["eval", &model, "--reference", &source, "--text", &text, "--compute", "f32"];
        let report = pelton(&[&args[..], &["--json"]].concat()).json();
        report["against"]["kl_divergence"]["value"].as_f64().expect("a number")
    }

    /// Names of everything in the folder, hidden names included.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).expect("a folder");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        names
    }
}

/// Changes the weights of a folder.
fn change(model: &Path, change: impl Fn(&str, &mut [f32])) {
    let file = model.join("model.safetensors");
    let stored = Safetensors::open_file(&file).expect("weights");
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    for name in stored.names() {
        let view = stored.get(name).expect(name);
        let mut values: Vec<f32> =
            view.data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        change(name, &mut values);
        tensors.push((name.to_owned(), view.shape.to_vec(), values));
    }
    drop(stored);
    replace_weights(model, &tensors);
}

/// Puts other weights in place of those of a folder: names, shapes and values.
pub(crate) fn replace_weights(model: &Path, tensors: &[(String, Vec<usize>, Vec<f32>)]) {
    let data: Vec<Vec<u8>> =
        tensors.iter().map(|(_, _, v)| v.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views: Vec<TensorView<'_>> = tensors
        .iter()
        .zip(&data)
        .map(|((name, shape, _), data)| TensorView { name, dtype: DType::F32, shape, data })
        .collect();
    let file = model.join("model.safetensors");
    std::fs::remove_file(&file).expect("removed");
    write_safetensors(&file, &views, &Default::default()).expect("written");
}

fn config(model: &str) -> Value {
    let text = std::fs::read_to_string(Path::new(model).join("config.json")).expect("a config");
    serde_json::from_str(&text).expect("JSON")
}
