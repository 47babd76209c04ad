//! Takes all keywords together that speak about one value.
//!
//! A place of the answer is described by a set of schemas that all must hold. The set is closed over
//! `$ref` and `allOf`; then every `anyOf`, `oneOf`, `if`, `not` and dependency becomes a choice, and
//! each way to choose becomes a set without choices, whose keywords are joined type by type. Sets
//! are made of the finitely many schemas of the document, so a recursive schema meets the same sets
//! again and ends.
//!
//! ```text
//!   { a, allOf [b, c], anyOf [d, e] }   set {a b c} + one of {d}, {e}
//!                                       = union of {a b c d} and {a b c e}
//! ```
//!
//! `oneOf` is a union where its alternatives are proven to exclude each other. Where they are not,
//! each alternative is joined with the opposite of the others, if that can be expressed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use super::node::{Node, NodeId};
use super::raw::{Count, Raw, RawId, Types};
use crate::error::GrammarError;
use crate::limits::Limits;

/// Ways to choose at one place.
const MAX_CHOICES: usize = 512;
/// Places of one schema.
const MAX_NODES: usize = 20_000;
/// Schemas that are made beside the ones of the document.
const MAX_MADE: usize = 20_000;

pub(super) type Solved<T> = Result<T, GrammarError>;

/// A member of a set: a schema with its choices, or without them because they are made already.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum Item {
    Whole(RawId),
    Leaf(RawId),
}

pub(super) struct Solver<'l> {
    pub raws: Vec<Raw>,
    pub limits: &'l Limits,
    n_read: usize,
    nodes: Vec<Slot>,
    by_items: HashMap<Vec<Item>, NodeId>,
    queue: VecDeque<NodeId>,
    /// The opposite of a schema.
    pub(super) opposites: HashMap<RawId, RawId>,
    /// Schemas whose opposite is being made.
    pub(super) depth: usize,
    deadline: Instant,
}

#[derive(Clone, Debug)]
enum Slot {
    Open(Vec<Item>),
    /// Being solved, which a question about it must not wait for.
    Busy,
    Done(Node),
}

/// One way to choose: schemas that all hold then.
pub(super) type Choice = Vec<RawId>;

/// The solved nodes of a document; the first is its root.
///
/// # Errors
///
/// Names the path of what cannot be enforced.
pub(super) fn solve(raws: Vec<Raw>, limits: &Limits) -> Solved<Vec<Node>> {
    let n_read = raws.len();
    super::cycles::check(&raws, limits.nesting)?;
    let mut solver = Solver {
        raws,
        limits,
        n_read,
        nodes: Vec::new(),
        by_items: HashMap::new(),
        queue: VecDeque::new(),
        opposites: HashMap::new(),
        depth: 0,
        deadline: Instant::now() + limits.compile_time,
    };
    solver.node(vec![Item::Whole(0)])?;
    while let Some(id) = solver.queue.pop_front() {
        solver.resolve(id)?;
    }
    Ok(solver
        .nodes
        .into_iter()
        .map(|slot| match slot {
            Slot::Done(node) => node,
            Slot::Open(_) | Slot::Busy => Node::Any,
        })
        .collect())
}

