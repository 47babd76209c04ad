//! Solved nodes as rules and terminals.
//!
//! Strings, numbers and constants are terminals; objects, arrays and unions are rules, one per node,
//! so that recursion ends.

use std::collections::HashMap;

use serde_json::Value;

use super::decimal::Decimal;
use super::node::{Node, NodeId, Numbers, Texts};
use super::pattern::CHAR;
use super::punctuation::Punctuation;
use super::range::{self, Bounds};
use super::raw::Count;
use super::solve::Solved;
use crate::book::{Book, one_of, quoted};
use crate::grammars::Layout;

/// The largest magnitude of a multiple, where the schema has no bound.
const LARGEST_MULTIPLE: u64 = 1_000_000_000_000_000;

pub(super) struct Emitter<'a> {
    pub nodes: &'a [Node],
    pub alive: &'a [bool],
    pub book: &'a mut Book,
    pub marks: Punctuation,
    rules: HashMap<NodeId, String>,
    queue: Vec<NodeId>,
    any: Option<String>,
}

/// Writes all rules, and returns the expression of the first node.
///
/// # Errors
///
/// Names what a grammar cannot count.
pub(super) fn emit(
    nodes: &[Node],
    alive: &[bool],
    layout: Layout,
    book: &mut Book,
) -> Solved<String> {
    let marks = Punctuation::new(layout, book);
    let mut emitter =
        Emitter { nodes, alive, book, marks, rules: HashMap::new(), queue: Vec::new(), any: None };
    let root = emitter.expression(0);
    while let Some(id) = emitter.queue.pop() {
        let name = emitter.rules[&id].clone();
        let body = match &nodes[id] {
            Node::Array(array) => emitter.array(array),
            Node::Object(object) => emitter.object(object)?,
            Node::Union(options) => {
                let alive = options.iter().filter(|option| alive[**option]);
                let options: Vec<String> =
                    alive.map(|option| emitter.expression(*option)).collect();
                options.join(" | ")
            }
            _ => continue,
        };
        emitter.book.define(&name, "", &body);
    }
    Ok(root)
}

impl Emitter<'_> {
    /// An expression that matches the values of a node.
    pub(super) fn expression(&mut self, id: NodeId) -> String {
        match &self.nodes[id] {
            Node::Any => self.any(),
            // Not reached: dead nodes are left out.
            Node::Never { .. } => self.book.terminal(&one_of(&[])),
            Node::Values(values) => self.values(values),
            Node::Null => self.book.terminal(&quoted("null")),
            Node::Bool => self.book.terminal("\"true\" | \"false\""),
            Node::Number(numbers) => self.number(numbers),
            Node::Text(texts) => {
                let expression = texts_expression(self.book, texts, &[]);
                self.book.terminal(&expression)
            }
            Node::Array(_) | Node::Object(_) | Node::Union(_) => {
                if let Some(name) = self.rules.get(&id) {
                    return name.clone();
                }
                let name = self.book.name();
                self.rules.insert(id, name.clone());
                self.queue.push(id);
                name
            }
        }
    }

    /// Any value.
    fn any(&mut self) -> String {
        if let Some(name) = &self.any {
            return name.clone();
        }
        let name = self.book.name();
        self.any = Some(name.clone());
        let string = texts_expression(self.book, &Texts::default(), &[]);
        let key = self.book.terminal(&format!("{string} {}", self.marks.colon));
        let string = self.book.terminal(&string);
        let number = self.book.terminal(&format!("/{}/", range::any_number()));
        let word = self.book.terminal("\"null\" | \"true\" | \"false\"");
        let marks = &self.marks;
        let list = format!(
            "{} ({name} ({} {name})*)? {}",
            marks.open_array, marks.comma, marks.close_array
        );
        let object = format!(
            "{} ({key} {name} ({} {key} {name})*)? {}",
            marks.open_object, marks.comma, marks.close_object
        );
        let (list, object) = (self.book.rule(&list), self.book.rule(&object));
        let body = format!("{word} | {number} | {string} | {list} | {object}");
        self.book.define(&name, "", &body);
        name
    }

    fn values(&mut self, values: &[Value]) -> String {
        let (compound, scalar): (Vec<&Value>, Vec<&Value>) =
            values.iter().partition(|value| value.is_array() || value.is_object());
        let mut options: Vec<String> = Vec::new();
        if !scalar.is_empty() {
            let texts: Vec<String> = scalar.iter().map(|value| value.to_string()).collect();
            options.push(self.book.terminal(&one_of(&texts)));
        }
        for value in compound {
            let sequence = self.constant(value);
            options.push(self.book.rule(&sequence));
        }
        format!("({})", options.join(" | "))
    }

    /// One value, piece by piece, because white space may stand between them.
    fn constant(&mut self, value: &Value) -> String {
        let comma = self.marks.comma.clone();
        let joined = |parts: Vec<String>| parts.join(&format!(" {comma} "));
        match value {
            Value::Array(items) => {
                let items = items.iter().map(|item| self.constant(item)).collect();
                format!("{} {} {}", self.marks.open_array, joined(items), self.marks.close_array)
            }
            Value::Object(members) => {
                let members = members
                    .iter()
                    .map(|(name, value)| format!("{} {}", self.key(name), self.constant(value)))
                    .collect();
                format!(
                    "{} {} {}",
                    self.marks.open_object,
                    joined(members),
                    self.marks.close_object
                )
            }
            scalar => self.book.terminal(&quoted(&scalar.to_string())),
        }
    }

    /// A key with its colon.
    pub(super) fn key(&mut self, name: &str) -> String {
        let key = quoted(&Value::from(name).to_string());
        self.book.terminal(&format!("{key} {}", self.marks.colon))
    }

    fn number(&mut self, numbers: &Numbers) -> String {
        if let Some(factor) = numbers.multiple_of.first() {
            return multiples(factor, &numbers.bounds, numbers.fractions);
        }
        let mut parts = match (numbers.integers, numbers.fractions) {
            (true, false) => range::integers(&numbers.bounds),
            _ => range::numbers(&numbers.bounds),
        };
        if !numbers.integers {
            parts.push(range::fractional_number());
        }
        let parts: Vec<String> = parts.iter().map(|part| format!("/{part}/")).collect();
        self.book.terminal(&parts.join(" & "))
    }
}

