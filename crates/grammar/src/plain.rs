//! Tokens by their plain characters, for masks inside of strings.
//!
//! ```text
//!   token      plain characters   rest
//!   hello      5                  none
//!   ok","      2                  ","
//!   "}         0                  "}
//! ```
//!
//! In most places of a string the lexer goes to one and the same state whatever plain character
//! comes. Whether a token fits then depends only on the number of its plain characters and on its
//! rest: a few bit sets and a walk over the different rests give the mask, where a walk over the
//! whole vocabulary would take milliseconds.

use std::collections::BTreeMap;

use toktrie::{Recognizer, SimpleVob, TokTrie};

/// Characters up to which tokens are told apart by their number; the few longer ones are walked.
pub(crate) const MOST_CHARS: usize = 16;

/// Characters that are treated alike: some of ASCII, and all others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    /// Whether a byte below 128 is one of them.
    pub(crate) ascii: fn(u8) -> bool,
}

/// The classes that are tried, in this order: what JSON strings take as it is, and what hardly
/// begins a tag or a fence in free text.
pub(crate) const CLASSES: [Class; 2] = [
    Class { ascii: |byte| matches!(byte, 0x20..=0x7E) && !matches!(byte, b'"' | b'\\') },
    Class { ascii: |byte| byte.is_ascii_alphanumeric() || matches!(byte, b' ' | b',' | b'.') },
];

/// A byte that is plain in every class.
pub(crate) const SAMPLE: u8 = b'a';

/// The tokens of a vocabulary by their plain characters of one class.
pub(crate) struct Plain {
    pub(crate) class: Class,
    /// All tokens without a rest.
    pub(crate) whole: SimpleVob,
    /// At place `n - 1` the tokens without a rest that begin at most `n` characters.
    pub(crate) up_to: Vec<SimpleVob>,
    /// The rests of all tokens.
    pub(crate) rests: Walk,
    /// At place `n` the rests of the tokens that have `n` characters before.
    pub(crate) rests_at: Vec<Walk>,
    /// The tokens that begin more than [`MOST_CHARS`] characters, from their first byte on.
    pub(crate) long: Walk,
}

/// Tokens of equal bytes, by these bytes.
type Words<'a> = BTreeMap<&'a [u8], Vec<u32>>;

impl Plain {
    pub(crate) fn new(trie: &TokTrie, class: Class) -> Self {
        let mut whole = trie.alloc_token_set();
        let mut up_to = vec![whole.clone(); MOST_CHARS];
        let (mut rests, mut long) = (Words::new(), Words::new());
        let mut rests_at = vec![Words::new(); MOST_CHARS + 1];
        for token in 0..trie.vocab_size() as u32 {
            let bytes = trie.token(token);
            // Of several tokens with the same bytes a walk finds one.
            let is_found = || trie.token_id(bytes) == Some(token);
            if bytes.is_empty() {
                continue;
            }
            let (n_chars, rest) = split(bytes, class);
            if rest.is_empty() {
                whole.allow_token(token);
                up_to.iter_mut().skip(n_chars - 1).for_each(|set| set.allow_token(token));
            } else if is_found() {
                rests.entry(rest).or_default().push(token);
                if let Some(words) = rests_at.get_mut(n_chars) {
                    words.entry(rest).or_default().push(token);
                }
            }
            if n_chars > MOST_CHARS && is_found() {
                long.entry(bytes).or_default().push(token);
            }
        }
        Self {
            class,
            whole,
            up_to,
            rests: Walk::new(&rests),
            rests_at: rests_at.iter().map(Walk::new).collect(),
            long: Walk::new(&long),
        }
    }
}

/// The plain characters at the beginning of a token, of which the last may be cut off by the end of
/// the token, and what comes behind them.
fn split(bytes: &[u8], class: Class) -> (usize, &[u8]) {
    let (mut n_chars, mut at) = (0, 0);
    while let Some(&byte) = bytes.get(at) {
        let n_bytes = match byte {
            0..=0x7F if !(class.ascii)(byte) => break,
            0..=0x7F => 1,
            _ => {
                let most = (at + 4).min(bytes.len());
                let ends = |end: &usize| std::str::from_utf8(&bytes[at..*end]).is_ok();
                match (at + 1..=most).find(ends) {
                    Some(end) => end - at,
                    None => {
                        let error = std::str::from_utf8(&bytes[at..most]).err();
                        match error {
                            Some(error)
                                if error.valid_up_to() == 0 && error.error_len().is_none() =>
                            {
                                bytes.len() - at
                            }
                            _ => break,
                        }
                    }
                }
            }
        };
        n_chars += 1;
        at += n_bytes;
    }
    (n_chars, &bytes[at..])
}

