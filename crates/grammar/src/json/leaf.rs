//! Joins the keywords of schemas that all hold, type by type.

use serde_json::Value;

use super::decimal::Decimal;
use super::node::{Array, Node, NodeId, Numbers, Texts};
use super::pattern;
use super::range::{Bounds, MOST_DIGITS};
use super::raw::{Count, Raw, RawId, Types};
use super::solve::{Solved, Solver};
use crate::error::GrammarError;

impl Solver<'_> {
    /// The node of a set without choices.
    pub(super) fn leaf(&mut self, raws: &[RawId]) -> Solved<Node> {
        let raws: Vec<RawId> =
            raws.iter().copied().filter(|raw| says_something(&self.raws[*raw])).collect();
        if raws.is_empty() {
            return Ok(Node::Any);
        }
        let types = self.types(&raws);
        if types.is_none() {
            let path = self.raws[raws[raws.len() - 1]].path.clone();
            return Ok(Node::Never { path, why: "the types exclude each other".to_owned() });
        }
        let mut nodes = Vec::new();
        let forbidden: Vec<Value> =
            raws.iter().flat_map(|raw| self.raws[*raw].forbidden.clone()).collect();
        if types.has(Types::NULL) && !forbidden.contains(&Value::Null) {
            nodes.push(Node::Null);
        }
        if types.has(Types::BOOL) {
            let values = [Value::Bool(true), Value::Bool(false)];
            let left: Vec<Value> =
                values.into_iter().filter(|value| !forbidden.contains(value)).collect();
            nodes.extend(match left.len() {
                2 => Some(Node::Bool),
                1 => Some(Node::Values(left)),
                _ => None,
            });
        }
        if types.has(Types::NUMBER) {
            nodes.push(self.numbers(&raws, types)?);
        }
        if types.has(Types::STRING) {
            nodes.push(self.text(&raws, &forbidden)?);
        }
        if types.has(Types::ARRAY) {
            nodes.push(self.array(&raws)?);
        }
        if types.has(Types::OBJECT) {
            nodes.push(self.object(&raws)?);
        }
        self.union(nodes, &raws)
    }

    /// One node of several; what allows nothing is left out.
    fn union(&mut self, nodes: Vec<Node>, raws: &[RawId]) -> Solved<Node> {
        let (mut never, mut some) = (Vec::new(), Vec::new());
        for node in nodes {
            let list = if matches!(node, Node::Never { .. }) { &mut never } else { &mut some };
            list.push(node);
        }
        if some.len() > 1 {
            let ids = some.into_iter().map(|node| self.add(node)).collect::<Solved<Vec<NodeId>>>();
            return Ok(Node::Union(ids?));
        }
        Ok(some.pop().or_else(|| never.pop()).unwrap_or_else(|| {
            let path = self.raws[raws[0]].path.clone();
            Node::Never { path, why: "no value is left".to_owned() }
        }))
    }

    fn numbers(&mut self, raws: &[RawId], types: Types) -> Solved<Node> {
        let mut bounds = Bounds::default();
        let mut multiple_of: Vec<Decimal> = Vec::new();
        let mut path = "";
        for raw in raws {
            let schema = &self.raws[*raw];
            if let Some((least, open)) = &schema.bounds.least {
                bounds.at_least(least.clone(), *open);
            }
            if let Some((most, open)) = &schema.bounds.most {
                bounds.at_most(most.clone(), *open);
            }
            if schema.bounds != Bounds::default() || schema.multiple_of.is_some() {
                path = &schema.path;
            }
            multiple_of.extend(schema.multiple_of.clone());
        }
        let multiple_of = one_factor(multiple_of, &bounds, path)?;
        let never = |why: &str| Node::Never { path: path.to_owned(), why: why.to_owned() };
        if !without_endless_digits(&mut bounds) {
            return Ok(never(&format!(
                "no number of at most {MOST_DIGITS} digits is in the range"
            )));
        }
        let mut integers = types.has(Types::INTEGER);
        let fractions = types.has(Types::FRACTION);
        if integers && bounds.of_integers().is_empty() {
            integers = false;
        }
        let is_point = matches!((&bounds.least, &bounds.most), (Some(a), Some(b)) if a.0 == b.0);
        let has_fraction = bounds.least.as_ref().is_some_and(|(bound, _)| !bound.is_integer());
        if bounds.is_empty() || (!integers && (!fractions || (is_point && !has_fraction))) {
            return Ok(never("no number is in the range"));
        }
        if fractions && !types.has(Types::INTEGER) && !multiple_of.is_empty() {
            let why = "cannot be joined with numbers that are not integers";
            return Err(GrammarError::new(format!("{path}.multipleOf"), why));
        }
        if has_no_multiple(&bounds, &multiple_of, types) {
            return Ok(never("no multiple is in the range"));
        }
        let fractions = fractions && (!is_point || has_fraction);
        Ok(Node::Number(Numbers { bounds, integers, fractions, multiple_of }))
    }

    fn text(&mut self, raws: &[RawId], forbidden: &[Value]) -> Solved<Node> {
        let mut texts = Texts::default();
        let mut path = "";
        for raw in raws {
            let schema = &self.raws[*raw];
            texts.length = texts.length.and(schema.length);
            for pattern in &schema.patterns {
                if !texts.patterns.contains(pattern) {
                    texts.patterns.push(pattern.clone());
                }
            }
            texts.anti_patterns.extend(schema.anti_patterns.iter().cloned());
            if schema.length != Count::default()
                || !schema.patterns.is_empty()
                || !schema.anti_patterns.is_empty()
            {
                path = &schema.path;
            }
        }
        let strings = forbidden.iter().filter_map(Value::as_str);
        texts.forbidden = strings.map(str::to_owned).collect();
        let path = path.to_owned();
        if is_empty(&texts, &path)? {
            return Ok(Node::Never { path, why: "no string fits length and pattern".to_owned() });
        }
        Ok(Node::Text(texts))
    }

    fn array(&mut self, raws: &[RawId]) -> Solved<Node> {
        let mut n = Count::default();
        let mut path = String::new();
        for raw in raws {
            let schema = &self.raws[*raw];
            n = n.and(schema.n_items);
            if schema.n_items != Count::default() {
                path.clone_from(&schema.path);
            }
        }
        if n.is_empty() {
            return Ok(Node::Never { path, why: "minItems is more than maxItems".to_owned() });
        }
        let n_prefix = raws.iter().map(|raw| self.raws[*raw].prefix.len()).max().unwrap_or(0);
        let mut prefix = Vec::with_capacity(n_prefix);
        for idx in 0..n_prefix {
            prefix.push(self.item(raws, idx)?);
        }
        let items = self.item(raws, usize::MAX)?;
        Ok(Node::Array(Array { prefix, items, n }))
    }

    /// The node of the item at one place.
    fn item(&mut self, raws: &[RawId], idx: usize) -> Solved<NodeId> {
        let at = |raw: &RawId| {
            let schema = &self.raws[*raw];
            schema.prefix.get(idx).copied().or(schema.items)
        };
        let schemas: Vec<RawId> = raws.iter().filter_map(at).collect();
        self.node_of(&schemas)
    }
}

