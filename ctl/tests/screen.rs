//! What stays on a screen: `top`, in a pseudo-terminal too, the question before a delete, and the
//! pages made from the definition of the commands.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod harness;

use std::io::Write as _;
use std::process::{Command, Stdio};

use harness::{
    PROGRAM, Ran, Server, each_server, four, has_tool, interrupt, ours, programs, put, state,
};

/// A terminal of its own that a test can type into.
struct Terminal {
    socket: String,
}

impl Terminal {
    /// Runs `beanstalkctl` in it.
    fn start(server: &Server, arguments: &[&str]) -> Self {
        let terminal = Self { socket: server.file("tmux") };
        let address = format!("BEANSTALKD_SERVER={}", server.address);
        let size = ["new-session", "-d", "-x", "110", "-y", "20", "-e", &address, PROGRAM];
        terminal.tmux(&["-f", "/dev/null"], &[&size[..], arguments].concat());
        terminal
    }

    fn tmux(&self, flags: &[&str], arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        let output =
            command.args(["-S", &self.socket]).args(flags).args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns the text on the screen; empty if the program has ended.
    fn picture(&self) -> String {
        self.tmux(&[], &["capture-pane", "-p"])
    }

    fn press(&self, key: &str) {
        self.tmux(&[], &["send-keys", key]);
    }

    /// Waits until the screen shows something.
    fn shows(&self, what: &str) {
        ct::eventually(&format!("{what} on the screen"), || self.picture().contains(what));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&[], &["kill-server"]);
    }
}

#[test]
fn top_prints_lines_as_vmstat_does() {
    each_server(&[], |server| {
        four(&mut server.client(), "a");
        let text = server.must(&["top", "--plain", "--interval", "0", "--count", "3"]);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert_eq!(lines[0][..5], ["server", "ready", "reserved", "delayed", "buried"]);
        // The client has gone, so its reserved job is ready again.
        ct::eventually("four jobs are counted", || {
            let objects = server.objects(&["top", "--count", "1"]);
            objects[0]["tubes"]["a"]["ready"] == 2 && objects[0]["buried"] == 1
        });
        let ran = server.run(&["top"]);
        assert_eq!(ran.code(), Some(1));
        assert!(ran.stderr.contains("--plain"), "{ran:?}");
    });
}

#[test]
fn top_ends_by_ctrl_c_and_survives_a_restart() {
    for program in programs() {
        let mut server = Server::tcp(&program, &[]);
        let child = server.command(&["top", "--plain"]).spawn().unwrap();
        ct::eventually("it is connected", || {
            server.objects(&["stats"])[0]["total-connections"].as_u64() > Some(1)
        });
        server.restart(&[]);
        ct::eventually("it is connected again", || {
            server.objects(&["stats"])[0]["current-connections"].as_u64() > Some(1)
        });
        interrupt(&child);
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code(), Some(0), "{ran:?}");
        // If a request was under way, the daemon's end resets the connection.
        let is_told = ["closed the connection", "the connection is lost"]
            .iter()
            .any(|text| ran.stdout.contains(text));
        assert!(is_told, "{ran:?}");
    }
}

#[test]
fn top_fills_a_terminal() {
    if !has_tool("tmux", "-V") {
        return;
    }
    for program in programs() {
        let mut server = Server::tcp(&program, &[]);
        let mut client = server.client();
        put(&mut client, "images", 5, 0, b"x");
        put(&mut client, "mail", 5, 0, b"x");
        put(&mut client, "mail", 5, 0, b"x");
        let terminal = Terminal::start(&server, &["top"]);
        terminal.shows("images");
        let order = || {
            let picture = terminal.picture();
            picture.find("mail").zip(picture.find("images")).map(|(mail, images)| mail < images)
        };
        ct::eventually("the most ready jobs come first", || order() == Some(true));
        terminal.press("Left");
        ct::eventually("the names are in their order", || order() == Some(false));
        terminal.press("r");
        ct::eventually("and the other way round", || order() == Some(true));
        assert!(terminal.picture().contains("put/s"), "{}", terminal.picture());
        drop(client);
        server.restart(&[]);
        ct::eventually("the tubes are gone", || !terminal.picture().contains("images"));
        put(&mut server.client(), "again", 5, 0, b"x");
        terminal.shows("again");
        terminal.press("q");
        ct::eventually("it has ended", || terminal.picture().is_empty());
    }
}

/// Without `--yes` a person is asked, and any answer but yes changes nothing.
#[test]
fn a_person_is_asked() {
    if !has_tool("tmux", "-V") {
        return;
    }
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let mut client = server.client();
        let id = put(&mut client, "a", 5, 0, b"x");
        let terminal = Terminal::start(&server, &["clear", "a"]);
        terminal.shows("Will delete 1 job: 1 ready");
        terminal.shows("Go on? [y/N]");
        terminal.press("Enter");
        ct::eventually("it has ended", || terminal.picture().is_empty());
        assert_eq!(state(&mut client, id).as_deref(), Some("ready"));
        drop(terminal);
        let terminal = Terminal::start(&server, &["clear", "a"]);
        terminal.shows("Go on? [y/N]");
        terminal.press("y");
        terminal.press("Enter");
        ct::eventually("the job is gone", || state(&mut client, id).is_none());
    }
}

#[test]
fn the_largest_bodies_and_a_report_are_shown() {
    each_server(&[], |server| {
        let mut client = server.client();
        let ids: Vec<_> =
            (1..=20).map(|size| put(&mut client, "a", 5, 0, &vec![b'x'; size])).collect();
        let shown = server.objects(&["big", "--limit", "3"]);
        let shown: Vec<_> = shown.iter().map(|job| job["id"].as_u64().unwrap()).collect();
        assert_eq!(shown, [ids[19], ids[18], ids[17]]);
        assert!(server.must(&["big"]).starts_with("id  tube"));
        let report = server.must(&["report"]);
        for part in ["## stats\n\nOK ", "uptime: ", "## capabilities", "## stats-tube a\n\nOK "] {
            assert!(report.contains(part), "{part}: {report}");
        }
        assert!(!report.contains("xxx"), "a report has no bodies");
    });
}

/// The completions must be scripts that their shells accept, and the page one that `man` reads.
#[test]
fn pages_are_well_formed() {
    let print = |arguments: &[&str]| {
        let output = Command::new(PROGRAM).args(arguments).output().unwrap();
        assert!(output.status.success());
        output.stdout
    };
    for shell in ["bash", "zsh", "fish"] {
        let script = print(&["completions", shell]);
        assert!(String::from_utf8_lossy(&script).contains("older-than"), "{shell}");
        if !has_tool(shell, "--version") {
            continue;
        }
        let mut child = Command::new(shell)
            .arg("-n")
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&script).unwrap();
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert!(ran.status.success(), "{shell}: {ran:?}");
    }
    let page = print(&["manual"]);
    if has_tool("mandoc", "-h") {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("beanstalkctl.1");
        std::fs::write(&path, &page).unwrap();
        let output = Command::new("mandoc").args(["-T", "ascii"]).arg(&path).output().unwrap();
        let ran = Ran::of(output);
        assert!(ran.status.success() && ran.stdout.contains("Delete all jobs of tubes, or some"));
        let ran = Ran::of(
            Command::new("mandoc").args(["-T", "lint", "-W", "error"]).arg(&path).output().unwrap(),
        );
        assert!(ran.status.success(), "{ran:?}");
    }
    let server = Server::tcp(&ours(), &[]);
    let ran = server.run(&["list"]);
    assert_eq!(ran.code(), Some(2), "{ran:?}");
}
