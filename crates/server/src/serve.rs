//! Binding, serving, and the three stages of stopping.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pelton_base::limits;
use pelton_llm::{Embedder, Llm};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;

use crate::access::Access;
use crate::connections::{self, FLUSH_TIMEOUT};
use crate::cors::CorsOrigins;
use crate::host::HostName;
use crate::routes::router;
use crate::served::Served;
use crate::signals::Signals;
use crate::state::AppState;

/// Time for which a server whose engine has failed says so before it ends.
const FAILURE_SHOWN: Duration = Duration::from_secs(5);

/// Connections that the system holds until they are accepted. With tokio's 128, a burst makes the
/// system drop further ones, whose clients try again a second later.
const BACKLOG: u32 = 1024;

/// Where and how to serve.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Name or address to listen on.
    pub host: String,
    /// Port to listen on; zero lets the system choose.
    pub port: u16,
    /// Names under which requests may reach the server; without any, each name will do, except on
    /// a loopback address without API keys (see [`HostName`]).
    pub allowed_hosts: Vec<HostName>,
    /// Web pages whose scripts may read answers.
    pub cors_origins: CorsOrigins,
    /// Most connections at once for requests of users. When there is no place for a new
    /// connection, the one that has been idle longest is closed.
    pub max_connections: usize,
    /// Further connections, kept for routes of operators such as `/health`.
    pub reserved_connections: usize,
    /// Most connections at once from one address; `None` for no such limit.
    pub max_connections_per_address: Option<usize>,
    /// Largest body of a request, in bytes.
    pub max_body_bytes: usize,
    /// Longest time for the head of a request to arrive, from the connection or its first byte.
    pub head_timeout: Duration,
    /// Longest pause between an answer and the next request of a connection.
    pub idle_timeout: Duration,
    /// Longest time for the body of a request to arrive after its head.
    pub body_timeout: Duration,
    /// Longest time for which a client may leave its answer unread.
    pub write_timeout: Duration,
    /// Silence after which a stream gets a comment line, so that proxies keep it open.
    pub keep_alive: Duration,
    /// Longest time that running requests may take after the first signal.
    pub drain_timeout: Duration,
    /// Tenants and API keys.
    pub access: Access,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 8000,
            allowed_hosts: Vec::new(),
            cors_origins: CorsOrigins::default(),
            max_connections: limits::HTTP_CONNECTIONS,
            reserved_connections: 16,
            max_connections_per_address: None,
            max_body_bytes: limits::BODY_BYTES,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            keep_alive: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(30),
            access: Access::default(),
        }
    }
}

/// Why the server could not start, or ended without being asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {host}:{port}: {source}")]
    Bind {
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The model panicked, was started anew, and panicked again.
    #[error("the engine has failed: a step panicked twice (the messages of the panics are above)")]
    EngineFailed,
}

/// A server that listens and does not answer yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    state: AppState,
}

impl Server {
    /// Takes the address, so that it can be shown before the first request comes.
    ///
    /// # Errors
    ///
    /// [`ServeError::Bind`] when the address is taken or does not exist.
    pub async fn bind(llm: Arc<Llm>, config: ServeConfig) -> Result<Self, ServeError> {
        Self::bind_served(Served::Text(llm), config).await
    }

    /// Takes the address for a model that makes vectors of texts.
    ///
    /// # Errors
    ///
    /// As [`Server::bind`].
    pub async fn bind_embedder(
        embedder: Arc<Embedder>,
        config: ServeConfig,
    ) -> Result<Self, ServeError> {
        Self::bind_served(Served::Vectors(embedder), config).await
    }

    async fn bind_served(served: Served, config: ServeConfig) -> Result<Self, ServeError> {
        let bind_error =
            |source| ServeError::Bind { host: config.host.clone(), port: config.port, source };
        let listener = listen(&config.host, config.port).await.map_err(bind_error)?;
        let address = listener.local_addr().map_err(bind_error)?;
        Ok(Self { listener, address, state: AppState::new(served, config, address) })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until a signal asks to stop.
    ///
    /// ```text
    ///   first signal     new requests get 503, running ones are finished
    ///   second signal    running ones are aborted; so they are after `drain_timeout`
    ///   nothing running  the listener closes, connections are flushed, the engine stops
    ///   engine failed    every request gets 503 for five seconds, then the listener closes
    /// ```
    ///
    /// # Errors
    ///
    /// [`ServeError::EngineFailed`] when the engine failed, before a signal or after it.
    pub async fn run(self, mut signals: Signals) -> Result<(), ServeError> {
        let Self { listener, state, .. } = self;
        let (close, closed) = oneshot::channel::<()>();
        let stopping = async {
            tokio::select! {
                () = signals.next() => drain(&state, &mut signals).await,
                () = state.served().failed() => linger(&mut signals).await,
            }
            let _ = close.send(());
        };
        let closed = async {
            let _ = closed.await;
        };
        let serving = connections::serve(listener, router(state.clone()), &state, closed);
        tokio::join!(serving, stopping);
        state.served().shutdown();
        if state.served().has_failed() { Err(ServeError::EngineFailed) } else { Ok(()) }
    }
}

/// Listens on the first address of a host that can be listened on.
async fn listen(host: &str, port: u16) -> io::Result<TcpListener> {
    let listen_on = |address: SocketAddr| {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // Connections of an earlier server that still close do not keep the port.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    let mut outcome = Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    for address in tokio::net::lookup_host((host, port)).await? {
        outcome = listen_on(address);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// Leaves load balancers and monitors the time to see the failure; a signal ends it early.
async fn linger(signals: &mut Signals) {
    let seconds = FAILURE_SHOWN.as_secs();
    tracing::error!("the engine has failed: the server ends in {seconds} seconds");
    tokio::select! {
        () = signals.next() => {}
        () = tokio::time::sleep(FAILURE_SHOWN) => {}
    }
}

/// Waits for running requests, and aborts them when the time is up.
async fn drain(state: &AppState, signals: &mut Signals) {
    state.start_draining();
    tracing::info!("draining: no new requests, running ones are finished");
    tokio::select! {
        () = state.idle() => return,
        () = signals.next() => tracing::warn!("second signal: running requests are aborted"),
        () = tokio::time::sleep(state.config().drain_timeout) => {
            tracing::warn!("time is up: running requests are aborted");
        }
    }
    state.served().shutdown();
    // Their streams end with an error that clients can read.
    let _ = tokio::time::timeout(FLUSH_TIMEOUT, state.idle()).await;
}
