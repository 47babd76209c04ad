//! The names of operators, filters and methods that rewritten programs call as functions.

use std::cmp::Ordering;

/// Filters by name, with the name of the function that stands for each.
pub(super) const FILTERS: &[(&str, &str)] = &[
    ("upper", "|upper"),
    ("lower", "|lower"),
    ("title", "|title"),
    ("capitalize", "|capitalize"),
    ("replace", "|replace"),
    ("length", "|length"),
    ("count", "|count"),
    ("dictsort", "|dictsort"),
    ("items", "|items"),
    ("reverse", "|reverse"),
    ("trim", "|trim"),
    ("join", "|join"),
    ("split", "|split"),
    ("lines", "|lines"),
    ("first", "|first"),
    ("last", "|last"),
    ("min", "|min"),
    ("max", "|max"),
    ("sort", "|sort"),
    ("list", "|list"),
    ("string", "|string"),
    ("batch", "|batch"),
    ("slice", "|slice"),
    ("sum", "|sum"),
    ("indent", "|indent"),
    ("select", "|select"),
    ("reject", "|reject"),
    ("selectattr", "|selectattr"),
    ("rejectattr", "|rejectattr"),
    ("map", "|map"),
    ("groupby", "|groupby"),
    ("unique", "|unique"),
    ("chain", "|chain"),
    ("zip", "|zip"),
    ("pprint", "|pprint"),
    ("format", "|format"),
    ("escape", "|escape"),
    ("e", "|e"),
    ("safe", "|safe"),
    ("tojson", "|tojson"),
    ("wordcount", "|wordcount"),
];

/// Methods of Python's types by name, with the name of the function that stands for each.
pub(super) const METHODS: &[(&str, &str)] = &[
    ("upper", ".upper"),
    ("lower", ".lower"),
    ("islower", ".islower"),
    ("isupper", ".isupper"),
    ("isspace", ".isspace"),
    ("isdigit", ".isdigit"),
    ("isnumeric", ".isnumeric"),
    ("isalnum", ".isalnum"),
    ("isalpha", ".isalpha"),
    ("isascii", ".isascii"),
    ("strip", ".strip"),
    ("lstrip", ".lstrip"),
    ("rstrip", ".rstrip"),
    ("replace", ".replace"),
    ("title", ".title"),
    ("split", ".split"),
    ("splitlines", ".splitlines"),
    ("capitalize", ".capitalize"),
    ("count", ".count"),
    ("find", ".find"),
    ("rfind", ".rfind"),
    ("format", ".format"),
    ("startswith", ".startswith"),
    ("endswith", ".endswith"),
    ("join", ".join"),
    ("keys", ".keys"),
    ("values", ".values"),
    ("items", ".items"),
    ("get", ".get"),
    ("changed", ".changed"),
    ("partition", ".partition"),
    ("rpartition", ".rpartition"),
    ("removeprefix", ".removeprefix"),
    ("removesuffix", ".removesuffix"),
    ("index", ".index"),
    ("rsplit", ".rsplit"),
    ("swapcase", ".swapcase"),
    ("zfill", ".zfill"),
    ("center", ".center"),
    ("ljust", ".ljust"),
    ("rjust", ".rjust"),
];

/// The function that stands for a filter; `None` for an unknown filter.
pub(super) fn filter_name(filter: &str) -> Option<&'static str> {
    FILTERS.iter().find(|(name, _)| *name == filter).map(|(_, function)| *function)
}

/// The function that stands for a method; `None` for an unknown method.
pub(super) fn method_name(method: &str) -> Option<&'static str> {
    METHODS.iter().find(|(name, _)| *name == method).map(|(_, function)| *function)
}

/// Whether an ordering satisfies a comparison; a text and a number have no ordering.
pub(super) type Holds = fn(Option<Ordering>) -> bool;

/// The comparisons, with the orderings that satisfy each.
pub(super) const COMPARISONS: &[(&str, Holds)] = &[
    ("<", |order| order.is_some_and(Ordering::is_lt)),
    ("<=", |order| order.is_some_and(Ordering::is_le)),
    (">", |order| order.is_some_and(Ordering::is_gt)),
    (">=", |order| order.is_some_and(Ordering::is_ge)),
];
