//! Reads the notation.
//!
//! ```text
//!   rule         name ::= alternatives          to the end of the line, or on, inside of ( )
//!   alternatives sequence | sequence | ..       a line may end after |
//!   term         "text"  [a-z]  [^a-z]  .  name  ( alternatives )  <token>  <[17]>  !<token>
//!   repeated     term*  term+  term?  term{3}  term{3,}  term{3,5}  term{,5}
//!   comment      # to the end of the line
//! ```

use crate::book::escaped_char;

/// Depth of groups in groups.
const MAX_NESTING: usize = 64;
/// The largest count of a repetition.
const MAX_REPEATS: usize = 100_000;
/// Rules of a grammar.
const MAX_RULES: usize = 10_000;

/// One piece of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Term {
    Text(String),
    /// A class of characters as a regular expression.
    Class(String),
    /// A rule, by name and place.
    Name(String, Place),
    Group(Alternatives),
    Repeat(Box<Term>, usize, Option<usize>),
    Token {
        name: String,
        negated: bool,
        place: Place,
    },
}

pub(super) type Alternatives = Vec<Vec<Term>>;

/// Line and column, from one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Place(pub usize, pub usize);

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rule {
    pub name: String,
    pub place: Place,
    pub body: Alternatives,
}

/// A fault, and where it is.
pub(super) type Parsed<T> = Result<T, (Place, String)>;

pub(super) fn parse(source: &str) -> Parsed<Vec<Rule>> {
    let mut reader = Reader { source, at: 0 };
    let mut rules: Vec<Rule> = Vec::new();
    reader.space(true);
    while !reader.rest().is_empty() {
        if rules.len() >= MAX_RULES {
            return Err(reader.error(format!("more than {MAX_RULES} rules")));
        }
        let place = reader.place();
        let rule = reader.rule()?;
        if rules.iter().any(|known| known.name == rule.name) {
            return Err((place, format!("the rule {:?} is defined twice", rule.name)));
        }
        rules.push(rule);
        reader.space(true);
    }
    Ok(rules)
}

struct Reader<'s> {
    source: &'s str,
    at: usize,
}