/// Strings with quotes around them, without some, as an expression of terminals.
///
/// The part that all strings share is a terminal of its own, because building an expression from its
/// text takes longer than everything else here.
pub(super) fn texts_expression(book: &mut Book, texts: &Texts, without: &[String]) -> String {
    let mut parts = Vec::new();
    for pattern in &texts.patterns {
        parts.push(format!("/\"{}\"/", pattern.spelled));
    }
    let character = book.terminal(&format!("/{CHAR}/"));
    let Count { least, most } = texts.length;
    if texts.length != Count::default() {
        let most = most.map_or(String::new(), |most| most.to_string());
        parts.push(format!("(\"\\\"\" {character}{{{least},{most}}} \"\\\"\")"));
    } else if texts.patterns.is_empty() {
        parts.push(book.terminal(&format!("\"\\\"\" {character}* \"\\\"\"")));
    }
    for pattern in &texts.anti_patterns {
        parts.push(format!("~/\"{}\"/", pattern.spelled));
    }
    let forbidden: Vec<String> = texts
        .forbidden
        .iter()
        .chain(without)
        .map(|text| Value::from(text.as_str()).to_string())
        .collect();
    if !forbidden.is_empty() {
        parts.push(format!("~{}", one_of(&forbidden)));
    }
    match parts.len() {
        1 => parts.swap_remove(0),
        _ => format!("({})", parts.join(" & ")),
    }
}

/// Multiples of a number, which llguidance's own expressions know.
fn multiples(factor: &Decimal, bounds: &Bounds, fractions: bool) -> String {
    let text = |number: &Decimal| {
        let sign = if number.negative { "-" } else { "" };
        let whole = if number.whole.is_empty() { "0" } else { &number.whole };
        let point = if number.fraction.is_empty() { "" } else { "." };
        format!("{sign}{whole}{point}{}", number.fraction)
    };
    let kind = if fractions { "number" } else { "integer" };
    let mut keywords = vec![
        "\"x-guidance\":{\"whitespace_flexible\":false}".to_owned(),
        format!("\"type\":\"{kind}\",\"multipleOf\":{}", text(factor)),
    ];
    let mut bound = |found: &Option<(Decimal, bool)>, names: [&str; 2], missing: &str| {
        let (number, open) = match found {
            Some((number, open)) => (text(number), *open),
            None => (format!("{missing}{LARGEST_MULTIPLE}"), false),
        };
        keywords.push(format!("\"{}\":{number}", names[usize::from(open)]));
    };
    bound(&bounds.least, ["minimum", "exclusiveMinimum"], "-");
    bound(&bounds.most, ["maximum", "exclusiveMaximum"], "");
    format!("%json {{{}}}", keywords.join(","))
}
