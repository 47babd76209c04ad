//! Writes a model as a GGUF file, version 3: how one is converted, quantized for keeps, or embedded
//! in a program.
//!
//! ```text
//! folder   tensors under GGUF names, rows in the family's order (folder); metadata from the spec,
//!          tokenizer.json as arrays                                          (metadata, tokenizer)
//! GGUF     tensors and metadata as they are, but for what the formats change            (carried)
//!   │
//!   ▼
//! items    name, shape and type of every tensor to be                             (item, tensors)
//!   │      of a folder: read back, which has to give the folder's spec                (read_back)
//!   ▼
//! parts    one file, or several of a given size; each has its name only when all are whole
//! ```
//! Without a format, matrices stay as they are stored, to the bit. With one, matrices are quantized
//! to it in parallel, and vectors (norms, biases) become f32, as does the choice of experts: they
//! are small and every token depends on them. The memory of an export is that of one tensor.

mod carried;
mod folder;
mod importance;
mod item;
mod metadata;
mod order;
mod parts;
mod quantize;
mod read_back;
mod rounding;
mod sampling;
mod tensors;
mod tokenizer;
mod written;

pub use importance::Importance;

use std::path::{Path, PathBuf};

use pelton_base::limits;
use pelton_quant::{WeightFormat, for_name, supported_names};
use pelton_tensor::GgufWriter;
use serde_json::Value;

use crate::embed::EmbedSpec;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::load::check;
pub(crate) use folder::{Biased, Listing, biased, gate_and_up};
use item::Item;
pub(crate) use item::{Scaled, Source};
pub(crate) use order::Order;
pub(crate) use rounding::{Rounded, Rounding};
use tensors::Formats;

/// How a model is exported.
#[derive(Default)]
pub struct ExportOptions<'a> {
    /// How matrices are stored, a name in [`pelton_quant::FORMATS`] in any case; by default as they
    /// are. A matrix whose rows are no whole number of the format's blocks becomes Q8_0, or f32 if
    /// that cannot hold it either.
    pub format: Option<&'a str>,
    /// The same for the embedding table; by default as other matrices.
    pub embedding_format: Option<&'a str>,
    /// The same for the head; by default as other matrices.
    pub head_format: Option<&'a str>,
    /// The importance of inputs, for formats that can weigh errors by it.
    pub importance: Option<&'a Importance>,
    /// Most bytes of tensors in one file; what is more goes to further ones. A file has at least
    /// one tensor.
    pub max_part_bytes: Option<u64>,
    /// Whether files that are in the way are replaced.
    pub overwrite: bool,
    /// Called after each tensor.
    pub progress: Option<&'a dyn Fn(ExportProgress)>,
    /// Asked before each tensor; `true` ends the export without a trace.
    pub stop: Option<&'a dyn Fn() -> bool>,
}

/// Progress of an export.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExportProgress {
    /// Tensors written.
    pub n_tensors: usize,
    /// Tensors of the whole model.
    pub n_total_tensors: usize,
    /// Bytes of tensors written.
    pub n_bytes: u64,
    /// The same of the whole model.
    pub n_total_bytes: u64,
}

/// Writes the model as a GGUF file at `out`, matrices stored as `format`; replaces what is there.
///
/// # Errors
///
/// As [`export`].
pub fn export_gguf(
    files: &ModelFiles,
    format: &str,
    out: &Path,
    progress: Option<&dyn Fn(ExportProgress)>,
) -> Result<(), ModelError> {
    let options =
        ExportOptions { format: Some(format), overwrite: true, progress, ..Default::default() };
    export(files, &options, out).map(|_| ())
}

/// Writes the model as a GGUF file at `out`, or as several that are called `out` with numbers.
///
/// Returns the files, or `None` when it was stopped. Whatever goes wrong before the last tensor is
/// written leaves no file behind and none changed.
///
/// # Errors
///
/// When a format is unknown or does not apply, a file is in the way, the model is damaged, is a
/// folder of a family that is not [written](crate::arch::Arch::is_exported) as GGUF, has
/// something that GGUF files of the family cannot say (experts in layers of one's own choice, a
/// tokenizer that is not byte-level, a type without a number), the importance of inputs is another
/// model's, or a file cannot be written.
pub fn export(
    files: &ModelFiles,
    options: &ExportOptions<'_>,
    out: &Path,
) -> Result<Option<Vec<PathBuf>>, ModelError> {
    let find = |name: Option<&str>| name.map(find_format).transpose();
    let matrices = find(options.format)?;
    let formats = Formats {
        matrices,
        embedding: find(options.embedding_format)?.or(matrices),
        head: find(options.head_format)?.or(matrices),
    };
    if let Some(to) = files.rounded_to() {
        return Err(ModelError::Export(format!("the weights are to be rounded to {to} at a load")));
    }
    if let Some(scheme) = files.scheme() {
        let expected = "expected weights that are not quantized yet";
        return Err(ModelError::Export(format!("{expected}, found {}", scheme.words())));
    }
    if files.gguf().is_none() && !files.arch().is_exported() {
        let name = &files.config().architecture;
        return Err(ModelError::Export(format!("{name}: not a family that is written as GGUF")));
    }
    check(files)?;
    let spec = files.spec()?;
    if options.head_format.is_some() && spec.tied_embeddings {
        let why = "a format for the head: this model's head is its embedding table";
        return Err(ModelError::Export(why.to_owned()));
    }
    let mut writer = GgufWriter::new();
    let items = match files.gguf() {
        Some(gguf) => {
            let items = tensors::of_gguf(gguf, &formats)?;
            let file_type = options.format.is_some().then(|| tensors::prevailing(&items));
            carried::write(gguf, file_type, &mut writer);
            items
        }
        None => {
            let written = written::spec(&spec, &files.arch().gguf);
            let items = folder::of_folder(files, &spec, &written, &formats)?;
            let keys = metadata::keys(files, &written, tensors::prevailing(&items))?;
            read_back::check(&written, &keys, &items)?;
            for (key, value) in keys.list {
                writer.metadata(key, value);
            }
            if let Some(folder) = files.folder() {
                tokenizer::write(folder, &spec, &mut writer)?;
                for (key, value) in sampling::recommended(folder)? {
                    writer.metadata(key, value);
                }
            }
            items
        }
    };
    if let Some(importance) = options.importance {
        importance::check(importance, &items)?;
    }
    let parts = parts::cut(&items, options.max_part_bytes)?;
    let paths = parts::paths(out, parts.len());
    if let Some(path) = paths.iter().find(|path| path.is_dir()) {
        return Err(ModelError::Export(format!(
            "{}: expected a file, got a folder",
            path.display()
        )));
    }
    if let Some(path) = paths.iter().find(|path| !options.overwrite && path.exists()) {
        return Err(ModelError::Exists { file: path.clone() });
    }
    let whole = parts::write(files, &items, &parts, &paths, writer, options)?;
    Ok(whole.then_some(paths))
}

