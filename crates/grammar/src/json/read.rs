//! Reads the keywords of a document, and follows its references.

use std::collections::{HashMap, VecDeque};

use serde_json::{Map, Value};

use super::decimal::Decimal;
use super::formats;
use super::keywords::{Fate, fate};
use super::pattern::Pattern;
use super::raw::{Condition, Raw, RawId, Types};
use super::references::References;
use crate::error::GrammarError;
use crate::limits::Limits;

/// Counts beyond this are no bound: no answer is that long.
const MOST_MEMBERS: usize = 1 << 30;

/// The schemas of one document; the first is its root.
pub(super) struct Reader<'d> {
    document: &'d Value,
    root_path: &'d str,
    limits: &'d Limits,
    references: References,
    pub raws: Vec<Raw>,
    by_pointer: HashMap<String, RawId>,
    /// Schemas that are referred to and not read yet.
    pending: VecDeque<(RawId, String)>,
}

type Read<T> = Result<T, GrammarError>;

/// Reads a document as a whole.
///
/// # Errors
///
/// Names the path of the first keyword that is malformed or cannot be enforced.
pub(super) fn read(document: &Value, path: &str, limits: &Limits) -> Read<Vec<Raw>> {
    let mut reader = Reader {
        document,
        root_path: path,
        limits,
        references: References::of(document),
        raws: Vec::new(),
        by_pointer: HashMap::new(),
        pending: VecDeque::new(),
    };
    reader.at_pointer("");
    while let Some((id, pointer)) = reader.pending.pop_front() {
        let value = document.pointer(&pointer).unwrap_or(&Value::Null);
        let path = reader.path_of(&pointer);
        let raw = reader.schema(value, &path, &pointer)?;
        reader.raws[id] = raw;
    }
    Ok(reader.raws)
}

