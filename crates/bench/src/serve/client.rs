//! Connections to a server, kept between requests as HTTP clients do.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::address::Address;
use super::report::Trouble;
use super::tls::Tls;
use crate::{BenchError, Result};

type Sender = SendRequest<Full<Bytes>>;

/// A connection, encrypted or not.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A client of one server.
#[derive(Clone)]
pub(super) struct Client {
    address: Arc<Address>,
    host: HeaderValue,
    key: Option<HeaderValue>,
    tls: Option<Tls>,
    /// Connections without a request, the last used one at the end.
    idle: Arc<Mutex<Vec<Sender>>>,
}

/// A connection that is busy with a request. Unless it is [given back](Self::give_back), it closes.
pub(super) struct Busy {
    sender: Sender,
    idle: Arc<Mutex<Vec<Sender>>>,
}

impl Client {
    /// A client that sends this key; `ca` is a file with the authorities that certify the server.
    ///
    /// # Errors
    ///
    /// A key or a host that no header can hold, a file without a certificate.
    pub(super) fn new(address: Address, key: Option<&str>, ca: Option<&Path>) -> Result<Self> {
        let tls = Tls::new(&address, ca)?;
        let header = |text: String, name: &str| {
            let value = HeaderValue::from_str(&text);
            value.map_err(|_| {
                BenchError::invalid(format!("{name} has a character that no header may"))
            })
        };
        let host = header(address.authority(), "--url")?;
        let key = key.map(|key| header(format!("Bearer {key}"), "--key")).transpose()?;
        Ok(Self { address: Arc::new(address), host, key, tls, idle: Arc::default() })
    }

    /// Sends a request: `GET` without a body, else `POST` with JSON. Returns the head of the answer,
    /// and its connection.
    ///
    /// # Errors
    ///
    /// A server that cannot be reached or does not speak HTTP.
    pub(super) async fn send(
        &self,
        route: &str,
        body: Option<&str>,
    ) -> std::result::Result<(Response<Incoming>, Busy), Trouble> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // The server may have closed an idle connection at any time; then a new one is tried.
        if let Some(sender) = idle
            && let Ok(answer) = self.send_by(sender, route, body).await
        {
            return Ok(answer);
        }
        let sender = self.connect().await?;
        self.send_by(sender, route, body).await
    }

    async fn send_by(
        &self,
        mut sender: Sender,
        route: &str,
        body: Option<&str>,
    ) -> std::result::Result<(Response<Incoming>, Busy), Trouble> {
        let lost = |error: hyper::Error| Trouble::new("connection lost", error.to_string());
        sender.ready().await.map_err(lost)?;
        let response = sender.send_request(self.request(route, body)).await.map_err(lost)?;
        Ok((response, Busy { sender, idle: Arc::clone(&self.idle) }))
    }

    fn request(&self, route: &str, body: Option<&str>) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(Bytes::from(body.unwrap_or("").to_owned())));
        let uri = self.address.path(route).parse();
        *request.uri_mut() = uri.expect("invariant: an address has a valid path");
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        if let Some(key) = &self.key {
            headers.insert(AUTHORIZATION, key.clone());
        }
        if body.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
            *request.method_mut() = Method::POST;
        }
        request
    }

    async fn connect(&self) -> std::result::Result<Sender, Trouble> {
        let refused = |error: std::io::Error| Trouble::new("no connection", error.to_string());
        let stream = TcpStream::connect(self.address.socket()).await.map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        let stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(stream),
            Some(tls) => Box::new(tls.over(stream).await.map_err(refused)?),
        };
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|error| Trouble::new("no connection", error.to_string()))?;
        // It ends with its last request; a failure reaches that request by its own way.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }
}

impl Busy {
    /// Keeps the connection for another request, after its answer was read to the end.
    pub(super) fn give_back(self) {
        if !self.sender.is_closed() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.sender);
        }
    }
}
