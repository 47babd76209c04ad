//! Hashes of keys: SHA-256 for random secrets, argon2id for secrets that a person chose.
//!
//! A random secret of 238 bits cannot be guessed, so a fast hash hides it. A secret that a person
//! chose can, so its hash is made slow and hungry for memory (RFC 9106).

use std::fmt;
use std::hint::black_box;

use argon2::{Algorithm, Argon2, Params, Version};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use sha2::{Digest, Sha256};

/// Memory of a new hash in KiB, and passes over it: the least that OWASP recommends.
const NEW: (u32, u32) = (19 * 1024, 2);
/// Most memory in KiB, passes and lanes of a hash in a file, so that no file stops the server.
const MOST: (u32, u32, u32) = (64 * 1024, 10, 4);
const SALT_BYTES: usize = 16;
const HASH_BYTES: usize = 32;

/// The hash of a key.
#[derive(Clone, Eq, Hash, PartialEq)]
pub enum SecretHash {
    /// SHA-256.
    Fast([u8; 32]),
    /// Argon2id.
    Slow(Argon2Hash),
}

/// An argon2id hash with its parameters.
#[derive(Clone, Eq, Hash, PartialEq)]
pub struct Argon2Hash {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
    salt: Vec<u8>,
    hash: Vec<u8>,
}

impl SecretHash {
    /// The fast hash of a random key.
    pub fn fast(key: &str) -> Self {
        Self::Fast(digest(key.as_bytes()))
    }

    /// The slow hash of a key that a person chose; takes tens of milliseconds and 19 MiB.
    pub fn slow(key: &str, salt: [u8; SALT_BYTES]) -> Self {
        let (memory_kib, passes) = NEW;
        let (salt, hash) = (salt.to_vec(), vec![0; HASH_BYTES]);
        let mut made = Argon2Hash { memory_kib, passes, lanes: 1, salt, hash };
        made.hash = made.compute(key.as_bytes()).expect("invariant: our own parameters are fine");
        Self::Slow(made)
    }

    /// Reads `sha256:` and 64 hexadecimal digits, or argon2id in PHC form; an error says which.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        if let Some(hex) = text.strip_prefix("sha256:") {
            let bad = "expected 64 lower-case hexadecimal digits after `sha256:`";
            return hex_bytes(hex).map(Self::Fast).ok_or(bad);
        }
        match text.strip_prefix("$argon2id$v=19$") {
            Some(rest) => Argon2Hash::parse(rest).map(Self::Slow),
            None => Err("expected a hash: `sha256:..` or `$argon2id$v=19$..`"),
        }
    }
}

impl Argon2Hash {
    fn parse(text: &str) -> Result<Self, &'static str> {
        let bad = "expected `$argon2id$v=19$m=KIB,t=PASSES,p=LANES$SALT$HASH`";
        let mut parts = text.split('$');
        let (params, salt, hash) = match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(params), Some(salt), Some(hash), None) => (params, salt, hash),
            _ => return Err(bad),
        };
        let mut params = params.split(',');
        let mut number = |name: &str| {
            let digits = params.next()?.strip_prefix(name)?;
            let is_number =
                (1..=9).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
            is_number.then(|| digits.parse::<u32>().ok()).flatten()
        };
        let numbers = (number("m="), number("t="), number("p="));
        let (Some(memory_kib), Some(passes), Some(lanes)) = numbers else { return Err(bad) };
        if params.next().is_some() {
            return Err(bad);
        }
        let is_within = (8 * lanes..=MOST.0).contains(&memory_kib)
            && (1..=MOST.1).contains(&passes)
            && (1..=MOST.2).contains(&lanes);
        if !is_within {
            return Err("expected argon2id with at most m=65536, t=10 and p=4");
        }
        let bytes = |text: &str| BASE64.decode(text).map_err(|_| bad);
        let (salt, hash) = (bytes(salt)?, bytes(hash)?);
        if !(8..=64).contains(&salt.len()) || !(16..=64).contains(&hash.len()) {
            return Err("expected a salt of 8 to 64 bytes and a hash of 16 to 64 bytes");
        }
        Ok(Self { memory_kib, passes, lanes, salt, hash })
    }

    fn compute(&self, key: &[u8]) -> Option<Vec<u8>> {
        let n_bytes = self.hash.len();
        let params = Params::new(self.memory_kib, self.passes, self.lanes, Some(n_bytes)).ok()?;
        let mut hash = vec![0; n_bytes];
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        argon2.hash_password_into(key, &self.salt, &mut hash).ok()?;
        Some(hash)
    }

    /// Whether it is the hash of a key; takes as long as its parameters say.
    pub(super) fn is_of(&self, key: &[u8]) -> bool {
        self.compute(key).is_some_and(|hash| is_equal(&hash, &self.hash))
    }
}

