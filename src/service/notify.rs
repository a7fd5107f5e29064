//! Messages to the service manager, as systemd defines them: datagrams of `KEY=value` lines to the
//! socket that `NOTIFY_SOCKET` names. Without the variable `NOTIFY_SOCKET`, no message is sent.
//!
//! The messages report the progress and the end of a long startup, and the daemon's state. If
//! there is a watchdog, further messages report that the event loop still runs.

use std::{
    ffi::{OsStr, OsString},
    fmt::Display,
    io,
    os::unix::net::{SocketAddr, UnixDatagram},
    time::Duration,
};

use log::warn;

use crate::clock::Time;

/// During startup, sending a message blocks for at most this long, if the manager does not read.
/// Once the daemon serves, sending never blocks.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// How much more time the daemon requests with each message on the progress of startup.
const EXTENSION: Duration = Duration::from_secs(60);

/// The connection to the service manager, if there is one.
#[derive(Debug, Default)]
pub struct Notifier {
    /// The daemon's socket, and the address of the manager's socket.
    manager: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Watchdog>,
    /// The status that was sent last.
    status: &'static str,
}

/// The manager's watchdog. If a message is too late, the manager assumes that the process hangs.
#[derive(Debug)]
struct Watchdog {
    every: Duration,
    next: Time,
}

impl Notifier {
    /// Reads the environment variables of the service manager. Ignores a watchdog that is meant for
    /// a process other than `pid`.
    pub fn new(variable: impl Fn(&str) -> Option<OsString>, pid: u32, now: Time) -> Self {
        let Some(name) = variable("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self::default();
        };
        let number = |key| variable(key).and_then(|text| text.to_str()?.parse::<u64>().ok());
        let is_ours =
            variable("WATCHDOG_PID").is_none() || number("WATCHDOG_PID") == Some(pid.into());
        let limit = number("WATCHDOG_USEC").filter(|&limit| is_ours && limit > 0);
        let watchdog = limit.map(|limit| {
            // With three messages in each time limit, the manager does not act if two are missing.
            let every = Duration::from_micros(limit) / 3;
            Watchdog { every, next: now }
        });
        match open(&name) {
            Ok(manager) => Self { manager: Some(manager), watchdog, status: "" },
            Err(error) => {
                warn!(
                    "cannot notify the service manager at NOTIFY_SOCKET={}: {error}",
                    name.to_string_lossy()
                );
                Self::default()
            }
        }
    }

    /// Sends the progress of a long startup to the service manager, and requests more time.
    pub fn progress(&self, text: &str) {
        let more = EXTENSION.as_micros();
        self.send(&format!("STATUS={text}\nEXTEND_TIMEOUT_USEC={more}"));
    }

    /// Reports to the service manager that the daemon serves. From now on, sending a message never
    /// blocks.
    pub fn ready(&mut self, status: &'static str) {
        self.status = status;
        self.send(&format!("READY=1\nSTATUS={status}"));
        let Some((socket, _)) = &self.manager else { return };
        if let Err(error) = socket.set_nonblocking(true) {
            warn!("cannot notify the service manager any more: {error}");
            *self = Self::default();
        }
    }

    /// Reports the daemon's state to the service manager, if the state has changed.
    pub fn status(&mut self, status: &'static str) {
        if status != self.status {
            self.status = status;
            self.send(&format!("STATUS={status}"));
        }
    }

    /// Whether there is a service manager.
    pub fn has_manager(&self) -> bool {
        self.manager.is_some()
    }

    /// Reports to the service manager the error that ends the daemon.
    pub fn failed(&self, error: &impl Display) {
        self.send(&format!("STATUS={error}"));
    }

    /// Reports to the service manager that the daemon is shutting down.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=ending");
    }

    /// If a message is due, reports to the watchdog that the event loop still runs.
    pub fn feed_watchdog(&mut self, now: Time) {
        let Some(watchdog) = &mut self.watchdog else { return };
        if watchdog.next <= now {
            watchdog.next = now + watchdog.every;
            self.send("WATCHDOG=1");
        }
    }

    /// When the next message to the watchdog is due.
    pub fn next_deadline(&self) -> Option<Time> {
        self.watchdog.as_ref().map(|watchdog| watchdog.next)
    }

    /// Sends a message to the service manager. Ignores errors, because a missing message is no
    /// reason to stop serving.
    fn send(&self, lines: &str) {
        if let Some((socket, address)) = &self.manager {
            let _ = socket.send_to_addr(lines.as_bytes(), address);
        }
    }
}

/// Opens a socket for messages to the service manager at the address `name`.
fn open(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_encoded_bytes() {
        #[cfg(target_os = "linux")]
        [b'@', rest @ ..] => {
            <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(rest)?
        }
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a UNIX socket")),
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_TIMEOUT))?;
    Ok((socket, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deadline(variables: &[(&str, &str)], now: Time) -> Option<Time> {
        let variable = |key: &str| {
            variables.iter().find(|(name, _)| *name == key).map(|(_, value)| value.into())
        };
        Notifier::new(variable, 17, now).next_deadline()
    }

    #[test]
    fn only_a_watchdog_of_this_process_has_a_deadline() {
        let now = Time::from_nanoseconds(1_000);
        let socket = ("NOTIFY_SOCKET", "/nobody/reads/this");
        let limit = ("WATCHDOG_USEC", "3000000");
        assert_eq!(deadline(&[socket, limit], now), Some(now));
        assert_eq!(deadline(&[socket, limit, ("WATCHDOG_PID", "17")], now), Some(now));
        for variables in [
            &[][..],
            &[limit],
            &[socket],
            &[("NOTIFY_SOCKET", ""), limit],
            &[("NOTIFY_SOCKET", "vsock:2:1"), limit],
            &[socket, limit, ("WATCHDOG_PID", "18")],
            &[socket, limit, ("WATCHDOG_PID", "all")],
            &[socket, ("WATCHDOG_USEC", "0")],
            &[socket, ("WATCHDOG_USEC", "soon")],
        ] {
            assert_eq!(deadline(variables, now), None, "{variables:?}");
        }
    }

    #[test]
    fn a_watchdog_is_fed_three_times_within_its_limit() {
        let variable = |key: &str| match key {
            "NOTIFY_SOCKET" => Some("@nobody-reads-this".into()),
            "WATCHDOG_USEC" => Some("3000000".into()),
            _ => None,
        };
        let now = Time::from_nanoseconds(1_000);
        let mut notifier = Notifier::new(variable, 17, now);
        notifier.feed_watchdog(now);
        assert_eq!(notifier.next_deadline(), Some(now + Duration::from_secs(1)));
        notifier.feed_watchdog(now + Duration::from_millis(999));
        assert_eq!(notifier.next_deadline(), Some(now + Duration::from_secs(1)));
        let late = now + Duration::from_secs(9);
        notifier.feed_watchdog(late);
        assert_eq!(notifier.next_deadline(), Some(late + Duration::from_secs(1)));
    }
}
