//! Chat or plain continuation: one rule, in one place.

/// Treatment of the prompt before it is tokenized.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// The prompt is a user's message, laid out by the model's chat template.
    Chat,
    /// The prompt is continued as it is.
    Raw,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Chat => "chat",
            Self::Raw => "raw",
        })
    }
}

/// The inputs of the rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Situation {
    /// The mode that a flag asks for.
    pub(crate) asked: Option<Mode>,
    /// Whether a person types prompts in a conversation.
    pub(crate) is_interactive: bool,
    /// Whether this is the story-teller inside the binary.
    pub(crate) is_embedded: bool,
    /// Whether the model has a chat template.
    pub(crate) has_template: bool,
}

/// Chooses the mode: a flag wins; a conversation chats where the model can; a single prompt
/// continues a story on the embedded model and is answered by any other model with a template.
pub(crate) fn choose(situation: Situation) -> Mode {
    match situation {
        Situation { asked: Some(mode), .. } => mode,
        Situation { has_template: false, .. } => Mode::Raw,
        Situation { is_interactive: true, .. } => Mode::Chat,
        Situation { is_embedded: true, .. } => Mode::Raw,
        _ => Mode::Chat,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_follows_the_documented_table() {
        // asked, interactive, embedded, template -> mode
        let table = [
            (None, false, true, true, Mode::Raw),
            (None, true, true, true, Mode::Chat),
            (None, false, false, true, Mode::Chat),
            (None, false, false, false, Mode::Raw),
            (None, true, false, false, Mode::Raw),
            (Some(Mode::Chat), false, true, true, Mode::Chat),
            (Some(Mode::Raw), true, false, true, Mode::Raw),
        ];
        for (asked, is_interactive, is_embedded, has_template, expected) in table {
            let situation = Situation { asked, is_interactive, is_embedded, has_template };
            assert_eq!(choose(situation), expected, "{situation:?}");
        }
    }
}
