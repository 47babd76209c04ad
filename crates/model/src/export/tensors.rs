//! Which tensors an export writes, in which type, and their bytes.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use pelton_quant::{QuantError, WeightFormat, fitting, for_dtype, quantize_tensor};
use pelton_tensor::{DType, Gguf, TensorSource, TensorView};

use super::metadata;
use crate::arch::{ArchSpec, Mlp, Part, Stored};
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::files::names::Naming;
use crate::load::interleave;

/// Weights that one thread quantizes at a time.
const SLAB: usize = 1 << 18;

/// What matrices become; `None` leaves them as they are.
pub(super) struct Formats {
    pub(super) matrices: Option<&'static dyn WeightFormat>,
    pub(super) embedding: Option<&'static dyn WeightFormat>,
    pub(super) head: Option<&'static dyn WeightFormat>,
}

/// One tensor to be written.
pub(super) struct Item {
    pub(super) gguf_name: String,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    source: Source,
}

enum Source {
    /// A tensor of the model, and the heads by which its rows have to be interleaved.
    Stored {
        name: String,
        n_interleaved_heads: Option<usize>,
    },
    Made(Vec<f32>),
}

impl Formats {
    fn of(&self, gguf_name: &str) -> Option<&'static dyn WeightFormat> {
        let naming = Naming::of(&Stored::GGUF);
        if gguf_name == naming.weight(Part::Embedding, 0) {
            self.embedding
        } else if gguf_name == naming.weight(Part::Head, 0) {
            self.head
        } else {
            self.matrices
        }
    }

    /// What a tensor becomes; `is_vector_kept` where vectors that nobody asked to change stay.
    fn stored_as(
        &self,
        gguf_name: &str,
        view: &TensorView<'_>,
        is_vector_kept: bool,
    ) -> Result<DType, ModelError> {
        let is_number = for_dtype(view.dtype).is_some();
        // Norms of each head and biases of experts are several rows, and learned positions are added
        // to every token.
        let is_small = view.shape.len() < 2
            || gguf_name.ends_with(".bias")
            || gguf_name.contains("_norm.")
            || ["ffn_gate_inp.weight", "position_embd.weight"]
                .iter()
                .any(|s| gguf_name.ends_with(s));
        let dtype = match (is_small, self.of(gguf_name)) {
            (true, None) if is_vector_kept => view.dtype,
            (true, _) if is_number => DType::F32,
            (false, Some(format)) => fitting(format, view.shape[view.shape.len() - 1]).dtype(),
            _ => view.dtype,
        };
        match dtype.gguf_id() {
            Some(_) => Ok(dtype),
            None => Err(ModelError::Export(format!(
                "tensor `{}`: GGUF has no type {dtype}; a format has to be chosen",
                view.name.escape_debug()
            ))),
        }
    }
}

impl Item {
    /// Bytes in the file, padding not counted.
    pub(super) fn n_bytes(&self) -> u64 {
        let n_bytes = self.dtype.bytes_for(self.shape.iter().product());
        n_bytes.expect("invariant: rows are whole blocks of their type") as u64
    }

    /// The bytes as they are to be stored.
    pub(super) fn bytes(&self, files: &ModelFiles) -> Result<Vec<u8>, ModelError> {
        match &self.source {
            Source::Made(values) => Ok(values.iter().flat_map(|x| x.to_le_bytes()).collect()),
            Source::Stored { name, n_interleaved_heads } => {
                let source = files.tensors();
                let view = source.get(name).expect("invariant: listed from this source");
                let bytes = quantize(&view, self.dtype).map_err(|error| ModelError::Format {
                    file: source.origin().to_owned(),
                    source: error,
                })?;
                source.give_back(view.data);
                Ok(match n_interleaved_heads {
                    Some(n_heads) => interleave(&bytes, view.shape[0], *n_heads),
                    None => bytes,
                })
            }
        }
    }
}

/// The bytes of `view` as `dtype`, rows shared among all cores.
fn quantize(view: &TensorView<'_>, dtype: DType) -> Result<Vec<u8>, QuantError> {
    if view.dtype == dtype {
        return Ok(view.data.to_vec());
    }
    let format = for_dtype(dtype).expect("invariant: chosen among formats");
    let row_len = view.shape.last().copied().unwrap_or(1).max(1);
    let rows_per_slab = (SLAB / row_len).max(1);
    let n_rows = view.n_elements() / row_len;
    let row_bytes = view.data.len() / n_rows.max(1);
    let slabs = view.data.chunks((rows_per_slab * row_bytes).max(1));
    let slabs: Vec<&[u8]> = slabs.collect();
    let done = Mutex::new(BTreeMap::new());
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let idx = next.fetch_add(1, Ordering::Relaxed);
            let Some(data) = slabs.get(idx) else { break };
            let shape = [data.len() / row_bytes, row_len];
            let bytes = quantize_tensor(&TensorView { shape: &shape, data, ..*view }, format);
            done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(idx, bytes);
        }
    };
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from).min(slabs.len());
    std::thread::scope(|scope| {
        for _ in 1..n_threads {
            scope.spawn(work);
        }
        work();
    });
    let done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let slabs = done.into_values().collect::<Result<Vec<_>, _>>()?;
    Ok(slabs.concat())
}

