//! Accepting connections, and the limits of each.
//!
//! ```text
//!   connections at once      see `places`: the idlest one makes room for a new one
//!   head of a request        64 KiB; head_timeout, from the connection or its first byte
//!   pause between requests   idle_timeout
//!   body of a request        body_timeout and max_body_bytes (see `wire::body`)
//!   answer                   write_timeout per write: a client must read its answer
//! ```
//!
//! With TLS the handshake is a part of the first head. Clients of a Unix socket have no address, so no
//! limit of an address applies to them.
//!
//! A client that exceeds a limit loses its connection, and its requests are aborted. So does a
//! client that goes away; one that has only closed its sending half gets its answer (see `visit`).

mod channel;
mod places;
mod stream;
mod visit;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use pelton_base::TenantId;
use tokio::task::JoinSet;

use self::places::{Phase, Places};
pub(crate) use self::stream::Stream;
use self::visit::{Answer, Socket, Visit};
use crate::ServeConfig;
use crate::error::ApiError;
use crate::host::ByUnixSocket;
use crate::listening::Listeners;
use crate::patience::Patient;
use crate::routes::messages;
use crate::state::AppState;

/// Longest time for connections to send their last bytes when the server ends.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest head of a request; about as much of a request or answer is held in memory.
const HEAD_BYTES: usize = 64 << 10;
/// Wait after the system refused to accept a connection, for lack of file descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves connections until `closed`; then lets answers be sent to their end, and ends.
pub(crate) async fn serve(
    listeners: Listeners,
    app: Router,
    state: &AppState,
    closed: impl Future<Output = ()>,
) {
    let mut builder = http1::Builder::new();
    // `run` has these limits, because hyper's timer cannot tell a head from a pause before it.
    builder.timer(TokioTimer::new()).header_read_timeout(None).half_close(true);
    builder.max_header_size(HEAD_BYTES).max_buf_size(HEAD_BYTES);
    let app = TowerToHyperService::new(app);
    let graceful = GracefulShutdown::new();
    let places = Places::new(state.config());
    // Dropping the set aborts the connections that are left.
    let mut connections = JoinSet::new();
    let mut closed = pin!(closed);
    loop {
        let (stream, address) = tokio::select! {
            () = &mut closed => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listeners, &places) => accepted,
        };
        let place = tokio::select! {
            () = &mut closed => break,
            place = places.enter(address.map(|address| address.ip())) => place,
        };
        let Some(place) = place else {
            tracing::debug!(?address, "refused: its address has too many connections");
            continue;
        };
        stream.send_at_once();
        // Programs of this machine need no TLS.
        let tls = state.certificates().filter(|_| !stream.is_unix());
        let visit = Visit::new(stream, tls.map(|tls| tls.acceptor()), place);
        let socket = Socket(Arc::clone(&visit));
        let io = TokioIo::new(Patient::new(socket, state.config().write_timeout));
        let (app, state, of_service) = (app.clone(), state.clone(), Arc::clone(&visit));
        let service = {
            let state = state.clone();
            service_fn(move |request| {
                answer(app.clone(), state.clone(), Arc::clone(&of_service), request)
            })
        };
        let connection = graceful.watch(builder.serve_connection(io, service));
        connections.spawn(async move { run(connection, &visit, state.config()).await });
    }
    drop(listeners);
    let _ = tokio::time::timeout(FLUSH_TIMEOUT, graceful.shutdown()).await;
}

/// Answers a request, if there is room for one more.
async fn answer(
    app: TowerToHyperService<Router>,
    state: AppState,
    visit: Arc<Visit>,
    mut request: Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    if visit.is_unix() {
        request.extensions_mut().insert(ByUnixSocket);
    }
    let response = if visit.asked(&request) {
        app.call(request).await?
    } else {
        let response = ApiError::too_many_requests().into_response();
        state.count_refusal(TenantId::default(), &response);
        messages::envelope::of_path(request.uri().path(), response)
    };
    Ok(Answer::new(response, visit))
}

/// Serves a connection until it ends, a limit is exceeded, or its place or its client is gone.
async fn run(
    connection: impl Future<Output = hyper::Result<()>>,
    visit: &Visit,
    config: &ServeConfig,
) {
    let mut connection = pin!(connection);
    loop {
        let over = async {
            match visit.place.phase() {
                None => {}
                Some(Phase::Head(since)) => rest(config.head_timeout, since).await,
                Some(Phase::Idle(since)) => rest(config.idle_timeout, since).await,
                Some(Phase::Request { .. }) => visit.gone(config.keep_alive).await,
            }
        };
        tokio::select! {
            biased;
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection broke");
                }
                return;
            }
            () = visit.place.changed() => {}
            () = over => return,
        }
    }
}

/// Waits for what is left of a time.
async fn rest(time: Duration, since: tokio::time::Instant) {
    tokio::time::sleep(time.saturating_sub(since.elapsed())).await;
}

/// The next connection. Failures to accept are temporary, so it tries again instead of failing.
async fn accept(listeners: &Listeners, places: &Places) -> (Stream, Option<SocketAddr>) {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    loop {
        match listeners.accept().await {
            Ok(accepted) => return accepted,
            // This client closed its connection; the next client may not.
            Err(error)
                if matches!(
                    error.kind(),
                    ConnectionAborted | ConnectionRefused | ConnectionReset
                ) => {}
            // Most probably there are no more file descriptors, and an idle connection has one.
            Err(error) if places.give_up_idlest() => {
                tracing::debug!(%error, "cannot accept a connection without closing another");
                let _ = tokio::time::timeout(ACCEPT_PAUSE, places.freed()).await;
            }
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
