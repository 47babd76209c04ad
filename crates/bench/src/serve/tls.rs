//! HTTPS to a server.

use std::path::Path;
use std::sync::Arc;

use pelton_base::limits;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::address::Address;
use crate::{BenchError, Result};

/// How connections to one server are encrypted.
#[derive(Clone)]
pub(super) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Tls {
    /// Encryption for an address; `None` without HTTPS. The server must be certified by an authority
    /// in the file `ca`, without it by one of those that browsers trust.
    ///
    /// # Errors
    ///
    /// A file without a certificate, or a host that no certificate can name.
    pub(super) fn new(address: &Address, ca: Option<&Path>) -> Result<Option<Self>> {
        let Some(name) = address.certified_name()? else { return Ok(None) };
        let mut roots = RootCertStore::empty();
        match ca {
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Some(path) => add(path, &mut roots)?,
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("invariant: the provider knows TLS 1.2 and 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Some(Self { connector: TlsConnector::from(Arc::new(config)), name }))
    }

    /// Encrypts a connection.
    ///
    /// # Errors
    ///
    /// A server without a certificate that is trusted.
    pub(super) async fn over(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.name.clone(), stream).await
    }
}

/// Adds the certificates of a file in PEM.
fn add(path: &Path, roots: &mut RootCertStore) -> Result<()> {
    let fail = |why: String| BenchError::invalid(format!("--ca: {}: {why}", path.display()));
    let text = pelton_tensor::read_limited_text(path, limits::CONFIG_BYTES);
    let text = text.map_err(|error| fail(error.to_string()))?;
    for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
        let certificate = certificate.map_err(|error| fail(format!("is no PEM: {error}")))?;
        roots.add(certificate).map_err(|error| fail(format!("cannot be used: {error}")))?;
    }
    if roots.is_empty() {
        return Err(fail("holds no certificate; expected PEM".to_owned()));
    }
    Ok(())
}
