//! In which types tensors are written.

use pelton_quant::{WeightFormat, fitting, for_dtype};
use pelton_tensor::{DType, Gguf, TensorSource, TensorView};

use super::item::{Item, Source};
use crate::arch::{Part, Stored};
use crate::error::ModelError;
use crate::files::names::Naming;

/// Ends of the names of tensors that stay in f32 whatever their shape is: every token depends on them,
/// or what they rounded would stay in a state.
const SMALL: &[&str] = &[
    "ffn_gate_inp.weight",
    "position_embd.weight",
    ".ssm_a",
    ".ssm_d",
    ".ssm_conv1d.weight",
    ".ssm_conv1d_q.weight",
    ".ssm_conv1d_k.weight",
    ".ssm_conv1d_v.weight",
    ".shortconv.conv.weight",
    ".time_mix_lerp_fused.weight",
    ".time_mix_w1.weight",
    ".time_mix_w2.weight",
    ".time_mix_a1.weight",
    ".time_mix_a2.weight",
    ".time_mix_v1.weight",
    ".time_mix_v2.weight",
    ".time_mix_g1.weight",
    ".time_mix_g2.weight",
];

/// The formats of matrices; `None` leaves them as they are stored.
pub(super) struct Formats {
    pub(super) matrices: Option<&'static dyn WeightFormat>,
    pub(super) embedding: Option<&'static dyn WeightFormat>,
    pub(super) head: Option<&'static dyn WeightFormat>,
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

    /// The type that a tensor of type `stored` becomes; `is_vector_kept` where vectors that nobody
    /// asked to change stay.
    pub(super) fn stored_as(
        &self,
        gguf_name: &str,
        stored: DType,
        shape: &[usize],
        is_vector_kept: bool,
    ) -> Result<DType, ModelError> {
        let is_number = for_dtype(stored).is_some();
        // Norms of each head and biases of experts are several rows.
        let is_small = shape.len() < 2
            || gguf_name.ends_with(".bias")
            || gguf_name.contains("_norm.")
            || SMALL.iter().any(|end| gguf_name.ends_with(end));
        let dtype = match (is_small, self.of(gguf_name)) {
            (true, None) if is_vector_kept => stored,
            (true, _) if is_number => DType::F32,
            (false, Some(format)) => fitting(format, shape[shape.len() - 1]).dtype(),
            _ => stored,
        };
        match dtype.gguf_id() {
            Some(_) => Ok(dtype),
            None => Err(ModelError::Export(format!(
                "tensor `{}`: GGUF has no type {dtype}; a format has to be chosen",
                gguf_name.escape_debug()
            ))),
        }
    }
}

/// The format that holds most bytes of matrices.
pub(super) fn prevailing(items: &[Item<'_>]) -> &'static dyn WeightFormat {
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
pub(super) fn of_gguf<'a>(gguf: &'a Gguf, formats: &Formats) -> Result<Vec<Item<'a>>, ModelError> {
    let views = gguf.names().into_iter().filter_map(|name| gguf.get(name));
    let item = |view: TensorView<'a>| {
        let dtype = formats.stored_as(view.name, view.dtype, view.shape, true)?;
        let (gguf_name, shape) = (view.name.to_owned(), view.shape.to_vec());
        Ok(Item { gguf_name, dtype, shape, source: Source::Stored(view) })
    };
    views.map(item).collect()
}
