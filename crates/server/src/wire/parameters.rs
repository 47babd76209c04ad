//! The query of an address.

use std::collections::HashSet;

use axum::extract::{FromRequestParts, Query};
use axum::http::Uri;
use axum::http::request::Parts;

use super::json::brief;
use crate::error::ApiError;

/// Names and values after the `?` of an address, decoded, in their order.
#[derive(Debug)]
pub(crate) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Reads the query of an address, in which only lists (`include[]=a&include[]=b`) may repeat.
    ///
    /// # Errors
    ///
    /// Names the parameter that stands twice.
    fn of(uri: &Uri) -> Result<Self, ApiError> {
        let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri);
        let Query(pairs) =
            pairs.map_err(|error| ApiError::malformed(format!("the query of the URL: {error}")))?;
        let mut seen = HashSet::new();
        for (name, _) in &pairs {
            let is_list = name == "include" || name.ends_with("[]");
            if !is_list && !seen.insert(name.as_str()) {
                let name = brief(name);
                return Err(ApiError::param(name.clone(), format!("`{name}` stands twice")));
            }
        }
        Ok(Self(pairs))
    }

    /// Names and values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Refuses a parameter; `known` lists those that the endpoint has.
    pub(crate) fn unknown(name: &str, known: &str) -> ApiError {
        let name = brief(name);
        let message = format!("unknown parameter `{name}` of the URL; known are {known}");
        ApiError::param(name, message)
    }

    /// The parameters of a query.
    #[cfg(test)]
    pub(crate) fn parse(query: &str) -> Result<Self, ApiError> {
        Self::of(&format!("/?{query}").parse().expect("a query"))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Parameters {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Self::of(&parts.uri)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_and_only_lists_repeat() {
        let read = Parameters::parse("a=%C3%BC+%26&include[]=x&&include%5B%5D=y&b").expect("read");
        let pairs: Vec<(&str, &str)> = read.iter().collect();
        assert_eq!(pairs, [("a", "ü &"), ("include[]", "x"), ("include[]", "y"), ("b", "")]);
        assert_eq!(Parameters::parse("").expect("empty").iter().count(), 0);
        for query in ["a=1&a=1", "a=1&b=2&%61=3"] {
            let error = Parameters::parse(query).expect_err(query);
            assert_eq!((error.status.as_u16(), error.body.param.as_deref()), (400, Some("a")));
        }
    }
}
