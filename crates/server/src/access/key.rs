//! Keys of the settings and their scopes.

use std::hint::black_box;

use pelton_base::limits;
use pelton_gateway::{Scope, Scopes};
use sha2::{Digest, Sha256};

use super::AccessError;

/// Purpose of a key of the settings; each scope includes those before it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) enum KeyScope {
    /// Requests of its tenant.
    User,
    /// Sees the load of the whole server.
    Metrics,
    /// Changes the server.
    Admin,
}

impl KeyScope {
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "user" => Some(Self::User),
            "metrics" => Some(Self::Metrics),
            "admin" => Some(Self::Admin),
            _ => None,
        }
    }

    pub(super) fn scopes(self) -> Scopes {
        match self {
            Self::User => Scopes::of(&[Scope::User]),
            Self::Metrics => Scopes::of(&[Scope::User, Scope::Metrics]),
            Self::Admin => Scopes::ALL,
        }
    }
}

/// A secret that grants access; only its digest is kept.
#[derive(Clone, Eq, Hash, PartialEq)]
pub struct ApiKey {
    pub(super) digest: [u8; 32],
    pub(super) scope: KeyScope,
}

impl ApiKey {
    /// Reads a key in the form in which clients send it, or a key, a space, and a scope: `user`,
    /// `metrics` or `admin`.
    ///
    /// # Errors
    ///
    /// [`AccessError::BadKey`] for a key that no client can send, or that is too long, and for an
    /// unknown scope.
    pub fn new(text: &str) -> Result<Self, AccessError> {
        let (key, scope) = match text.split_once([' ', '\t']) {
            None => (text, None),
            Some((key, scope)) => (key, Some(scope.trim())),
        };
        let is_sendable = (1..=limits::API_KEY_BYTES).contains(&key.len())
            && key.bytes().all(|byte| byte.is_ascii_graphic());
        let scope = scope.map_or(Some(KeyScope::User), KeyScope::named);
        match scope.filter(|_| is_sendable) {
            Some(scope) => Ok(Self { digest: digest(key.as_bytes()), scope }),
            None => Err(AccessError::BadKey),
        }
    }

    /// Whether this is the key of a digest, in a time that does not depend on where they differ.
    pub(super) fn is(&self, other: &[u8; 32]) -> bool {
        let differences = self.digest.iter().zip(other).map(|(a, b)| a ^ b);
        black_box(differences.fold(0, |all, one| all | one)) == 0
    }
}

pub(super) fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiKey(not shown)")
    }
}
