//! Texts that a model reads: as text, as token ids, or as lists of either.

use pelton_base::TokenId;

use super::json::{Kind, RawValue, each, refused, string, wrong};
use crate::error::ApiError;
use crate::limits;

/// Makes a request's own kind of input.
#[derive(Clone, Copy)]
pub(crate) struct Forms<T> {
    pub(crate) text: fn(String) -> T,
    pub(crate) tokens: fn(Vec<TokenId>) -> T,
}

/// Reads a text, tokens, or at most `most` texts or lists of tokens.
pub(crate) fn inputs<T>(
    param: &str,
    raw: &RawValue,
    most: usize,
    forms: Forms<T>,
) -> Result<Vec<T>, ApiError> {
    let other =
        |raw: &RawValue| wrong(param, "a string, an array of strings, or token ids", raw.get());
    match Kind::of(raw) {
        Kind::String => return Ok(vec![(forms.text)(string(param, raw)?)]),
        Kind::Array => {}
        _ => return Err(other(raw)),
    }
    let (mut items, mut ids) = (Vec::new(), Vec::new());
    // The first element decides what all of them are.
    let (mut first, mut n_tokens) = (None, 0);
    each(param, raw, limits::PROMPT_TOKENS, |i, item| {
        let kind = Kind::of(item);
        if i == most && first != Some(Kind::Number) {
            return Err(refused(param, &format!("more than {most} elements")));
        }
        match (*first.get_or_insert(kind), kind) {
            (Kind::Number, _) => {
                if i == 0 {
                    ids = with_room_for_ids(raw, limits::PROMPT_TOKENS);
                }
                ids.push(token(param, item)?);
            }
            (Kind::String, Kind::String) => items.push((forms.text)(string(param, item)?)),
            (Kind::Array, Kind::Array) => {
                let tokens = token_ids(param, item, limits::PROMPT_TOKENS - n_tokens)?;
                n_tokens += tokens.len();
                items.push((forms.tokens)(tokens));
            }
            _ => return Err(other(item)),
        }
        Ok(())
    })?;
    if !ids.is_empty() {
        items.push((forms.tokens)(ids));
    }
    if items.is_empty() { Err(other(raw)) } else { Ok(items) }
}

/// A list of at most `most` token ids.
pub(crate) fn token_ids(
    param: &str,
    raw: &RawValue,
    most: usize,
) -> Result<Vec<TokenId>, ApiError> {
    let mut ids = with_room_for_ids(raw, most);
    each(param, raw, most, |_, item| {
        ids.push(token(param, item)?);
        Ok(())
    })?;
    Ok(ids)
}

/// Room for as many ids as the text of an array can hold, because a list that grows is copied.
fn with_room_for_ids(raw: &RawValue, most: usize) -> Vec<TokenId> {
    Vec::with_capacity((raw.get().len() / 2).min(most))
}

/// One token id.
fn token(param: &str, raw: &RawValue) -> Result<TokenId, ApiError> {
    // JSON has no leading zeros and no plus signs, so only plain digits get this far.
    raw.get().parse().map(TokenId).map_err(|_| wrong(param, "made of token ids", raw.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMS: Forms<String> =
        Forms { text: |text| text, tokens: |ids| format!("{} ids", ids.len()) };

    fn read(text: &str) -> Result<Vec<String>, ApiError> {
        inputs("input", serde_json::from_str(text).expect("JSON"), 3, FORMS)
    }

    #[test]
    fn the_number_of_texts_is_limited_and_not_that_of_tokens_in_one_text() {
        assert_eq!(read("[1,2,3,4,5]").expect("one text"), ["5 ids"]);
        assert_eq!(read("[[1],[2,3],[]]").expect("three"), ["1 ids", "2 ids", "0 ids"]);
        for many in [r#"["a","b","c","d"]"#, "[[1],[2],[3],[4]]"] {
            let error = read(many).expect_err("four");
            assert_eq!(error.body.param.as_deref(), Some("input"));
            assert!(error.body.message.contains("more than 3"), "{}", error.body.message);
        }
        let ids: &RawValue = serde_json::from_str("[1,2,3]").expect("JSON");
        assert!(token_ids("input", ids, 3).is_ok() && token_ids("input", ids, 2).is_err());
    }
}
