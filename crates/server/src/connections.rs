//! Accepting connections, and the limits of each.
//!
//! ```text
//!   connections at once      max_connections; further ones wait in the system's queue
//!   head of a request        head_timeout, for idle connections too
//!   body of a request        body_timeout and max_body_bytes (see `wire::body`)
//!   answer                   write_timeout per write: a client must read its answer
//! ```
//!
//! A client that exceeds a limit loses its connection, and its requests are aborted.

use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::ServeConfig;
use crate::patience::Patient;

/// Longest time for connections to send their last bytes when the server ends.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Wait after the system refused to accept a connection, for lack of file descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves connections until `closed`; then lets answers be sent to their end, and ends.
pub(crate) async fn serve(
    listener: TcpListener,
    app: Router,
    config: &ServeConfig,
    closed: impl Future<Output = ()>,
) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(config.head_timeout);
    let service = TowerToHyperService::new(app);
    let graceful = GracefulShutdown::new();
    // Dropping the set aborts the connections that are left.
    let mut connections = JoinSet::new();
    let mut closed = pin!(closed);
    loop {
        let stream = tokio::select! {
            () = &mut closed => break,
            Some(_) = connections.join_next() => continue,
            stream = accept(&listener), if connections.len() < config.max_connections => stream,
        };
        // Chunks of a stream are small and must be sent at once.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection keeps its delay");
        }
        let io = TokioIo::new(Patient::new(stream, config.write_timeout));
        let connection = graceful.watch(builder.serve_connection(io, service.clone()));
        connections.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection broke");
            }
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(FLUSH_TIMEOUT, graceful.shutdown()).await;
}

/// The next connection. Failures to accept are temporary, so it tries again instead of failing.
async fn accept(listener: &TcpListener) -> TcpStream {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            // This client closed its connection; the next client may not.
            Err(error)
                if matches!(
                    error.kind(),
                    ConnectionAborted | ConnectionRefused | ConnectionReset
                ) => {}
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
