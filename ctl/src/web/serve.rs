//! The sockets of the page: how many connections there may be, and how long they may take.

use std::net::TcpListener as StdListener;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// The most connections at a time; others wait until one ends.
const CONNECTIONS: usize = 64;

/// How long a request's head may take, and how long a connection may be idle.
const HEAD_TIME: Duration = Duration::from_secs(20);

/// How long a connection may last at all; a page opens another one without being asked.
const LIFETIME: Duration = Duration::from_secs(900);

/// The rest after an accept that failed, as for want of descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(200);

/// Serves until SIGINT or SIGTERM.
pub(super) async fn serve(listener: StdListener, router: Router) -> Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let (mut interrupt, mut end) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let permit = tokio::select! {
            permit = Arc::clone(&room).acquire_owned() => permit?,
            _ = interrupt.recv() => return Ok(()),
            _ = end.recv() => return Ok(()),
        };
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = interrupt.recv() => return Ok(()),
            _ = end.recv() => return Ok(()),
        };
        let Ok((stream, _)) = stream else {
            sleep(ACCEPT_REST).await;
            continue;
        };
        let router = router.clone();
        tokio::spawn(async move {
            connection(stream, router).await;
            drop(permit);
        });
    }
}

/// Serves one connection to its end. A peer that breaks off is no matter here.
async fn connection(stream: TcpStream, router: Router) {
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    if timeout(LIFETIME, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(HEAD_TIME, connection).await;
    }
}
