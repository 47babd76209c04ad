//! A model in several files.
//!
//! ```text
//! NAME-00001-of-00003.gguf    all metadata    split.no 0   split.count 3   split.tensors.count n
//! NAME-00002-of-00003.gguf                    split.no 1   split.count 3   split.tensors.count n
//! NAME-00003-of-00003.gguf                    split.no 2   split.count 3   split.tensors.count n
//! ```
//! Numbers count from 1 in names and from 0 in keys. Each part is a valid file of its own. Opening
//! any part opens all parts: they are expected beside it, under the same name with other numbers.
//!
//! Parts belong together if their counts agree and no tensor occurs twice. Some writers repeat
//! metadata in every part; it must equal the metadata of the first part. Parts of two models that
//! agree in all of this differ in the names or shapes of their tensors, which loading the model
//! then reports.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pelton_base::limits;

use super::{ALIGNMENT_KEY, Gguf, GgufValue, Header};
use crate::error::shown;
use crate::source::Catalog;
use crate::{MappedFile, Result, TensorError};

const NUMBER_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
const TENSORS_KEY: &str = "split.tensors.count";

/// The name of a part, taken apart: `NAME-00002-of-00003.gguf`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GgufPartName {
    /// Folder and name up to the numbers.
    pub stem: String,
    /// Number of the part, from 1.
    pub number: usize,
    /// Number of parts.
    pub count: usize,
}

impl GgufPartName {
    /// Reads a name; `None` where it is not the name of a part.
    pub fn parse(path: &Path) -> Option<Self> {
        let numbers = path.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = numbers.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| -> Option<usize> {
            let is_number = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            if is_number { text.parse().ok() } else { None }
        };
        let (number, count) = (digits(number)?, digits(count)?);
        let is_one = (1..=count).contains(&number);
        is_one.then(|| Self { stem: stem.to_owned(), number, count })
    }

    /// The file of this part.
    pub fn path(&self) -> PathBuf {
        format!("{}-{:05}-of-{:05}.gguf", self.stem, self.number, self.count).into()
    }

    /// Another part of the same model.
    pub fn sibling(&self, number: usize) -> Self {
        Self { number, ..self.clone() }
    }
}

/// The keys of a file that describe the split.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// From 0.
    number: usize,
    count: usize,
    n_tensors: Option<usize>,
    /// `None` where the file's name is not the name of a part.
    name: Option<GgufPartName>,
}

impl Part {
    /// Reads the keys of a split; `None` where the file is the whole model.
    pub(super) fn of(file: &Path, metadata: &BTreeMap<String, GgufValue>) -> Result<Option<Self>> {
        let integer = |key: &str, most: usize| -> Result<Option<usize>> {
            let Some(value) = metadata.get(key) else { return Ok(None) };
            let n = value.as_i128().and_then(|n| usize::try_from(n).ok()).filter(|n| *n <= most);
            n.map(Some).ok_or_else(|| {
                let got = value.as_i128().map_or(value.type_name().to_owned(), |n| n.to_string());
                malformed(file, key, format!("an integer from 0 to {most}"), got)
            })
        };
        let count = match integer(COUNT_KEY, limits::GGUF_PARTS)? {
            None | Some(0 | 1) => return Ok(None),
            Some(count) => count,
        };
        let Some(number) = integer(NUMBER_KEY, count - 1)? else {
            let expected = format!("the number of this part of {count}");
            return Err(malformed(file, NUMBER_KEY, expected, "nothing".to_owned()));
        };
        let n_tensors = integer(TENSORS_KEY, limits::FILE_TENSORS)?;
        Ok(Some(Self { number, count, n_tensors, name: GgufPartName::parse(file) }))
    }

    /// The error for a part without neighbours.
    pub(super) fn alone(&self, file: &Path) -> TensorError {
        let got = format!("one of {} parts", self.count);
        malformed(file, COUNT_KEY, "a file that holds the whole model".to_owned(), got)
    }

    /// Checks this part, in the file `file`, against the keys of the first part.
    fn check(&self, file: &Path, number: usize, first: &Part) -> Result<()> {
        if self.count != first.count {
            let expected = format!("{} as in the other parts", first.count);
            return Err(malformed(file, COUNT_KEY, expected, self.count.to_string()));
        }
        if self.number != number {
            let expected = format!("{number}, after the file's name");
            return Err(malformed(file, NUMBER_KEY, expected, self.number.to_string()));
        }
        if self.n_tensors != first.n_tensors {
            let told = |n: Option<usize>| n.map_or("nothing".to_owned(), |n| n.to_string());
            let expected = format!("{} as in the other parts", told(first.n_tensors));
            return Err(malformed(file, TENSORS_KEY, expected, told(self.n_tensors)));
        }
        Ok(())
    }
}

