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
