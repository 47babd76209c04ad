//! Chat formats that many models share, for models that come without a template.
//!
//! Each is written here from the format's description; the tests hold what it looks like.

use std::path::Path;

use pelton_base::limits;

use super::{ChatTemplate, FolderError, TemplateTokens};
use crate::error::{TextError, read_limited};
use crate::tokenizer::Tokenizer;

/// A chat format with a name.
struct Builtin {
    name: &'static str,
    /// Tokens that a vocabulary made for this format has; the first entry of the table whose tokens
    /// are all there looks right.
    marks: &'static [&'static str],
    template: &'static str,
}

/// Puts the instructions before the first question, for formats without a role for them.
macro_rules! instructions_first {
    ($rest:literal) => {
        concat!(
            "{%- if messages and messages[0]['role'] == 'system' -%}",
            "{%- set instructions = messages[0]['content'] | trim + '\\n\\n' -%}",
            "{%- set turns = messages[1:] -%}",
            "{%- else -%}",
            "{%- set instructions = '' -%}{%- set turns = messages -%}",
            "{%- endif -%}",
            "{%- for message in turns -%}",
            "{%- set text = (instructions if loop.first else '') + message['content'] | trim -%}",
            $rest,
            "{%- endfor -%}",
        )
    };
}

/// Every format; special marks before the marks that several formats share.
static BUILTIN: &[Builtin] = &[
    Builtin {
        name: "phi4",
        marks: &["<|im_start|>", "<|im_sep|>", "<|im_end|>"],
        template: "{%- for message in messages -%}\
            {{- '<|im_start|>' + message['role'] + '<|im_sep|>' + message['content'] \
                + '<|im_end|>' -}}\
            {%- endfor -%}\
            {%- if add_generation_prompt -%}{{- '<|im_start|>assistant<|im_sep|>' -}}{%- endif -%}",
    },
    Builtin {
        name: "chatml",
        marks: &["<|im_start|>", "<|im_end|>"],
        template: "{%- for message in messages -%}\
            {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] \
                + '<|im_end|>\\n' -}}\
            {%- endfor -%}\
            {%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}",
    },
    Builtin {
        name: "llama3",
        marks: &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        template: "{{- bos_token -}}\
            {%- for message in messages -%}\
            {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' \
                + message['content'] | trim + '<|eot_id|>' -}}\
            {%- endfor -%}\
            {%- if add_generation_prompt -%}\
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}\
            {%- endif -%}",
    },
    Builtin {
        name: "gemma",
        marks: &["<start_of_turn>", "<end_of_turn>"],
        template: concat!(
            "{{- bos_token -}}",
            instructions_first!(
                "{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}\
                 {{- '<start_of_turn>' + role + '\\n' + text + '<end_of_turn>\\n' -}}"
            ),
            "{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}",
        ),
    },
    Builtin {
        name: "deepseek",
        marks: &["<｜User｜>", "<｜Assistant｜>"],
        template: "{{- bos_token -}}\
            {%- for message in messages -%}\
            {%- if message['role'] == 'user' -%}{{- '<｜User｜>' + message['content'] -}}\
            {%- elif message['role'] == 'assistant' -%}\
            {{- '<｜Assistant｜>' + message['content'] + eos_token -}}\
            {%- else -%}{{- message['content'] -}}{%- endif -%}\
            {%- endfor -%}\
            {%- if add_generation_prompt -%}{{- '<｜Assistant｜>' -}}{%- endif -%}",
    },
    Builtin {
        name: "phi3",
        marks: &["<|user|>", "<|assistant|>", "<|end|>"],
        template: "{%- for message in messages -%}\
            {{- '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' -}}\
            {%- endfor -%}\
            {%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}",
    },
    Builtin {
        name: "zephyr",
        marks: &["<|user|>", "<|assistant|>"],
        template: "{%- for message in messages -%}\
            {{- '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' -}}\
            {%- endfor -%}\
            {%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}",
    },
    Builtin {
        name: "mistral",
        marks: &["[INST]", "[/INST]"],
        template: concat!(
            "{{- bos_token -}}",
            instructions_first!(
                "{%- if message['role'] == 'assistant' -%}{{- ' ' + text + eos_token -}}\
                 {%- else -%}{{- '[INST] ' + text + ' [/INST]' -}}{%- endif -%}"
            ),
        ),
    },
];

impl ChatTemplate {
    /// The template of a file, or the built-in one of this name, with the tokens of a tokenizer.
    ///
    /// # Errors
    ///
    /// When there is neither, or the file holds no valid template.
    pub fn choose(name: &str, tokenizer: &Tokenizer) -> Result<Self, FolderError> {
        Self::with_tokens(name, tokens_of(tokenizer))
    }

