//! The folder that is written: a file of tensors per layer, an index, and what else the source has.
//!
//! ```text
//! .NAME.pelton-PID/     until everything is there; removed by an error, or when it is stopped
//!     model-00001-of-00003.safetensors     embeddings, last norm, head: as they are
//!     model-00002-of-00003.safetensors     layer 0
//!     model-00003-of-00003.safetensors     layer 1
//!     model.safetensors.index.json, config.json, tokenizer.json, ...
//! NAME/                 the same, renamed
//! ```
//!
//! A kill in the middle leaves the first folder behind, and nothing under the final name.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use half::f16;
use pelton_base::limits;
use pelton_model::{LayerShape, ModelFiles};
use pelton_quant::checkpoint::{WrittenTensor, awq_tensors, gptq_tensors};
use pelton_tensor::{DType, TensorView, write_safetensors};
use serde_json::{Map, Value, json};

use crate::layer::SolvedLayer;
use crate::{Method, Options, QuantizeError, Result};

/// A folder on its way.
pub(crate) struct Folder {
    target: PathBuf,
    temporary: PathBuf,
    /// Begins the name of every tensor of a layer.
    prefixes: Vec<String>,
    /// Modules that are quantized, of each layer.
    modules: Vec<Vec<String>>,
    weight_map: BTreeMap<String, String>,
    n_bytes: u64,
    n_quantized_bytes: u64,
    n_weights: u64,
    is_published: bool,
}

impl Folder {
    /// Begins a folder: everything that does not change.
    pub(crate) fn create(
        files: &ModelFiles,
        options: &Options,
        layers: &[LayerShape],
        target: &Path,
    ) -> Result<Self> {
        if target.symlink_metadata().is_ok() {
            return Err(QuantizeError::Exists(target.to_owned()));
        }
        let name = target.file_name().ok_or_else(|| QuantizeError::Source {
            path: target.to_owned(),
            why: "expected the name of a folder to write".to_owned(),
        })?;
        let name = format!(".{}.pelton-{}", name.to_string_lossy(), std::process::id());
        let temporary = target.with_file_name(name);
        fs::create_dir(&temporary).map_err(QuantizeError::io(target))?;
        let modules = |layer: &LayerShape| {
            layer.matrices.iter().map(|matrix| matrix.module.clone()).collect()
        };
        let mut folder = Self {
            target: target.to_owned(),
            temporary,
            prefixes: layers.iter().map(|layer| layer.prefix.clone()).collect(),
            modules: layers.iter().map(modules).collect(),
            weight_map: BTreeMap::new(),
            n_bytes: 0,
            n_quantized_bytes: 0,
            n_weights: 0,
            is_published: false,
        };
        folder.add_companions(files, options)?;
        let names = files.tensors().names().into_iter();
        let outside: Vec<TensorView<'_>> = names
            .filter(|name| !folder.prefixes.iter().any(|prefix| name.starts_with(prefix)))
            .filter_map(|name| files.tensors().get(name))
            .collect();
        folder.add_file(0, &outside)?;
        Ok(folder)
    }

