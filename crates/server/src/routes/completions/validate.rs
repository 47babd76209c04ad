//! From the JSON of a request to a request that can be run.

use pelton_base::limits;
use pelton_llm::{CompletionRequest, Generation, Prompt};

use super::types::CompletionBody;
use crate::error::ApiError;
use crate::wire::{Ask, Shown, generation, json};

/// As in vLLM.
const NOT_STREAMED: &str = "`prompt_logprobs` is not possible with `stream`";
/// Default for `max_tokens`, as other servers of this endpoint have it.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Checks every range.
pub(crate) fn check(
    mut body: CompletionBody,
    defaults: Generation,
) -> Result<(CompletionRequest, Ask), ApiError> {
    body.logprobs = body.logprobs.or(body.n_probs.filter(|n| *n > 0));
    body.generation.beams().check_stream(body.stream.is_some())?;
    if body.stream.is_some() && body.best_of.is_some_and(|best_of| best_of > body.n) {
        // The best answers are known only when all have ended.
        let message = "`best_of` above `n` cannot be streamed";
        return Err(ApiError::param("best_of", message));
    }
    if let Some(n) = body.logprobs.filter(|n| *n > limits::TOP_LOGPROBS) {
        return Err(json::wrong("logprobs", "at most 20", &n.to_string()));
    }
    let max_tokens = max_tokens(&body)?;
    let prompt_logprobs = body.generation.prompt_logprobs();
    let shown = Shown { prompt_logprobs, ..body.shown };
    if body.stream.is_some() && prompt_logprobs.is_some() {
        return Err(ApiError::param("prompt_logprobs", NOT_STREAMED));
    }
    if body.generation.beams().is_on() && shown.echo && body.logprobs.is_some() {
        let message = "`echo` with `logprobs` is not possible with `use_beam_search`";
        return Err(ApiError::param("echo", message));
    }
    // A prompt is echoed with its scores; an answer without tokens exists only beside a score.
    let echoed = body.logprobs.filter(|_| shown.echo);
    let alone = (max_tokens == Some(0) && shown.echo).then_some(0);
    let defaults =
        Generation { best_of: body.best_of, prompt_logprobs: echoed.max(alone), ..defaults };
    let logprobs = body.logprobs;
    let generation = generation(body.generation, max_tokens, logprobs, defaults)?;
    let ask = Ask { stream: body.stream, logprobs: logprobs.is_some(), shown, ..Ask::default() };
    let prompts = with_gaps(body.prompts, body.suffix, shown.echo)?;
    Ok((CompletionRequest { prompts, generation }, ask))
}

/// `max_tokens`, or `n_predict` as llama-server calls it; `None` for as many as the context holds.
fn max_tokens(body: &CompletionBody) -> Result<Option<usize>, ApiError> {
    match (body.max_tokens, body.n_predict) {
        (Some(one), Some(other)) if other != Some(one) => {
            let message = "`n_predict` is another name of `max_tokens`: give one";
            Err(ApiError::param("n_predict", message))
        }
        (_, Some(n_predict)) => Ok(n_predict),
        (max_tokens, None) => Ok(Some(max_tokens.unwrap_or(DEFAULT_MAX_TOKENS))),
    }
}

/// The prompts with what follows the gap behind them, if anything does.
fn with_gaps(
    prompts: Vec<Prompt>,
    suffix: Option<String>,
    is_echoed: bool,
) -> Result<Vec<Prompt>, ApiError> {
    let Some(suffix) = suffix else { return Ok(prompts) };
    if is_echoed {
        return Err(ApiError::param("echo", "`echo` is not possible with `suffix`"));
    }
    let with_gap = |prompt| match prompt {
        Prompt::Text(prefix) => Ok(Prompt::Gap { prefix, suffix: suffix.clone() }),
        _ => Err(ApiError::param("suffix", "`suffix` needs prompts that are texts")),
    };
    prompts.into_iter().map(with_gap).collect()
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
            ("suffix", json!({"prompt": [1], "suffix": "b"})),
            ("suffix", json!({"prompt": "a", "suffix": 1})),
            ("echo", json!({"prompt": "a", "suffix": "b", "echo": true})),
            ("echo", json!({"prompt": "a", "echo": 1})),
            ("echo", json!({"prompt": "a", "echo": true, "logprobs": 1, "use_beam_search": true})),
            ("prompt_logprobs", json!({"prompt": "a", "prompt_logprobs": 1, "stream": true})),
            ("request_id", json!({"prompt": "a", "request_id": "a b"})),
            ("n_predict", json!({"prompt": "a", "n_predict": -3})),
            ("n_predict", json!({"prompt": "a", "n_predict": 3, "max_tokens": 4})),
            ("logits_processors", json!({"prompt": "a", "logits_processors": ["x"]})),
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
