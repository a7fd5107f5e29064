//! The options of `web`.

use clap::Args;

/// Where the page is served, and to whom.
#[derive(Debug, Args)]
pub(crate) struct WebArgs {
    /// Where the page is served
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:11380")]
    pub(crate) listen: String,
    /// A name, or NAME:PORT, that browsers may reach it by, as behind a proxy; may be given again
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,
    /// Refuse whatever changes something
    #[arg(long)]
    pub(crate) read_only: bool,
}
