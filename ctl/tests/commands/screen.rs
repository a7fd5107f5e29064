//! The screen of `top`, also in a pseudo-terminal; the question before a delete; the manual and the
//! completions, made from the definition of the commands.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::harness::{
    PROGRAM, Ran, Server, each_server, four, has_tool, interrupt, ours, played, programs, put,
    state,
};
use serde_json::Value;

/// A pseudo-terminal by tmux, in which a test can press keys.
struct Terminal {
    socket: String,
}

impl Terminal {
    /// Runs `beanstalkctl` in a terminal.
    fn start(server: &Server, arguments: &[&str]) -> Self {
        Self::sized(server, arguments, ["110", "20"])
    }

    /// Runs `beanstalkctl` in a terminal with these numbers of columns and lines.
    fn sized(server: &Server, arguments: &[&str], [width, height]: [&str; 2]) -> Self {
        // Each terminal has its own socket, because an earlier tmux may still be ending.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let terminal = Self { socket: server.file(&format!("tmux-{number}")) };
        let address = format!("BEANSTALKD_SERVER={}", server.address);
        let size = ["new-session", "-d", "-x", width, "-y", height, "-e", &address, PROGRAM];
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

    /// Whether the program is still running.
    fn is_alive(&self) -> bool {
        !self.tmux(&[], &["list-sessions"]).is_empty()
    }

    fn press(&self, key: &str) {
        self.tmux(&[], &["send-keys", key]);
    }

    /// Waits until the screen shows this text.
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
        let text = server.must(&["top", "--plain", "--interval", "1", "--count", "3"]);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert_eq!(lines[0][..5], ["server", "ready", "reserved", "delayed", "buried"]);
        // The client was dropped, so its reserved job is ready again.
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
fn top_prints_a_line_for_each_tube_that_is_meant() {
    each_server(&[], |server| {
        let mut client = server.client();
        for (tube, jobs) in [("mail-a", 1), ("mail-b", 2), ("other", 4)] {
            for _ in 0..jobs {
                put(&mut client, tube, 5, 0, b"x");
            }
        }
        let text = server.must(&["top", "mail-*", "--plain", "--count", "1"]);
        let lines: Vec<Vec<&str>> =
            text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        let shown: Vec<_> = lines.iter().map(|line| (line[1], *line.last().unwrap())).collect();
        assert_eq!(shown, [("1", "mail-a"), ("2", "mail-b")], "{text}");
    });
}

/// A dumb terminal, such as a shell in an editor, would show control sequences as text.
#[test]
fn a_dumb_terminal_gets_no_control_sequences() {
    if !has_tool("script", "--version") {
        return;
    }
    let server = Server::tcp(&ours(), &[]);
    four(&mut server.client(), "a");
    let prints = |term: &str, arguments: &str| {
        let command = format!("{PROGRAM} {arguments}");
        let mut script = Command::new("script");
        script.args(["-q", "-c", &command, "/dev/null"]).stdin(Stdio::null());
        script.env_remove("NO_COLOR").env("TERM", term).env("BEANSTALKD_SERVER", &server.address);
        String::from_utf8_lossy(&script.output().unwrap().stdout).into_owned()
    };
    assert!(prints("xterm", "list a").contains("\u{1b}["), "others have colours");
    for arguments in ["list a", "export", "top"] {
        let text = prints("dumb", arguments);
        assert!(!text.contains('\u{1b}'), "{arguments}: {text:?}");
        assert_eq!(text.contains("use --plain"), arguments == "top", "{text}");
    }
}

#[test]
fn top_tells_of_a_binlog_in_trouble() {
    let server = Server::tcp(&ours(), &[]);
    let full = played::everything();
    let both = format!("{},{}", server.address, full.address);
    let text = server.must(&["--server", &both, "top", "--plain", "--count", "1"]);
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    assert!(lines[2].ends_with("  binlog full") && !lines[1].contains("binlog"), "{text}");
    let objects = server.objects(&["--server", &both, "top", "--count", "1"]);
    assert_eq!((&objects[0]["binlog"], &objects[1]["binlog"]), (&Value::Null, &"full".into()));
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
        // Samples during the restart report an error, but the last sample has numbers again.
        let last = ran.stdout.lines().last().unwrap();
        assert!(last.split_whitespace().count() == 9, "{ran:?}");
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

/// Replaces each number by 0 and each run of spaces by one space, so that only the form remains.
fn form_of(picture: &str) -> String {
    let mut form = String::new();
    for line in picture.trim_end().lines() {
        let words = line.split_whitespace().map(|word| {
            let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
            if is_number { "0".to_owned() } else { word.to_owned() }
        });
        form.push_str(&words.collect::<Vec<_>>().join(" "));
        form.push('\n');
    }
    form
}

/// The screen of `top` must match the files in `screens/`, except for numbers that change.
/// `KEEP_SCREENS=1` rewrites the files.
#[test]
fn top_looks_as_it_is_kept() {
    if !has_tool("tmux", "-V") {
        return;
    }
    let server = Server::tcp(&ours(), &[]);
    let mut client = server.client();
    four(&mut client, "mail");
    put(&mut client, "images-of-a-tube-with-a-long-name", 5, 0, b"x");
    client.command("use default").unwrap();
    client.command("pause-tube mail 4000000").unwrap();
    for (size, name) in [(["80", "12"], "top-80x12"), (["20", "5"], "top-20x5")] {
        let terminal = Terminal::sized(&server, &["top"], size);
        terminal.shows("mail");
        let picture = terminal.picture().replace(&server.address, "queue:11300");
        let form = form_of(&picture);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/commands/screens");
        let path = std::path::Path::new(path).join(name).with_extension("txt");
        if std::env::var_os("KEEP_SCREENS").is_some() {
            std::fs::write(&path, &picture).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap();
        assert_eq!(form, form_of(&kept), "{}:\n{picture}", path.display());
        // Columns must be aligned, whatever the numbers are.
        let widths = |text: &str| text.lines().map(|line| line.chars().count()).max();
        assert!(widths(&picture) <= size[0].parse().ok(), "{picture}");
        terminal.press("q");
        ct::eventually("it has ended", || terminal.picture().is_empty());
    }
}

/// A server that does not answer must delay neither keys nor other servers.
#[test]
fn top_can_be_left_while_a_server_hangs() {
    if !has_tool("tmux", "-V") {
        return;
    }
    let (hung, well) = (Server::tcp(&ours(), &[]), Server::tcp(&ours(), &[]));
    put(&mut hung.client(), "from-the-hung-one", 5, 0, b"x");
    let both = format!("{},{}", hung.address, well.address);
    let terminal = Terminal::start(&well, &["--server", &both, "top"]);
    terminal.shows("from-the-hung-one");
    hung.daemon.signal(19).unwrap();
    terminal.shows(&format!("{}: no answer for", hung.address));
    put(&mut well.client(), "from-the-other", 5, 0, b"x");
    terminal.shows("from-the-other");
    terminal.press("q");
    ct::eventually("it has ended", || terminal.picture().is_empty());
    hung.daemon.signal(18).unwrap();
}

/// One Ctrl-C must end a program that waits at a question or for input, and change nothing.
#[test]
fn a_question_ends_by_one_ctrl_c() {
    if !has_tool("tmux", "-V") {
        return;
    }
    let server = Server::tcp(&ours(), &[]);
    let mut client = server.client();
    let id = put(&mut client, "a", 5, 0, b"x");
    for (arguments, question) in
        [(&["clear", "a"][..], "Continue? [y/N]"), (&["put", "a"], ""), (&["delete", "-"], "")]
    {
        let before = server.objects(&["stats"])[0]["total-connections"].as_u64().unwrap();
        let terminal = Terminal::start(&server, arguments);
        terminal.shows(question);
        if question.is_empty() {
            // Without a question on the screen, only a pause ensures that the program waits.
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
        terminal.press("C-c");
        ct::eventually("it has ended", || !terminal.is_alive());
        assert!(server.objects(&["stats"])[0]["total-connections"].as_u64().unwrap() >= before);
    }
    assert_eq!(state(&mut client, id).as_deref(), Some("ready"));
}

/// Without `--yes`, `clear` must ask, and delete nothing unless the answer is yes.
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
        terminal.shows("Continue? [y/N]");
        terminal.press("Enter");
        ct::eventually("it has ended", || terminal.picture().is_empty());
        assert_eq!(state(&mut client, id).as_deref(), Some("ready"));
        drop(terminal);
        let terminal = Terminal::start(&server, &["clear", "a"]);
        terminal.shows("Continue? [y/N]");
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

/// Shells must accept the completions, and `man` must be able to read the page.
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
