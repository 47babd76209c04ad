//! The bytes of each token.

use pelton_base::TokenId;

/// The bytes of every token, in one allocation.
///
/// ```text
///   ends:   [ 2,      2,  5, .. ]        end of token i in `bytes`; it starts where i - 1 ended
///   bytes:  [ a b  |    | c d e | .. ]
///   known:  [ yes    no   yes  .. ]      an id in a gap of the vocabulary has no bytes
/// ```
#[derive(Clone, Debug, Default)]
pub(crate) struct ByteTable {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    known: Vec<bool>,
}

impl ByteTable {
    /// Appends the next id; `None` is a gap.
    pub(crate) fn push(&mut self, token: Option<&[u8]>) {
        self.bytes.extend_from_slice(token.unwrap_or_default());
        self.ends.push(self.bytes.len());
        self.known.push(token.is_some());
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn get(&self, token: TokenId) -> Option<&[u8]> {
        let idx = token.0 as usize;
        if !*self.known.get(idx)? {
            return None;
        }
        let start = if idx == 0 { 0 } else { self.ends[idx - 1] };
        Some(&self.bytes[start..self.ends[idx]])
    }
}

/// The byte that a character stands for in a byte-level vocabulary (GPT-2, Radford et al. 2019).
///
/// Printable Latin-1 stands for itself; the other 68 bytes are shifted to `U+0100` and above so
/// that no token holds a space or a control character.
pub(crate) fn byte_of_char(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => Some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The character that stands for a byte in a byte-level vocabulary.
pub(crate) fn char_of_byte(byte: u8) -> char {
    let code = match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
        0x00..=0x20 => 0x100 + u32::from(byte),
        0x7f..=0xa0 => 0x121 + u32::from(byte) - 0x7f,
        0xad => 0x143,
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The bytes of a token of a byte-level vocabulary; a token with any other character is itself.
pub(crate) fn byte_level_bytes(token: &str) -> Vec<u8> {
    token
        .chars()
        .map(byte_of_char)
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The byte of a fallback token such as `<0x0A>`.
pub(crate) fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_exactly_one_character() {
        let mut seen = [0; 256];
        for byte in ('\0'..'\u{400}').filter_map(byte_of_char) {
            seen[usize::from(byte)] += 1;
        }
        assert_eq!(seen, [1; 256]);
        for byte in 0..=255 {
            assert_eq!(byte_of_char(char_of_byte(byte)), Some(byte));
        }
        assert_eq!(byte_of_char('Ġ'), Some(b' '));
        assert_eq!(byte_of_char('Ċ'), Some(b'\n'));
        assert_eq!(byte_of_char(' '), None);
    }

    #[test]
    fn a_gap_is_not_an_empty_token() {
        let mut table = ByteTable::default();
        table.push(Some(b"ab"));
        table.push(None);
        table.push(Some(b""));
        assert_eq!(table.get(TokenId(0)), Some(&b"ab"[..]));
        assert_eq!(table.get(TokenId(1)), None);
        assert_eq!(table.get(TokenId(2)), Some(&b""[..]));
        assert_eq!(table.get(TokenId(3)), None);
    }

    #[test]
    fn only_two_hex_digits_make_a_fallback_byte() {
        assert_eq!(fallback_byte("<0x0A>"), Some(10));
        assert_eq!(fallback_byte("<0x+A>"), None);
        assert_eq!(fallback_byte("<0x0AA>"), None);
    }
}
