//! Accepting connections, and the limits of each.
//!
//! ```text
//!   how many at once         max_connections; others wait in the system's queue
//!   head of a request        head_timeout, which idle connections are subject to as well
//!   body of a request        body_timeout and max_body_bytes (see `wire::body`)
//!   answer                   write_timeout per write: a client must take what it asked for
//! ```
//!
//! Whoever exceeds one loses the connection, and with it what was being computed for it.

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

/// Longest time that connections get to send what is written when everything has ended.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Wait after the system has refused to accept, as when it is out of file descriptors.
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
    // Aborts what is left when it is dropped.
    let mut connections = JoinSet::new();
    let mut closed = pin!(closed);
    loop {
        let stream = tokio::select! {
            () = &mut closed => break,
            Some(_) = connections.join_next() => continue,
            stream = accept(&listener), if connections.len() < config.max_connections => stream,
        };
        // Pieces of a stream are small and must not wait for one another.
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

/// The next connection. What can go wrong here passes, so there is no error.
async fn accept(listener: &TcpListener) -> TcpStream {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            // The client's doing; the next one may be better.
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
