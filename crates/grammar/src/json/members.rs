//! Objects and arrays as sequences of members.
//!
//! The properties of an object come in their order, each at most once, the ones with other names
//! behind them. A rule is needed for "from property i on, with c properties before", where c matters
//! only as far as commas and the bounds on the number of properties do:
//!
//! ```text
//!   from(i, 0)   =  item_i from(i+1, 1)  |  from(i+1, 0)         the second for optional ones only
//!   from(i, c)   =  , item_i from(i+1, c+1)  |  from(i+1, c)
//!   from(n, c)   =  (, other)*
//! ```

use super::emit::{Emitter, texts_expression};
use super::node::{Array, Object};
use super::raw::Count;
use super::solve::Solved;
use crate::error::GrammarError;

/// Rules that the counting of properties may take.
const MAX_COUNTED: usize = 4_000;

impl Emitter<'_> {
    pub(super) fn object(&mut self, object: &Object) -> Solved<String> {
        let alive = |property: &&super::node::Property| self.alive[property.node];
        let listed: Vec<_> = object.properties.iter().filter(alive).cloned().collect();
        let mut items = Vec::with_capacity(listed.len());
        for property in &listed {
            let key = self.key(&property.name);
            let value = self.expression(property.node);
            items.push((format!("{key} {value}"), property.required));
        }
        let rest = self.rest(object);
        let n_required = items.iter().filter(|(_, required)| *required).count();
        let Count { least, most } = object.n;
        let is_loose =
            least <= n_required && most.is_none_or(|most| rest.is_none() && items.len() <= most);
        let bounds = if is_loose { Count::default() } else { object.n };
        let body = self.sequence(&items, rest.as_deref(), bounds, &object.path)?;
        Ok(format!("{} {body} {}", self.marks.open_object, self.marks.close_object))
    }

    /// One property whose name is not listed.
    fn rest(&mut self, object: &Object) -> Option<String> {
        let taken: Vec<String> = object.properties.iter().map(|p| p.name.clone()).collect();
        let mut options = Vec::new();
        for rest in object.rest.iter().filter(|rest| self.alive[rest.node]) {
            let names = texts_expression(self.book, &rest.names, &taken);
            let key = self.book.terminal(&format!("{names} {}", self.marks.colon));
            let value = self.expression(rest.node);
            options.push(format!("{key} {value}"));
        }
        (!options.is_empty()).then(|| self.book.rule(&options.join(" | ")))
    }

    /// The table of the chapter, from its last row to its first.
    fn sequence(
        &mut self,
        items: &[(String, bool)],
        rest: Option<&str>,
        bounds: Count,
        path: &str,
    ) -> Solved<String> {
        // Beyond this number of properties one more makes no difference.
        let cap = bounds.most.unwrap_or(bounds.least).max(1);
        let cap = if rest.is_none() { cap.min(items.len().max(1)) } else { cap };
        let is_counted = bounds != Count::default();
        if is_counted && cap.saturating_mul(items.len().max(1)) > MAX_COUNTED {
            let why = format!("counting {} properties up to {cap} is too much", items.len());
            return Err(GrammarError::new(path, why));
        }
        let mut row: Vec<Option<String>> = Vec::with_capacity(cap + 1);
        for count in 0..=cap {
            row.push(self.others(rest, bounds, count, cap, path)?);
        }
        let n_leading = items.iter().take_while(|(_, required)| !required).count();
        for (idx, (item, required)) in items.iter().enumerate().rev() {
            let mut before = Vec::with_capacity(cap + 1);
            for count in 0..=cap {
                let is_full = bounds.most.is_some_and(|most| count >= most);
                let next = if is_full { None } else { row[(count + 1).min(cap)].clone() };
                let comma = if count == 0 { "" } else { self.marks.comma.as_str() };
                let with = next.as_ref().map(|next| format!("{comma} {item} {next}"));
                let without = if *required { None } else { row[count].clone() };
                before.push(match (with, without) {
                    (Some(_), Some(without)) if Some(&without) == next.as_ref() => {
                        Some(format!("({comma} {item})? {without}"))
                    }
                    (Some(with), Some(without)) => {
                        let without = if without.trim().is_empty() { "\"\"" } else { &without };
                        Some(self.book.rule(&format!("{with} | {without}")))
                    }
                    (with, without) => with.or(without),
                });
            }
            row = before;
            // Used by the alternatives above more than once, hence under a name.
            if is_counted || idx <= n_leading {
                for expression in row.iter_mut().flatten() {
                    if expression.len() > 40 {
                        *expression = self.book.rule(expression);
                    }
                }
            }
        }
        Ok(row.swap_remove(0).unwrap_or_default())
    }

    /// The form after the last listed property; `None` where the bounds cannot be kept.
    fn others(
        &mut self,
        rest: Option<&str>,
        bounds: Count,
        count: usize,
        cap: usize,
        path: &str,
    ) -> Solved<Option<String>> {
        let least = bounds.least.saturating_sub(count);
        // At the cap of a lower bound the true count may be larger, which is no matter.
        let most = bounds.most.map(|most| most.saturating_sub(count));
        debug_assert!(count <= cap);
        let Some(rest) = rest else {
            return Ok((least == 0).then(String::new));
        };
        if least > 1 {
            let why = format!(
                "properties that the schema does not list may repeat a name, so {least} of them \
                 cannot be enforced"
            );
            return Err(GrammarError::new(format!("{path}.minProperties"), why));
        }
        if most == Some(0) {
            return Ok((least == 0).then(String::new));
        }
        let comma = self.marks.comma.as_str();
        Ok(Some(match (count, least) {
            (0, 0) => format!("({rest} {})?", bounded(comma, rest, most.map(|most| most - 1))),
            (0, _) => format!("{rest} {}", bounded(comma, rest, most.map(|most| most - 1))),
            (_, least) => counted(&format!("{comma} {rest}"), least, most),
        }))
    }

    pub(super) fn array(&mut self, array: &Array) -> String {
        let Count { least, most } = array.n;
        let mut items = Vec::new();
        let mut most = most;
        for (idx, node) in array.prefix.iter().enumerate() {
            if most.is_some_and(|most| idx >= most) {
                break;
            }
            if !self.alive[*node] {
                // Nothing fits here, so the list ends before.
                most = Some(idx);
                break;
            }
            items.push(self.expression(*node));
        }
        let n_prefix = items.len();
        let is_open = self.alive[array.items] && most.is_none_or(|most| most > n_prefix);
        let comma = self.marks.comma.clone();
        let mut tail = String::new();
        if is_open {
            let item = self.expression(array.items);
            let (least, most) = (least.saturating_sub(n_prefix), most.map(|most| most - n_prefix));
            tail = if n_prefix > 0 {
                counted(&format!("{comma} {item}"), least, most)
            } else {
                let more = counted(
                    &format!("{comma} {item}"),
                    least.saturating_sub(1),
                    most.map(|most| most - 1),
                );
                let all = format!("{item} {more}");
                if least == 0 { format!("({all})?") } else { all }
            };
        }
        for (idx, item) in items.iter().enumerate().rev() {
            let comma = if idx == 0 { "" } else { comma.as_str() };
            let all = format!("{comma} {item} {tail}");
            tail = if idx < least { all } else { format!("({all})?") };
            if idx % 8 == 7 {
                tail = self.book.rule(&tail);
            }
        }
        format!("{} {tail} {}", self.marks.open_array, self.marks.close_array)
    }
}

/// As many of `, rest` as are allowed.
fn bounded(comma: &str, rest: &str, most: Option<usize>) -> String {
    counted(&format!("{comma} {rest}"), 0, most)
}

fn counted(item: &str, least: usize, most: Option<usize>) -> String {
    match (least, most) {
        (_, Some(0)) => String::new(),
        (0, None) => format!("({item})*"),
        (least, None) => format!("({item}){{{least},}}"),
        (least, Some(most)) => format!("({item}){{{least},{most}}}"),
    }
}
