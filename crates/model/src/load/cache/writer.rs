//! Writing a cache while a model is packed: matrix after matrix, then the table, then the head.

use std::io::{self, Seek, SeekFrom, Write};

use super::head::Head;
use super::identity::Identity;
use super::table::Entry;
use super::{PAGE, checksum};
use crate::device::{PackedBytes, PackedForm};

/// A cache file to be.
#[derive(Debug)]
pub(in crate::load) struct Writer<S> {
    sink: S,
    identity: Identity,
    table: Vec<u8>,
    n_entries: u64,
    /// Bytes written so far.
    n_bytes: usize,
}

impl<S: Write + Seek> Writer<S> {
    /// Begins a file; its head stays empty until the end, so that no part of one looks whole.
    pub(super) fn new(mut sink: S, identity: Identity) -> io::Result<Self> {
        sink.write_all(&[0; PAGE])?;
        Ok(Self { sink, identity, table: Vec::new(), n_entries: 0, n_bytes: PAGE })
    }

    /// Adds a matrix.
    ///
    /// # Errors
    ///
    /// The system's own; then the file is of no use any more.
    pub(super) fn append<W>(
        &mut self,
        recipe: String,
        matrix: &PackedBytes<'_>,
        form: &dyn PackedForm<W>,
    ) -> io::Result<()> {
        self.align()?;
        let checksum = checksum::of_matrix(matrix.bytes, &|n, f| form.for_each(n, f));
        let range = self.n_bytes..self.n_bytes + matrix.bytes.len();
        let (n, k, layout) = (matrix.n, matrix.k, matrix.layout.to_owned());
        Entry { recipe, layout, n, k, range, checksum }.write(&mut self.table);
        self.n_entries += 1;
        self.write(matrix.bytes)
    }

    /// Writes the table and the head.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    pub(super) fn finish(mut self) -> io::Result<S> {
        self.align()?;
        let table = std::mem::take(&mut self.table);
        let table_start = self.n_bytes as u64;
        self.write(&table)?;
        let head = Head {
            identity: self.identity,
            n_entries: self.n_entries,
            file_bytes: self.n_bytes as u64,
            table_start,
            table_bytes: table.len() as u64,
            table_checksum: checksum::of_bytes(&table),
        };
        self.sink.seek(SeekFrom::Start(0))?;
        self.sink.write_all(&head.to_page())?;
        Ok(self.sink)
    }

    /// Zeros up to the next page.
    fn align(&mut self) -> io::Result<()> {
        let n_missing = self.n_bytes.next_multiple_of(PAGE) - self.n_bytes;
        self.write(&[0; PAGE][..n_missing])
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sink.write_all(bytes)?;
        self.n_bytes += bytes.len();
        Ok(())
    }
}
