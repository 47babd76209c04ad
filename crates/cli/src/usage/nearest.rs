//! The known name that was meant by a mistyped one.

/// The known name that differs from `word` by a slip of the finger, if one does.
///
/// A slip is one letter too few, too many, wrong, or swapped with its neighbour; a word may have
/// one for every four letters. `_` and `-` are alike, and so are large and small letters.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = plain(word);
    let most = (word.len() / 4).max(1);
    known
        .map(|name| (strsim::osa_distance(&word, &plain(name)), name))
        .filter(|(n, name)| *n <= most && *n < plain(name).len())
        .min()
        .map(|(_, name)| name)
}

fn plain(word: &str) -> String {
    word.to_ascii_lowercase().replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

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
