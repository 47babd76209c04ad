//! HTTPS: the server's certificate, and how it is replaced while the server runs.
//!
//! ```text
//!   start             both files are read; anything wrong with them is an error
//!   SIGHUP            both are read again
//!   each minute       both are read again if one of them has changed
//!   new pair usable   new connections get it; open ones keep the old one
//!   else              everything keeps the old one, and the log says why
//! ```
//!
//! A renewed pair comes with a new configuration of rustls, so no session of the old certificate is
//! resumed under the new one.

mod pair;
mod validity;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use pelton_gateway::date_time;
use tokio_rustls::TlsAcceptor;

use self::pair::{Files, Pair};
use crate::wire::unix_seconds;

pub use self::pair::TlsError;

/// Time between two looks at the files.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// Looks after which the log repeats that a certificate expires soon: a day.
const LOOKS_PER_WARNING: u32 = 24 * 60;
/// Time before the end of a certificate from which the log warns, in seconds.
const WARN_BEFORE_SECONDS: u64 = 14 * 24 * 3600;

/// Files for HTTPS; without them the server speaks HTTP.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TlsConfig {
    /// Certificates in PEM, the server's own first.
    pub certificate: Option<PathBuf>,
    /// Private key of the first certificate in PEM: PKCS#8, SEC1 or PKCS#1, not encrypted.
    pub key: Option<PathBuf>,
}

impl TlsConfig {
    /// Whether the server speaks HTTPS.
    pub fn is_on(&self) -> bool {
        self.certificate.is_some() || self.key.is_some()
    }

    /// Checks that the files can be used now.
    ///
    /// # Errors
    ///
    /// See [`TlsError`].
    pub fn check(&self) -> Result<(), TlsError> {
        Certificates::open(self, unix_seconds()).map(drop)
    }

    fn files(&self) -> Result<Option<Files>, TlsError> {
        match (&self.certificate, &self.key) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(TlsError::NoKeyFile),
            (None, Some(_)) => Err(TlsError::NoCertificateFile),
            (Some(certificate), Some(key)) => {
                Ok(Some(Files { certificate: certificate.clone(), key: key.clone() }))
            }
        }
    }
}

/// The certificate of a running server.
#[derive(Debug)]
pub(crate) struct Certificates {
    files: Files,
    current: RwLock<Pair>,
    /// The state of the files when they were last read.
    seen: Mutex<[Option<Stamp>; 2]>,
}

/// Tells two states of a file apart.
#[derive(Clone, Debug, PartialEq)]
struct Stamp {
    modified: Option<SystemTime>,
    n_bytes: u64,
    #[cfg(unix)]
    inode: u64,
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            modified: metadata.modified().ok(),
            n_bytes: metadata.len(),
            #[cfg(unix)]
            inode: std::os::unix::fs::MetadataExt::ino(&metadata),
        })
    }
}

impl Files {
    fn stamps(&self) -> [Option<Stamp>; 2] {
        [Stamp::of(&self.certificate), Stamp::of(&self.key)]
    }
}

impl Certificates {
    /// Reads the files, at a moment in seconds since 1970; `None` without files.
    pub(crate) fn open(config: &TlsConfig, now: u64) -> Result<Option<Self>, TlsError> {
        let Some(files) = config.files()? else { return Ok(None) };
        // Taken first, so that a change while the files are read is seen later.
        let seen = Mutex::new(files.stamps());
        let current = RwLock::new(Pair::read(&files, now)?);
        Ok(Some(Self { files, current, seen }))
    }

    /// Begins TLS for new connections with the current certificate.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.pair().config))
    }

    /// Last second in which the certificate is valid, in seconds since 1970.
    pub(crate) fn not_after(&self) -> u64 {
        self.pair().not_after
    }

    /// Reads the files again. A pair that cannot be used changes nothing; the log says why.
    pub(crate) fn renew(&self, now: u64) {
        *self.seen() = self.files.stamps();
        match Pair::read(&self.files, now) {
            Ok(pair) => {
                let until = date_time(pair.not_after);
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = pair;
                tracing::warn!("the certificate was read anew; it is valid until {until}");
                self.warn_of_end(now);
            }
            Err(why) => tracing::warn!("the certificate stays as it was: {why}"),
        }
    }

    /// The same if one of the files has changed since they were last read.
    fn renew_if_changed(&self, now: u64) {
        let is_changed = *self.seen() != self.files.stamps();
        if is_changed {
            self.renew(now);
        }
    }

    /// Says in the log that the certificate ends soon, or has ended.
    pub(crate) fn warn_of_end(&self, now: u64) {
        let (end, path) = (self.not_after(), self.files.certificate.display());
        let date = date_time(end);
        if now > end {
            tracing::error!("the certificate of {path} expired at {date}: clients refuse it");
        } else if ends_soon(end, now) {
            let n_days = whole_days(end, now);
            tracing::warn!("the certificate of {path} expires in {n_days} days, at {date}");
        }
    }

    /// Renews the certificate whenever its files change, for ever.
    pub(crate) async fn watch(self: Arc<Self>) {
        let mut n_looks = 0;
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            n_looks += 1;
            let this = Arc::clone(&self);
            // A file may lie on a slow disk.
            let look = tokio::task::spawn_blocking(move || {
                let now = unix_seconds();
                this.renew_if_changed(now);
                if n_looks % LOOKS_PER_WARNING == 0 {
                    this.warn_of_end(now);
                }
            });
            if look.await.is_err() {
                tracing::error!("looking at the certificate panicked");
            }
        }
    }

    fn pair(&self) -> Pair {
        // A pair is replaced whole.
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn seen(&self) -> MutexGuard<'_, [Option<Stamp>; 2]> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whole days from `now` to `end`.
fn whole_days(end: u64, now: u64) -> u64 {
    end.saturating_sub(now) / (24 * 3600)
}

/// Whether a certificate that ends at `end` deserves a warning.
fn ends_soon(end: u64, now: u64) -> bool {
    end.saturating_sub(now) < WARN_BEFORE_SECONDS
}

#[cfg(test)]
mod tests;