/// In words, each thing that the files of a folder say and that a GGUF file of it cannot.
///
/// # Errors
///
/// When the files cannot be read.
pub fn gguf_left_out(files: &ModelFiles) -> Result<Vec<String>, ModelError> {
    let Some(folder) = files.folder() else { return Ok(Vec::new()) };
    let spec = files.spec()?;
    let mut left_out = tokenizer::left_out(folder, &spec)?;
    if EmbedSpec::has_modules(files) {
        let read = EmbedSpec::read(files, &spec)?;
        let names: Vec<String> = read.prompts.keys().map(|name| format!("`{name}`")).collect();
        if !names.is_empty() {
            left_out.push(format!("the prompts before texts: {}", names.join(", ")));
        }
        if read.max_tokens < spec.max_context {
            left_out.push(format!("the limit of {} tokens for a text", read.max_tokens));
        }
        if read.lower_case {
            left_out.push("that texts are made lower case".to_owned());
        }
        if !read.normalise {
            left_out.push("the lengths of vectors: those of the file have the length 1".to_owned());
        }
    }
    Ok(left_out)
}

/// A matrix that an export writes.
#[derive(Debug)]
pub struct GgufMatrix {
    /// Its name in the file.
    pub name: String,
    /// Names of the stored tensors that it is made of, in its order; none where their inputs are
    /// not its own.
    pub stored: Vec<String>,
    inputs: Option<Order>,
}

impl GgufMatrix {
    /// Numbers of the inputs of a stored tensor, in the order of the file's inputs.
    #[must_use]
    pub fn in_order(&self, inputs: Vec<f32>) -> Vec<f32> {
        let Some(order) = self.inputs else { return inputs };
        let bytes: Vec<u8> = inputs.iter().flat_map(|x| x.to_le_bytes()).collect();
        let ordered = order.apply(&bytes, inputs.len().max(1));
        ordered.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
    }
}

/// The matrices that an export writes.
///
/// # Errors
///
/// As [`export`].
pub fn gguf_matrices(files: &ModelFiles) -> Result<Vec<GgufMatrix>, ModelError> {
    let formats = Formats { matrices: None, embedding: None, head: None };
    let spec = files.spec()?;
    let items = match files.gguf() {
        Some(gguf) => tensors::of_gguf(gguf, &formats)?,
        None => {
            let written = written::spec(&spec, &files.arch().gguf);
            folder::of_folder(files, &spec, &written, &formats)?
        }
    };
    let matrix = |Item { gguf_name: name, source, .. }: Item<'_>| match source {
        Source::Stored(view) => {
            Some(GgufMatrix { name, stored: vec![view.name.to_owned()], inputs: None })
        }
        Source::Matrix { parts, inputs, .. } => {
            // Turned rows are inputs.
            let own = parts.iter().filter(|rows| rows.part.turned.is_none());
            let stored = own.map(|rows| rows.part.view.name.to_owned()).collect();
            Some(GgufMatrix { name, stored, inputs })
        }
        Source::Vector { .. } | Source::Made(_) => None,
    };
    Ok(items.into_iter().filter_map(matrix).collect())
}

/// A JSON file of the folder; `None` when there is none.
fn read_json(file: &Path) -> Result<Option<Value>, ModelError> {
    if !file.exists() {
        return Ok(None);
    }
    let bytes = pelton_tensor::read_limited(file, limits::TOKENIZER_BYTES);
    let bytes = bytes.map_err(ModelError::io(file))?;
    let json = serde_json::from_slice(&bytes)
        .map_err(|error| ModelError::Export(format!("{}: {error}", file.display())))?;
    Ok(Some(json))
}

fn find_format(name: &str) -> Result<&'static dyn WeightFormat, ModelError> {
    for_name(name).ok_or_else(|| {
        ModelError::Export(format!("unknown format `{name}`; known are {}", supported_names()))
    })
}
