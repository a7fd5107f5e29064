//! Refuses requests from other pages, and limits the requests of the page itself.
//!
//! Without `--auth-file` the page has no login. With `--auth-file`, browsers add the password to
//! each request, even if another page in the operator's browser sends the request. So requests of
//! other pages must be detected:
//!
//! - If another page's name resolves to our address (DNS rebinding), the header `Host` has that
//!   page's name.
//! - If another page sends cross-site requests, the browser adds the headers `Origin` and
//!   `Sec-Fetch-Site`. Another page cannot read the token, and cannot send JSON unless we allow it.
//! - The headers of each response forbid other pages to show our page in a frame.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::uri::Authority;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::{Failure, Site, WebArgs};
use crate::message::{log_line, usage};

/// The limit on concurrent requests for bodies of jobs. All other requests together have a limit of
/// the same size.
const REQUESTS_MAX: usize = 32;

/// The time limit of a request.
const REQUEST_TIME_LIMIT: Duration = Duration::from_secs(120);

/// After a wrong password, passwords from the same client address are refused for this time.
const WRONG_PASSWORD_PAUSE: Duration = Duration::from_secs(1);

/// The default port of HTTP, which browsers omit from the header `Host`.
const HTTP_PORT: u16 = 80;

/// The request header that must have the token.
const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-token");

const FETCH_SITE_HEADER: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The security headers of every response.
const SECURITY_HEADERS: [(HeaderName, &str); 8] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

/// Checks that requests come from the page itself.
#[derive(Debug)]
pub(super) struct Guard {
    /// The host names and ports of the page, in lower case.
    hosts: Vec<String>,
    /// Ports on which the page listens on every address. With such a port, `Host` may be any IP
    /// address.
    open_ports: Vec<u16>,
    /// The name and password of each user, in base64; empty without `--auth-file`.
    passwords: Vec<String>,
    /// Client addresses that sent a wrong password, each with the end of its pause.
    pauses: Mutex<HashMap<Option<IpAddr>, Instant>>,
    token: String,
    is_read_only: bool,
    /// The limit on concurrent requests without bodies of jobs, and the limit on requests for such
    /// bodies.
    rooms: [Semaphore; 2],
}

impl Guard {
    /// Makes a guard for the page at these addresses. Fails if other machines could reach the page
    /// without a password, but `--no-auth` is missing.
    pub(super) fn new(addresses: &[SocketAddr], args: &WebArgs) -> Result<Self> {
        let mut hosts = Vec::new();
        for name in &args.allow_host {
            let name = name.to_ascii_lowercase();
            let is_odd = |it: char| !(it.is_ascii_alphanumeric() || "-._:[]".contains(it));
            let is_name = !(name.is_empty() || name.contains(is_odd) || name.ends_with(':'));
            ensure!(is_name, "--allow-host {name:?}: use NAME or NAME:PORT");
            hosts.push(name);
        }
        let has_port =
            |name: &str| name.trim_end_matches(|it: char| it.is_ascii_digit()).ends_with(':');
        let mut names: Vec<_> = hosts.iter().filter(|name| !has_port(name)).cloned().collect();
        names.extend(["localhost", "127.0.0.1", "[::1]"].map(str::to_owned));
        for address in addresses {
            if !(address.ip().is_loopback() || args.no_auth || args.auth_file.is_some()) {
                return Err(usage(format!(
                    "{address} is not a loopback address: use --auth-file, or --no-auth if every \
                    client that can connect may carry out every action"
                )));
            }
            let port = address.port();
            hosts.push(address.to_string());
            hosts.extend(names.iter().map(|name| format!("{name}:{port}")));
            if port == HTTP_PORT {
                let without = |name: &String| name.strip_suffix(":80").map(str::to_owned);
                hosts.extend(hosts.iter().filter_map(without).collect::<Vec<_>>());
            }
        }
        let open = addresses.iter().filter(|address| address.ip().is_unspecified());
        let open_ports = open.map(SocketAddr::port).collect();
        let passwords = args.auth_file.as_deref().map_or(Ok(Vec::new()), |path| {
            read_passwords(path).with_context(|| format!("--auth-file {}", path.display()))
        })?;
        let rooms = [REQUESTS_MAX; 2].map(Semaphore::new);
        let (is_read_only, token) = (args.read_only, random_token()?);
        let pauses = Mutex::default();
        Ok(Self { hosts, open_ports, passwords, pauses, token, is_read_only, rooms })
    }

    /// Returns the token that requests of our page must have.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Whether the page refuses all actions.
    pub(super) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Whether `host` is a name or an address of the page, or any IP address if the page listens on
    /// all addresses. IP addresses are safe: DNS rebinding needs a host name.
    fn has_host(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        let is_address = |port: &u16| {
            let name = match host.strip_suffix(&format!(":{port}")) {
                None if *port == HTTP_PORT => host.as_str(),
                name => name.unwrap_or_default(),
            };
            name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok()
        };
        self.hosts.contains(&host) || self.open_ports.iter().any(is_address)
    }

