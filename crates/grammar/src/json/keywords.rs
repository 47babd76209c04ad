//! Every keyword that a draft of JSON Schema defines, and what becomes of it.

/// Keywords that say nothing about values, like every word that is not in a list below.
#[cfg(test)]
const ANNOTATIONS: &[&str] = &[
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "$vocabulary",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "example",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
];

/// Keywords that are read by [`super::read`].
const ENFORCED: &[&str] = &[
    "$ref",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "if",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "required",
    "then",
    "type",
    "unevaluatedProperties",
    "uniqueItems",
];

/// Keywords that are refused, with the reason.
const REFUSED: &[(&str, &str)] = &[
    ("$dynamicAnchor", "dynamic references are not supported; use $ref"),
    ("$dynamicRef", "dynamic references are not supported; use $ref"),
    ("$recursiveAnchor", "recursive references are not supported; use $ref"),
    ("$recursiveRef", "recursive references are not supported; use $ref"),
    ("contains", "a grammar cannot count the items that match"),
    ("maxContains", "a grammar cannot count the items that match"),
    ("minContains", "a grammar cannot count the items that match"),
    ("unevaluatedItems", "is not supported; use items or prefixItems"),
    ("x-guidance", "is not honoured; the server decides about white space"),
];

/// The treatment of a keyword.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fate {
    Enforced,
    /// Says nothing about values; so does every word that no draft defines.
    Annotation,
    Refused(&'static str),
}

pub(super) fn fate(keyword: &str) -> Fate {
    if let Some((_, why)) = REFUSED.iter().find(|(known, _)| *known == keyword) {
        return Fate::Refused(why);
    }
    if ENFORCED.contains(&keyword) { Fate::Enforced } else { Fate::Annotation }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_keyword_has_two_fates() {
        let all: Vec<&str> = ANNOTATIONS
            .iter()
            .chain(ENFORCED)
            .copied()
            .chain(REFUSED.iter().map(|(known, _)| *known))
            .collect();
        let mut unique = all.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), all.len());
        assert_eq!(fate("title"), Fate::Annotation);
        assert_eq!(fate("x-order"), Fate::Annotation);
    }
}
