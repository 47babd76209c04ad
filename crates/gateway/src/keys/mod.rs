//! Keys: their parts, the file that keeps them, and finding the key that a client sent.
//!
//! ```text
//!   pelton_7f3kq2ab_Yw0...        what a client sends
//!          ────────  id: shown in lists, logs and reports
//!                   ─────── secret: only its hash is kept
//! ```

mod file;
mod hash;
mod ring;

pub use file::{KeyFile, KeyFileError};
pub use hash::SecretHash;
pub use ring::{Check, KeyRing, Lookup};

use crate::clock::{Now, date_time};
use crate::limits::Limits;

/// The word before the id of a key.
const PREFIX: &str = "pelton_";
/// Longest id of a key, in bytes.
const ID_BYTES: usize = 32;
/// Longest key that a client may send, in bytes.
pub(crate) const KEY_BYTES: usize = 512;
/// Letters and digits of a random secret: 238 bits.
const SECRET_CHARS: usize = 40;
/// Characters of a random id.
const RANDOM_ID_CHARS: usize = 8;

/// A kind of routes that a key opens.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Scope {
    /// Requests to models.
    User,
    /// Everything, other keys' usage and the administration of the server included.
    Admin,
    /// The load of the whole server.
    Metrics,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 3] = [Self::User, Self::Admin, Self::Metrics];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Admin => "admin",
            Self::Metrics => "metrics",
        }
    }
}

/// The scopes of a key.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Scopes([bool; Scope::ALL.len()]);

impl Scopes {
    /// Every scope.
    pub const ALL: Self = Self([true; Scope::ALL.len()]);

    /// These scopes.
    pub fn of(scopes: &[Scope]) -> Self {
        let mut set = Self::default();
        scopes.iter().for_each(|&scope| set.0[scope as usize] = true);
        set
    }

    /// Reads names with commas between them; `None` for an unknown name, or none at all.
    pub fn parse(text: &str) -> Option<Self> {
        let find = |name: &str| Scope::ALL.into_iter().find(|scope| scope.name() == name);
        let scopes: Option<Vec<Scope>> = text.split(',').map(find).collect();
        Some(Self::of(&scopes?))
    }

    /// Whether it has a scope; `admin` has every other one.
    pub fn has(self, scope: Scope) -> bool {
        self.0[scope as usize] || self.0[Scope::Admin as usize]
    }
}

impl std::fmt::Display for Scopes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = Scope::ALL.into_iter().filter(|&scope| self.0[scope as usize]);
        let names: Vec<&str> = names.map(Scope::name).collect();
        f.write_str(&names.join(","))
    }
}

/// One key of a key file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Key {
    /// Its id, which may be shown.
    pub id: String,
    /// The hash of the whole text that a client sends.
    pub hash: SecretHash,
    /// The routes that it opens.
    pub scopes: Scopes,
    /// The tenant of its requests.
    pub tenant: String,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// From when on it is refused.
    pub expires: Option<u64>,
    /// When it was revoked.
    pub revoked: Option<u64>,
    /// Its limits.
    pub limits: Limits,
}

/// Why a known key opens nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum KeyProblem {
    /// Its time is over.
    #[error("the API key expired at {}", date_time(*.0))]
    Expired(u64),
    /// A person revoked it.
    #[error("the API key was revoked at {}", date_time(*.0))]
    Revoked(u64),
}

impl Key {
    /// Whether it may be used now.
    ///
    /// # Errors
    ///
    /// Since when it may not.
    pub fn check(&self, now: Now) -> Result<(), KeyProblem> {
        if let Some(at) = self.revoked {
            return Err(KeyProblem::Revoked(at));
        }
        match self.expires {
            Some(at) if now.unix_seconds >= at => Err(KeyProblem::Expired(at)),
            _ => Ok(()),
        }
    }

    /// The text that a client sends for an id and a secret.
    pub fn text(id: &str, secret: &str) -> String {
        format!("{PREFIX}{id}_{secret}")
    }
}

/// Whether a text may be the id of a key: 1 to 32 lower-case letters, digits and dashes.
pub fn is_key_id(text: &str) -> bool {
    let is_fine = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=ID_BYTES).contains(&text.len()) && text.bytes().all(is_fine)
}

/// A random id and secret, from random bytes of the caller.
pub fn random_key(mut random: impl FnMut(&mut [u8])) -> (String, String) {
    const ALL: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mut text = |n_chars: usize, alphabet: &[u8]| {
        let mut text = String::with_capacity(n_chars);
        // A byte beyond the last multiple would make the first characters likelier.
        let most = 256 - 256 % alphabet.len();
        while text.len() < n_chars {
            let mut byte = [0];
            random(&mut byte);
            if usize::from(byte[0]) < most {
                text.push(char::from(alphabet[usize::from(byte[0]) % alphabet.len()]));
            }
        }
        text
    };
    (text(RANDOM_ID_CHARS, &ALL[..36]), text(SECRET_CHARS, ALL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_read_as_they_are_written_and_admin_has_all() {
        for text in ["user", "admin", "metrics", "user,metrics", "user,admin,metrics"] {
            assert_eq!(Scopes::parse(text).expect(text).to_string(), text);
        }
        for bad in ["", "user,", "root", "User", "user metrics"] {
            assert_eq!(Scopes::parse(bad), None, "{bad}");
        }
        let admin = Scopes::of(&[Scope::Admin]);
        assert!(Scope::ALL.into_iter().all(|scope| admin.has(scope)));
        assert!(!Scopes::of(&[Scope::Metrics]).has(Scope::User));
    }

    #[test]
    fn random_keys_use_every_character_equally_often() {
        let mut n = 0_u32;
        let (id, secret) = random_key(|bytes| {
            bytes[0] = (n % 256) as u8;
            n += 1;
        });
        assert!(is_key_id(&id) && secret.len() == SECRET_CHARS, "{id} {secret}");
        let mut counts = std::collections::HashMap::new();
        let mut n = 0_u32;
        for _ in 0..62 * 4 {
            let (_, secret) = random_key(|bytes| {
                bytes[0] = (n % 256) as u8;
                n += 1;
            });
            secret.chars().for_each(|c| *counts.entry(c).or_insert(0) += 1);
        }
        assert_eq!(counts.len(), 62);
    }
}
