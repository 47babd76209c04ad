//! SentencePiece's table of character replacements (`precompiled_charsmap`).
//!
//! ```text
//!   u32 n_bytes | n_bytes of u32 units, a double array over bytes | replacements, each ending in 0
//!
//!   unit:   31 | 30 .. 10 | 9 | 8 | 7 .. 0
//!           is value | offset | offset counts in 256s | has a value | label
//!   child of node i by byte c:  i ^ offset(i) ^ c, if the label there is c
//!   value of node i:            the unit at i ^ offset(i), a place in the replacements
//! ```
//! All numbers are little-endian. Kanda, Morita, Fuketa, "Compressed double-array tries", KAIS
//! 2017. The walk of every text stays inside the array because [`CharsMap::parse`] has walked every
//! path there is; readers that trust the table (the `tokenizers` crate does) are safe after it,
//! too.

/// A table that has been walked through once.
#[derive(Clone, Debug)]
pub(crate) struct CharsMap {
    units: Vec<u32>,
    replacements: String,
}

impl CharsMap {
    /// Reads and checks the table.
    ///
    /// # Errors
    ///
    /// Names the fault: sizes, places outside the array, text that is not UTF-8.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let (size, rest) = bytes.split_first_chunk::<4>().ok_or("has fewer than 4 bytes")?;
        let n_bytes = u32::from_le_bytes(*size) as usize;
        if n_bytes == 0 || !n_bytes.is_multiple_of(4) || n_bytes > rest.len() {
            return Err(format!("announces {n_bytes} bytes of units and has {}", rest.len()));
        }
        let (units, text) = rest.split_at(n_bytes);
        let units = units.as_chunks::<4>().0.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        let replacements = String::from_utf8(text.to_vec())
            .map_err(|_| "has replacements that are not UTF-8".to_owned())?;
        let this = Self { units, replacements };
        this.check()?;
        Ok(this)
    }

    /// The text with every match, the longest at each place, replaced.
    pub(crate) fn apply(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut at = 0;
        while at < text.len() {
            match self.longest(&text.as_bytes()[at..]) {
                // A table may split a character; such a match is ignored.
                Some((n_bytes, replacement)) if text.is_char_boundary(at + n_bytes) => {
                    out.push_str(replacement);
                    at += n_bytes;
                }
                _ => {
                    let c = text[at..].chars().next().unwrap_or_default();
                    out.push(c);
                    at += c.len_utf8();
                }
            }
        }
        out
    }

    fn longest(&self, bytes: &[u8]) -> Option<(usize, &str)> {
        let mut found = None;
        let mut place = self.base(0)?;
        for (idx, byte) in bytes.iter().enumerate().take_while(|(_, byte)| **byte != 0) {
            let child = place ^ usize::from(*byte);
            if label(*self.units.get(child)?) != u32::from(*byte) {
                break;
            }
            place = self.base(child)?;
            if has_value(self.units[child]) {
                found = Some((idx + 1, self.replacement(place)?));
            }
        }
        found
    }

    fn replacement(&self, place: usize) -> Option<&str> {
        let start = value(*self.units.get(place)?);
        let text = self.replacements.get(start..)?;
        Some(&text[..text.find('\0')?])
    }

    /// Base of the places of a node's children and of its value.
    fn base(&self, node: usize) -> Option<usize> {
        Some(node ^ offset(*self.units.get(node)?))
    }

    /// Walks every path from the root, each node once.
    fn check(&self) -> Result<(), String> {
        let mut seen = vec![false; self.units.len()];
        let mut open = vec![0usize];
        while let Some(node) = open.pop() {
            let unit = self.units[node];
            let base = node ^ offset(unit);
            // All 256 places below a node, because a text may contain any byte.
            if base | 255 >= self.units.len() {
                return Err(format!("has a node {node} whose children lie outside"));
            }
            // The root has no value, because no text is empty.
            if node != 0 && has_value(unit) && self.replacement(base).is_none() {
                return Err(format!("has a node {node} whose replacement does not exist"));
            }
            for byte in 1..256usize {
                let child = base ^ byte;
                if label(self.units[child]) == byte as u32
                    && !std::mem::replace(&mut seen[child], true)
                {
                    open.push(child);
                }
            }
        }
        Ok(())
    }
}

fn label(unit: u32) -> u32 {
    unit & 0x8000_00ff
}

fn has_value(unit: u32) -> bool {
    unit >> 8 & 1 == 1
}

fn value(unit: u32) -> usize {
    (unit & 0x7fff_ffff) as usize
}

fn offset(unit: u32) -> usize {
    ((unit >> 10) as usize) << ((unit & 1 << 9) >> 6)
}

