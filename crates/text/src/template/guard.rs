//! The operators, filters, methods and functions of templates, which pay before they work.

use std::sync::Arc;

use minijinja::value::{Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::budget::Budget;
use super::clock;
use super::cost::{pay_deep, pay_for_call, shallow_bytes};
use super::jinja;
use super::names::{COMPARISONS, FILTERS, METHODS};
use super::python::{JsonStyle, Text};

/// Adds everything that a rewritten program calls to the environment.
pub(super) fn install(env: &mut Environment<'_>, budget: &Arc<Budget>, now: Option<i64>) {
    install_output(env, budget);
    install_operators(env, budget);
    install_access(env, budget);
    install_calls(env, budget);
    install_functions(env, budget, now);
}

/// The formatter, which all output passes.
fn install_output(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    let b = Arc::clone(budget);
    env.set_formatter(move |out, _state, value| {
        let failed = |_| Error::new(ErrorKind::WriteFailure, "the output cannot be written");
        if let Some(text) = value.as_str() {
            b.write(text.len())?;
            return out.write_str(text).map_err(failed);
        }
        let mut text = Text::new(&b);
        text.str(value)?;
        let text = text.finish();
        b.write(text.len())?;
        out.write_str(&text).map_err(failed)
    });
}

/// Arithmetic and comparisons.
fn install_operators(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    let shared = || Arc::clone(budget);
    let b = shared();
    env.add_function("+", move |l: &Value, r: &Value| add(&b, l, r));
    let b = shared();
    env.add_function("*", move |l: &Value, r: &Value| multiply(&b, l, r));
    let b = shared();
    env.add_function("~", move |l: &Value, r: &Value| concat(&b, l, r));
    let b = shared();
    env.add_function("%", move |state: &mut State<'_, '_>, l: &Value, r: &Value| {
        remainder(&b, state, l, r)
    });
    let b = shared();
    env.add_function("==", move |l: &Value, r: &Value| -> Result<bool, Error> {
        pay_deep(&b, l, 0)?;
        Ok(l == r)
    });
    let b = shared();
    env.add_function("!=", move |l: &Value, r: &Value| -> Result<bool, Error> {
        pay_deep(&b, l, 0)?;
        Ok(l != r)
    });
    for (symbol, holds) in COMPARISONS {
        let b = shared();
        env.add_function(*symbol, move |l: &Value, r: &Value| -> Result<bool, Error> {
            pay_deep(&b, l, 0)?;
            Ok(holds(l.partial_cmp(r)))
        });
    }
}

/// Operands of tests and loops, subscripts, dictionaries and `in`.
fn install_access(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    let shared = || Arc::clone(budget);
    let b = shared();
    env.add_function(" deep", move |value: Value| -> Result<Value, Error> {
        pay_deep(&b, &value, 0)?;
        Ok(value)
    });
    let b = shared();
    env.add_function(" shallow", move |value: Value| -> Result<Value, Error> {
        b.work(shallow_bytes(&value))?;
        Ok(value)
    });
    let b = shared();
    env.add_function("[]", move |object: &Value, key: &Value| item(&b, object, key));
    let b = shared();
    env.add_function("[:]", move |object: &Value, start: &Value, stop: &Value, step: &Value| {
        slice(&b, object, [start, stop, step])
    });
    let b = shared();
    env.add_function("{}", move |args: Rest<Value>| -> Result<Value, Error> {
        let (pairs, _) = args.0.as_chunks::<2>();
        pairs.iter().try_for_each(|[key, _]| pay_deep(&b, key, 0))?;
        Ok(Value::from_pairs(pairs.iter().map(|[key, value]| (key.clone(), value.clone()))))
    });
    let b = shared();
    env.add_function(" in ", move |state: &mut State<'_, '_>, l: Value, r: Value| {
        pay_deep(&b, &l, 0)?;
        pay_deep(&b, &r, 0)?;
        state.perform_test("in", &[l, r])
    });
}

/// Filters and methods.
fn install_calls(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    let shared = || Arc::clone(budget);
    for (filter, function) in FILTERS {
        let b = shared();
        env.add_function(*function, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            apply(&b, state, filter, values(args))
        });
    }
    for (method, function) in METHODS {
        let b = shared();
        env.add_function(*function, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = values(args);
            pay_for_call(&b, method, &args)?;
            let (object, args) = args.split_first().ok_or_else(|| {
                Error::new(ErrorKind::MissingArgument, "a method needs an object")
            })?;
            object.call_method(state, method, args)
        });
    }
}

