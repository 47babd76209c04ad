//! The folder that is written: a file of tensors per layer, an index, and what else the source has.
//!
//! ```text
//! .NAME.pelton-partial/  until everything is there; removed by an error, or when it is stopped
//!     model-00001-of-00003.safetensors     embeddings, last norm, head: as they are
//!     model-00002-of-00003.safetensors     layer 0
//!     model-00003-of-00003.safetensors     layer 1
//!     model.safetensors.index.json, config.json, tokenizer.json, ...
//!     1_Pooling/config.json, ...           what `modules.json` names, where there is one
//!     README.md, quantization_report.json
//!     pelton-progress.json                 layers that are done; removed at the end
//! NAME/                  the same, renamed
//! ```
//!
//! A kill in the middle leaves the first folder behind, and nothing under the final name; `resume` goes
//! on with it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use half::f16;
use pelton_base::limits;
use pelton_model::{LayerShape, ModelError, ModelFiles, outer_modules};
use pelton_quant::checkpoint::{Scheme, WrittenTensor};
use pelton_quant::dequantize_tensor;
use pelton_tensor::{DType, Safetensors, TensorSource, TensorView, write_safetensors};
use serde_json::{Map, Value, json};

use crate::apart::{Apart, Plain, kept_modules};
use crate::config::Bits;
use crate::layer::{SolvedLayer, n_bytes, patch};
use crate::modules;
use crate::progress::{self, LayerDone, Progress};
use crate::rotate::Turn;
use crate::{Method, Options, QuantizeError, Result};

/// A folder on its way.
pub(crate) struct Folder {
    target: PathBuf,
    temporary: PathBuf,
    /// Begins the name of every tensor of a layer.
    prefixes: Vec<String>,
    /// Modules that are quantized, of each layer.
    modules: Vec<Vec<String>>,
    /// Matrices of experts that stay plain floats but are written under other names.
    kept: Vec<String>,
    /// The file with embeddings and head.
    outside: LayerDone,
    progress: Progress,
    /// Whether what is done stays when the work is stopped.
    is_kept: bool,
    is_published: bool,
}

/// Refuses a name that is taken, before anything else is done.
///
/// # Errors
///
/// When there is something already, an unfinished folder that is not to be gone on with, or the name is
/// none.
pub(crate) fn check_target(target: &Path, resume: bool) -> Result<PathBuf> {
    if target.symlink_metadata().is_ok() {
        return Err(QuantizeError::Exists(target.to_owned()));
    }
    let name = target.file_name().ok_or_else(|| QuantizeError::Source {
        path: target.to_owned(),
        why: "expected the name of a folder to write".to_owned(),
    })?;
    let folder = target.with_file_name(format!(".{}.pelton-partial", name.to_string_lossy()));
    if !resume && folder.symlink_metadata().is_ok() {
        let why =
            "a run that did not end left this: `--resume` goes on with it; remove it to begin anew";
        return Err(QuantizeError::Partial { folder, why: why.to_owned() });
    }
    Ok(folder)
}

