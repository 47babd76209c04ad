//! The values that a place allows, after all keywords about it were taken together.

use serde_json::Value;

use super::decimal::Decimal;
use super::pattern::Pattern;
use super::range::Bounds;
use super::raw::Count;

/// A node of the solved schema.
pub(super) type NodeId = usize;

/// The values that a place allows.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Any,
    /// None, and the keyword because of which.
    Never {
        path: String,
        why: String,
    },
    /// These.
    Values(Vec<Value>),
    Null,
    Bool,
    Number(Numbers),
    Text(Texts),
    Array(Array),
    Object(Object),
    /// The values that one of these allows.
    Union(Vec<NodeId>),
}

#[derive(Clone, Debug)]
pub(super) struct Numbers {
    pub bounds: Bounds,
    pub integers: bool,
    pub fractions: bool,
    pub multiple_of: Vec<Decimal>,
}

/// Strings; also keys of objects.
#[derive(Clone, Debug, Default)]
pub(super) struct Texts {
    pub length: Count,
    pub patterns: Vec<Pattern>,
    pub anti_patterns: Vec<Pattern>,
    pub forbidden: Vec<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Array {
    pub prefix: Vec<NodeId>,
    pub items: NodeId,
    pub n: Count,
}

#[derive(Clone, Debug)]
pub(super) struct Object {
    pub path: String,
    /// In the order in which they are written.
    pub properties: Vec<Property>,
    /// Properties of other names, by classes of names that do not overlap; they follow.
    pub rest: Vec<Rest>,
    pub n: Count,
}

#[derive(Clone, Debug)]
pub(super) struct Property {
    pub name: String,
    pub node: NodeId,
    pub required: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Rest {
    pub names: Texts,
    pub node: NodeId,
}
