//! SentencePiece's BPE: merge the best-scored pair first.
//!
//! ```text
//! symbols := the characters of the text, each user-defined token being one closed symbol
//! while some two neighbours join to a piece of the vocabulary:
//!     join the pair whose piece has the highest score, the leftmost among equals
//! unused pieces come apart again; unknown characters become their bytes, or one `<unk>` per run
//! ```
//!
//! Ranked merges as in `tokenizer.json` cannot express this rule exactly: a rank belongs to a pair,
//! a score to the joined piece, and two pairs that give the same piece (`aa`+`a`, `a`+`aa`) tie
//! here. So the queue is our own. Kudo & Richardson, "SentencePiece", EMNLP 2018.

use std::borrow::Cow;
use std::collections::{BinaryHeap, HashMap};

use pelton_base::TokenId;

use crate::charsmap::CharsMap;
use crate::gguf_vocab::{GgufVocab, TokenKind};

/// The character that stands for a space inside pieces.
pub(crate) const SPACE: char = '▁';

/// A vocabulary with scores.
#[derive(Debug)]
pub(crate) struct SentencePiece {
    /// Pieces that text may become: normal, user-defined and unused ones.
    pieces: HashMap<String, u32>,
    scores: Vec<f32>,
    kinds: Vec<TokenKind>,
    bytes: Option<Box<[u32; 256]>>,
    unknown: Option<u32>,
    /// Tokens found in the text as they stand, by first byte, the longest first.
    user_defined: Literals,
    control: Literals,
    add_space_prefix: bool,
    remove_extra_whitespaces: bool,
    table: Option<CharsMap>,
}

type Literals = HashMap<u8, Vec<(String, u32)>>;

impl SentencePiece {
    /// Scores beyond the end of the array count as zero.
    ///
    /// # Errors
    ///
    /// Names the fault of the table of character replacements.
    pub(crate) fn new(vocab: &GgufVocab) -> Result<Self, String> {
        let mut pieces = HashMap::new();
        let mut bytes = [None; 256];
        let mut unknown = vocab.unknown;
        let (mut user_defined, mut control) = (Literals::new(), Literals::new());
        let mut kinds = Vec::with_capacity(vocab.tokens.len());
        for (id, token) in (0u32..).zip(&vocab.tokens) {
            let kind = vocab.kind(id);
            kinds.push(kind);
            let Ok(text) = std::str::from_utf8(token) else { continue };
            let literal = |table: &mut Literals| {
                if let Some(first) = text.bytes().next() {
                    table.entry(first).or_default().push((text.to_owned(), id));
                }
            };
            match kind {
                TokenKind::Control => literal(&mut control),
                TokenKind::Unknown => unknown = unknown.or(Some(id)),
                TokenKind::Byte => {
                    if let Some(byte) = crate::byte_table::fallback_byte(text) {
                        bytes[usize::from(byte)] = Some(id);
                    }
                }
                TokenKind::UserDefined => {
                    literal(&mut user_defined);
                    pieces.insert(text.to_owned(), id);
                }
                TokenKind::Normal | TokenKind::Unused => {
                    pieces.insert(text.to_owned(), id);
                }
            }
        }
        for table in [&mut user_defined, &mut control] {
            for tokens in table.values_mut() {
                tokens.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
            }
        }
        let all_bytes: Option<Vec<u32>> = bytes.into_iter().collect();
        let mut scores = vocab.scores.clone();
        scores.resize(vocab.tokens.len(), 0.0);
        let table = match vocab.precompiled_charsmap.as_slice() {
            [] => None,
            bytes => Some(CharsMap::parse(bytes)?),
        };
        Ok(Self {
            pieces,
            scores,
            kinds,
            bytes: all_bytes.map(|ids| Box::new(std::array::from_fn(|byte| ids[byte]))),
            unknown,
            user_defined,
            control,
            add_space_prefix: vocab.add_space_prefix.unwrap_or(true),
            remove_extra_whitespaces: vocab.remove_extra_whitespaces.unwrap_or(false),
            table,
        })
    }

