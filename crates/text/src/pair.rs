//! Two texts that a model reads together, such as a question and a text that may answer it.
//!
//! ```text
//! BERT       [CLS] a [SEP] b [SEP]         kinds 0 .. 0 1 .. 1
//! RoBERTa    <s> a </s></s> b </s>         kinds 0
//! ```
//!
//! The frame is found once, by joining two marks as the tokenizer's files say; from then on texts
//! are put into it. GGUF files say only which tokens begin and end a text, and frames follow from it.

use pelton_base::TokenId;

use crate::error::TextError;
use crate::hf::HfEncoder;
use crate::tokenizer::{Encoder, Tokenizer};

/// The special tokens around and between the two texts of a pair, each with its kind.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PairFrame {
    before: Vec<(TokenId, u8)>,
    between: Vec<(TokenId, u8)>,
    after: Vec<(TokenId, u8)>,
    /// Kinds of the tokens of the first and of the second text.
    kinds: [u8; 2],
}

/// Two texts in their frame.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PairTokens {
    /// All tokens.
    pub tokens: Vec<TokenId>,
    /// The kind of each token: 0 or 1.
    pub kinds: Vec<u8>,
}

impl PairFrame {
    /// Special tokens of a pair.
    pub fn n_special(&self) -> usize {
        self.before.len() + self.between.len() + self.after.len()
    }

    /// Puts two texts, without special tokens of their own, into the frame.
    pub fn join(&self, a: &[TokenId], b: &[TokenId]) -> PairTokens {
        let mut pair = PairTokens::default();
        let n = self.n_special() + a.len() + b.len();
        pair.tokens.reserve_exact(n);
        pair.kinds.reserve_exact(n);
        pair.special(&self.before);
        pair.text(a, self.kinds[0]);
        pair.special(&self.between);
        pair.text(b, self.kinds[1]);
        pair.special(&self.after);
        pair
    }

    /// Lengths to which two texts are cut so that the pair has at most `limit` tokens: the longer
    /// text loses tokens first. It is the strategy `longest_first` of the `transformers` library.
    pub fn lengths_within(&self, a: usize, b: usize, limit: usize) -> (usize, usize) {
        let room = limit.saturating_sub(self.n_special());
        if a + b <= room {
            return (a, b);
        }
        let short = a.min(b).min(room / 2);
        let long = room - short;
        if a <= b { (short, long) } else { (long, short) }
    }
}

impl PairTokens {
    fn special(&mut self, tokens: &[(TokenId, u8)]) {
        self.tokens.extend(tokens.iter().map(|(token, _)| *token));
        self.kinds.extend(tokens.iter().map(|(_, kind)| *kind));
    }

    fn text(&mut self, tokens: &[TokenId], kind: u8) {
        self.tokens.extend_from_slice(tokens);
        self.kinds.resize(self.tokens.len(), kind);
    }
}

impl Tokenizer {
    /// The frame of a pair of texts.
    ///
    /// # Errors
    ///
    /// When the tokenizer's template for pairs leaves out one of the texts, repeats one, or turns
    /// them round.
    pub fn pair_frame(&self) -> Result<PairFrame, TextError> {
        match (&self.encoder, self.prepend_bos) {
            (Encoder::Hf(encoder), None) => of_template(encoder),
            _ => Ok(self.frame_of_ends()),
        }
    }

    /// A GGUF file names the tokens that begin and end a text. `bert` has one token between the
    /// texts and two kinds; other vocabularies end the first text and then begin the second with
    /// the separator, where files ask for it.
    fn frame_of_ends(&self) -> PairFrame {
        let bos = self.bos.filter(|_| self.prepend_bos == Some(true));
        let eos = self.eos.filter(|_| self.append_eos == Some(true));
        let second = u8::from(self.pair_separator.is_none() && eos.is_some());
        let between = eos.into_iter().chain(self.pair_separator).map(|token| (token, 0));
        PairFrame {
            before: bos.into_iter().map(|token| (token, 0)).collect(),
            between: between.collect(),
            after: eos.into_iter().map(|token| (token, second)).collect(),
            kinds: [0, second],
        }
    }
}

