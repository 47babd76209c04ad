//! Bytes that arrive together, as the line editor should see them.
//!
//! A person presses one key at a time; a paste arrives at once. Terminals mark pastes
//! (`ESC [200~ ... ESC [201~`), but not all do, and without the marks each line of a paste would be
//! sent as a message of its own. So a burst of plain text that holds a newline before its end is a
//! paste, and gets the marks here.

/// Mark before a paste, as terminals write it.
const PASTE: &str = "\x1b[200~";
/// Mark after a paste.
const PASTE_END: &str = "\x1b[201~";
/// A newline that does not send the line: a paste of nothing else.
const NEWLINE: &str = "\x1b[200~\n\x1b[201~";

/// Turns bursts of bytes into text for the editor.
#[derive(Debug, Default)]
pub(super) struct Bursts {
    /// The beginning of a character or of a mark, cut off at the end of the last burst.
    cut: Vec<u8>,
    /// Whether the terminal has marked the beginning of a paste and not yet its end.
    is_in_paste: bool,
}

impl Bursts {
    /// The next burst. Bytes that are no UTF-8 become U+FFFD.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.cut);
        all.extend_from_slice(bytes);
        let n_whole = all.len() - cut_off(&all);
        self.cut = all.split_off(n_whole);
        let text = String::from_utf8_lossy(&all).into_owned();
        let (starts, ends) = (text.rfind(PASTE), text.rfind(PASTE_END));
        if self.is_in_paste || starts.is_some() {
            self.is_in_paste = starts > ends || (starts == ends && self.is_in_paste);
            return text;
        }
        let is_plain = |c: char| !c.is_control() || matches!(c, '\r' | '\n' | '\t');
        let (body, tail) = text.split_at(text.trim_end_matches(['\r', '\n']).len());
        if body.contains(['\r', '\n']) && body.chars().all(is_plain) {
            let enter = if tail.is_empty() { "" } else { "\r" };
            return format!("{PASTE}{body}{PASTE_END}{enter}");
        }
        // Alt-Enter is Escape and Enter.
        text.replace("\x1b\r", NEWLINE).replace("\x1b\n", NEWLINE)
    }
}

/// Bytes at the end that are the beginning of a character or of a mark of a paste.
fn cut_off(bytes: &[u8]) -> usize {
    for n in 2..PASTE.len() {
        // Escape alone is a key, which must not wait for the next one.
        let is_mark = |mark: &str| bytes.ends_with(&mark.as_bytes()[..n]);
        if is_mark(PASTE) || is_mark(PASTE_END) {
            return n;
        }
    }
    let end = &bytes[bytes.len().saturating_sub(3)..];
    for n in 1..=end.len() {
        let first = end[end.len() - n];
        let len = match first {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            0x80..=0xBF => continue,
            _ => 0,
        };
        return if len > n { n } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(bursts: &[&[u8]]) -> String {
        let mut state = Bursts::default();
        bursts.iter().map(|bytes| state.push(bytes)).collect()
    }

    #[test]
    fn typed_keys_stay_as_they_are() {
        for bytes in ["a", "hello\r", "\r", "\n", "\x1b[A", "\x03", "\x1b", "é", "hello there\r"] {
            assert_eq!(pushed(&[bytes.as_bytes()]), bytes, "{bytes:?}");
        }
        assert_eq!(pushed(&[b"\x1b[A\rabc\r"]), "\x1b[A\rabc\r", "keys, perhaps over a slow line");
    }

    #[test]
    fn several_lines_at_once_are_a_paste() {
        assert_eq!(pushed(&[b"one\ntwo"]), "\x1b[200~one\ntwo\x1b[201~");
        assert_eq!(pushed(&[b"one\r\ttwo\r"]), "\x1b[200~one\r\ttwo\x1b[201~\r");
    }

    #[test]
    fn a_paste_with_marks_passes_wherever_it_is_cut() {
        let paste = "a\x1b[200~one\ntwo é\nthree\x1b[201~b\r";
        for at in 0..paste.len() {
            let (before, after) = paste.as_bytes().split_at(at);
            assert_eq!(pushed(&[before, after]), paste, "cut at {at}");
        }
        let twice = format!("{paste}x\ny");
        assert_eq!(pushed(&[paste.as_bytes(), b"x\ny"]), format!("{paste}\x1b[200~x\ny\x1b[201~"));
        assert_eq!(pushed(&[twice.as_bytes()]), twice);
    }

    #[test]
    fn alt_enter_is_a_newline_in_the_line() {
        assert_eq!(pushed(&[b"\x1b\r"]), NEWLINE);
        assert_eq!(pushed(&[b"a\x1b\rb"]), format!("a{NEWLINE}b"));
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced_and_the_rest_stays() {
        assert_eq!(pushed(&[b"caf\xe9 noir"]), "caf\u{fffd} noir");
        assert_eq!(pushed(&[b"\xff\xfe", b"a"]), "\u{fffd}\u{fffd}a");
        assert_eq!(pushed(&[b"\xc3", b"\xa9"]), "é", "a character may be cut");
        assert_eq!(pushed(&[b"\xf0\x9f", b"\x98\x80!"]), "😀!");
        assert_eq!(pushed(&[b"\xc3", b"x"]), "\u{fffd}x");
        assert_eq!(pushed(&[b"one\n\xff\ntwo"]), "\x1b[200~one\n\u{fffd}\ntwo\x1b[201~");
    }
}