    /// Tokens of `text`; control tokens in it are recognized only with `parse_special`.
    pub(crate) fn encode(&self, text: &str, parse_special: bool) -> Vec<TokenId> {
        let mut ids = Vec::new();
        if !parse_special {
            self.encode_plain(text, &mut ids);
            return ids;
        }
        let mut start = 0;
        let mut at = 0;
        while at < text.len() {
            match literal_at(&self.control, &text[at..]) {
                Some((n_bytes, id)) => {
                    self.encode_plain(&text[start..at], &mut ids);
                    ids.push(TokenId(id));
                    at += n_bytes;
                    start = at;
                }
                None => at += char_len(&text[at..]),
            }
        }
        self.encode_plain(&text[start..], &mut ids);
        ids
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<TokenId>) {
        let normalized = self.normalized(text);
        if normalized.is_empty() {
            return;
        }
        let mut word = Word { model: self, symbols: self.symbols(&normalized), text: &normalized };
        let unused = word.merge();

        let mut previous_unknown = false;
        let mut idx = Some(0);
        while let Some(symbol) = idx.and_then(|at: usize| word.symbols.get(at)) {
            self.emit(symbol.of(&normalized), &unused, &mut previous_unknown, ids);
            idx = symbol.next;
        }
    }

    /// The text as pieces spell it: characters replaced, spaces counted and made visible.
    fn normalized(&self, text: &str) -> String {
        let replaced = match &self.table {
            Some(table) => Cow::Owned(self.replaced(table, text)),
            None => Cow::Borrowed(text),
        };
        let mut text = replaced.as_ref();
        if self.remove_extra_whitespaces {
            // The end of a text loses the signs of spaces, too.
            text = text.trim_start_matches(' ').trim_end_matches([' ', SPACE]);
        }
        if text.is_empty() {
            return String::new();
        }
        let mut normalized = String::with_capacity(text.len() + 3);
        if self.add_space_prefix {
            normalized.push(SPACE);
        }
        let mut after_space = false;
        for c in text.chars() {
            if !(c == ' ' && after_space && self.remove_extra_whitespaces) {
                normalized.push(if c == ' ' { SPACE } else { c });
            }
            after_space = c == ' ';
        }
        normalized
    }

    /// The text after the table, which leaves user-defined tokens alone.
    fn replaced(&self, table: &CharsMap, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let (mut start, mut at) = (0, 0);
        while at < text.len() {
            match literal_at(&self.user_defined, &text[at..]) {
                Some((n_bytes, _)) => {
                    out.push_str(&table.apply(&text[start..at]));
                    out.push_str(&text[at..at + n_bytes]);
                    at += n_bytes;
                    start = at;
                }
                None => at += char_len(&text[at..]),
            }
        }
        out.push_str(&table.apply(&text[start..]));
        out
    }

    fn symbols(&self, text: &str) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        let mut at = 0;
        while at < text.len() {
            let literal = literal_at(&self.user_defined, &text[at..]);
            let n_bytes = literal.map_or_else(|| char_len(&text[at..]), |(n_bytes, _)| n_bytes);
            let idx = symbols.len();
            symbols.push(Symbol {
                start: at,
                n_bytes,
                previous: idx.checked_sub(1),
                next: (at + n_bytes < text.len()).then_some(idx + 1),
                closed: literal.is_some(),
            });
            at += n_bytes;
        }
        symbols
    }

    /// Writes one final symbol. Unused pieces are taken apart the way they were joined.
    fn emit(
        &self,
        piece: &str,
        unused: &HashMap<&str, usize>,
        previous_unknown: &mut bool,
        ids: &mut Vec<TokenId>,
    ) {
        let mut stack = vec![piece];
        while let Some(piece) = stack.pop() {
            match self.pieces.get(piece) {
                Some(&id) => match unused.get(piece) {
                    Some(&split) => {
                        let (left, right) = piece.split_at(split);
                        stack.extend([right, left]);
                    }
                    None => {
                        ids.push(TokenId(id));
                        *previous_unknown = false;
                    }
                },
                None => match (&self.bytes, self.unknown) {
                    (Some(bytes), _) => {
                        ids.extend(piece.bytes().map(|b| TokenId(bytes[usize::from(b)])));
                    }
                    (None, Some(unknown)) if !*previous_unknown => {
                        ids.push(TokenId(unknown));
                        *previous_unknown = true;
                    }
                    _ => {}
                },
            }
        }
    }
}

