//! Writes a model as a GGUF file: how one gets quantized for keeps, or embedded in a program.
//!
//! Matrices are stored in the format asked for, vectors in f32. The tokenizer travels along as
//! GGUF arrays when the model is a folder with a byte-level `tokenizer.json`.

mod metadata;
mod sampling;
mod tokenizer;

pub use metadata::gguf_file_type;

use std::path::Path;

use pelton_base::limits;
use pelton_quant::{WeightFormat, fitting, for_dtype, for_name, quantize_tensor, supported_names};
use pelton_tensor::{DType, GgufWriter, TensorView};
use serde_json::Value;

use crate::arch::{ArchSpec, GgufRows};
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::files::names::{Naming, Part};
use crate::load::{check, interleave};

/// How far an export has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExportProgress {
    /// Tensors written.
    pub n_tensors: usize,
    /// Tensors of the whole model.
    pub n_total_tensors: usize,
}

/// Writes the model as a GGUF file at `out`, matrices stored as `format`.
///
/// `format` is a name in [`pelton_quant::FORMATS`], in any case. A matrix whose rows are no whole
/// number of the format's blocks becomes Q8_0, or f32 if that cannot hold it either. Progress is reported after each tensor.
///
/// # Errors
///
/// When the model is not a folder, is damaged, has something that GGUF cannot say (layers with
/// different windows, a tokenizer that is not byte-level), or the file cannot be written.
pub fn export_gguf(
    files: &ModelFiles,
    format: &str,
    out: &Path,
    progress: Option<&dyn Fn(ExportProgress)>,
) -> Result<(), ModelError> {
    let format = find_format(format)?;
    let Some(folder) = files.folder() else {
        return Err(ModelError::Export("expected a folder with safetensors".to_owned()));
    };
    if let Some(scheme) = files.scheme() {
        let expected = "expected weights that are not quantized yet";
        return Err(ModelError::Export(format!("{expected}, found {}", scheme.words())));
    }
    check(files)?;
    let spec = files.spec()?;
    let mut writer = GgufWriter::new();
    metadata::write(files, &spec, format, &mut writer)?;
    tokenizer::write(folder, &spec, &mut writer)?;
    for (key, value) in sampling::recommended(folder)? {
        writer.metadata(key, value);
    }

    let divisors = metadata::divisor_tensors(&spec.rope);
    let tensors = list(files, &spec);
    let stored_as = |view: &TensorView<'_>| -> &dyn WeightFormat {
        match view.shape {
            [_, k] => fitting(format, *k),
            _ => for_dtype(DType::F32).expect("invariant: F32 is known"),
        }
    };
    for (name, values) in &divisors {
        writer.tensor(*name, DType::F32, &[values.len()]);
    }
    for tensor in &tensors {
        let view = tensor.view(files);
        writer.tensor(&tensor.gguf_name, stored_as(&view).dtype(), view.shape);
    }
    let mut data = writer.create(out)?;
    for (_, values) in &divisors {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        data.tensor_data(&bytes)?;
    }
    for (i, tensor) in tensors.iter().enumerate() {
        let view = tensor.view(files);
        let mut bytes = quantize_tensor(&view, stored_as(&view)).map_err(|source| {
            ModelError::Format { file: files.tensors().origin().to_owned(), source }
        })?;
        if let Some(n_heads) = tensor.n_interleaved_heads {
            bytes = interleave(&bytes, view.shape[0], n_heads);
        }
        data.tensor_data(&bytes)?;
        if let Some(progress) = progress {
            progress(ExportProgress { n_tensors: i + 1, n_total_tensors: tensors.len() });
        }
    }
    data.finish()?;
    Ok(())
}

/// A JSON file of the folder; `None` when there is none.
fn read_json(file: &Path) -> Result<Option<Value>, ModelError> {
    if !file.exists() {
        return Ok(None);
    }
    let n_bytes = std::fs::metadata(file).map_err(ModelError::io(file))?.len();
    if n_bytes > limits::TOKENIZER_BYTES {
        return Err(ModelError::Export(format!("{}: {n_bytes} bytes", file.display())));
    }
    let bytes = std::fs::read(file).map_err(ModelError::io(file))?;
    let json = serde_json::from_slice(&bytes)
        .map_err(|error| ModelError::Export(format!("{}: {error}", file.display())))?;
    Ok(Some(json))
}

fn find_format(name: &str) -> Result<&'static dyn WeightFormat, ModelError> {
    for_name(name).ok_or_else(|| {
        ModelError::Export(format!("unknown format `{name}`; known are {}", supported_names()))
    })
}

/// One tensor of the model under both of its names.
struct Exported {
    name: String,
    gguf_name: String,
    n_interleaved_heads: Option<usize>,
}

impl Exported {
    fn view<'a>(&self, files: &'a ModelFiles) -> TensorView<'a> {
        files.tensors().get(&self.name).expect("invariant: the model was checked")
    }
}

/// Every tensor of the model, in the order of the file.
fn list(files: &ModelFiles, spec: &ArchSpec) -> Vec<Exported> {
    let naming = files.naming();
    let is_interleaved = files.arch().gguf_rows == GgufRows::Interleaved;
    let mut all = Vec::new();
    let mut add = |part: Part, layer: usize, bias: bool, n_heads: Option<usize>| {
        let n_interleaved_heads = n_heads.filter(|_| is_interleaved);
        let mut push =
            |name, gguf_name| all.push(Exported { name, gguf_name, n_interleaved_heads });
        push(naming.weight(part, layer), Naming::Gguf.weight(part, layer));
        if bias {
            push(naming.bias(part, layer), Naming::Gguf.bias(part, layer));
        }
    };
    add(Part::Embedding, 0, false, None);
    for (i, layer) in spec.layers.iter().enumerate() {
        let (gqa, mlp) = (layer.gqa(), layer.gated_mlp());
        add(Part::AttentionNorm, i, false, None);
        add(Part::Q, i, gqa.qkv_bias, Some(gqa.n_heads));
        add(Part::K, i, gqa.qkv_bias, Some(gqa.n_kv_heads));
        add(Part::V, i, gqa.qkv_bias, None);
        add(Part::O, i, gqa.out_bias, None);
        if gqa.qk_norm {
            add(Part::QNorm, i, false, None);
            add(Part::KNorm, i, false, None);
        }
        add(Part::MlpNorm, i, false, None);
        for part in [Part::Gate, Part::Up, Part::Down] {
            add(part, i, mlp.bias, None);
        }
    }
    add(Part::FinalNorm, 0, false, None);
    if !spec.tied_embeddings {
        add(Part::Head, 0, false, None);
    }
    all
}