impl Reader<'_> {
    /// The number of the schema at a pointer, which is read later.
    fn at_pointer(&mut self, pointer: &str) -> RawId {
        if let Some(id) = self.by_pointer.get(pointer) {
            return *id;
        }
        let id = self.raws.len();
        self.raws.push(Raw::default());
        self.by_pointer.insert(pointer.to_owned(), id);
        self.pending.push_back((id, pointer.to_owned()));
        id
    }

    /// A pointer as a path of the request.
    fn path_of(&self, pointer: &str) -> String {
        let mut path = self.root_path.to_owned();
        for part in pointer.split('/').skip(1) {
            let part = part.replace("~1", "/").replace("~0", "~");
            if part.bytes().all(|b| b.is_ascii_digit()) && !part.is_empty() {
                path.push_str(&format!("[{part}]"));
            } else {
                path.push_str(if path.is_empty() { "" } else { "." });
                path.push_str(&part);
            }
        }
        path
    }

    fn child(&mut self, pointer: &str, parts: &[&str]) -> RawId {
        let mut pointer = pointer.to_owned();
        for part in parts {
            pointer.push('/');
            pointer.push_str(&part.replace('~', "~0").replace('/', "~1"));
        }
        self.at_pointer(&pointer)
    }

    fn schema(&mut self, value: &Value, path: &str, pointer: &str) -> Read<Raw> {
        if self.raws.len() > self.limits.symbols {
            return Err(GrammarError::new(path, "the schema is too large"));
        }
        let mut raw = Raw::at(path);
        let object = match value {
            Value::Bool(allows) => {
                raw.never = !allows;
                return Ok(raw);
            }
            Value::Object(object) => object,
            _ => return Err(GrammarError::new(path, "expected a schema: an object or a boolean")),
        };
        for (keyword, value) in object {
            let place = format!("{path}.{keyword}");
            match fate(keyword) {
                Fate::Annotation => {}
                Fate::Refused(why) => return Err(GrammarError::new(place, why)),
                Fate::Enforced => {
                    let at = At { keyword, value, path: &place, pointer, object };
                    self.keyword(&mut raw, &at)?;
                }
            }
        }
        self.condition(&mut raw, object, pointer);
        Ok(raw)
    }

    fn keyword(&mut self, raw: &mut Raw, at: &At<'_>) -> Read<()> {
        match at.keyword {
            "$ref" => {
                let reference = at.text()?;
                let target = self
                    .references
                    .resolve(self.document, at.pointer, reference)
                    .map_err(|why| at.error(why))?;
                raw.all.push(self.at_pointer(&target));
            }
            "type" => raw.types = Some(at.types()?),
            "const" => narrow(&mut raw.values, vec![at.value.clone()]),
            "enum" => narrow(&mut raw.values, at.values(self.limits.choices)?),
            "allOf" => raw.all.extend(self.list(at)?),
            "anyOf" => raw.any.push(self.some(at)?),
            "oneOf" => raw.one.push(self.some(at)?),
            "not" => raw.not.push(self.child(at.pointer, &["not"])),
            "if" | "then" | "else" => {}
            "dependencies" | "dependentRequired" | "dependentSchemas" => {
                self.dependents(raw, at)?;
            }
            "multipleOf" => raw.multiple_of = Some(at.factor()?),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => at.bound(raw)?,
            "minLength" => raw.length.least = at.count()?,
            "maxLength" => raw.length.most = Some(at.count()?),
            "minItems" => raw.n_items.least = at.count()?,
            "maxItems" => raw.n_items.most = Some(at.count()?),
            "minProperties" => raw.n_properties.least = at.count()?,
            "maxProperties" => raw.n_properties.most = Some(at.count()?),
            "pattern" => raw.patterns.push(at.pattern(at.text()?)?),
            "format" => formats::apply(raw, at.text()?).map_err(|why| at.error(why))?,
            "uniqueItems" => raw.only_forward.extend(at.unique()?),
            _ => return self.children(raw, at),
        }
        Ok(())
    }

    /// Keywords whose schemas speak about members.
    fn children(&mut self, raw: &mut Raw, at: &At<'_>) -> Read<()> {
        match at.keyword {
            "properties" => {
                raw.all_before = raw.all.len();
                for name in at.members()?.keys() {
                    let schema = self.child(at.pointer, &["properties", name]);
                    raw.add_property(name, schema);
                }
            }
            "patternProperties" => {
                for source in at.members()?.keys() {
                    let pattern = at.pattern(source)?;
                    let schema = self.child(at.pointer, &["patternProperties", source]);
                    raw.pattern_properties.push((pattern, schema));
                }
            }
            "additionalProperties" => {
                raw.additional = Some(self.child(at.pointer, &[at.keyword]));
            }
            "unevaluatedProperties" => {
                raw.unevaluated = Some(self.child(at.pointer, &[at.keyword]));
            }
            "propertyNames" => raw.names = Some(self.child(at.pointer, &[at.keyword])),
            "required" => raw.required = at.names()?,
            "prefixItems" => raw.prefix = self.list(at)?,
            // Drafts before 2020 write the first items as a list of `items`.
            "items" if at.value.is_array() => raw.prefix = self.list(at)?,
            "items" => raw.items = Some(self.child(at.pointer, &["items"])),
            "additionalItems" if at.object.get("items").is_some_and(Value::is_array) => {
                raw.items = Some(self.child(at.pointer, &["additionalItems"]));
            }
            // Without a list of `items` it means nothing.
            "additionalItems" => {}
            other => {
                let why = format!("`{other}` is not supported");
                return Err(at.error(why));
            }
        }
        Ok(())
    }

    fn list(&mut self, at: &At<'_>) -> Read<Vec<RawId>> {
        let Value::Array(items) = at.value else {
            return Err(at.error("expected a list of schemas"));
        };
        let items = 0..items.len();
        Ok(items.map(|idx| self.child(at.pointer, &[at.keyword, &idx.to_string()])).collect())
    }

    fn some(&mut self, at: &At<'_>) -> Read<Vec<RawId>> {
        let items = self.list(at)?;
        if items.is_empty() { Err(at.error("an empty list allows no value")) } else { Ok(items) }
    }

    fn condition(&mut self, raw: &mut Raw, object: &Map<String, Value>, pointer: &str) {
        let mut schema =
            |keyword| object.contains_key(keyword).then(|| self.child(pointer, &[keyword]));
        // `then` and `else` mean nothing without `if`, and `if` means nothing alone.
        let (test, then, otherwise) = (schema("if"), schema("then"), schema("else"));
        if let Some(test) = test
            && (then.is_some() || otherwise.is_some())
        {
            raw.conditions.push(Condition { test, then, otherwise });
        }
    }

    fn dependents(&mut self, raw: &mut Raw, at: &At<'_>) -> Read<()> {
        for (name, value) in at.members()? {
            let schema = match value {
                Value::Array(names) if at.keyword != "dependentSchemas" => {
                    let required: Option<Vec<String>> =
                        names.iter().map(|name| Some(name.as_str()?.to_owned())).collect();
                    let Some(required) = required else {
                        return Err(at.error("expected a list of property names"));
                    };
                    let path = format!("{}.{name}", at.path);
                    self.raws.push(Raw { required, ..Raw::at(&path) });
                    self.raws.len() - 1
                }
                Value::Bool(_) | Value::Object(_) if at.keyword != "dependentRequired" => {
                    self.child(at.pointer, &[at.keyword, name])
                }
                _ => return Err(at.error("expected lists of property names or schemas")),
            };
            raw.dependents.push((name.clone(), schema));
        }
        Ok(())
    }
}

/// Keeps the values that are in both lists.
fn narrow(values: &mut Option<Vec<Value>>, others: Vec<Value>) {
    *values = Some(match values.take() {
        Some(known) => known.into_iter().filter(|v| others.iter().any(|o| same(v, o))).collect(),
        None => others,
    });
}