/// A stretch of the text that is one piece so far; a list linked both ways.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: usize,
    /// Zero once it has been joined to its left neighbour.
    n_bytes: usize,
    previous: Option<usize>,
    next: Option<usize>,
    closed: bool,
}

impl Symbol {
    fn of<'t>(&self, text: &'t str) -> &'t str {
        &text[self.start..self.start + self.n_bytes]
    }
}

/// A possible joining; the greatest is the best scored, then the leftmost.
#[derive(Debug)]
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    n_bytes: usize,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

struct Word<'m, 't> {
    model: &'m SentencePiece,
    text: &'t str,
    symbols: Vec<Symbol>,
}

impl<'t> Word<'_, 't> {
    /// Joins until nothing joins; returns where each unused piece had been joined.
    fn merge(&mut self) -> HashMap<&'t str, usize> {
        let mut queue = BinaryHeap::new();
        let mut unused = HashMap::new();
        for right in 1..self.symbols.len() {
            self.consider(right - 1, right, &mut queue, &mut unused);
        }
        while let Some(Candidate { left, right, n_bytes, .. }) = queue.pop() {
            let (l, r) = (self.symbols[left], self.symbols[right]);
            // Either side may have changed since the pair was queued.
            if l.n_bytes == 0 || r.n_bytes == 0 || l.n_bytes + r.n_bytes != n_bytes {
                continue;
            }
            self.symbols[left].n_bytes = n_bytes;
            self.symbols[left].next = r.next;
            self.symbols[right].n_bytes = 0;
            if let Some(next) = r.next {
                self.symbols[next].previous = Some(left);
                self.consider(left, next, &mut queue, &mut unused);
            }
            if let Some(previous) = l.previous {
                self.consider(previous, left, &mut queue, &mut unused);
            }
        }
        unused
    }

    fn consider(
        &self,
        left: usize,
        right: usize,
        queue: &mut BinaryHeap<Candidate>,
        unused: &mut HashMap<&'t str, usize>,
    ) {
        let (l, r) = (self.symbols[left], self.symbols[right]);
        if l.closed || r.closed {
            return;
        }
        let n_bytes = l.n_bytes + r.n_bytes;
        let piece = &self.text[l.start..l.start + n_bytes];
        let Some(&id) = self.model.pieces.get(piece) else { return };
        if self.model.kinds[id as usize] == TokenKind::Unused {
            unused.insert(piece, l.n_bytes);
        }
        queue.push(Candidate { score: self.model.scores[id as usize], left, right, n_bytes });
    }
}

fn literal_at(literals: &Literals, text: &str) -> Option<(usize, u32)> {
    let tokens = literals.get(text.as_bytes().first()?)?;
    tokens.iter().find(|(token, _)| text.starts_with(token)).map(|(token, id)| (token.len(), *id))
}

