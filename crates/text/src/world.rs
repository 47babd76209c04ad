//! The World tokenizer of RWKV: at each place of a text the longest token.
//!
//! ```text
//! GGUF     tokenizer.ggml.tokens     a\n\xe4\xbd           bytes, those outside of ASCII escaped
//! folder   rwkv_vocab_v20230424.txt  17 'a\n' 2            id, a literal of Python, its bytes
//! ```
//! Tokens are bytes and need not be UTF-8. Both kinds of file become a
//! [`GgufVocab`](crate::GgufVocab) in the spelling of GGUF.

use std::collections::HashMap;
use std::path::Path;

use pelton_base::{TokenId, limits};

use crate::error::{TextError, read_limited};
use crate::gguf_vocab::{GgufVocab, TokenKind};

/// Longest token, in bytes; the longest of the published vocabulary has 128.
const MAX_TOKEN_BYTES: usize = 1024;

/// Most bytes of all tokens together; those of the published vocabulary have half a million.
const MAX_BYTES: usize = 32 << 20;

/// Spelling of the token that ends a text, which the list of a folder does not have.
const END_OF_TEXT: &str = "<|rwkv_tokenizer_end_of_text|>";

/// The tokenizer: its tokens, and apart from them its control tokens.
#[derive(Debug, Default)]
pub(crate) struct World {
    tokens: Trie,
    control: Trie,
}

/// Tokens by their bytes.
#[derive(Debug)]
struct Trie {
    /// The node behind a node and a byte; node 0 is the root.
    edges: HashMap<(u32, u8), u32>,
    /// The token that ends at each node.
    tokens: Vec<Option<u32>>,
}

impl Default for Trie {
    fn default() -> Self {
        Self { edges: HashMap::new(), tokens: vec![None] }
    }
}

impl World {
    /// # Errors
    ///
    /// Names the token that is too long, or the list where it is.
    pub(crate) fn new(vocab: &GgufVocab) -> Result<Self, TextError> {
        let (mut world, mut n_bytes) = (Self::default(), 0);
        for (id, token) in (0u32..).zip(&vocab.tokens) {
            let (trie, token) = match vocab.kind(id) {
                TokenKind::Control => (&mut world.control, token.clone()),
                TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte => {
                    (&mut world.tokens, unescaped(token))
                }
                _ => continue,
            };
            n_bytes += token.len();
            if token.len() > MAX_TOKEN_BYTES {
                let found = format!("[{id}] has more than {MAX_TOKEN_BYTES} bytes");
                return Err(vocab.wrong("tokenizer.ggml.tokens", &found));
            }
            if n_bytes > MAX_BYTES {
                let found = format!("has more than {MAX_BYTES} bytes up to [{id}]");
                return Err(vocab.wrong("tokenizer.ggml.tokens", &found));
            }
            trie.insert(&token, id);
        }
        Ok(world)
    }

    /// Tokens of `text`; control tokens in it are recognized only with `parse_special`.
    ///
    /// # Errors
    ///
    /// Names the byte with which no token begins.
    pub(crate) fn encode(
        &self,
        text: &str,
        parse_special: bool,
    ) -> Result<Vec<TokenId>, TextError> {
        let (mut rest, mut ids) = (text.as_bytes(), Vec::new());
        while let Some(first) = rest.first() {
            let special = if parse_special { self.control.longest(rest) } else { None };
            let Some((n_bytes, id)) = special.or_else(|| self.tokens.longest(rest)) else {
                let reason = format!("no token of the vocabulary begins with the byte {first}");
                return Err(TextError::Encode { reason });
            };
            ids.push(TokenId(id));
            rest = &rest[n_bytes..];
        }
        Ok(ids)
    }
}

