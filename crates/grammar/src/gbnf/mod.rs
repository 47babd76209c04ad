//! llama.cpp's GBNF notation.
//!
//! Rules that need no recursion and no tokens become terminals, and so do neighbours of that kind
//! inside of other rules: a grammar without recursion is one regular expression, which is exact.
//! Where recursion remains, a terminal takes the longest text that it can, so `[a-z]+ "x" rest` only
//! ends its letters before a character that is no letter.

mod parse;

use std::collections::{HashMap, HashSet};

use parse::{Alternatives, Place, Rule, Term};

use crate::book::{Book, quoted};
use crate::error::GrammarError;
use crate::vocabulary::Vocabulary;

/// Writes the rules of a grammar into `book`, and returns the expression of `root`.
///
/// # Errors
///
/// Names line and column of a fault; says so where no text ever ends.
pub(crate) fn compile(
    source: &str,
    vocabulary: &Vocabulary,
    book: &mut Book,
) -> Result<String, GrammarError> {
    let rules = parse::parse(source).map_err(|(place, why)| at(place, why))?;
    let by_name: HashMap<String, usize> =
        rules.iter().enumerate().map(|(idx, rule)| (rule.name.clone(), idx)).collect();
    let Some(root) = by_name.get("root").copied() else {
        return Err(GrammarError::new("", "the grammar has no rule `root`"));
    };
    for rule in &rules {
        for (name, place) in names(&rule.body) {
            if !by_name.contains_key(name) {
                return Err(at(place, format!("no rule is called {name:?}")));
            }
        }
    }
    let ending = fixpoint(&rules, |rule, ending| {
        rule.body.iter().any(|sequence| ends(sequence, &by_name, ending))
    });
    if !ending.contains(&root) {
        return Err(at(rules[root].place, "no text of `root` ever ends"));
    }
    let rules: Vec<Rule> = rules
        .into_iter()
        .map(|rule| Rule { body: pruned(rule.body, &by_name, &ending), ..rule })
        .collect();
    let mut compiler = Compiler {
        by_name: &by_name,
        regular: HashMap::new(),
        names: HashMap::new(),
        vocabulary,
        book,
    };
    compiler.terminals(&rules);
    let mut queue = vec![root];
    let mut written: HashSet<usize> = HashSet::new();
    let start = compiler.name(root);
    while let Some(idx) = queue.pop() {
        if compiler.regular.contains_key(&idx) || !written.insert(idx) {
            continue;
        }
        let body = compiler.alternatives(&rules[idx].body)?;
        let name = compiler.name(idx);
        compiler.book.define(&name, "", &body);
        queue.extend(names(&rules[idx].body).iter().map(|(name, _)| by_name[*name]));
    }
    Ok(start)
}

fn at(Place(line, column): Place, why: impl Into<String>) -> GrammarError {
    GrammarError::new("", format!("line {line}, column {column}: {}", why.into()))
}

