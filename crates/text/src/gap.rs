//! Texts with a gap that the model fills: the code before and after the cursor, for example.
//!
//! Models of code are trained on documents whose middle was moved to the end. Special tokens say which
//! part is which:
//!
//! ```text
//! prefix first   [PREFIX] def add(a, b): [SUFFIX] print(add(1, 2)) [MIDDLE]   ─▶ return a + b
//! suffix first   [SUFFIX] print(add(1, 2)) [PREFIX] def add(a, b): [MIDDLE]   ─▶ return a + b
//! ```
//!
//! Paper: Bavarian et al., "Efficient Training of Language Models to Fill in the Middle", 2022.

use pelton_base::TokenId;

use crate::error::TextError;
use crate::tokenizer::{EncodeOptions, Tokenizer};

/// How one family of models writes a gap.
struct Family {
    prefix: &'static str,
    suffix: &'static str,
    /// Absent where the filling follows the prefix at once.
    middle: Option<&'static str>,
    is_suffix_first: bool,
    /// Tokens after which a filling is over, where the vocabulary has them.
    ends: &'static [&'static str],
}

impl Family {
    const fn prefix_first(
        prefix: &'static str,
        suffix: &'static str,
        middle: &'static str,
    ) -> Self {
        Self { prefix, suffix, middle: Some(middle), is_suffix_first: false, ends: ENDS }
    }
}

/// Ends of files and of repositories, with which models go on after a filling.
const ENDS: &[&str] = &[
    "<|endoftext|>",
    "<|fim_pad|>",
    "<fim_pad>",
    "<fim-pad>",
    "<|file_sep|>",
    "<|file_separator|>",
    "<file_sep>",
    "<|repo_name|>",
    "<|reponame|>",
];

