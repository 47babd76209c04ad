//! Parts of the sampling that are texts: bad words, biases, breakers of repetitions.
//!
//! They become tokens when a request starts:
//!
//! | text | tokens |
//! |---|---|
//! | a bad word | the word, and the word after a space, each as the tokenizer writes it |
//! | a bias | added to every token of the text |
//! | a banned text | every token of the text never comes |
//! | a breaker of DRY | every token that contains it; and the text itself where it is several tokens |
//!
//! A bad word that the model spells with other tokens than the tokenizer does is not recognized, as
//! in vLLM. llama.cpp also finds breakers that begin inside of one token and end in the next.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use pelton_base::{ParamError, TokenId, limits};
use pelton_text::{EncodeOptions, Tokenizer};

use crate::border::{TOKENIZER, guard};
use crate::error::LlmError;
use crate::request::Generation;

/// Breakers of DRY where a request gives none, as in llama.cpp.
pub const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];
/// Most bad words; each is up to two sequences of tokens.
const BAD_WORDS: usize = limits::BAD_WORDS / 2;
/// Lists of breakers whose tokens are kept.
const KEPT_LISTS: usize = 8;
/// A text within a text: no special tokens.
const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

/// Parts of the sampling that are texts, beside the tokens of
/// [`sampling`](Generation::sampling).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingTexts {
    /// Texts that must not occur in the answer.
    pub bad_words: Vec<String>,
    /// Added to the logit of each token of a text.
    pub logit_bias: Vec<(String, f32)>,
    /// Texts none of whose tokens may occur.
    pub banned: Vec<String>,
    /// Texts that no repetition reaches across; `None` for [`DRY_BREAKERS`], unless
    /// [`Dry::breakers`](pelton_base::Dry::breakers) has some. They matter only where DRY is on.
    pub dry_breakers: Option<Vec<String>>,
}

impl SamplingTexts {
    /// Checks every range.
    ///
    /// # Errors
    ///
    /// Names the first field that is out of range.
    pub(crate) fn validate(&self) -> Result<(), ParamError> {
        let biased = self.logit_bias.iter().map(|(text, _)| text).chain(&self.banned);
        let breakers = self.dry_breakers.iter().flatten();
        check("bad_words", "at most 512 texts", self.bad_words.iter(), BAD_WORDS)?;
        check("logit_bias", "at most 1024 entries", biased, limits::LOGIT_BIAS_ENTRIES)?;
        check("dry_sequence_breakers", "at most 64 texts", breakers, limits::DRY_BREAKER_TEXTS)?;
        match self.logit_bias.iter().find(|(_, bias)| !(-100.0..=100.0).contains(bias)) {
            Some((_, bias)) => {
                let (param, expected) = ("logit_bias", "values from -100 to 100");
                Err(ParamError { param, expected, got: bias.to_string() })
            }
            None => Ok(()),
        }
    }
}

/// Checks the number and the lengths of texts.
fn check<'a>(
    param: &'static str,
    most: &'static str,
    texts: impl Iterator<Item = &'a String> + Clone,
    n_most: usize,
) -> Result<(), ParamError> {
    let fail = |expected, got: String| Err(ParamError { param, expected, got });
    let n = texts.clone().count();
    if n > n_most {
        return fail(most, n.to_string());
    }
    for text in texts {
        if text.is_empty() {
            return fail("texts that are not empty", "an empty text".to_owned());
        }
        if text.len() > limits::STOP_STRING_BYTES {
            return fail("texts of at most 1024 bytes", text.len().to_string());
        }
    }
    Ok(())
}

/// The tokens of one list of breakers.
type Breakers = Arc<[Vec<TokenId>]>;

/// The tokens of the latest lists of breakers, because finding them reads the whole vocabulary.
#[derive(Debug, Default)]
pub(crate) struct BreakerCache(Mutex<VecDeque<(Vec<String>, Breakers)>>);

impl BreakerCache {
    fn of(&self, tokenizer: &Tokenizer, texts: &[String]) -> Result<Breakers, LlmError> {
        let known = |list: &(Vec<String>, Breakers)| list.0 == texts;
        let lists = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, breakers)) = lists().iter().find(|list| known(list)) {
            return Ok(Arc::clone(breakers));
        }
        let breakers = guard(TOKENIZER, || find_breakers(tokenizer, texts))??;
        let mut lists = lists();
        lists.truncate(KEPT_LISTS - 1);
        lists.push_front((texts.to_vec(), Arc::clone(&breakers)));
        Ok(breakers)
    }
}

fn find_breakers(tokenizer: &Tokenizer, texts: &[String]) -> Result<Breakers, LlmError> {
    let contains = |bytes: &[u8]| {
        let starts = |text: &String| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        texts.iter().any(starts)
    };
    let ids = (0..tokenizer.vocab_size() as u32).map(TokenId);
    let found = ids.filter(|&id| tokenizer.token_bytes(id).is_some_and(contains));
    let mut breakers: Vec<Vec<TokenId>> = found.map(|id| vec![id]).collect();
    for text in texts {
        let tokens = tokenizer.encode_at_most(text, PLAIN, limits::STOP_STRING_BYTES)?;
        if tokens.len() > 1 {
            breakers.push(tokens);
        }
    }
    if breakers.len() > limits::DRY_BREAKERS {
        let (param, expected) =
            ("dry_sequence_breakers", "texts that at most 65536 tokens contain");
        return Err(ParamError { param, expected, got: breakers.len().to_string() }.into());
    }
    Ok(breakers.into())
}

