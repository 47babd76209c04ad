//! Hostile cache files: each is refused, or holds exactly what was kept.

use std::collections::BTreeMap;
use std::io::{self, Cursor, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pelton_kernels::{Cpu, Kernels, PackedMatrix, WeightLayout};

use super::head::Head;
use super::identity::Identity;
use super::reader::{self, Wanted};
use super::rejected::Rejected;
use super::table::{self, Entry};
use super::writer::Writer;
use super::{PAGE, checksum};
use crate::device::PackedForm;
use crate::device::cpu::CpuDevice;

const IDENTITY: Identity = Identity { layouts: 1, options: 2, source: 3 << 100 };

/// Two small matrices, their cache file, and a place to write damaged ones to.
struct Case {
    backend: CpuDevice,
    weights: BTreeMap<String, PackedMatrix>,
    file: Vec<u8>,
    folder: tempfile::TempDir,
}

impl Case {
    fn new() -> Self {
        let backend = CpuDevice::new(Cpu::with(Kernels::best(), 1));
        let weights: BTreeMap<_, _> = [("a", WeightLayout::F32, 3), ("b", WeightLayout::Q8G32, 17)]
            .map(|(name, layout, n)| {
                let row: Vec<u8> = (0..layout.row_bytes(32)).map(|i| 40 + i as u8).collect();
                let packed = PackedMatrix::pack(backend.cpu(), layout, n, 32, &|_| &row);
                (name.to_owned(), packed)
            })
            .into();
        let mut writer = Writer::new(Cursor::new(Vec::new()), IDENTITY).expect("begins");
        for (recipe, weight) in &weights {
            let matrix = backend.describe(weight);
            writer.append(recipe.clone(), &matrix, &backend).expect("written");
        }
        let file = writer.finish().expect("written").into_inner();
        Self { backend, weights, file, folder: tempfile::tempdir().expect("temp") }
    }

    /// Writes a file and reads it; panics if it is believed and holds anything else.
    fn read(&self, file: &[u8]) -> Result<(), Rejected> {
        std::fs::write(self.path(), file).expect("written");
        self.read_again()
    }

    /// As [`read`](Self::read), of the file that is there.
    fn read_again(&self) -> Result<(), Rejected> {
        let weights = self.read_at(&self.path(), &IDENTITY)?;
        for (recipe, weight) in &self.weights {
            let read = &weights[recipe];
            assert_eq!((read.layout(), read.n(), read.k()), {
                (weight.layout(), weight.n(), weight.k())
            });
            assert!(read.storage_bytes() == weight.storage_bytes(), "{recipe}");
        }
        Ok(())
    }

    fn read_at(
        &self,
        path: &Path,
        identity: &Identity,
    ) -> Result<BTreeMap<String, PackedMatrix>, Rejected> {
        let wanted: Vec<Wanted> = self
            .weights
            .iter()
            .map(|(recipe, weight)| Wanted::of(recipe, weight.n(), weight.k()))
            .collect();
        reader::read(path, identity, &wanted, &self.backend, &|_, _| {})
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn head(&self) -> Head {
        Head::read(&self.file).expect("a good head")
    }

    /// The file with another table, whose checksums are right.
    fn with_table(&self, n_entries: u64, table: &[u8]) -> Vec<u8> {
        let start = self.head().table_start as usize;
        let head = Head {
            n_entries,
            file_bytes: (start + table.len()) as u64,
            table_bytes: table.len() as u64,
            table_checksum: checksum::of_bytes(table),
            ..self.head()
        };
        [&head.to_page(), &self.file[PAGE..start], table].concat()
    }

    /// The file with its entries changed.
    fn with_entries(&self, change: impl Fn(&mut Vec<Entry>)) -> Vec<u8> {
        let head = self.head();
        let table = head.table(&self.file).expect("a table");
        let mut entries =
            table::read(table, head.n_entries, head.table_start as usize).expect("entries");
        change(&mut entries);
        let mut table = Vec::new();
        entries.iter().for_each(|entry| entry.write(&mut table));
        self.with_table(entries.len() as u64, &table)
    }
}

#[test]
fn what_was_written_is_read() {
    let case = Case::new();
    case.read(&case.file).expect("believed");
    case.read(&case.with_entries(|_| {})).expect("believed");
    let missing = case.read_at(&case.folder.path().join("nothing"), &IDENTITY);
    assert!(matches!(missing, Err(Rejected::Missing)));
    let folder = case.read_at(case.folder.path(), &IDENTITY);
    assert!(matches!(folder, Err(Rejected::Unreadable(_))));
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let case = Case::new();
    case.read(&case.file).expect("believed");
    let file = std::fs::File::options().write(true).open(case.path()).expect("opens");
    for n in (0..case.file.len()).rev() {
        file.set_len(n as u64).expect("cut");
        case.read_again().expect_err("cut");
    }
    case.read(&[&case.file[..], b"x"].concat()).expect_err("longer");
}

#[test]
fn a_flipped_byte_is_refused_or_lies_between_the_matrices() {
    let case = Case::new();
    case.read(&case.file).expect("believed");
    let file = std::fs::File::options().write(true).open(case.path()).expect("opens");
    let mut n_refused = 0;
    for (at, byte) in case.file.iter().enumerate() {
        let all: &[u8] = &[1, 2, 4, 8, 16, 32, 64, 128, 255];
        let bits = if at < 96 { all } else { &all[at % 9..][..1] };
        for bit in bits {
            file.write_all_at(&[byte ^ bit], at as u64).expect("written");
            n_refused += usize::from(case.read_again().is_err());
        }
        file.write_all_at(&[*byte], at as u64).expect("written");
    }
    let table_bytes = case.file.len() - case.head().table_start as usize;
    let data_bytes: usize = case.weights.values().map(PackedMatrix::n_bytes).sum();
    assert_eq!(n_refused, 88 * 9 + data_bytes + table_bytes);
}

#[test]
fn forged_tables_are_refused() {
    let case = Case::new();
    type Change = fn(&mut Vec<Entry>);
    let changes: &[(&str, Change)] = &[
        ("overlap", |entries| entries[1].range = entries[0].range.clone()),
        ("order", |entries| entries.reverse()),
        ("in the head", |entries| entries[0].range = 0..entries[0].range.len()),
        ("off the page", |entries| {
            entries[0].range = entries[0].range.start + 64..entries[0].range.end + 64;
        }),
        ("over the table", |entries| entries[1].range.end += 1 << 20),
        ("beyond the end", |entries| entries[1].range = 1 << 40..(1 << 40) + 5),
        ("too small", |entries| entries[1].range.end -= 1),
        ("another n", |entries| entries[0].n = usize::MAX),
        ("another k", |entries| entries[0].k = 64),
        ("another layout", |entries| entries[0].layout = "f16".to_owned()),
        ("no layout", |entries| entries[0].layout = "f".repeat(70_000)),
        ("another recipe", |entries| entries[0].recipe.push('x')),
        ("twice the same", |entries| entries[1].recipe = entries[0].recipe.clone()),
        ("one more", |entries| {
            let mut more = entries[1].clone();
            more.recipe.push('x');
            more.range =
                more.range.end.next_multiple_of(PAGE)..more.range.end.next_multiple_of(PAGE);
            entries.push(more);
        }),
        ("one less", |entries| entries.truncate(1)),
        ("another checksum", |entries| entries[0].checksum ^= 1),
    ];
    for (what, change) in changes {
        case.read(&case.with_entries(change)).expect_err(what);
    }
    let table = case.file[case.head().table_start as usize..].to_vec();
    for n_entries in [0, 1, 3, u64::MAX] {
        case.read(&case.with_table(n_entries, &table)).expect_err("another count");
    }
}

#[test]
fn no_table_makes_the_reader_panic() {
    let case = Case::new();
    let table = case.file[case.head().table_start as usize..].to_vec();
    let mut state = 1_u64;
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    for _ in 0..1_000 {
        let mut table = table.clone();
        for _ in 0..=random() % 3 {
            let at = random() as usize % table.len();
            match random() % 4 {
                0 => table.truncate(at.max(1)),
                1 => table[at] = random() as u8,
                2 => table[at..].iter_mut().take(8).for_each(|byte| *byte = 255),
                _ => table[at..].iter_mut().take(8).for_each(|byte| *byte = 0),
            }
        }
        let file = case.with_table(random() % 5, &table);
        std::fs::write(case.path(), &file).expect("written");
        // A forged table may be believed; it must not do harm.
        let _ = case.read_at(&case.path(), &IDENTITY);
    }
}

#[test]
fn each_reason_is_told() {
    let case = Case::new();
    case.read(&case.file).expect("believed");
    let told = |identity| case.read_at(&case.path(), &identity).expect_err("refused").to_string();
    assert!(told(Identity { layouts: 9, ..IDENTITY }).contains("packs differently"));
    assert!(told(Identity { options: 9, ..IDENTITY }).contains("other options"));
    assert!(told(Identity { source: 9, ..IDENTITY }).contains("changed"));
    let refused = |file: &[u8]| case.read(file).expect_err("refused").to_string();
    assert!(refused(b"short").contains("length"));
    assert!(refused(&[b'x'; 5000]).contains("magic"));
    let mut newer = case.file.clone();
    newer[8] = 2;
    assert!(refused(&newer).contains("version of the format: expected 1, got 2"));
    let mut flipped = case.file.clone();
    flipped[PAGE] ^= 1;
    assert!(refused(&flipped).contains("matrix `a`: its bytes are not those of its checksum"));
}

/// A disk with room for this many bytes.
struct SmallDisk(usize);

impl Write for SmallDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(self.0);
        self.0 -= n;
        if n == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(n) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for SmallDisk {
    fn seek(&mut self, _to: SeekFrom) -> io::Result<u64> {
        Ok(0)
    }
}

#[test]
fn a_disk_that_is_full_anywhere_is_an_error() {
    let case = Case::new();
    let write = |room| -> io::Result<()> {
        let mut writer = Writer::new(SmallDisk(room), IDENTITY)?;
        for (recipe, weight) in &case.weights {
            let matrix = case.backend.describe(weight);
            writer.append(recipe.clone(), &matrix, &case.backend)?;
        }
        writer.finish().map(|_| ())
    };
    // The head is written twice.
    let needed = case.file.len() + PAGE;
    write(needed).expect("room for all");
    for room in (0..needed).step_by(101).chain([needed - 1]) {
        let error = write(room).expect_err("full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{room}");
    }
}
