//! The options of `web`.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::message::usage;

/// The default port.
const DEFAULT_PORT: u16 = 11380;

/// The options of `web`.
#[derive(Debug, Args)]
pub(crate) struct WebArgs {
    /// Serve the page on HOST:PORT; ignored if systemd passes a socket
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:11380")]
    pub(crate) listen: String,
    /// Accept NAME or NAME:PORT as a name of the page, for a proxy; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,
    /// Ask for a name and a password, one of the NAME:PASSWORD lines of FILE, in plain text; lines
    /// that begin with # are comments
    #[arg(long, value_name = "FILE")]
    pub(crate) auth_file: Option<PathBuf>,
    /// Serve addresses other than loopback without a password, for a proxy that asks for one
    #[arg(long, conflicts_with = "auth_file")]
    pub(crate) no_auth: bool,
    /// Refuse all actions
    #[arg(long)]
    pub(crate) read_only: bool,
}

impl WebArgs {
    /// Reads `HOST:PORT`, `HOST` or `:PORT`.
    pub(super) fn listen_address(text: &str) -> Result<SocketAddr> {
        if text.parse::<u16>().is_ok() {
            return Err(usage(format!("--listen {text}: write a port as :{text}")));
        }
        let found = match text.strip_prefix(':') {
            Some(port) => format!("127.0.0.1:{port}").to_socket_addrs(),
            None => text.to_socket_addrs().or_else(|error| {
                let host = text.trim_start_matches('[').trim_end_matches(']');
                (host, DEFAULT_PORT).to_socket_addrs().map_err(|_| error)
            }),
        };
        let mut found = found.with_context(|| format!("--listen {text}"))?;
        found.next().with_context(|| format!("--listen {text}: the host has no address"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_lack_its_port_or_its_host() {
        for (text, expected) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("127.0.0.1", "127.0.0.1:11380"),
            (":81", "127.0.0.1:81"),
            ("[::1]:82", "[::1]:82"),
            ("[::1]", "[::1]:11380"),
        ] {
            assert_eq!(WebArgs::listen_address(text).unwrap().to_string(), expected, "{text}");
        }
        assert!(WebArgs::listen_address("127.0.0.1:x").is_err());
    }
}
