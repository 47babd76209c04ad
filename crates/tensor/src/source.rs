//! Where tensors come from: a name, a type, a shape, and borrowed bytes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use crate::{DType, MappedFile};

/// One tensor, borrowed from the file that holds it.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// How its elements are stored.
    pub dtype: DType,
    /// Row-major: the last dimension is contiguous. A weight matrix is `[out, in]`.
    pub shape: &'a [usize],
    /// Its bytes; little endian, not necessarily aligned.
    pub data: &'a [u8],
}

impl TensorView<'_> {
    /// Elements in total; one for a scalar.
    ///
    /// Sources check that the product does not overflow before they hand out a view.
    pub fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A checkpoint: tensors by name.
pub trait TensorSource: Send + Sync {
    /// Every tensor's name, in ascending order.
    fn names(&self) -> Vec<&str>;

    /// The tensor called `name`, or `None`.
    fn get(&self, name: &str) -> Option<TensorView<'_>>;

    /// The file or folder that was opened, for messages.
    fn origin(&self) -> &Path;

    /// The files that hold the tensors.
    fn files(&self) -> &[MappedFile];

    /// Gives the memory behind a tensor's bytes back; see [`MappedFile::give_back`].
    fn give_back(&self, data: &[u8]) {
        self.files().iter().for_each(|file| file.give_back(data));
    }
}

/// Where one tensor lies.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Index into [`Catalog::files`].
    pub(crate) file_idx: usize,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// Bytes of the file.
    pub(crate) range: Range<usize>,
}

/// Tensors of one or several files by name; the common form of both kinds of checkpoint.
///
/// **Invariant:** every entry's range lies inside its file and has the size that its type and shape
/// ask for.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    pub(crate) files: Vec<MappedFile>,
    pub(crate) entries: BTreeMap<String, Entry>,
}

impl Catalog {
    pub(crate) fn names(&self) -> Vec<&str> {
        self.entries.keys().map(String::as_str).collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<TensorView<'_>> {
        let (name, entry) = self.entries.get_key_value(name)?;
        Some(TensorView {
            name,
            dtype: entry.dtype,
            shape: &entry.shape,
            data: &self.files[entry.file_idx].bytes()[entry.range.clone()],
        })
    }
}
