//! The files of `pelton batch`: lines that are read once, and results that are only appended.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pelton_server::{Counts, Done, ResultLine, Sink};

use crate::failure::{Failure, Result};
use crate::progress::Progress;

/// The lines of a batch.
pub(super) struct Input {
    file: File,
    path: PathBuf,
    n_bytes: u64,
    /// Bytes that were read.
    n_read: Arc<AtomicU64>,
}

impl Input {
    /// Opens the file; `-` is standard input.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is a folder.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let path = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
        let at = |error: io::Error| Failure::new(format!("{}: {error}", path.display()));
        let file = File::open(path).map_err(at)?;
        let metadata = file.metadata().map_err(at)?;
        if metadata.is_dir() {
            let message = format!("{}: expected a file of requests, got a folder", path.display());
            return Err(Failure::new(message));
        }
        let n_read = Arc::new(AtomicU64::new(0));
        Ok(Self { file, path: path.to_owned(), n_bytes: metadata.len(), n_read })
    }

    /// The lines, whose reader counts what it reads.
    pub(super) fn reader(self) -> impl BufRead + Send + 'static {
        BufReader::new(Counting { file: self.file, n_read: self.n_read })
    }
}

struct Counting {
    file: File,
    n_read: Arc<AtomicU64>,
}

impl Read for Counting {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(out)?;
        self.n_read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// The results of a batch. Each is written at once, so a killed run leaves whole lines and at most
/// one that is torn, which the next run removes.
pub(super) struct Output {
    file: File,
    /// Bytes of whole lines.
    n_bytes: u64,
    done: Option<Done>,
    counts: Counts,
    bar: Progress,
    n_input_bytes: u64,
    n_read: Arc<AtomicU64>,
}

impl Output {
    /// Opens or makes the file, and reads the results that are there.
    ///
    /// # Errors
    ///
    /// When it is the input, is in use by another run, cannot be written, or holds something else
    /// than results.
    pub(super) fn open(path: &Path, input: &Input) -> Result<Self> {
        let name = path.display().to_string();
        if name == "-" {
            let message = "`-`: the results need a file, from which a later run goes on";
            return Err(Failure::new(message));
        }
        let at = |error: io::Error| Failure::new(format!("{name}: {error}"));
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(at)?;
        let is_input = match (std::fs::canonicalize(path), std::fs::canonicalize(&input.path)) {
            (Ok(output), Ok(input)) => output == input,
            _ => false,
        };
        // Devices and pipes cannot be read for what an earlier run has done; some never end.
        if !file.metadata().map_err(at)?.is_file() {
            return Err(Failure::new(format!("{name}: expected a file, got a device or a pipe")));
        }
        if is_input {
            return Err(Failure::new(format!("{name}: the results need a file of their own")));
        }
        if file.try_lock().is_err() {
            let message = format!("{name}: another `pelton batch` is writing to it");
            return Err(Failure::new(message).hint("wait for it, or name another file"));
        }
        let (done, n_bytes) = Done::read(BufReader::new(&file)).map_err(|error| {
            Failure::new(format!("{name}: {error}"))
                .hint("name a file that does not exist, or the results of an earlier run")
        })?;
        // The rest of a line that was being written when the run was killed.
        file.set_len(n_bytes).map_err(at)?;
        file.seek(SeekFrom::Start(n_bytes)).map_err(at)?;
        Ok(Self {
            file,
            n_bytes,
            done: Some(done),
            counts: Counts::default(),
            bar: Progress::new(),
            n_input_bytes: input.n_bytes,
            n_read: Arc::clone(&input.n_read),
        })
    }

    /// Lines that have results already.
    pub(super) fn take_done(&mut self) -> Done {
        self.done.take().unwrap_or_default()
    }

    /// The counts after the last line.
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn clear_bar(&self) {
        self.bar.clear();
    }
}

impl Sink for Output {
    fn keep(&mut self, result: &ResultLine) -> io::Result<()> {
        let line = result.to_line();
        let written = self.file.write_all(line.as_bytes());
        match written {
            Ok(()) => self.n_bytes += line.len() as u64,
            // A full disk may have taken a part of the line.
            Err(_) => {
                let _ = self.file.set_len(self.n_bytes);
            }
        }
        written
    }

    fn count(&mut self, counts: Counts) {
        self.counts = counts;
        let n_read = self.n_read.load(Ordering::Relaxed);
        self.bar.update("answering", n_read, Some(self.n_input_bytes));
    }
}
