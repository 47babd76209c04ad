//! Names of a dialect in the errors of the library.

use crate::error::ApiError;

/// An error with the names of a dialect: `names` has pairs of the library's name of a field and the
/// dialect's, and `parameters` ends the path of a tool's schema.
pub(crate) fn renamed(mut error: ApiError, names: &[(&str, &str)], parameters: &str) -> ApiError {
    let Some(param) = &mut error.body.param else { return error };
    let of_field = names.iter().find(|(ours, _)| ours == param).map(|(_, name)| *name);
    let new = match of_field {
        Some(name) => name.to_owned(),
        None if param.starts_with("tools[") => {
            param.replacen(".function.parameters", parameters, 1)
        }
        None => return error,
    };
    // Elsewhere in a sentence the same word is no name of a field.
    error.body.message = error.body.message.replace(&format!("`{param}`"), &format!("`{new}`"));
    *param = new;
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_names_of_the_dialect() {
        let names = &[("prompt", "input")];
        let renamed = |param: &str, message: &str| {
            let error = super::renamed(ApiError::param(param, message), names, ".input_schema");
            (error.body.param.expect("a field"), error.body.message)
        };
        let (param, message) = renamed("prompt", "the prompt: `prompt` has 9 tokens");
        assert_eq!(
            (param.as_str(), message.as_str()),
            ("input", "the prompt: `input` has 9 tokens")
        );
        let path = "tools[3].function.parameters.properties.a";
        let (param, message) = renamed(path, &format!("`{path}`: no"));
        assert_eq!(param, "tools[3].input_schema.properties.a");
        assert_eq!(message, "`tools[3].input_schema.properties.a`: no");
        assert_eq!(renamed("seed", "`seed` no"), ("seed".to_owned(), "`seed` no".to_owned()));
        let (_, message) = renamed("prompt", "`prompt` or `prompt_logprobs`");
        assert_eq!(message, "`input` or `prompt_logprobs`");
    }
}
