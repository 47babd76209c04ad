//! The registry of the ways in which models mark their thoughts.

use pelton_base::Shape;

use crate::formats::same_name;

/// A way to mark the thought before an answer.
#[derive(Debug)]
pub struct ReasoningFormat {
    name: &'static str,
    aliases: &'static [&'static str],
    opens: &'static [&'static str],
    closes: &'static [&'static str],
    /// Text with which a model ends its thought.
    close: &'static str,
    /// Text that follows the end of a thought and is no part of the answer.
    before_answer: &'static str,
    /// Texts of chat templates that show it; each will do.
    marks: &'static [&'static str],
    has_channels: bool,
}

/// A format with one mark on each side.
const fn marks(
    names: (&'static str, &'static [&'static str]),
    opens: &'static [&'static str],
    closes: &'static [&'static str],
    close: &'static str,
) -> ReasoningFormat {
    ReasoningFormat {
        name: names.0,
        aliases: names.1,
        opens,
        closes,
        close,
        before_answer: "",
        marks: opens,
        has_channels: false,
    }
}

/// Every format.
pub static REASONING_FORMATS: &[ReasoningFormat] = &[
    ReasoningFormat {
        name: "openai_gptoss",
        aliases: &["gpt-oss", "harmony"],
        opens: &["<|channel|>analysis<|message|>"],
        closes: &["<|end|>"],
        close: "<|end|>",
        before_answer: "<|start|>assistant<|channel|>final<|message|>",
        marks: &["<|channel|>"],
        has_channels: true,
    },
    marks(("seed_oss", &[]), &["<seed:think>"], &["</seed:think>"], "\n</seed:think>"),
    marks(("mistral", &[]), &["[THINK]"], &["[/THINK]"], "[/THINK]"),
    marks(
        ("cohere_command3", &["cohere_command4", "cohere_command"]),
        &["<|START_THINKING|>"],
        &["<|END_THINKING|>"],
        "<|END_THINKING|>",
    ),
    marks(("kimi", &[]), &["◁think▷"], &["◁/think▷"], "\n◁/think▷\n\n"),
    marks(
        ("granite", &[]),
        &["Here is my thought process:", "Here's my thought process:"],
        &["Here is my response:", "Here's my response:"],
        "\n\nHere is my response: ",
    ),
    ReasoningFormat {
        marks: &["<think>", "</think>"],
        ..marks(
            (
                "deepseek_r1",
                &[
                    "think",
                    "deepseek-r1",
                    "deepseek_v3",
                    "qwen3",
                    "glm45",
                    "kimi_k2",
                    "step3",
                    "hunyuan_a13b",
                    "minimax_m2",
                    "nemotron_v3",
                    "olmo3",
                ],
            ),
            &["<think>"],
            &["</think>"],
            "\n</think>\n\n",
        )
    },
];

impl ReasoningFormat {
    /// Name for users, as in vLLM's `--reasoning-parser`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Other names that mean the same.
    pub fn aliases(&self) -> &'static [&'static str] {
        self.aliases
    }

    /// The text that ends a thought, in the words of a model that has thought enough.
    pub fn close(&self) -> &'static str {
        self.close
    }

    /// Texts that begin a thought.
    pub fn opens(&self) -> &'static [&'static str] {
        self.opens
    }

    /// Texts that end a thought.
    pub fn closes(&self) -> &'static [&'static str] {
        self.closes
    }

    /// Names of special tokens whose text the reader must see.
    pub fn control_tokens(&self) -> Vec<&'static str> {
        match self.has_channels {
            true => Vec::new(),
            false => self.opens.iter().chain(self.closes).copied().collect(),
        }
    }

    /// Whether a model with this chat template thinks so, by the marks in the template's text.
    pub fn looks_like(&self, chat_template: &str) -> bool {
        self.marks.iter().any(|mark| chat_template.contains(mark))
    }

    /// Whether a rendered prompt ends within a thought, so that the answer begins there: nothing but
    /// white space follows the text that begins a thought.
    pub fn opens_in(&self, prompt_tail: &str) -> bool {
        let tail = prompt_tail.trim_end();
        self.opens.iter().any(|open| tail.ends_with(open))
    }

    /// The form of an answer that is a thought and then `form`. Where the prompt has begun the
    /// thought (`starts_inside`) there is one; else the answer may do without.
    pub fn before(&self, form: Shape, starts_inside: bool) -> Shape {
        let blank = || Shape::Regex("[ \\n]{0,4}".to_owned());
        let rest = |close: &&str| {
            let mut parts = vec![Shape::Until((*close).to_owned())];
            if !self.has_channels {
                parts.push(blank());
            }
            parts.extend(channel_marks(self.before_answer));
            parts.push(form.clone());
            Shape::Sequence(parts)
        };
        let rests: Vec<Shape> = self.closes.iter().map(rest).collect();
        let rest = crate::shape::one_of(rests);
        if starts_inside {
            return rest;
        }
        let mut forms: Vec<Shape> = Vec::new();
        for open in self.opens {
            let mut parts = if self.has_channels { vec![] } else { vec![blank()] };
            parts.extend(channel_marks(open));
            parts.push(rest.clone());
            forms.push(Shape::Sequence(parts));
        }
        let answer = self.before_answer.strip_prefix("<|start|>assistant").unwrap_or_default();
        let mut plain = channel_marks(answer);
        plain.push(form);
        forms.push(Shape::Sequence(plain));
        Shape::OneOf(forms)
    }

    pub(crate) fn has_channels(&self) -> bool {
        self.has_channels
    }
}

/// A text with marks, each of which is a control token.
fn channel_marks(text: &str) -> Vec<Shape> {
    if text.starts_with("<|") && !text.contains("|>") || text.is_empty() {
        return Vec::new();
    }
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(begin) = rest.find("<|") {
        let end = rest[begin..].find("|>").map_or(rest.len(), |end| begin + end + 2);
        if begin > 0 {
            parts.push(Shape::text(&rest[..begin]));
        }
        parts.push(crate::shape::mark(&rest[begin..end]));
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        // A mark of another style is one token, too, where it is one.
        parts.push(if parts.is_empty() { crate::shape::mark(rest) } else { Shape::text(rest) });
    }
    parts
}

/// The format of this name, in any case, with `-` or `_`.
pub fn reasoning_format(name: &str) -> Option<&'static ReasoningFormat> {
    REASONING_FORMATS.iter().find(|format| {
        same_name(format.name, name) || format.aliases.iter().any(|alias| same_name(alias, name))
    })
}

/// The format in which a model with this chat template thinks, where the template shows it.
pub fn reasoning_format_of_template(chat_template: &str) -> Option<&'static ReasoningFormat> {
    REASONING_FORMATS.iter().find(|format| format.looks_like(chat_template))
}