/// All parts of the model that `mapped` is a part of.
pub(super) fn open_all(part: Part, mapped: MappedFile, header: Header) -> Result<Gguf> {
    let opened = mapped.path().to_owned();
    let Some(name) = part.name.clone() else {
        let expected = "a name like `model-00001-of-00002.gguf`, by which to find the other parts";
        let name = opened.file_name().unwrap_or_default().to_string_lossy();
        let got = format!("`{}`", shown(&name));
        return Err(TensorError::malformed(&opened, "name", expected, got));
    };
    if name.count != part.count {
        let expected = format!("{}, after the file's name", name.count);
        return Err(malformed(&opened, COUNT_KEY, expected, part.count.to_string()));
    }
    part.check(&opened, name.number - 1, &part)?;
    let mut own = Some((mapped, header));
    let mut metadata = BTreeMap::new();
    let mut catalog = Catalog::default();
    for number in 1..=part.count {
        let (mapped, header) = match own.take_if(|_| number == name.number) {
            Some(own) => own,
            None => open_one(&name.sibling(number), &part)?,
        };
        let file = mapped.path();
        if number == 1 {
            metadata = header.metadata;
        } else {
            check_metadata(file, &header.metadata, &metadata)?;
        }
        for (name, mut entry) in header.entries {
            entry.file_idx = number - 1;
            let label = shown(&name);
            if let Some(other) = catalog.entries.insert(name, entry) {
                let got = format!("another in part {}", other.file_idx + 1);
                let field = format!("tensor `{label}`");
                return Err(TensorError::malformed(file, field, "one tensor of this name", got));
            }
        }
        catalog.files.push(mapped);
    }
    match part.n_tensors {
        Some(n_tensors) if n_tensors != catalog.entries.len() => {
            let got = format!("{} in all parts", catalog.entries.len());
            Err(malformed(&opened, TENSORS_KEY, format!("{n_tensors} tensors"), got))
        }
        _ => Ok(Gguf { metadata, catalog }),
    }
}

fn open_one(name: &GgufPartName, first: &Part) -> Result<(MappedFile, Header)> {
    let path = name.path();
    if !path.exists() {
        let GgufPartName { number, count, .. } = *name;
        return Err(TensorError::MissingPart { file: path, number, count });
    }
    let mapped = MappedFile::open(&path)?;
    let header = Header::read(&mapped, name.number - 1)?;
    let Some(part) = Part::of(&path, &header.metadata)? else {
        let expected = format!("{} as in the other parts", first.count);
        return Err(malformed(&path, COUNT_KEY, expected, "a whole model".to_owned()));
    };
    part.check(&path, name.number - 1, first)?;
    Ok((mapped, header))
}

/// Refuses metadata that the first part contradicts.
fn check_metadata(
    file: &Path,
    metadata: &BTreeMap<String, GgufValue>,
    first: &BTreeMap<String, GgufValue>,
) -> Result<()> {
    let is_own = |key: &str| key.starts_with("split.") || key == ALIGNMENT_KEY;
    let other = metadata.iter().find(|(key, value)| !is_own(key) && first.get(*key) != Some(value));
    match other {
        None => Ok(()),
        Some((key, _)) => {
            let expected = "what the first part says".to_owned();
            Err(malformed(file, &shown(key), expected, "another model's value".to_owned()))
        }
    }
}

fn malformed(file: &Path, key: &str, expected: String, got: String) -> TensorError {
    TensorError::malformed(file, format!("metadata key `{key}`"), expected, got)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_known_by_its_name() {
        let part = GgufPartName::parse(Path::new("a/b-Q4_K-00002-of-00013.gguf")).expect("a part");
        assert_eq!((part.stem.as_str(), part.number, part.count), ("a/b-Q4_K", 2, 13));
        assert_eq!(part.path(), Path::new("a/b-Q4_K-00002-of-00013.gguf"));
        assert_eq!(part.sibling(13).path(), Path::new("a/b-Q4_K-00013-of-00013.gguf"));
        for name in [
            "model.gguf",
            "m-00000-of-00002.gguf",
            "m-00003-of-00002.gguf",
            "m-0001-of-0002.gguf",
            "m-00001-of-00002.GGUF",
            "m-+0001-of-00002.gguf",
            "m-00001-of-99999999999.gguf",
            "-of-.gguf",
        ] {
            assert_eq!(GgufPartName::parse(Path::new(name)), None, "{name}");
        }
    }
}
