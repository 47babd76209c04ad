//! The opposite of a schema, where it can be expressed.
//!
//! A schema is the conjunction of its keywords, so its opposite is a choice of their opposites; a
//! keyword's opposite holds for values of its own type only.
//!
//! ```text
//!   not {"required": ["a"]}                       an object without a
//!   not {"properties": {"a": {"const": 1}}}       an object with an a that is not 1
//!   not {"type": "string", "maxLength": 3}        another type, or a string of 4 and more
//! ```

use super::raw::{Count, Raw, RawId, Types};
use super::solve::{Solved, Solver};
use crate::error::GrammarError;

impl Solver<'_> {
    /// A schema that holds exactly where `raw` does not.
    ///
    /// # Errors
    ///
    /// Names the keyword whose opposite cannot be expressed.
    pub(super) fn opposite(&mut self, raw: RawId) -> Solved<RawId> {
        if let Some(known) = self.opposites.get(&raw) {
            return Ok(*known);
        }
        let schema = self.raws[raw].clone();
        if self.depth > self.limits.nesting {
            return Err(no_opposite(&schema, "schemas nested this deep"));
        }
        // Known before its parts are, which may contain it.
        let made = self.make(Raw::at(&schema.path))?;
        self.opposites.insert(raw, made);
        if schema.never {
            // Everything is the opposite of nothing.
            return Ok(made);
        }
        self.depth += 1;
        let options = self.options(&schema);
        self.depth -= 1;
        let options = options?;
        if options.is_empty() {
            self.raws[made].never = true;
        } else {
            self.raws[made].any.push(options);
        }
        Ok(made)
    }

    fn options(&mut self, schema: &Raw) -> Solved<Vec<RawId>> {
        let unsupported = [
            (!schema.one.is_empty(), "oneOf"),
            (!schema.conditions.is_empty(), "if"),
            (!schema.dependents.is_empty(), "a dependency"),
        ];
        if let Some((_, keyword)) = unsupported.iter().find(|(is_there, _)| *is_there) {
            return Err(no_opposite(schema, keyword));
        }
        let mut options = Vec::new();
        self.scalar_opposites(schema, &mut options)?;
        self.member_opposites(schema, &mut options)?;
        for other in &schema.all {
            options.push(self.opposite(*other)?);
        }
        for group in &schema.any {
            let all = group.iter().map(|option| self.opposite(*option)).collect::<Solved<_>>()?;
            options.push(self.make(Raw { all, ..Raw::at(&schema.path) })?);
        }
        options.extend(&schema.not);
        Ok(options)
    }

    fn scalar_opposites(&mut self, schema: &Raw, options: &mut Vec<RawId>) -> Solved<()> {
        let at = || Raw::at(&schema.path);
        if let Some(types) = schema.types {
            options.push(self.make(Raw { types: Some(types.not()), ..at() })?);
        }
        if let Some(values) = &schema.values {
            let expressible =
                values.iter().all(|v| !v.is_array() && !v.is_object() && !v.is_number());
            if !expressible {
                return Err(no_opposite(schema, "const or enum with numbers, lists or objects"));
            }
            options.push(self.make(Raw { forbidden: values.clone(), ..at() })?);
        }
        if !schema.forbidden.is_empty() {
            options.push(self.make(Raw { values: Some(schema.forbidden.clone()), ..at() })?);
        }
        let number = |bounds| Raw { types: Some(Types::NUMBER), bounds, ..at() };
        if let Some((least, open)) = &schema.bounds.least {
            let mut bounds = super::range::Bounds::default();
            bounds.at_most(least.clone(), !open);
            options.push(self.make(number(bounds))?);
        }
        if let Some((most, open)) = &schema.bounds.most {
            let mut bounds = super::range::Bounds::default();
            bounds.at_least(most.clone(), !open);
            options.push(self.make(number(bounds))?);
        }
        if schema.multiple_of.is_some() {
            return Err(no_opposite(schema, "multipleOf"));
        }
        for length in outside(schema.length) {
            options.push(self.make(Raw { types: Some(Types::STRING), length, ..at() })?);
        }
        for pattern in &schema.patterns {
            let anti_patterns = vec![pattern.clone()];
            options.push(self.make(Raw { types: Some(Types::STRING), anti_patterns, ..at() })?);
        }
        for pattern in &schema.anti_patterns {
            let patterns = vec![pattern.clone()];
            options.push(self.make(Raw { types: Some(Types::STRING), patterns, ..at() })?);
        }
        Ok(())
    }

    fn member_opposites(&mut self, schema: &Raw, options: &mut Vec<RawId>) -> Solved<()> {
        let at = || Raw::at(&schema.path);
        let unsupported = [
            (!schema.prefix.is_empty() || schema.items.is_some(), "items"),
            (!schema.pattern_properties.is_empty(), "patternProperties"),
            (schema.additional.is_some(), "additionalProperties"),
            (schema.unevaluated.is_some(), "unevaluatedProperties"),
            (schema.names.is_some(), "propertyNames"),
        ];
        if let Some((_, keyword)) = unsupported.iter().find(|(is_there, _)| *is_there) {
            return Err(no_opposite(schema, keyword));
        }
        for n_items in outside(schema.n_items) {
            options.push(self.make(Raw { types: Some(Types::ARRAY), n_items, ..at() })?);
        }
        for n_properties in outside(schema.n_properties) {
            options.push(self.make(Raw { types: Some(Types::OBJECT), n_properties, ..at() })?);
        }
        for name in &schema.required {
            let never = self.make(Raw { never: true, ..at() })?;
            let mut raw = Raw { types: Some(Types::OBJECT), ..at() };
            raw.add_property(name, never);
            options.push(self.make(raw)?);
        }
        for (name, property) in &schema.properties {
            let opposite = self.opposite(*property)?;
            let required = vec![name.clone()];
            let mut raw = Raw { types: Some(Types::OBJECT), required, ..at() };
            raw.add_property(name, opposite);
            options.push(self.make(raw)?);
        }
        Ok(())
    }
}

fn no_opposite(schema: &Raw, keyword: &str) -> GrammarError {
    let why = format!("the opposite of {keyword} at {} cannot be enforced", schema.path);
    GrammarError::new(schema.path.clone(), why)
}

/// The counts below and above.
fn outside(count: Count) -> Vec<Count> {
    let below = count.least.checked_sub(1).map(|most| Count { least: 0, most: Some(most) });
    let above = count.most.map(|most| Count { least: most + 1, most: None });
    below.into_iter().chain(above).collect()
}
