//! How commands end: after signals, if a server is killed or hangs, if a reader closes the output;
//! and the exit statuses.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::harness::played::{Heard, Played};
use crate::harness::proxy::Proxy;
use crate::harness::{
    PROGRAM, Ran, Server, each_server, four, has_tool, interrupt, ours, programs, put, send_signal,
    state,
};

/// Whether a process exists and is not a zombie.
fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap().starts_with(" Z"))
}

/// Begins `work` with a command that starts a second process. Returns the pid of that process.
fn begin_work(server: &Server, arguments: &[&str]) -> (Child, String) {
    let file = server.file("pid");
    let script = format!("sleep 1000 & echo $! > {file}.new; mv {file}.new {file}; wait");
    let arguments = [&["work", "a"], arguments, &["--", "sh", "-c", &script]].concat();
    let child = server.command(&arguments).spawn().unwrap();
    ct::eventually("the command runs", || Path::new(&file).exists());
    (child, fs::read_to_string(file).unwrap())
}

/// If a command outlived its worker, the next worker would run the job at the same time.
#[test]
fn a_second_signal_ends_a_worker_with_all_that_it_started() {
    for (signal, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        let server = Server::tcp(&ours(), &[]);
        let mut client = server.client();
        let id = put(&mut client, "a", 5, 0, b"x");
        let (mut child, pid) = begin_work(&server, &[]);
        send_signal(&child, signal);
        let mut notice = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        stderr.read_line(&mut notice).unwrap();
        assert!(notice.contains("press Ctrl-C again to kill them"), "{notice}");
        assert!(is_alive(&pid), "the first one lets it go on");
        send_signal(&child, signal);
        assert_eq!(child.wait().unwrap().signal(), Some(number));
        ct::eventually("the other command is gone", || !is_alive(&pid));
        ct::eventually("the job is back", || state(&mut client, id).as_deref() == Some("ready"));
    }
}

/// If the output of `check` cannot be written, the exit status must not report success.
#[test]
fn a_check_without_a_reader_is_no_success() {
    let server = Server::tcp(&ours(), &[]);
    server.must(&["put", "a", "x"]);
    let (writer, reader) = UnixStream::pair().unwrap();
    drop(reader);
    let mut check = server.command(&["check", "--ready", "1,1"]);
    assert_eq!(check.stdout(OwnedFd::from(writer)).status().unwrap().code(), Some(3));
    for (arguments, status) in [(&["put", "check", "--bogus"], 2), (&["check", "a", "--bogus"], 3)]
    {
        assert_eq!(server.run(arguments).code(), Some(status), "{arguments:?}");
    }
}

/// Once the server is killed, another worker may soon have the job, so the command must end.
#[test]
fn a_lost_server_ends_the_command_at_once() {
    let server = Server::tcp(&ours(), &[]);
    server.must(&["put", "a", "x", "--ttr", "1h"]);
    let (child, pid) = begin_work(&server, &[]);
    drop(server);
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert!(ran.code() == Some(1) && ran.stderr.contains("connection"), "{ran:?}");
    assert!(!is_alive(&pid));
}

/// A command that hangs must be killed after `--timeout`, even if its body fills the pipe and the
/// command reads nothing.
#[test]
fn a_command_is_killed_when_its_time_is_over() {
    let server = Server::tcp(&ours(), &["-z", "1000000"]);
    let mut client = server.client();
    let id = put(&mut client, "a", 5, 0, &vec![b'x'; 900_000]);
    let arguments = ["--count", "1", "--timeout", "5", "--delay", "1h"];
    let (child, pid) = begin_work(&server, &arguments);
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert!(ran.status.success(), "{ran:?}");
    assert!(ran.stderr.contains("killed, because it exceeded --timeout: released"), "{ran:?}");
    assert_eq!(state(&mut client, id).as_deref(), Some("delayed"));
    ct::eventually("the other command is gone", || !is_alive(&pid));
}

/// A command that reads slowly must get the whole of a body that is larger than a pipe.
#[test]
fn a_command_gets_the_whole_body() {
    let server = Server::tcp(&ours(), &["-z", "1000000"]);
    put(&mut server.client(), "a", 5, 0, &vec![b'x'; 900_000]);
    let file = server.file("read");
    let script = format!("sleep 0.2; cat > {file}");
    server.must(&["work", "a", "--count", "1", "--", "sh", "-c", &script]);
    assert_eq!(fs::metadata(file).unwrap().len(), 900_000);
}