    /// Whether [`choose`](Self::choose) gives this template, which a model need not be there for.
    ///
    /// # Errors
    ///
    /// As of [`choose`](Self::choose).
    pub fn check(name: &str) -> Result<(), FolderError> {
        Self::with_tokens(name, TemplateTokens::default()).map(drop)
    }

    fn with_tokens(name: &str, tokens: TemplateTokens) -> Result<Self, FolderError> {
        if let Some(builtin) = BUILTIN.iter().find(|builtin| builtin.name == name) {
            return Ok(Self::from_text(builtin.template, name, tokens)?);
        }
        if !Path::new(name).exists() {
            let known: Vec<&str> = Self::builtin_names().collect();
            let reason =
                format!("no such chat template: expected a file, or one of {}", known.join(", "));
            return Err(TextError::malformed(name, reason).into());
        }
        let bytes = read_limited(Path::new(name), limits::TEMPLATE_BYTES as u64)?;
        let text = String::from_utf8(bytes)
            .map_err(|_| TextError::malformed(name, "the template is not UTF-8"))?;
        Ok(Self::from_text(&text, name, tokens)?)
    }

    /// Names of the built-in templates.
    pub fn builtin_names() -> impl Iterator<Item = &'static str> {
        BUILTIN.iter().map(|builtin| builtin.name)
    }

    /// The reason why a model cannot chat, with the built-in template that looks right for it.
    pub fn why_none(tokenizer: &Tokenizer) -> String {
        match Self::builtin_for(tokenizer) {
            Some(name) => format!(
                "it has no chat template; `--chat-template {name}` looks right for its vocabulary"
            ),
            None => "it has no chat template".to_owned(),
        }
    }

    /// The built-in template that a vocabulary looks made for, if there is one.
    pub fn builtin_for(tokenizer: &Tokenizer) -> Option<&'static str> {
        let has = |mark: &&str| tokenizer.token_id(mark).is_some();
        BUILTIN.iter().find(|builtin| builtin.marks.iter().all(has)).map(|builtin| builtin.name)
    }
}

