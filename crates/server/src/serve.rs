//! Binding, serving, and the three stages of stopping.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pelton_base::limits;
use pelton_llm::{Embedder, Llm};
use tokio::sync::{mpsc, oneshot};

use crate::access::Access;
use crate::connections::{self, FLUSH_TIMEOUT};
use crate::cors::CorsOrigins;
use crate::files::{Batches, FILE_BYTES, Store};
use crate::gateway::{Gateway, GatewayConfig, GatewayError};
use crate::host::HostName;
use crate::listening::{Listeners, SocketAccess, UnixSocketError};
use crate::models::{Catalog, ModelSpec, Routing, Served};
use crate::otlp::OtlpConfig;
use crate::quiet::{self, Quiet};
use crate::routes::{ResponsesConfig, router};
use crate::signals::Signals;
use crate::state::{AppState, Listening};
use crate::tls::{Certificates, TlsConfig, TlsError};
use crate::wire::unix_seconds;

/// Time for which a server whose engine has failed says so before it ends.
const FAILURE_SHOWN: Duration = Duration::from_secs(5);

/// Time between two looks at the models.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Where and how to serve.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Name or address to listen on; `None` for 127.0.0.1.
    pub host: Option<String>,
    /// Port to listen on; zero lets the system choose, `None` is 8000. With neither host nor port,
    /// a server with a Unix socket listens on that alone.
    pub port: Option<u16>,
    /// Files for HTTPS on host and port.
    pub tls: TlsConfig,
    /// Unix socket to listen on.
    pub unix_socket: Option<PathBuf>,
    /// Which users may connect to it.
    pub unix_socket_access: SocketAccess,
    /// Names under which requests may reach the server; without any, each name will do, except on
    /// a loopback address without API keys (see [`HostName`]).
    pub allowed_hosts: Vec<HostName>,
    /// Web pages whose scripts may read answers.
    pub cors_origins: CorsOrigins,
    /// Whether the web page is served at `/`.
    pub page: bool,
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
    /// Most bytes of all models together; `None` for no limit.
    pub models_memory: Option<u64>,
    /// Longest step of an engine. One that takes longer hangs: the engine is given up, and the model
    /// loaded anew. Zero for no such limit.
    pub step_timeout: Duration,
    /// Where traces are sent; `None` for nowhere.
    pub otlp: Option<OtlpConfig>,
    /// Whether `/metrics` has vLLM's names beside Pelton's.
    pub vllm_metrics: bool,
    /// Whether requests may bring a chat template of their own. It runs under limits, but decides what
    /// the model reads.
    pub trust_request_chat_template: bool,
    /// Whether fields of requests that are unknown or not honoured are ignored, and named in the
    /// header `X-Pelton-Ignored`, instead of refused.
    pub lenient: bool,
    /// Folder of the files of clients; `None` keeps them in memory.
    pub files: Option<PathBuf>,
    /// Largest file that a client may upload, in bytes.
    pub max_file_bytes: u64,
    /// Priority of the requests of batches.
    pub batch_priority: i32,
    /// Bounds of stored responses (`POST /v1/responses`).
    pub responses: ResponsesConfig,
    /// Tenants and API keys.
    pub access: Access,
    /// Key file, limits and usage.
    pub gateway: GatewayConfig,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            host: None,
            port: None,
            tls: TlsConfig::default(),
            unix_socket: None,
            unix_socket_access: SocketAccess::default(),
            allowed_hosts: Vec::new(),
            cors_origins: CorsOrigins::default(),
            page: true,
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
            models_memory: None,
            step_timeout: Duration::from_secs(600),
            otlp: None,
            vllm_metrics: true,
            trust_request_chat_template: false,
            lenient: false,
            files: None,
            max_file_bytes: FILE_BYTES,
            // Low numbers go first by default.
            batch_priority: i32::MAX,
            responses: ResponsesConfig::default(),
            access: Access::default(),
            gateway: GatewayConfig::default(),
        }
    }
}

impl ServeConfig {
    /// Longest step of an engine, where there is a limit.
    pub(crate) fn limit_of_steps(&self) -> Option<Duration> {
        Some(self.step_timeout).filter(|limit| !limit.is_zero())
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
    /// The Unix socket cannot be listened on.
    #[error("cannot listen on the Unix socket {}: {why}", path.display())]
    UnixSocket {
        /// Its path.
        path: PathBuf,
        /// The reason.
        why: UnixSocketError,
    },
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The key file or the usage file cannot be used.
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    /// The folder of files cannot be used.
    #[error("`--files {}`: {source}", path.display())]
    Files {
        /// The folder.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The model panicked, was started anew, and panicked again.
    #[error("the engine has failed: a step panicked twice (the messages of the panics are above)")]
    EngineFailed,
}

/// Settings that were read anew.
#[derive(Debug)]
pub struct Renewed {
    /// The models.
    pub models: Vec<ModelSpec>,
    /// The rules that choose among them.
    pub routing: Routing,
    /// Settings that differ and need a restart, a line each.
    pub needs_restart: Vec<String>,
}

/// Reads the settings anew, on a thread that may block; an error says in a line what is wrong.
pub type Renew = Arc<dyn Fn() -> Result<Renewed, String> + Send + Sync>;

/// A server that listens and does not answer yet.
pub struct Server {
    listeners: Listeners,
    state: AppState,
    renew: Option<Renew>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("listeners", &self.listeners).finish_non_exhaustive()
    }
}

impl Server {
    /// Takes the address, so that it can be shown before the first request comes.
    ///
    /// # Errors
    ///
    /// [`ServeError::Bind`] when the address is taken or does not exist, and the errors of files that
    /// the settings name.
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
        Self::bind_models(Catalog::of(served), config).await
    }

