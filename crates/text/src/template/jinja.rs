//! Filters, tests and methods where Jinja and the template engine differ.
//!
//! Templates are written against Python's Jinja with Hugging Face's settings; what the engine lacks
//! or answers otherwise is here, and nothing that it answers alike. Sizes have been paid for by the
//! caller (`guard`) where a result may outgrow its arguments.

use minijinja::value::{Kwargs, Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

/// Widest field that a method of text may fill, in characters.
const MAX_WIDTH: usize = 9999;

/// Tests as Jinja defines them: by what Python's `len`, `iter` and `callable` accept.
pub(super) fn install_tests(env: &mut Environment<'_>) {
    let has_items = |kind| {
        matches!(kind, ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined)
    };
    env.add_test("sequence", move |value: &Value| has_items(value.kind()));
    env.add_test("iterable", move |value: &Value| {
        has_items(value.kind()) || value.kind() == ValueKind::Iterable
    });
    env.add_test("callable", |value: &Value| {
        matches!(value.kind(), ValueKind::Undefined | ValueKind::Plain)
    });
}

/// `replace` with the number of replacements.
pub(super) fn replace(args: &[Value]) -> Result<Value, Error> {
    let [text, from, to, count] = args else {
        return Err(wrong("`replace` takes 2 or 3 arguments"));
    };
    let part = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let count = count.as_usize().ok_or_else(|| wrong("the count of `replace` is no number"))?;
    Ok(Value::from(part(text).replacen(&part(from), &part(to), count)))
}

/// `escape`, with the entities that Python writes.
pub(super) fn escape(args: &[Value]) -> Result<Value, Error> {
    let text = args.first().ok_or_else(|| wrong("`escape` needs a text"))?.to_string();
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(Value::from(out))
}

/// `indent(width=4, first=false, blank=false)`; the width may be a text.
pub(super) fn indent(args: &[Value]) -> Result<Value, Error> {
    let (args, kwargs) = arguments(args)?;
    let text = args.first().and_then(|text| text.as_str());
    let text = text.ok_or_else(|| wrong("`indent` needs a text"))?;
    let argument = |place: usize, name: &str| -> Result<Option<Value>, Error> {
        let named: Option<Value> = kwargs.get(name)?;
        Ok(args.get(place).cloned().or(named))
    };
    let margin = match argument(1, "width")? {
        None => " ".repeat(4),
        Some(width) => match (width.as_str(), width.as_usize()) {
            (Some(text), _) => text.to_owned(),
            (None, Some(width)) => " ".repeat(width),
            (None, None) => return Err(wrong("`width` of `indent` is no number and no text")),
        },
    };
    let is_set = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let (first, blank) = (is_set(argument(2, "first")?), is_set(argument(3, "blank")?));
    kwargs.assert_all_used()?;
    let mut out = String::new();
    for (idx, line) in text.split('\n').enumerate() {
        let line = line.strip_suffix('\r').unwrap_or(line);
        out.push_str(if idx == 0 { "" } else { "\n" });
        let has_margin = if idx == 0 { first } else { blank || !line.is_empty() };
        out.push_str(if has_margin { &margin } else { "" });
        out.push_str(line);
    }
    Ok(Value::from(out))
}

/// `dictsort(case_sensitive, by, reverse)`, whose arguments the engine knows by name only.
pub(super) fn dictsort(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (args, kwargs) = arguments(args)?;
    let mut named: Vec<(String, Value)> = Vec::new();
    for name in kwargs.args() {
        named.push((name.to_owned(), kwargs.get(name)?));
    }
    let places = ["case_sensitive", "by", "reverse"];
    for (name, value) in places.iter().zip(args.iter().skip(1)) {
        named.push(((*name).to_owned(), value.clone()));
    }
    let dict = args.first().cloned().unwrap_or(Value::UNDEFINED);
    let pairs = state.apply_filter("dictsort", &[dict, Kwargs::from_iter(named).into()])?;
    let pairs = pairs.try_iter()?.checked();
    let tuples = pairs.map(|pair| {
        let items: Vec<Value> = pair?.try_iter()?.checked().collect::<Result<_, Error>>()?;
        Ok(Value::from(Tuple::from(items)))
    });
    Ok(Value::from(tuples.collect::<Result<Vec<_>, Error>>()?))
}

/// `dict(pairs or dictionary, name=value, ...)`.
pub(super) fn dict(args: &[Value]) -> Result<Value, Error> {
    let (args, kwargs) = arguments(args)?;
    let mut fields: Vec<(Value, Value)> = Vec::new();
    if let Some(from) = args.first() {
        for item in from.try_iter()?.checked() {
            let item = item?;
            fields.push(match from.kind() {
                ValueKind::Map => (item.clone(), from.get_item(&item)?),
                _ if item.len() == Some(2) => {
                    (item.get_item_by_index(0)?, item.get_item_by_index(1)?)
                }
                _ => return Err(wrong("`dict` takes pairs")),
            });
        }
    }
    for name in kwargs.args() {
        fields.push((Value::from(name), kwargs.get(name)?));
    }
    Ok(Value::from_pairs(fields))
}

/// `wordcount`.
pub(super) fn word_count(text: &str) -> usize {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty()).count()
}