/// Writes the texts of `generation` into its sampling, as tokens.
///
/// # Errors
///
/// The tokenizer fails, or there are more tokens than the sampling may have.
pub(crate) fn encode(
    tokenizer: &Tokenizer,
    cache: &BreakerCache,
    generation: &mut Generation,
) -> Result<(), LlmError> {
    let SamplingTexts { bad_words, logit_bias, banned, dry_breakers } =
        std::mem::take(&mut generation.texts);
    let tokens = |text: &str| -> Result<Vec<TokenId>, LlmError> {
        let limit = limits::STOP_STRING_BYTES + 1;
        Ok(guard(TOKENIZER, || tokenizer.encode_at_most(text, PLAIN, limit))??)
    };
    let sampling = &mut generation.sampling;
    for word in &bad_words {
        let word = word.trim_start_matches(' ');
        let bare = if word.is_empty() { Vec::new() } else { tokens(word)? };
        let spaced = tokens(&format!(" {word}"))?;
        for sequence in [bare, spaced] {
            if !sequence.is_empty() && !sampling.bad_words.contains(&sequence) {
                sampling.bad_words.push(sequence);
            }
        }
    }
    for text in &banned {
        sampling.bad_words.extend(tokens(text)?.into_iter().map(|token| vec![token]));
    }
    for (text, bias) in &logit_bias {
        sampling.logit_bias.extend(tokens(text)?.into_iter().map(|token| (token, *bias)));
    }
    let dry = &mut sampling.dry;
    if dry.multiplier > 0.0 && (dry_breakers.is_some() || dry.breakers.is_empty()) {
        let texts = dry_breakers.unwrap_or_else(|| DRY_BREAKERS.map(str::to_owned).to_vec());
        dry.breakers = cache.of(tokenizer, &texts)?;
    }
    sampling.validate()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use pelton_base::SamplingParams;

    use super::*;
    use crate::common::byte_tokenizer as tokenizer;

    fn encoded(texts: SamplingTexts, multiplier: f32) -> SamplingParams {
        let mut generation = Generation { texts, ..Generation::default() };
        generation.sampling.dry.multiplier = multiplier;
        generation.validate().expect("in range");
        encode(&tokenizer(), &BreakerCache::default(), &mut generation).expect("encoded");
        generation.sampling
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    fn bytes(text: &str) -> Vec<TokenId> {
        text.bytes().map(|byte| TokenId(byte.into())).collect()
    }

    #[test]
    fn bad_words_are_meant_with_and_without_a_space() {
        let bad_words = texts(&["ab", " ab", "c"]);
        let sampling = encoded(SamplingTexts { bad_words, ..Default::default() }, 0.0);
        assert_eq!(sampling.bad_words, ["ab", " ab", "c", " c"].map(bytes));
    }

    #[test]
    fn biases_and_bans_are_about_every_token_of_a_text() {
        let logit_bias = vec![("ab".to_owned(), -5.0)];
        let banned = texts(&["xy"]);
        let sampling = encoded(SamplingTexts { logit_bias, banned, ..Default::default() }, 0.0);
        assert_eq!(sampling.logit_bias, [(TokenId(97), -5.0), (TokenId(98), -5.0)]);
        assert_eq!(sampling.bad_words, ["x", "y"].map(bytes));
    }

    #[test]
    fn breakers_are_found_where_dry_is_on_and_kept() {
        let none = encoded(SamplingTexts::default(), 0.0);
        assert!(none.dry.breakers.is_empty());
        let usual = encoded(SamplingTexts::default(), 0.8);
        assert_eq!(usual.dry.breakers[..], ["\n", "\"", "*", ":"].map(bytes));
        let dry_breakers = Some(texts(&["ab", "!"]));
        let own = SamplingTexts { dry_breakers, ..Default::default() };
        assert_eq!(encoded(own, 0.8).dry.breakers[..], ["!", "ab"].map(bytes));
        let cut_off = SamplingTexts { dry_breakers: Some(Vec::new()), ..Default::default() };
        assert!(encoded(cut_off, 0.8).dry.breakers.is_empty());

        let (cache, tokenizer) = (BreakerCache::default(), tokenizer());
        let lists: Vec<_> = (0..20).map(|i| texts(&[&format!("{i}")])).collect();
        let first = cache.of(&tokenizer, &lists[0]).expect("found");
        assert!(Arc::ptr_eq(&first, &cache.of(&tokenizer, &lists[0]).expect("kept")));
        lists.iter().for_each(|list| drop(cache.of(&tokenizer, list).expect("found")));
        assert_eq!(cache.0.lock().expect("sound").len(), KEPT_LISTS);
    }
}
