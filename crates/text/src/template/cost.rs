//! The cost of calls, which their arguments pay in advance.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::budget::Budget;

/// Cost of one call besides its arguments, which is more than that of a step because calls are
/// slower.
const CALL_BYTES: usize = 512;

/// Pays for the arguments of a filter or method, and for a result that may outgrow them.
pub(super) fn pay_for_call(budget: &Budget, name: &str, args: &[Value]) -> Result<(), Error> {
    budget.work(CALL_BYTES)?;
    args.iter().try_for_each(|arg| budget.work(shallow_bytes(arg)))?;
    let bytes = |idx: usize| args.get(idx).and_then(|v| v.as_str()).map_or(0, str::len);
    let number = |idx: usize| args.get(idx).and_then(Value::as_usize).unwrap_or(0);
    match name {
        "replace" => {
            // At most one replacement per character, and one at the end for an empty pattern.
            let n_found = bytes(0) / bytes(1).max(1) + 1;
            budget.make(bytes(0).saturating_add(n_found.saturating_mul(bytes(2))))
        }
        "join" | "sum" => {
            // As a method the separator comes first, as a filter it comes second.
            let is_method = args.first().is_some_and(|v| v.as_str().is_some()) && args.len() == 2;
            let (list, separator) = if is_method { (1, 0) } else { (0, 1) };
            let mut total = 0usize;
            if let Some(items) = args.get(list).filter(|v| v.as_str().is_none()) {
                for item in items.try_iter()?.checked() {
                    let item = item?;
                    if item.as_str().is_none() {
                        pay_deep(budget, &item, 0)?;
                    }
                    total = total.saturating_add(shallow_bytes(&item) + bytes(separator));
                    budget.make(total.min(shallow_bytes(&item) + 16))?;
                    budget.make_check(total)?;
                }
            } else {
                total = bytes(list).saturating_mul(4 + bytes(separator));
                budget.make(total)?;
            }
            Ok(())
        }
        "indent" => {
            let lines = args.first().and_then(|v| v.as_str()).map_or(0, |s| s.split('\n').count());
            let width = args.iter().skip(1).map(widest).max().unwrap_or(4).max(4);
            budget.make(bytes(0).saturating_add(lines.saturating_add(1).saturating_mul(width)))
        }
        // A character becomes at most six.
        "escape" | "e" => budget.make(bytes(0).saturating_mul(6)),
        "batch" | "slice" => budget.make(number(1).saturating_mul(size_of::<Value>())),
        "format" => {
            // Widths are written in the format itself; none needs more than four digits.
            let format = args.first().and_then(|v| v.as_str()).unwrap_or_default();
            let mut digits = 0;
            for c in format.chars() {
                digits = if c.is_ascii_digit() { digits + 1 } else { 0 };
                if digits > 4 || c == '*' {
                    let reason = "a format asks for too wide a field";
                    return Err(Error::new(ErrorKind::InvalidOperation, reason));
                }
            }
            args.iter().try_for_each(|arg| pay_deep(budget, arg, 0))?;
            let n_fields = format.matches(['%', '{']).count();
            let widest = args.iter().map(shallow_bytes).max().unwrap_or(0).saturating_add(9999);
            budget.make(format.len().saturating_add(n_fields.saturating_mul(widest)))
        }
        "sort" | "unique" | "min" | "max" | "groupby" | "dictsort" | "pprint" | "count" => {
            args.iter().try_for_each(|arg| pay_deep(budget, arg, 0))
        }
        "get" | "changed" => args.iter().skip(1).try_for_each(|arg| pay_deep(budget, arg, 0)),
        "select" | "reject" | "selectattr" | "rejectattr" => {
            // Each item is compared with the operand of the test.
            let n_items = args.first().and_then(Value::len).unwrap_or(1);
            let mut operands = (0..n_items).flat_map(|_| args.iter().skip(2));
            operands.try_for_each(|arg| pay_deep(budget, arg, 0))
        }
        _ => Ok(()),
    }
}

fn widest(value: &Value) -> usize {
    match value.as_usize() {
        Some(n) => n,
        None if value.is_kwargs() => value
            .get_attr("width")
            .map_or(0, |width| if width.is_kwargs() { 0 } else { widest(&width) }),
        None => value.as_str().map_or(0, str::len),
    }
}

pub(super) fn shallow_bytes(value: &Value) -> usize {
    match value.as_str() {
        Some(text) => text.len() + 1,
        None => value.len().unwrap_or(0).saturating_mul(size_of::<Value>()).saturating_add(1),
    }
}