/// Bytes of a text in base 64 with padding, as `tokenizer.json` stores the table.
pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in digits.as_bytes().chunks(4) {
        let mut bits = 0u32;
        for digit in group {
            let n = match digit {
                b'A'..=b'Z' => digit - b'A',
                b'a'..=b'z' => digit - b'a' + 26,
                b'0'..=b'9' => digit - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(n);
        }
        let whole = (bits << (6 * (4 - group.len()))).to_be_bytes();
        bytes.extend_from_slice(&whole[1..group.len()]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_lead_outside_are_refused() {
        assert!(CharsMap::parse(b"abc").is_err());
        assert!(CharsMap::parse(&[0; 4]).is_err());
        // A unit and a half behind 256 of them.
        let size = 1024u32 + 6;
        let odd = size.to_le_bytes().into_iter().chain(std::iter::repeat_n(0, size as usize));
        let error = CharsMap::parse(&odd.collect::<Vec<u8>>()).expect_err("no whole units");
        assert!(error.contains("1030 bytes"), "{error}");
        assert!(CharsMap::parse(&[8, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(CharsMap::parse(&[4, 0, 0, 0, 0, 0, 0, 0]).is_err());
        let mut units = [0u32; 256];
        units[usize::from(b'a')] = 77 << 10 | u32::from(b'a');
        let bytes = |units: &[u32], text: &[u8]| {
            let mut bytes = (units.len() as u32 * 4).to_le_bytes().to_vec();
            bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
            bytes.extend_from_slice(text);
            bytes
        };
        assert!(CharsMap::parse(&bytes(&units, b"")).is_ok());
        units[usize::from(b'a')] = 1 << 20 | u32::from(b'a');
        let error = CharsMap::parse(&bytes(&units, b"")).expect_err("children outside");
        assert!(error.contains("children"), "{error}");
        // A value of 9 in a text of 4 bytes, then one whose text never ends.
        let a = u32::from(b'a');
        units[usize::from(b'a')] = (a ^ 1) << 10 | 1 << 8 | a;
        units[1] = 1 << 31 | 9;
        let error = CharsMap::parse(&bytes(&units, b"bcd\0")).expect_err("no such text");
        assert!(error.contains("replacement"), "{error}");
        units[1] = 1 << 31 | 1;
        assert!(CharsMap::parse(&bytes(&units, b"bcd")).is_err());
        assert!(CharsMap::parse(&bytes(&units, b"b\xffd\0")).is_err());
        let map = CharsMap::parse(&bytes(&units, b"bcd\0")).expect("a table");
        assert_eq!(map.apply("xaay\0é"), "xcdcdy\0é");
    }

    /// A table of these units, all others zero.
    fn table(n_units: usize, units: &[(usize, u32)], text: &str) -> Result<CharsMap, String> {
        let mut all = vec![0u32; n_units];
        for (place, unit) in units {
            all[*place] = *unit;
        }
        let size = (n_units as u32 * 4).to_le_bytes();
        let units = all.iter().flat_map(|unit| unit.to_le_bytes());
        CharsMap::parse(&size.into_iter().chain(units).chain(text.bytes()).collect::<Vec<u8>>())
    }

    #[test]
    fn a_place_may_have_any_bits_and_a_path_any_length() {
        // `a` has children at 0x103 ^ byte; its child `b` has its value in place 0, which is 9.
        let (a, b) = (u32::from(b'a'), u32::from(b'b'));
        let units = [
            (0, 9),
            (0x61, (0x61 ^ 0x103) << 10 | a),
            (0x103 ^ 0x62, (0x103 ^ 0x62) << 10 | 1 << 8 | b),
        ];
        let map = table(512, &units, "........\0cd\0").expect("a table");
        assert_eq!(map.apply("abxaab b"), "cdxacd b");
        let error = table(512, &units, "........\0cd").expect_err("no end of the value");
        assert!(error.contains("replacement"), "{error}");
        let error = table(384, &[(0, 0x1ff << 10)], "").expect_err("children outside");
        assert!(error.contains("children"), "{error}");
        // A place that is no child of a node is never read.
        table(256, &[(200, 1 << 8 | 5)], "").expect("nothing leads there");
        // An offset that counts in 256s.
        let far = [(0, 1 << 10 | 1 << 9), (256 ^ 0x61, (256 ^ 0x61) << 10 | 1 << 8 | a)];
        assert_eq!(table(512, &far, &("-".repeat(1536) + "z\0")).expect("a table").apply("a"), "z");
    }

    #[test]
    fn a_match_that_ends_inside_a_character_is_ignored() {
        // The first byte of `é` is replaced by the text in place 0.
        let table = table(256, &[(0xc3, 0xc3 << 10 | 1 << 8 | 0xc3)], "x\0").expect("a table");
        assert_eq!(table.apply("\u{e9}a\u{e9}"), "\u{e9}a\u{e9}");
    }

    #[test]
    fn base_64_reads_every_length() {
        for (text, bytes) in
            [("", &b""[..]), ("/w==", b"\xff"), ("AQI=", b"\x01\x02"), ("AQID", b"\x01\x02\x03")]
        {
            assert_eq!(from_base64(text).as_deref(), Some(bytes));
        }
        let all = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let bits = from_base64(all)
            .expect("every digit")
            .into_iter()
            .fold(String::new(), |s, b| s + &format!("{b:08b}"));
        assert_eq!(bits, (0..64).map(|n| format!("{n:06b}")).collect::<String>());
        for text in ["A", "A===", "AQ=A", "A\n==", "====", "-w=="] {
            assert_eq!(from_base64(text), None, "{text}");
        }
    }
}
