//! The keys of the key file while the server runs: finding them, checking slow ones, and reading
//! the file again.
//!
//! A slow check takes tens of milliseconds of a processor and 19 MiB. It runs off the threads that
//! answer; one runs per eight processors, a few may wait, and further ones are refused. So a flood
//! of guesses at a slow key cannot delay `/health` or the model by more than one check. Keys that
//! were right once, and all random keys, never wait.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::available_parallelism;
use std::time::{Duration, SystemTime};

use pelton_base::TenantId;
use pelton_gateway::{Check, Gate, Key, KeyFile, KeyRing, Lookup, Now, Party, PartyId, Scopes};
use tokio::sync::Semaphore;

use super::{GatewayError, read_keys};
use crate::error::ApiError;

/// Slow checks that may wait for their turn.
const WAITING_CHECKS: usize = 16;
/// Time between two looks at the file.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A key of the key file that may be used now.
#[derive(Clone, Debug)]
pub(crate) struct FoundKey {
    pub(crate) id: Arc<str>,
    pub(crate) tenant: TenantId,
    pub(crate) scopes: Scopes,
    pub(super) party: PartyId,
}

/// Keys of a file.
#[derive(Debug)]
pub(super) struct Keys {
    path: PathBuf,
    ring: RwLock<Ring>,
    checks: Semaphore,
    n_checks: AtomicUsize,
    /// The file as it was read last.
    seen: Mutex<Option<Stamp>>,
}

/// Keys, with the tenant and the party of each in the same order.
#[derive(Debug, Default)]
struct Ring {
    keys: KeyRing,
    of_keys: std::collections::HashMap<String, (TenantId, PartyId)>,
}

impl Ring {
    /// A key with its tenant and its party.
    fn found(&self, key: &Key) -> Option<FoundKey> {
        let &(tenant, party) = self.of_keys.get(&key.id)?;
        Some(FoundKey { id: key.id.as_str().into(), tenant, scopes: key.scopes, party })
    }
}

/// Tells versions of a file apart.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stamp {
    modified: Option<SystemTime>,
    n_bytes: u64,
    #[cfg(unix)]
    inode: u64,
}

impl Keys {
    /// Reads the file.
    pub(super) fn open(
        path: &Path,
        gate: &mut Gate,
        tenants: &[String],
        has_usage_file: bool,
    ) -> Result<Self, GatewayError> {
        let n_processors = available_parallelism().map_or(1, usize::from);
        let keys = Self {
            path: path.to_owned(),
            ring: RwLock::default(),
            checks: Semaphore::new(n_processors.div_ceil(8)),
            n_checks: AtomicUsize::new(0),
            seen: Mutex::new(stamp(path)),
        };
        let file = read_keys(path)?;
        for key in file.keys.iter().filter(|key| key.revoked.is_none()) {
            keys.tenant_of(key, tenants, has_usage_file)?;
        }
        keys.take(file, gate, |key| keys.tenant_of(key, tenants, has_usage_file).ok());
        Ok(keys)
    }

    /// Reads the file again; the keys stay as they were where it cannot be read. A key that cannot be
    /// used is left out, and the log names it: another key that was revoked must not go on for its sake.
    pub(super) fn reload(
        &self,
        gate: &mut Gate,
        tenants: &[String],
        has_usage_file: bool,
    ) -> Result<usize, GatewayError> {
        let file = read_keys(&self.path)?;
        Ok(self.take(file, gate, |key| {
            let tenant = self.tenant_of(key, tenants, has_usage_file);
            tenant
                .inspect_err(|error| {
                    if key.revoked.is_none() {
                        tracing::error!(%error, "a key of the key file cannot be used");
                    }
                })
                .ok()
        }))
    }

    /// Exchanges the keys for those of `file` that have a tenant; returns how many there are in all.
    fn take(
        &self,
        file: KeyFile,
        gate: &mut Gate,
        tenant_of: impl Fn(&Key) -> Option<TenantId>,
    ) -> usize {
        let of_keys = file.keys.iter().filter_map(|key| {
            let tenant = tenant_of(key)?;
            let party = gate.party(Party::Key, &key.id, key.limits);
            Some((key.id.clone(), (tenant, party)))
        });
        let of_keys = of_keys.collect();
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        let keys = ring.keys.reloaded(file);
        let n_keys = keys.keys().len();
        *ring = Ring { keys, of_keys };
        n_keys
    }