impl Trie {
    /// The last of equal tokens stays.
    fn insert(&mut self, token: &[u8], id: u32) {
        if token.is_empty() {
            return;
        }
        let mut node = 0;
        for byte in token {
            let next = self.tokens.len() as u32;
            node = *self.edges.entry((node, *byte)).or_insert(next);
            if node == next {
                self.tokens.push(None);
            }
        }
        self.tokens[node as usize] = Some(id);
    }

    /// Bytes and id of the longest token with which the text begins.
    fn longest(&self, text: &[u8]) -> Option<(usize, u32)> {
        let (mut node, mut found) = (0, None);
        for (i, byte) in text.iter().enumerate() {
            let Some(next) = self.edges.get(&(node, *byte)) else { break };
            node = *next;
            found = self.tokens[node as usize].map(|id| (i + 1, id)).or(found);
        }
        found
    }
}

/// The bytes of a token as GGUF spells it: `\t`, `\n`, `\r` and `\xNN` are bytes, and `\` before
/// anything else is left out.
pub(crate) fn unescaped(token: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(token.len()), token);
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        let Some(escaped) = behind.first().filter(|_| *first == b'\\') else {
            bytes.push(*first);
            continue;
        };
        rest = &behind[1..];
        let hex = behind.get(1..3).and_then(|hex| std::str::from_utf8(hex).ok());
        let code = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(match (escaped, code) {
            (b't', _) => b'\t',
            (b'n', _) => b'\n',
            (b'r', _) => b'\r',
            (b'x', Some(code)) => {
                rest = &behind[3..];
                code
            }
            (other, _) => *other,
        });
    }
    bytes
}

/// A token in the spelling of GGUF.
pub(crate) fn escaped(bytes: &[u8]) -> Vec<u8> {
    let spell = |byte: &u8| match byte {
        b'\t' => b"\\t".to_vec(),
        b'\n' => b"\\n".to_vec(),
        b'\r' => b"\\r".to_vec(),
        b'\\' => b"\\\\".to_vec(),
        b' '..=b'~' => vec![*byte],
        other => format!("\\x{other:02x}").into_bytes(),
    };
    bytes.iter().flat_map(spell).collect()
}

/// The list of tokens of a folder, if it has one.
pub(crate) fn list_in(folder: &Path) -> Option<std::path::PathBuf> {
    let name = "rwkv_vocab_v20230424.txt";
    Some(folder.join(name)).filter(|path| path.exists())
}

/// Reads a list of tokens, one a line: an id, a literal of Python, and the number of its bytes.
///
/// # Errors
///
/// Names the file and the line that is no token.
pub(crate) fn read_list(path: &Path) -> Result<GgufVocab, TextError> {
    let origin = path.display().to_string();
    let bytes = read_limited(path, limits::TOKENIZER_BYTES)?;
    let text =
        String::from_utf8(bytes).map_err(|_| TextError::malformed(&origin, "expected UTF-8"))?;
    let mut tokens: Vec<Option<Vec<u8>>> = vec![None];
    // A token may hold any character, but no end of a line.
    for (i, line) in text.split('\n').enumerate() {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let Some((id, token)) = read_line(line) else {
            let line: String = line.chars().take(80).collect();
            let reason =
                format!("line {}: expected an id, a token and its bytes, got `{line}`", i + 1);
            return Err(TextError::malformed(&origin, reason));
        };
        if id == 0 || id >= limits::MODEL_VOCAB {
            let reason =
                format!("line {}: the id {id}, expected 1 to {}", i + 1, limits::MODEL_VOCAB - 1);
            return Err(TextError::malformed(&origin, reason));
        }
        if id >= tokens.len() {
            tokens.resize(id + 1, None);
        }
        if tokens[id].replace(token).is_some() {
            let reason = format!("line {}: the id {id} is there twice", i + 1);
            return Err(TextError::malformed(&origin, reason));
        }
    }
    let kind = |token: &Option<Vec<u8>>| match token {
        Some(_) => TokenKind::Normal,
        None => TokenKind::Unused,
    };
    let mut kinds: Vec<TokenKind> = tokens.iter().map(kind).collect();
    let mut tokens: Vec<Vec<u8>> =
        tokens.into_iter().map(|token| escaped(&token.unwrap_or_default())).collect();
    (tokens[0], kinds[0]) = (END_OF_TEXT.as_bytes().to_vec(), TokenKind::Control);
    let (bos, eos) = (Some(0), Some(0));
    Ok(GgufVocab {
        origin,
        model: "rwkv".to_owned(),
        tokens,
        kinds,
        bos,
        eos,
        ..Default::default()
    })
}

