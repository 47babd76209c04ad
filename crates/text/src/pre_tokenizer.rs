//! How a byte-level vocabulary splits text before merging: GGUF's `tokenizer.ggml.pre` names.
//!
//! A GGUF file names the rule instead of holding it, so the rules live here as data. A name that
//! is not in the table is refused: guessing would give almost the right tokens.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::normalizer::SplitDelimiterBehavior;

/// One splitting rule.
pub(crate) struct PreTokenizer {
    names: &'static [&'static str],
    splits: &'static [Rule],
    /// Whether a word that is a token is taken whole, without merging.
    pub(crate) ignores_merges: bool,
    pub(crate) normalizes_nfc: bool,
    /// Whether texts of this family begin with BOS unless the file says otherwise.
    pub(crate) adds_bos: bool,
}

enum Rule {
    /// GPT-2's own expression, built into the byte-level step.
    Gpt2,
    /// Every digit by itself.
    SingleDigits,
    Regex(&'static str),
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

static PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer {
        names: &["default", "gpt-2", "gpt2", "phi-2", "olmo", "mpt", "jais"],
        splits: &[Rule::Gpt2],
        ignores_merges: false,
        normalizes_nfc: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["smollm", "starcoder", "refact", "command-r"],
        splits: &[Rule::SingleDigits, Rule::Gpt2],
        ignores_merges: false,
        normalizes_nfc: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "lfm2"],
        splits: &[Rule::Regex(LLAMA3)],
        ignores_merges: true,
        normalizes_nfc: false,
        adds_bos: true,
    },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen"],
        splits: &[Rule::Regex(QWEN2)],
        ignores_merges: false,
        normalizes_nfc: true,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["tekken"],
        splits: &[Rule::Regex(TEKKEN)],
        ignores_merges: true,
        normalizes_nfc: false,
        adds_bos: true,
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4"],
        splits: &[Rule::Regex(GPT_4O)],
        ignores_merges: false,
        normalizes_nfc: false,
        adds_bos: false,
    },
];

pub(crate) fn by_name(name: &str) -> Option<&'static PreTokenizer> {
    PRE_TOKENIZERS.iter().find(|pre| pre.names.contains(&name))
}

/// The names that `tokenizer.ggml.pre` may have, separated by commas.
pub fn known_pre_tokenizers() -> String {
    let names: Vec<&str> = PRE_TOKENIZERS.iter().flat_map(|pre| pre.names).copied().collect();
    names.join(", ")
}

impl PreTokenizer {
    pub(crate) fn build(&self) -> tokenizers::Result<PreTokenizerWrapper> {
        let mut steps = Vec::new();
        let mut byte_level = ByteLevel::new(false, true, false);
        for rule in self.splits {
            match rule {
                Rule::Gpt2 => byte_level = byte_level.use_regex(true),
                Rule::SingleDigits => steps.push(PreTokenizerWrapper::Digits(Digits::new(true))),
                Rule::Regex(regex) => {
                    let pattern = SplitPattern::Regex((*regex).to_owned());
                    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?;
                    steps.push(PreTokenizerWrapper::Split(split));
                }
            }
        }
        steps.push(PreTokenizerWrapper::ByteLevel(byte_level));
        Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_builds_and_no_name_is_given_twice() {
        let mut seen = std::collections::BTreeSet::new();
        for pre in PRE_TOKENIZERS {
            pre.build().expect("a rule of the table");
            for name in pre.names {
                assert!(seen.insert(name), "{name} is in two rules");
            }
        }
    }
}
