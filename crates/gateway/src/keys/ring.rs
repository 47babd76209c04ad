//! Finding the key that a client sent.
//!
//! ```text
//!   sent --SHA-256--> digest ─┬─ of a random key, or remembered ──► Known
//!                             ├─ refused a moment ago ────────────► Unknown
//!                             └─ the id has a slow hash ──────────► Costly: run it elsewhere
//! ```
//!
//! A slow hash is computed only for a key whose id is known and whose digest is not, and a digest
//! that failed is refused from memory. A flood of wrong keys therefore costs SHA-256 alone, except
//! for new guesses at the id of a slow key; the caller bounds how many of these run at a time.

use std::collections::{HashMap, HashSet, VecDeque};

use super::file::KeyFile;
use super::hash::{Argon2Hash, SecretHash, digest};
use super::{KEY_BYTES, Key, PREFIX};

/// Digests that failed a slow check and are remembered.
const FAILED_DIGESTS: usize = 4096;

/// The keys of a server, and what it remembers of slow checks.
#[derive(Debug, Default)]
pub struct KeyRing {
    keys: Vec<Key>,
    by_digest: HashMap<[u8; 32], usize>,
    by_id: HashMap<String, usize>,
    failed: HashSet<[u8; 32]>,
    failed_order: VecDeque<[u8; 32]>,
}

/// The outcome of a search.
#[derive(Debug)]
pub enum Lookup<'a> {
    /// The key; whether it may be used is not checked yet.
    Known(&'a Key),
    /// No key of the ring.
    Unknown,
    /// Only a slow check can tell; its outcome goes to [`KeyRing::remember`].
    Costly(Check),
}

/// A slow check that is to be run off the threads that answer.
#[derive(Clone)]
pub struct Check {
    sent: Vec<u8>,
    digest: [u8; 32],
    hash: Argon2Hash,
}

impl Check {
    /// Whether the key is right; takes tens of milliseconds and megabytes of memory.
    pub fn run(&self) -> bool {
        self.hash.is_of(&self.sent)
    }
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Check(not shown)")
    }
}

impl KeyRing {
    /// The keys of a file.
    pub fn new(file: KeyFile) -> Self {
        let mut ring = Self { keys: file.keys, ..Self::default() };
        for (idx, key) in ring.keys.iter().enumerate() {
            ring.by_id.insert(key.id.clone(), idx);
            if let SecretHash::Fast(digest) = key.hash {
                ring.by_digest.insert(digest, idx);
            }
        }
        ring
    }

    /// The keys, in the order of their file.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// The key of this id; whether it may be used is not checked yet.
    pub fn by_id(&self, id: &str) -> Option<&Key> {
        self.by_id.get(id).map(|&idx| &self.keys[idx])
    }

    /// The keys of a newer file. Slow hashes that are still there stay remembered.
    #[must_use]
    pub fn reloaded(&self, file: KeyFile) -> Self {
        let mut ring = Self::new(file);
        for (digest, &idx) in &self.by_digest {
            let (old, new) = (&self.keys[idx], ring.by_id.get(&self.keys[idx].id).copied());
            let is_slow = matches!(old.hash, SecretHash::Slow(_));
            if let Some(new) = new.filter(|&new| is_slow && ring.keys[new].hash == old.hash) {
                ring.by_digest.insert(*digest, new);
            }
        }
        ring
    }

