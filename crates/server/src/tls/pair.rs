//! A certificate and its private key, read from their files and checked as a whole.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pelton_gateway::date_time;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{Error as RustlsError, ServerConfig};

use super::validity::Validity;
use crate::limits::{CERTIFICATE_FILE_BYTES, CERTIFICATES};

/// The protocol that clients may choose: HTTP/1.1 alone.
const PROTOCOL: &[u8] = b"http/1.1";

/// A certificate or a key that cannot be used. No message shows a part of a key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A certificate without a key.
    #[error("`--tls-cert` needs `--tls-key`, the file of its private key")]
    NoKeyFile,
    /// A key without a certificate.
    #[error("`--tls-key` needs `--tls-cert`, the file of its certificate")]
    NoCertificateFile,
    /// HTTPS where there is no address to listen on.
    #[error(
        "`--tls-cert` is for an address, and `--unix-socket` alone opens none: add `--port`, or \
         leave the certificate out"
    )]
    NoAddress,
    /// A file cannot be read.
    #[error("{flag} {}: {source}; expected a file in PEM", path.display())]
    Io {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file does not hold what it must hold.
    #[error("{flag} {}: {why}", path.display())]
    Content {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The fault, and the expected content.
        why: String,
    },
    /// The key is that of another certificate.
    #[error(
        "`--tls-key` {}: the key does not belong to the first certificate of {}",
        key.display(), certificate.display()
    )]
    Mismatch {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// The certificate is not valid any more.
    #[error("`--tls-cert` {}: the certificate expired at {}", path.display(), date_time(*not_after))]
    Expired {
        /// The file.
        path: PathBuf,
        /// Its last second, in seconds since 1970.
        not_after: u64,
    },
    /// The certificate is not valid yet.
    #[error(
        "`--tls-cert` {}: the certificate is valid from {} on; it is {} by the clock of this machine",
        path.display(), date_time(*not_before), date_time(*now)
    )]
    NotYetValid {
        /// The file.
        path: PathBuf,
        /// Its first second, in seconds since 1970.
        not_before: u64,
        /// This moment, in seconds since 1970.
        now: u64,
    },
}

/// The files of a certificate and its key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Files {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

/// A certificate with its key, ready for connections.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) config: Arc<ServerConfig>,
    /// Last second in which the certificate is valid, in seconds since 1970.
    pub(super) not_after: u64,
}

impl Pair {
    /// Reads both files, at a moment in seconds since 1970.
    ///
    /// The dates are those of the first certificate, the server's own. Certificates after it are
    /// sent as they are: a chain may end with an expired one on purpose, for the sake of old
    /// clients.
    pub(super) fn read(files: &Files, now: u64) -> Result<Self, TlsError> {
        let chain = chain(&files.certificate)?;
        let path = || files.certificate.clone();
        let of_cert = |why: String| TlsError::Content { flag: CERT, path: path(), why };
        let own = chain.first().map(|first| first.as_ref()).unwrap_or_default();
        let Validity { not_before, not_after } = Validity::of(own)
            .ok_or_else(|| of_cert("the first certificate cannot be read".to_owned()))?;
        if now > not_after {
            return Err(TlsError::Expired { path: path(), not_after });
        }
        if now < not_before {
            return Err(TlsError::NotYetValid { path: path(), not_before, now });
        }
        let key = private_key(&files.key)?;
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("invariant: the provider knows TLS 1.2 and 1.3");
        let config = builder.with_no_client_auth().with_single_cert(chain, key);
        let mut config = config.map_err(|error| match error {
            RustlsError::InconsistentKeys(_) => {
                TlsError::Mismatch { certificate: path(), key: files.key.clone() }
            }
            RustlsError::InvalidCertificate(error) => {
                of_cert(format!("the first certificate cannot be used: {error:?}"))
            }
            error => {
                let why = format!("the key cannot be used: {error}");
                TlsError::Content { flag: KEY, path: files.key.clone(), why }
            }
        })?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Self { config: Arc::new(config), not_after })
    }
}

/// The flag of the certificate, as messages name it.
const CERT: &str = "`--tls-cert`";
/// The flag of the key, as messages name it.
const KEY: &str = "`--tls-key`";

/// The certificates of a file, the server's own first.
fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = contents(CERT, path)?;
    let error = |why: String| TlsError::Content { flag: CERT, path: path.to_owned(), why };
    let chain: Result<Vec<_>, pem::Error> =
        CertificateDer::pem_slice_iter(&bytes).take(CERTIFICATES + 1).collect();
    let chain = chain.map_err(|why| error(broken(&why)))?;
    if chain.is_empty() {
        let why = match holds(&bytes, "PRIVATE KEY-----") {
            true => "holds a private key and no certificate; `--tls-key` names the file of the key",
            false => "holds no certificate; expected PEM, with -----BEGIN CERTIFICATE-----",
        };
        return Err(error(why.to_owned()));
    }
    if chain.len() > CERTIFICATES {
        return Err(error(format!(
            "holds more than {CERTIFICATES} certificates; expected a chain"
        )));
    }
    Ok(chain)
}

/// The first private key of a file: PKCS#8, SEC1 or PKCS#1.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = contents(KEY, path)?;
    let error = |why: String| TlsError::Content { flag: KEY, path: path.to_owned(), why };
    if holds(&bytes, "ENCRYPTED") {
        let why = "the key is encrypted; expected a plain one, such as `openssl pkey` writes";
        return Err(error(why.to_owned()));
    }
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|why| match why {
        pem::Error::NoItemsFound => error(
            "holds no private key; expected PEM, with -----BEGIN PRIVATE KEY-----, EC PRIVATE KEY \
             or RSA PRIVATE KEY"
                .to_owned(),
        ),
        why => error(broken(&why)),
    })
}

/// The reason why a text is no PEM, without the text: it may be a key.
fn broken(error: &pem::Error) -> String {
    let what = match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no -----END line",
        pem::Error::IllegalSectionStart { .. } => "a -----BEGIN line is malformed",
        pem::Error::Base64Decode(_) => "a section is no base 64",
        _ => "a section cannot be read",
    };
    format!("the PEM is broken: {what}")
}

fn holds(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|window| window == word.as_bytes())
}

fn contents(flag: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let io = |source| TlsError::Io { flag, path: path.to_owned(), source };
    let content = |why: String| TlsError::Content { flag, path: path.to_owned(), why };
    // Before it is opened: to open a pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(content("expected a regular file".to_owned()));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io)?;
    file.take(CERTIFICATE_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > CERTIFICATE_FILE_BYTES {
        return Err(content(format!("is longer than {CERTIFICATE_FILE_BYTES} bytes")));
    }
    Ok(bytes)
}