/// Pays for a walk over everything in `value`, as a comparison does.
pub(super) fn pay_deep(budget: &Budget, value: &Value, depth: usize) -> Result<(), Error> {
    budget.work(shallow_bytes(value) + 64)?;
    if depth > 100 {
        return Err(Error::new(ErrorKind::InvalidOperation, "a value is nested too deeply"));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()?.checked() {
                pay_deep(budget, &item?, depth + 1)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()?.checked() {
                pay_deep(budget, &value.get_item(&key?)?, depth + 1)?;
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use minijinja::value::Kwargs;
    use pelton_base::limits;

    use super::*;

    const OUTPUT: usize = limits::TEMPLATE_OUTPUT_BYTES;

    fn list<const N: usize>(items: [Value; N]) -> Value {
        Value::from(items.to_vec())
    }

    fn letters(n_bytes: usize) -> Value {
        Value::from("a".repeat(n_bytes))
    }

    /// A list of lists, `depth` of them, with one atom.
    fn nested(depth: usize) -> Value {
        (0..depth).fold(Value::from(1), |inner, _| list([inner]))
    }

    #[test]
    fn a_call_whose_result_might_outgrow_the_limit_is_refused_before_it_is_made() {
        let half = || letters(OUTPUT / 2);
        let wide = |name: &str| Value::from(Kwargs::from_iter([(name, Value::from(OUTPUT))]));
        let text = |text: &str| Value::from(text);
        for (name, args, fits) in [
            ("replace", vec![text(""), text(""), half()], true),
            ("replace", vec![text("a"), text(""), half()], false),
            ("replace", vec![text("abababab"), text("ab"), letters(OUTPUT / 4)], false),
            ("replace", vec![text("abab"), text("ab"), letters(OUTPUT / 4)], true),
            ("join", vec![list([text("a"), text("b")]), letters(OUTPUT / 3)], true),
            ("join", vec![list([letters(999), letters(999)]), letters(20_000)], true),
            ("join", vec![list([text("a"), text("b")]), half()], false),
            ("join", vec![half(), list([text("a"), text("b")])], false),
            ("join", vec![list([half(), half()])], false),
            ("sum", vec![list([half(), half()])], false),
            ("join", vec![half()], false),
            ("join", vec![letters(OUTPUT / 4)], true),
            ("join", vec![letters(OUTPUT / 8), letters(4)], true),
            ("indent", vec![text("a\n"), letters(OUTPUT / 4)], true),
            ("indent", vec![text("a\n"), letters(OUTPUT / 3)], false),
            ("indent", vec![text("a"), Value::from(OUTPUT)], false),
            ("indent", vec![text("a"), wide("width")], false),
            ("indent", vec![text("a"), wide("first")], true),
            ("escape", vec![letters(OUTPUT / 6)], true),
            ("e", vec![letters(OUTPUT / 6 + 1)], false),
            ("batch", vec![list([]), Value::from(OUTPUT)], false),
            ("slice", vec![list([]), Value::from(OUTPUT)], false),
            ("batch", vec![list([]), Value::from(1000)], true),
            ("format", vec![text("%9999d"), Value::from(1)], true),
            ("format", vec![text("%9999d and %9999d"), Value::from(1)], true),
            ("format", vec![text("%10000d"), Value::from(1)], false),
            ("format", vec![text("%*d"), Value::from(1)], false),
            ("format", vec![text("%s{}"), half()], false),
            ("upper", vec![half(), half(), half()], true),
        ] {
            let result = pay_for_call(&Budget::new(), name, &args);
            assert_eq!(result.is_ok(), fits, "{name} of {} arguments", args.len());
        }
    }

    #[test]
    fn calls_pay_for_their_arguments_and_for_all_that_they_compare() {
        let paid = |name: &str, args: &[Value]| {
            let budget = Budget::new();
            pay_for_call(&budget, name, args).expect("below the limits");
            budget.worked() as usize - CALL_BYTES
        };
        assert_eq!(paid("upper", &[letters(3), Value::from(7)]), 4 + 1);
        assert_eq!(paid("list", &[list([letters(99)])]), size_of::<Value>() + 1);
        let items = || list([letters(999), letters(999), letters(999)]);
        let joined = paid("join", &[items(), letters(1)]);
        assert!((3000..5000).contains(&joined), "{joined} for 3000 bytes");
        let deep = || list([list([1; 100].map(Value::from))]);
        let walk = {
            let budget = Budget::new();
            pay_deep(&budget, &deep(), 0).expect("below the limits");
            budget.worked() as usize
        };
        assert!(walk > 100 * 64, "{walk}");
        let compared = [
            ("sort", vec![deep()]),
            ("unique", vec![deep()]),
            ("min", vec![deep()]),
            ("max", vec![deep()]),
            ("groupby", vec![deep()]),
            ("dictsort", vec![deep()]),
            ("pprint", vec![deep()]),
            ("count", vec![deep()]),
            ("format", vec![Value::from("%s"), deep()]),
            ("join", vec![list([deep()])]),
            ("get", vec![Value::from_pairs([("a", 1)]), deep()]),
            ("changed", vec![Value::from(1), deep()]),
        ];
        for (name, args) in compared {
            assert!(paid(name, &args) >= walk, "{name}");
        }
        for name in ["select", "reject", "selectattr", "rejectattr"] {
            let three = list([1, 2, 3].map(Value::from));
            let times = paid(name, &[three, Value::from("eq"), deep()]) / walk;
            assert_eq!(times, 3, "{name}");
        }
        assert!(paid("get", &[deep(), Value::from("a")]) < walk);
        assert!(paid("upper", &[deep()]) < walk);
    }

    #[test]
    fn a_walk_pays_for_every_item_down_to_a_hundred_levels() {
        let walk = |value: &Value| {
            let budget = Budget::new();
            pay_deep(&budget, value, 0).map(|()| budget.worked() as usize)
        };
        let paid = |value: &Value| walk(value).expect("below the limits");
        let atom = 64 + 1;
        assert_eq!(paid(&Value::from(1)), atom);
        assert_eq!(paid(&letters(10)), atom + 10);
        let item = size_of::<Value>();
        assert_eq!(paid(&list([Value::from(1), letters(10)])), 3 * atom + 2 * item + 10);
        let map = Value::from_pairs([("a", letters(10))]);
        assert_eq!(paid(&map), 2 * atom + item + 10);
        assert!(walk(&nested(100)).is_ok());
        assert!(walk(&nested(101)).is_err());
        let in_maps = |depth: usize| {
            (0..depth).fold(Value::from(1), |inner, _| Value::from_pairs([("a", inner)]))
        };
        assert!(walk(&in_maps(100)).is_ok());
        assert!(walk(&in_maps(101)).is_err());
    }
}
