//! The border around one request, between its text and its tokens.
//!
//! Chat templates, tokenizers and detokenizers run code that comes from model files. A panic in one
//! of them ends the request (or the one answer) that called it, with an error that names the part;
//! other requests go on with the same tokens.

use pelton_engine::Panicked;

/// Rendering the messages of a conversation.
pub(crate) const TEMPLATE: &str = "the chat template";
/// Text of a request to tokens.
pub(crate) const TOKENIZER: &str = "the tokenizer";
/// Tokens of an answer to text, stop strings included.
pub(crate) const DETOKENIZER: &str = "the detokenizer";

/// Calls `work`; a panic in it comes back as an error that names `part`, see
/// [`pelton_engine::guard`].
pub(crate) fn guard<T>(part: &'static str, work: impl FnOnce() -> T) -> Result<T, Panicked> {
    pelton_engine::guard(part, || {
        #[cfg(test)]
        tests::strike(part);
        work()
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use pelton_base::{FinishReason, SamplingParams};
    use pelton_text::Message;

    use super::*;
    use crate::common::parrot;
    use crate::{ChatRequest, CompletionRequest, Finish, Generating, Generation, LlmError, Prompt};

    thread_local! {
        /// The part that panics on this thread, and how many of its calls go well before.
        static FAULT: Cell<Option<(&'static str, usize)>> = const { Cell::new(None) };
    }

    pub(super) fn strike(part: &str) {
        match FAULT.get() {
            Some((faulty, 0)) if faulty == part => {
                FAULT.set(None);
                panic!("as the test asked");
            }
            Some((faulty, n)) if faulty == part => FAULT.set(Some((faulty, n - 1))),
            _ => {}
        }
    }

    fn fault<T>(part: &'static str, n_good: usize, work: impl FnOnce() -> T) -> T {
        FAULT.set(Some((part, n_good)));
        let done = work();
        assert_eq!(FAULT.replace(None), None, "{part} was never called, or not often enough");
        done
    }

    fn generation(n: u32) -> Generation {
        let sampling = SamplingParams::greedy();
        Generation { sampling, max_tokens: Some(6), n, ..Generation::default() }
    }

    /// Text and end of each answer.
    fn gather(mut generating: Generating) -> Vec<(String, Finish)> {
        let mut answers = vec![(String::new(), None); generating.n_choices()];
        while let Some(event) = generating.blocking_next() {
            let (text, finish) = &mut answers[event.choice];
            text.push_str(&event.text);
            *finish = event.finish;
        }
        let with_end = |(text, finish): (String, Option<Finish>)| {
            let mut finish = finish.expect("an end");
            // The cache remembers earlier requests, and nothing else depends on them.
            finish.usage.cached_tokens = 0;
            (text, finish)
        };
        answers.into_iter().map(with_end).collect()
    }

    fn is_told(error: &str, part: &str) {
        assert!(error.contains("bug in Pelton") && error.contains(part), "{error}");
    }

    #[test]
    fn a_template_or_tokenizer_that_panics_fails_its_request_and_no_other() {
        let llm = parrot();
        let chat = || {
            let messages = vec![Message::new("user", "abc")];
            llm.chat(ChatRequest::new(messages, generation(1)))
        };
        let plain = gather(chat().expect("accepted"));
        let neighbour = chat().expect("accepted");
        for part in [TEMPLATE, TOKENIZER] {
            let error = fault(part, 0, chat).expect_err("it panics");
            assert!(matches!(error, LlmError::Panicked(_)), "{error:?}");
            is_told(&error.to_string(), part);
        }
        assert_eq!(gather(neighbour), plain);
        assert_eq!(gather(chat().expect("accepted")), plain);
    }

    #[test]
    fn a_detokenizer_that_panics_ends_its_answer_and_no_other() {
        let llm = parrot();
        let start = || {
            let prompts = ["abc", "defg"].map(|text| Prompt::Text(text.to_owned())).to_vec();
            llm.complete(CompletionRequest { prompts, generation: generation(2) }).expect("taken")
        };
        let plain = gather(start());
        // The first two events go well.
        let (neighbour, answers) = (start(), fault(DETOKENIZER, 2, || gather(start())));
        let failed: Vec<usize> =
            (0..answers.len()).filter(|&i| answers[i].1.reason == FinishReason::Error).collect();
        assert_eq!(failed.len(), 1, "{answers:?}");
        for (i, (answer, plain)) in answers.iter().zip(&plain).enumerate() {
            if !failed.contains(&i) {
                assert_eq!(answer, plain);
                continue;
            }
            assert!(plain.0.starts_with(&answer.0), "{answer:?}");
            is_told(&answer.1.fault.as_ref().expect("it panicked").to_string(), DETOKENIZER);
        }
        assert_eq!(gather(neighbour), plain);
    }
}
