//! Calls that are written as in Python: `f(a=1, b="x")`.
//!
//! A value is a JSON value, which the parser reads beside Python's literals, so that every rule of
//! its schema is enforced; `True`, `False` and `None` are written as in Python where a parameter is
//! nothing else.

use pelton_base::Shape;
use serde_json::Value;

use super::tags::{Property, properties};
use super::{Placed, ShapeError, one_of};
use crate::read::is_bare;

/// Optional parameters that a call may begin with; more of them only follow another parameter.
const MOST_FIRST: usize = 16;

/// The parameters of a call, and its closing parenthesis.
pub(crate) fn call(tool: &Placed<'_>) -> Result<Shape, ShapeError> {
    let properties = properties(tool)?;
    Ok(Shape::Sequence(vec![first(&properties, 0), Shape::text(")")]))
}

/// The parameters where none was written yet.
fn first(properties: &[Property], n_before: usize) -> Shape {
    let Some((property, rest)) = properties.split_first() else { return Shape::text("") };
    let with = Shape::Sequence(vec![keyword(property, ""), following(rest)]);
    if property.is_required {
        return with;
    }
    if n_before == MOST_FIRST {
        // One that is required must come, and is the first of those that are left.
        let required = properties.iter().position(|property| property.is_required);
        return required.map_or_else(|| Shape::text(""), |at| first(&properties[at..], n_before));
    }
    Shape::OneOf(vec![with, first(rest, n_before + 1)])
}

/// The parameters after another one.
fn following(properties: &[Property]) -> Shape {
    let each = properties.iter().map(|property| {
        let item = keyword(property, ", ");
        match property.is_required {
            true => item,
            false => Shape::OneOf(vec![item, Shape::text("")]),
        }
    });
    Shape::Sequence(each.collect())
}

fn keyword(property: &Property, before: &str) -> Shape {
    Shape::Sequence(vec![Shape::Text(format!("{before}{}=", property.key)), value(property)])
}

fn value(property: &Property) -> Shape {
    match property.schema.get("type").and_then(Value::as_str) {
        Some("boolean") if is_bare(&property.schema) => {
            one_of(vec![Shape::text("True"), Shape::text("False")])
        }
        Some("null") if is_bare(&property.schema) => Shape::text("None"),
        _ => property.json(),
    }
}