/// Three commands that wait for each other end only if they run at the same time.
#[test]
fn several_commands_run_at_a_time() {
    let server = Server::tcp(&ours(), &[]);
    for name in ["1", "2", "3"] {
        server.must(&["put", "a", name]);
    }
    let file = server.file("here");
    let script = format!(
        "touch {file}$(cat); until [ -e {file}1 -a -e {file}2 -a -e {file}3 ]; do sleep 0.01; done"
    );
    let jobs = ["work", "a", "--until-empty", "--jobs", "3", "--timeout", "50"];
    let ran = server.run(&[&jobs[..], &["--", "sh", "-c", &script]].concat());
    assert!(ran.status.success() && ran.stderr.is_empty(), "{ran:?}");
    assert_eq!(server.objects(&["stats"])[0]["current-jobs-ready"], 0);
}

/// The system suspends a background command that reads the terminal. Without `work`'s SIGTERM, the
/// command would stay suspended for ever.
#[test]
fn a_command_that_reads_the_terminal_is_not_stopped_for_ever() {
    if !has_tool("script", "--version") {
        return;
    }
    let server = Server::tcp(&ours(), &[]);
    let id = put(&mut server.client(), "a", 5, 0, b"x");
    let work = format!(
        "{PROGRAM} --server {} work a --count 1 --delay 1h -- sh -c 'read line < /dev/tty'",
        server.address
    );
    let mut script = Command::new("script");
    script.args(["-qec", &work, "/dev/null"]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = script.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("killed, because it tried to use the terminal"), "{text}");
    assert_eq!(state(&mut server.client(), id).as_deref(), Some("delayed"));
}

/// A program that is started by `nohup` must not end when its terminal is closed.
#[test]
fn nohup_is_respected() {
    let server = Server::tcp(&ours(), &[]);
    let mut nohup = Command::new("nohup");
    nohup.arg(PROGRAM).args(["--server", &server.address, "reserve", "a", "--delete"]);
    let nohup = nohup.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = nohup.spawn().unwrap();
    ct::eventually("it waits", || server.objects(&["stats"])[0]["current-waiting"] == 1);
    send_signal(&child, "HUP");
    server.must(&["put", "a", "later"]);
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert!(ran.status.success() && ran.stdout.contains("later"), "{ran:?}");
    // All signal handlers of a page are set before the page listens.
    let mut nohup = Command::new("nohup");
    let web = nohup.arg(PROGRAM).args(["web", "--listen", "127.0.0.1:0"]).stdin(Stdio::null());
    let mut web = web.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(web.stderr.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("http://")));
    let status = std::fs::read_to_string(format!("/proc/{}/status", web.id())).unwrap();
    web.kill().unwrap();
    web.wait().unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).unwrap();
    assert_eq!(u64::from_str_radix(caught, 16).unwrap() & 1, 0, "it catches SIGHUP: {status}");
}

/// If `put` exited with 0 after its output was closed, a script would not notice the missing jobs.
#[test]
fn an_act_whose_output_breaks_has_failed() {
    each_server(&[], |server| {
        let mut put = server.command(&["put", "a", "--lines"]);
        let mut put = put.stdin(Stdio::piped()).spawn().unwrap();
        drop(put.stdout.take());
        // The command may end before it has read all lines.
        let _ = put.stdin.take().unwrap().write_all("line\n".repeat(100_000).as_bytes());
        let ran = Ran::of(put.wait_with_output().unwrap());
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        let count = server.objects(&["stats", "a"])[0]["current-jobs-ready"].as_u64().unwrap();
        assert!(ran.stderr.contains(&format!(" {count} jobs put")), "{count}: {ran:?}");
    });
}

