//! Wrong input: servers that send random replies, truncated or invalid files, endless lines.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use crate::harness::page::Page;
use crate::harness::played::{Heard, Played};
use crate::harness::proxy::Proxy;
use crate::harness::{
    PROGRAM, Ran, Server, bury, each_server, four, interrupt, ours, programs, put, state,
};
use ct::Prng;

/// Commands, separated by `|`, that together receive every kind of reply.
const COMMANDS: &str = "tubes|tubes --json|stats|stats a|list a|list a --json|job 1|grep x|big|\
    report|top --plain --count 1|top a --plain --count 1|metrics|check|clear a --yes|\
    clear a --dry-run|delete 1 --yes|kick a|kick a --all|kick --id 1|move a b --yes|\
    export|put c x|release 1|bury 1|pause a --for 1|resume a|drain status|reserve a --wait 0";

/// Runs all commands on a server. None may panic, be killed, or print control sequences.
fn try_all(server: &Played) {
    for command in COMMANDS.split('|') {
        let mut program = Command::new(PROGRAM);
        program.args(["--server", &server.address]).args(command.split_whitespace());
        let ran = Ran::of(program.stdin(Stdio::null()).output().unwrap());
        assert!(matches!(ran.code(), Some(0..=3)), "{command}: {ran:?}");
        for text in [&ran.stdout, &ran.stderr] {
            let is_odd = |it: char| it.is_control() && it != '\n' || it == '\u{202e}';
            assert!(!text.contains(is_odd), "{command}: {text:?}");
        }
        assert!(!ran.stderr.contains("panicked"), "{command}: {ran:?}");
    }
}

/// Returns the reply of a server with one tube and one job. All numbers in the reply are `number`,
/// and all names are `name`.
fn replies(line: &str, number: &str, name: &str) -> String {
    let words: Vec<_> = line.split(' ').collect();
    let counts = |keys: &str| {
        keys.split(' ').map(|key| format!("{key}: {number}\n")).collect::<Vec<_>>().concat()
    };
    let states = "current-jobs-ready current-jobs-reserved current-jobs-delayed \
                  current-jobs-buried current-jobs-urgent total-jobs current-using \
                  current-watching current-waiting pause pause-time-left cmd-delete";
    match words[0] {
        "capabilities" => "---\nextensions:\n- list-jobs\n- delete-tube\n- metrics\n".into(),
        "list-tubes" => "---\n- a\n".into(),
        "stats" => format!(
            "---\n{}version: {name}\n{name}: {name}\nid: {name}\nhostname: {name}\n",
            counts(&format!("{states} cmd-put uptime max-job-size pid binlog-current-index"))
        ),
        "stats-tube" => format!("---\nname: {name}\n{}{name}: {name}\n", counts(states)),
        "stats-job" if words[1] != "1" => "NOT_FOUND".into(),
        "stats-job" => format!(
            "---\nid: 1\ntube: a\nstate: ready\n{}",
            counts("pri age ttr time-left reserves timeouts releases buries kicks delay file")
        ),
        "list-jobs" => format!("---\n- id: 1\n{}", counts("  pri   age   size   time-left")),
        "metrics" => format!("---\n{}wait-seconds-le-{number}: {number}\n", counts("job-bytes")),
        "peek" | "peek-ready" | "peek-buried" | "peek-delayed" => {
            format!("FOUND 1 {}\r\n{name}", name.len())
        }
        "delete" | "delete-tube" => format!("DELETED {number}"),
        "kick-job" | "kick" => format!("KICKED {number}"),
        "put" => format!("INSERTED {number}"),
        "use" => "USING a".into(),
        "watch" | "ignore" => "WATCHING 1".into(),
        "reserve-job" => format!("RESERVED 1 {}\r\n{name}", name.len()),
        "reserve-with-timeout" => "TIMED_OUT".into(),
        "release" => "RELEASED".into(),
        "bury" => "BURIED".into(),
        "pause-tube" => "PAUSED".into(),
        _ => format!("UNKNOWN_COMMAND {name}"),
    }
}

/// A server may send any number and any character. No number may end the program, which may serve
/// other servers, and no character may reach the terminal unescaped.
#[test]
fn no_number_and_no_name_of_a_server_does_harm() {
    let name = "\u{1b}[2J\u{7f}\u{9b}31m\u{202e}x\0";
    for number in ["18446744073709551615", "9223372036854775808", "-1", "1e99", ""] {
        let server = Played::new(move |line| match line {
            // `put` expects no reply to its body.
            "x" => Heard::Nothing,
            // The server reports so many jobs that the sweep would not end.
            "stats-job 15000" => Heard::End,
            _ => Heard::Reply(replies(line, number, name)),
        });
        try_all(&server);
        let well = Server::tcp(&ours(), &[]);
        let page = Page::start(&format!("{},{}", server.address, well.address), &[]);
        for path in ["look?rows=9", "look?tube=a", "jobs?tube=a&limit=9", "job?id=1"] {
            page.get(&format!("/api/{path}"));
            assert_eq!(page.get("/api/look?server=1&rows=9").status, 200, "after {path}");
        }
    }
}

