//! The files of a model: a Hugging Face folder, a GGUF file, or the bytes in the binary.

pub(crate) mod gguf;
pub(crate) mod names;
mod patched;
mod suppressed;

use std::path::{Path, PathBuf};

use pelton_base::limits;
use pelton_quant::RoundTo;
use pelton_quant::checkpoint::Scheme;
use pelton_tensor::{Gguf, GgufPartName, MappedFile, Safetensors, TensorSource, TensorView};

use crate::arch::{self, Arch, ArchSpec, Part};
use crate::config::{
    HfConfig, generation_eos_tokens, parse_config, parse_scheme, parse_scheme_file,
};
use crate::error::ModelError;
use crate::export::Rounding;
use crate::fields::{ConfigError, parse_json};
use crate::wrapper::PREFIXES;
use names::Naming;
use patched::Patched;

/// The kind of files that a model consists of.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ModelKind {
    /// A folder with `config.json` and safetensors.
    HfFolder,
    /// A GGUF file.
    Gguf,
    /// The GGUF file in this binary.
    Embedded,
}

/// A model's files, opened and checked but not loaded: weights stay where they are.
pub struct ModelFiles {
    kind: ModelKind,
    path: PathBuf,
    config: HfConfig,
    scheme: Option<Scheme>,
    weights: Weights,
    rounding: Option<Rounding>,
}

enum Weights {
    Safetensors(Patched),
    Gguf(Gguf),
}

pub(crate) const CONFIG: &str = "config.json";

impl ModelFiles {
    /// Opens a model folder, a `.gguf` file (or any part of a split one), or a folder that holds
    /// one such model and no `config.json`.
    ///
    /// # Errors
    ///
    /// Names the file and the field or tensor that is wrong.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let metadata = std::fs::metadata(path).map_err(ModelError::io(path))?;
        if !metadata.is_dir() {
            return match path.extension().and_then(|e| e.to_str()) {
                Some("safetensors" | "json") => {
                    Self::open_folder(path.parent().unwrap_or(Path::new(".")))
                }
                _ => Self::from_gguf(ModelKind::Gguf, path, Gguf::open(path)?),
            };
        }
        if path.join(CONFIG).exists() {
            return Self::open_folder(path);
        }
        match only_gguf(path)? {
            Some(file) => Self::from_gguf(ModelKind::Gguf, &file, Gguf::open(&file)?),
            None => Err(ModelError::NotAModel {
                path: path.to_owned(),
                why: "expected `config.json` or one `.gguf` file in this folder".to_owned(),
            }),
        }
    }

    /// The GGUF file in this binary.
    ///
    /// # Errors
    ///
    /// As [`ModelFiles::open`]; only a broken build can cause one.
    pub fn embedded(gguf_bytes: &'static [u8]) -> Result<Self, ModelError> {
        let name = Path::new("(embedded model)");
        let gguf = Gguf::from_mapped(MappedFile::from_static(name, gguf_bytes))?;
        Self::from_gguf(ModelKind::Embedded, name, gguf)
    }

    fn open_folder(folder: &Path) -> Result<Self, ModelError> {
        let file = folder.join(CONFIG);
        let bytes = read_limited(&file)?;
        let mut config = parse_config(&bytes).map_err(ModelError::config(&file))?;
        let scheme = match parse_scheme(&bytes).map_err(ModelError::config(&file))? {
            Some(scheme) => Some(scheme),
            None => scheme_beside(folder)?,
        };
        let generation = folder.join("generation_config.json");
        if generation.exists() {
            let more = generation_eos_tokens(&read_limited(&generation)?, config.vocab_size);
            for token in more {
                if !config.eos_tokens.contains(&token) {
                    config.eos_tokens.push(token);
                }
            }
        }
        let weights = Weights::Safetensors(Patched::new(Safetensors::open_folder(folder)?));
        let (kind, path, rounding) = (ModelKind::HfFolder, folder.to_owned(), None);
        Ok(Self { kind, path, config, scheme, weights, rounding })
    }

    fn from_gguf(kind: ModelKind, path: &Path, file: Gguf) -> Result<Self, ModelError> {
        let config = gguf::read_config(file.metadata(), &file).map_err(ModelError::config(path))?;
        let weights = Weights::Gguf(file);
        let (path, scheme, rounding) = (path.to_owned(), None, None);
        Ok(Self { kind, path, config, scheme, weights, rounding })
    }

    /// The kind of these files.
    pub fn kind(&self) -> ModelKind {
        self.kind
    }

    /// The folder or file that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder that holds `tokenizer.json` and its companions, for a Hugging Face folder.
    pub fn folder(&self) -> Option<&Path> {
        (self.kind == ModelKind::HfFolder).then_some(&self.path)
    }

    /// The GGUF file, which carries its own tokenizer, unless this is a folder.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.weights {
            Weights::Gguf(gguf) => Some(gguf),
            Weights::Safetensors(_) => None,
        }
    }

    /// The checked configuration.
    pub fn config(&self) -> &HfConfig {
        &self.config
    }

    /// How the matrices are quantized, where the checkpoint spreads each over several tensors.
    pub fn scheme(&self) -> Option<&Scheme> {
        self.scheme.as_ref()
    }

    /// The weights as stored.
    pub fn tensors(&self) -> &dyn TensorSource {
        match &self.weights {
            Weights::Safetensors(safetensors) => safetensors,
            Weights::Gguf(gguf) => gguf,
        }
    }

    /// A tensor as it is in the file, [patched](Self::patch) or not.
    pub fn stored(&self, name: &str) -> Option<TensorView<'_>> {
        match &self.weights {
            Weights::Safetensors(tensors) => tensors.stored(name),
            Weights::Gguf(gguf) => gguf.get(name),
        }
    }

    /// Rounds the weights in every load from now on, as [`export`](crate::export()) in this format
    /// writes them; figures about loads follow, and the files stay as they are.
    ///
    /// Matrices are rounded row by row, while they are packed. Families that are not written as GGUF
    /// keep tables of positions and kinds of tokens, and matrices that are computed in f32.
    ///
    /// # Errors
    ///
    /// [`ModelError::Rounded`] where a matrix is quantized already; as [`check`](crate::check).
    pub fn round_to(&mut self, to: RoundTo) -> Result<(), ModelError> {
        self.rounding = None;
        self.rounding = Some(Rounding::new(self, to)?);
        Ok(())
    }

    /// The format that weights are rounded to while they are loaded.
    pub fn rounded_to(&self) -> Option<RoundTo> {
        self.rounding.as_ref().map(Rounding::to)
    }

    /// The types that weights are rounded to while they are loaded.
    pub(crate) fn rounding(&self) -> Option<&Rounding> {
        self.rounding.as_ref()
    }

    /// Gives a tensor of a folder other values, in f32, for everything that is loaded from now on; the
    /// files stay as they are.
    ///
    /// # Panics
    ///
    /// When these are no files of a folder, or have no tensor of this name and size.
    pub fn patch(&mut self, name: &str, values: &[f32]) {
        match &mut self.weights {
            Weights::Safetensors(tensors) => tensors.patch(name, values),
            Weights::Gguf(_) => panic!("`{name}`: only tensors of folders are patched"),
        }
    }

    /// Brings back the tensors that are stored.
    pub fn clear_patches(&mut self) {
        if let Weights::Safetensors(tensors) = &mut self.weights {
            tensors.clear();
        }
    }

    /// The registry entry of this model's family.
    pub fn arch(&self) -> &'static Arch {
        arch::known(&self.config)
    }

    /// The specification of the model.
    ///
    /// # Errors
    ///
    /// Names the field that this architecture cannot work with.
    pub fn spec(&self) -> Result<ArchSpec, ModelError> {
        let spec = spec_of(self.arch(), &self.config);
        let mut spec = spec.map_err(ModelError::config(self.tensors().origin()))?;
        if spec.encoder.is_some() {
            // Configs of these families say that a head is shared even beside one that is not.
            let head = self.naming().weight(Part::Head, 0);
            spec.tied_embeddings = self.tensors().get(&head).is_none();
        }
        Ok(spec)
    }

    /// How tensors are called in these files.
    pub(crate) fn naming(&self) -> Naming {
        let arch = self.arch();
        let st = match &self.weights {
            Weights::Gguf(_) => return Naming::of(&arch.gguf),
            Weights::Safetensors(st) => st,
        };
        let own = Naming::of(&arch.hf);
        let has_table = |naming: &Naming| st.get(&naming.weight(Part::Embedding, 0)).is_some();
        if self.config.wrapper.is_some() {
            let within = PREFIXES.iter().map(|&(outer, prefix)| Naming {
                outer,
                prefix: prefix.unwrap_or(own.prefix),
                ..own
            });
            return within.clone().find(has_table).or(within.clone().next()).unwrap_or(own);
        }
        // Base models are saved without their head, and without the prefix.
        let base = Naming { prefix: "", ..own };
        if !has_table(&own) && has_table(&base) { base } else { own }
    }
}