/// Whether no string fits.
///
/// # Errors
///
/// When that takes too long to find out.
pub(super) fn is_empty(texts: &Texts, path: &str) -> Solved<bool> {
    if texts.length.is_empty() {
        return Ok(true);
    }
    if texts.patterns.is_empty() && texts.anti_patterns.is_empty() {
        let only_empty = texts.length.most == Some(0);
        return Ok(only_empty && texts.forbidden.iter().any(String::is_empty));
    }
    let all: Vec<&pattern::Pattern> = texts.patterns.iter().collect();
    let none: Vec<&pattern::Pattern> = texts.anti_patterns.iter().collect();
    let empty = pattern::is_empty(&all, &none, texts.length.least, texts.length.most);
    empty.ok_or_else(|| {
        GrammarError::new(path, "its regular expression is too large to find a string for it")
    })
}

fn says_something(raw: &Raw) -> bool {
    raw.types.is_some()
        || !raw.forbidden.is_empty()
        || raw.bounds != Bounds::default()
        || raw.multiple_of.is_some()
        || raw.length != Count::default()
        || !raw.patterns.is_empty()
        || !raw.anti_patterns.is_empty()
        || !raw.prefix.is_empty()
        || raw.items.is_some()
        || raw.n_items != Count::default()
        || !raw.properties.is_empty()
        || !raw.pattern_properties.is_empty()
        || raw.additional.is_some()
        || raw.unevaluated.is_some()
        || !raw.required.is_empty()
        || raw.n_properties != Count::default()
        || raw.names.is_some()
}

