//! Servers that refuse changes: `check` and each refused command must report the reason.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Server, has_tool, ours, programs, put};

/// A server with a binlog, whose files cannot become larger than a limit.
struct Limited {
    server: Server,
    _folder: TempDir,
}

impl Limited {
    /// Starts a server; `blocks` is the limit for `ulimit -f`.
    fn start(blocks: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (script, binlog) = (folder.path().join("daemon"), folder.path().join("binlog"));
        fs::create_dir(&binlog).unwrap();
        let daemon = ours().display().to_string();
        let text = format!("#!/bin/sh\ntrap '' XFSZ\nulimit -f {blocks}\nexec {daemon} \"$@\"\n");
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let server = Server::tcp(&script, &["-b", binlog.to_str().unwrap()]);
        Self { server, _folder: folder }
    }

    /// Makes every later write of the server fail.
    fn break_disk(&self) {
        let mut limit = Command::new("prlimit");
        limit.args(["--pid", &self.server.daemon.pid().to_string(), "--fsize=0:unlimited"]);
        assert!(limit.status().unwrap().success());
    }
}

const FULL: &str = "the binlog of the server is full: free space on its disk";
const FAILED: &str = "the binlog of the server has failed: see its log";

/// A full binlog must be reported as such: "out of memory" would mislead the operator.
#[test]
fn a_full_binlog_is_a_warning_and_the_reason_of_refusals() {
    let limited = Limited::start("10");
    let server = &limited.server;
    let ran = server.run(&["check"]);
    assert_eq!(ran.code(), Some(1), "{ran:?}");
    assert_eq!(ran.stdout, format!("BEANSTALKD WARNING: {}: {FULL}\n", server.address));
    let file = server.file("body");
    fs::write(&file, vec![b'x'; 30_000]).unwrap();
    let line = json!({ "body": "x".repeat(30_000) }).to_string() + "\n";
    for (input, command) in [
        ("", &["put", "a", "--file", &file][..]),
        (&line, &["put", "a", "--lines"]),
        (&line, &["import"]),
    ] {
        let ran = server.run_with(input.as_bytes(), command);
        assert_eq!(ran.code(), Some(1), "{command:?}: {ran:?}");
        assert!(ran.stderr.contains(FULL) && !ran.stderr.contains("memory"), "{command:?} {ran:?}");
    }
    let other = Server::tcp(&ours(), &[]);
    other.must(&["put", "a", "--file", &file]);
    let ran = other.run(&["move", "a", "b", "--to", &server.address, "--yes"]);
    assert!(ran.code() == Some(1) && ran.stderr.contains(FULL), "{ran:?}");
    assert_eq!(other.objects(&["list", "a", "--state", "ready"]).len(), 1, "it is still there");
}

/// After a failed write of the binlog, the server refuses changes, so `check` must be critical.
#[test]
fn a_failed_binlog_is_critical_and_the_reason_of_refusals() {
    if !has_tool("prlimit", "--version") {
        return;
    }
    let limited = Limited::start("unlimited");
    let server = &limited.server;
    let id = put(&mut server.client(), "a", 5, 0, b"x").to_string();
    assert_eq!(server.run(&["check"]).stdout, "BEANSTALKD OK: all tubes are below thresholds\n");
    limited.break_disk();
    // The server closes the connection without a reply, because the write may be incomplete.
    assert_eq!(server.run(&["put", "a", "x"]).code(), Some(1));
    ct::eventually("it has failed", || server.run(&["check"]).code() == Some(2));
    let ran = server.run(&["check", "--json"]);
    let problem = json!({ "status": "CRITICAL", "server": server.address,
        "text": format!("{}: {FAILED}", server.address) });
    let line: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((ran.code(), &line["problems"]), (Some(2), &json!([problem])));
    for command in [&["bury", &id][..], &["delete", &id, "--yes"], &["put", "a", "x"]] {
        let ran = server.run(command);
        assert!(ran.code() == Some(1) && ran.stderr.contains(FAILED), "{command:?}: {ran:?}");
    }
}

/// Someone may forget to end draining after maintenance, so `check` must warn.
#[test]
fn draining_is_a_warning_on_any_server() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        assert_eq!(server.run(&["check"]).code(), Some(0));
        server.daemon.signal(10).unwrap();
        ct::eventually("it drains", || server.run(&["check"]).code() == Some(1));
        let text = server.run(&["check"]).stdout;
        assert!(text.ends_with(": the server is draining and accepts no jobs\n"), "{text}");
    }
}
