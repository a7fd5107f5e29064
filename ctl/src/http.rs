//! The HTTP server of `web` and `metrics`: sockets, limits, and a clean shutdown.
//!
//! One thread is enough, because `tokio::task::spawn_blocking` runs slow work in other threads.
//! After a signal, the server ends once requests under way are answered, or 5 seconds have passed.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::env;
use std::io::{self, IoSlice};
use std::mem;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as Waker, Poll, ready};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use axum::Router;
use axum::body::{Bytes, HttpBody};
use axum::serve::{Listener, ListenerExt as _};
use beanstalkd::sys;
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::interrupt::Interrupt;
use crate::message::{print_notice, usage};

/// The largest number of connections of a listener. If one more client connects, the oldest
/// connection without a complete request head is closed.
const CONNECTIONS_MAX: usize = 64;

/// A connection that transfers no byte for this time is closed; Prometheus scrapes more often.
const IDLE_TIME: Duration = Duration::from_secs(150);

/// A response is assumed to be complete if no byte is sent for this time although the client reads.
const RESPONSE_GAP: Duration = Duration::from_secs(1);

/// The interval at which old connections are closed, one by one, while a new client has to wait.
const PLACE_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The time limit of a request's head. The time starts at the connect or, for a later request, at
/// the head's first byte. Without the limit, a byte every two minutes would keep a connection open.
const HEAD_TIME_LIMIT: Duration = Duration::from_secs(10);

/// A response is cut off after this time, plus the time that its bytes need at the minimum rate.
/// Without this limit, slow readers would keep large responses in memory.
const SLOW_RESPONSE_TIME: Duration = Duration::from_secs(10);
/// The minimum rate at which a client must read a response.
const RESPONSE_BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// How long requests under way may continue after a signal.
const END_TIME_LIMIT: Duration = Duration::from_secs(5);

/// The first descriptor that a service manager passes.
const FIRST_PASSED_SOCKET: i32 = 3;
/// The largest number of sockets that a service manager can pass.
const PASSED_SOCKETS_MAX: i32 = 64;

/// Returns the sockets for HTTP that a service manager has passed. If no socket was passed, opens a
/// socket on the address `text`, if given: `HOST:PORT`, `HOST` or `:PORT`.
pub(crate) fn listen(text: Option<&str>, default_port: u16) -> Result<Vec<TcpListener>> {
    let passed = passed_sockets()?;
    let Some(text) = text.filter(|_| passed.is_empty()) else { return Ok(passed) };
    let address = listen_address(text, default_port).with_context(|| format!("--listen {text}"))?;
    let listener = TcpListener::bind(address);
    Ok(vec![listener.with_context(|| format!("cannot listen on {address}"))?])
}

/// Takes over the sockets that a service manager has passed, if any.
fn passed_sockets() -> Result<Vec<TcpListener>> {
    let number = |name: &str| -> Result<Option<i32>> {
        let text = env::var_os(name).filter(|text| !text.is_empty());
        let Some(text) = text else { return Ok(None) };
        let number = text.to_str().and_then(|text| text.parse().ok());
        number.with_context(|| format!("{name} is not a number")).map(Some)
    };
    let (pid, count) = (number("LISTEN_PID")?, number("LISTEN_FDS")?);
    let is_ours = pid.and_then(|pid| u32::try_from(pid).ok()) == Some(std::process::id());
    let count = count.filter(|_| is_ours).unwrap_or(0);
    if !(0..=PASSED_SOCKETS_MAX).contains(&count) {
        bail!("LISTEN_FDS is {count}, but at most {PASSED_SOCKETS_MAX} sockets can be passed");
    }
    (FIRST_PASSED_SOCKET..FIRST_PASSED_SOCKET + count)
        .map(|descriptor| {
            let socket = sys::inherit(descriptor)?;
            if !sys::is_listening_stream(&socket) {
                bail!("the passed descriptor {descriptor} is not a listening socket");
            }
            let listener = TcpListener::from(socket);
            listener.local_addr().context("a passed socket is not TCP")?;
            Ok(listener)
        })
        .collect()
}

