//! GGUF files, versions 2 and 3, little endian.
//!
//! ```text
//! "GGUF"  version:u32  n_tensors:u64  n_metadata:u64
//! n_metadata x { key:string  type:u32  value }
//! n_tensors  x { name:string  n_dims:u32  n_dims x u64  type:u32  offset:u64 }
//! padding to `general.alignment` (32)
//! tensor data, each tensor at its offset from here
//! ```
//! A string is a `u64` length and bytes. The first of a tensor's dimensions is the contiguous one;
//! shapes are reversed while reading, so that nothing above this crate sees that order.
//!
//! A model may be split into several such files: see [`parts`].

mod cursor;
mod file_type;
mod getters;
mod parts;
mod value;
mod writer;

use std::collections::BTreeMap;
use std::path::Path;

use pelton_base::limits;

use crate::error::shown;
use crate::source::{Catalog, Entry};
use crate::{DType, MappedFile, Result, TensorError, TensorSource, TensorView};
use cursor::Cursor;
use parts::Part;

pub use file_type::gguf_file_type;
pub use parts::GgufPartName;
pub use value::{GgufArray, GgufValue};
pub use writer::{GgufData, GgufWriter};

const MAGIC: &[u8; 4] = b"GGUF";
const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: usize = 32;
/// Most dimensions that a GGUF tensor may have.
const MAX_DIMS: usize = 4;

/// A GGUF model: metadata and tensors, mapped; one file or all parts of a split one.
#[derive(Debug)]
pub struct Gguf {
    metadata: BTreeMap<String, GgufValue>,
    catalog: Catalog,
}

impl Gguf {
    /// Maps and checks the file at `path`, and the other parts beside it if it is one of several.
    ///
    /// The metadata comes from the first part, whichever part `path` names.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or a part is missing, or when anything in a header contradicts
    /// itself, the file's size or another part; the error names the file and the key or tensor.
    pub fn open(path: &Path) -> Result<Self> {
        let mapped = MappedFile::open(path)?;
        let header = Header::read(&mapped, 0)?;
        match Part::of(path, &header.metadata)? {
            None => Ok(Self::whole(mapped, header)),
            Some(part) => parts::open_all(part, mapped, header),
        }
    }

    /// Checks a file that is already mapped, embedded or in memory, and holds a whole model.
    ///
    /// # Errors
    ///
    /// As for [`Gguf::open`], and for a part of a split model, whose neighbours are nowhere.
    pub fn from_mapped(mapped: MappedFile) -> Result<Self> {
        let header = Header::read(&mapped, 0)?;
        match Part::of(mapped.path(), &header.metadata)? {
            None => Ok(Self::whole(mapped, header)),
            Some(part) => Err(part.alone(mapped.path())),
        }
    }

    fn whole(mapped: MappedFile, header: Header) -> Self {
        let Header { metadata, entries } = header;
        Self { metadata, catalog: Catalog { files: vec![mapped], entries } }
    }

