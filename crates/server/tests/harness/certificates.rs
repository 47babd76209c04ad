//! Certificates for tests, made when they are needed.
// Each test binary uses a part of it.
#![allow(dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};

/// Seconds of a day.
pub const DAY: u64 = 24 * 3600;

/// An authority that clients trust, and a folder with the files of a server.
pub struct House {
    authority: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

impl House {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, "an authority for tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("ca.pem"), authority.pem()).expect("written");
        Self { authority, folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The authority's own certificate in PEM.
    pub fn authority(&self) -> PathBuf {
        self.path("ca.pem")
    }

    pub fn cert(&self) -> PathBuf {
        self.path("cert.pem")
    }

    pub fn key(&self) -> PathBuf {
        self.path("key.pem")
    }

    /// A certificate for localhost and its key in PEM, valid between two moments in seconds since 1970.
    pub fn make(&self, from: u64, until: u64) -> (String, String) {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, "a server for tests");
        params.not_before = date_time_ymd(1970, 1, 1) + Duration::from_secs(from);
        params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(until);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.authority).expect("signed");
        (certificate.pem() + &self.authority.pem(), key.serialize_pem())
    }

    /// Puts a pair into the files of the server.
    pub fn install(&self, (certificate, key): &(String, String)) {
        put(&self.cert(), certificate);
        put(&self.key(), key);
    }

    /// A pair that is valid for so many days from now, and was for one before; in the files.
    pub fn install_for(&self, n_days: u64) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = since.expect("after 1970").as_secs();
        let until = now + n_days * DAY;
        self.install(&self.make(now - DAY, until));
        until
    }
}

/// Replaces a file at once, as programs that renew certificates do.
pub fn put(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).expect("written");
    std::fs::rename(&new, path).expect("renamed");
}
