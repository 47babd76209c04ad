//! A model by its configuration alone: what can be computed about it before its weights are there.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::arch::{self, ArchSpec};
use crate::config::{HfConfig, parse_config, parse_scheme_words};
use crate::error::ModelError;
use crate::fields::parse_json;
use crate::files::{CONFIG, ModelFiles, read_limited, spec_of};

/// A model by its configuration alone.
#[derive(Clone, Debug)]
pub struct ModelOutline {
    /// The file that was read.
    pub path: PathBuf,
    /// Its configuration.
    pub config: HfConfig,
    /// The specification of the model.
    pub spec: ArchSpec,
    /// How the checkpoint is quantized, in words, where its configuration says that it is.
    pub scheme: Option<String>,
    /// Whether GGUF files of the family have the keys' half of latent attention beside the values' half:
    /// then quantized keys become f32 while they are turned.
    pub has_fused_keys: bool,
    /// `torch_dtype` or `dtype`: the type that the weights are stored in, where it is said.
    pub dtype: Option<String>,
}

impl ModelOutline {
    /// Reads `config.json`, or that of a folder; no other file is opened.
    ///
    /// # Errors
    ///
    /// Names the file and the field that is wrong.
    pub fn of_config(path: &Path) -> Result<Self, ModelError> {
        let file = if path.is_dir() { path.join(CONFIG) } else { path.to_owned() };
        let bytes = read_limited(&file)?;
        let config = parse_config(&bytes).map_err(ModelError::config(&file))?;
        let scheme = parse_scheme_words(&bytes).map_err(ModelError::config(&file))?;
        let arch = arch::known(&config);
        let spec = spec_of(arch, &config).map_err(ModelError::config(&file))?;
        let json = parse_json(&bytes).map_err(ModelError::config(&file))?;
        let has_fused_keys = !arch.gguf.is_kv_up_split;
        Ok(Self { path: file, dtype: dtype(&json), config, spec, scheme, has_fused_keys })
    }

    /// The outline of files that are open.
    ///
    /// # Errors
    ///
    /// As [`ModelFiles::spec`].
    pub fn of_files(files: &ModelFiles) -> Result<Self, ModelError> {
        Ok(Self {
            path: files.path().to_owned(),
            config: files.config().clone(),
            spec: files.spec()?,
            scheme: files.scheme().map(|scheme| scheme.words()),
            has_fused_keys: !files.arch().gguf.is_kv_up_split,
            dtype: None,
        })
    }
}

/// The type of the weights, of the model or of its text part.
fn dtype(json: &Value) -> Option<String> {
    let of = |json: &Value| {
        let name = json.get("torch_dtype").or_else(|| json.get("dtype"))?.as_str()?;
        Some(name.trim_start_matches("torch.").to_owned())
    };
    of(json).or_else(|| of(json.get("text_config")?))
}