    /// Whether the header of a file ends within its first bytes, `start`.
    ///
    /// # Errors
    ///
    /// A header that no further bytes make right; `file` names it.
    pub fn has_whole_header(file: &Path, start: &[u8]) -> Result<bool> {
        let mut cursor = Cursor::new(file, start);
        match Fields::read(file, &mut cursor) {
            Ok(_) => Ok(true),
            Err(_) if cursor.ran_out() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Every metadata entry.
    pub fn metadata(&self) -> &BTreeMap<String, GgufValue> {
        &self.metadata
    }
}

impl TensorSource for Gguf {
    fn names(&self) -> Vec<&str> {
        self.catalog.names()
    }

    fn get(&self, name: &str) -> Option<TensorView<'_>> {
        self.catalog.get(name)
    }

    fn origin(&self) -> &Path {
        self.catalog.files[0].path()
    }

    fn files(&self) -> &[MappedFile] {
        &self.catalog.files
    }
}

/// The content of a file before its data.
struct Header {
    metadata: BTreeMap<String, GgufValue>,
    entries: BTreeMap<String, Entry>,
}

/// The fields of a header, before its tensors have a place.
struct Fields {
    metadata: BTreeMap<String, GgufValue>,
    records: Vec<Record>,
    alignment: usize,
}

impl Fields {
    fn read(file: &Path, cursor: &mut Cursor<'_>) -> Result<Self> {
        read_version(file, cursor)?;
        // The smallest tensor record has an empty name and no dimension, the smallest metadata
        // entry an empty key and one byte.
        let n_tensors = cursor.count("tensor count", 8 + 4 + 4 + 8, limits::FILE_TENSORS)?;
        let n_metadata =
            cursor.count("metadata count", 8 + 4 + 1, limits::GGUF_METADATA_ENTRIES)?;

        let mut metadata = BTreeMap::new();
        for idx in 0..n_metadata {
            let key = cursor.name(&format!("metadata key {idx} of {n_metadata}"))?;
            let value = cursor.value(key)?;
            if metadata.insert(key.to_owned(), value).is_some() {
                let field = format!("metadata key `{}`", shown(key));
                return Err(TensorError::malformed(file, field, "one value", "a second one"));
            }
        }
        let alignment = read_alignment(file, &metadata)?;

        let mut records = Vec::new();
        for idx in 0..n_tensors {
            records.push(read_record(file, cursor, idx, n_tensors)?);
        }
        Ok(Self { metadata, records, alignment })
    }
}

impl Header {
    /// Reads and checks the header of a file that is to be number `file_idx`.
    fn read(mapped: &MappedFile, file_idx: usize) -> Result<Self> {
        let file = mapped.path();
        let mut cursor = Cursor::new(file, mapped.bytes());
        let Fields { metadata, records, alignment } = Fields::read(file, &mut cursor)?;
        // A file without tensors may end before the padding does.
        let data_start = cursor.position().next_multiple_of(alignment).min(mapped.bytes().len());
        let mut entries = place(file, records, data_start, mapped.bytes().len(), alignment)?;
        entries.values_mut().for_each(|entry| entry.file_idx = file_idx);
        Ok(Self { metadata, entries })
    }
}

/// One tensor's record, its size already computed.
struct Record {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    offset: u64,
    n_bytes: usize,
}

fn read_version(file: &Path, cursor: &mut Cursor<'_>) -> Result<()> {
    let magic = cursor.take(4, "magic")?;
    if magic != MAGIC {
        let got = format!("`{}`", magic.escape_ascii());
        return Err(TensorError::malformed(file, "magic", "`GGUF`", got));
    }
    let version = cursor.u32("version")?;
    match version {
        2 | 3 => Ok(()),
        _ => {
            let got = match version.swap_bytes() {
                1..=3 => format!("{} in a big-endian file", version.swap_bytes()),
                _ if version == 1 => {
                    "1, whose counts have half as many bits; write the file anew".to_owned()
                }
                _ => version.to_string(),
            };
            Err(TensorError::malformed(file, "version", "2 or 3, little endian", got))
        }
    }
}

fn read_alignment(file: &Path, metadata: &BTreeMap<String, GgufValue>) -> Result<usize> {
    let Some(value) = metadata.get(ALIGNMENT_KEY) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    match *value {
        GgufValue::U32(n) if n.is_power_of_two() && (8..=1 << 16).contains(&n) => Ok(n as usize),
        ref other => {
            let field = format!("metadata key `{ALIGNMENT_KEY}`");
            let expected = "a u32 power of two from 8 to 65536";
            let got = other.as_i128().map_or(other.type_name().to_owned(), |n| n.to_string());
            Err(TensorError::malformed(file, field, expected, got))
        }
    }
}

fn read_record(
    file: &Path,
    cursor: &mut Cursor<'_>,
    idx: usize,
    n_tensors: usize,
) -> Result<Record> {
    let name = cursor.name(&format!("name of tensor {idx} of {n_tensors}"))?;
    let label = format!("tensor `{}`", shown(name));
    let fail = |field: &str, expected: String, got: String| {
        TensorError::malformed(file, format!("{label}, {field}"), expected, got)
    };
    let n_dims = cursor.u32(&format!("{label}, dimensions"))? as usize;
    if n_dims > MAX_DIMS {
        return Err(fail("dimensions", format!("at most {MAX_DIMS}"), n_dims.to_string()));
    }
    let mut shape = Vec::with_capacity(n_dims);
    for _ in 0..n_dims {
        let dim = cursor.u64(&format!("{label}, shape"))?;
        shape.push(usize::try_from(dim).map_err(|_| {
            fail("shape", "sizes that fit the address space".into(), dim.to_string())
        })?);
    }
    let type_id = cursor.u32(&format!("{label}, type"))?;
    let dtype = DType::from_gguf_id(type_id).ok_or_else(|| {
        TensorError::unknown_dtype(file, name, type_id.to_string(), |d| d.gguf_id().is_some())
    })?;
    let offset = cursor.u64(&format!("{label}, offset"))?;

    let row_len = shape.first().copied().unwrap_or(1);
    if !row_len.is_multiple_of(dtype.block_len()) {
        let expected = format!("rows in whole blocks of {} ({dtype})", dtype.block_len());
        return Err(fail("shape", expected, format!("rows of {row_len}")));
    }
    shape.reverse();
    let n_bytes = shape
        .iter()
        .try_fold(1_usize, |product, &dim| product.checked_mul(dim))
        .and_then(|n_elements| dtype.bytes_for(n_elements))
        .ok_or_else(|| {
            fail("shape", "a size that fits the address space".into(), format!("{shape:?}"))
        })?;
    Ok(Record { name: name.to_owned(), dtype, shape, offset, n_bytes })
}

/// Turns records into entries: names unique, every tensor inside the file, one directly
/// after another.
fn place(
    file: &Path,
    mut records: Vec<Record>,
    data_start: usize,
    file_len: usize,
    alignment: usize,
) -> Result<BTreeMap<String, Entry>> {
    records.sort_by_key(|record| (record.offset, record.n_bytes));
    let data_len = file_len - data_start;
    let mut entries = BTreeMap::new();
    let mut free_from = 0; // Where the next tensor begins, from `data_start`.
    for record in records {
        let fail = |expected: String, got: String| {
            let field = format!("tensor `{}`, offset", shown(&record.name));
            TensorError::malformed(file, field, expected, got)
        };
        let start = usize::try_from(record.offset).unwrap_or(usize::MAX);
        if !start.is_multiple_of(alignment) {
            return Err(fail(format!("a multiple of {alignment}"), record.offset.to_string()));
        }
        let end =
            start.checked_add(record.n_bytes).filter(|&end| end <= data_len).ok_or_else(|| {
                let expected = format!("data inside the file's {data_len} bytes of tensor data");
                fail(expected, format!("{} bytes at offset {}", record.n_bytes, record.offset))
            })?;
        // A gap means that a type or a shape is not the one that the file was written with.
        if start != free_from {
            let expected = format!("{free_from}, where the tensor before ends");
            return Err(fail(expected, start.to_string()));
        }
        free_from = end.next_multiple_of(alignment);
        let Record { name, dtype, shape, .. } = record;
        let label = shown(&name);
        let range = data_start + start..data_start + end;
        if entries.insert(name, Entry { file_idx: 0, dtype, shape, range }).is_some() {
            let field = format!("tensor `{label}`");
            return Err(TensorError::malformed(file, field, "one tensor of this name", "two"));
        }
    }
    Ok(entries)
}