/// After Ctrl-C, the program may wait for a server that hangs, so it must print why it waits.
#[test]
fn a_signal_at_a_server_that_hangs_is_answered_at_once() {
    for (signal, status) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let server = Server::tcp(&ours(), &[]);
        let id = put(&mut server.client(), "a", 5, 0, b"x");
        let proxy = Proxy::new(&server.address, "delete ", 1);
        let arguments = ["--server", &proxy.address, "delete", &id.to_string(), "--yes"];
        let mut child = server.command(&arguments).spawn().unwrap();
        proxy.wait();
        send_signal(&child, signal);
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let notice = lines.find(|line| line.as_ref().unwrap().contains("interrupted:"));
        assert!(notice.unwrap().unwrap().contains("press Ctrl-C again to quit at once"));
        drop(server.daemon);
        proxy.go_on();
        assert_eq!(child.wait().unwrap().code(), Some(status));
    }
    let (sender, heard) = std::sync::mpsc::channel();
    let hung = Played::new(move |_| {
        sender.send(()).unwrap();
        Heard::Nothing
    });
    let server = Server::tcp(&ours(), &[]);
    let mut child = server.command(&["--server", &hung.address, "tubes"]).spawn().unwrap();
    heard.recv_timeout(ct::LONG).unwrap();
    interrupt(&child);
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("waiting for a reply"), "{line}");
    interrupt(&child);
    assert_eq!(child.wait().unwrap().signal(), Some(2));
}

/// Every command must exit with the statuses in the manual.
#[test]
fn every_command_keeps_the_table_of_statuses() {
    each_server(&[], |server| {
        let mut client = server.client();
        four(&mut client, "a");
        for (status, commands) in [
            (0, "tubes|tubes a|ls|list a|list a --state buried|stats|stats a|grep first|big"),
            (0, "clear a --dry-run|move a b --dry-run|delete 1 --dry-run|top --plain --count 1"),
            (1, "list nosuch|tubes nosuch|stats nosuch|clear nosuch --yes|clear nosuch -n"),
            (1, "kick nosuch|move nosuch b --yes|pause nosuch --for 1|resume nosuch|grep nosuch"),
            (1, "job 999|peek 999|delete 999 --yes|kick --id 999|release 999|bury 999|delete 1"),
            (1, "import /nosuch|put a --file /nosuch|list a --server 127.0.0.1:1"),
            (2, "nosuch|list|grep (|clear a --state reserved|clear a --grep (|tubes --sort lost"),
            (2, "move a a|move a b --state reserved|list [|job x|delete x|kick --id x|bury -1"),
            (2, "pause a --for 99999999999|top --interval 0|work a --timeout 0 -- true"),
            (2, "clear a --server x,y|tubes --server tcp://"),
            (0, "check --buried 2,3"),
            (1, "check a|check|check a --ready 1,5"),
            (2, "check a --workers 1|check a --buried 1"),
            (3, "check --ready x|check nosuch|check --server 127.0.0.1:1|check ["),
        ] {
            for command in commands.split('|') {
                let ran = server.run(&command.split(' ').collect::<Vec<_>>());
                assert_eq!(ran.code(), Some(status), "{command}: {ran:?}");
            }
        }
        let ran = server.run(&["check", "a", "--ready", "1"]);
        assert!(ran.stdout.starts_with("BEANSTALKD CRITICAL: "), "{ran:?}");
        assert!(ran.stdout.contains("a: 1 ready; "), "the worst first: {ran:?}");
        let mut command = server.command(&["tubes"]);
        let ran = Ran::of(command.env("BEANSTALKD_SERVER", "").output().unwrap());
        assert!(!ran.stderr.contains("names no host"), "an empty variable is none: {ran:?}");
        let ran = server.run(&["--server", &format!("tcp://{}", server.address), "tubes"]);
        assert!(ran.status.success() || server.address.starts_with("unix:"), "{ran:?}");
    });
}

/// Commands must accept ids on standard input, so that another command can print them.
#[test]
fn ids_are_read_from_standard_input() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let mut client = server.client();
        let ids = [1, 2].map(|pri| put(&mut client, "a", pri, 0, b"x"));
        let input = format!("{}\n{}\n", ids[0], ids[1]);
        for (command, state_after) in
            [("bury", "buried"), ("release", "ready"), ("job", "ready"), ("bury", "buried")]
        {
            let ran = server.run_with(input.as_bytes(), &[command, "-"]);
            assert!(ran.status.success(), "{command}: {ran:?}");
            assert!(ids.iter().all(|id| state(&mut client, *id).as_deref() == Some(state_after)));
        }
    }
}
