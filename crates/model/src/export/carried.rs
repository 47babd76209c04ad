//! The metadata of a GGUF file in the one made from it.

use pelton_quant::WeightFormat;
use pelton_tensor::{Gguf, GgufValue, GgufWriter, gguf_file_type};

const FILE_TYPE: &str = "general.file_type";

/// Copies every key but those of a split; `format` is what most of the tensors become, `None` where
/// they stay.
pub(super) fn write(gguf: &Gguf, format: Option<&dyn WeightFormat>, writer: &mut GgufWriter) {
    for (key, value) in gguf.metadata() {
        let is_stale = key == FILE_TYPE && format.is_some();
        if !is_stale && !key.starts_with("split.") {
            writer.metadata(key, value.clone());
        }
    }
    if let Some(file_type) = format.and_then(|format| gguf_file_type(format.dtype())) {
        writer.metadata(FILE_TYPE, GgufValue::U32(file_type));
    }
}