/// Parses the address on which the HTTP server listens.
fn listen_address(text: &str, default_port: u16) -> Result<SocketAddr> {
    ensure!(text.parse::<u16>().is_err(), usage(format!("write a port as :{text}")));
    let found = match text.strip_prefix(':') {
        Some(port) => format!("127.0.0.1:{port}").to_socket_addrs(),
        None => text.to_socket_addrs().or_else(|error| {
            let host = text.trim_start_matches('[').trim_end_matches(']');
            (host, default_port).to_socket_addrs().map_err(|_| error)
        }),
    };
    found?.next().context("the host has no address")
}

/// Serves HTTP requests until a signal arrives.
pub(crate) fn serve_http(sockets: Vec<TcpListener>, app: &Router, stop: &Interrupt) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(async {
        let wake = stop.wake_socket()?;
        wake.set_nonblocking(true)?;
        let wake = tokio::net::UnixStream::from_std(wake)?;
        let (end, ended) = watch::channel(false);
        let mut servers = JoinSet::new();
        for listener in sockets {
            let address = listener.local_addr()?;
            listener.set_nonblocking(true)?;
            let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let listener = BoundedListener { listener, places, headless: Headless::default() };
            let mut ended = ended.clone();
            let until = async move {
                // The wait cannot fail, because the channel's sender exists longer than the wait.
                let _ = ended.wait_for(|ended| *ended).await;
            };
            // Without `tap_io`, axum would not pass the peer's address to handlers.
            let app = app.clone().into_make_service_with_connect_info::<SocketAddr>();
            let server = axum::serve(listener.tap_io(|_| ()), app).with_graceful_shutdown(until);
            servers.spawn(server.into_future());
            print_notice(&format!("beanstalkctl: http://{address}/"));
        }
        wake.readable().await?;
        end.send_replace(true);
        // Requests still under way after the time limit are dropped.
        let _ = timeout(END_TIME_LIMIT, servers.join_all()).await;
        Ok(())
    });
    // Do not wait for threads that still wait for a beanstalkd server.
    runtime.shutdown_background();
    served
}

/// A response body of known length, in pieces that are sent without being copied.
#[derive(Debug, Clone)]
pub(crate) struct SharedBody {
    pieces: VecDeque<Bytes>,
}

/// A piece of a response. `_permit` is free again once all pieces are dropped.
struct SharedBodyPiece {
    bytes: Bytes,
    _permit: Arc<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for SharedBodyPiece {
    /// Returns the bytes of this piece of a response body.
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl SharedBody {
    /// Makes a body that responses can share. `permit` is dropped with the last piece.
    pub(crate) fn new<T>(pieces: impl IntoIterator<Item = T>, permit: OwnedSemaphorePermit) -> Self
    where
        Bytes: From<T>,
    {
        let permit = Arc::new(permit);
        // Each piece keeps `permit`, because a piece may be sent after its response was dropped.
        let held =
            |piece| SharedBodyPiece { bytes: Bytes::from(piece), _permit: Arc::clone(&permit) };
        Self { pieces: pieces.into_iter().map(|it| Bytes::from_owner(held(it))).collect() }
    }
}

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = Infallible;

    /// Takes the next piece of the response body.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Waker<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.pieces.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    /// Whether no piece of the response body is left.
    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns the size of the rest of the response body.
    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.pieces.iter().map(|piece| piece.len() as u64).sum())
    }
}

/// A listener with a limit on the number of connections.
struct BoundedListener {
    listener: tokio::net::TcpListener,
    places: Arc<Semaphore>,
    headless: Headless,
}

/// A queue of senders. Each can close one connection, which has not sent a whole request head. The
/// sender's receiver is dropped as soon as the connection ends or the head is complete.
#[derive(Debug, Clone, Default)]
struct Headless(Arc<Mutex<VecDeque<oneshot::Sender<()>>>>);

impl Headless {
    /// Adds a connection without a complete request head. The connection must close once the
    /// returned receiver gets a value.
    fn add(&self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|sender| !sender.is_closed());
        all.push_back(sender);
        receiver
    }

    /// Closes the oldest connection without a complete request head.
    fn close_oldest(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while all.pop_front().is_some_and(|sender| sender.send(()).is_err()) {}
    }
}