/// The format that holds most bytes of matrices.
pub(super) fn prevailing(items: &[Item]) -> &'static dyn WeightFormat {
    let mut totals: Vec<(DType, u64)> = Vec::new();
    for item in items.iter().filter(|item| item.shape.len() >= 2) {
        match totals.iter_mut().find(|(dtype, _)| *dtype == item.dtype) {
            Some((_, total)) => *total += item.n_bytes(),
            None => totals.push((item.dtype, item.n_bytes())),
        }
    }
    let most = totals.into_iter().max_by_key(|(_, total)| *total);
    let format = most.and_then(|(dtype, _)| for_dtype(dtype)).or_else(|| for_dtype(DType::F32));
    format.expect("invariant: F32 is known")
}

/// Every tensor of a GGUF file, whatever it is.
pub(super) fn of_gguf(gguf: &Gguf, formats: &Formats) -> Result<Vec<Item>, ModelError> {
    let views = gguf.names().into_iter().filter_map(|name| gguf.get(name));
    let item = |view: TensorView<'_>| {
        let source = Source::Stored { name: view.name.to_owned(), n_interleaved_heads: None };
        let dtype = formats.stored_as(view.name, &view, true)?;
        Ok(Item { gguf_name: view.name.to_owned(), dtype, shape: view.shape.to_vec(), source })
    };
    views.map(item).collect()
}

/// Every tensor that the model of a folder needs, in the order of the file.
pub(super) fn of_folder(
    files: &ModelFiles,
    spec: &ArchSpec,
    formats: &Formats,
) -> Result<Vec<Item>, ModelError> {
    let mut items = Vec::new();
    for (name, values) in metadata::divisor_tensors(spec.ropes.first()) {
        items.push(Item {
            gguf_name: name.to_owned(),
            dtype: DType::F32,
            shape: vec![values.len()],
            source: Source::Made(values),
        });
    }
    for Named { name, gguf_name, n_interleaved_heads } in list(files, spec) {
        let view = files.tensors().get(&name).expect("invariant: the model was checked");
        items.push(Item {
            dtype: formats.stored_as(&gguf_name, &view, false)?,
            shape: view.shape.to_vec(),
            gguf_name,
            source: Source::Stored { name, n_interleaved_heads },
        });
    }
    Ok(items)
}

/// One tensor of the model under both of its names.
struct Named {
    name: String,
    gguf_name: String,
    n_interleaved_heads: Option<usize>,
}

/// Every tensor of the model, in the order of the file.
fn list(files: &ModelFiles, spec: &ArchSpec) -> Vec<Named> {
    let naming = files.naming();
    let gguf: &'static Stored = &files.arch().gguf;
    let is_interleaved = gguf.is_in_pairs && !naming.stored.is_in_pairs;
    let gguf = Naming::of(gguf);
    let mut all = Vec::new();
    let mut add = |part: Part, layer: usize, bias: bool, n_heads: Option<usize>| {
        let n_interleaved_heads = n_heads.filter(|_| is_interleaved);
        let mut push = |name, gguf_name| all.push(Named { name, gguf_name, n_interleaved_heads });
        push(naming.weight(part, layer), gguf.weight(part, layer));
        if bias {
            push(naming.bias(part, layer), gguf.bias(part, layer));
        }
    };
    add(Part::Embedding, 0, false, None);
    for (i, layer) in spec.layers.iter().enumerate() {
        let gqa = layer.gqa();
        add(Part::AttentionNorm, i, false, None);
        add(Part::Q, i, gqa.qkv_bias, Some(gqa.n_heads));
        add(Part::K, i, gqa.qkv_bias, Some(gqa.n_kv_heads));
        add(Part::V, i, gqa.qkv_bias, None);
        add(Part::O, i, gqa.out_bias, None);
        if gqa.qk_norm.is_some() {
            add(Part::QNorm, i, false, None);
            add(Part::KNorm, i, false, None);
        }
        add(Part::MlpNorm, i, false, None);
        let (parts, bias): (&[Part], bool) = match &layer.mlp {
            Mlp::Gated(mlp) => (&[Part::Gate, Part::Up, Part::Down], mlp.bias),
            Mlp::Plain(mlp) => (&[Part::Up, Part::Down], mlp.bias),
            Mlp::Moe(_) => unreachable!("invariant: no family with experts is exported"),
        };
        for part in parts {
            add(*part, i, bias, None);
        }
    }
    add(Part::FinalNorm, 0, false, None);
    if !spec.tied_embeddings {
        add(Part::Head, 0, false, None);
    }
    all
}