/// Functions that templates name themselves, and filters that the engine lacks or does otherwise.
fn install_functions(env: &mut Environment<'_>, budget: &Arc<Budget>, now: Option<i64>) {
    let shared = || Arc::clone(budget);
    let b = shared();
    env.add_filter("tojson", move |value: &Value, args: Rest<ValueOrKwargs>| {
        to_json(&b, value, &values(args))
    });
    let b = shared();
    env.add_function("dict", move |args: Rest<ValueOrKwargs>| -> Result<Value, Error> {
        let args = values(args);
        args.iter().try_for_each(|arg| pay_deep(&b, arg, 0))?;
        jinja::dict(&args)
    });
    env.add_filter("wordcount", jinja::word_count);
    let b = shared();
    env.add_function("raise_exception", move |message: Value| -> Result<Value, Error> {
        let mut text = Text::new(&b);
        text.str(&message)?;
        Err(b.raise(text.finish()))
    });
    // It would print every variable without paying.
    env.add_function("debug", || -> Result<Value, Error> {
        Err(Error::new(ErrorKind::UnknownFunction, "debug is not available"))
    });
    env.add_function("strftime_now", move |format: &str| {
        clock::strftime(format, now.unwrap_or_else(clock::now))
    });
}

/// Applies a filter by its name.
fn apply(
    budget: &Budget,
    state: &mut State<'_, '_>,
    filter: &str,
    args: Vec<Value>,
) -> Result<Value, Error> {
    pay_for_call(budget, filter, &args)?;
    match filter {
        "string" => string(budget, &args),
        "escape" | "e" => jinja::escape(&args),
        "indent" => jinja::indent(&args),
        "dictsort" => jinja::dictsort(state, &args),
        "replace" if args.len() == 4 => jinja::replace(&args),
        "tojson" => to_json(budget, args.first().unwrap_or(&Value::UNDEFINED), &args[1..]),
        // The filter named in `map("name", ...)` pays like any other.
        "map" if args.get(1).is_some_and(|name| name.as_str().is_some()) => {
            let name = args[1].as_str().unwrap_or_default().to_owned();
            let mut results = Vec::new();
            for item in args[0].try_iter()?.checked() {
                let args = std::iter::once(item?).chain(args[2..].iter().cloned()).collect();
                results.push(apply(budget, state, &name, args)?);
            }
            Ok(Value::from(results))
        }
        _ => state.apply_filter(filter, &args),
    }
}

/// `object[key]`.
fn item(budget: &Budget, object: &Value, key: &Value) -> Result<Value, Error> {
    if object.as_str().is_some() {
        budget.work(shallow_bytes(object))?;
    }
    if key.as_object().is_some() {
        pay_deep(budget, key, 0)?;
    }
    object.get_item(key)
}

/// `object[start:stop:step]`, as in Python.
fn slice(budget: &Budget, object: &Value, bounds: [&Value; 3]) -> Result<Value, Error> {
    let wrong = |reason| Error::new(ErrorKind::InvalidOperation, reason);
    let mut numbers = [None; 3];
    for (number, bound) in numbers.iter_mut().zip(bounds) {
        if !bound.is_none() {
            let found = bound.as_i64().ok_or_else(|| wrong("a bound of a slice is no integer"))?;
            *number = Some(found);
        }
    }
    let [start, stop, step] = numbers;
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(wrong("a slice cannot have a step of 0"));
    }
    budget.make(shallow_bytes(object))?;
    if object.is_undefined() {
        return Err(wrong("an undefined value has no slices"));
    }
    if let Some(text) = object.as_str() {
        let chars: Vec<char> = text.chars().collect();
        budget.make(chars.len().saturating_mul(size_of::<char>()))?;
        let picked = picks(chars.len(), start, stop, step);
        return Ok(Value::from(picked.map(|idx| chars[idx]).collect::<String>()));
    }
    // As an attribute that is not there.
    if !matches!(object.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Ok(Value::UNDEFINED);
    }
    let items = object.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
    let picked = picks(items.len(), start, stop, step);
    let picked: Vec<Value> = picked.map(|idx| items[idx].clone()).collect();
    Ok(list_like(object, picked))
}