impl Folder {
    /// Begins a folder, with everything that does not change, or goes on with one that was left.
    pub(crate) fn create(
        files: &ModelFiles,
        options: &Options,
        (bits, turn): (Option<&Bits>, Option<&Turn>),
        layers: &[LayerShape],
        target: &Path,
        (resume, identity): (bool, String),
    ) -> Result<Self> {
        let temporary = check_target(target, resume)?;
        let progress = progress::begin(&temporary, target, identity)?;
        let modules = |layer: &LayerShape| {
            let modules = layer.matrices.iter().map(|matrix| matrix.module.clone());
            modules.filter(|module| !options.keeps(module)).collect()
        };
        let mut folder = Self {
            target: target.to_owned(),
            temporary,
            prefixes: layers.iter().map(|layer| layer.prefix.clone()).collect(),
            modules: layers.iter().map(modules).collect(),
            kept: layers.iter().flat_map(|layer| kept_modules(layer, options)).collect(),
            outside: LayerDone::default(),
            progress,
            is_kept: resume,
            is_published: false,
        };
        folder.add_companions(files, options, (bits, turn))?;
        let names = files.tensors().names().into_iter();
        let mut turned: Vec<(String, TensorView<'_>, Vec<u8>)> = Vec::new();
        for part in turn.iter().flat_map(|turn| turn.outside(files)) {
            let part = part?;
            let like = files.stored(&part.like).expect("invariant: a stored tensor");
            turned.push((part.name, like, stored_as(like.dtype, &part.values)));
        }
        let mut outside: Vec<TensorView<'_>> = names
            .filter(|name| !folder.prefixes.iter().any(|prefix| name.starts_with(prefix)))
            .filter(|name| turned.iter().all(|(own, ..)| own != name))
            .filter_map(|name| files.tensors().get(name))
            .collect();
        outside.extend(turned.iter().map(|(name, like, data)| TensorView { name, data, ..*like }));
        folder.outside = folder.add_file(0, &outside)?;
        Ok(folder)
    }

    /// Layers that are done.
    pub(crate) fn n_done(&self) -> usize {
        self.progress.layers().len()
    }

    /// Gives the model the weights of a layer that is done, as readers have them.
    pub(crate) fn patch_done(
        &self,
        files: &mut ModelFiles,
        layer: usize,
        shape: &LayerShape,
    ) -> Result<()> {
        let config = self.temporary.join("config.json");
        let bytes = pelton_tensor::read_limited(&config, limits::CONFIG_BYTES);
        let bytes = bytes.map_err(QuantizeError::io(&config))?;
        let damaged = |error: String| QuantizeError::io(&config)(std::io::Error::other(error));
        let root: Value =
            serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        let scheme = Scheme::parse(&root["quantization_config"]);
        let scheme = scheme.map_err(|error| damaged(error.to_string()))?;
        let file = self.temporary.join(self.file_name(layer + 1));
        let stored = Safetensors::open_file(&file)?;
        let format = |source| ModelError::Format { file: file.clone(), source };
        let done = &self.progress.layers()[layer];
        let found = done.reports.iter().map(|report| {
            let matrix = shape.matrices.iter().find(|matrix| matrix.module == report.module);
            let found = scheme.find(&stored, &report.module, report.shape).map_err(format)?;
            let (Some(matrix), Some(found)) = (matrix, found) else {
                return Err(damaged(format!("`{}` is missing", report.module)));
            };
            Ok((matrix, found.dequantize().map_err(format)?))
        });
        patch(files, found)?;
        for name in &done.vectors {
            let Some(view) = stored.get(name) else {
                return Err(damaged(format!("`{name}` is missing")));
            };
            files.patch(name, &dequantize_tensor(&view).map_err(format)?);
        }
        Ok(())
    }

    /// Writes the tensors of a layer.
    pub(crate) fn add_layer(
        &mut self,
        files: &ModelFiles,
        (layer, shape): (usize, &LayerShape),
        solved: &SolvedLayer,
        options: &Options,
    ) -> Result<()> {
        let apart = Apart::of(files, shape, options);
        let mut made: Vec<(String, WrittenTensor)> = Vec::new();
        let (mut n_quantized_bytes, mut n_weights) = (0, 0);
        for (written, report) in &solved.matrices {
            n_weights += report.shape.iter().product::<usize>() as u64;
            n_quantized_bytes += n_bytes(written, options);
            for tensor in written.tensors() {
                made.push((format!("{}.{}", report.module, tensor.suffix), tensor));
            }
        }
        let quantized: Vec<String> =
            self.modules.iter().flatten().map(|module| format!("{module}.weight")).collect();
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
            // Two layers may have one prefix: an attention and a cross-attention.
            self.prefixes.iter().position(|prefix| name.starts_with(prefix)) == Some(layer)
                && !quantized.iter().any(|own| own == name)
                && !apart.replaced.contains(*name)
                && !solved.vectors.contains_key(*name)
        };
        let names = files.tensors().names().into_iter();
        let mut views: Vec<TensorView<'_>> =
            names.filter(is_kept).filter_map(|name| files.stored(name)).collect();
        views.extend(vectors.iter().map(|(view, data)| TensorView { data, ..*view }));
        views.extend(apart.plain.iter().map(Plain::view));
        views.extend(made.iter().map(|(name, WrittenTensor { dtype, shape, data, .. })| {
            TensorView { name, dtype: *dtype, shape, data }
        }));
        let written = self.add_file(layer + 1, &views)?;
        self.progress.add(LayerDone {
            n_quantized_bytes,
            n_weights,
            vectors: solved.vectors.keys().cloned().collect(),
            reports: solved.matrices.iter().map(|(_, report)| report.clone()).collect(),
            ..written
        })
    }

