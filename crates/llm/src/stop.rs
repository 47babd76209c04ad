//! Stop strings, found while the text is still arriving.
//!
//! The text of an answer comes in pieces whose borders have nothing to do with the stop strings, so
//! a piece may end in the middle of one. [`StopMatcher`] releases every byte that can no longer be
//! part of a stop string and holds the rest back:
//!
//! ```text
//!   stop = "\n\nQ:"        text so far   "...the sea.\n\n"
//!                                         ~~~~~~~~~~~~    released
//!                                                     ~~~~ held: a prefix of the stop string
//! ```
//!
//! **Which match counts.** The match that *ends* first, and the longest of several matches that end
//! together. This depends on the text alone, never on how it was cut into pieces.
//!
//! **Where an answer is too short to end** (`min_tokens`), a stop string is ordinary text. The
//! *end* of a match decides: [`StopMatcher::push_early`] takes the text of such tokens, and a stop
//! string that begins in it and ends later is found and cut off whole, as in vLLM.
//!
//! Each stop string keeps the state of its Knuth-Morris-Pratt automaton: the length of its longest
//! prefix that the text ends with. The longest of these lengths is what must be held. Cost is one
//! amortised step per byte and stop string.
//!
//! No text is ever cut inside a character: a held piece starts with the first byte of a stop
//! string, which is the first byte of a character.

/// Result of [`StopMatcher::push`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StopOutcome {
    /// Text that can be released now.
    pub text: String,
    /// Index of the stop string that ended the text, if one did.
    pub matched: Option<usize>,
}

/// Watches a growing text for the first of several stop strings.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    needles: Vec<Needle>,
    /// The tail of the text that may still become a stop string.
    held: String,
    is_done: bool,
}

#[derive(Clone, Debug)]
struct Needle {
    bytes: Vec<u8>,
    /// `border[i]` is the length of the longest proper prefix of `bytes[..=i]` that is its suffix.
    border: Vec<usize>,
    /// Length of the longest prefix of `bytes` that the text ends with.
    n_matched: usize,
}

impl Needle {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut border = vec![0; bytes.len()];
        let mut len = 0;
        for i in 1..bytes.len() {
            while len > 0 && bytes[len] != bytes[i] {
                len = border[len - 1];
            }
            if bytes[len] == bytes[i] {
                len += 1;
            }
            border[i] = len;
        }
        Self { bytes, border, n_matched: 0 }
    }

    /// Takes one byte of text; true when it completes the stop string.
    fn advance(&mut self, byte: u8) -> bool {
        while self.n_matched > 0 && self.bytes[self.n_matched] != byte {
            self.n_matched = self.border[self.n_matched - 1];
        }
        if self.bytes[self.n_matched] == byte {
            self.n_matched += 1;
        }
        let is_whole = self.n_matched == self.bytes.len();
        if is_whole {
            // The next match may begin within this one.
            self.n_matched = self.border[self.n_matched - 1];
        }
        is_whole
    }
}

impl StopMatcher {
    /// Watches for `stops`; empty strings among them match nothing.
    pub fn new(stops: &[String]) -> Self {
        Self {
            needles: stops.iter().map(|s| Needle::new(s)).collect(),
            held: String::new(),
            is_done: false,
        }
    }

    /// Takes the next piece of text and releases the part that can no longer become a stop string.
    ///
    /// After a match all further text is dropped.
    pub fn push(&mut self, piece: &str) -> StopOutcome {
        if self.is_done {
            return StopOutcome { text: String::new(), matched: None };
        }
        let n_before = self.held.len();
        for (i, byte) in piece.bytes().enumerate() {
            if let Some(idx) = self.advance(byte) {
                self.is_done = true;
                let mut text = std::mem::take(&mut self.held);
                text.push_str(piece);
                text.truncate(n_before + i + 1 - self.needles[idx].bytes.len());
                return StopOutcome { text, matched: Some(idx) };
            }
        }
        StopOutcome { text: self.let_out(piece), matched: None }
    }

    /// Takes a piece of text in which no stop string ends the answer, because the answer is too
    /// short; releases the part that can no longer become a later match.
    pub fn push_early(&mut self, piece: &str) -> String {
        if self.is_done {
            return String::new();
        }
        for byte in piece.bytes() {
            self.advance(byte);
        }
        self.let_out(piece)
    }

