//! A checkpoint some of whose tensors have other values: those of a layer that was just quantized.

use std::collections::BTreeMap;
use std::path::Path;

use pelton_tensor::{DType, MappedFile, Safetensors, TensorSource, TensorView};

/// The tensors of a folder, and values that replace some of them.
pub(super) struct Patched {
    stored: Safetensors,
    patches: BTreeMap<String, Patch>,
}

struct Patch {
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl Patched {
    pub(super) fn new(stored: Safetensors) -> Self {
        Self { stored, patches: BTreeMap::new() }
    }

    /// Gives a tensor that is stored other values, in f32.
    pub(super) fn patch(&mut self, name: &str, values: &[f32]) {
        let stored = self.stored.get(name).expect("invariant: a tensor of these files");
        assert_eq!(stored.n_elements(), values.len(), "`{name}`: as many values as are stored");
        let shape = stored.shape.to_vec();
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.patches.insert(name.to_owned(), Patch { shape, data });
    }

    /// A tensor of the file.
    pub(super) fn stored(&self, name: &str) -> Option<TensorView<'_>> {
        self.stored.get(name)
    }

    /// Brings back what is stored.
    pub(super) fn clear(&mut self) {
        self.patches.clear();
    }
}

impl TensorSource for Patched {
    fn names(&self) -> Vec<&str> {
        self.stored.names()
    }

    fn get(&self, name: &str) -> Option<TensorView<'_>> {
        match self.patches.get_key_value(name) {
            None => self.stored.get(name),
            Some((name, Patch { shape, data })) => {
                Some(TensorView { name, dtype: DType::F32, shape, data })
            }
        }
    }

    fn origin(&self) -> &Path {
        self.stored.origin()
    }

    fn files(&self) -> &[MappedFile] {
        self.stored.files()
    }
}
