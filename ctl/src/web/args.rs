//! The options of `web`.

use std::path::PathBuf;

use clap::Args;

/// The options of `web`.
#[derive(Debug, Args)]
pub(crate) struct WebArgs {
    /// Serve the page on HOST:PORT; ignored if systemd passes a socket
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:11380")]
    pub(crate) listen: String,
    /// Accept requests with the Host header NAME or NAME:PORT, as from a proxy; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,
    /// Ask for a name and a password, and accept those in FILE: lines of NAME:PASSWORD in plain
    /// text, and comments that begin with #
    #[arg(long, value_name = "FILE")]
    pub(crate) auth_file: Option<PathBuf>,
    /// Serve without a password on any address, behind a proxy that asks for a password
    #[arg(long, conflicts_with = "auth_file")]
    pub(crate) no_auth: bool,
    /// Refuse all actions
    #[arg(long)]
    pub(crate) read_only: bool,
}
