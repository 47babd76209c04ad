//! A schema as it is written: keywords, and the schemas in them by number.

use std::collections::HashMap;

use serde_json::Value;

use super::decimal::Decimal;
use super::pattern::Pattern;
use super::range::Bounds;

/// A schema of a document, or one that was made from them.
pub(super) type RawId = usize;

/// Kinds of JSON values, one bit each; numbers are split into integers and the others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Types(pub u8);

impl Types {
    pub(super) const NULL: Self = Self(1);
    pub(super) const BOOL: Self = Self(2);
    pub(super) const INTEGER: Self = Self(4);
    pub(super) const FRACTION: Self = Self(8);
    pub(super) const NUMBER: Self = Self(4 | 8);
    pub(super) const STRING: Self = Self(16);
    pub(super) const ARRAY: Self = Self(32);
    pub(super) const OBJECT: Self = Self(64);
    pub(super) const ALL: Self = Self(127);

    pub(super) fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "null" => Self::NULL,
            "boolean" => Self::BOOL,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "string" => Self::STRING,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => return None,
        })
    }

    /// The kind of a value; a number such as `1.0` is an integer.
    pub(super) fn of_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOL,
            Value::Number(number) => match Decimal::of(number) {
                Some(decimal) if decimal.is_integer() => Self::INTEGER,
                _ => Self::FRACTION,
            },
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn not(self) -> Self {
        Self(!self.0 & Self::ALL.0)
    }

    pub(super) fn is_none(self) -> bool {
        self.0 == 0
    }

    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Number of members: characters, items or properties.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Count {
    pub least: usize,
    pub most: Option<usize>,
}

impl Count {
    pub(super) fn and(self, other: Self) -> Self {
        let most = match (self.most, other.most) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Self { least: self.least.max(other.least), most }
    }

    pub(super) fn is_empty(self) -> bool {
        self.most.is_some_and(|most| most < self.least)
    }

    pub(super) fn contains(self, n: usize) -> bool {
        n >= self.least && self.most.is_none_or(|most| n <= most)
    }
}

/// `if`, with its `then` and `else`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Condition {
    pub test: RawId,
    pub then: Option<RawId>,
    pub otherwise: Option<RawId>,
}

/// The keywords of one schema object; without any, it allows every value.
#[derive(Clone, Debug, Default)]
pub(super) struct Raw {
    /// Its place in the request.
    pub path: String,
    /// Allows nothing (`false`).
    pub never: bool,
    pub types: Option<Types>,
    /// `const` and `enum`.
    pub values: Option<Vec<Value>>,
    /// Values that are forbidden (from `not`).
    pub forbidden: Vec<Value>,

    pub bounds: Bounds,
    pub multiple_of: Option<Decimal>,

    pub length: Count,
    pub patterns: Vec<Pattern>,
    /// Patterns that must not match (from `not`).
    pub anti_patterns: Vec<Pattern>,

    pub prefix: Vec<RawId>,
    pub items: Option<RawId>,
    pub n_items: Count,

    pub properties: Vec<(String, RawId)>,
    pub by_name: HashMap<String, usize>,
    pub pattern_properties: Vec<(Pattern, RawId)>,
    pub additional: Option<RawId>,
    pub unevaluated: Option<RawId>,
    pub required: Vec<String>,
    pub n_properties: Count,
    pub names: Option<RawId>,

    /// `$ref` and `allOf`: all of these hold as well.
    pub all: Vec<RawId>,
    /// How many of `all` stand before this schema's own properties.
    pub all_before: usize,
    /// `anyOf`: of each list, one or more hold.
    pub any: Vec<Vec<RawId>>,
    /// `oneOf`: of each list, exactly one holds.
    pub one: Vec<Vec<RawId>>,
    pub not: Vec<RawId>,
    pub conditions: Vec<Condition>,
    /// Where the property is there, the schema holds.
    pub dependents: Vec<(String, RawId)>,

    /// Keywords that speak about values and have no counterpart here, for the reason why the
    /// opposite of this schema cannot be expressed.
    pub only_forward: Vec<&'static str>,
}

impl Raw {
    pub(super) fn at(path: &str) -> Self {
        Self { path: path.to_owned(), ..Self::default() }
    }

    pub(super) fn add_property(&mut self, name: &str, schema: RawId) {
        self.by_name.insert(name.to_owned(), self.properties.len());
        self.properties.push((name.to_owned(), schema));
    }

    pub(super) fn property(&self, name: &str) -> Option<RawId> {
        self.by_name.get(name).map(|idx| self.properties[*idx].1)
    }

    /// Schemas that speak about the same value, `not` included.
    pub(super) fn in_place(&self) -> Vec<RawId> {
        self.holding().into_iter().chain(self.not.iter().copied()).collect()
    }

    /// Schemas that may hold for the same value because this one does.
    pub(super) fn holding(&self) -> Vec<RawId> {
        let conditions = self
            .conditions
            .iter()
            .flat_map(|c| [Some(c.test), c.then, c.otherwise].into_iter().flatten());
        let groups = self.any.iter().chain(&self.one).flatten().copied();
        let dependents = self.dependents.iter().map(|(_, schema)| *schema);
        self.all.iter().copied().chain(groups).chain(conditions).chain(dependents).collect()
    }
}