/// Joins two marks and reads the frame around them.
fn of_template(encoder: &HfEncoder) -> Result<PairFrame, TextError> {
    // No vocabulary is so large, so a special token is neither.
    const MARKS: [TokenId; 2] = [TokenId(u32::MAX - 1), TokenId(u32::MAX)];
    let joined = encoder.join(MARKS)?;
    let wrong = || {
        let reason =
            "the template for pairs must hold the first text and then the second, each once";
        TextError::Encode { reason: reason.to_owned() }
    };
    let place = |mark: TokenId| {
        let mut places = joined.iter().enumerate().filter(|(_, (token, _))| *token == mark);
        let first = places.next().map(|(i, _)| i);
        first.filter(|_| places.next().is_none()).ok_or_else(wrong)
    };
    let (a, b) = (place(MARKS[0])?, place(MARKS[1])?);
    if a >= b {
        return Err(wrong());
    }
    Ok(PairFrame {
        before: joined[..a].to_vec(),
        between: joined[a + 1..b].to_vec(),
        after: joined[b + 1..].to_vec(),
        kinds: [joined[a].1, joined[b].1],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[u32]) -> Vec<TokenId> {
        ids.iter().copied().map(TokenId).collect()
    }

    #[test]
    fn the_longer_text_is_cut_first_and_the_shorter_keeps_half() {
        let three = vec![(TokenId(0), 0)];
        let frame = PairFrame {
            before: three.clone(),
            between: three.clone(),
            after: three,
            kinds: [0, 1],
        };
        for (lengths, limit, expected) in [
            ((4, 5), 12, (4, 5)),
            ((4, 5), 11, (4, 4)),
            ((2, 50), 13, (2, 8)),
            ((50, 2), 13, (8, 2)),
            ((50, 60), 13, (5, 5)),
            ((50, 60), 14, (5, 6)),
            ((60, 50), 14, (6, 5)),
            ((3, 3), 3, (0, 0)),
            ((3, 3), 0, (0, 0)),
        ] {
            assert_eq!(frame.lengths_within(lengths.0, lengths.1, limit), expected, "{lengths:?}");
        }
    }

    fn tokenizer(post_processor: &str) -> Tokenizer {
        let json = format!(
            r#"{{"version": "1.0", "added_tokens": [], "normalizer": null,
                "pre_tokenizer": {{"type": "Whitespace"}}, "post_processor": {post_processor},
                "decoder": null, "model": {{"type": "WordLevel", "unk_token": "u",
                    "vocab": {{"u": 0, "s": 1, "e": 2, "x": 3, "y": 4}}}}}}"#
        );
        Tokenizer::from_bytes(json.as_bytes()).expect("well formed")
    }

    #[test]
    fn frames_are_those_of_the_post_processor() {
        let bert = tokenizer(r#"{"type": "BertProcessing", "sep": ["e", 2], "cls": ["s", 1]}"#);
        let pair = bert.pair_frame().expect("a frame").join(&ids(&[3, 3]), &ids(&[4]));
        assert_eq!(pair.tokens, ids(&[1, 3, 3, 2, 4, 2]));
        assert_eq!(pair.kinds, [0, 0, 0, 0, 1, 1]);
        let roberta = tokenizer(
            r#"{"type": "RobertaProcessing", "sep": ["e", 2], "cls": ["s", 1],
                "trim_offsets": true, "add_prefix_space": false}"#,
        );
        assert_eq!([&bert, &roberta].map(|t| t.pair_frame().expect("a frame").n_special()), [3, 4]);
        let pair = roberta.pair_frame().expect("a frame").join(&ids(&[3]), &ids(&[4]));
        assert_eq!((pair.tokens, pair.kinds), (ids(&[1, 3, 2, 2, 4, 2]), vec![0; 6]));
        let none = tokenizer("null").pair_frame().expect("a frame");
        assert_eq!(none.join(&ids(&[3]), &ids(&[4])).tokens, ids(&[3, 4]));
    }

    #[test]
    fn a_template_that_turns_the_texts_round_is_refused() {
        let piece = |id: &str| format!(r#"{{"Sequence": {{"id": "{id}", "type_id": 0}}}}"#);
        let template = |pair: &[&str]| {
            let pair: Vec<String> = pair.iter().map(|id| piece(id)).collect();
            tokenizer(&format!(
                r#"{{"type": "TemplateProcessing", "single": [{}], "pair": [{}],
                    "special_tokens": {{}}}}"#,
                piece("A"),
                pair.join(",")
            ))
        };
        let error = template(&["B", "A"]).pair_frame().expect_err("turned round").to_string();
        assert!(error.contains("first text and then the second"), "{error}");
        template(&["A", "B"]).pair_frame().expect("in order");
        for pair in [&["A"][..], &["B"], &["A", "B", "A"], &["A", "B", "B"]] {
            template(pair).pair_frame().expect_err("each text once");
        }
    }
}
