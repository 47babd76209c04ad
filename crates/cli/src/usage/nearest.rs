//! The known name that was meant by a mistyped one.

/// The known name that differs from `word` by a slip of the finger, if one does.
///
/// A slip is one letter too few, too many, wrong, or swapped with its neighbour; a word may have
/// one for every four letters. `_` and `-` are alike, and so are large and small letters.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = plain(word);
    let most = (word.len() / 4).max(1);
    known
        .map(|name| (distance(&word, &plain(name)), name))
        .filter(|(n, name)| *n <= most && *n < plain(name).len())
        .min()
        .map(|(_, name)| name)
}

fn plain(word: &str) -> Vec<u8> {
    word.bytes().map(|b| if b == b'_' { b'-' } else { b.to_ascii_lowercase() }).collect()
}

/// Letters to insert, delete, replace or swap with their neighbour to turn `a` into `b` (optimal
/// string alignment; Damerau 1964).
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut rows = [vec![0; b.len() + 1], (0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let [before, last] = &rows;
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        rows.swap(0, 1);
        rows[1] = row;
    }
    rows[1][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_counted() {
        for (a, b, n) in [
            ("port", "port", 0),
            ("prot", "port", 1),
            ("por", "port", 1),
            ("poort", "port", 1),
            ("pert", "port", 1),
            ("", "ab", 2),
            ("ab", "", 2),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), n, "{a} {b}");
        }
    }

    #[test]
    fn only_what_is_near_is_suggested() {
        let known = ["port", "host", "max-tokens", "drain-timeout", "temperature"];
        let near = |word| nearest(word, known.into_iter());
        assert_eq!((near("prot"), near("max_token")), (Some("port"), Some("max-tokens")));
        assert_eq!(
            (near("Temperatur"), near("temprature")),
            (Some("temperature"), Some("temperature"))
        );
        for far in ["rate-limit", "x", "top", "timeout", ""] {
            assert_eq!(near(far), None, "{far}");
        }
    }
}