    /// The tenant of a key that can be used here.
    fn tenant_of(
        &self,
        Key { id, tenant, limits, .. }: &Key,
        tenants: &[String],
        has_usage_file: bool,
    ) -> Result<TenantId, GatewayError> {
        let Some(idx) = tenants.iter().position(|name| name == tenant) else {
            let known: Vec<String> = tenants.iter().map(|name| format!("`{name}`")).collect();
            return Err(GatewayError::UnknownTenant {
                path: self.path.clone(),
                key: id.clone(),
                tenant: tenant.clone(),
                known: known.join(", "),
            });
        };
        if limits.has_quota() && !has_usage_file {
            let of = format!("{}: the key `{id}`", self.path.display());
            return Err(GatewayError::NoUsageFile { of });
        }
        Ok(TenantId(idx as u32))
    }

    /// The key that a client sent; `None` if it is none of the file.
    pub(super) async fn find(&self, sent: &[u8], now: Now) -> Result<Option<FoundKey>, ApiError> {
        let check = match self.look_up(sent, now) {
            Found::Is(outcome) => return outcome,
            Found::Costs(check) => check,
        };
        let _one = Counted::new(&self.n_checks).ok_or_else(ApiError::too_many_key_checks)?;
        let _turn = self.checks.acquire().await.expect("invariant: nothing closes it");
        // Another request may have sent the same key meanwhile.
        let check = match self.look_up(sent, now) {
            Found::Is(outcome) => return outcome,
            Found::Costs(_) => check,
        };
        let task = tokio::task::spawn_blocking(move || (check.run(), check));
        let failed = |_| ApiError::internal("checking the API key failed");
        let (is_right, check) = task.await.map_err(failed)?;
        self.ring.write().unwrap_or_else(PoisonError::into_inner).keys.remember(&check, is_right);
        match self.look_up(sent, now) {
            Found::Is(outcome) => outcome,
            Found::Costs(_) => Ok(None),
        }
    }

    fn look_up(&self, sent: &[u8], now: Now) -> Found {
        let ring = self.ring.read().unwrap_or_else(PoisonError::into_inner);
        let key = match ring.keys.look_up(sent) {
            Lookup::Known(key) => key,
            Lookup::Unknown => return Found::Is(Ok(None)),
            Lookup::Costly(check) => return Found::Costs(check),
        };
        if let Err(problem) = key.check(now) {
            return Found::Is(Err(ApiError::dead_key(&problem)));
        }
        Found::Is(Ok(ring.found(key)))
    }

    /// The key of this id.
    ///
    /// # Errors
    ///
    /// Says why it cannot be used now.
    pub(super) fn again(&self, id: &str, now: Now) -> Result<FoundKey, String> {
        let ring = self.ring.read().unwrap_or_else(PoisonError::into_inner);
        let key = ring.keys.by_id(id);
        let key = key.ok_or_else(|| "it is no longer in the key file".to_owned())?;
        key.check(now).map_err(|problem| problem.to_string())?;
        ring.found(key).ok_or_else(|| "it has no tenant".to_owned())
    }

    /// Calls `reload` whenever the file has changed.
    pub(super) async fn watch(&self, reload: impl Fn() -> Result<usize, GatewayError>) {
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            let stamp = stamp(&self.path);
            if *self.seen() == stamp {
                continue;
            }
            *self.seen() = stamp;
            match reload() {
                Ok(n_keys) => tracing::info!(n_keys, "the key file was read again"),
                Err(error) => {
                    tracing::error!(%error, "the key file cannot be used; the keys stay as they were");
                }
            }
        }
    }

    fn seen(&self) -> MutexGuard<'_, Option<Stamp>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The outcome of a search.
enum Found {
    Is(Result<Option<FoundKey>, ApiError>),
    Costs(Check),
}

/// One of a bounded number, until it is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(n: &'a AtomicUsize) -> Option<Self> {
        let is_one = n.fetch_add(1, Ordering::SeqCst) < WAITING_CHECKS;
        let counted = Self(n);
        is_one.then_some(counted)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(path).ok()?;
    Some(Stamp {
        modified: metadata.modified().ok(),
        n_bytes: metadata.len(),
        #[cfg(unix)]
        inode: std::os::unix::fs::MetadataExt::ino(&metadata),
    })
}