impl Solver<'_> {
    /// The node of a set, which is solved later.
    pub(super) fn node(&mut self, items: Vec<Item>) -> Solved<NodeId> {
        if let Some(id) = self.by_items.get(&items) {
            return Ok(*id);
        }
        if self.nodes.len() >= MAX_NODES {
            return Err(self.too_large());
        }
        if Instant::now() > self.deadline {
            let path = self.raws.first().map_or("", |raw| raw.path.as_str());
            let why = format!("takes longer than {:?} to compile", self.limits.compile_time);
            return Err(GrammarError::new(path, why));
        }
        let id = self.nodes.len();
        self.nodes.push(Slot::Open(items.clone()));
        self.by_items.insert(items, id);
        self.queue.push_back(id);
        Ok(id)
    }

    /// The node of schemas that all hold.
    pub(super) fn node_of(&mut self, raws: &[RawId]) -> Solved<NodeId> {
        let mut items: Vec<Item> = Vec::with_capacity(raws.len());
        for raw in raws {
            if !items.contains(&Item::Whole(*raw)) {
                items.push(Item::Whole(*raw));
            }
        }
        self.node(items)
    }

    /// Adds a node that is solved already.
    pub(super) fn add(&mut self, node: Node) -> Solved<NodeId> {
        if self.nodes.len() >= MAX_NODES {
            return Err(self.too_large());
        }
        self.nodes.push(Slot::Done(node));
        Ok(self.nodes.len() - 1)
    }

    fn too_large(&self) -> GrammarError {
        let path = self.raws.first().map_or("", |raw| raw.path.as_str());
        GrammarError::new(path, format!("the schema describes more than {MAX_NODES} places"))
    }

    /// Solves a node, unless that is being done.
    pub(super) fn resolve(&mut self, id: NodeId) -> Solved<Option<&Node>> {
        if let Slot::Open(items) = &self.nodes[id] {
            let items = items.clone();
            self.nodes[id] = Slot::Busy;
            let node = self.compute(items)?;
            self.nodes[id] = Slot::Done(node);
        }
        Ok(match &self.nodes[id] {
            Slot::Done(node) => Some(node),
            Slot::Open(_) | Slot::Busy => None,
        })
    }

    /// Adds a schema that is not in the document.
    pub(super) fn make(&mut self, raw: Raw) -> Solved<RawId> {
        if self.raws.len() - self.n_read >= MAX_MADE {
            return Err(self.too_large());
        }
        self.raws.push(raw);
        Ok(self.raws.len() - 1)
    }

    fn compute(&mut self, items: Vec<Item>) -> Solved<Node> {
        let (raws, whole) = self.closure(&items);
        if let Some(raw) = raws.iter().find(|raw| self.raws[**raw].never) {
            let path = self.raws[*raw].path.clone();
            return Ok(Node::Never { path, why: "`false` allows no value".to_owned() });
        }
        if raws.iter().any(|raw| self.raws[*raw].values.is_some()) {
            return self.values(&raws, &items);
        }
        let mut groups: Vec<Vec<Choice>> = Vec::new();
        let types = self.types(&raws);
        for raw in &whole {
            self.groups(*raw, &raws, types, &mut groups)?;
        }
        if groups.is_empty() {
            return self.leaf(&raws);
        }
        let n_choices = groups.iter().map(Vec::len).try_fold(1_usize, |n, len| n.checked_mul(len));
        if n_choices.is_none_or(|n| n > MAX_CHOICES) {
            let path = self.raws[raws[0]].path.clone();
            let why =
                format!("anyOf, oneOf, if and dependencies give more than {MAX_CHOICES} cases");
            return Err(GrammarError::new(path, why));
        }
        let leaves: Vec<Item> = raws.iter().map(|raw| Item::Leaf(*raw)).collect();
        let mut nodes = Vec::new();
        for choice in product(&groups) {
            let mut items = leaves.clone();
            for raw in choice {
                if !items.contains(&Item::Whole(raw)) {
                    items.retain(|item| *item != Item::Leaf(raw));
                    items.push(Item::Whole(raw));
                }
            }
            nodes.push(self.node(items)?);
        }
        if nodes.is_empty() {
            let path = self.raws[raws[0]].path.clone();
            return Ok(Node::Never { path, why: "none of the alternatives fits".to_owned() });
        }
        nodes.dedup();
        Ok(Node::Union(nodes))
    }

    /// All schemas that hold, in the order of their properties, and the ones with open choices.
    fn closure(&self, items: &[Item]) -> (Vec<RawId>, Vec<RawId>) {
        let (mut order, mut whole) = (Vec::new(), Vec::new());
        let mut seen: HashSet<RawId> = HashSet::new();
        let wholes: HashSet<RawId> = items
            .iter()
            .filter_map(|item| if let Item::Whole(raw) = item { Some(*raw) } else { None })
            .collect();
        for item in items {
            match item {
                Item::Leaf(raw) if !wholes.contains(raw) => {
                    if seen.insert(*raw) {
                        order.push(*raw);
                    }
                }
                Item::Leaf(_) => {}
                Item::Whole(raw) => self.close(*raw, &mut seen, &mut order, &mut whole),
            }
        }
        (order, whole)
    }

    /// The depth of this recursion is bounded by [`super::cycles::check`].
    fn close(
        &self,
        raw: RawId,
        seen: &mut HashSet<RawId>,
        order: &mut Vec<RawId>,
        whole: &mut Vec<RawId>,
    ) {
        if !seen.insert(raw) {
            return;
        }
        let schema = &self.raws[raw];
        let (before, after) = schema.all.split_at(schema.all_before.min(schema.all.len()));
        before.iter().for_each(|other| self.close(*other, seen, order, whole));
        order.push(raw);
        whole.push(raw);
        after.iter().for_each(|other| self.close(*other, seen, order, whole));
    }

    fn values(&mut self, raws: &[RawId], items: &[Item]) -> Solved<Node> {
        let mut candidates: Option<Vec<serde_json::Value>> = None;
        for raw in raws {
            if let Some(values) = &self.raws[*raw].values {
                candidates.get_or_insert_with(|| values.clone());
            }
        }
        let mut kept: Vec<serde_json::Value> = Vec::new();
        for value in candidates.unwrap_or_default() {
            let mut fits = true;
            for item in items {
                let (raw, whole) = match item {
                    Item::Whole(raw) => (*raw, true),
                    Item::Leaf(raw) => (*raw, false),
                };
                fits = fits && self.admits(raw, &value, whole)?;
            }
            if fits && !kept.contains(&value) {
                kept.push(value);
            }
        }
        if kept.is_empty() {
            let path = raws.iter().find(|raw| self.raws[**raw].values.is_some());
            let path = path.map_or(String::new(), |raw| self.raws[*raw].path.clone());
            let why = "no value of `enum` or `const` fits the other keywords".to_owned();
            return Ok(Node::Never { path, why });
        }
        Ok(Node::Values(kept))
    }

    /// Types that all of these schemas allow.
    pub(super) fn types(&self, raws: &[RawId]) -> Types {
        raws.iter().filter_map(|raw| self.raws[*raw].types).fold(Types::ALL, Types::and)
    }

    /// The choices of one schema.
    fn groups(
        &mut self,
        raw: RawId,
        around: &[RawId],
        types: Types,
        groups: &mut Vec<Vec<Choice>>,
    ) -> Solved<()> {
        let schema = self.raws[raw].clone();
        for options in &schema.any {
            groups.push(options.iter().map(|option| vec![*option]).collect());
        }
        for options in &schema.one {
            groups.push(self.exactly_one(&schema.path, options, around)?);
        }
        for forbidden in &schema.not {
            let opposite = self
                .opposite(*forbidden)
                .map_err(|error| GrammarError::new(format!("{}.not", schema.path), error.why))?;
            groups.push(vec![vec![opposite]]);
        }
        for condition in &schema.conditions {
            let opposite = self
                .opposite(condition.test)
                .map_err(|error| GrammarError::new(format!("{}.if", schema.path), error.why))?;
            let mut holds = vec![condition.test];
            holds.extend(condition.then);
            let mut fails = vec![opposite];
            fails.extend(condition.otherwise);
            groups.push(vec![holds, fails]);
        }
        if types.has(Types::OBJECT) {
            for (name, dependent) in &schema.dependents {
                let absent = self.presence(&schema.path, name, false)?;
                let present = self.presence(&schema.path, name, true)?;
                groups.push(vec![vec![absent], vec![present, *dependent]]);
            }
        }
        // A way to choose that no type allows is no way.
        for options in groups.iter_mut() {
            options.retain(|option| !self.types(option).and(types).is_none());
        }
        Ok(())
    }

    /// A schema that says whether an object has a property. Values of other types have none.
    fn presence(&mut self, path: &str, name: &str, present: bool) -> Solved<RawId> {
        let mut raw = Raw::at(path);
        if present {
            raw.types = Some(Types::OBJECT);
            raw.required.push(name.to_owned());
        } else {
            let never = self.make(Raw { never: true, ..Raw::at(path) })?;
            raw.add_property(name, never);
        }
        self.make(raw)
    }

    /// A schema that forbids the empty list and the empty object, where only these fit both
    /// alternatives: lists of different things have nothing else in common.
    fn filled(
        &mut self,
        path: &str,
        around: &[RawId],
        a: RawId,
        b: RawId,
    ) -> Solved<Option<RawId>> {
        let some = Count { least: 1, most: None };
        let filled = self.make(Raw { n_items: some, n_properties: some, ..Raw::at(path) })?;
        let mut nodes = Vec::new();
        for option in [a, b] {
            let mut items: Vec<Item> = around.iter().map(|raw| Item::Leaf(*raw)).collect();
            items.retain(|item| *item != Item::Leaf(option));
            items.extend([Item::Whole(option), Item::Leaf(filled)]);
            nodes.push(self.node(items)?);
        }
        Ok(self.are_disjoint(nodes[0], nodes[1], 0)?.then_some(filled))
    }

    /// The choices of `oneOf`.
    fn exactly_one(
        &mut self,
        path: &str,
        options: &[RawId],
        around: &[RawId],
    ) -> Solved<Vec<Choice>> {
        let mut nodes = Vec::new();
        for option in options {
            let mut items: Vec<Item> = around.iter().map(|raw| Item::Leaf(*raw)).collect();
            items.retain(|item| *item != Item::Leaf(*option));
            items.push(Item::Whole(*option));
            nodes.push(self.node(items)?);
        }
        let mut choices: Vec<Choice> = options.iter().map(|option| vec![*option]).collect();
        for a in 0..options.len() {
            for b in a + 1..options.len() {
                if self.are_disjoint(nodes[a], nodes[b], 0)? {
                    continue;
                }
                if let Some(filled) = self.filled(path, around, options[a], options[b])? {
                    choices[a].push(filled);
                    choices[b].push(filled);
                    continue;
                }
                let opposites = self
                    .opposite(options[b])
                    .and_then(|not_b| Ok((not_b, self.opposite(options[a])?)));
                let (not_b, not_a) = opposites.map_err(|error| {
                    let why = format!("alternatives {a} and {b} may both hold, and {}", error.why);
                    GrammarError::new(format!("{path}.oneOf"), why)
                })?;
                choices[a].push(not_b);
                choices[b].push(not_a);
            }
        }
        Ok(choices)
    }
}

/// Every way to take one option of each group, all options of it joined.
fn product(groups: &[Vec<Choice>]) -> Vec<Vec<RawId>> {
    let mut all: Vec<Vec<RawId>> = vec![Vec::new()];
    for options in groups {
        all = all
            .iter()
            .flat_map(|chosen| {
                options.iter().map(move |option| [chosen.as_slice(), option].concat())
            })
            .collect();
    }
    all
}
