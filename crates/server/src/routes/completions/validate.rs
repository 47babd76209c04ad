//! From the JSON of a request to a request that can be run.

use pelton_base::limits;
use pelton_llm::{CompletionRequest, Generation};

use super::types::CompletionBody;
use crate::error::ApiError;
use crate::wire::{Ask, generation, json};

/// Default for `max_tokens`, as other servers of this endpoint have it.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Checks every range.
pub(crate) fn check(
    body: CompletionBody,
    defaults: Generation,
) -> Result<(CompletionRequest, Ask), ApiError> {
    body.generation.beams().check_stream(body.stream.is_some())?;
    if body.stream.is_some() && body.best_of.is_some_and(|best_of| best_of > body.n) {
        // The best answers are known only when all have ended.
        let message = "`best_of` above `n` cannot be streamed";
        return Err(ApiError::param("best_of", message));
    }
    if let Some(n) = body.logprobs.filter(|n| *n > limits::TOP_LOGPROBS) {
        return Err(json::wrong("logprobs", "at most 20", &n.to_string()));
    }
    let max_tokens = body.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
    let defaults = Generation { best_of: body.best_of, ..defaults };
    let generation = generation(body.generation, Some(max_tokens), body.logprobs, defaults)?;
    let ask = Ask { stream: body.stream, logprobs: body.logprobs.is_some(), hides_thoughts: false };
    Ok((CompletionRequest { prompts: body.prompts, generation }, ask))
}

/// Answers to keep and to generate per prompt, where the numbers differ.
pub(crate) fn kept(generation: &Generation) -> Option<(usize, usize)> {
    let (n, n_made) = (generation.n as usize, generation.n_made() as usize);
    (n < n_made).then_some((n, n_made))
}

#[cfg(test)]
mod tests {
    use pelton_base::TokenId;
    use pelton_llm::Prompt;
    use serde_json::{Value, json};

    use super::*;

    fn run(value: Value) -> Result<(CompletionRequest, Ask), ApiError> {
        super::super::parse(value.to_string().as_bytes(), Generation::default())
    }

    #[test]
    fn a_prompt_takes_four_forms() {
        let ids = |ids: &[u32]| Prompt::Tokens(ids.iter().copied().map(TokenId).collect());
        let text = |text: &str| Prompt::Text(text.to_owned());
        for (value, expected) in [
            (json!("a"), vec![text("a")]),
            (json!(["a", "b"]), vec![text("a"), text("b")]),
            (json!([1, 2]), vec![ids(&[1, 2])]),
            (json!([[1], [2, 3]]), vec![ids(&[1]), ids(&[2, 3])]),
        ] {
            let (request, _) = run(json!({ "prompt": value })).expect("valid");
            assert_eq!(request.prompts, expected);
            assert_eq!(request.generation.max_tokens, Some(16));
        }
    }

    #[test]
    fn every_refusal_names_its_parameter() {
        for (param, body) in [
            ("prompt", json!({})),
            ("prompt", json!({"prompt": []})),
            ("prompt", json!({"prompt": [1, "a"]})),
            ("prompt", json!({"prompt": ["a", 1]})),
            ("prompt", json!({"prompt": [-1]})),
            ("prompt", json!({"prompt": [[1.5]]})),
            ("prompt", json!({"prompt": {}})),
            ("prompt", json!({"prompt": vec!["a"; limits::PROMPTS + 1]})),
            ("suffix", json!({"prompt": "a", "suffix": "b"})),
            ("echo", json!({"prompt": "a", "echo": true})),
            ("best_of", json!({"prompt": "a", "best_of": 2, "stream": true})),
            ("best_of", json!({"prompt": "a", "best_of": 1, "n": 2})),
            ("best_of", json!({"prompt": "a", "best_of": 129})),
            ("logprobs", json!({"prompt": "a", "logprobs": 21})),
            ("logprobs", json!({"prompt": "a", "logprobs": true})),
            ("max_tokens", json!({"prompt": "a", "max_tokens": 0})),
            ("min_tokens", json!({"prompt": "a", "max_tokens": 3, "min_tokens": 4})),
            ("min_tokens", json!({"prompt": "a", "min_tokens": DEFAULT_MAX_TOKENS + 1})),
            ("messages", json!({"prompt": "a", "messages": []})),
        ] {
            let error = run(body).expect_err(param);
            assert_eq!(error.body.param.as_deref(), Some(param), "{}", error.body.message);
        }
        let all = json!({"prompt": "a", "best_of": 2, "n": 2, "echo": false, "stream": true});
        let (request, _) = run(all).expect("nothing is left out");
        assert_eq!(kept(&request.generation), None);
        let (request, _) = run(json!({"prompt": "a", "best_of": 5, "n": 2})).expect("two of five");
        assert_eq!(kept(&request.generation), Some((2, 5)));
    }
}
