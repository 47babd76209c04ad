//! One file or several, which appear when all of them are whole.

use std::io::BufWriter;
use std::ops::Range;
use std::path::{Path, PathBuf};

use pelton_base::limits;
use pelton_tensor::{GgufPartName, GgufValue, GgufWriter, PendingFile};

use super::{ExportOptions, ExportProgress, Item};
use crate::error::ModelError;
use crate::files::ModelFiles;

/// The items of each file, in order: as many as `max_bytes` hold, at least one.
pub(super) fn cut(
    items: &[Item<'_>],
    max_bytes: Option<u64>,
) -> Result<Vec<Range<usize>>, ModelError> {
    let sizes: Vec<u64> = items.iter().map(Item::n_bytes).collect();
    let parts = cut_sizes(&sizes, max_bytes.unwrap_or(u64::MAX));
    if parts.len() > limits::GGUF_PARTS {
        let (n, most) = (parts.len(), limits::GGUF_PARTS);
        return Err(ModelError::Export(format!(
            "{n} files, expected at most {most}: choose larger ones"
        )));
    }
    Ok(parts)
}

fn cut_sizes(sizes: &[u64], max_bytes: u64) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let (mut start, mut n_bytes) = (0, 0_u64);
    for (i, size) in sizes.iter().enumerate() {
        if i > start && n_bytes.saturating_add(*size) > max_bytes {
            parts.push(start..i);
            (start, n_bytes) = (i, 0);
        }
        n_bytes = n_bytes.saturating_add(*size);
    }
    parts.push(start..sizes.len());
    parts
}

/// The names of the files: `out` itself, or `out` with numbers.
pub(super) fn paths(out: &Path, n_parts: usize) -> Vec<PathBuf> {
    if n_parts == 1 {
        return vec![out.to_owned()];
    }
    let stem = out.with_extension("").to_string_lossy().into_owned();
    let part = |number| GgufPartName { stem: stem.clone(), number, count: n_parts }.path();
    (1..=n_parts).map(part).collect()
}

/// Writes all parts; `false` when it was stopped, and then nothing is there.
pub(super) fn write(
    files: &ModelFiles,
    items: &[Item<'_>],
    parts: &[Range<usize>],
    paths: &[PathBuf],
    mut header: GgufWriter,
    options: &ExportOptions<'_>,
) -> Result<bool, ModelError> {
    let mut progress = ExportProgress {
        n_tensors: 0,
        n_total_tensors: items.len(),
        n_bytes: 0,
        n_total_bytes: items.iter().map(Item::n_bytes).sum(),
    };
    let mut whole = Vec::new();
    for (idx, (range, path)) in parts.iter().zip(paths).enumerate() {
        let mut writer = std::mem::take(&mut header);
        if parts.len() > 1 {
            writer
                .metadata("split.no", GgufValue::U16(idx as u16))
                .metadata("split.count", GgufValue::U16(parts.len() as u16))
                .metadata("split.tensors.count", GgufValue::I32(items.len() as i32));
        }
        for item in &items[range.clone()] {
            writer.tensor(&item.gguf_name, item.dtype, &item.shape);
        }
        let pending = PendingFile::create(path).map_err(ModelError::io(path))?;
        let mut data = writer.start(BufWriter::with_capacity(1 << 20, pending), path)?;
        for item in &items[range.clone()] {
            if options.stop.is_some_and(|stop| stop()) {
                return Ok(false);
            }
            data.tensor_data(&item.bytes(files, options.importance)?)?;
            progress.n_tensors += 1;
            progress.n_bytes += item.n_bytes();
            if let Some(tell) = options.progress {
                tell(progress);
            }
        }
        let pending = data.finish()?.into_inner().map_err(|error| error.into_error());
        whole.push((pending.map_err(ModelError::io(path))?, path));
    }
    // Nothing but a rename is left to fail.
    for (pending, path) in whole {
        pending.publish().map_err(ModelError::io(path))?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_full_as_they_may_be_and_never_empty() {
        // Each part's length.
        let cases: [(&[u64], u64, &[usize]); 5] = [
            (&[5, 5, 5], 10, &[2, 1]),
            (&[5, 50, 5], 10, &[1, 1, 1]),
            (&[5, 5], u64::MAX, &[2]),
            (&[u64::MAX, u64::MAX], 1, &[1, 1]),
            (&[], 10, &[0]),
        ];
        for (sizes, max_bytes, expected) in cases {
            let parts = cut_sizes(sizes, max_bytes);
            let lengths: Vec<usize> = parts.iter().map(Range::len).collect();
            assert_eq!(lengths, expected, "{sizes:?}");
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{sizes:?}");
        }
    }

    #[test]
    fn several_parts_have_numbers_in_their_names() {
        assert_eq!(paths(Path::new("a/m.gguf"), 1), [Path::new("a/m.gguf")]);
        let expected = ["a/m.x-00001-of-00002.gguf", "a/m.x-00002-of-00002.gguf"].map(Path::new);
        assert_eq!(paths(Path::new("a/m.x.gguf"), 2), expected);
    }
}