/// Every family; a vocabulary belongs to the first whose tokens it has.
const FAMILIES: &[Family] = &[
    // Qwen2.5-Coder, CodeGemma, StableCode 3.
    Family::prefix_first("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    // StarCoder 1 and 2, Granite Code, StableCode.
    Family::prefix_first("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    // SantaCoder.
    Family::prefix_first("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    // DeepSeek-Coder: begin, hole, end.
    Family::prefix_first("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    // CodeGeeX and GLM.
    Family::prefix_first("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    // CodeLlama.
    Family { ends: &["▁<EOT>"], ..Family::prefix_first("▁<PRE>", "▁<SUF>", "▁<MID>") },
    Family { ends: &["<EOT>"], ..Family::prefix_first("<PRE>", "<SUF>", "<MID>") },
    // Codestral.
    Family {
        middle: None,
        is_suffix_first: true,
        ..Family::prefix_first("[PREFIX]", "[SUFFIX]", "[MIDDLE]")
    },
    // Seed-Coder.
    Family {
        is_suffix_first: true,
        ..Family::prefix_first("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>")
    },
];

/// The tokens with which a vocabulary writes a gap.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Gap {
    prefix: TokenId,
    suffix: TokenId,
    middle: Option<TokenId>,
    is_suffix_first: bool,
    ends: Vec<TokenId>,
}

impl Gap {
    /// The prompt for the filling of the gap between two texts.
    pub fn around(&self, before: &[TokenId], after: &[TokenId]) -> Vec<TokenId> {
        let before: (TokenId, &[TokenId]) = (self.prefix, before);
        let after: (TokenId, &[TokenId]) = (self.suffix, after);
        let parts = if self.is_suffix_first { [after, before] } else { [before, after] };
        let mut tokens = Vec::with_capacity(parts[0].1.len() + parts[1].1.len() + 3);
        for (name, text) in parts {
            tokens.push(name);
            tokens.extend_from_slice(text);
        }
        tokens.extend(self.middle);
        tokens
    }

    /// Tokens after which the filling is over, beside the end tokens of the model.
    pub fn ends(&self) -> &[TokenId] {
        &self.ends
    }
}

impl Tokenizer {
    /// How this vocabulary writes a gap; `None` where it has no tokens for it.
    pub fn gap(&self) -> Option<Gap> {
        FAMILIES.iter().find_map(|family| {
            let middle = match family.middle {
                Some(name) => Some(self.token_id(name)?),
                None => None,
            };
            Some(Gap {
                prefix: self.token_id(family.prefix)?,
                suffix: self.token_id(family.suffix)?,
                middle,
                is_suffix_first: family.is_suffix_first,
                ends: family.ends.iter().filter_map(|name| self.token_id(name)).collect(),
            })
        })
    }

    /// The token that begins every text, where the tokenizer adds one.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::encode_with`].
    pub fn beginning(&self) -> Result<Option<TokenId>, TextError> {
        let options = EncodeOptions { add_special: true, parse_special: false };
        let first = self.encode_with("", options)?.first().copied();
        Ok(first.filter(|first| self.bos() == Some(*first)))
    }

    /// Tokens of a text that continues another one: without the space that some vocabularies put
    /// before every text. Special tokens in it are text.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::encode_at_most`].
    pub fn encode_continuing(&self, text: &str, limit: usize) -> Result<Vec<TokenId>, TextError> {
        let options = EncodeOptions { add_special: false, parse_special: false };
        if self.strips_leading_space() {
            // A line break is a token of its own in these vocabularies.
            let before = self.encode_with("\n", options)?;
            let tokens = self.encode_at_most(&format!("\n{text}"), options, limit)?;
            if let Some(tokens) = tokens.strip_prefix(&before[..]) {
                return Ok(tokens.to_vec());
            }
        }
        self.encode_at_most(text, options, limit)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A vocabulary of letters and of these special tokens.
    fn tokenizer(special: &[&str]) -> Tokenizer {
        let mut vocab = serde_json::Map::new();
        for (id, letter) in ('a'..='z').enumerate() {
            vocab.insert(letter.to_string(), id.into());
        }
        let added = special.iter().enumerate().map(|(i, name)| {
            json!({"id": 26 + i, "content": name, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true})
        });
        let json = json!({"version": "1.0", "added_tokens": added.collect::<Vec<_>>(),
            "model": {"type": "BPE", "vocab": vocab, "merges": []}});
        Tokenizer::from_bytes(json.to_string().as_bytes()).expect("a tokenizer")
    }

    #[test]
    fn every_family_writes_a_gap_with_its_own_tokens() {
        for family in FAMILIES {
            let names: Vec<&str> =
                [family.prefix, family.suffix].into_iter().chain(family.middle).collect();
            let tokenizer = tokenizer(&names);
            let gap = tokenizer.gap().expect(family.prefix);
            let letters = |text: &str| tokenizer.encode(text, false).expect("letters");
            let (before, after) = (letters("ab"), letters("z"));
            let prompt = tokenizer.decode(&gap.around(&before, &after), false);
            let expected = match (family.is_suffix_first, family.middle) {
                (false, middle) => {
                    format!("{}ab{}z{}", family.prefix, family.suffix, middle.unwrap_or_default())
                }
                (true, middle) => {
                    format!("{}z{}ab{}", family.suffix, family.prefix, middle.unwrap_or_default())
                }
            };
            assert_eq!(prompt.replace('▁', ""), expected.replace('▁', ""));
        }
    }

    #[test]
    fn a_vocabulary_without_the_tokens_has_no_gap_and_some_have_ends() {
        assert_eq!(tokenizer(&["<fim_prefix>", "<fim_middle>"]).gap(), None);
        let names = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"];
        let tokenizer = tokenizer(&names);
        assert_eq!(tokenizer.gap().expect("all are there").ends(), [TokenId(29)]);
    }

    #[test]
    fn the_order_the_middle_and_the_ends_are_those_of_the_family() {
        for (names, expected, ends) in [
            (&["[PREFIX]", "[SUFFIX]"][..], "[SUFFIX]z[PREFIX]ab", &[][..]),
            (
                &["<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"],
                "<[fim-suffix]>z<[fim-prefix]>ab<[fim-middle]>",
                &[],
            ),
            (
                &["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<|endoftext|>"],
                "<fim_prefix>ab<fim_suffix>z<fim_middle>",
                &["<|endoftext|>", "<fim_pad>"],
            ),
            (
                &["<PRE>", "<SUF>", "<MID>", "<EOT>", "<|endoftext|>"],
                "<PRE>ab<SUF>z<MID>",
                &["<EOT>"],
            ),
            (
                &["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>", "<|endoftext|>"],
                "▁<PRE>ab▁<SUF>z▁<MID>",
                &["▁<EOT>"],
            ),
        ] {
            let tokenizer = tokenizer(names);
            let gap = tokenizer.gap().expect(expected);
            let letters = |text: &str| tokenizer.encode(text, false).expect("letters");
            let prompt = gap.around(&letters("ab"), &letters("z"));
            assert_eq!(tokenizer.decode(&prompt, false), expected);
            let ids: Vec<_> = ends.iter().filter_map(|name| tokenizer.token_id(name)).collect();
            assert_eq!((gap.ends(), ids.len()), (&ids[..], ends.len()), "{expected}");
        }
    }
}