    /// Refuses requests for other hosts, and requests with a missing or wrong password.
    fn check_access(&self, request: &Request) -> Result<(), Failure> {
        let headers = request.headers();
        let host = header_of(headers, &header::HOST)?.unwrap_or_default();
        let authority = request.uri().authority().map(Authority::as_str);
        if let Some(other) =
            [Some(host), authority].into_iter().flatten().find(|it| !self.has_host(it))
        {
            let why = format!("{other:?} is not a name of this page; add it with --allow-host");
            return Err(Failure::new(StatusCode::MISDIRECTED_REQUEST, why));
        }
        if self.passwords.is_empty() {
            return Ok(());
        }
        let why = "a name and a password are required";
        let required = Failure::new(StatusCode::UNAUTHORIZED, why);
        let Some(given) = header_of(headers, &header::AUTHORIZATION)? else { return Err(required) };
        let from = request.extensions().get().map(|&ConnectInfo::<SocketAddr>(from)| from.ip());
        let pauses = || self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if pauses().get(&from).is_some_and(|end| *end > now) {
            let why = "a wrong password came from your address: try again in a second";
            return Err(Failure::new(StatusCode::TOO_MANY_REQUESTS, why));
        }
        let (scheme, given) = given.split_once(' ').unwrap_or_default();
        let is_given = |known: &String| is_equal_secret(given.trim().as_bytes(), known.as_bytes());
        if scheme.eq_ignore_ascii_case("basic") && self.passwords.iter().any(is_given) {
            return Ok(());
        }
        pauses().retain(|_, end| *end > now);
        pauses().insert(from, now + WRONG_PASSWORD_PAUSE);
        // The pause after a wrong password limits the number of log lines for each address.
        let from = from.map_or_else(String::new, |from| format!(" from {from}"));
        log_line(&format!("wrong password{from}"));
        Err(required)
    }

    /// Refuses requests from other pages, and actions on a read-only page.
    fn check_origin(&self, request: &Request) -> Result<(), Failure> {
        let headers = request.headers();
        let site = header_of(headers, &FETCH_SITE_HEADER)?;
        // Allow links from other pages, because those pages cannot read the response.
        let is_page = request.uri().path() == "/" && request.method() == Method::GET;
        if !is_page && site.is_some_and(|site| site != "same-origin" && site != "none") {
            return Err(forbidden("the request comes from another page"));
        }
        if matches!(*request.method(), Method::GET | Method::HEAD) {
            return Ok(());
        }
        if let Some(origin) = header_of(headers, &header::ORIGIN)? {
            let host = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
            if !host.is_some_and(|host| self.has_host(host)) {
                return Err(forbidden("the request comes from another page"));
            }
        }
        if self.is_read_only {
            return Err(forbidden("the page is read-only: it was started with --read-only"));
        }
        let given = header_of(headers, &TOKEN_HEADER)?.unwrap_or_default();
        if !is_equal_secret(given.as_bytes(), self.token.as_bytes()) {
            return Err(forbidden("wrong token: reload the page"));
        }
        Ok(())
    }
}

/// The beginnings of password hashes, as written by htpasswd.
const HASH_PREFIXES: [&str; 9] =
    ["$apr1$", "$1$", "$2a$", "$2b$", "$2y$", "$5$", "$6$", "$y$", "{SHA}"];

/// Reads the page's passwords, the lines `NAME:PASSWORD` of a file. Fails if every user of the
/// system has access to the file. Empty lines and lines that begin with `#` are comments.
fn read_passwords(path: &Path) -> Result<Vec<String>> {
    let is_private = path.metadata()?.mode().trailing_zeros() >= 3;
    ensure!(is_private, "every user can read or write the file: run chmod 640");
    let mut found = Vec::new();
    let text = fs::read_to_string(path)?;
    let is_comment = |line: &str| line.is_empty() || line.starts_with('#');
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !is_comment(line)) {
        let number = at + 1;
        let (name, password) = line.split_once(':').unwrap_or_default();
        let is_whole = !name.is_empty() && !password.is_empty();
        ensure!(is_whole, "line {number} is not NAME:PASSWORD");
        let is_hidden = |it: char| it.is_control() || it == '\u{feff}';
        ensure!(
            !line.contains(is_hidden) && line.trim_end() == line,
            "line {number}: remove control characters, and spaces at the end"
        );
        let is_hash = HASH_PREFIXES.iter().any(|prefix| password.starts_with(prefix));
        ensure!(!is_hash, "line {number}: write the password itself, not a hash of it");
        found.push(BASE64.encode(line));
    }
    ensure!(!found.is_empty(), "the file has no line NAME:PASSWORD");
    Ok(found)
}

/// Makes the error response to a refused request.
fn forbidden(why: &str) -> Failure {
    Failure::new(StatusCode::FORBIDDEN, why)
}

