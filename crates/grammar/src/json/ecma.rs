//! Regular expressions of schemas (ECMA 262) in the notation of `regex-syntax`.
//!
//! The notations look alike and differ in meaning: `[a&&b]` is an intersection there and three
//! characters here, `\d` has Arabic digits there. So the expression is read character by character
//! and written anew.
//!
//! Validators disagree about some classes: Python's `\w` has letters of all scripts, that of ECMA
//! has ASCII's. A class means what all of them agree on, so that an answer that follows it is valid
//! for each: `\w` is ASCII, and `\W` is none of Unicode's letters.

use std::iter::Peekable;
use std::str::Chars;

/// Characters that every validator takes for white space.
const SPACE: &str =
    r"\t\n\x0B\x0C\r\x20\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}";
/// Characters that some validator takes for white space.
const SPACE_OF_SOME: &str = r"\t\n\x0B\x0C\r\x1C-\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}";

/// Writes an expression in the notation of `regex-syntax`, with the same matches.
///
/// # Errors
///
/// Names the construct that has no counterpart, such as a look-ahead.
pub(super) fn translate(source: &str) -> Result<String, String> {
    let mut reader = Reader { chars: source.chars().peekable(), out: String::new(), depth: 0 };
    reader.expression()?;
    Ok(reader.out)
}

struct Reader<'s> {
    chars: Peekable<Chars<'s>>,
    out: String,
    depth: usize,
}