/// Whether two values are equal as JSON Schema sees it: `1` and `1.0` are.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (Decimal::of(a), Decimal::of(b)) {
            (Some(a), Some(b)) => a == b,
            _ => a == b,
        },
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let has = |(name, a): (&String, &Value)| b.get(name).is_some_and(|b| same(a, b));
            a.len() == b.len() && a.iter().all(has)
        }
        _ => a == b,
    }
}

/// A keyword with its value.
struct At<'a> {
    keyword: &'a str,
    value: &'a Value,
    path: &'a str,
    /// The pointer of the schema around it.
    pointer: &'a str,
    object: &'a Map<String, Value>,
}

impl At<'_> {
    fn error(&self, why: impl Into<String>) -> GrammarError {
        GrammarError::new(self.path, why)
    }

    fn text(&self) -> Read<&str> {
        self.value.as_str().ok_or_else(|| self.error("expected a text"))
    }

    fn members(&self) -> Read<&Map<String, Value>> {
        self.value.as_object().ok_or_else(|| self.error("expected an object"))
    }

    fn names(&self) -> Read<Vec<String>> {
        let names = self.value.as_array().and_then(|names| {
            names.iter().map(|name| Some(name.as_str()?.to_owned())).collect::<Option<Vec<_>>>()
        });
        names.ok_or_else(|| self.error("expected a list of property names"))
    }

    fn types(&self) -> Read<Types> {
        let one = |value: &Value| {
            let name = value.as_str().unwrap_or_default();
            Types::of_name(name).ok_or_else(|| {
                let known = "null, boolean, integer, number, string, array, object";
                self.error(format!("{value} is no type, expected one of {known}"))
            })
        };
        match self.value {
            Value::Array(list) => {
                list.iter().try_fold(Types(0), |all, value| Ok(all.or(one(value)?)))
            }
            value => one(value),
        }
    }

    fn values(&self, limit: usize) -> Read<Vec<Value>> {
        match self.value {
            Value::Array(values) if values.is_empty() => {
                Err(self.error("an empty list allows no value"))
            }
            Value::Array(values) if values.len() > limit => {
                Err(self.error(format!("{} values are more than {limit}", values.len())))
            }
            Value::Array(values) => Ok(values.clone()),
            _ => Err(self.error("expected a list of values")),
        }
    }

    fn count(&self) -> Read<usize> {
        let as_whole =
            |number: f64| (number.fract() == 0.0 && number >= 0.0).then_some(number as u64);
        let number = self.value.as_u64().or_else(|| self.value.as_f64().and_then(as_whole));
        let number =
            number.ok_or_else(|| self.error("expected an integer that is not negative"))?;
        Ok(usize::try_from(number).unwrap_or(usize::MAX).min(MOST_MEMBERS))
    }

    fn pattern(&self, source: &str) -> Read<Pattern> {
        Pattern::searched(source).map_err(|why| self.error(why))
    }

    fn number(&self) -> Read<Decimal> {
        let Value::Number(number) = self.value else {
            return Err(self.error("expected a number"));
        };
        let number = Decimal::of(number).filter(|number| number.fraction.len() <= 40);
        number.ok_or_else(|| self.error("expected a number of at most 40 decimal places"))
    }

    fn factor(&self) -> Read<Decimal> {
        let factor = self.number()?;
        let fits = !factor.is_zero()
            && !factor.negative
            && factor.whole.len() + factor.fraction.len() <= 9;
        if fits {
            Ok(factor)
        } else {
            Err(self.error("expected a positive number of at most 9 digits"))
        }
    }

    fn bound(&self, raw: &mut Raw) -> Read<()> {
        let is_lower = matches!(self.keyword, "minimum" | "exclusiveMinimum");
        let (bound, open) = match (self.keyword, self.value) {
            // In draft 4 these say whether the bound beside them is excluded.
            ("exclusiveMinimum" | "exclusiveMaximum", Value::Bool(open)) => {
                let beside = if is_lower { "minimum" } else { "maximum" };
                let Some(value) = self.object.get(beside).filter(|_| *open) else { return Ok(()) };
                (At { value, ..*self }.number()?, true)
            }
            (keyword, _) => (self.number()?, keyword.starts_with("exclusive")),
        };
        if is_lower {
            raw.bounds.at_least(bound, open)
        } else {
            raw.bounds.at_most(bound, open)
        }
        Ok(())
    }

    /// `uniqueItems`, which is nothing where there is at most one item.
    fn unique(&self) -> Read<Option<&'static str>> {
        let at_most_one =
            self.object.get("maxItems").and_then(Value::as_u64).is_some_and(|n| n <= 1);
        match self.value {
            Value::Bool(false) => Ok(None),
            Value::Bool(true) if at_most_one => Ok(None),
            Value::Bool(true) => Err(self.error("a grammar cannot compare items with each other")),
            _ => Err(self.error("expected true or false")),
        }
    }
}
