//! The key file: one key per line, for people to read.
//!
//! ```text
//!   # a comment
//!   7f3kq2ab sha256:9f86d0.. scope=user tenant=default created=2026-11-22T19:20:11Z
//!   alice $argon2id$v=19$m=19456,t=2,p=1$..$.. scope=user,metrics tenant=research created=2026-11-22
//!         expires=2027-01-01 revoked=2026-12-24T00:00:00Z tokens_per_day=100000
//! ```
//!
//! (The second key stands on one line in a file.) Fields are separated by blanks; each stands at
//! most once, and an unknown one is an error, so that no misspelt limit is without effect.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU64;

use super::hash::SecretHash;
use super::{Key, Scopes, is_key_id};
use crate::clock::{date_time, parse_date_time};
use crate::limits::{Limit, Limits};

/// Most keys of a file.
const KEYS: usize = 65_536;
/// Longest name of a tenant, in bytes.
const TENANT_BYTES: usize = 64;
const HEAD: &str = "# API keys of `pelton serve --key-file`, one per line; `pelton key` changes this file.\n\
                    # Only hashes stand here: a lost key cannot be shown again.\n";

/// The keys of a file, in its order.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct KeyFile {
    /// The keys; their ids and hashes differ.
    pub keys: Vec<Key>,
}

/// A line that is no key.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct KeyFileError {
    /// The line, from 1.
    pub line: usize,
    /// The reason; it shows no hash.
    pub why: String,
}

impl KeyFile {
    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// The line and what is expected there.
    pub fn parse(text: &str) -> Result<Self, KeyFileError> {
        let mut keys: Vec<Key> = Vec::new();
        let (mut ids, mut hashes) = (HashMap::new(), HashMap::new());
        for (i, line) in text.lines().enumerate() {
            let fail = |why: String| KeyFileError { line: i + 1, why };
            if line.trim().is_empty() || line.trim_start().starts_with('#') {
                continue;
            }
            if keys.len() == KEYS {
                return Err(fail(format!("expected at most {KEYS} keys")));
            }
            let key = parse_line(line).map_err(fail)?;
            if let Some(first) = ids.insert(key.id.clone(), i + 1) {
                return Err(fail(format!("the id `{}` stands in line {first} already", key.id)));
            }
            if let Some(first) = hashes.insert(key.hash.clone(), i + 1) {
                return Err(fail(format!("the hash of line {first}: a key has one id")));
            }
            keys.push(key);
        }
        Ok(Self { keys })
    }

    /// The key of an id.
    pub fn key_mut(&mut self, id: &str) -> Option<&mut Key> {
        self.keys.iter_mut().find(|key| key.id == id)
    }
}

impl fmt::Display for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEAD)?;
        for Key { id, hash, scopes, tenant, created, expires, revoked, limits } in &self.keys {
            write!(
                f,
                "{id} {hash} scope={scopes} tenant={tenant} created={}",
                date_time(*created)
            )?;
            for (name, at) in [("expires", expires), ("revoked", revoked)] {
                if let Some(at) = at {
                    write!(f, " {name}={}", date_time(*at))?;
                }
            }
            limits.iter().try_for_each(|(limit, most)| write!(f, " {}={most}", limit.name()))?;
            f.write_str("\n")?;
        }
        Ok(())
    }
}

fn parse_line(line: &str) -> Result<Key, String> {
    let mut words = line.split_ascii_whitespace();
    let id = words.next().filter(|id| is_key_id(id)).ok_or(
        "expected an id of 1 to 32 lower-case letters, digits and dashes at the start of the line",
    )?;
    let hash = SecretHash::parse(words.next().unwrap_or_default())?;
    let (mut limits, mut fields) = (Limits::default(), HashMap::new());
    for word in words {
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| format!("expected `name=value`, got `{}`", brief(word)))?;
        let is_known = FIELDS.contains(&name) || Limit::from_name(name).is_some();
        if !is_known {
            let known: Vec<&str> = FIELDS.into_iter().chain(Limit::ALL.map(Limit::name)).collect();
            return Err(format!("unknown field `{}`; known are {}", brief(name), known.join(", ")));
        }
        if fields.insert(name, value).is_some() {
            return Err(format!("`{name}` stands twice"));
        }
        if let Some(limit) = Limit::from_name(name) {
            let most = value.parse::<NonZeroU64>().map_err(|_| {
                format!("`{name}`: expected a whole number of at least 1, got `{}`", brief(value))
            })?;
            limits.set(limit, Some(most));
        }
    }
    let needed = |name: &str| fields.get(name).copied().ok_or(format!("`{name}=` is missing"));
    let time = |name: &str| {
        let value = fields.get(name);
        let parse = |value: &&str| {
            parse_date_time(value).ok_or_else(|| {
                let form = "2026-11-22 or 2026-11-22T19:20:11Z";
                format!("`{name}`: expected a time in UTC such as {form}, got `{}`", brief(value))
            })
        };
        value.map(parse).transpose()
    };
    let scope = needed("scope")?;
    let scopes = Scopes::parse(scope).ok_or_else(|| {
        format!("`scope`: expected user, admin or metrics, with commas, got `{}`", brief(scope))
    })?;
    let tenant = needed("tenant")?;
    if !(1..=TENANT_BYTES).contains(&tenant.len()) || !tenant.bytes().all(|b| b.is_ascii_graphic())
    {
        return Err(format!("`tenant`: expected 1 to {TENANT_BYTES} visible ASCII letters"));
    }
    let created = time("created")?.ok_or("`created=` is missing")?;
    let (expires, revoked) = (time("expires")?, time("revoked")?);
    let (id, tenant) = (id.to_owned(), tenant.to_owned());
    Ok(Key { id, hash, scopes, tenant, created, expires, revoked, limits })
}