/// Returns the value of a request's header, which must not occur twice.
fn header_of<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Failure> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(HeaderValue::to_str);
    match (first, values.next()) {
        (None, _) => Ok(None),
        (Some(Ok(text)), None) => Ok(Some(text)),
        _ => {
            let why = format!("{name}: expected exactly one header value, in ASCII");
            Err(Failure::new(StatusCode::BAD_REQUEST, why))
        }
    }
}

/// Compares two texts in a time that does not depend on where they differ.
fn is_equal_secret(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// Makes a random token.
pub(super) fn random_token() -> Result<String> {
    let mut bytes = [0; 32];
    let mut source = File::open("/dev/urandom").context("/dev/urandom")?;
    source.read_exact(&mut bytes).context("/dev/urandom")?;
    Ok(bytes.map(|byte| format!("{byte:02x}")).concat())
}

/// Passes a request to its handler or refuses it, and adds the security headers to the response.
pub(super) async fn guard(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let has_password = request.headers().contains_key(header::AUTHORIZATION);
    let answer = async {
        site.guard.check_access(&request)?;
        site.guard.check_origin(&request)?;
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        let has_bodies = ["/api/job", "/api/body"].contains(&path) || query.contains("pattern=");
        let room = &site.guard.rooms[usize::from(has_bodies)];
        let _permit = room.try_acquire().map_err(|_| {
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, "too many requests at once: try again")
        })?;
        let late = "no answer in time; an action may be partly done";
        timeout(REQUEST_TIME_LIMIT, next.run(request))
            .await
            .map_err(|_| Failure::new(StatusCode::GATEWAY_TIMEOUT, late))
    };
    let mut response = answer.await.unwrap_or_else(Failure::into_response);
    if response.status() == StatusCode::UNAUTHORIZED {
        if has_password {
            sleep(WRONG_PASSWORD_PAUSE).await;
        }
        let asks = HeaderValue::from_static("Basic realm=\"beanstalkctl\", charset=\"UTF-8\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, asks);
    }
    for (name, value) in SECURITY_HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(address: &str, names: &[&str]) -> Guard {
        Guard::new(&[address.parse().unwrap()], &args(names)).unwrap()
    }

    fn args(names: &[&str]) -> WebArgs {
        let allow_host = names.iter().map(ToString::to_string).collect();
        let (auth_file, no_auth, read_only) = (None, true, false);
        WebArgs { listen: String::new(), allow_host, auth_file, no_auth, read_only }
    }

    #[test]
    fn only_names_that_lead_here_are_known() {
        let one = guard("127.0.0.1:11380", &["Queue.example", "other:8443"]);
        for host in [
            "127.0.0.1:11380",
            "localhost:11380",
            "LOCALHOST:11380",
            "[::1]:11380",
            "queue.example",
            "queue.example:11380",
            "other:8443",
        ] {
            assert!(one.has_host(host), "{host}");
        }
        for host in [
            "",
            "localhost",
            "localhost:80",
            "evil.test:11380",
            "other",
            "10.0.0.1:11380",
            "other:1",
        ] {
            assert!(!one.has_host(host), "{host}");
        }
    }

    #[test]
    fn a_page_on_every_address_takes_addresses_and_no_names() {
        let every = guard("0.0.0.0:11380", &[]);
        assert!(every.has_host("10.0.0.1:11380") && every.has_host("[fe80::1]:11380"));
        assert!(!every.has_host("evil.test:11380") && !every.has_host("10.0.0.1:80"));
        assert!(!every.has_host("10.0.0.1"));
    }

    #[test]
    fn browsers_leave_the_usual_port_out() {
        let one = guard("127.0.0.7:80", &[]);
        for host in ["127.0.0.7", "127.0.0.7:80", "localhost", "[::1]"] {
            assert!(one.has_host(host), "{host}");
        }
        assert!(!one.has_host("127.0.0.8") && !one.has_host("127.0.0.7:81"));
        let every = guard("[::]:80", &[]);
        assert!(
            every.has_host("10.0.0.1") && every.has_host("[::1]") && every.has_host("1.2.3.4:80")
        );
        assert!(!every.has_host("evil.test") && !every.has_host("evil.test:80"));
    }

    #[test]
    fn odd_names_are_refused() {
        for name in ["", "*", "a b", "http://a", "queue:"] {
            assert!(Guard::new(&[], &args(&[name])).is_err(), "{name}");
        }
    }

    #[test]
    fn tokens_are_long_and_each_is_another() {
        let (a, b) = (random_token().unwrap(), random_token().unwrap());
        assert!(a.len() == 64 && a != b);
        assert!(
            is_equal_secret(a.as_bytes(), a.as_bytes())
                && !is_equal_secret(a.as_bytes(), b.as_bytes())
        );
        assert!(!is_equal_secret(a.as_bytes(), &a.as_bytes()[..63]));
    }
}