    /// Takes the address for several models, or for models that are loaded when they are asked for.
    ///
    /// # Errors
    ///
    /// As [`Server::bind`].
    pub async fn bind_models(models: Catalog, config: ServeConfig) -> Result<Self, ServeError> {
        let names: Vec<String> = config.access.names().map(str::to_owned).collect();
        let gateway = Gateway::open(&config.gateway, &names)?;
        config.check()?;
        let now = unix_seconds();
        let certificates = Certificates::open(&config.tls, now)?.map(Arc::new);
        let listeners = Listeners::open(&config).await?;
        if let Some(certificates) = &certificates {
            certificates.warn_of_end(now);
        }
        let files =
            Store::open(config.files.as_deref(), config.max_file_bytes).map_err(|source| {
                let path = config.files.clone().unwrap_or_default();
                ServeError::Files { path, source }
            })?;
        let models = models.watched(config.limit_of_steps());
        let listening = Listening { address: listeners.address(), certificates };
        let state = AppState::listening(models, config, gateway, files, listening);
        Ok(Self { listeners, state, renew: None })
    }

    /// Reads the settings anew when [`Signals`] ask for it (SIGHUP): models whose settings differ are
    /// loaded anew, and the log says what was not changed. The certificate is read anew with or without
    /// this.
    #[must_use]
    pub fn renewed_by(self, renew: Renew) -> Self {
        Self { renew: Some(renew), ..self }
    }

    /// The address that it listens on; `None` if it has a Unix socket alone.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listeners.address()
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
        let Self { listeners, state, renew } = self;
        let certificates = state.certificates().cloned();
        let watching_files = certificates.map(|held| tokio::spawn(held.watch()));
        let renewing = tokio::spawn(renew_settings(state.clone(), renew, signals.hangups()));
        let (close, closed) = oneshot::channel::<()>();
        let stopping = async {
            tokio::select! {
                () = signals.next() => drain(&state, &mut signals).await,
                () = state.models().failed() => linger(&mut signals).await,
            }
            let _ = close.send(());
        };
        let closed = async {
            let _ = closed.await;
        };
        Batches::resume(&state);
        let house = tokio::spawn(keep_house(state.clone()));
        let keys = tokio::spawn(Arc::clone(state.gateway()).watch_keys());
        let watching = tokio::spawn(crate::live::watch(state.clone()));
        let serving = connections::serve(listeners, router(state.clone()), &state, closed);
        tokio::join!(serving, stopping);
        keys.abort();
        if let Some(watching_files) = watching_files {
            watching_files.abort();
        }
        state.gateway().close();
        watching.abort();
        house.abort();
        renewing.abort();
        state.models().shutdown();
        // Results that the batches keep are whole when the process ends.
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, state.batches().ended()).await;
        if state.models().has_failed() { Err(ServeError::EngineFailed) } else { Ok(()) }
    }
}

/// Reads the settings anew whenever that is asked for, for ever.
async fn renew_settings(state: AppState, renew: Option<Renew>, mut hangups: mpsc::Receiver<()>) {
    while hangups.recv().await.is_some() {
        if let Some(certificates) = state.certificates().cloned() {
            let work = tokio::task::spawn_blocking(move || certificates.renew(unix_seconds()));
            if work.await.is_err() {
                tracing::error!("reading the certificate anew panicked");
            }
        }
        let Some(renew) = renew.clone() else { continue };
        let app = state.clone();
        let work = move || match renew() {
            Err(why) => tracing::error!("the settings stay as they are: {why}"),
            Ok(Renewed { models, routing, needs_restart }) => {
                match app.models().apply(models, routing) {
                    Err(error) => tracing::error!("the models stay as they are: {error}"),
                    Ok(lines) => lines.iter().for_each(|line| tracing::warn!("{line}")),
                }
                for line in needs_restart {
                    tracing::warn!("needs a restart: {line}");
                }
                tracing::warn!("the settings were read anew");
            }
        };
        if tokio::task::spawn_blocking(work).await.is_err() {
            tracing::error!("reading the settings anew panicked");
        }
    }
}

/// Unloads and heals models, and gives memory back that is free, for ever.
async fn keep_house(state: AppState) {
    let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
    let mut quiet = Quiet::default();
    loop {
        ticks.tick().await;
        let app = state.clone();
        // It may load a model.
        let swept = tokio::task::spawn_blocking(move || app.models().sweep()).await;
        if swept.is_err() {
            tracing::error!("looking after the models panicked");
        }
        let is_busy = state.models().loaded().iter().any(|model| model.is_in_use());
        if quiet::resident_bytes().is_some_and(|resident| quiet.look(is_busy, resident)) {
            // It walks all free memory.
            let _ = tokio::task::spawn_blocking(pelton_tensor::give_free_memory_back).await;
            quiet.settle(quiet::resident_bytes().unwrap_or(0));
        }
    }
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
    state.models().shutdown();
    // Their streams end with an error that clients can read.
    let _ = tokio::time::timeout(FLUSH_TIMEOUT, state.idle()).await;
}