const FIELDS: [&str; 5] = ["scope", "tenant", "created", "expires", "revoked"];

/// The begin of a text from a file, with nothing that moves a cursor.
fn brief(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HASH: &str = "sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
    const REST: &str = "scope=user tenant=default created=2026-11-22";

    #[test]
    fn a_file_is_read_as_it_is_written() {
        let slow = SecretHash::slow("x", [1; 16]);
        let text = format!(
            "# one\n\n k1 {HASH} {REST} expires=2026-12-01 tokens_per_day=5\r\n\
             alice {slow} created=2026-11-22T01:02:03Z tenant=red scope=admin,user revoked=2026-11-23\n"
        );
        let file = KeyFile::parse(&text).expect("well formed");
        assert_eq!(KeyFile::parse(&file.to_string()), Ok(file.clone()));
        let [first, second] = &file.keys[..] else { panic!("two keys") };
        assert_eq!(
            (first.expires, first.limits.get(Limit::TokensPerDay)),
            (Some(1_796_083_200), Some(5))
        );
        assert_eq!(
            (second.tenant.as_str(), second.scopes.to_string()),
            ("red", "user,admin".to_owned())
        );
        assert_eq!(second.revoked, Some(1_795_392_000));
    }

    #[test]
    fn a_hostile_line_is_named_and_no_hash_is_shown() {
        let digits = &HASH[7..];
        for (line, word) in [
            (format!("k1 {digits} {REST}"), "expected a hash"),
            (format!("K1 {HASH} {REST}"), "expected an id"),
            (format!("{HASH} {REST}"), "expected an id"),
            (format!("k1 {HASH}"), "`scope=` is missing"),
            (format!("k1 {HASH} scope=user created=2026-11-22"), "`tenant=` is missing"),
            (format!("k1 {HASH} scope=user tenant=a"), "`created=` is missing"),
            (format!("k1 {HASH} scope=root tenant=a created=2026-11-22"), "`scope`"),
            (format!("k1 {HASH} {REST} scope=admin"), "`scope` stands twice"),
            (format!("k1 {HASH} {REST} expire=2026-11-22"), "unknown field `expire`"),
            (format!("k1 {HASH} {REST} expires=soon"), "`expires`"),
            (format!("k1 {HASH} {REST} tokens_per_day=0"), "`tokens_per_day`"),
            (format!("k1 {HASH} {REST} tokens_per_day=-1"), "`tokens_per_day`"),
            (format!("k1 {HASH} {REST} tokens_per_day=99999999999999999999"), "`tokens_per_day`"),
            (format!("k1 {HASH} {REST} {}", "\u{1b}[2J".repeat(100)), "name=value"),
            (format!("k1 {HASH} {REST}\nk1 sha256:{} {REST}", "0".repeat(64)), "in line 2 already"),
            (format!("k1 {HASH} {REST}\nk2 {HASH} {REST}"), "hash of line 2"),
        ] {
            let error = KeyFile::parse(&format!("# x\n{line}")).expect_err(&line);
            let message = error.to_string();
            assert!(message.contains(word), "{word} is missing: {message}");
            assert_eq!(error.line, 1 + line.lines().count(), "{message}");
            assert!(!message.contains(digits) && !message.contains('\u{1b}'), "{message}");
            assert!(message.len() < 300, "{message}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "([ -~\n]|k1 sha256:|=|\\$|é){0,80}") {
            if let Ok(file) = KeyFile::parse(&text) {
                prop_assert_eq!(KeyFile::parse(&file.to_string()), Ok(file));
            }
        }
    }
}