    /// Reports of all matrices, bytes of all tensors, and bits and number of the quantized weights.
    pub(crate) fn totals(&self) -> Totals {
        let layers = self.progress.layers();
        Totals {
            matrices: layers.iter().flat_map(|layer| &layer.reports).cloned().collect(),
            n_bytes: self.outside.n_bytes + layers.iter().map(|layer| layer.n_bytes).sum::<u64>(),
            n_quantized_bits: 8 * layers.iter().map(|layer| layer.n_quantized_bytes).sum::<u64>(),
            n_weights: layers.iter().map(|layer| layer.n_weights).sum(),
        }
    }

    /// Writes the index, the report and the card, and gives the folder its name.
    pub(crate) fn publish(mut self, report: &Value, card: &str) -> Result<()> {
        let mut weight_map = BTreeMap::new();
        for (number, done) in
            std::iter::once(&self.outside).chain(self.progress.layers()).enumerate()
        {
            let file = self.file_name(number);
            weight_map.extend(done.tensors.iter().map(|name| (name.clone(), file.clone())));
        }
        let index = json!({ "metadata": { "total_size": self.totals().n_bytes }, "weight_map": weight_map });
        self.write("model.safetensors.index.json", &index)?;
        self.write("quantization_report.json", report)?;
        let path = self.temporary.join("README.md");
        fs::write(path, card).map_err(QuantizeError::io(self.target.join("README.md")))?;
        sync(&self.temporary)?;
        // A folder that users find can be loaded.
        let read_back =
            ModelFiles::open(&self.temporary).and_then(|files| pelton_model::check(&files));
        read_back.map_err(QuantizeError::ReadBack)?;
        self.progress.remove()?;
        fs::rename(&self.temporary, &self.target).map_err(QuantizeError::io(&self.target))?;
        self.is_published = true;
        Ok(())
    }

    fn file_name(&self, number: usize) -> String {
        let n_files = self.prefixes.len() + 1;
        format!("model-{:05}-of-{n_files:05}.safetensors", number + 1)
    }