impl Listener for BoundedListener {
    type Io = TimedConnection;
    type Addr = SocketAddr;

    /// Accepts an HTTP connection, and returns it once the limit on connections allows it.
    async fn accept(&mut self) -> (TimedConnection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let place = loop {
            let place = Arc::clone(&self.places).acquire_owned();
            if let Ok(place) = timeout(PLACE_CHECK_INTERVAL, place).await {
                break place.expect("the semaphore is never closed");
            }
            self.headless.close_oldest();
        };
        let head = RequestHead { began: Some(Instant::now()), newlines: None, is_whole: false };
        let (now, idle) = (Instant::now(), Box::pin(sleep(HEAD_TIME_LIMIT)));
        let (response, is_blocked) = ((now, 0), false);
        let (headless, close) = (self.headless.clone(), Some(self.headless.add()));
        let connection = TimedConnection {
            stream,
            active: now,
            idle,
            head,
            response,
            is_blocked,
            headless,
            close,
            is_unwanted: false,
            _place: place,
        };
        (connection, address)
    }

    /// Returns the address on which the HTTP server listens.
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// How much of the head of a request has arrived.
#[derive(Debug, Default)]
struct RequestHead {
    began: Option<Instant>,
    /// How many LFs the input ends with, ignoring CRs; `None` while only CRs and LFs have arrived.
    newlines: Option<u8>,
    /// Whether the head is complete. Once a response has begun, another request may arrive.
    is_whole: bool,
}

impl RequestHead {
    /// Looks in received bytes for the empty line that ends a request's head.
    fn read_bytes(&mut self, bytes: &[u8]) {
        if self.is_whole || bytes.is_empty() {
            return;
        }
        self.began.get_or_insert_with(Instant::now);
        for byte in bytes {
            self.newlines = match (byte, self.newlines) {
                (b'\r', newlines) => newlines,
                (b'\n', newlines) => newlines.map(|newlines| newlines + 1),
                _ => Some(0),
            };
            if self.newlines == Some(2) {
                self.is_whole = true;
                return;
            }
        }
    }

    /// Returns the deadline of a head that has begun and is not complete.
    fn deadline(&self) -> Option<Instant> {
        self.began.filter(|_| !self.is_whole).map(|began| began + HEAD_TIME_LIMIT)
    }
}

/// A connection with time limits.
struct TimedConnection {
    stream: TcpStream,
    /// The time when the last byte was read or written.
    active: Instant,
    /// The timer that wakes the connection to check its time limits.
    idle: Pin<Box<Sleep>>,
    head: RequestHead,
    /// The time when the current response began, and how many bytes of the response are written.
    response: (Instant, u64),
    /// Whether the client must read before more of the response can be sent.
    is_blocked: bool,
    headless: Headless,
    /// Gets a value if the connection must close; `None` once the head of a request is complete.
    close: Option<oneshot::Receiver<()>>,
    /// Whether this connection must close to admit another connection.
    is_unwanted: bool,
    _place: OwnedSemaphorePermit,
}

impl TimedConnection {
    /// Counts written bytes of a response, after whose first byte the next request may begin.
    fn count_written(&mut self, result: &Poll<io::Result<usize>>) {
        self.is_blocked = result.is_pending();
        if let Poll::Ready(Ok(count)) = result {
            if mem::take(&mut self.head).is_whole {
                self.response = (Instant::now(), 0);
                self.close = Some(self.headless.add());
            }
            self.response.1 += *count as u64;
        }
    }

    /// Returns when to close the HTTP connection if no byte is read or written until then.
    fn deadline(&self) -> Instant {
        let mut deadline = self.head.deadline().unwrap_or(self.active + IDLE_TIME);
        if self.is_unwanted && !self.is_blocked {
            let has_response = self.response.1 > 0;
            deadline = self.active + if has_response { RESPONSE_GAP } else { Duration::ZERO };
        }
        let (began, count) = self.response;
        let time = Duration::from_secs(count / RESPONSE_BYTES_PER_SECOND_MIN) + SLOW_RESPONSE_TIME;
        if self.is_blocked { deadline.min(began + time) } else { deadline }
    }