    /// Takes one byte; returns the longest stop string that it completes, the first of equal ones.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        let mut longest: Option<(usize, usize)> = None;
        for (idx, needle) in self.needles.iter_mut().enumerate() {
            if needle.bytes.is_empty() || !needle.advance(byte) {
                continue;
            }
            if longest.is_none_or(|(_, len)| needle.bytes.len() > len) {
                longest = Some((idx, needle.bytes.len()));
            }
        }
        longest.map(|(idx, _)| idx)
    }

    /// The held text and this piece, without the text that is held from now on.
    fn let_out(&mut self, piece: &str) -> String {
        let mut text = std::mem::take(&mut self.held);
        text.push_str(piece);
        let n_held = self.needles.iter().map(|n| n.n_matched).max().unwrap_or(0);
        self.held = text.split_off(text.len() - n_held);
        text
    }

    /// Releases the held text after the end of the text.
    pub fn finish(&mut self) -> String {
        self.is_done = true;
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, on the whole text: the match that ends first after `n_early` bytes, the
    /// longest among those.
    fn naive(text: &str, n_early: usize, stops: &[String]) -> (String, Option<usize>) {
        for end in n_early + 1..=text.len() {
            let longest = stops
                .iter()
                .enumerate()
                .filter(|(_, s)| !s.is_empty() && text.as_bytes()[..end].ends_with(s.as_bytes()))
                .max_by_key(|(idx, s)| (s.len(), std::cmp::Reverse(*idx)));
            if let Some((idx, stop)) = longest {
                return (text[..end - stop.len()].to_owned(), Some(idx));
            }
        }
        (text.to_owned(), None)
    }

    /// The first `n_early` pieces are too early to end at.
    fn run(pieces: &[String], n_early: usize, stops: &[String]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops);
        let mut out = String::new();
        let (early, pieces) = pieces.split_at(n_early);
        for piece in early {
            out.push_str(&matcher.push_early(piece));
        }
        for piece in pieces {
            let step = matcher.push(piece);
            out.push_str(&step.text);
            if step.matched.is_some() {
                assert_eq!(matcher.push("more").text, "", "text after the stop string got out");
                return (out, step.matched);
            }
        }
        out.push_str(&matcher.finish());
        (out, None)
    }

    #[test]
    fn a_stop_string_across_pieces_never_gets_out() {
        let stops = vec!["\n\nQ:".to_owned()];
        let pieces = ["sea.\n", "\n", "\nQ", ": why"].map(str::to_owned);
        assert_eq!(run(&pieces, 0, &stops), ("sea.\n".to_owned(), Some(0)));
    }

    #[test]
    fn what_is_too_early_is_text_and_what_goes_on_from_it_is_not() {
        let stops = vec!["aba".to_owned()];
        let pieces = ["ab", "a", "b", "a!", "aba"].map(str::to_owned);
        let run = |n_early| run(&pieces, n_early, &stops);
        assert_eq!(run(0), (String::new(), Some(0)));
        assert_eq!(run(1), (String::new(), Some(0)), "begun too early");
        assert_eq!(run(2), ("ab".to_owned(), Some(0)), "begun in one that did not count");
        assert_eq!(run(4), ("ababa!".to_owned(), Some(0)));
        assert_eq!(run(5), ("ababa!aba".to_owned(), None));
    }

    #[test]
    fn text_that_cannot_match_any_more_is_let_out_at_once() {
        let mut matcher = StopMatcher::new(&["END".to_owned()]);
        assert_eq!(matcher.push("xEN").text, "x");
        assert_eq!(matcher.push("x").text, "ENx");
        assert_eq!(matcher.push("E").text, "");
        assert_eq!(matcher.finish(), "E");
    }

    #[test]
    fn without_stop_strings_nothing_is_held() {
        let mut matcher = StopMatcher::new(&[]);
        assert_eq!(matcher.push("abc").text, "abc");
        assert_eq!(matcher.finish(), "");
    }

    proptest! {
        // Two letters and one two-byte letter collide often.
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn any_cutting_into_pieces_gives_what_the_whole_text_gives(
            pieces in prop::collection::vec("[abé]{0,5}", 0..12),
            stops in prop::collection::vec("[abé]{0,5}", 0..4),
            n_early in 0_usize..6,
        ) {
            let n_early = n_early.min(pieces.len());
            let text: String = pieces.concat();
            let (out, matched) = run(&pieces, n_early, &stops);
            let early = pieces[..n_early].concat();
            prop_assert_eq!((out.clone(), matched), naive(&text, early.len(), &stops));
            for stop in stops.iter().filter(|s| !s.is_empty()) {
                let late = out.match_indices(stop.as_str()).map(|(at, _)| at + stop.len());
                prop_assert!(!late.into_iter().any(|end| end > early.len()), "{:?} got out", stop);
            }
        }
    }
}