    fn add_file(&self, number: usize, views: &[TensorView<'_>]) -> Result<LayerDone> {
        let path = self.temporary.join(self.file_name(number));
        // A file that a killed run left may be half of one.
        if path.exists() {
            fs::remove_file(&path).map_err(QuantizeError::io(&path))?;
        }
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        write_safetensors(&path, views, &metadata)?;
        Ok(LayerDone {
            tensors: views.iter().map(|view| view.name.to_owned()).collect(),
            n_bytes: views.iter().map(|view| view.data.len() as u64).sum(),
            ..LayerDone::default()
        })
    }

    /// The configuration, and the files of the tokenizer and the like.
    fn add_companions(
        &self,
        files: &ModelFiles,
        options: &Options,
        (bits, turn): (Option<&Bits>, Option<&Turn>),
    ) -> Result<()> {
        let source = files.folder().expect("invariant: a folder");
        for entry in fs::read_dir(source).map_err(QuantizeError::io(source))? {
            let path = entry.map_err(QuantizeError::io(source))?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let name = name.unwrap_or_default();
            let ends = [".json", ".jinja", ".txt", ".model", ".tiktoken"];
            let is_other = [
                "config.json",
                "quantize_config.json",
                "quant_config.json",
                "quantization_report.json",
            ];
            let is_copied = ends.iter().any(|end| name.ends_with(end))
                && !is_other.contains(&name.as_str())
                && !name.ends_with(".index.json");
            if is_copied {
                let to = self.temporary.join(&name);
                modules::copy_file(&path, &to, &self.target.join(&name))?;
            }
        }
        modules::copy(source, &self.temporary, &self.target)?;
        let config = source.join("config.json");
        let bytes = pelton_tensor::read_limited(&config, limits::CONFIG_BYTES);
        let bytes = bytes.map_err(QuantizeError::io(&config))?;
        let parsed: std::result::Result<Map<String, Value>, _> = serde_json::from_slice(&bytes);
        let mut object = parsed.map_err(|error| {
            QuantizeError::io(&config)(std::io::Error::other(error.to_string()))
        })?;
        let scheme = options.config(&self.plain(files)?, bits);
        object.insert("quantization_config".to_owned(), scheme.clone());
        if turn.is_some() {
            // The head has the last norm's weights, which embeddings do not have.
            object.insert("tie_word_embeddings".to_owned(), json!(false));
            if let Some(Value::Object(text)) = object.get_mut("text_config") {
                text.insert("tie_word_embeddings".to_owned(), json!(false));
            }
        }
        self.write("config.json", &Value::Object(object))?;
        match options.method {
            Method::Rtn | Method::Gptq if bits.is_none() => {
                self.write("quantize_config.json", &scheme)
            }
            _ => Ok(()),
        }
    }

    /// Matrices that stay as they are, the head left out.
    fn plain(&self, files: &ModelFiles) -> Result<Vec<String>> {
        let tensors = files.tensors();
        let is_plain = |name: &&str| {
            let module = name.strip_suffix(".weight").unwrap_or_default();
            self.prefixes.iter().any(|prefix| name.starts_with(prefix))
                && tensors.get(name).is_some_and(|view| view.shape.len() == 2)
                && !module.is_empty()
                && !self.modules.iter().flatten().any(|own| own == module)
        };
        let names = tensors.names().into_iter().filter(is_plain);
        let in_layers = names.map(|name| name.trim_end_matches(".weight").to_owned());
        let experts = self.kept.iter().cloned();
        Ok(in_layers.chain(experts).chain(outer_modules(files)?).collect())
    }

    fn write(&self, name: &str, value: &Value) -> Result<()> {
        let mut text = serde_json::to_string_pretty(value).expect("invariant: JSON");
        text.push('\n');
        let path = self.temporary.join(name);
        fs::write(&path, text).map_err(QuantizeError::io(self.target.join(name)))
    }
}

/// Sums over the layers that are done.
pub(crate) struct Totals {
    pub(crate) matrices: Vec<crate::MatrixReport>,
    pub(crate) n_bytes: u64,
    pub(crate) n_quantized_bits: u64,
    pub(crate) n_weights: u64,
}

impl Drop for Folder {
    fn drop(&mut self) {
        let is_left = self.is_kept && self.n_done() > 0;
        if !self.is_published && !is_left {
            // Nothing is left to do where it cannot be removed.
            let _ = fs::remove_dir_all(&self.temporary);
        }
    }
}

/// Waits until the disk has all files of a folder and of the folders beneath it.
fn sync(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(QuantizeError::io(folder))? {
        let path = entry.map_err(QuantizeError::io(folder))?.path();
        if path.is_dir() {
            sync(&path)?;
            continue;
        }
        let synced = fs::File::open(&path).and_then(|file| file.sync_all());
        synced.map_err(QuantizeError::io(&path))?;
    }
    Ok(())
}

/// Values as a type of floats stores them.
fn stored_as(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        DType::Bf16 => values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}
