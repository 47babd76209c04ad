//! Tensors by name: each is checked for shape and type where it is found.

use pelton_quant::{QuantError, for_dtype, supported_names};
use pelton_tensor::{DType, TensorView};

use crate::arch::{ArchSpec, Part as Name, Stored};
use crate::error::ModelError;
use crate::export::Rounded;
use crate::files::ModelFiles;
use crate::files::names::Naming;
use crate::load::Part;

/// Finds tensors by name and checks them.
#[derive(Clone, Copy)]
pub(crate) struct Lookup<'a, 's> {
    pub(crate) files: &'a ModelFiles,
    pub(crate) naming: Naming,
    pub(crate) stored: &'static Stored,
    pub(crate) spec: &'s ArchSpec,
    /// The expert whose tensors are meant where a name has a `*`.
    pub(crate) expert: Option<usize>,
    /// The rows of each head of a matrix of heads are padded to a multiple of this.
    pub(crate) head_rows: usize,
    /// Whether patches of tensors in bf16 are rounded to bf16, as a walk computes with them.
    pub(crate) rounds_patches: bool,
}

impl<'a, 's> Lookup<'a, 's> {
    /// Looks in these files, for a device that wants heads of `head_rows` rows.
    pub(crate) fn new(files: &'a ModelFiles, spec: &'s ArchSpec, head_rows: usize) -> Self {
        let naming = files.naming();
        let (expert, rounds_patches) = (None, false);
        Self { files, naming, stored: naming.stored, spec, expert, head_rows, rounds_patches }
    }

    /// A part that is rounded while it is packed, where the files say so.
    pub(crate) fn rounded(&self, part: Part<'a>) -> Part<'a> {
        if self.rounds_patches {
            let stored = self.files.stored(part.view.name).map(|view| view.dtype);
            let is_patched = part.view.dtype != DType::Bf16 && stored == Some(DType::Bf16);
            return Part { rounded: is_patched.then_some(Rounded::Packed(DType::Bf16)), ..part };
        }
        let rounded = self.files.rounding().and_then(|rounding| rounding.of(&part));
        Part { rounded, ..part }
    }

    pub(crate) fn weight(
        &self,
        name: Name,
        layer: usize,
        shape: &[usize],
    ) -> Result<TensorView<'a>, ModelError> {
        self.find(&format!("{}.weight", self.stem(name, layer)), shape)
    }

    pub(crate) fn bias(&self, name: Name, layer: usize) -> String {
        format!("{}.bias", self.stem(name, layer))
    }

    /// The first of a part's names that the checkpoint has.
    pub(crate) fn stem(&self, name: Name, layer: usize) -> String {
        let stems = self.naming.stems(name, layer);
        let mut stems = stems.map(|stem| match self.expert {
            Some(expert) => stem.replace('*', &expert.to_string()),
            None => stem,
        });
        let usual = stems.next().expect("invariant: every part has a name");
        match stems.next() {
            // Whether a quantized checkpoint has a name is not cheap to know.
            None => usual,
            Some(_) if self.has(&usual) => usual,
            Some(other) => {
                [other].into_iter().chain(stems).find(|stem| self.has(stem)).unwrap_or(usual)
            }
        }
    }

    /// The module that an expert's matrix has in files that hold the experts apart; in a GGUF file,
    /// which never does, a name that only tells it from those of other experts.
    pub(crate) fn expert_module(&self, name: Name, layer: usize, expert: usize) -> String {
        let number = expert.to_string();
        let mut stems = self.naming.stems(name, layer);
        let apart = stems.find(|stem| stem.contains('*')).map(|stem| stem.replace('*', &number));
        apart.unwrap_or_else(|| format!("{}.{number}", self.stem(name, layer)))
    }

    /// Whether the checkpoint has a module of this name.
    pub(crate) fn has(&self, stem: &str) -> bool {
        let module = format!("{}.", stem.replace('*', "0"));
        let tensors = self.files.tensors();
        tensors.get(&format!("{module}weight")).is_some()
            || (self.files.scheme().is_some()
                && tensors.names().iter().any(|name| name.starts_with(&module)))
    }

    /// Whether the checkpoint has a vector of this part, whose name may lack its last word.
    pub(crate) fn has_vector(&self, name: Name, layer: usize) -> bool {
        let stem = self.stem(name, layer);
        self.files.tensors().get(&stem).is_some() || self.has(&stem)
    }

    pub(crate) fn find(&self, name: &str, shape: &[usize]) -> Result<TensorView<'a>, ModelError> {
        self.find_as(name, shape, None)
    }

    /// A tensor of a type with a format, or of this one.
    pub(crate) fn find_as(
        &self,
        name: &str,
        shape: &[usize],
        dtype: Option<DType>,
    ) -> Result<TensorView<'a>, ModelError> {
        let file = || self.files.tensors().origin().to_owned();
        let Some(view) = self.files.tensors().get(name) else {
            return Err(ModelError::MissingTensor {
                file: file(),
                tensor: name.to_owned(),
                shape: shape.to_vec(),
            });
        };
        if view.shape != shape {
            return Err(ModelError::Shape {
                file: file(),
                tensor: name.to_owned(),
                expected: shape.to_vec(),
                found: view.shape.to_vec(),
            });
        }
        if dtype != Some(view.dtype) && (dtype.is_some() || for_dtype(view.dtype).is_none()) {
            let source = QuantError::Unsupported {
                tensor: name.to_owned(),
                dtype: view.dtype,
                supported: dtype.map_or_else(supported_names, |dtype| dtype.name().to_owned()),
            };
            return Err(ModelError::Format { file: file(), source });
        }
        Ok(view)
    }

    /// Refuses a type whose elements cannot be taken one by one.
    pub(crate) fn float(&self, view: TensorView<'a>) -> Result<TensorView<'a>, ModelError> {
        let n_elements = view.n_elements().max(1);
        if view.data.len().is_multiple_of(n_elements) && view.data.len() / n_elements >= 2 {
            return Ok(view);
        }
        let source = QuantError::Unsupported {
            tensor: view.name.to_owned(),
            dtype: view.dtype,
            supported: "F32, F16, BF16 for a bias or a transposed matrix".to_owned(),
        };
        Err(ModelError::Format { file: self.files.tensors().origin().to_owned(), source })
    }
}