impl fmt::Display for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fast(digest) => {
                f.write_str("sha256:")?;
                digest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Slow(Argon2Hash { memory_kib, passes, lanes, salt, hash }) => {
                let (salt, hash) = (BASE64.encode(salt), BASE64.encode(hash));
                write!(f, "$argon2id$v=19$m={memory_kib},t={passes},p={lanes}${salt}${hash}")
            }
        }
    }
}

/// Shows the kind alone: a hash helps to guess a weak secret.
impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fast(_) => "sha256(not shown)",
            Self::Slow(_) => "argon2id(not shown)",
        })
    }
}

impl fmt::Debug for Argon2Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("argon2id(not shown)")
    }
}

/// SHA-256 of a key.
pub(super) fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// Compares in a time that does not depend on where they differ.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).map(|(a, b)| a ^ b);
    one.len() == other.len() && black_box(differences.fold(0, |all, one| all | one)) == 0
}

fn hex_bytes(hex: &str) -> Option<[u8; 32]> {
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if hex.len() != 64 || !hex.bytes().all(is_hex) {
        return None;
    }
    let mut bytes = [0; 32];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_as_it_is_written_and_never_shown() {
        let (fast, slow) = (SecretHash::fast("a"), SecretHash::slow("a", [7; 16]));
        for hash in [&fast, &slow] {
            let text = hash.to_string();
            assert_eq!(SecretHash::parse(&text).as_ref(), Ok(hash));
            let tail = &text[text.len() - 12..];
            assert!(!format!("{hash:?}").contains(tail));
        }
        assert_eq!(
            fast.to_string(),
            "sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
        );
    }

    /// The vector of RFC 9106, section 5.3, needs a secret and associated data; this one was made
    /// by the reference program: `echo -n password | argon2 somesalt -id -t 2 -k 65536 -p 1`.
    #[test]
    fn the_slow_hash_is_that_of_the_reference_program() {
        let text = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$\
                    CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        let Ok(SecretHash::Slow(hash)) = SecretHash::parse(text) else { panic!("a hash") };
        assert!(hash.is_of(b"password"));
        assert!(!hash.is_of(b"Password"));
    }

    #[test]
    fn a_hostile_hash_costs_nothing() {
        let salt = "c29tZXNhbHQ";
        let hash = "CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        for params in [
            "m=4194304,t=2,p=1",
            "m=65537,t=1,p=1",
            "m=19456,t=11,p=1",
            "m=19456,t=0,p=1",
            "m=19456,t=2,p=5",
            "m=7,t=1,p=1",
            "m=31,t=1,p=4",
            "t=2,m=19456,p=1",
            "m=19456,t=2",
            "m=19456,t=2,p=1,keyid=x",
            "m=-1,t=1,p=1",
            "m=4294967297,t=1,p=1",
            "",
        ] {
            let text = format!("$argon2id$v=19${params}${salt}${hash}");
            SecretHash::parse(&text).expect_err(&text);
        }
        for text in [
            "sha256:CA978112",
            "sha256:",
            "md5:00",
            "",
            "$argon2i$v=19$m=8,t=1,p=1$c29tZXNhbHQ$AA",
            "$argon2id$v=19$m=19456,t=2,p=1$YQ$YQ",
            "$argon2id$v=19$m=19456,t=2,p=1$$",
            "$argon2id$v=19$m=19456,t=2,p=1$c29tZXNhbHQ$!!$x",
        ] {
            SecretHash::parse(text).expect_err(text);
        }
    }
}
