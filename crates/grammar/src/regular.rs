//! Forms that a regular expression describes, as one terminal.

use pelton_base::Shape;

use crate::book::{escaped, one_of, quoted};
use crate::compose::ANY;
use crate::error::GrammarError;
use crate::json::Expression;
use crate::limits::Limits;
use crate::vocabulary::Vocabulary;

/// Whether a regular expression can describe a form.
pub(crate) fn is_regular(shape: &Shape, vocabulary: &Vocabulary) -> bool {
    let is_control = |name: &str| vocabulary.control(name).is_some();
    let has_control = |text: &str| vocabulary.first_control(text).is_some();
    match shape {
        Shape::Text(_) | Shape::Regex(_) | Shape::Any => true,
        Shape::Token(name) => !is_control(name),
        Shape::Until(text) => !has_control(text),
        Shape::Triggered { tags, .. } if tags.is_empty() => true,
        Shape::Sequence(items) | Shape::OneOf(items) => {
            items.iter().all(|item| is_regular(item, vocabulary))
        }
        Shape::Repeat { item, .. } => is_regular(item, vocabulary),
        Shape::Json { .. } | Shape::Lark(_) | Shape::Gbnf(_) | Shape::Triggered { .. } => false,
    }
}

/// An expression of terminals for a regular form.
///
/// # Errors
///
/// When an expression is malformed or matches nothing, or a choice is empty or too large.
pub(crate) fn expression(
    shape: &Shape,
    limits: &Limits,
    depth: usize,
) -> Result<String, GrammarError> {
    if depth > limits.nesting {
        return Err(GrammarError::new("", format!("nested deeper than {}", limits.nesting)));
    }
    let deeper = depth + 1;
    Ok(match shape {
        Shape::Text(text) | Shape::Token(text) => {
            check_size(text, limits)?;
            quoted(text)
        }
        Shape::Regex(source) => {
            check_size(source, limits)?;
            Expression::whole(source).map_err(|why| GrammarError::new("", why))?.slashed()
        }
        Shape::Any => ANY.to_owned(),
        Shape::Until(text) if text.is_empty() => quoted(""),
        Shape::Until(text) => {
            let text = escaped(text);
            format!("(/(?s:.*){text}/ & ~/(?s:.*){text}(?s:.+)/)")
        }
        Shape::Sequence(items) if items.is_empty() => quoted(""),
        Shape::Sequence(items) => {
            let items: Result<Vec<String>, _> =
                items.iter().map(|item| expression(item, limits, deeper)).collect();
            format!("({})", items?.join(" "))
        }
        Shape::OneOf(items) => choice(items, limits, deeper)?,
        Shape::Repeat { item, separator, least, most } => {
            repeated(&expression(item, limits, deeper)?, separator, *least, *most)?
        }
        Shape::Triggered { tags, triggers, .. } if tags.is_empty() => without(triggers),
        Shape::Json { .. } | Shape::Lark(_) | Shape::Gbnf(_) | Shape::Triggered { .. } => {
            return Err(GrammarError::new("", "is not regular"));
        }
    })
}

/// Any text in which none of these occurs. Control tokens are no text, so their names may be among
/// them.
pub(crate) fn without(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().filter(|text| !text.is_empty()).cloned().collect();
    if texts.is_empty() {
        return ANY.to_owned();
    }
    let one = one_of(&texts);
    format!("({ANY} & ~({ANY} {one} {ANY}))")
}

fn choice(items: &[Shape], limits: &Limits, depth: usize) -> Result<String, GrammarError> {
    if items.is_empty() {
        return Err(GrammarError::new("", "a choice of nothing cannot be fulfilled"));
    }
    if items.len() > limits.choices {
        let why = format!("{} choices are more than {}", items.len(), limits.choices);
        return Err(GrammarError::new("", why));
    }
    let texts: Option<Vec<String>> = items
        .iter()
        .map(|item| if let Shape::Text(text) = item { Some(text.clone()) } else { None })
        .collect();
    if let Some(texts) = texts {
        if texts.iter().map(String::len).sum::<usize>() > limits.source_bytes {
            let why = format!("the choices have more than {} bytes", limits.source_bytes);
            return Err(GrammarError::new("", why));
        }
        return Ok(one_of(&texts));
    }
    let items: Result<Vec<String>, _> =
        items.iter().map(|item| expression(item, limits, depth)).collect();
    Ok(format!("({})", items?.join(" | ")))
}

/// An item several times, with a text between.
///
/// # Errors
///
/// When the bounds exclude each other.
pub(crate) fn repeated(
    item: &str,
    separator: &str,
    least: usize,
    most: Option<usize>,
) -> Result<String, GrammarError> {
    if most.is_some_and(|most| most < least) {
        let why =
            format!("at least {least} items and at most {} exclude each other", most.unwrap_or(0));
        return Err(GrammarError::new("", why));
    }
    if most == Some(0) {
        return Ok(quoted(""));
    }
    let more = least.saturating_sub(1);
    let bounds = match most {
        Some(most) => format!("{{{more},{}}}", most - 1),
        None => format!("{{{more},}}"),
    };
    let one = match separator {
        // The notation has no `{0,0}`.
        _ if most == Some(1) => item.to_owned(),
        "" => format!("{item} ({item}){bounds}"),
        _ => format!("{item} ({} {item}){bounds}", quoted(separator)),
    };
    Ok(if least == 0 { format!("({one})?") } else { format!("({one})") })
}

fn check_size(source: &str, limits: &Limits) -> Result<(), GrammarError> {
    if source.len() <= limits.source_bytes {
        return Ok(());
    }
    let why = format!("{} bytes are more than {}", source.len(), limits.source_bytes);
    Err(GrammarError::new("", why))
}