/// Removes bounds beyond the digits that numbers have here; `false` where nothing is left.
fn without_endless_digits(bounds: &mut Bounds) -> bool {
    let is_endless = |bound: &Option<(Decimal, bool)>| {
        bound
            .as_ref()
            .filter(|(number, _)| number.whole.len() > MOST_DIGITS)
            .map(|(n, _)| n.negative)
    };
    match is_endless(&bounds.least) {
        Some(true) => bounds.least = None,
        Some(false) => return false,
        None => {}
    }
    match is_endless(&bounds.most) {
        Some(false) => bounds.most = None,
        Some(true) => return false,
        None => {}
    }
    true
}

/// Whether no multiple of all factors is within bounds that are both known.
fn has_no_multiple(bounds: &Bounds, factors: &[Decimal], types: Types) -> bool {
    let (Some((least, _)), Some((most, _))) = (&bounds.least, &bounds.most) else { return false };
    let mut places = least.fraction.len().max(most.fraction.len());
    for factor in factors {
        places = places.max(factor.fraction.len());
    }
    let only_integers = !types.has(Types::FRACTION);
    let mut step = 1_i128;
    let one = Decimal::new(false, "1", "");
    for factor in factors.iter().chain(only_integers.then_some(&one)) {
        let Some(factor) = factor.scaled(places) else { return false };
        let Some(next) = (step / gcd(step, factor)).checked_mul(factor) else { return false };
        step = next;
    }
    let (Some(low), Some(high)) = (least.scaled(places), most.scaled(places)) else { return false };
    let first = low.div_euclid(step) * step;
    let candidates = [first, first + step, first + 2 * step];
    let open = |bound: &Option<(Decimal, bool)>| bound.as_ref().is_some_and(|(_, open)| *open);
    let fits = |number: i128| {
        (number > low || (number == low && !open(&bounds.least)))
            && (number < high || (number == high && !open(&bounds.most)))
    };
    !factors.is_empty() && !candidates.into_iter().any(fits)
}

/// The one number whose multiples are the multiples of all.
///
/// # Errors
///
/// When it, or a bound beside it, has too many digits.
fn one_factor(mut factors: Vec<Decimal>, bounds: &Bounds, path: &str) -> Solved<Vec<Decimal>> {
    let error = |why: &str| GrammarError::new(format!("{path}.multipleOf"), why);
    let is_long = |bound: &Option<(Decimal, bool)>| {
        bound.as_ref().is_some_and(|(bound, _)| bound.whole.len() + bound.fraction.len() > 15)
    };
    if !factors.is_empty() && (is_long(&bounds.least) || is_long(&bounds.most)) {
        return Err(error("bounds beside it have more than 15 digits"));
    }
    while let [a, b, ..] = factors.as_slice() {
        let places = a.fraction.len().max(b.fraction.len());
        let joined = a.scaled(places).zip(b.scaled(places));
        let joined = joined.and_then(|(a, b)| (a / gcd(a, b)).checked_mul(b));
        let digits = joined.map(|joined| format!("{joined:0>width$}", width = places + 1));
        let digits = digits.filter(|digits| digits.len() <= 9 + places);
        let digits = digits.ok_or_else(|| error("together they have too many digits"))?;
        let (whole, fraction) = digits.split_at(digits.len() - places);
        let joined = Decimal::new(false, whole, fraction);
        factors.splice(0..2, [joined]);
    }
    Ok(factors)
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a.abs().max(1) } else { gcd(b, a % b) }
}
