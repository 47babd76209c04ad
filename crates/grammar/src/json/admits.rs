//! Whether a schema allows one given value, for `const`, `enum` and names of properties.

use serde_json::Value;

use super::decimal::Decimal;
use super::pattern::Pattern;
use super::raw::{Raw, RawId, Types};
use super::read::same;
use super::solve::{Solved, Solver};
use crate::error::GrammarError;

impl Solver<'_> {
    /// Whether `value` fits a schema; `whole` includes the schemas that it refers to.
    ///
    /// # Errors
    ///
    /// When a regular expression takes too long.
    pub(super) fn admits(&self, raw: RawId, value: &Value, whole: bool) -> Solved<bool> {
        let schema = &self.raws[raw];
        if schema.never
            || schema.types.is_some_and(|types| !types.has(Types::of_value(value)))
            || schema.values.as_ref().is_some_and(|all| !all.iter().any(|one| same(one, value)))
            || schema.forbidden.iter().any(|one| same(one, value))
        {
            return Ok(false);
        }
        let fits = match value {
            Value::Number(number) => fits_number(schema, number),
            Value::String(text) => fits_text(schema, text)?,
            Value::Array(items) => self.fits_array(schema, items)?,
            Value::Object(_) => self.fits_object(schema, value)?,
            Value::Null | Value::Bool(_) => true,
        };
        Ok(fits && (!whole || self.fits_others(schema, value)?))
    }

    fn fits_others(&self, schema: &Raw, value: &Value) -> Solved<bool> {
        let admits = |raw: RawId| self.admits(raw, value, true);
        for raw in &schema.all {
            if !admits(*raw)? {
                return Ok(false);
            }
        }
        for raw in &schema.not {
            if admits(*raw)? {
                return Ok(false);
            }
        }
        let count = |group: &[RawId]| -> Solved<usize> {
            let mut n = 0;
            for raw in group {
                n += usize::from(admits(*raw)?);
            }
            Ok(n)
        };
        for group in &schema.any {
            if count(group)? == 0 {
                return Ok(false);
            }
        }
        for group in &schema.one {
            if count(group)? != 1 {
                return Ok(false);
            }
        }
        for condition in &schema.conditions {
            let next = if admits(condition.test)? { condition.then } else { condition.otherwise };
            if let Some(next) = next
                && !admits(next)?
            {
                return Ok(false);
            }
        }
        for (name, dependent) in &schema.dependents {
            if value.get(name).is_some() && !admits(*dependent)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn fits_array(&self, schema: &Raw, items: &[Value]) -> Solved<bool> {
        if !schema.n_items.contains(items.len()) {
            return Ok(false);
        }
        for (idx, item) in items.iter().enumerate() {
            if let Some(raw) = schema.prefix.get(idx).copied().or(schema.items)
                && !self.admits(raw, item, true)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn fits_object(&self, schema: &Raw, value: &Value) -> Solved<bool> {
        let Value::Object(object) = value else { return Ok(true) };
        if !schema.n_properties.contains(object.len())
            || schema.required.iter().any(|name| !object.contains_key(name))
        {
            return Ok(false);
        }
        if schema.unevaluated.is_some() {
            let why = "cannot be joined with `enum` or `const` of objects";
            let path = format!("{}.unevaluatedProperties", schema.path);
            return Err(GrammarError::new(path, why));
        }
        for (name, value) in object {
            let mut schemas: Vec<RawId> = schema.property(name).into_iter().collect();
            for (pattern, raw) in &schema.pattern_properties {
                if matches(pattern, name, &schema.path)? {
                    schemas.push(*raw);
                }
            }
            if schemas.is_empty() {
                schemas.extend(schema.additional);
            }
            for raw in schemas {
                if !self.admits(raw, value, true)? {
                    return Ok(false);
                }
            }
            if let Some(names) = schema.names
                && !self.admits(names, &Value::from(name.as_str()), true)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn fits_number(schema: &Raw, number: &serde_json::Number) -> bool {
    let Some(decimal) = Decimal::of(number) else { return false };
    let is_multiple = |factor: &Decimal| decimal.is_multiple_of(factor).unwrap_or(false);
    schema.bounds.contains(&decimal) && schema.multiple_of.as_ref().is_none_or(is_multiple)
}

fn fits_text(schema: &Raw, text: &str) -> Solved<bool> {
    if !schema.length.contains(text.chars().count()) {
        return Ok(false);
    }
    for pattern in &schema.patterns {
        if !matches(pattern, text, &schema.path)? {
            return Ok(false);
        }
    }
    for pattern in &schema.anti_patterns {
        if matches(pattern, text, &schema.path)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a pattern matches.
///
/// # Errors
///
/// When that takes too long.
pub(super) fn matches(pattern: &Pattern, text: &str, path: &str) -> Solved<bool> {
    pattern.matches(text).ok_or_else(|| {
        GrammarError::new(path, "a regular expression takes too long to be tried out")
    })
}
