//! How a byte-level vocabulary splits text before merging: GGUF's `tokenizer.ggml.pre` names.
//!
//! ```text
//!   name  ->  normalizer (NFC or none)  ->  steps, in order  ->  bytes as characters  ->  BPE
//! ```
//! A GGUF file names the rule instead of holding it, so the rules live here as data, each as the
//! `tokenizer.json` of the models of that name spells it. Two families may split alike and still
//! differ (`starcoder` and `command-r`: only the second composes characters first). A name that is
//! not in the table is refused: guessing would give almost the right tokens.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::normalizer::SplitDelimiterBehavior;

/// One splitting rule.
#[derive(Clone, Copy)]
pub(crate) struct PreTokenizer {
    names: &'static [&'static str],
    steps: &'static [Step],
    /// Whether a word that is a token is taken whole, without merging.
    pub(crate) ignores_merges: bool,
    pub(crate) normalizes_nfc: bool,
    /// Whether texts of this family begin with BOS unless the file says otherwise.
    pub(crate) adds_bos: bool,
    /// Whether they end with EOS, likewise.
    pub(crate) adds_eos: bool,
}

#[derive(Clone, Copy)]
enum Step {
    /// GPT-2's own expression, and the step that turns bytes into characters.
    Gpt2,
    /// Every digit by itself.
    SingleDigits,
    /// Runs of digits. After [`Step::Gpt2`] it sees characters that stand for bytes, `²` and `¼`
    /// among them, as Hugging Face does.
    DigitRuns,
    /// Runs of punctuation.
    Punctuation,
    /// Every mark of punctuation by itself.
    SingleMarks,
    Regex(&'static str),
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const KIMI_K2: &str = r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// Chinese characters with the kana.
const HAN_KANA: &str = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+";
/// Nearly everything from Samaritan to Hangul.
const ASIAN: &str = r"[\x{4e00}-\x{9fa5}\x{0800}-\x{4e00}\x{ac00}-\x{d7ff}]+";
/// Letters with upper and lower case, spelled out, as the DeepSeek LLM files do.
const CASED: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ\x{1f5f}-\x{1f7d}ᾀ-ᾴᾶ-ᾼ\x{1fbe}ῂ-ῄῆ-ῌῐ-\x{1fd3}ῖ-\x{1fdb}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212a}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const DEEPSEEK_LLM_MARKS: &str =
    r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+";

/// Common parts of most rules.
const PLAIN: PreTokenizer = PreTokenizer {
    names: &[],
    steps: &[Step::Gpt2],
    ignores_merges: false,
    normalizes_nfc: false,
    adds_bos: false,
    adds_eos: false,
};

static PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer {
        names: &[
            "default",
            "gpt-2",
            "gpt2",
            "phi-2",
            "jais",
            "exaone4",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "trillion",
            "granite-docling",
        ],
        ..PLAIN
    },
    // The files of the GPT-NeoX vocabulary compose characters first.
    PreTokenizer { names: &["olmo", "mpt"], normalizes_nfc: true, ..PLAIN },
    PreTokenizer {
        names: &["roberta-bpe", "jina-v1-en", "jina-v2-code"],
        adds_bos: true,
        adds_eos: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"],
        steps: &[Step::SingleDigits, Step::Gpt2],
        ..PLAIN
    },
    PreTokenizer {
        names: &["command-r"],
        steps: &[Step::SingleDigits, Step::Gpt2],
        normalizes_nfc: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["falcon"],
        steps: &[Step::Punctuation, Step::Gpt2, Step::DigitRuns, Step::Regex(r"[0-9][0-9][0-9]")],
        ..PLAIN
    },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2"],
        steps: &[Step::Regex(LLAMA3)],
        ignores_merges: true,
        adds_bos: true,
        ..PLAIN
    },
    // The same expression, from files that merge every word and begin with nothing.
    PreTokenizer {
        names: &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"],
        steps: &[Step::Regex(LLAMA3)],
        ..PLAIN
    },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "kormo"],
        steps: &[Step::Regex(QWEN2)],
        normalizes_nfc: true,
        ..PLAIN
    },
    // The same expression over characters as they come.
    PreTokenizer {
        names: &["hunyuan", "grok-2", "solar-open"],
        steps: &[Step::Regex(QWEN2)],
        ..PLAIN
    },
    PreTokenizer {
        names: &["qwen35"],
        steps: &[Step::Regex(QWEN35)],
        normalizes_nfc: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["tekken"],
        steps: &[Step::Regex(TEKKEN)],
        ignores_merges: true,
        adds_bos: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "minimax-m2", "kanana2"],
        steps: &[Step::Regex(GPT_4O)],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-llm"],
        steps: &[
            Step::Regex(r"[\r\n]"),
            Step::Regex(CASED),
            Step::Regex(DEEPSEEK_LLM_MARKS),
            Step::Regex(r"\s+$"),
            Step::Regex(ASIAN),
            Step::SingleDigits,
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        steps: &[
            Step::Regex(r"[\r\n]"),
            Step::Regex(r"\s?\p{L}+"),
            Step::Regex(r"\s?\p{P}+"),
            Step::Regex(ASIAN),
            Step::SingleDigits,
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        steps: &[Step::Regex(r"\p{N}{1,3}"), Step::Regex(HAN_KANA), Step::Regex(DEEPSEEK_V3)],
        ..PLAIN
    },
    PreTokenizer {
        names: &["bloom", "poro-chat", "gpt3-finnish"],
        steps: &[Step::Regex(BLOOM)],
        ..PLAIN
    },
    PreTokenizer { names: &["viking"], steps: &[Step::Regex(BLOOM), Step::SingleDigits], ..PLAIN },
    PreTokenizer {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        steps: &[Step::Regex(BAILING)],
        ..PLAIN
    },
    PreTokenizer { names: &["seed-coder"], steps: &[Step::Regex(SEED_CODER)], ..PLAIN },
    PreTokenizer {
        names: &["kimi-k2"],
        steps: &[Step::Regex(KIMI_K2)],
        ignores_merges: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["superbpe"],
        steps: &[Step::Regex(r"\p{N}+"), Step::Regex(r"(?=(\d{3})+(?!\d))")],
        ..PLAIN
    },
    PreTokenizer {
        names: &["chameleon"],
        steps: &[
            Step::Regex("<sentinel:[0-9]+>"),
            Step::Regex("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
            Step::Regex(r"([\t\n]|    |  )"),
            Step::SingleDigits,
            Step::SingleMarks,
            Step::Gpt2,
        ],
        adds_bos: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["tiny_aya", "cohere2moe"],
        steps: &[Step::Regex(r"\d{1,3}(?=(?:\d{3})*\b)"), Step::Regex(GPT_4O)],
        ..PLAIN
    },
    PreTokenizer { names: &["exaone-moe"], steps: &[Step::Regex(EXAONE_MOE)], ..PLAIN },
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
        let byte_level = |splits| ByteLevel::new(false, true, splits).into();
        let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
        let mut is_bytes = false;
        for step in self.steps {
            steps.push(match step {
                Step::Gpt2 => {
                    is_bytes = true;
                    byte_level(true)
                }
                Step::SingleDigits => Digits::new(true).into(),
                Step::DigitRuns => Digits::new(false).into(),
                Step::Punctuation => Punctuation::new(SplitDelimiterBehavior::Contiguous).into(),
                Step::SingleMarks => Punctuation::new(SplitDelimiterBehavior::Isolated).into(),
                Step::Regex(regex) => {
                    let pattern = SplitPattern::Regex((*regex).to_owned());
                    Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?.into()
                }
            });
        }
        if !is_bytes {
            steps.push(byte_level(false));
        }
        Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
    }
}

/// Every regular expression of the table.
#[cfg(test)]
pub(crate) fn expressions() -> impl Iterator<Item = &'static str> {
    PRE_TOKENIZERS.iter().flat_map(|pre| pre.steps).filter_map(|step| match step {
        Step::Regex(expression) => Some(*expression),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_some_families_begin_or_end_a_text_of_their_own_or_compose_characters() {
        let names = |has: fn(&PreTokenizer) -> bool| {
            let rules = PRE_TOKENIZERS.iter().filter(|pre| has(pre));
            rules.map(|pre| pre.names[0]).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(|pre| pre.adds_bos), "roberta-bpe llama-bpe tekken chameleon");
        assert_eq!(names(|pre| pre.adds_eos), "roberta-bpe");
        assert_eq!(names(|pre| pre.ignores_merges), "llama-bpe tekken kimi-k2");
        assert_eq!(names(|pre| pre.normalizes_nfc), "olmo command-r qwen2 qwen35");
        let is_gpt2 = |pre: &PreTokenizer| matches!(pre.steps, [Step::Gpt2]);
        assert_eq!(names(is_gpt2), "default olmo roberta-bpe");
        assert!(known_pre_tokenizers().ends_with("tiny_aya, cohere2moe, exaone-moe"));
    }

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
