//! `GET /` and `GET /page/{file}`: a web page that chats with the models and shows the engine at
//! work.
//!
//! The files are part of the binary and hold no data, so they need no key; the page asks for one
//! where the routes that it calls need one. Nothing is loaded from elsewhere, and the policy on each
//! answer makes sure of it: scripts and styles come from this server as files, none is inline, and
//! no text ever becomes HTML (`require-trusted-types-for`).
//!
//! **Architecture invariant:** no build step. The files in `assets/page` are served as they are.

use std::fmt::Write as _;
use std::sync::LazyLock;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use crate::error::ApiError;
use crate::state::AppState;
use crate::wire::Id;

/// Rights of the page: it may load from this server and ask it, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

/// A file of the page.
struct File {
    name: &'static str,
    media_type: &'static str,
    bytes: &'static [u8],
}

macro_rules! files {
    ($($name:literal: $media_type:expr),* $(,)?) => {
        &[$(File {
            name: $name,
            media_type: $media_type,
            bytes: include_bytes!(concat!("../../../assets/page/", $name)),
        }),*]
    };
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

static FILES: &[File] = files! {
    "index.html": HTML,
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "api.js": SCRIPT,
    "app.js": SCRIPT,
    "chart.js": SCRIPT,
    "chat.js": SCRIPT,
    "dom.js": SCRIPT,
    "engine.js": SCRIPT,
    "highlight.js": SCRIPT,
    "inline.js": SCRIPT,
    "live.js": SCRIPT,
    "markdown.js": SCRIPT,
    "message.js": SCRIPT,
    "settings.js": SCRIPT,
    "sidebar.js": SCRIPT,
    "store.js": SCRIPT,
    "theme.js": SCRIPT,
    "tokens.js": SCRIPT,
    "tree.js": SCRIPT,
};

/// The page itself.
pub(crate) async fn index(
    State(state): State<AppState>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    answer(&state, "index.html", "/", &headers)
}

/// A script, a style or a picture of the page.
pub(crate) async fn file(
    State(state): State<AppState>,
    Id(name): Id,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    answer(&state, &name, &format!("/page/{name}"), &headers)
}

/// Answers with a file, or says that the browser's copy is still the same.
fn answer(
    state: &AppState,
    name: &str,
    path: &str,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let found = FILES.iter().position(|file| file.name == name);
    let idx =
        found.filter(|_| state.config().page).ok_or_else(|| ApiError::no_route(path, None))?;
    let (file, tag) = (&FILES[idx], &TAGS[idx]);
    let is_known = headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|known| matches!(known.trim().trim_start_matches("W/"), "*") || known.trim() == tag);
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(header::CONTENT_TYPE, file.media_type)], file.bytes).into_response()
    };
    let mut set = |name: HeaderName, value: &str| {
        let value = HeaderValue::from_str(value).expect("invariant: headers of files are ASCII");
        response.headers_mut().insert(name, value);
    };
    set(header::ETAG, tag);
    // A browser asks each time whether its copy is still the same, so a new binary is a new page.
    set(header::CACHE_CONTROL, "no-cache");
    set(header::CONTENT_SECURITY_POLICY, POLICY);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::REFERRER_POLICY, "no-referrer");
    set(HeaderName::from_static("cross-origin-opener-policy"), "same-origin");
    set(HeaderName::from_static("cross-origin-resource-policy"), "same-origin");
    Ok(response)
}

/// Strong entity tags: the hash of each file.
static TAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let tag = |file: &File| {
        let mut tag = "\"".to_owned();
        for byte in &Sha256::digest(file.bytes)[..16] {
            let _ = write!(tag, "{byte:02x}");
        }
        tag + "\""
    };
    FILES.iter().map(tag).collect()
});

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Most bytes of the page: what a phone loads in a moment.
    const MOST_BYTES: usize = 150_000;

    fn text(file: &File) -> &str {
        std::str::from_utf8(file.bytes).expect("UTF-8")
    }

    #[test]
    fn every_file_of_the_folder_is_served_and_all_are_small() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/page");
        let there: BTreeSet<String> = std::fs::read_dir(folder)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        assert_eq!(FILES.iter().map(|file| file.name.to_owned()).collect::<BTreeSet<_>>(), there);
        let n_bytes: usize = FILES.iter().map(|file| file.bytes.len()).sum();
        assert!(n_bytes <= MOST_BYTES, "{n_bytes} bytes");
    }

    #[test]
    fn no_file_names_an_address_elsewhere_or_makes_html_of_text() {
        for file in FILES {
            let text = text(file).replace("http://www.w3.org/2000/svg", "");
            for (found, _) in text.match_indices("//") {
                let before = &text[..found];
                let is_address = before.ends_with("http:") || before.ends_with("https:");
                assert!(!is_address, "{}: {}", file.name, &text[found..][..40]);
            }
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "Function(",
            ] {
                assert!(!text.contains(word), "{} has {word}", file.name);
            }
            for word in ["style=", "onclick=\"", "onload=", "<script>"] {
                let is_markup = file.media_type == HTML;
                assert!(!(is_markup && text.contains(word)), "{} has {word}", file.name);
            }
        }
    }

    #[test]
    fn scripts_import_only_files_that_are_served() {
        for file in FILES.iter().filter(|file| file.media_type == SCRIPT) {
            for line in text(file).lines().filter(|line| line.starts_with("import ")) {
                let name = line.rsplit('"').nth(1).expect("a path");
                let name = name.strip_prefix("./").expect("a file beside this one");
                assert!(FILES.iter().any(|other| other.name == name), "{}: {name}", file.name);
            }
        }
    }
}
