//! The options of `web`.

use std::path::PathBuf;

use clap::Args;

/// Where the page is served, and to whom.
#[derive(Debug, Args)]
pub(crate) struct WebArgs {
    /// Where the page is served; sockets passed by systemd go before it
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:11380")]
    pub(crate) listen: String,
    /// A name, or NAME:PORT, that browsers may reach it by, as behind a proxy; may be given again
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,
    /// Ask browsers for a name and a password, one of the NAME:PASSWORD lines of this file; #
    /// begins a comment
    #[arg(long, value_name = "FILE")]
    pub(crate) auth_file: Option<PathBuf>,
    /// Serve other addresses than loopback without a password, behind a proxy that asks for one
    #[arg(long, conflicts_with = "auth_file")]
    pub(crate) no_auth: bool,
    /// Refuse all acts, and only show
    #[arg(long)]
    pub(crate) read_only: bool,
}