fn char_len(text: &str) -> usize {
    text.chars().next().map_or(1, char::len_utf8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vocabulary of these pieces, all with their kind and score, and no space before a text.
    fn vocab(pieces: &[(&str, TokenKind, f32)]) -> GgufVocab {
        GgufVocab {
            tokens: pieces.iter().map(|(text, ..)| text.as_bytes().to_vec()).collect(),
            kinds: pieces.iter().map(|(_, kind, _)| *kind).collect(),
            scores: pieces.iter().map(|(.., score)| *score).collect(),
            add_space_prefix: Some(false),
            ..GgufVocab::default()
        }
    }

    fn spelled(vocab: &GgufVocab, text: &str) -> Vec<String> {
        let model = SentencePiece::new(vocab).expect("a vocabulary");
        let token =
            |id: TokenId| String::from_utf8_lossy(&vocab.tokens[id.0 as usize]).into_owned();
        model.encode(text, false).into_iter().map(token).collect()
    }

    const LETTERS: [(&str, TokenKind, f32); 5] = [
        ("<unk>", TokenKind::Unknown, 0.0),
        ("a", TokenKind::Normal, -9.0),
        ("b", TokenKind::Normal, -9.0),
        ("c", TokenKind::Normal, -9.0),
        ("d", TokenKind::Normal, -9.0),
    ];

    #[test]
    fn pairs_are_joined_by_score_then_from_the_left_and_never_across_what_was_joined() {
        let with = |pieces: &[(&'static str, f32)]| {
            let pieces = pieces.iter().map(|(text, score)| (*text, TokenKind::Normal, *score));
            vocab(&LETTERS.into_iter().chain(pieces).collect::<Vec<_>>())
        };
        // `bc` is still waiting when `b` is gone and `cd` is as long as `bc` was to be.
        let vocab = with(&[("ab", -1.0), ("cd", -2.0), ("bc", -3.0)]);
        assert_eq!(spelled(&vocab, "abcd"), ["ab", "cd"]);
        assert_eq!(spelled(&vocab, "abc"), ["ab", "c"]);
        assert_eq!(spelled(&vocab, "bcd"), ["b", "cd"]);
        let vocab = with(&[("aa", -1.0), ("aaa", -1.0), ("ab", -1.0)]);
        assert_eq!(spelled(&vocab, "aaaab"), ["aaa", "ab"]);
        assert_eq!(spelled(&vocab, "aab"), ["aa", "b"]);
        let vocab = with(&[("ab", -2.0), ("bc", -1.0), ("abc", -3.0), ("abcd", -4.0)]);
        assert_eq!(spelled(&vocab, "abcd"), ["abcd"]);
        assert_eq!(spelled(&vocab, "abab"), ["ab", "ab"]);
    }

    #[test]
    fn an_unused_piece_comes_apart_as_it_was_joined_and_a_run_of_unknowns_is_one() {
        let pieces = [("ab", TokenKind::Unused, -1.0), ("abc", TokenKind::Normal, -2.0)];
        let with = vocab(&LETTERS.into_iter().chain(pieces).collect::<Vec<_>>());
        assert_eq!(spelled(&with, "abcabd"), ["abc", "a", "b", "d"]);
        let pieces = [("ab", TokenKind::Normal, -1.0), ("abc", TokenKind::Unused, -2.0)];
        let with = vocab(&LETTERS.into_iter().chain(pieces).collect::<Vec<_>>());
        assert_eq!(spelled(&with, "abcd"), ["ab", "c", "d"]);
        assert_eq!(spelled(&with, "xyaz x"), ["<unk>", "a", "<unk>"]);
        assert_eq!(spelled(&vocab(&LETTERS[1..]), "xa"), ["a"]);
    }

    #[test]
    fn the_table_leaves_tokens_of_the_user_alone() {
        // `a` becomes `cd`: its node leads to place 1, which leads to the text in place 0.
        let mut units = [0u32; 256];
        units[0x61] = (0x61 ^ 1) << 10 | 1 << 8 | 0x61;
        units[1] = 1 << 31;
        let mut vocab = vocab(&[("xa", TokenKind::UserDefined, 0.0)]);
        vocab.precompiled_charsmap = 1024u32.to_le_bytes().to_vec();
        vocab.precompiled_charsmap.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        vocab.precompiled_charsmap.extend(b"cd\0");
        let model = SentencePiece::new(&vocab).expect("a vocabulary");
        for (text, expected) in
            [("a\u{e9}xaaxab", "cd\u{e9}xacdxab"), ("xa", "xa"), ("x a", "x▁cd"), ("", "")]
        {
            assert_eq!(model.normalized(text), expected);
        }
    }

    #[test]
    fn candidates_are_equal_where_neither_comes_before_the_other() {
        let at = |score, left| Candidate { score, left, right: left + 1, n_bytes: 2 };
        assert_eq!(at(1.0, 2), Candidate { n_bytes: 3, ..at(1.0, 2) });
        assert_ne!(at(1.0, 2), at(1.0, 3));
        assert!(at(1.0, 2) > at(1.0, 3) && at(1.0, 2) > at(0.5, 1));
    }
}
