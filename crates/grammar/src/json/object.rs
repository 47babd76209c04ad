//! Joins the keywords about properties.
//!
//! A property obeys the schemas of its own name, of every pattern that its name matches, and, for
//! each schema that says nothing about its name, that schema's `additionalProperties`. Names that no
//! schema lists fall into classes by the patterns that they match.

use std::collections::HashSet;

use serde_json::Value;

use super::admits::matches;
use super::leaf::is_empty;
use super::node::{Node, Object, Property, Rest, Texts};
use super::pattern::{self, Pattern};
use super::raw::{Count, RawId};
use super::solve::{Solved, Solver};
use crate::error::GrammarError;

/// Patterns that may overlap; more must exclude each other.
const MAX_OVERLAPPING: usize = 3;

/// The names that an object may have, from `propertyNames`.
enum Names {
    Any,
    None,
    Texts(Texts),
    Listed(Vec<String>),
}

impl Solver<'_> {
    pub(super) fn object(&mut self, raws: &[RawId]) -> Solved<Node> {
        let mut n = Count::default();
        let mut path = self.raws[raws[0]].path.clone();
        for raw in raws {
            let schema = &self.raws[*raw];
            n = n.and(schema.n_properties);
            if schema.n_properties != Count::default() || !schema.properties.is_empty() {
                path.clone_from(&schema.path);
            }
        }
        if n.is_empty() {
            let why = "minProperties is more than maxProperties".to_owned();
            return Ok(Node::Never { path, why });
        }
        let names = self.names(raws)?;
        let mut listed: Vec<String> = Vec::new();
        let mut seen: HashSet<String> = HashSet::new();
        let schemas = raws.iter().map(|raw| &self.raws[*raw]);
        let properties = schemas.clone().flat_map(|s| s.properties.iter().map(|(name, _)| name));
        let required: HashSet<String> = schemas.clone().flat_map(|s| s.required.clone()).collect();
        let in_order = schemas.clone().flat_map(|s| s.required.iter());
        for name in properties.chain(in_order) {
            if seen.insert(name.clone()) {
                listed.push(name.clone());
            }
        }
        if let Names::Listed(more) = &names {
            listed.extend(more.iter().filter(|name| seen.insert((*name).clone())).cloned());
        }
        let mut object = Object { path, properties: Vec::new(), rest: Vec::new(), n };
        for name in listed {
            let node = if self.may_be_named(raws, &name)? {
                let schemas = self.schemas_of(raws, &name)?;
                self.node_of(&schemas)?
            } else {
                self.add(Node::Never {
                    path: object.path.clone(),
                    why: format!("propertyNames forbids the required property {name:?}"),
                })?
            };
            let required = required.contains(&name);
            object.properties.push(Property { name, node, required });
        }
        match names {
            Names::Any => self.rest(raws, &Texts::default(), &mut object)?,
            Names::Texts(texts) => self.rest(raws, &texts, &mut object)?,
            Names::None | Names::Listed(_) => {}
        }
        Ok(Node::Object(object))
    }

    /// The names that `propertyNames` allows.
    fn names(&mut self, raws: &[RawId]) -> Solved<Names> {
        let schemas: Vec<RawId> = raws.iter().filter_map(|raw| self.raws[*raw].names).collect();
        let Some(first) = schemas.first() else { return Ok(Names::Any) };
        let path = self.raws[*first].path.clone();
        let id = self.node_of(&schemas)?;
        let unclear = || GrammarError::new(path.clone(), "expected a schema of strings");
        let node = self.resolve(id)?.ok_or_else(unclear)?.clone();
        let nodes = match &node {
            Node::Union(ids) => {
                let mut nodes = Vec::new();
                for id in ids.clone() {
                    nodes.push(self.resolve(id)?.ok_or_else(unclear)?.clone());
                }
                nodes
            }
            _ => vec![node],
        };
        // Names are strings, so what is said about other values does not matter.
        let mut texts = Vec::new();
        for node in nodes {
            match node {
                Node::Any => return Ok(Names::Any),
                Node::Text(text) => texts.push(Names::Texts(text)),
                Node::Values(values) => {
                    let strings = values.iter().filter_map(Value::as_str).map(str::to_owned);
                    texts.push(Names::Listed(strings.collect()));
                }
                Node::Union(_) => return Err(unclear()),
                _ => {}
            }
        }
        match texts.len() {
            0 => Ok(Names::None),
            1 => Ok(texts.pop().unwrap_or(Names::None)),
            _ => Err(GrammarError::new(path, "alternatives of names are not supported")),
        }
    }

    fn may_be_named(&self, raws: &[RawId], name: &str) -> Solved<bool> {
        for raw in raws {
            if let Some(names) = self.raws[*raw].names
                && !self.admits(names, &Value::from(name), true)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Everything that the property of this name obeys.
    fn schemas_of(&self, raws: &[RawId], name: &str) -> Solved<Vec<RawId>> {
        let mut all = Vec::new();
        for raw in raws {
            let schema = &self.raws[*raw];
            let mut own: Vec<RawId> = schema.property(name).into_iter().collect();
            for (pattern, id) in &schema.pattern_properties {
                if matches(pattern, name, &schema.path)? {
                    own.push(*id);
                }
            }
            if own.is_empty() {
                own.extend(schema.additional);
            }
            all.extend(own);
            if let Some(unevaluated) = schema.unevaluated
                && !self.is_evaluated(*raw, raws, name)?
            {
                all.push(unevaluated);
            }
        }
        Ok(all)
    }

    /// Whether a schema, or one beside it that it refers to, says something about a name.
    fn is_evaluated(&self, raw: RawId, around: &[RawId], name: &str) -> Solved<bool> {
        for other in self.reached(raw, around) {
            let schema = &self.raws[other];
            if schema.property(name).is_some() || schema.additional.is_some() {
                return Ok(true);
            }
            for (pattern, _) in &schema.pattern_properties {
                if matches(pattern, name, &schema.path)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The schemas of the set that `raw` refers to, with itself.
    fn reached(&self, raw: RawId, around: &[RawId]) -> Vec<RawId> {
        let mut seen: HashSet<RawId> = HashSet::from([raw]);
        let mut stack = vec![raw];
        let mut reached = Vec::new();
        while let Some(raw) = stack.pop() {
            if around.contains(&raw) {
                reached.push(raw);
            }
            let below = self.raws[raw].holding();
            stack.extend(below.into_iter().filter(|next| seen.insert(*next)));
        }
        reached
    }

    /// The properties whose names are not listed, by classes.
    fn rest(&mut self, raws: &[RawId], names: &Texts, object: &mut Object) -> Solved<()> {
        let mut patterns: Vec<Pattern> = Vec::new();
        for raw in raws {
            for (pattern, _) in &self.raws[*raw].pattern_properties {
                if !patterns.contains(pattern) {
                    patterns.push(pattern.clone());
                }
            }
        }
        for class in classes(&patterns, &object.path)? {
            let has = |pattern: &Pattern| class.iter().any(|idx| patterns[*idx] == *pattern);
            let mut schemas = Vec::new();
            for raw in raws {
                let schema = &self.raws[*raw];
                let own = schema.pattern_properties.iter().filter(|(pattern, _)| has(pattern));
                let mut own: Vec<RawId> = own.map(|(_, id)| *id).collect();
                if own.is_empty() {
                    own.extend(schema.additional);
                }
                schemas.extend(own);
                if let Some(unevaluated) = schema.unevaluated {
                    let evaluates = |other: &RawId| {
                        let schema = &self.raws[*other];
                        schema.additional.is_some()
                            || schema.pattern_properties.iter().any(|(pattern, _)| has(pattern))
                    };
                    if !self.reached(*raw, raws).iter().any(evaluates) {
                        schemas.push(unevaluated);
                    }
                }
            }
            let mut texts = names.clone();
            for (idx, pattern) in patterns.iter().enumerate() {
                let is_in = class.contains(&idx);
                let list = if is_in { &mut texts.patterns } else { &mut texts.anti_patterns };
                list.push(pattern.clone());
            }
            if !is_empty(&texts, &object.path)? {
                object.rest.push(Rest { names: texts, node: self.node_of(&schemas)? });
            }
        }
        Ok(())
    }
}

/// The sets of patterns that a name may match together, the empty set last.
fn classes(patterns: &[Pattern], path: &str) -> Solved<Vec<Vec<usize>>> {
    let n = patterns.len();
    if n <= MAX_OVERLAPPING {
        let subsets = (1..1_usize << n).map(|bits| (0..n).filter(|i| bits >> i & 1 == 1).collect());
        return Ok(subsets.chain(std::iter::once(Vec::new())).collect());
    }
    for a in 0..n {
        for b in a + 1..n {
            if pattern::is_empty(&[&patterns[a], &patterns[b]], &[], 0, None) != Some(true) {
                let why = format!("more than {MAX_OVERLAPPING} patterns must exclude each other");
                return Err(GrammarError::new(format!("{path}.patternProperties"), why));
            }
        }
    }
    Ok((0..n).map(|idx| vec![idx]).chain(std::iter::once(Vec::new())).collect())
}