    /// Finds the key that a client sent.
    pub fn look_up(&self, sent: &[u8]) -> Lookup<'_> {
        let digest = digest(sent);
        if let Some(&idx) = self.by_digest.get(&digest) {
            return Lookup::Known(&self.keys[idx]);
        }
        match self.slow_key(sent) {
            Some(hash) if !self.failed.contains(&digest) => {
                Lookup::Costly(Check { sent: sent.to_vec(), digest, hash: hash.clone() })
            }
            _ => Lookup::Unknown,
        }
    }

    /// Remembers the outcome of a slow check, unless its key is no longer there.
    pub fn remember(&mut self, check: &Check, is_right: bool) {
        if is_right {
            let is_of = |key: &Key| key.hash == SecretHash::Slow(check.hash.clone());
            if let Some(idx) = self.keys.iter().position(is_of) {
                self.by_digest.insert(check.digest, idx);
            }
        } else if self.failed.insert(check.digest) {
            self.failed_order.push_back(check.digest);
            if self.failed_order.len() > FAILED_DIGESTS
                && let Some(oldest) = self.failed_order.pop_front()
            {
                self.failed.remove(&oldest);
            }
        }
    }

    /// The slow hash of the id in a key that was sent.
    fn slow_key(&self, sent: &[u8]) -> Option<&Argon2Hash> {
        let text = std::str::from_utf8(sent).ok().filter(|text| text.len() <= KEY_BYTES)?;
        let (id, _) = text.strip_prefix(PREFIX)?.split_once('_')?;
        match &self.keys[*self.by_id.get(id)?].hash {
            SecretHash::Slow(hash) => Some(hash),
            SecretHash::Fast(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Now;
    use crate::{KeyProblem, Limits, Scope, Scopes};

    fn key(id: &str, hash: SecretHash) -> Key {
        Key {
            id: id.to_owned(),
            hash,
            scopes: Scopes::of(&[Scope::User]),
            tenant: "default".to_owned(),
            created: 0,
            expires: None,
            revoked: None,
            limits: Limits::default(),
        }
    }

    fn slow(id: &str, secret: &str) -> Key {
        key(id, SecretHash::slow(&Key::text(id, secret), [3; 16]))
    }

    fn found(ring: &KeyRing, sent: &str) -> Option<String> {
        match ring.look_up(sent.as_bytes()) {
            Lookup::Known(key) => Some(key.id.clone()),
            _ => None,
        }
    }

    fn check(ring: &mut KeyRing, sent: &str) -> bool {
        let Lookup::Costly(check) = ring.look_up(sent.as_bytes()) else { panic!("{sent}") };
        let is_right = check.run();
        ring.remember(&check, is_right);
        is_right
    }

    #[test]
    fn a_slow_key_is_checked_once() {
        let keys = vec![key("a", SecretHash::fast("pelton_a_x")), slow("bob", "horse")];
        let mut ring = KeyRing::new(KeyFile { keys });
        assert_eq!(found(&ring, "pelton_a_x").as_deref(), Some("a"));
        for wrong in ["pelton_a_y", "pelton_c_x", "pelton_bob", "horse", "", "bob_horse"] {
            assert!(matches!(ring.look_up(wrong.as_bytes()), Lookup::Unknown), "{wrong}");
        }
        assert!(check(&mut ring, "pelton_bob_horse"));
        assert_eq!(found(&ring, "pelton_bob_horse").as_deref(), Some("bob"));
        assert!(!check(&mut ring, "pelton_bob_Horse"));
        assert!(matches!(ring.look_up(b"pelton_bob_Horse"), Lookup::Unknown), "from memory");
        let long = format!("pelton_bob_{}", "x".repeat(KEY_BYTES));
        assert!(matches!(ring.look_up(long.as_bytes()), Lookup::Unknown), "too long to check");
    }

    #[test]
    fn a_reload_forgets_keys_whose_hash_changed() {
        let mut ring =
            KeyRing::new(KeyFile { keys: vec![slow("bob", "horse"), slow("eve", "cow")] });
        assert!(check(&mut ring, "pelton_bob_horse") && check(&mut ring, "pelton_eve_cow"));
        let newer = KeyFile { keys: vec![slow("eve", "cow"), slow("bob", "mare")] };
        let newer = ring.reloaded(newer);
        assert_eq!(found(&newer, "pelton_eve_cow").as_deref(), Some("eve"));
        assert_eq!(found(&newer, "pelton_bob_horse"), None);
    }

    #[test]
    fn memory_of_failed_checks_is_bounded() {
        let keys = KeyFile { keys: vec![slow("bob", "horse")] };
        let mut ring = KeyRing::new(keys);
        for i in 0..FAILED_DIGESTS + 100 {
            let sent = format!("pelton_bob_{i}");
            let Lookup::Costly(check) = ring.look_up(sent.as_bytes()) else { panic!("{sent}") };
            ring.remember(&check, false);
        }
        assert_eq!((ring.failed.len(), ring.failed_order.len()), (FAILED_DIGESTS, FAILED_DIGESTS));
    }

    #[test]
    fn a_key_is_refused_from_the_second_on_in_which_it_expires() {
        let at = |unix_seconds| Now { elapsed: std::time::Duration::ZERO, unix_seconds };
        let key = Key { expires: Some(100), ..key("a", SecretHash::fast("x")) };
        assert_eq!(
            (key.check(at(99)), key.check(at(100))),
            (Ok(()), Err(KeyProblem::Expired(100)))
        );
        let key = Key { revoked: Some(50), ..key };
        assert_eq!(key.check(at(0)), Err(KeyProblem::Revoked(50)), "whatever the clock says");
    }
}
