//! Lines of a file, each of a bounded length.

use std::io::{self, BufRead, Read};

/// Some editors put it before the first line of a file in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// One line.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Line {
    /// Its bytes, without the end of the line.
    Whole(Vec<u8>),
    /// It has more bytes than a request may have; they were skipped.
    TooLong,
}

/// Reads line by line; a line of any length takes a bounded amount of memory.
#[derive(Debug)]
pub(super) struct LineReader<R> {
    input: R,
    /// Number of the line that was read last, from 1.
    number: u64,
    /// Longest line, in bytes.
    most: usize,
    /// Whether the line that was returned last had its end.
    is_ended: bool,
}

impl<R: BufRead> LineReader<R> {
    pub(super) fn new(input: R, most: usize) -> Self {
        Self { input, number: 0, most, is_ended: true }
    }

    /// Whether the line that was returned last had its end.
    pub(super) fn ends_whole(&self) -> bool {
        self.is_ended
    }

    /// The next line that is not blank, with its number.
    pub(super) fn next(&mut self) -> io::Result<Option<(u64, Line)>> {
        loop {
            let mut bytes = Vec::new();
            // Room for the end of a line of the greatest length.
            let most = self.most as u64 + 2;
            self.input.by_ref().take(most).read_until(b'\n', &mut bytes)?;
            if bytes.is_empty() {
                return Ok(None);
            }
            self.number += 1;
            let is_ended = bytes.last() == Some(&b'\n');
            let text = bytes.trim_ascii_end().len();
            if text > self.most || (!is_ended && bytes.len() as u64 == most) {
                self.is_ended = is_ended;
                if !is_ended {
                    self.skip()?;
                }
                return Ok(Some((self.number, Line::TooLong)));
            }
            bytes.truncate(text);
            if self.number == 1 && bytes.starts_with(BYTE_ORDER_MARK) {
                bytes.drain(..BYTE_ORDER_MARK.len());
            }
            if !bytes.is_empty() {
                self.is_ended = is_ended;
                return Ok(Some((self.number, Line::Whole(bytes))));
            }
        }
    }

    /// Skips the rest of a line.
    fn skip(&mut self) -> io::Result<()> {
        loop {
            let buffer = self.input.fill_buf()?;
            if buffer.is_empty() {
                return Ok(());
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let n = end.map_or(buffer.len(), |end| end + 1);
            self.input.consume(n);
            if end.is_some() {
                return Ok(());
            }
        }
    }
}

/// The number of lines that are not blank.
pub(crate) fn count_lines(input: impl BufRead, most: usize) -> io::Result<u64> {
    let (mut reader, mut n) = (LineReader::new(input, most), 0);
    while reader.next()?.is_some() {
        n += 1;
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, most: usize) -> Vec<(u64, Line)> {
        // A small buffer, so that lines lie across its ends.
        let mut reader = LineReader::new(io::BufReader::with_capacity(3, text.as_bytes()), most);
        std::iter::from_fn(|| reader.next().expect("memory")).collect()
    }

    #[test]
    fn lines_have_numbers_and_blank_ones_are_counted() {
        let whole = |text: &str| Line::Whole(text.as_bytes().to_vec());
        let expected = vec![(1, whole("a")), (3, whole("b")), (6, whole("c d"))];
        assert_eq!(lines("a\n\nb\r\n  \n\nc d", 9), expected);
        assert!(lines("", 9).is_empty() && lines("\n\n", 9).is_empty());
        assert_eq!(lines("\u{feff}a\n\u{feff}b", 9), [(1, whole("a")), (2, whole("\u{feff}b"))]);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_the_next_one_is_read() {
        let whole = |text: &str| Line::Whole(text.as_bytes().to_vec());
        let long = "x".repeat(50);
        let text = format!("1234\n{long}\n12345\n{long}");
        let expected =
            vec![(1, whole("1234")), (2, Line::TooLong), (3, Line::TooLong), (4, Line::TooLong)];
        assert_eq!(lines(&text, 4), expected);
    }
}
