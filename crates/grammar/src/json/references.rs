//! References inside of a document.

use serde_json::{Map, Value};

/// Names that a document gives to its parts.
pub(super) struct References {
    /// Schemas with an `$id` (or `id`) of their own: the absolute name, and the pointer. The root is
    /// the first.
    documents: Vec<(String, String)>,
    /// Anchors, with the pointer of the document that they are in and their own.
    anchors: Vec<(String, String, String)>,
}

impl References {
    pub(super) fn of(document: &Value) -> Self {
        let mut references =
            Self { documents: vec![(String::new(), String::new())], anchors: Vec::new() };
        // A value, its pointer, and the index of the document that it is in.
        let mut stack = vec![(document, String::new(), 0)];
        while let Some((value, pointer, mut within)) = stack.pop() {
            match value {
                Value::Object(object) => {
                    references.names(object, &pointer, &mut within);
                    let is_data = |name: &str| {
                        matches!(name, "enum" | "const" | "default" | "examples" | "example")
                    };
                    for (name, value) in object.iter().filter(|(name, _)| !is_data(name)) {
                        let name = name.replace('~', "~0").replace('/', "~1");
                        stack.push((value, format!("{pointer}/{name}"), within));
                    }
                }
                Value::Array(items) => {
                    let items = items.iter().enumerate();
                    let below = |(idx, value)| (value, format!("{pointer}/{idx}"), within);
                    stack.extend(items.map(below));
                }
                _ => {}
            }
        }
        references
    }

    /// Notes the names of one object.
    fn names(&mut self, object: &Map<String, Value>, pointer: &str, within: &mut usize) {
        for keyword in ["$id", "id"] {
            let Some(id) = object.get(keyword).and_then(Value::as_str) else { continue };
            if let Some(anchor) = id.strip_prefix('#') {
                let base = self.documents[*within].1.clone();
                self.anchors.push((anchor.to_owned(), base, pointer.to_owned()));
            } else if keyword == "$id" || looks_like_a_schema(object) {
                let name = joined(&self.documents[*within].0, id.trim_end_matches('#'));
                if pointer.is_empty() {
                    self.documents[0].0 = name;
                } else {
                    *within = self.documents.len();
                    self.documents.push((name, pointer.to_owned()));
                }
            }
        }
        if let Some(anchor) = object.get("$anchor").and_then(Value::as_str) {
            let base = self.documents[*within].1.clone();
            self.anchors.push((anchor.to_owned(), base, pointer.to_owned()));
        }
    }

    /// The pointer that `reference` means in the schema at `from`.
    ///
    /// # Errors
    ///
    /// When it leads out of the document, or to nothing.
    pub(super) fn resolve(
        &self,
        document: &Value,
        from: &str,
        reference: &str,
    ) -> Result<String, String> {
        let (name, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let around = self.around(from);
        let base = if name.is_empty() { around } else { self.document(around, name)? };
        let base = &base.1;
        let fragment = unescaped(fragment);
        let pointer = if fragment.is_empty() || fragment == "/" {
            base.clone()
        } else if fragment.starts_with('/') {
            let whole = format!("{base}{fragment}");
            // Some documents refer from their root inside of a schema with an `$id`.
            if document.pointer(&whole).is_some() { whole } else { fragment.clone() }
        } else {
            let mut named = self.anchors.iter().filter(|(known, ..)| *known == fragment);
            let own = named.clone().find(|(_, document, _)| document == base);
            let anchor = own.or_else(|| named.next());
            let anchor = anchor.ok_or_else(|| format!("no schema has the anchor {fragment:?}"))?;
            anchor.2.clone()
        };
        match document.pointer(&pointer) {
            Some(Value::Object(_) | Value::Bool(_)) => Ok(pointer),
            Some(_) => Err(format!("{reference:?} is not a schema")),
            None => Err(format!("{reference:?} leads to nothing in this schema")),
        }
    }

    fn document(&self, around: &(String, String), name: &str) -> Result<&(String, String), String> {
        let whole = joined(&around.0, name);
        let found = self.documents.iter().find(|(known, _)| *known == whole || known == name);
        found.ok_or_else(|| {
            format!("{name:?} is another document, and none is fetched; put it under $defs")
        })
    }

    /// The innermost schema around a pointer that has a name of its own.
    fn around(&self, pointer: &str) -> &(String, String) {
        let is_around = |base: &&(String, String)| {
            pointer
                .strip_prefix(&base.1)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let bases = self.documents.iter().filter(is_around);
        bases.max_by_key(|(_, base)| base.len()).unwrap_or(&self.documents[0])
    }
}

/// Whether an object with an `id` is a schema, not a list of properties of which one is called so.
fn looks_like_a_schema(object: &Map<String, Value>) -> bool {
    let words = ["type", "properties", "$schema", "$defs", "definitions", "$ref", "enum", "anyOf"];
    words.iter().any(|word| object.contains_key(*word))
}

/// A name relative to another, as in RFC 3986, section 5.2, without dots in its middle.
fn joined(base: &str, name: &str) -> String {
    if name.contains("://") || name.starts_with("urn:") || base.is_empty() {
        return name.to_owned();
    }
    let host = base.find("://").map_or(0, |at| at + 3);
    let path = base[host..].find('/').map_or(base.len(), |at| host + at);
    if name.starts_with('/') {
        return format!("{}{name}", &base[..path]);
    }
    let folder = base.rfind('/').filter(|at| *at >= path).map_or(base.len(), |at| at);
    format!("{}/{}", &base[..folder], name.trim_start_matches("./"))
}

/// A fragment with its percent signs decoded.
fn unescaped(fragment: &str) -> String {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let code = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code {
            Some(code) if byte == b'%' => {
                bytes.push(code);
                rest = &after[2..];
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