/// Replies may have random errors. `REPLIES=n` plays n servers, each with another random seed.
#[test]
fn no_reply_of_a_server_does_harm() {
    let count = std::env::var("REPLIES").map_or(8, |text| text.parse().unwrap());
    for seed in 0..count {
        let server = Played::new(move |line| {
            let mut random = Prng::new((seed << 16) ^ line.bytes().map(u64::from).sum::<u64>());
            let whole = replies(line, "3", "name");
            if line == "x" || line == "stats-job 15000" {
                return if line == "x" { Heard::Nothing } else { Heard::End };
            }
            if random.below(3) > 0 {
                return Heard::Reply(whole);
            }
            let mut reply = match whole.strip_prefix("---") {
                Some(_) => format!("OK {}\r\n{whole}\r\n", whole.len()).into_bytes(),
                None => format!("{whole}\r\n").into_bytes(),
            };
            for _ in 0..=random.below(3) {
                let at = usize::try_from(random.below(reply.len() as u64 + 1)).unwrap();
                match random.below(4) {
                    0 => reply.truncate(at),
                    1 => reply.insert(at, b"0123456789 \r\n:-\x1b-"[at % 17]),
                    2 => reply.extend_from_within(at..),
                    _ => reply.splice(at..at, *b"18446744073709551615").for_each(drop),
                }
            }
            // Close the connection, so that a client that expects more bytes does not wait.
            Heard::Last(String::from_utf8_lossy(&reply).into_owned())
        });
        try_all(&server);
    }
}

#[test]
fn a_line_without_end_is_refused() {
    each_server(&["-z", "1000"], |server| {
        let ran = server.run(&["import", "/dev/zero"]);
        assert!(ran.code() == Some(1) && ran.stderr.contains("line 1 is too large"), "{ran:?}");
        let ran = server.run(&["put", "a", "--lines", "--file", "/dev/zero"]);
        assert!(ran.code() == Some(1) && ran.stderr.contains("line 1 is too large"), "{ran:?}");
    });
}

/// If `import` ignored an unknown key, a job might be put without its delay or priority.
#[test]
fn a_key_that_import_does_not_know_is_refused_with_its_line() {
    let server = Server::tcp(&ours(), &[]);
    let good = r#"{"tube":"a","body":"x","delay":900,"pri":7,"ttr":5}"#;
    for bad in [r#"{"body":"x","priority":1}"#, r#"{"body":"x","Delay":1}"#] {
        let ran = server.run_with(format!("{good}\n{bad}\n").as_bytes(), &["import"]);
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        assert!(ran.stderr.contains("line 2: unknown field"), "{ran:?}");
    }
    let jobs = server.objects(&["list", "a"]);
    assert_eq!(jobs.len(), 2);
    assert!(jobs.iter().all(|job| job["state"] == "delayed" && job["pri"] == 7), "{jobs:?}");
}

/// Without a check of the count, a truncated backup would look like a whole backup.
#[test]
fn a_file_that_was_cut_short_is_noticed() {
    each_server(&[], |server| {
        let mut client = server.client();
        four(&mut client, "a");
        let file = server.file("jobs");
        server.must(&["export", &file]);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(text.lines().last(), Some("{\"count\":4}"));
        let lines: Vec<_> = text.split_inclusive('\n').collect();
        let import = |lines: &[&str]| {
            server.run_with(lines.concat().as_bytes(), &["import", "--tube", "b", "--dry-run"])
        };
        assert!(import(&lines).status.success());
        assert!(import(&[&lines[..], &lines[..]].concat()).status.success(), "one after another");
        let ran = import(&lines[..4]);
        assert!(ran.code() == Some(1) && ran.stderr.contains("may be truncated"), "{ran:?}");
        let ran = import(&[&lines[..2], &lines[3..]].concat());
        assert!(ran.code() == Some(1) && ran.stderr.contains("but 3 were read"), "{ran:?}");
        assert!(import(&["{\"body\":\"by hand\"}\n"]).status.success(), "no export, no count");
    });
}

/// On a full disk, `export` must report exactly the number of whole lines in the file.
#[test]
fn an_export_to_a_full_disk_counts_what_it_has() {
    let server = Server::tcp(&ours(), &[]);
    let lines = format!("{}\n", "x".repeat(100)).repeat(5_000);
    server.run_with(lines.as_bytes(), &["put", "a", "--lines"]);
    let file = server.file("jobs");
    let script = format!("trap '' XFSZ; ulimit -f 600; exec {PROGRAM} export {file}");
    let mut shell = Command::new("sh");
    let ran = Ran::of(
        shell.args(["-c", &script]).env("BEANSTALKD_SERVER", &server.address).output().unwrap(),
    );
    assert_eq!(ran.code(), Some(1), "{ran:?}");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.ends_with("}\n") && text.lines().count() > 100, "whole lines only");
    let told = format!("{} jobs exported, but not all", text.lines().count());
    assert!(ran.stderr.contains(&told), "{ran:?}");
}