fn tokens_of(tokenizer: &Tokenizer) -> TemplateTokens {
    let named = [("bos_token", tokenizer.bos()), ("eos_token", tokenizer.eos())];
    let text = |token| {
        let bytes = tokenizer.token_bytes(token).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    let tokens =
        named.into_iter().filter_map(|(name, token)| Some((name.to_owned(), text(token?))));
    TemplateTokens { tokens: tokens.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::{Message, RenderOptions};

    /// Instructions, a question, an answer and a question, with the opening of the next answer.
    fn rendered(builtin: &Builtin, with_system: bool) -> String {
        let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")]
            .map(|(name, text)| (name.to_owned(), text.to_owned()));
        let tokens = TemplateTokens { tokens: tokens.to_vec() };
        let template = ChatTemplate::from_text(builtin.template, builtin.name, tokens);
        let all = [("system", "S"), ("user", "Q1"), ("assistant", "A1"), ("user", "Q2")];
        let said = if with_system { &all[..] } else { &all[1..] };
        let messages: Vec<_> = said.iter().map(|(role, text)| Message::new(*role, *text)).collect();
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        template.expect(builtin.name).render(&messages, &options).expect(builtin.name)
    }

    #[test]
    fn every_format_looks_as_described() {
        let expected = [
            (
                "phi4",
                "<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>Q1<|im_end|>\
                 <|im_start|>assistant<|im_sep|>A1<|im_end|><|im_start|>user<|im_sep|>Q2<|im_end|>\
                 <|im_start|>assistant<|im_sep|>",
            ),
            (
                "chatml",
                "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ1<|im_end|>\n\
                 <|im_start|>assistant\nA1<|im_end|>\n<|im_start|>user\nQ2<|im_end|>\n\
                 <|im_start|>assistant\n",
            ),
            (
                "llama3",
                "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>\
                 <|start_header_id|>user<|end_header_id|>\n\nQ1<|eot_id|>\
                 <|start_header_id|>assistant<|end_header_id|>\n\nA1<|eot_id|>\
                 <|start_header_id|>user<|end_header_id|>\n\nQ2<|eot_id|>\
                 <|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            (
                "gemma",
                "<s><start_of_turn>user\nS\n\nQ1<end_of_turn>\n<start_of_turn>model\nA1<end_of_turn>\n\
                 <start_of_turn>user\nQ2<end_of_turn>\n<start_of_turn>model\n",
            ),
            ("deepseek", "<s>S<｜User｜>Q1<｜Assistant｜>A1</s><｜User｜>Q2<｜Assistant｜>"),
            (
                "phi3",
                "<|system|>\nS<|end|>\n<|user|>\nQ1<|end|>\n<|assistant|>\nA1<|end|>\n<|user|>\nQ2<|end|>\n\
                 <|assistant|>\n",
            ),
            (
                "zephyr",
                "<|system|>\nS</s>\n<|user|>\nQ1</s>\n<|assistant|>\nA1</s>\n<|user|>\nQ2</s>\n\
                 <|assistant|>\n",
            ),
            ("mistral", "<s>[INST] S\n\nQ1 [/INST] A1</s>[INST] Q2 [/INST]"),
        ];
        assert_eq!(BUILTIN.len(), expected.len());
        for (builtin, (name, text)) in BUILTIN.iter().zip(expected) {
            assert_eq!(builtin.name, name);
            assert_eq!(rendered(builtin, true), text, "{name}");
            let without = rendered(builtin, false);
            assert!(without.contains("Q1") && without.contains("Q2"), "{name}: {without}");
            assert!(!without.contains("\n\nQ1") || name == "llama3", "{name}: {without}");
        }
    }

    /// A vocabulary of these tokens, the first of which begins a text and the second ends it.
    fn tokenizer(tokens: &[&str]) -> Tokenizer {
        let vocab = crate::GgufVocab {
            model: "rwkv".to_owned(),
            tokens: tokens.iter().map(|token| token.as_bytes().to_vec()).collect(),
            kinds: vec![crate::TokenKind::Control; tokens.len()],
            bos: Some(0),
            eos: Some(1),
            ..crate::GgufVocab::default()
        };
        vocab.into_tokenizer().expect("a tokenizer")
    }

    #[test]
    fn a_format_is_chosen_by_name_or_file_and_gets_the_tokens_of_the_vocabulary() {
        let tokenizer = tokenizer(&["<b>", "<e>", "<|im_start|>", "<|im_end|>"]);
        let chosen = ChatTemplate::choose("mistral", &tokenizer).expect("a name");
        let tokens = [("bos_token", "<b>"), ("eos_token", "<e>")];
        assert_eq!(chosen.tokens().tokens, tokens.map(|(k, v)| (k.to_owned(), v.to_owned())));
        let said = [Message::new("user", "Q"), Message::new("assistant", "A")];
        let text = chosen.render(&said, &RenderOptions::default());
        assert_eq!(text.as_deref(), Ok("<b>[INST] Q [/INST] A<e>"));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("own.jinja");
        std::fs::write(&path, "own {{ eos_token }}").expect("written");
        let own = ChatTemplate::choose(&path.display().to_string(), &tokenizer).expect("a file");
        assert_eq!(own.render(&said, &RenderOptions::default()).as_deref(), Ok("own <e>"));
        std::fs::write(&path, b"\xff").expect("written");
        let error = ChatTemplate::choose(&path.display().to_string(), &tokenizer);
        let error = error.expect_err("not UTF-8").to_string();
        assert!(error.contains("own.jinja") && error.contains("UTF-8"), "{error}");
        let error = ChatTemplate::choose("nope", &tokenizer).expect_err("neither").to_string();
        assert!(error.contains("one of phi4, chatml, llama3, gemma, deepseek"), "{error}");
    }

    #[test]
    fn a_vocabulary_is_told_the_format_that_looks_right_for_it() {
        let chatml = tokenizer(&["<b>", "<e>", "<|im_start|>", "<|im_end|>"]);
        assert_eq!(ChatTemplate::builtin_for(&chatml), Some("chatml"));
        assert!(ChatTemplate::why_none(&chatml).contains("`--chat-template chatml`"));
        let plain = tokenizer(&["<b>", "<e>", "<|im_start|>"]);
        assert_eq!(ChatTemplate::builtin_for(&plain), None);
        assert_eq!(ChatTemplate::why_none(&plain), "it has no chat template");
        let names: Vec<&str> = ChatTemplate::builtin_names().collect();
        assert_eq!((names.len(), names[0]), (BUILTIN.len(), "phi4"));
    }

    #[test]
    fn no_format_hides_behind_an_earlier_one() {
        for (idx, builtin) in BUILTIN.iter().enumerate() {
            let has = |mark: &&str| builtin.marks.contains(mark);
            let first = BUILTIN.iter().position(|other| other.marks.iter().all(has));
            assert_eq!(first, Some(idx), "{}", builtin.name);
        }
    }
}