    /// Writes the tensors of a layer.
    pub(crate) fn add_layer(
        &mut self,
        files: &ModelFiles,
        layer: usize,
        solved: &SolvedLayer,
        options: &Options,
    ) -> Result<()> {
        let mut made: Vec<(String, WrittenTensor)> = Vec::new();
        for (module, (codes, _)) in self.modules[layer].iter().zip(&solved.matrices) {
            let tensors = match options.method {
                Method::Awq => awq_tensors(codes),
                Method::Rtn | Method::Gptq => gptq_tensors(codes),
            };
            self.n_weights += codes.codes.len() as u64;
            for tensor in tensors {
                if tensor.suffix != "g_idx" || options.gptq.act_order {
                    self.n_quantized_bytes += tensor.data.len() as u64;
                }
                made.push((format!("{module}.{}", tensor.suffix), tensor));
            }
        }
        let quantized: Vec<String> =
            self.modules[layer].iter().map(|module| format!("{module}.weight")).collect();
        let vectors: Vec<(TensorView<'_>, Vec<u8>)> = solved
            .vectors
            .iter()
            .filter_map(|(name, values)| {
                // As it is stored, and not as the walk saw it.
                let view = files.stored(name)?;
                Some((view, stored_as(view.dtype, values)))
            })
            .collect();
        let is_kept = |name: &&str| {
            name.starts_with(&self.prefixes[layer])
                && !quantized.iter().any(|own| own == name)
                && !solved.vectors.contains_key(*name)
        };
        let names = files.tensors().names().into_iter();
        let mut views: Vec<TensorView<'_>> =
            names.filter(is_kept).filter_map(|name| files.stored(name)).collect();
        views.extend(vectors.iter().map(|(view, data)| TensorView { data, ..*view }));
        views.extend(made.iter().map(|(name, WrittenTensor { dtype, shape, data, .. })| {
            TensorView { name, dtype: *dtype, shape, data }
        }));
        self.add_file(layer + 1, &views)
    }

    /// Writes the index and gives the folder its name. Returns the bytes of all tensors, and the bits
    /// and the number of the quantized weights.
    pub(crate) fn publish(mut self) -> Result<(u64, u64, u64)> {
        let index = json!({
            "metadata": { "total_size": self.n_bytes }, "weight_map": self.weight_map,
        });
        self.write("model.safetensors.index.json", &index)?;
        for entry in fs::read_dir(&self.temporary).map_err(QuantizeError::io(&self.temporary))? {
            let path = entry.map_err(QuantizeError::io(&self.temporary))?.path();
            let synced = fs::File::open(&path).and_then(|file| file.sync_all());
            synced.map_err(QuantizeError::io(&path))?;
        }
        fs::rename(&self.temporary, &self.target).map_err(QuantizeError::io(&self.target))?;
        self.is_published = true;
        Ok((self.n_bytes, 8 * self.n_quantized_bytes, self.n_weights))
    }

    fn add_file(&mut self, number: usize, views: &[TensorView<'_>]) -> Result<()> {
        let n_files = self.prefixes.len() + 1;
        let name = format!("model-{:05}-of-{n_files:05}.safetensors", number + 1);
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        write_safetensors(&self.temporary.join(&name), views, &metadata)?;
        for view in views {
            self.n_bytes += view.data.len() as u64;
            self.weight_map.insert(view.name.to_owned(), name.clone());
        }
        Ok(())
    }

    /// The configuration, and the files of the tokenizer and the like.
    fn add_companions(&self, files: &ModelFiles, options: &Options) -> Result<()> {
        let source = files.folder().expect("invariant: a folder");
        for entry in fs::read_dir(source).map_err(QuantizeError::io(source))? {
            let path = entry.map_err(QuantizeError::io(source))?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let name = name.unwrap_or_default();
            let ends = [".json", ".jinja", ".txt", ".model", ".tiktoken"];
            let is_other = ["config.json", "quantize_config.json", "quant_config.json"];
            let is_copied = ends.iter().any(|end| name.ends_with(end))
                && !is_other.contains(&name.as_str())
                && !name.ends_with(".index.json");
            if is_copied && path.is_file() {
                let copied = fs::copy(&path, self.temporary.join(&name));
                copied.map_err(QuantizeError::io(self.target.join(&name)))?;
            }
        }
        let config = source.join("config.json");
        let bytes = pelton_tensor::read_limited(&config, limits::CONFIG_BYTES);
        let bytes = bytes.map_err(QuantizeError::io(&config))?;
        let parsed: std::result::Result<Map<String, Value>, _> = serde_json::from_slice(&bytes);
        let mut object = parsed.map_err(|error| {
            QuantizeError::io(&config)(std::io::Error::other(error.to_string()))
        })?;
        let scheme = options.config(&self.plain(files));
        object.insert("quantization_config".to_owned(), scheme.clone());
        self.write("config.json", &Value::Object(object))?;
        match options.method {
            Method::Awq => Ok(()),
            Method::Rtn | Method::Gptq => self.write("quantize_config.json", &scheme),
        }
    }

    /// Matrices of layers that stay as they are.
    fn plain(&self, files: &ModelFiles) -> Vec<String> {
        let tensors = files.tensors();
        let is_plain = |name: &&str| {
            let module = name.strip_suffix(".weight").unwrap_or_default();
            self.prefixes.iter().any(|prefix| name.starts_with(prefix))
                && tensors.get(name).is_some_and(|view| view.shape.len() == 2)
                && !module.is_empty()
                && !self.modules.iter().flatten().any(|own| own == module)
        };
        let names = tensors.names().into_iter().filter(is_plain);
        names.map(|name| name.trim_end_matches(".weight").to_owned()).collect()
    }

    fn write(&self, name: &str, value: &Value) -> Result<()> {
        let mut text = serde_json::to_string_pretty(value).expect("invariant: JSON");
        text.push('\n');
        let path = self.temporary.join(name);
        fs::write(&path, text).map_err(QuantizeError::io(self.target.join(name)))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.is_published {
            // Nothing is left to do where it cannot be removed.
            let _ = fs::remove_dir_all(&self.temporary);
        }
    }
}

/// Values as a type of floats stores them.
fn stored_as(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        DType::Bf16 => values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}
