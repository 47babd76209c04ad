//! How rows become the vector of a text, of folders that say it in a `modules.json`.

use super::Keys;
use crate::arch::ArchSpec;
use crate::embed::{EmbedSpec, Pooling};
use crate::error::ModelError;
use crate::files::ModelFiles;

/// Adds `pooling_type`.
///
/// # Errors
///
/// When vectors are made in a way that a GGUF file cannot say.
pub(super) fn write(
    files: &ModelFiles,
    spec: &ArchSpec,
    keys: &mut Keys,
) -> Result<(), ModelError> {
    if !EmbedSpec::has_modules(files) {
        return Ok(());
    }
    let refuse = |what: String| {
        Err(ModelError::Export(format!("{what} (`modules.json`), which GGUF files cannot say")))
    };
    let EmbedSpec { pooling, dense, .. } = EmbedSpec::read(files, spec)?;
    if !dense.is_empty() {
        return refuse("a Dense layer after pooling".to_owned());
    }
    let number = match pooling[..] {
        [Pooling::Mean] => 1,
        [Pooling::Cls] => 2,
        [Pooling::LastToken] => 3,
        _ => {
            let names: Vec<String> = pooling.iter().map(ToString::to_string).collect();
            return refuse(format!("pooling by {}", names.join(" and ")));
        }
    };
    keys.count("pooling_type", number);
    Ok(())
}
