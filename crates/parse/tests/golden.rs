//! Transcripts of every format, read whole and in pieces.
//!
//! They are written after the public test cases of the parsers of vLLM and SGLang, and after the
//! chat templates of the models.

mod common;

use common::{in_pieces, names, transcripts};
use pelton_parse::{TOOL_FORMATS, Trust, read};

/// A small random number generator (xorshift), so that a failure comes again.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// The places between characters.
fn places(text: &str) -> Vec<usize> {
    text.char_indices().map(|(at, _)| at).skip(1).collect()
}

#[test]
fn every_format_has_transcripts() {
    let names = names();
    for format in TOOL_FORMATS {
        assert!(names.iter().any(|name| name == format.name()), "{}", format.name());
    }
}

#[test]
fn transcripts_are_read_as_they_are_meant() {
    for name in names() {
        for transcript in transcripts(&name) {
            let answer = read(transcript.options(Trust::Checked), &transcript.raw);
            assert_eq!(answer, transcript.expected(), "{name}: {}", transcript.raw);
        }
    }
}

#[test]
fn a_sound_call_is_the_same_where_its_form_is_enforced() {
    for name in names() {
        for transcript in transcripts(&name).into_iter().filter(|t| !t.malformed) {
            let answer = read(transcript.options(Trust::Enforced), &transcript.raw);
            assert_eq!(answer, transcript.expected(), "{name}: {}", transcript.raw);
        }
    }
}

#[test]
fn nothing_depends_on_where_the_text_is_split() {
    for name in names() {
        for transcript in transcripts(&name) {
            let raw = transcript.raw.as_str();
            for trust in [Trust::Checked, Trust::Enforced] {
                let options = || transcript.options(trust);
                let whole = read(options(), raw);
                for at in places(raw) {
                    let (first, second) = raw.split_at(at);
                    let answer = in_pieces(options(), [first, second]);
                    assert_eq!(answer, whole, "{name}: {first:?} {second:?}");
                }
                let letters = raw.split_inclusive(|_| true);
                assert_eq!(in_pieces(options(), letters), whole, "{name}: letters of {raw:?}");
            }
        }
    }
}

#[test]
fn nothing_depends_on_many_splits() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for name in names() {
        for transcript in transcripts(&name) {
            let raw = transcript.raw.as_str();
            let whole = read(transcript.options(Trust::Checked), raw);
            for _ in 0..100 {
                let one_in = 1 + random.below(8);
                let mut pieces = Vec::new();
                let mut from = 0;
                for at in places(raw) {
                    if random.below(one_in) == 0 {
                        pieces.push(&raw[from..at]);
                        from = at;
                    }
                }
                pieces.push(&raw[from..]);
                let answer = in_pieces(transcript.options(Trust::Checked), pieces.iter().copied());
                assert_eq!(answer, whole, "{name}: {pieces:?}");
            }
        }
    }
}

/// Any beginning of an answer is read without loss: what is neither mark nor white space is
/// somewhere.
#[test]
fn an_answer_may_end_anywhere() {
    for name in names() {
        for transcript in transcripts(&name) {
            for at in places(&transcript.raw) {
                let answer = read(transcript.options(Trust::Checked), &transcript.raw[..at]);
                let n_open = answer.calls.iter().filter(|call| {
                    serde_json::from_str::<serde_json::Value>(&call.arguments).is_err()
                });
                assert!(n_open.count() <= usize::from(answer.cut), "{name}: {answer:?}");
            }
        }
    }
}
