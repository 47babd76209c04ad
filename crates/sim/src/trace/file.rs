//! A trace in a file: checked once from end to end, then read line by line as often as wanted.

use super::foreign::{Form, burst_gpt, mooncake};
use super::format::{FieldError, HEAD, parse_line, write_line};
use super::{Tenants, Trace, TraceRequest};
use pelton_tensor::{PendingFile, open_regular};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// Most bytes of one line.
const LINE_BYTES: usize = 4096;
/// The same of other forms: lines of Mooncake have a number for each 512 tokens of a prompt.
const FOREIGN_LINE_BYTES: usize = 64 << 10;

/// Why a trace cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A line has a wrong field.
    #[error("{}, line {line}: {source}", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line; the first is 1.
        line: u64,
        /// Which field, and why.
        source: FieldError,
    },
    /// There is no request in it.
    #[error("{}: holds no request", path.display())]
    Empty {
        /// Which file.
        path: PathBuf,
    },
}

/// A file of requests, all of which are well-formed and in order of arrival.
#[derive(Clone, Debug)]
pub struct TraceFile {
    path: PathBuf,
    pub(super) tenants: Tenants,
    pub(super) n_requests: u64,
    pub(super) has_sessions: bool,
}

impl TraceFile {
    /// Reads the whole file and keeps nothing of it but names and counts.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, the first line that is wrong, a file without requests.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, TraceError> {
        let path = path.into();
        let mut reader = TraceReader::open(&path, Tenants::default())?;
        let (mut n_requests, mut has_sessions) = (0, false);
        for request in reader.by_ref() {
            has_sessions |= request?.turn.is_some();
            n_requests += 1;
        }
        if n_requests == 0 {
            return Err(TraceError::Empty { path });
        }
        Ok(Self { path, tenants: reader.tenants, n_requests, has_sessions })
    }

    /// Its requests, from the first.
    ///
    /// # Errors
    ///
    /// A file that cannot be read any more.
    pub fn requests(&self) -> Result<TraceReader, TraceError> {
        TraceReader::open(&self.path, self.tenants.clone())
    }
}

/// Requests of a file, one line at a time.
#[derive(Debug)]
pub struct TraceReader {
    path: PathBuf,
    file: BufReader<File>,
    tenants: Tenants,
    /// Known from the first line that is not empty.
    form: Option<Form>,
    line: u64,
    last_ns: u64,
    bytes: Vec<u8>,
    has_failed: bool,
}

impl TraceReader {
    fn open(path: &Path, tenants: Tenants) -> Result<Self, TraceError> {
        let (file, _) = open_regular(path).map_err(|source| io(path, source))?;
        Ok(Self {
            path: path.to_owned(),
            file: BufReader::new(file),
            tenants,
            form: None,
            line: 0,
            last_ns: 0,
            bytes: Vec::new(),
            has_failed: false,
        })
    }

    /// The next request; `None` at the end of the file.
    fn read(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        loop {
            self.bytes.clear();
            let mut limited = (&mut self.file).take(FOREIGN_LINE_BYTES as u64 + 1);
            let n_read = limited.read_until(b'\n', &mut self.bytes);
            if n_read.map_err(|source| io(&self.path, source))? == 0 {
                return Ok(None);
            }
            self.line += 1;
            if let Some(request) = self.parse().map_err(|source| self.at_line(source))? {
                return Ok(Some(request));
            }
        }
    }

    fn parse(&mut self) -> Result<Option<TraceRequest>, FieldError> {
        let wrong = |expected, got: &[u8]| {
            let got = String::from_utf8_lossy(&got[..got.len().min(40)]);
            FieldError::new("line", expected, &got)
        };
        if self.bytes.len() > FOREIGN_LINE_BYTES {
            return Err(wrong("at most 65536 bytes long", &self.bytes));
        }
        let Ok(text) = str::from_utf8(&self.bytes) else {
            return Err(wrong("UTF-8", &self.bytes));
        };
        // Files that were edited on Windows begin with a mark that is no text.
        let text = match self.line {
            1 => text.trim_start_matches('\u{feff}'),
            _ => text,
        };
        if self.form.is_none() && !text.trim().is_empty() {
            self.form = Some(Form::of(text));
        }
        if self.form == Some(Form::Own) && self.bytes.len() > LINE_BYTES {
            return Err(wrong("at most 4096 bytes long", &self.bytes));
        }
        let parsed = match &self.form {
            None => None,
            Some(Form::Own) => parse_line(text, &mut self.tenants)?,
            Some(Form::Mooncake) => mooncake(text)?,
            Some(Form::BurstGpt(columns)) => burst_gpt(text, *columns)?,
        };
        let Some(request) = parsed else { return Ok(None) };
        if request.at_ns < self.last_ns {
            let got = text.split_ascii_whitespace().next().unwrap_or_default();
            return Err(FieldError::new("at_ms", "no earlier than in the line above", got));
        }
        self.last_ns = request.at_ns;
        Ok(Some(request))
    }

    fn at_line(&self, source: FieldError) -> TraceError {
        TraceError::Line { path: self.path.clone(), line: self.line, source }
    }
}

impl Iterator for TraceReader {
    type Item = Result<TraceRequest, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let next = self.read();
        self.has_failed = next.is_err();
        next.transpose()
    }
}

/// Writes a trace as text, a request at a time; the file is written whole or not at all.
///
/// # Errors
///
/// A file that cannot be written, and whatever is wrong with the trace.
pub fn save(trace: &Trace, path: &Path) -> Result<(), TraceError> {
    let failed = |source| io(path, source);
    let mut file = BufWriter::new(PendingFile::create(path).map_err(failed)?);
    let mut line = HEAD.to_owned();
    for request in trace.requests()? {
        write_line(&request?, trace.tenants(), &mut line);
        file.write_all(line.as_bytes()).map_err(failed)?;
        line.clear();
    }
    file.into_inner().map_err(|error| failed(error.into_error()))?.publish().map_err(failed)
}

fn io(path: &Path, source: std::io::Error) -> TraceError {
    TraceError::Io { path: path.to_owned(), source }
}