/// Each line of a slow pipe must be put at once, before the next line arrives.
#[test]
fn lines_of_a_slow_pipe_are_put_at_once() {
    for command in [&["import"][..], &["put", "default", "--lines"]] {
        let server = Server::tcp(&ours(), &[]);
        let mut child = server.command(command).stdin(Stdio::piped()).spawn().unwrap();
        // The pipe stays open, because the end of the input would race with the signal.
        let mut stdin = child.stdin.take().unwrap();
        for count in 1..=2 {
            stdin.write_all(b"{\"body\":\"x\"}\n").unwrap();
            ct::eventually("it is put", || server.objects(&["list", "*"]).len() == count);
        }
        interrupt(&child);
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code(), Some(130), "{ran:?}");
        assert!(ran.stderr.contains("2 jobs"), "{ran:?}");
    }
}

/// A job that is too large for the other server must stay, and all other jobs must be moved.
#[test]
fn a_job_that_is_too_large_stays_and_is_named() {
    for program in programs() {
        let (from, to) = (Server::tcp(&program, &[]), Server::tcp(&ours(), &["-z", "10"]));
        let mut client = from.client();
        let sizes = [5, 50, 6, 60].map(|size| put(&mut client, "a", 5, 0, &vec![b'x'; size]));
        bury(&mut client, sizes[3]);
        let file = from.file("saved");
        let target = to.address.as_str();
        let ran = from.run(&["move", "a", "a", "--to", target, "--yes", "--save", &file]);
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        assert!(ran.stderr.contains("2 jobs moved"), "{ran:?}");
        let named = format!("too large for {}: {}, {}\n", target, sizes[1], sizes[3]);
        assert!(ran.stderr.contains(&named), "{ran:?}");
        let states = sizes.map(|id| state(&mut client, id));
        assert_eq!(states, [None, Some("ready".into()), None, Some("buried".into())]);
        assert_eq!(fs::read_to_string(file).unwrap().lines().count(), 3, "two jobs and a count");
        assert_eq!(to.objects(&["list", "a"]).len(), 2);
        let lines = from.must(&["export"]);
        let ran = to.run_with(format!("{lines}{{\"body\":\"y\"}}\n").as_bytes(), &["import"]);
        assert!(
            ran.code() == Some(1) && ran.stderr.contains("Too large for the server: lines 1-2.")
        );
        assert_eq!(to.objects(&["list", "default"]).len(), 1, "the others are put");
    }
}

/// While `reserve` holds a job and waits for the next job, it must not flood the server with
/// commands, and must not print the first job again.
#[test]
fn a_job_is_kept_while_the_next_one_is_waited_for() {
    each_server(&[], |server| {
        server.must(&["put", "a", "x", "--ttr", "2"]);
        let text = server.must(&["reserve", "a", "--count", "2", "--wait", "5"]);
        assert_eq!(text.lines().count(), 1, "{text}");
        let stats = &server.objects(&["stats"])[0];
        assert!(stats["cmd-reserve-with-timeout"].as_u64().unwrap() < 100, "{stats}");
        assert!(stats["cmd-touch"].as_u64().unwrap() > 0, "{stats}");
        assert_eq!(server.objects(&["stats", "a"])[0]["current-jobs-ready"], 1);
    });
}

/// The sweep of a tube must end, even if other clients put and delete jobs in other tubes.
#[test]
fn a_list_ends_with_the_jobs_of_its_tube() {
    // Only a server without `list-jobs` gets a sweep over ids.
    for program in programs().into_iter().filter(|program| *program != ours()) {
        let server = Server::tcp(&program, &[]);
        let mut client = server.client();
        for number in 0..10 {
            put(&mut client, "kept", number, 0, b"x");
        }
        let lines = "x\n".repeat(30_000);
        server.run_with(lines.as_bytes(), &["put", "busy", "--lines"]);
        let asked = || server.objects(&["stats"])[0]["cmd-stats-job"].as_u64().unwrap();
        let before = asked();
        let proxy = Proxy::new(&server.address, "stats-job ", 5);
        let mut list = server.command(&["--server", &proxy.address, "list", "kept"]);
        let list = list.spawn().unwrap();
        proxy.wait();
        for _ in 0..20 {
            let id = put(&mut client, "busy", 5, 0, b"x");
            assert_eq!(client.command(&format!("delete {id}")).unwrap(), "DELETED");
        }
        proxy.go_on();
        let ran = Ran::of(list.wait_with_output().unwrap());
        assert_eq!(ran.stdout.lines().count(), 11, "{ran:?}");
        assert_eq!(asked() - before, 10_000, "the first batch has them all");
        let before = asked();
        let ran = server.run(&["clear", "*", "--dry-run"]);
        assert!(ran.stderr.contains("30010 ready, in 2 tubes"), "{ran:?}");
        assert_eq!(asked(), before, "the server counts them");
    }
}
