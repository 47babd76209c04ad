//! Marks in a text whose end may still be missing.

#[cfg(test)]
thread_local! {
    /// Bytes that were looked at or copied, for the test that counts them.
    pub(crate) static WORK: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts work in tests.
pub(super) fn count(_n_bytes: usize) {
    #[cfg(test)]
    WORK.set(WORK.get() + _n_bytes);
}

/// Where a mark is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Found {
    /// This mark, by its place in the list, after so many bytes without a mark.
    At(usize, usize),
    /// No mark begins in so many bytes; one may begin in the bytes after these.
    Free(usize),
}

/// Finds the first mark; of several that begin at the same place, the first of the list. With
/// `is_last` no more text comes.
pub(crate) fn find(text: &str, marks: &[&str], is_last: bool) -> Found {
    let found = look(text, marks, is_last);
    let (Found::At(n_free, _) | Found::Free(n_free)) = found;
    count(n_free + 1);
    found
}

fn look(text: &str, marks: &[&str], is_last: bool) -> Found {
    let bytes = text.as_bytes();
    for at in 0..bytes.len() {
        let rest = &bytes[at..];
        if !marks.iter().any(|mark| mark.as_bytes().first() == rest.first()) {
            continue;
        }
        for (mark_idx, mark) in marks.iter().enumerate() {
            if rest.starts_with(mark.as_bytes()) {
                return Found::At(at, mark_idx);
            }
            if !is_last && mark.as_bytes().starts_with(rest) {
                return Found::Free(at);
            }
        }
    }
    Found::Free(bytes.len())
}

/// The beginning of a text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Begins {
    /// This mark, by its place in the list.
    With(usize),
    /// The beginning of a mark, or nothing yet.
    Partly,
    /// Something else.
    Otherwise,
}

/// Which of the marks a text begins with.
pub(crate) fn begins<'a>(text: &str, marks: impl Iterator<Item = &'a str>) -> Begins {
    let mut answer = Begins::Otherwise;
    for (mark_idx, mark) in marks.enumerate() {
        if text.starts_with(mark) {
            return Begins::With(mark_idx);
        }
        if mark.starts_with(text) {
            answer = Begins::Partly;
        }
    }
    answer
}

/// Number of bytes of white space at the beginning.
pub(crate) fn blanks(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_a_mark_is_kept_until_it_is_decided() {
        let marks = ["<call>", "<call_end>"];
        let table = [
            ("ab<call>c", false, Found::At(2, 0)),
            ("ab<call_end>", false, Found::At(2, 1)),
            ("ab<call", false, Found::Free(2)),
            ("ab<call", true, Found::Free(7)),
            ("ab<<", false, Found::Free(3)),
            ("<calm<", false, Found::Free(5)),
            ("é<x", true, Found::Free(4)),
            ("", false, Found::Free(0)),
        ];
        for (text, is_last, expected) in table {
            assert_eq!(find(text, &marks, is_last), expected, "{text} {is_last}");
        }
    }
}