impl Reader<'_> {
    fn expression(&mut self) -> Result<(), String> {
        // Whether a quantifier may follow.
        let mut after_atom = false;
        while let Some(c) = self.chars.next() {
            match c {
                '\\' => self.escape()?,
                '[' => self.class()?,
                '(' => {
                    self.group()?;
                    after_atom = false;
                    continue;
                }
                ')' => {
                    if self.depth == 0 {
                        return Err("it has a `)` without a `(`".to_owned());
                    }
                    self.depth -= 1;
                    self.out.push(')');
                }
                '^' | '$' | '|' => {
                    self.out.push(c);
                    after_atom = false;
                    continue;
                }
                '.' => self.out.push_str(r"[^\n\r\x{2028}\x{2029}]"),
                '*' | '+' | '?' => {
                    self.quantifier(&c.to_string(), after_atom)?;
                    after_atom = false;
                    continue;
                }
                '{' => match self.counts() {
                    Some(counts) => {
                        self.quantifier(&counts, after_atom)?;
                        after_atom = false;
                        continue;
                    }
                    None => push_char(&mut self.out, '{'),
                },
                other => push_char(&mut self.out, other),
            }
            after_atom = true;
        }
        if self.depth == 0 { Ok(()) } else { Err("it has a `(` without a `)`".to_owned()) }
    }

    fn quantifier(&mut self, text: &str, after_atom: bool) -> Result<(), String> {
        if !after_atom {
            return Err(format!("`{text}` repeats nothing"));
        }
        self.out.push_str(text);
        // A lazy quantifier matches the same texts.
        self.chars.next_if_eq(&'?');
        match self.chars.peek() {
            Some('+') => Err("possessive quantifiers are not supported".to_owned()),
            _ => Ok(()),
        }
    }

    /// The rest of `{2}`, `{2,}` or `{2,5}`; `None`, and nothing read, for anything else.
    fn counts(&mut self) -> Option<String> {
        let mut ahead = self.chars.clone();
        let mut text = "{".to_owned();
        loop {
            match ahead.next()? {
                c @ ('0'..='9' | ',') => text.push(c),
                '}' => break,
                _ => return None,
            }
        }
        let inner = &text[1..];
        let (least, most) = inner.split_once(',').unwrap_or((inner, inner));
        if least.is_empty() || most.contains(',') {
            return None;
        }
        text.push('}');
        self.chars = ahead;
        Some(text)
    }

    fn group(&mut self) -> Result<(), String> {
        self.depth += 1;
        self.out.push_str("(?:");
        if self.chars.next_if_eq(&'?').is_none() {
            return Ok(());
        }
        match self.chars.next() {
            Some(':') => Ok(()),
            Some('=' | '!') => Err("look-ahead is not supported".to_owned()),
            Some('<') => match self.chars.peek() {
                Some('=' | '!') => Err("look-behind is not supported".to_owned()),
                _ => self.name(),
            },
            Some('P') if self.chars.next_if_eq(&'<').is_some() => self.name(),
            _ => Err("a group with flags is not supported".to_owned()),
        }
    }

    fn name(&mut self) -> Result<(), String> {
        match self.chars.find(|c| *c == '>') {
            Some(_) => Ok(()),
            None => Err("the name of a group has no end".to_owned()),
        }
    }

    fn escape(&mut self) -> Result<(), String> {
        let c = self.chars.next().ok_or("it ends with a backslash")?;
        match c {
            'b' | 'B' => Err("word boundaries are not supported".to_owned()),
            '1'..='9' | 'k' => Err("back-references are not supported".to_owned()),
            _ => {
                let item = self.escaped(c, false)?;
                match item {
                    Item::Char(c) => push_char(&mut self.out, c),
                    Item::Class(text) => {
                        self.out.push('[');
                        self.out.push_str(&text);
                        self.out.push(']');
                    }
                }
                Ok(())
            }
        }
    }

    /// An escape that stands for a character or a class; `wide` where the class is negated around.
    fn escaped(&mut self, c: char, wide: bool) -> Result<Item, String> {
        let class = |text: &str| Ok(Item::Class(text.to_owned()));
        let not = |text: &str| Ok(Item::Class(format!("[^{text}]")));
        match (c, wide) {
            ('d', false) => class("0-9"),
            ('d', true) => class(r"\p{Nd}"),
            ('D', false) => not(r"\p{Nd}"),
            ('D', true) => not("0-9"),
            ('w', false) => class("0-9A-Za-z_"),
            ('w', true) => class(r"\w"),
            ('W', false) => not(r"\w"),
            ('W', true) => not("0-9A-Za-z_"),
            ('s', false) => class(SPACE),
            ('s', true) => class(SPACE_OF_SOME),
            ('S', false) => not(SPACE_OF_SOME),
            ('S', true) => not(SPACE),
            ('t', _) => Ok(Item::Char('\t')),
            ('n', _) => Ok(Item::Char('\n')),
            ('r', _) => Ok(Item::Char('\r')),
            ('f', _) => Ok(Item::Char('\x0C')),
            ('v', _) => Ok(Item::Char('\x0B')),
            ('0', _) => Ok(Item::Char('\0')),
            ('x', _) => self.hex(2).and_then(as_char),
            ('u', _) => self.unicode(),
            ('p' | 'P', _) => self.property(c),
            (c, _) if c.is_ascii_alphanumeric() => Err(format!("`\\{c}` is not supported")),
            (c, _) => Ok(Item::Char(c)),
        }
    }

    fn hex(&mut self, n_digits: usize) -> Result<u32, String> {
        let digits: String = self.chars.by_ref().take(n_digits).collect();
        let is_hex = digits.len() == n_digits && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let code = is_hex.then(|| u32::from_str_radix(&digits, 16).ok()).flatten();
        code.ok_or_else(|| format!("`{digits}` are not {n_digits} hexadecimal digits"))
    }

    fn unicode(&mut self) -> Result<Item, String> {
        if self.chars.next_if_eq(&'{').is_some() {
            let digits: String = self.chars.by_ref().take_while(|c| *c != '}').take(8).collect();
            let code = u32::from_str_radix(&digits, 16).map_err(|_| format!("`\\u{{{digits}}}`"));
            return as_char(code?);
        }
        let high = self.hex(4)?;
        if !(0xD800..0xDC00).contains(&high) {
            return as_char(high);
        }
        let is_pair =
            self.chars.next_if_eq(&'\\').is_some() && self.chars.next_if_eq(&'u').is_some();
        let low = if is_pair { self.hex(4)? } else { 0 };
        if !(0xDC00..0xE000).contains(&low) {
            return Err("half of a surrogate pair is no character".to_owned());
        }
        as_char(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
    }

    fn property(&mut self, c: char) -> Result<Item, String> {
        if self.chars.next_if_eq(&'{').is_none() {
            return Err(format!("`\\{c}` without a name in braces is not supported"));
        }
        let name: String = self.chars.by_ref().take_while(|c| *c != '}').take(64).collect();
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '='));
        if !is_name || name.is_empty() {
            return Err(format!("`{name}` is no property of Unicode"));
        }
        Ok(Item::Class(format!("\\{c}{{{name}}}")))
    }

    /// A class in brackets, the opening one read already.
    fn class(&mut self) -> Result<(), String> {
        let negated = self.chars.next_if_eq(&'^').is_some();
        let mut items: Vec<String> = Vec::new();
        loop {
            let Some(c) = self.chars.next() else {
                return Err("a class has no closing bracket".to_owned());
            };
            if c == ']' {
                break;
            }
            let low = self.class_item(c, negated)?;
            let is_range = self.chars.peek() == Some(&'-') && {
                let mut ahead = self.chars.clone();
                ahead.next();
                !matches!(ahead.peek(), Some(']') | None)
            };
            let Item::Char(low) = low else {
                if let Item::Class(text) = low {
                    items.push(text);
                }
                continue;
            };
            if !is_range {
                items.push(one(low));
                continue;
            }
            self.chars.next();
            let c = self.chars.next().ok_or("a class has no closing bracket")?;
            match self.class_item(c, negated)? {
                Item::Char(high) if low <= high => {
                    items.push(format!("{}-{}", one(low), one(high)))
                }
                Item::Char(high) => return Err(format!("the range {low}-{high} is reversed")),
                Item::Class(text) => items.extend([one(low), one('-'), text]),
            }
        }
        let text = match (items.is_empty(), negated) {
            (true, true) => r"[\x{0}-\x{10FFFF}]".to_owned(),
            // No character at all; `regex-syntax` has no shorter word for it.
            (true, false) => r"[^\x{0}-\x{10FFFF}]".to_owned(),
            (false, _) => format!("[{}{}]", if negated { "^" } else { "" }, items.concat()),
        };
        self.out.push_str(&text);
        Ok(())
    }

    fn class_item(&mut self, c: char, negated: bool) -> Result<Item, String> {
        if c != '\\' {
            return Ok(Item::Char(c));
        }
        match self.chars.next().ok_or("it ends with a backslash")? {
            'b' => Ok(Item::Char('\x08')),
            c => self.escaped(c, negated),
        }
    }
}