impl<'s> Reader<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn eat(&mut self, text: &str) -> bool {
        let is_there = self.rest().starts_with(text);
        self.at += if is_there { text.len() } else { 0 };
        is_there
    }

    fn place(&self) -> Place {
        let before = &self.source[..self.at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
        Place(line, column)
    }

    fn error(&self, why: impl Into<String>) -> (Place, String) {
        (self.place(), why.into())
    }

    /// Skips spaces and comments, and ends of lines where a rule may go on.
    fn space(&mut self, newlines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if newlines => self.at += 1,
                '#' => {
                    let rest = self.rest();
                    self.at += rest.find(['\r', '\n']).unwrap_or(rest.len());
                }
                _ => break,
            }
        }
    }

    fn name(&mut self) -> Parsed<String> {
        let rest = self.rest();
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let n_bytes = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        if n_bytes == 0 {
            return Err(self.error("expected the name of a rule"));
        }
        self.at += n_bytes;
        Ok(rest[..n_bytes].to_owned())
    }

    fn rule(&mut self) -> Parsed<Rule> {
        let place = self.place();
        let name = self.name()?;
        self.space(false);
        if !self.eat("::=") {
            return Err(self.error(format!("expected `::=` after {name:?}")));
        }
        self.space(true);
        let body = self.alternatives(0)?;
        match self.peek() {
            None | Some('\r' | '\n') => Ok(Rule { name, place, body }),
            Some(c) => Err(self.error(format!("expected the end of the rule, found {c:?}"))),
        }
    }

    fn alternatives(&mut self, depth: usize) -> Parsed<Alternatives> {
        if depth > MAX_NESTING {
            return Err(self.error(format!("groups are nested deeper than {MAX_NESTING}")));
        }
        let mut all = vec![self.sequence(depth)?];
        while self.eat("|") {
            self.space(true);
            all.push(self.sequence(depth)?);
        }
        Ok(all)
    }

    fn sequence(&mut self, depth: usize) -> Parsed<Vec<Term>> {
        let mut terms = Vec::new();
        while let Some(c) = self.peek() {
            let place = self.place();
            let term = match c {
                '"' => Term::Text(self.text()?),
                '[' => Term::Class(self.class()?),
                '.' => {
                    self.at += 1;
                    Term::Class("(?s:.)".to_owned())
                }
                '(' => {
                    self.at += 1;
                    self.space(true);
                    let group = self.alternatives(depth + 1)?;
                    if !self.eat(")") {
                        return Err(self.error("expected `)`"));
                    }
                    Term::Group(group)
                }
                '<' | '!' => self.token()?,
                c if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') => {
                    // The next rule may begin on a line inside of a group.
                    Term::Name(self.name()?, place)
                }
                _ => break,
            };
            terms.push(self.repeated(term)?);
            self.space(depth > 0);
        }
        Ok(terms)
    }

    /// The repetitions behind a term.
    fn repeated(&mut self, mut term: Term) -> Parsed<Term> {
        loop {
            self.space(false);
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    let (least, most) = self.counts()?;
                    term = Term::Repeat(Box::new(term), least, most);
                    continue;
                }
                _ => return Ok(term),
            };
            self.at += 1;
            term = Term::Repeat(Box::new(term), least, most);
        }
    }

    fn counts(&mut self) -> Parsed<(usize, Option<usize>)> {
        let start = self.error("expected `{m}`, `{m,}` or `{m,n}`");
        let Some((inner, _)) = self.rest()[1..].split_once('}') else { return Err(start) };
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| *n <= MAX_REPEATS);
        let counts = match inner.split_once(',') {
            None => number(inner).map(|n| (n, Some(n))),
            Some((least, most)) => {
                let least = if least.trim().is_empty() { Some(0) } else { number(least) };
                let most = if most.trim().is_empty() { Some(None) } else { number(most).map(Some) };
                least.zip(most)
            }
        };
        match counts {
            Some((least, most)) if most.is_none_or(|most| least <= most) => {
                self.at += inner.len() + 2;
                Ok((least, most))
            }
            Some(_) => Err((start.0, format!("`{{{inner}}}` has its bounds reversed"))),
            None => Err(start),
        }
    }

    fn text(&mut self) -> Parsed<String> {
        let start = self.place();
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err((start, "a text has no closing quote".to_owned())),
                Some('"') => {
                    self.at += 1;
                    return Ok(text);
                }
                Some(_) => text.push(self.character()?),
            }
        }
    }

    fn class(&mut self) -> Parsed<String> {
        let start = self.place();
        self.at += 1;
        let mut class = if self.eat("^") { "[^".to_owned() } else { "[".to_owned() };
        let empty = class.len();
        loop {
            match self.peek() {
                None | Some('\n') => {
                    return Err((start, "a class has no closing bracket".to_owned()));
                }
                Some(']') => break,
                Some(_) => {}
            }
            let low = self.character()?;
            class.push_str(&escaped_char(low));
            let rest = self.rest();
            if rest.starts_with('-') && !rest.starts_with("-]") {
                let place = self.place();
                self.at += 1;
                let high = self.character()?;
                if high < low {
                    return Err((place, format!("the range {low}-{high} is reversed")));
                }
                class.push('-');
                class.push_str(&escaped_char(high));
            }
        }
        self.at += 1;
        if class.len() == empty {
            let all = if class == "[^" { "(?s:.)" } else { "[^\\x{0}-\\x{10FFFF}]" };
            return Ok(all.to_owned());
        }
        class.push(']');
        Ok(class)
    }

    /// A character of a text or a class, escaped or not.
    fn character(&mut self) -> Parsed<char> {
        let place = self.place();
        let c = self.next().ok_or_else(|| (place, "expected a character".to_owned()))?;
        if c != '\\' {
            return Ok(c);
        }
        let n_digits = match self.next() {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some('t') => return Ok('\t'),
            Some('r') => return Ok('\r'),
            Some('n') => return Ok('\n'),
            Some(c @ ('"' | '\\' | '[' | ']')) => return Ok(c),
            other => {
                let other = other.map_or(String::new(), |c| c.to_string());
                return Err((place, format!("`\\{other}` is no escape")));
            }
        };
        let rest = self.rest();
        let digits: String = rest.chars().take(n_digits).collect();
        let is_hex = digits.len() == n_digits && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let code = if is_hex { u32::from_str_radix(&digits, 16).ok() } else { None };
        let c = code.and_then(char::from_u32);
        let c = c.ok_or_else(|| (place, format!("`{digits}` is no code of a character")))?;
        self.at += n_digits;
        Ok(c)
    }

    fn token(&mut self) -> Parsed<Term> {
        let place = self.place();
        let negated = self.eat("!");
        let rest = self.rest();
        let end = rest.find('>').filter(|_| rest.starts_with('<'));
        let Some(end) = end else { return Err((place, "expected `<token>`".to_owned())) };
        self.at += end + 1;
        Ok(Term::Token { name: rest[..=end].to_owned(), negated, place })
    }
}