/// Id and bytes of a line.
fn read_line(line: &str) -> Option<(usize, Vec<u8>)> {
    let (id, rest) = line.split_once(' ')?;
    let (literal, n_bytes) = rest.rsplit_once(' ')?;
    let token = read_literal(literal.trim())?;
    let is_whole = n_bytes.parse() == Ok(token.len());
    id.parse().ok().filter(|_| is_whole && token.len() <= MAX_TOKEN_BYTES).map(|id| (id, token))
}

/// The bytes of a literal of Python, `'text'` or `b'bytes'` in either kind of quotes.
fn read_literal(literal: &str) -> Option<Vec<u8>> {
    let is_bytes = literal.starts_with('b');
    let quoted = literal.strip_prefix('b').unwrap_or(literal);
    let quote = quoted.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let inner = quoted.strip_prefix(quote)?.strip_suffix(quote)?;
    let (mut bytes, mut rest) = (Vec::new(), inner.chars());
    while let Some(c) = rest.next() {
        let code = match c {
            '\\' => match rest.next()? {
                't' => '\t' as u32,
                'n' => '\n' as u32,
                'r' => '\r' as u32,
                'x' => read_hex(&mut rest, 2)?,
                'u' if !is_bytes => read_hex(&mut rest, 4)?,
                'U' if !is_bytes => read_hex(&mut rest, 8)?,
                same @ ('\\' | '\'' | '"') => same as u32,
                _ => return None,
            },
            c => c as u32,
        };
        match is_bytes {
            true => bytes.push(u8::try_from(code).ok()?),
            false => {
                let mut utf8 = [0; 4];
                bytes.extend_from_slice(char::from_u32(code)?.encode_utf8(&mut utf8).as_bytes());
            }
        }
    }
    Some(bytes)
}

fn read_hex(rest: &mut std::str::Chars<'_>, n_digits: usize) -> Option<u32> {
    let digit = |rest: &mut std::str::Chars<'_>| rest.next()?.to_digit(16);
    (0..n_digits).try_fold(0, |code, _| Some(code * 16 + digit(rest)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_read_as_python_reads_them() {
        for (literal, bytes) in [
            ("'a b'", &b"a b"[..]),
            (r"'\n\t\r\\\''", b"\n\t\r\\'"),
            (r#""it's""#, b"it's"),
            (r"'\x85'", "\u{85}".as_bytes()),
            (r"b'\xe4\xbd'", b"\xe4\xbd"),
            (r"'\u4f60\U0001f600'", "\u{4f60}\u{1f600}".as_bytes()),
            ("'日'", "日".as_bytes()),
        ] {
            assert_eq!(read_literal(literal).as_deref(), Some(bytes), "{literal}");
        }
        for wrong in [
            "a",
            "'a",
            r"'\q'",
            r"'\x4'",
            r"b'\u4f60'",
            r"b'\u0041'",
            r"b'\U00000041'",
            "b'日'",
            "",
            "'",
        ] {
            assert_eq!(read_literal(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn every_byte_survives_the_spelling_of_gguf() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unescaped(&escaped(&all)), all);
        assert!(escaped(&all).is_ascii());
        // Writers escape quotes, too, and a lone escape stands for itself.
        assert_eq!(unescaped(br"it\'s \xZ\"), br"it's xZ\");
    }
}
