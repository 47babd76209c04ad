//! The folders of sentence-transformers beside a model, which say how its rows become a vector.
//!
//! ```text
//! modules.json           [{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}, ...]
//! 1_Pooling/config.json
//! 2_Dense/config.json, model.safetensors
//! ```

use std::fs;
use std::path::{Component, Path, PathBuf};

use pelton_base::limits;
use serde_json::Value;

use crate::{QuantizeError, Result};

/// Copies the files of all modules but the model itself from `source` to the folder `temporary`,
/// which is to become `target`.
///
/// # Errors
///
/// A file that cannot be read or written.
pub(crate) fn copy(source: &Path, temporary: &Path, target: &Path) -> Result<()> {
    for folder in folders(source)? {
        let from = source.join(&folder);
        // Steps without numbers, such as `2_Normalize`, often have no folder.
        if !from.is_dir() {
            continue;
        }
        let to = temporary.join(&folder);
        fs::create_dir_all(&to).map_err(QuantizeError::io(target.join(&folder)))?;
        for entry in fs::read_dir(&from).map_err(QuantizeError::io(&from))? {
            let path = entry.map_err(QuantizeError::io(&from))?.path();
            let ending = path.extension().and_then(|ending| ending.to_str());
            if let (Some(name), Some("json" | "safetensors")) = (path.file_name(), ending) {
                copy_file(&path, &to.join(name), &target.join(&folder).join(name))?;
            }
        }
    }
    Ok(())
}

/// Copies a file, if it is one, over what a killed run may have left; `shown` is its name at the end.
///
/// # Errors
///
/// A file that cannot be read or written.
pub(crate) fn copy_file(from: &Path, to: &Path, shown: &Path) -> Result<()> {
    if !from.is_file() {
        return Ok(());
    }
    // One that a killed run left may not be writable.
    if to.exists() {
        fs::remove_file(to).map_err(QuantizeError::io(to))?;
    }
    fs::copy(from, to).map(drop).map_err(QuantizeError::io(shown))
}

/// Folders that `modules.json` names beneath its own, without those of the model. Readers refuse a
/// file that is no list and paths that lead elsewhere, so these name no folders here.
fn folders(source: &Path) -> Result<Vec<PathBuf>> {
    let file = source.join("modules.json");
    if !file.exists() {
        return Ok(Vec::new());
    }
    let bytes = pelton_tensor::read_limited(&file, limits::CONFIG_BYTES);
    let bytes = bytes.map_err(QuantizeError::io(&file))?;
    let modules: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let is_other = |module: &&Value| {
        let kind = module["type"].as_str().unwrap_or_default();
        !kind.ends_with("Transformer")
    };
    let is_beneath = |path: &&str| {
        let mut parts = Path::new(path).components();
        !path.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
    };
    let modules = modules.as_array().into_iter().flatten().filter(is_other);
    let paths = modules.filter_map(|module| module["path"].as_str()).filter(is_beneath);
    Ok(paths.map(PathBuf::from).collect())
}
