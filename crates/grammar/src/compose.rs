//! A form as a grammar in the Lark notation of llguidance.

use llguidance::api::GrammarWithLexer;
use llguidance::regex_to_lark;
use pelton_base::{Shape, Tag};
use serde_json::Value;

use crate::error::GrammarError;
use crate::grammars::Layout;
use crate::limits::Limits;
use crate::vocabulary::Vocabulary;

/// The grammars of a form, the one to start with first.
pub(crate) fn compose(
    shape: &Shape,
    layout: Layout,
    vocabulary: &Vocabulary,
    limits: &Limits,
) -> Result<Vec<GrammarWithLexer>, GrammarError> {
    let mut composer = Composer {
        layout,
        vocabulary,
        limits,
        rules: String::new(),
        n_rules: 0,
        others: Vec::new(),
    };
    let start = composer.shape(shape, 0)?;
    let main = format!("start: {start}\n{}", composer.rules);
    let main = GrammarWithLexer {
        name: Some("main".to_owned()),
        lark_grammar: Some(main),
        json_schema: None,
    };
    Ok(std::iter::once(main).chain(composer.others).collect())
}

struct Composer<'a> {
    layout: Layout,
    vocabulary: &'a Vocabulary,
    limits: &'a Limits,
    rules: String,
    n_rules: usize,
    others: Vec<GrammarWithLexer>,
}

impl Composer<'_> {
    /// An expression of Lark for a form.
    fn shape(&mut self, shape: &Shape, depth: usize) -> Result<String, GrammarError> {
        if depth > self.limits.nesting {
            let why = format!("forms are nested deeper than {}", self.limits.nesting);
            return Err(GrammarError::new("", why));
        }
        let deeper = depth + 1;
        Ok(match shape {
            Shape::Text(text) => quoted(text),
            Shape::Token(name) => match self.vocabulary.control(name) {
                Some(token) => format!("<[{}]>", token.0),
                None => quoted(name),
            },
            Shape::Json { schema, path } => self.json(schema, path)?,
            Shape::Regex(regex) => {
                self.check_size(regex)?;
                format!("/{}/", regex_to_lark(regex, ""))
            }
            Shape::Lark(grammar) => {
                self.check_size(grammar)?;
                let name = format!("g{}", self.others.len());
                self.others.push(GrammarWithLexer {
                    name: Some(name.clone()),
                    lark_grammar: Some(grammar.clone()),
                    json_schema: None,
                });
                format!("@{name}")
            }
            Shape::Gbnf(_) => return Err(GrammarError::new("", "GBNF is not built yet")),
            Shape::Until(text) => self.until(text),
            Shape::Any => "/(?s:.*)/".to_owned(),
            Shape::Sequence(items) => {
                let items: Result<Vec<String>, _> =
                    items.iter().map(|item| self.shape(item, deeper)).collect();
                let items = items?;
                if items.is_empty() { quoted("") } else { format!("({})", items.join(" ")) }
            }
            Shape::OneOf(items) if items.is_empty() => {
                return Err(GrammarError::new("", "a choice of nothing cannot be fulfilled"));
            }
            Shape::OneOf(items) => {
                let items: Result<Vec<String>, _> =
                    items.iter().map(|item| self.shape(item, deeper)).collect();
                format!("({})", items?.join(" | "))
            }
            Shape::Repeat { item, separator, least, most } => {
                let item = self.shape(item, deeper)?;
                let item = self.rule(&item);
                repeated(&item, separator, *least, *most)?
            }
            Shape::Triggered { tags, triggers, at_least_one, stop_after_first } => {
                self.triggered(tags, triggers, *at_least_one, *stop_after_first, deeper)?
            }
        })
    }

    fn rule(&mut self, body: &str) -> String {
        self.named("", body)
    }

    fn named(&mut self, options: &str, body: &str) -> String {
        let name = format!("r{}", self.n_rules);
        self.n_rules += 1;
        self.rules.push_str(&format!("{name}{options}: {body}\n"));
        name
    }

    fn check_size(&self, source: &str) -> Result<(), GrammarError> {
        if source.len() > self.limits.source_bytes {
            let why = format!("{} bytes are more than {}", source.len(), self.limits.source_bytes);
            return Err(GrammarError::new("", why));
        }
        Ok(())
    }

    fn until(&mut self, text: &str) -> String {
        if text.is_empty() {
            return quoted("");
        }
        self.named("[lazy]", &format!("/(?s:.*){}/", escaped(text)))
    }

    fn json(&mut self, schema: &str, path: &str) -> Result<String, GrammarError> {
        self.check_size(schema)?;
        let mut schema: Value = serde_json::from_str(schema)
            .map_err(|error| GrammarError::new(path, format!("not JSON: {error}")))?;
        if schema == Value::Bool(true) {
            schema = serde_json::json!({});
        }
        let Some(object) = schema.as_object_mut() else {
            return Err(GrammarError::new(path, "expected a JSON object"));
        };
        let options = match self.layout {
            Layout::Free => serde_json::json!({"whitespace_pattern": " |\\n[ \\t]{0,64}"}),
            Layout::Spaced => {
                serde_json::json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "})
            }
            Layout::Compact => serde_json::json!({"whitespace_flexible": false}),
        };
        object.insert("x-guidance".to_owned(), options);
        Ok(format!("%json {schema}"))
    }

    fn triggered(
        &mut self,
        tags: &[Tag],
        triggers: &[String],
        at_least_one: bool,
        stop_after_first: bool,
        depth: usize,
    ) -> Result<String, GrammarError> {
        let mut options = Vec::new();
        for trigger in triggers {
            let mut rest = Vec::new();
            for tag in tags.iter().filter(|tag| tag.begin.starts_with(trigger.as_str())) {
                let begin = quoted(&tag.begin[trigger.len()..]);
                let content = self.shape(&tag.content, depth)?;
                rest.push(format!("{begin} {content} {}", quoted(&tag.end)));
            }
            if rest.is_empty() {
                continue;
            }
            let head = match self.vocabulary.control(trigger) {
                Some(token) => format!("/(?s:.*)/ <[{}]>", token.0),
                None => self.until(trigger),
            };
            options.push(format!("{head} ({})", rest.join(" | ")));
        }
        if options.is_empty() {
            return Err(GrammarError::new("", "no tag begins with one of the triggers"));
        }
        let tag = self.rule(&options.join(" | "));
        let tail = "/(?s:.*)/";
        Ok(match (at_least_one, stop_after_first) {
            (true, true) => tag,
            (false, true) => format!("({tag} | {tail})"),
            (true, false) => format!("({tag}+ {tail})"),
            (false, false) => format!("({tag}* {tail})"),
        })
    }
}

fn repeated(
    item: &str,
    separator: &str,
    least: usize,
    most: Option<usize>,
) -> Result<String, GrammarError> {
    if most.is_some_and(|most| most < least) {
        return Err(GrammarError::new("", format!("at least {least} and at most {most:?} items")));
    }
    if most == Some(0) {
        return Ok(quoted(""));
    }
    let more = least.saturating_sub(1);
    let bounds = match most {
        Some(most) => format!("{{{more},{}}}", most - 1),
        None => format!("{{{more},}}"),
    };
    let one = format!("{item} ({} {item}){bounds}", quoted(separator));
    Ok(if least == 0 { format!("({one})?") } else { format!("({one})") })
}

/// A text as a literal of Lark.
fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A text as a part of a regular expression between slashes.
fn escaped(text: &str) -> String {
    regex_to_lark(&regex_syntax::escape(text), "")
}