/// The rules that fulfil a condition which may depend on other rules that do; the least solution.
fn fixpoint(rules: &[Rule], holds: impl Fn(&Rule, &HashSet<usize>) -> bool) -> HashSet<usize> {
    let mut found = HashSet::new();
    loop {
        let before = found.len();
        for (idx, rule) in rules.iter().enumerate() {
            if !found.contains(&idx) && holds(rule, &found) {
                found.insert(idx);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// The rules that a body refers to.
fn names(body: &Alternatives) -> Vec<(&str, Place)> {
    let mut stack: Vec<&Term> = body.iter().flatten().collect();
    let mut found = Vec::new();
    while let Some(term) = stack.pop() {
        match term {
            Term::Name(name, place) => found.push((name.as_str(), *place)),
            Term::Group(group) => stack.extend(group.iter().flatten()),
            Term::Repeat(inner, ..) => stack.push(inner),
            Term::Text(_) | Term::Class(_) | Term::Token { .. } => {}
        }
    }
    found
}

/// Whether some text of a sequence ends, given the rules of which some text does.
fn ends(sequence: &[Term], by_name: &HashMap<String, usize>, ending: &HashSet<usize>) -> bool {
    sequence.iter().all(|term| match term {
        Term::Name(name, _) => ending.contains(&by_name[name]),
        Term::Group(group) => group.iter().any(|sequence| ends(sequence, by_name, ending)),
        Term::Repeat(_, 0, _) => true,
        Term::Repeat(inner, ..) => ends(std::slice::from_ref(&**inner), by_name, ending),
        Term::Text(_) | Term::Class(_) | Term::Token { .. } => true,
    })
}

/// A body without the alternatives of which no text ends.
fn pruned(
    body: Alternatives,
    by_name: &HashMap<String, usize>,
    ending: &HashSet<usize>,
) -> Alternatives {
    let kept = body.into_iter().filter(|sequence| ends(sequence, by_name, ending));
    kept.map(|sequence| {
        let terms = sequence.into_iter().filter_map(|term| match term {
            Term::Group(group) => Some(Term::Group(pruned(group, by_name, ending))),
            Term::Repeat(inner, least, most) => {
                let is_dead = !ends(std::slice::from_ref(&*inner), by_name, ending);
                if is_dead {
                    return None;
                }
                let mut inner = pruned(vec![vec![*inner]], by_name, ending);
                let inner = inner.pop().and_then(|mut terms| terms.pop())?;
                Some(Term::Repeat(Box::new(inner), least, most))
            }
            other => Some(other),
        });
        terms.collect()
    })
    .collect()
}

struct Compiler<'a> {
    by_name: &'a HashMap<String, usize>,
    /// Terminals of regular rules.
    regular: HashMap<usize, String>,
    names: HashMap<usize, String>,
    vocabulary: &'a Vocabulary,
    book: &'a mut Book,
}

impl Compiler<'_> {
    /// Makes terminals of all rules that need no recursion, the ones that they use first.
    fn terminals(&mut self, rules: &[Rule]) {
        loop {
            let mut changed = false;
            for (idx, rule) in rules.iter().enumerate() {
                if !self.regular.contains_key(&idx)
                    && rule.body.iter().flatten().all(|term| self.is_regular(term))
                {
                    let expression = self.terminal_of(&rule.body);
                    let name = self.book.terminal(&expression);
                    self.regular.insert(idx, name);
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }

    fn is_regular(&self, term: &Term) -> bool {
        match term {
            Term::Text(_) | Term::Class(_) => true,
            Term::Name(name, _) => self.regular.contains_key(&self.by_name[name]),
            Term::Group(group) => group.iter().flatten().all(|term| self.is_regular(term)),
            Term::Repeat(inner, ..) => self.is_regular(inner),
            Term::Token { .. } => false,
        }
    }

    /// Alternatives as an expression of terminals.
    fn terminal_of(&self, body: &Alternatives) -> String {
        let sequences: Vec<String> =
            body.iter().map(|sequence| self.terminal_sequence(sequence)).collect();
        if sequences.is_empty() { crate::book::one_of(&[]) } else { sequences.join(" | ") }
    }

    fn terminal_sequence(&self, sequence: &[Term]) -> String {
        let terms: Vec<String> = sequence.iter().map(|term| self.terminal_term(term)).collect();
        if terms.is_empty() { quoted("") } else { terms.join(" ") }
    }

    fn terminal_term(&self, term: &Term) -> String {
        match term {
            Term::Text(text) => quoted(text),
            Term::Class(class) => format!("/{class}/"),
            Term::Name(name, _) => self.regular[&self.by_name[name]].clone(),
            Term::Group(group) => format!("({})", self.terminal_of(group)),
            Term::Repeat(inner, least, most) => {
                format!("({}){}", self.terminal_term(inner), counts(*least, *most))
            }
            Term::Token { .. } => quoted(""),
        }
    }

    /// The name of a rule.
    fn name(&mut self, idx: usize) -> String {
        if let Some(terminal) = self.regular.get(&idx) {
            return terminal.clone();
        }
        let book = &mut self.book;
        self.names.entry(idx).or_insert_with(|| book.name()).clone()
    }

    /// Alternatives as an expression of rules.
    fn alternatives(&mut self, body: &Alternatives) -> Result<String, GrammarError> {
        let sequences: Result<Vec<String>, _> =
            body.iter().map(|sequence| self.sequence(sequence)).collect();
        Ok(sequences?.join(" | "))
    }

    fn sequence(&mut self, sequence: &[Term]) -> Result<String, GrammarError> {
        let mut parts = Vec::new();
        let mut rest = sequence;
        while !rest.is_empty() {
            let n_regular = rest.iter().take_while(|term| self.is_regular(term)).count();
            if n_regular > 0 {
                let expression = self.terminal_sequence(&rest[..n_regular]);
                parts.push(self.book.terminal(&expression));
                rest = &rest[n_regular..];
            } else {
                parts.push(self.term(&rest[0])?);
                rest = &rest[1..];
            }
        }
        Ok(if parts.is_empty() { quoted("") } else { parts.join(" ") })
    }

    fn term(&mut self, term: &Term) -> Result<String, GrammarError> {
        Ok(match term {
            Term::Name(name, _) => {
                let idx = self.by_name[name];
                self.name(idx)
            }
            Term::Group(group) => format!("({})", self.alternatives(group)?),
            Term::Repeat(inner, least, most) => {
                let inner = self.sequence(std::slice::from_ref(&**inner))?;
                format!("({inner}){}", counts(*least, *most))
            }
            Term::Token { name, negated, place } => {
                let id = self
                    .token(name)
                    .ok_or_else(|| at(*place, format!("the vocabulary has no token {name:?}")))?;
                format!("<[{}{id}]>", if *negated { "^" } else { "" })
            }
            Term::Text(_) | Term::Class(_) => {
                let expression = self.terminal_term(term);
                self.book.terminal(&expression)
            }
        })
    }

    /// The token of `<name>` or `<[id]>`.
    fn token(&self, name: &str) -> Option<u32> {
        if let Some(id) = name.strip_prefix("<[").and_then(|rest| rest.strip_suffix("]>")) {
            let id = id.parse::<u32>().ok()?;
            return ((id as usize) < self.vocabulary.n_tokens()).then_some(id);
        }
        if let Some(token) = self.vocabulary.control(name) {
            return Some(token.0);
        }
        match self.vocabulary.tokens(name).as_slice() {
            [token] => Some(token.0),
            _ => None,
        }
    }
}

fn counts(least: usize, most: Option<usize>) -> String {
    match most {
        None => format!("{{{least},}}"),
        Some(most) => format!("{{{least},{most}}}"),
    }
}
