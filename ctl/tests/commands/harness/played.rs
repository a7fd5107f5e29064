//! A server that a test plays: the test decides the answer to each line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// The played server's answer to a line.
#[derive(Debug, Clone)]
pub(crate) enum Heard {
    /// A reply. A text that begins with `---` is sent as the body of `OK`.
    Reply(String),
    /// A reply, and then the end of the connection.
    Last(String),
    /// The beginning of a reply, as if the network failed before its end.
    Part(String),
    /// No reply.
    Nothing,
    /// The end of the connection.
    End,
}

impl From<&str> for Heard {
    fn from(reply: &str) -> Self {
        Self::Reply(reply.into())
    }
}

pub(crate) struct Played {
    pub(crate) address: String,
}

impl Played {
    /// Plays a server to any number of connections.
    pub(crate) fn new(answer: impl Fn(&str) -> Heard + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answer = Arc::new(answer);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let answer = Arc::clone(&answer);
                thread::spawn(move || serve(stream.unwrap(), &*answer));
            }
        });
        Self { address }
    }
}

fn serve(mut stream: TcpStream, answer: &impl Fn(&str) -> Heard) {
    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        let reply = match answer(&line) {
            Heard::Reply(text) if text.starts_with("---") => {
                format!("OK {}\r\n{text}\r\n", text.len())
            }
            Heard::Reply(text) => format!("{text}\r\n"),
            Heard::Last(text) => {
                let _ = stream.write_all(text.as_bytes());
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
            Heard::Part(text) => {
                let _ = stream.write_all(text.as_bytes());
                continue;
            }
            Heard::Nothing => continue,
            Heard::End => {
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
        };
        // A client that needs no more replies closes the connection.
        if stream.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

/// A reply to `stats-tube`.
pub(crate) const TUBE: &str = "---\nname: \"a\"\ncurrent-jobs-urgent: 0\ncurrent-jobs-ready: 3\n\
    current-jobs-reserved: 0\ncurrent-jobs-delayed: 0\ncurrent-jobs-buried: 0\ntotal-jobs: 10\n\
    current-using: 1\ncurrent-watching: 1\ncurrent-waiting: 0\ncmd-delete: 7\ncmd-pause-tube: 0\n\
    pause: 0\npause-time-left: 0\n";

const STATS: &str = "---\ncurrent-jobs-urgent: 0\ncurrent-jobs-ready: 3\ncurrent-jobs-reserved: 0\n\
    current-jobs-delayed: 0\ncurrent-jobs-buried: 0\ncmd-put: 10\njob-timeouts: 0\ntotal-jobs: 10\n\
    max-job-size: 65535\ncurrent-tubes: 1\ncurrent-connections: 2\ncurrent-producers: 1\n\
    current-workers: 1\ncurrent-waiting: 0\ntotal-connections: 3\nversion: \"2.0.0\"\n\
    rusage-utime: 0.250000\nrusage-stime: 0.125000\nuptime: 60\nbinlog-oldest-index: 1\n\
    binlog-current-index: 2\nbinlog-records-migrated: 0\nbinlog-records-written: 20\n\
    binlog-max-size: 10485760\ndraining: false\nhostname: \"queue\"\nplatform: \"x86_64\"\n";

const METRICS: &str = "---\nstate: binlog-full\nbinlog-state: full\nbinlog-trouble-age: 7\n\
    binlog-unsynced-bytes: 0\nbinlog-live-bytes: 1234\nbinlog-dead-bytes: 567\n\
    binlog-sync-seconds-le-0.00002: 3\nbinlog-sync-seconds-le-inf: 12\n\
    binlog-sync-seconds-sum: 0.001234567\njob-bytes: 4096\njob-bytes-limit: 1000000\n\
    jobs-buried-for-losses: 6\ncmd-reserve-with-abort: 8\n\
    turn-seconds-le-0.00002: 5\nturn-seconds-le-inf: 9\nturn-seconds-sum: 0.000123456\n";

const METRICS_OF_TUBE: &str = "---\nname: \"a\"\nnext-ready-age: 12\nnext-ready-wait: 3.250000000\n\
    jobs-buried-for-losses: 5\n\
    wait-seconds-le-0.001: 4\nwait-seconds-le-inf: 10\nwait-seconds-sum: 1.500000000\n\
    run-seconds-le-0.001: 0\nrun-seconds-le-inf: 9\nrun-seconds-sum: 2.000000000\n";

/// Plays a server that reports every number known to `metrics`, and a full binlog.
pub(crate) fn everything() -> Played {
    Played::new(|line| match line {
        "stats" => STATS.into(),
        "capabilities" => {
            "---\nstate: binlog-full\nextensions:\n- capabilities\n- metrics\n".into()
        }
        "list-tubes" => "---\n- a\n- never\n".into(),
        "stats-tube a" | "stats-tube never" => TUBE.into(),
        "metrics" => METRICS.into(),
        "metrics a" => METRICS_OF_TUBE.into(),
        "metrics never" => "---\nname: \"never\"\n".into(),
        _ => "UNKNOWN_COMMAND".into(),
    })
}