/// A tree of bytes in the order of a walk that goes down first.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    nodes: Vec<Node>,
    tokens: Vec<u32>,
}

#[derive(Debug)]
struct Node {
    byte: u8,
    /// Nodes above it.
    depth: u32,
    /// Nodes of its subtree, itself included.
    size: u32,
    /// Its tokens, as a range of `tokens`.
    from: u32,
    to: u32,
}

impl Walk {
    fn new(words: &Words<'_>) -> Self {
        let mut walk = Self::default();
        let mut open: Vec<usize> = Vec::new();
        let mut before: &[u8] = &[];
        for (word, tokens) in words {
            let n_common = before.iter().zip(*word).take_while(|(a, b)| a == b).count();
            walk.close(&mut open, n_common);
            for (depth, byte) in word.iter().enumerate().skip(n_common) {
                open.push(walk.nodes.len());
                let from = walk.tokens.len() as u32;
                walk.nodes.push(Node { byte: *byte, depth: depth as u32, size: 0, from, to: from });
            }
            walk.tokens.extend(tokens);
            if let Some(node) = walk.nodes.last_mut() {
                node.to = walk.tokens.len() as u32;
            }
            before = word;
        }
        walk.close(&mut open, 0);
        walk
    }

    /// Ends the nodes that are deeper than `n_kept`.
    fn close(&mut self, open: &mut Vec<usize>, n_kept: usize) {
        for idx in open.drain(n_kept..) {
            self.nodes[idx].size = (self.nodes.len() - idx) as u32;
        }
    }

    /// Adds the tokens whose bytes the recognizer takes from where it is; it is there afterwards.
    pub(crate) fn add(&self, recognizer: &mut impl Recognizer, set: &mut SimpleVob) {
        let (mut idx, mut depth) = (0, 0);
        while let Some(node) = self.nodes.get(idx) {
            if depth > node.depth {
                recognizer.pop_bytes((depth - node.depth) as usize);
            }
            depth = node.depth;
            if recognizer.try_push_byte(node.byte) {
                depth += 1;
                idx += 1;
                let tokens = &self.tokens[node.from as usize..node.to as usize];
                tokens.iter().for_each(|token| set.allow_token(*token));
            } else {
                idx += node.size as usize;
            }
        }
        recognizer.pop_bytes(depth as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_its_plain_characters_and_its_rest() {
        let [json, text] = CLASSES;
        let cases: [(&[u8], usize, &[u8]); 9] = [
            (b"hello", 5, b""),
            (b"ok\",\"", 2, b"\",\""),
            (b"\"}", 0, b"\"}"),
            ("aé€😀".as_bytes(), 4, b""),
            (b"a\xE2\x82", 2, b""),
            (b"a\xE2\x82\"", 1, b"\xE2\x82\""),
            (b"\x80a", 0, b"\x80a"),
            (b"\xED\xA0", 0, b"\xED\xA0"),
            (b"a\xFF", 1, b"\xFF"),
        ];
        for (bytes, n_chars, rest) in cases {
            assert_eq!(split(bytes, json), (n_chars, rest), "{bytes:?}");
        }
        assert_eq!(split(b"a <b", json), (4, &b""[..]));
        assert_eq!(split(b"a <b", text), (2, &b"<b"[..]));
        assert!(CLASSES.iter().all(|class| (class.ascii)(SAMPLE)));
    }

    /// Takes the texts that begin one of these.
    struct Prefixes(Vec<&'static [u8]>, Vec<u8>);

    impl Recognizer for Prefixes {
        fn pop_bytes(&mut self, num: usize) {
            self.1.truncate(self.1.len() - num);
        }

        fn collapse(&mut self) {}

        fn trie_finished(&mut self) {}

        fn try_push_byte(&mut self, byte: u8) -> bool {
            self.1.push(byte);
            let fits = self.0.iter().any(|text| text.starts_with(&self.1));
            if !fits {
                self.1.pop();
            }
            fits
        }
    }

    #[test]
    fn a_walk_finds_the_words_that_fit_and_returns_to_its_place() {
        let words: [&[u8]; 6] = [b"a", b"abc", b"abd", b"b", b"bcd", b"c"];
        let words: Words<'_> = words.into_iter().zip((0..).map(|id| vec![id])).collect();
        let mut recognizer = Prefixes(vec![b"xabd", b"xbc"], vec![b'x']);
        let mut set = SimpleVob::alloc(8);
        Walk::new(&words).add(&mut recognizer, &mut set);
        assert_eq!(set.to_list(), [0, 2, 3]);
        assert_eq!(recognizer.1, b"x");
    }
}
