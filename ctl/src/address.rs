//! Addresses of servers, in the forms `host:port`, `[v6]:port`, a bare host, or `unix:PATH`.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// The default port of a server.
const DEFAULT_PORT: u16 = 11300;

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// A host name or an IP address, and a port.
    Tcp(String, u16),
    /// The path of a UNIX socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    /// Parses the address of a server, such as `HOST:PORT`, `tcp://HOST:PORT` or `unix:PATH`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let is_named = !path.is_empty();
            return is_named.then(|| Self::Unix(path.into())).ok_or("unix: needs a path".into());
        }
        if text.starts_with(['/', '.']) {
            return Err(format!("{text:?}: write the path of a socket as unix:{text}"));
        }
        let text = text.strip_prefix("tcp://").unwrap_or(text);
        let port_of = |digits: &str| {
            digits.parse().map_err(|_| format!("{digits:?} is not a port, in the address {text:?}"))
        };
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) = rest.split_once(']').ok_or(format!("{text:?}: missing ]"))?;
            match rest.strip_prefix(':') {
                Some(digits) => (host, port_of(digits)?),
                None if rest.is_empty() => (host, DEFAULT_PORT),
                None => return Err(format!("{text:?}: after the ] only :PORT may follow")),
            }
        } else if text.matches(':').count() > 1 {
            let is_whole = text.split('%').next().is_some_and(|it| it.parse::<Ipv6Addr>().is_ok());
            if !is_whole {
                return Err(format!("{text:?}: write an IPv6 address and a port as [::1]:11300"));
            }
            (text, DEFAULT_PORT) // An IPv6 address without a port.
        } else {
            match text.split_once(':') {
                Some((host, digits)) => (host, port_of(digits)?),
                None => (text, DEFAULT_PORT),
            }
        };
        if host.is_empty() || host.contains(char::is_whitespace) {
            return Err(format!("{text:?} has no valid host"));
        }
        Ok(Self::Tcp(host.to_owned(), port))
    }
}

impl Address {
    /// Returns the beginning of a `beanstalkctl` command line for this server, for use in messages.
    pub(crate) fn command(&self) -> String {
        format!("beanstalkctl --server {}", shell_word(&self.to_string()))
    }
}

/// Quotes a word for a shell, if necessary.
pub(crate) fn shell_word(word: &str) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_./:".contains(it);
    if word.chars().all(is_plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

impl fmt::Display for Address {
    /// Formats the address of a server, for messages and commands.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_an_address_is_read() {
        for (text, shown) in [
            ("queue:1", "queue:1"),
            ("queue", "queue:11300"),
            ("tcp://queue:1", "queue:1"),
            ("127.0.0.1:11301", "127.0.0.1:11301"),
            ("[::1]:11301", "[::1]:11301"),
            ("[::1]", "[::1]:11300"),
            ("::1", "[::1]:11300"),
            ("unix:/run/b.sock", "unix:/run/b.sock"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), shown, "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "tcp://", ":1", "a:b", "a:99999", "unix:", "[::1", "[::1]1", "a b:1"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
