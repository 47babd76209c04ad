//! One message of a conversation, with its fields in the order they came in.

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde_json::{Map, Value as Json};

/// One message of a conversation.
///
/// Fields beyond `role` and `content` (`name`, `tool_calls`, ...) reach the template as they are.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// The speaker: `system`, `user`, `assistant`, `tool`, or another role of the template.
    pub role: String,
    /// The content: usually a string; null and lists of parts are passed on.
    pub content: Json,
    /// All other fields, in the order given. Where a message does not begin with `role` and
    /// `content`, these keys are here too, with null for a value, and mark their places; a message
    /// without `content` has only the mark of its `role`.
    pub extra: Map<String, Json>,
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into().into(), extra: Map::new() }
    }

    /// All fields in their order: a dictionary prints as it was written.
    pub(super) fn fields(&self) -> Vec<(&str, Json)> {
        let is_marked = self.extra.contains_key("role");
        let mut fields: Vec<(&str, Json)> = Vec::with_capacity(self.extra.len() + 2);
        if !is_marked {
            fields.push(("role", Json::from(self.role.as_str())));
            fields.push(("content", self.content.clone()));
        }
        fields.extend(self.extra.iter().map(|(key, value)| match key.as_str() {
            "role" => ("role", Json::from(self.role.as_str())),
            "content" => ("content", self.content.clone()),
            key => (key, value.clone()),
        }));
        fields
    }
}

/// Fields that hold the reasoning of a model; the first one that is set wins.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Copies the reasoning of a message to the names that templates read: as in `transformers`, to
/// `reasoning_content` and `thinking`, from the field of [`REASONING`] that the message has.
pub(super) fn alias_reasoning(mut fields: Vec<(&str, Json)>) -> Vec<(&str, Json)> {
    let find = |name: &str| fields.iter().find(|(key, value)| *key == name && !value.is_null());
    let Some((_, thoughts)) = REASONING.iter().find_map(|name| find(name)).cloned() else {
        return fields;
    };
    let thinking = match fields.iter().position(|(key, _)| *key == "thinking") {
        Some(at) => fields.remove(at),
        None => ("thinking", thoughts.clone()),
    };
    fields.insert(0, thinking);
    match fields.iter_mut().find(|(key, _)| *key == "reasoning_content") {
        Some((_, value)) => *value = thoughts,
        None => fields.push(("reasoning_content", thoughts)),
    }
    fields
}

impl serde::Serialize for Message {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = self.fields();
        let mut map = serializer.serialize_map(Some(fields.len()))?;
        for (key, value) in &fields {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> serde::Deserialize<'de> for Message {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut extra = Map::<String, Json>::deserialize(deserializer)?;
        let role = match extra.get("role") {
            Some(Json::String(role)) => role.clone(),
            Some(_) => return Err(D::Error::custom("`role` of a message is not a string")),
            None => return Err(D::Error::missing_field("role")),
        };
        let content = extra.get("content").cloned().unwrap_or_default();
        let is_plain = extra.keys().take(2).eq(["role", "content"]);
        if is_plain {
            extra.shift_remove("role");
            extra.shift_remove("content");
        } else {
            for key in ["role", "content"] {
                if let Some(mark) = extra.get_mut(key) {
                    *mark = Json::Null;
                }
            }
        }
        Ok(Self { role, content, extra })
    }
}