/// A tuple of these items where `object` is one, else a list.
fn list_like(object: &Value, items: Vec<Value>) -> Value {
    if object.is_tuple() { Tuple::from(items).into() } else { Value::from(items) }
}

/// The indices that a slice of `len` items takes, in order; `step` is not 0.
fn picks(
    len: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    // Before the first and after the last item, in the direction of the step.
    let is_forward = step.is_positive();
    let (lowest, highest) = if is_forward { (0, len) } else { (-1, len - 1) };
    let place = |bound: i64| {
        let from_start = if bound < 0 { bound.saturating_add(len) } else { bound };
        from_start.clamp(lowest, highest)
    };
    let (first, last) = if is_forward { (lowest, highest) } else { (highest, lowest) };
    let (start, stop) = (start.map_or(first, place), stop.map_or(last, place));
    std::iter::successors(Some(start), move |at| at.checked_add(step))
        .take_while(move |at| if is_forward { *at < stop } else { *at > stop })
        .map(|at| usize::try_from(at).expect("invariant: inside the list"))
}

fn add(budget: &Budget, l: &Value, r: &Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (l.as_str(), r.as_str()) {
        budget.make(left.len() + right.len())?;
        return Ok(Value::from([left, right].concat()));
    }
    let is_list = |v: &Value| matches!(v.kind(), ValueKind::Seq | ValueKind::Iterable);
    if is_list(l) && is_list(r) && l.is_tuple() == r.is_tuple() {
        let n_items = l.len().unwrap_or(0).saturating_add(r.len().unwrap_or(0));
        budget.make(n_items.saturating_mul(size_of::<Value>()))?;
        let items = l.try_iter()?.checked().chain(r.try_iter()?.checked());
        return Ok(list_like(l, items.collect::<Result<Vec<_>, _>>()?));
    }
    arithmetic("+", l, r, i128::checked_add, |a, b| Some(a + b))
}

fn multiply(budget: &Budget, l: &Value, r: &Value) -> Result<Value, Error> {
    let (repeated, times) =
        if r.as_str().is_some() || r.as_object().is_some() { (r, l) } else { (l, r) };
    let too_many = || {
        // Negative counts repeat nothing, as in Python.
        times.as_usize().or_else(|| times.as_i64().map(|_| 0)).ok_or_else(|| wrong("*", l, r))
    };
    if let Some(text) = repeated.as_str() {
        let times = too_many()?;
        budget.make(text.len().saturating_mul(times))?;
        return Ok(Value::from(text.repeat(times)));
    }
    if matches!(repeated.kind(), ValueKind::Seq | ValueKind::Iterable) {
        let times = too_many()?;
        let items: Vec<Value> = repeated.try_iter()?.checked().collect::<Result<_, _>>()?;
        let n_items = items.len().saturating_mul(times);
        budget.make(n_items.saturating_mul(size_of::<Value>()))?;
        return Ok(list_like(repeated, vec![items; times].concat()));
    }
    arithmetic("*", l, r, i128::checked_mul, |a, b| Some(a * b))
}

fn concat(budget: &Budget, l: &Value, r: &Value) -> Result<Value, Error> {
    let mut text = Text::new(budget);
    text.str(l)?;
    text.str(r)?;
    Ok(Value::from(text.finish()))
}