impl std::fmt::Debug for ModelFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelFiles").field("kind", &self.kind).field("path", &self.path).finish()
    }
}

/// The specification of a model with this configuration.
pub(crate) fn spec_of(arch: &Arch, config: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = (arch.spec)(config)?;
    if arch::is_headless(&config.architecture) {
        // Nothing is looked for where the head would be.
        (spec.ends.head, spec.tied_embeddings) = (false, true);
    }
    Ok(spec)
}

/// The quantization scheme in a file beside `config.json`, where older checkpoints keep it.
fn scheme_beside(folder: &Path) -> Result<Option<Scheme>, ModelError> {
    for (name, method) in [("quantize_config.json", "gptq"), ("quant_config.json", "awq")] {
        let file = folder.join(name);
        if file.exists() {
            let scheme = parse_scheme_file(&read_limited(&file)?, method);
            return scheme.map(Some).map_err(ModelError::config(&file));
        }
    }
    Ok(None)
}

/// The only `.gguf` file of a folder (of a split file its first part), or `None` where there are
/// several or none.
fn only_gguf(folder: &Path) -> Result<Option<PathBuf>, ModelError> {
    let mut found = None;
    for entry in std::fs::read_dir(folder).map_err(ModelError::io(folder))? {
        let path = entry.map_err(ModelError::io(folder))?.path();
        let is_further = GgufPartName::parse(&path).is_some_and(|part| part.number > 1);
        let is_gguf = path.extension().is_some_and(|e| e == "gguf") && !is_further;
        if is_gguf && found.replace(path).is_some() {
            return Ok(None);
        }
    }
    Ok(found)
}

/// A small JSON file.
pub(crate) fn read_json(file: &Path) -> Result<serde_json::Value, ModelError> {
    parse_json(&read_limited(file)?).map_err(ModelError::config(file))
}

/// A small file.
pub(crate) fn read_limited(file: &Path) -> Result<Vec<u8>, ModelError> {
    pelton_tensor::read_limited(file, limits::CONFIG_BYTES).map_err(ModelError::io(file))
}
