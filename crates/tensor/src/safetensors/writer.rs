//! Writes safetensors files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::error::shown;
use crate::{Result, TensorError, TensorView};

/// Writes `tensors`, in their order, to a new file at `path`.
///
/// The data starts at a multiple of 64 bytes of the file.
///
/// # Errors
///
/// When the file cannot be written, two tensors have the same name, or a tensor has a type that
/// safetensors files cannot hold.
///
/// # Panics
///
/// When a tensor's data does not have the size that its type and shape ask for.
pub fn write_safetensors(
    path: &Path,
    tensors: &[TensorView<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<()> {
    let header = header(path, tensors, metadata)?;
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        tensors.iter().try_for_each(|tensor| file.write_all(tensor.data))
    };
    write().map_err(|source| TensorError::io(path, source))
}

fn header(
    path: &Path,
    tensors: &[TensorView<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>> {
    let mut object = Map::new();
    if !metadata.is_empty() {
        object.insert("__metadata__".into(), json!(metadata));
    }
    let mut names = BTreeSet::from(["__metadata__"]);
    let mut start = 0;
    for tensor in tensors {
        let n_bytes = tensor.dtype.bytes_for(tensor.n_elements());
        assert_eq!(Some(tensor.data.len()), n_bytes, "`{}`: bytes of data", tensor.name);
        if !names.insert(tensor.name) {
            let field = format!("tensor `{}`", shown(tensor.name));
            return Err(TensorError::malformed(path, field, "one tensor of this name", "two"));
        }
        let dtype = tensor.dtype.safetensors_name().ok_or_else(|| {
            let got = tensor.dtype.name().to_owned();
            TensorError::unknown_dtype(path, tensor.name, got, |d| d.safetensors_name().is_some())
        })?;
        let end = start + tensor.data.len();
        object.insert(
            tensor.name.to_owned(),
            json!({"dtype": dtype, "shape": tensor.shape, "data_offsets": [start, end]}),
        );
        start = end;
    }
    let mut header = Value::Object(object).to_string().into_bytes();
    // Spaces after the object are part of the format.
    header.resize((header.len() + 8).next_multiple_of(64) - 8, b' ');
    Ok(header)
}
