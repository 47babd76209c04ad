//! Lines that an earlier run has answered.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead};

use super::reader::{Line, LineReader};
use super::result::Known;

/// Longest line of results that is read, in bytes.
const RESULT_BYTES: usize = 1 << 30;
/// Most models that are kept in mind.
const MOST_MODELS: usize = 16;
/// Most lines of a batch; those that are done take 8 bytes each.
const MOST_LINES: u64 = 1 << 32;

/// Lines that an earlier run has answered, by their numbers.
#[derive(Debug, Default)]
pub struct Done {
    /// By number: 0 for a line that is not done, else a hash of its name.
    names: Vec<u64>,
    n_lines: u64,
    /// Models that answered, a few of them.
    models: BTreeSet<String>,
}

/// Results of an earlier run that cannot be continued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DoneError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line that is no result.
    #[error("line {number} is no result of a batch: {why}")]
    NoResult {
        /// Its number, from 1.
        number: u64,
        /// The fault.
        why: String,
    },
    /// Two results of one line.
    #[error("line {number} is a second result of line {line} of the input")]
    Twice {
        /// Its number, from 1.
        number: u64,
        /// The line of the input.
        line: u64,
    },
}

impl Done {
    /// Reads results. A last line without an end was being written when the run was killed: it is
    /// not done. Also returns the bytes of the complete lines.
    ///
    /// # Errors
    ///
    /// See [`DoneError`].
    pub fn read(input: impl BufRead) -> Result<(Self, u64), DoneError> {
        let mut counted = Counted { input, n_bytes: 0, n_complete: 0 };
        let mut done = Self::default();
        let mut reader = LineReader::new(&mut counted, RESULT_BYTES);
        // The line that was read last; it counts once it is known to be complete.
        let mut pending: Option<(u64, Vec<u8>)> = None;
        loop {
            let next = reader.next()?;
            if let Some((number, bytes)) = pending.take() {
                let is_last = next.is_none();
                match done.add(number, &bytes) {
                    Err(DoneError::NoResult { .. }) if is_last && !reader.ends_whole() => break,
                    // Complete JSON whose end of line is missing is written again.
                    Ok(line) if is_last && !reader.ends_whole() => done.remove(line),
                    outcome => drop(outcome?),
                }
            }
            match next {
                None => break,
                Some((number, Line::Whole(bytes))) => pending = Some((number, bytes)),
                Some((number, Line::TooLong)) => {
                    let why = format!("it has more than {RESULT_BYTES} bytes");
                    return Err(DoneError::NoResult { number, why });
                }
            }
        }
        Ok((done, counted.n_complete))
    }

    /// Takes the lines of other results, too.
    pub(crate) fn merge(&mut self, other: Self) {
        self.models.extend(other.models);
        if self.names.len() < other.names.len() {
            self.names.resize(other.names.len(), 0);
        }
        for (name, more) in self.names.iter_mut().zip(other.names) {
            if *name == 0 && more != 0 {
                (*name, self.n_lines) = (more, self.n_lines + 1);
            }
        }
    }

    /// The models that gave the answers, as far as these say so; at most a few.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.models.iter().map(String::as_str)
    }

    /// The number of lines that are done.
    pub fn n_lines(&self) -> u64 {
        self.n_lines
    }

    /// Whether a line is done.
    pub(super) fn has(&self, line: u64) -> bool {
        self.name(line) != 0
    }

    /// Whether the line that is done had this name.
    pub(super) fn is_named(&self, line: u64, custom_id: Option<&str>) -> bool {
        self.name(line) == hash(custom_id)
    }

    fn name(&self, line: u64) -> u64 {
        let line = usize::try_from(line).ok();
        line.and_then(|line| self.names.get(line)).copied().unwrap_or(0)
    }

    fn add(&mut self, number: u64, bytes: &[u8]) -> Result<u64, DoneError> {
        let wrong = |why: String| DoneError::NoResult { number, why };
        let known: Known =
            serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
        let line = known.line;
        if line == 0 || line > MOST_LINES {
            return Err(wrong(format!("`line` is {line}, expected 1 to {MOST_LINES}")));
        }
        let idx = usize::try_from(line).map_err(|error| wrong(error.to_string()))?;
        if self.has(line) {
            return Err(DoneError::Twice { number, line });
        }
        if self.names.len() <= idx {
            self.names.resize(idx + 1, 0);
        }
        self.names[idx] = hash(known.custom_id.as_deref());
        let model = known.response.and_then(|response| response.body?.model);
        if self.models.len() < MOST_MODELS {
            self.models.extend(model);
        }
        self.n_lines += 1;
        Ok(line)
    }

    fn remove(&mut self, line: u64) {
        if let Some(name) = usize::try_from(line).ok().and_then(|idx| self.names.get_mut(idx)) {
            *name = 0;
            self.n_lines -= 1;
        }
    }
}

/// A hash of a name that is never 0.
pub(super) fn hash(custom_id: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    custom_id.hash(&mut hasher);
    hasher.finish().max(1)
}

/// Counts the bytes up to the last end of a line.
struct Counted<R> {
    input: R,
    n_bytes: u64,
    n_complete: u64,
}

impl<R: BufRead> io::Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let buffer = self.input.fill_buf()?;
        let n = buffer.len().min(out.len());
        out[..n].copy_from_slice(&buffer[..n]);
        self.consume(n);
        Ok(n)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.input.fill_buf()
    }

    fn consume(&mut self, n: usize) {
        // The consumed bytes were in the buffer, which `fill_buf` shows again without reading.
        if let Ok(buffer) = self.input.fill_buf() {
            let consumed = &buffer[..n.min(buffer.len())];
            if let Some(end) = consumed.iter().rposition(|byte| *byte == b'\n') {
                self.n_complete = self.n_bytes + end as u64 + 1;
            }
        }
        self.n_bytes += n as u64;
        self.input.consume(n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(Vec<u64>, u64), DoneError> {
        let (done, n_bytes) = Done::read(text.as_bytes())?;
        let lines = (1..20).filter(|line| done.has(*line)).collect::<Vec<_>>();
        assert_eq!(lines.len() as u64, done.n_lines());
        Ok((lines, n_bytes))
    }

    #[test]
    fn a_torn_last_line_is_not_done() {
        let two = "{\"line\":3,\"custom_id\":\"c\"}\n{\"line\":1,\"custom_id\":\"a\"}\n";
        assert_eq!(read("").expect("nothing"), (vec![], 0));
        assert_eq!(read(two).expect("whole"), (vec![1, 3], two.len() as u64));
        for torn in ["{", "{\"line\":2,\"cus", "{\"line\":2}", "  ", "\u{7f}"] {
            let text = format!("{two}{torn}");
            assert_eq!(read(&text).expect(torn), (vec![1, 3], two.len() as u64), "{torn}");
        }
        let (done, _) = Done::read(two.as_bytes()).expect("whole");
        assert!(done.is_named(3, Some("c")) && !done.is_named(3, Some("a")) && !done.has(2));
    }

    #[test]
    fn other_files_are_not_continued() {
        for (text, word) in [
            ("hello\n", "line 1"),
            ("{\"line\":1}\n{\"a\":1}\n", "line 2"),
            ("{\"line\":0}\n", "`line` is 0"),
            ("{\"line\":99999999999999}\n", "expected 1 to"),
            ("{\"line\":1}\n{\"line\":1}\n", "second result of line 1"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
