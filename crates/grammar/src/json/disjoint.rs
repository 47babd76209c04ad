//! Proofs that no value fits two nodes.

use serde_json::Value;

use super::node::{Array, Node, NodeId, Numbers, Object, Texts};
use super::pattern::{self, Pattern};
use super::raw::Types;
use super::solve::{Solved, Solver};

/// Depth to which members are compared.
const MAX_DEPTH: usize = 4;

impl Solver<'_> {
    /// Whether it is proven that no value fits both.
    pub(super) fn are_disjoint(&mut self, a: NodeId, b: NodeId, depth: usize) -> Solved<bool> {
        if depth > MAX_DEPTH || a == b {
            return Ok(false);
        }
        let (Some(a), Some(b)) = (self.resolve(a)?.cloned(), self.resolve(b)?.cloned()) else {
            return Ok(false);
        };
        Ok(match (&a, &b) {
            (Node::Never { .. }, _) | (_, Node::Never { .. }) => true,
            (Node::Union(nodes), other) | (other, Node::Union(nodes)) => {
                let other = self.add(other.clone())?;
                for node in nodes {
                    if !self.are_disjoint(*node, other, depth)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Node::Any, _) | (_, Node::Any) => false,
            (Node::Values(values), other) | (other, Node::Values(values)) => {
                values.iter().all(|value| excludes(other, value))
            }
            (Node::Number(a), Node::Number(b)) => numbers_exclude(a, b),
            (Node::Text(a), Node::Text(b)) => texts_exclude(a, b),
            (Node::Array(a), Node::Array(b)) => self.arrays_exclude(a, b, depth)?,
            (Node::Object(a), Node::Object(b)) => self.objects_exclude(a, b, depth)?,
            _ => types(&a).and(types(&b)).is_none(),
        })
    }

    fn arrays_exclude(&mut self, a: &Array, b: &Array, depth: usize) -> Solved<bool> {
        let both = a.n.and(b.n);
        if both.is_empty() {
            return Ok(true);
        }
        for idx in 0..both.least.min(a.prefix.len().max(b.prefix.len()) + 1) {
            let at = |array: &Array| array.prefix.get(idx).copied().unwrap_or(array.items);
            if self.are_disjoint(at(a), at(b), depth + 1)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Objects exclude each other where a property that one of them requires does.
    fn objects_exclude(&mut self, a: &Object, b: &Object, depth: usize) -> Solved<bool> {
        if a.n.and(b.n).is_empty() {
            return Ok(true);
        }
        for (one, other) in [(a, b), (b, a)] {
            for property in one.properties.iter().filter(|property| property.required) {
                let Some(opposite) = node_of(other, &property.name) else { continue };
                match opposite {
                    None => return Ok(true),
                    Some(node) if self.are_disjoint(property.node, node, depth + 1)? => {
                        return Ok(true);
                    }
                    Some(_) => {}
                }
            }
            if one.n.least > 0 && self.share_no_property(one, other, depth)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether no property of `one` may be in `other`.
    fn share_no_property(&mut self, one: &Object, other: &Object, depth: usize) -> Solved<bool> {
        for property in &one.properties {
            match node_of(other, &property.name) {
                Some(None) => {}
                Some(Some(node)) if self.are_disjoint(property.node, node, depth + 1)? => {}
                _ => return Ok(false),
            }
        }
        for rest in &one.rest {
            let listed = other.properties.iter().map(|property| property.node);
            let others = listed.chain(other.rest.iter().map(|rest| rest.node));
            for node in others.collect::<Vec<_>>() {
                if !self.are_disjoint(rest.node, node, depth + 1)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// The node of a property by name: `Some(None)` where it cannot be there, `None` where that is not
/// clear.
fn node_of(object: &Object, name: &str) -> Option<Option<NodeId>> {
    if let Some(property) = object.properties.iter().find(|property| property.name == name) {
        return Some(Some(property.node));
    }
    let mut found = None;
    for rest in &object.rest {
        if text_excludes(&rest.names, name)? {
            continue;
        }
        if found.is_some() {
            return None;
        }
        found = Some(rest.node);
    }
    Some(found)
}

fn types(node: &Node) -> Types {
    match node {
        Node::Null => Types::NULL,
        Node::Bool => Types::BOOL,
        Node::Number(_) => Types::NUMBER,
        Node::Text(_) => Types::STRING,
        Node::Array(_) => Types::ARRAY,
        Node::Object(_) => Types::OBJECT,
        Node::Values(values) => {
            values.iter().fold(Types(0), |types, value| types.or(Types::of_value(value)))
        }
        Node::Any | Node::Never { .. } | Node::Union(_) => Types::ALL,
    }
}

/// Whether a node is proven to exclude a value.
fn excludes(node: &Node, value: &Value) -> bool {
    match (node, value) {
        (Node::Values(values), value) => !values.iter().any(|v| super::read::same(v, value)),
        (Node::Number(numbers), Value::Number(number)) => {
            let Some(decimal) = super::decimal::Decimal::of(number) else { return false };
            let is_integer = decimal.is_integer();
            !numbers.bounds.contains(&decimal)
                || (is_integer && !numbers.integers)
                || (!is_integer && !numbers.fractions)
        }
        (Node::Text(texts), Value::String(text)) => text_excludes(texts, text).unwrap_or(false),
        (Node::Array(array), Value::Array(items)) => !array.n.contains(items.len()),
        (Node::Object(object), Value::Object(members)) => {
            let required = object.properties.iter().filter(|property| property.required);
            let mut required = required.map(|property| property.name.as_str());
            !object.n.contains(members.len()) || required.any(|name| !members.contains_key(name))
        }
        (node, value) => types(node).and(Types::of_value(value)).is_none(),
    }
}

fn numbers_exclude(a: &Numbers, b: &Numbers) -> bool {
    let mut bounds = a.bounds.clone();
    if let Some((least, open)) = &b.bounds.least {
        bounds.at_least(least.clone(), *open);
    }
    if let Some((most, open)) = &b.bounds.most {
        bounds.at_most(most.clone(), *open);
    }
    let no_kind = !(a.integers && b.integers || a.fractions && b.fractions);
    let only_integers = !(a.fractions && b.fractions);
    no_kind || bounds.is_empty() || (only_integers && bounds.of_integers().is_empty())
}

fn texts_exclude(a: &Texts, b: &Texts) -> bool {
    let length = a.length.and(b.length);
    if length.is_empty() {
        return true;
    }
    let all: Vec<&Pattern> = a.patterns.iter().chain(&b.patterns).collect();
    let none: Vec<&Pattern> = a.anti_patterns.iter().chain(&b.anti_patterns).collect();
    (!all.is_empty() || !none.is_empty())
        && pattern::is_empty(&all, &none, length.least, length.most) == Some(true)
}

/// Whether a text does not fit; `None` when that takes too long.
fn text_excludes(texts: &Texts, text: &str) -> Option<bool> {
    if !texts.length.contains(text.chars().count()) || texts.forbidden.iter().any(|f| f == text) {
        return Some(true);
    }
    for pattern in &texts.patterns {
        if !pattern.matches(text)? {
            return Some(true);
        }
    }
    for pattern in &texts.anti_patterns {
        if pattern.matches(text)? {
            return Some(true);
        }
    }
    Some(false)
}