enum Item {
    Char(char),
    /// The inside of a class.
    Class(String),
}

fn as_char(code: u32) -> Result<Item, String> {
    char::from_u32(code).map(Item::Char).ok_or_else(|| format!("U+{code:04X} is no character"))
}

/// A character in the notation of `regex-syntax`, inside and outside of classes.
pub(super) fn one(c: char) -> String {
    if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\x{{{:X}}}", u32::from(c)) }
}

fn push_char(out: &mut String, c: char) {
    out.push_str(&one(c));
}

#[cfg(test)]
mod tests {
    use super::*;
    use llguidance::derivre::Regex;

    fn matches(source: &str, text: &str) -> bool {
        let mut regex = Regex::new(&translate(source).expect(source)).expect(source);
        regex.is_match(text)
    }

    #[test]
    fn constructs_that_mean_something_else_there_keep_their_meaning() {
        let cases = [
            (r"[a&&b]", "&", true),
            (r"[a&&b]", "c", false),
            (r"[+--]", ",", true),
            (r"[[]", "[", true),
            (r"[\d-x]", "-", true),
            (r"\d", "٣", false),
            (r"[^\w]", "é", false),
            (r"\w", "é", false),
            (r"a{", "a{", true),
            (r"a{,3}", "a{,3}", true),
            (r"x{2,3}?", "xx", true),
            (r".", "\r", false),
            (r"\u{1F600}", "😀", true),
            (r"\uD83D\uDE00", "😀", true),
            (r"\x41\/\-\_", "A/-_", true),
            (r"(?<year>\d{4})", "2024", true),
            (r"[^]", "\n", true),
            (r"#[a-f ]", "# ", true),
        ];
        for (source, text, expected) in cases {
            assert_eq!(matches(source, text), expected, "{source} on {text:?}");
        }
    }

    #[test]
    fn constructs_without_a_counterpart_are_refused_by_name() {
        let cases = [
            ("(?=a)", "look-ahead"),
            ("(?<!a)", "look-behind"),
            (r"(a)\1", "back-reference"),
            (r"\bword\b", "word boundaries"),
            ("(?i)a", "flags"),
            (r"\Z", "\\Z"),
            ("a(", "without"),
            ("*a", "repeats nothing"),
            ("[b-a]", "reversed"),
            (r"\uD83D", "surrogate"),
        ];
        for (source, part) in cases {
            let error = translate(source).expect_err(source);
            assert!(error.contains(part), "{source}: {error}");
        }
    }
}