/// `%`: the remainder with the sign of the divisor, or Python's formatting of a text.
fn remainder(
    budget: &Budget,
    state: &mut State<'_, '_>,
    l: &Value,
    r: &Value,
) -> Result<Value, Error> {
    if l.as_str().is_some() {
        let mut args = vec![l.clone()];
        match r.is_tuple() {
            true => args.extend(r.try_iter()?),
            false => args.push(r.clone()),
        }
        pay_for_call(budget, "format", &args)?;
        return state.apply_filter("format", &args);
    }
    let integers = |a: i128, b: i128| {
        let rest = a.checked_rem(b)?;
        Some(if rest.signum() == -b.signum() { rest + b } else { rest })
    };
    arithmetic("%", l, r, integers, |a, b| (b != 0.0).then(|| a - b * (a / b).floor()))
}

fn values(args: Rest<ValueOrKwargs>) -> Vec<Value> {
    args.0.into_iter().map(ValueOrKwargs::into_value).collect()
}

fn arithmetic(
    symbol: &str,
    l: &Value,
    r: &Value,
    integers: fn(i128, i128) -> Option<i128>,
    floats: fn(f64, f64) -> Option<f64>,
) -> Result<Value, Error> {
    let integer = |v: &Value| match v.kind() {
        ValueKind::Bool => Some(i128::from(v.is_true())),
        ValueKind::Number if v.is_integer() => i128::try_from(v.clone()).ok(),
        _ => None,
    };
    let float = |v: &Value| match integer(v) {
        Some(n) => Some(n as f64),
        None => f64::try_from(v.clone()).ok(),
    };
    if let (Some(a), Some(b)) = (integer(l), integer(r)) {
        let n = integers(a, b).ok_or_else(|| wrong(symbol, l, r))?;
        return Ok(i64::try_from(n).map_or_else(|_| Value::from(n), Value::from));
    }
    let result = float(l).zip(float(r)).and_then(|(a, b)| floats(a, b));
    result.map(Value::from).ok_or_else(|| wrong(symbol, l, r))
}

fn wrong(symbol: &str, l: &Value, r: &Value) -> Error {
    let kind = |v: &Value| {
        if v.is_undefined() { "an undefined value".into() } else { v.kind().to_string() }
    };
    let reason = format!("`{symbol}` cannot be applied to {} and {}", kind(l), kind(r));
    Error::new(ErrorKind::InvalidOperation, reason)
}

fn string(budget: &Budget, args: &[Value]) -> Result<Value, Error> {
    let mut text = Text::new(budget);
    args.iter().take(1).try_for_each(|value| text.str(value))?;
    Ok(Value::from(text.finish()))
}

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn to_json(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (args, kwargs) = jinja::arguments(args)?;
    let argument = |place: usize, name: &str| -> Result<Option<Value>, Error> {
        let named: Option<Value> = kwargs.get(name)?;
        Ok(args.get(place).cloned().or(named))
    };
    let is_set = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let indent = argument(1, "indent")?;
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => Some(match (indent.as_str(), indent.as_usize()) {
            (Some(text), _) => text.to_owned(),
            (None, Some(width)) if width <= 64 => " ".repeat(width),
            _ => {
                let reason = "`indent` of `tojson` must be text or at most 64";
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        }),
    };
    let separators = argument(2, "separators")?;
    let (item_separator, key_separator) = match separators.filter(|s| !s.is_none()) {
        Some(pair) => {
            let part = |idx| pair.get_item_by_index(idx).map(|part| part.to_string());
            (part(0)?, part(1)?)
        }
        None => ((if indent.is_some() { "," } else { ", " }).to_owned(), ": ".to_owned()),
    };
    let style = JsonStyle {
        indent,
        item_separator,
        key_separator,
        ensure_ascii: is_set(argument(0, "ensure_ascii")?),
        sort_keys: is_set(argument(3, "sort_keys")?),
    };
    kwargs.assert_all_used()?;
    let mut text = Text::new(budget);
    text.json(value, &style)?;
    Ok(Value::from(text.finish()))
}