/// Methods of Python's `str` that the engine does not know; `None` for any other method.
pub(super) fn text_method(
    text: &str,
    method: &str,
    args: &[Value],
) -> Option<Result<Value, Error>> {
    let argument = |place: usize| args.get(place).and_then(|arg| arg.as_str());
    let needed = || argument(0).ok_or_else(|| wrong("a method of a text needs a text"));
    Some(match method {
        "partition" => needed().map(|by| match text.split_once(by) {
            Some((left, right)) => triple(left, by, right),
            None => triple(text, "", ""),
        }),
        "rpartition" => needed().map(|by| match text.rsplit_once(by) {
            Some((left, right)) => triple(left, by, right),
            None => triple("", "", text),
        }),
        "removeprefix" => needed().map(|p| Value::from(text.strip_prefix(p).unwrap_or(text))),
        "removesuffix" => needed().map(|s| Value::from(text.strip_suffix(s).unwrap_or(text))),
        "index" => needed().and_then(|part| {
            let at = text.find(part).ok_or_else(|| wrong("substring not found"))?;
            Ok(Value::from(text[..at].chars().count()))
        }),
        "rsplit" => rsplit(text, argument(0), args.get(1)),
        "swapcase" => Ok(Value::from(text.chars().map(swapped).collect::<String>())),
        "zfill" | "center" | "ljust" | "rjust" => {
            pad(text, method, args.first(), argument(1).unwrap_or(" "))
        }
        _ => return None,
    })
}

fn rsplit(text: &str, by: Option<&str>, most: Option<&Value>) -> Result<Value, Error> {
    let most = most.and_then(Value::as_i64).and_then(|n| usize::try_from(n).ok());
    let n_parts = most.map_or(usize::MAX, |n| n.saturating_add(1));
    let mut parts: Vec<&str> = match by {
        Some("") => return Err(wrong("empty separator")),
        Some(by) => text.rsplitn(n_parts, by).collect(),
        None => {
            let (mut parts, mut rest) = (Vec::new(), text.trim_end());
            while !rest.is_empty() && parts.len() + 1 < n_parts {
                let at = rest.rfind(char::is_whitespace);
                let start =
                    at.map_or(0, |at| at + rest[at..].chars().next().map_or(1, char::len_utf8));
                parts.push(&rest[start..]);
                rest = rest[..start].trim_end();
            }
            parts.extend((!rest.is_empty()).then_some(rest));
            parts
        }
    };
    parts.reverse();
    Ok(Value::from(parts.into_iter().map(Value::from).collect::<Vec<_>>()))
}

fn pad(text: &str, method: &str, width: Option<&Value>, fill: &str) -> Result<Value, Error> {
    let width = width.and_then(Value::as_usize).filter(|width| *width <= MAX_WIDTH);
    let width = width.ok_or_else(|| wrong("a width must be a number up to 9999"))?;
    let missing = width.saturating_sub(text.chars().count());
    let fill = fill.chars().next().unwrap_or(' ');
    let run = |n: usize| std::iter::repeat_n(fill, n).collect::<String>();
    Ok(Value::from(match method {
        "zfill" => {
            let sign = text.len() - text.trim_start_matches(['+', '-']).len();
            let (sign, digits) = text.split_at(sign.min(1));
            format!("{sign}{}{digits}", "0".repeat(missing))
        }
        "ljust" => format!("{text}{}", run(missing)),
        "rjust" => format!("{}{text}", run(missing)),
        _ => {
            // Python gives the odd character to the left where the width is odd.
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", run(left), run(missing - left))
        }
    }))
}

fn swapped(c: char) -> String {
    // The letter of a title has neither case and stays.
    match (c.is_lowercase(), c.is_uppercase()) {
        (true, _) => c.to_uppercase().collect(),
        (_, true) => c.to_lowercase().collect(),
        _ => c.into(),
    }
}

fn triple(a: &str, b: &str, c: &str) -> Value {
    Value::from(Tuple::from([Value::from(a), Value::from(b), Value::from(c)]))
}

/// Arguments by place, and those by name.
pub(super) fn arguments(args: &[Value]) -> Result<(&[Value], Kwargs), Error> {
    match args.split_last() {
        Some((last, rest)) if last.is_kwargs() => Ok((rest, Kwargs::try_from(last.clone())?)),
        _ => Ok((args, Kwargs::from_iter(Vec::<(&str, Value)>::new()))),
    }
}

fn wrong(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}