    /// Returns the result of a read or write over HTTP, or an error once a time limit has passed.
    fn with_time_limit<T>(
        &mut self,
        waker: &mut Waker<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let is_closing = |close: &mut oneshot::Receiver<()>| Pin::new(close).poll(waker).is_ready();
        if self.close.as_mut().is_some_and(is_closing) {
            (self.close, self.is_unwanted) = (None, true);
            let next = self.deadline();
            self.idle.as_mut().reset(next);
        }
        if result.is_ready() {
            self.active = Instant::now();
            let next = self.deadline();
            self.idle.as_mut().reset(next);
            return result;
        }
        loop {
            if self.deadline() <= Instant::now() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            ready!(self.idle.as_mut().poll(waker));
            let next = self.deadline();
            self.idle.as_mut().reset(next);
        }
    }
}

impl AsyncRead for TimedConnection {
    /// Reads from the HTTP connection, within the time limits of a request head.
    fn poll_read(
        mut self: Pin<&mut Self>,
        waker: &mut Waker<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.head.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(waker, buffer);
        self.head.read_bytes(&buffer.filled()[before..]);
        if self.head.is_whole {
            (self.close, self.is_unwanted) = (None, false);
        }
        self.with_time_limit(waker, result)
    }
}

impl AsyncWrite for TimedConnection {
    /// Writes to the HTTP connection, within the time limits.
    fn poll_write(
        mut self: Pin<&mut Self>,
        waker: &mut Waker<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(waker, bytes);
        self.count_written(&result);
        self.with_time_limit(waker, result)
    }

    /// Writes several buffers to the HTTP connection, within the time limits.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        waker: &mut Waker<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(waker, bytes);
        self.count_written(&result);
        self.with_time_limit(waker, result)
    }

    /// Whether the HTTP connection can write several buffers at once.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Flushes the HTTP connection.
    fn poll_flush(mut self: Pin<&mut Self>, waker: &mut Waker<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(waker)
    }

    /// Shuts down the sending side of the HTTP connection.
    fn poll_shutdown(mut self: Pin<&mut Self>, waker: &mut Waker<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(waker)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[test]
    fn a_head_ends_with_an_empty_line_and_not_before() {
        let whole = |pieces: &[&str]| {
            let mut head = RequestHead::default();
            for piece in pieces {
                head.read_bytes(piece.as_bytes());
            }
            assert_eq!(head.deadline().is_none(), head.is_whole || head.began.is_none());
            head.is_whole
        };
        assert!(whole(&["GET / HTTP/1.1\r\nHost: a\r", "\n\r", "\n"]));
        assert!(whole(&["GET / HTTP/1.1\n\n"]));
        // Empty lines before a request are allowed, and do not end its head.
        assert!(!whole(&["\r\n\r\n", "GET / HTTP/1.1\r\n"]));
        assert!(!whole(&["GET / HTTP/1.1\r\nX: a\r\n", "Y: b\r\n"]) && !whole(&[]));
    }

    /// Without the limit, a client that does not read would keep a response in memory for ever.
    #[tokio::test]
    async fn a_response_that_is_not_read_has_a_time_limit() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let (mut connection, _) =
            BoundedListener { listener, places, headless: Headless::default() }.accept().await;
        let mut write = async || loop {
            let bytes = [b'x'; 1 << 12];
            let began = Instant::now() - 2 * SLOW_RESPONSE_TIME;
            connection.response = (began, 0);
            let written = poll_fn(|waker| Pin::new(&mut connection).poll_write(waker, &bytes));
            if let Err(error) = written.await {
                return error.kind();
            }
        };
        let failure = timeout(Duration::from_secs(60), write()).await;
        assert_eq!(failure.unwrap(), io::ErrorKind::TimedOut);
    }

    /// Without the permit, fifty slow readers could keep fifty large bodies in memory.
    #[test]
    fn a_permit_is_held_until_the_last_byte_is_sent() {
        let permits = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&permits).try_acquire_owned().unwrap();
        let mut answer = SharedBody::new([vec![b'x'; 10]], permit);
        let unsent = answer.pieces.pop_front().unwrap();
        drop(answer);
        assert_eq!(permits.available_permits(), 0);
        drop(unsent);
        assert_eq!(permits.available_permits(), 1);
    }
}
