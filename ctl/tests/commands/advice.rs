//! After each kind of failure, the test carries out the advice that the message gives. Then no job
//! may be missing, and the message must have named each job that exists twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::played::{Heard, Played};
use crate::harness::proxy::Proxy;
use serde_json::Value;

use crate::harness::{PROGRAM, Ran, Server, drain, ours, programs, send_signal};

/// A server with a binlog in a temporary folder.
struct Durable {
    server: Server,
    flags: Vec<String>,
    _folder: tempfile::TempDir,
}

impl Durable {
    fn start(program: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let flags = ["-f0", "-b", folder.path().to_str().unwrap()].map(str::to_owned).to_vec();
        let server = Server::tcp(program, &flags.iter().map(String::as_str).collect::<Vec<_>>());
        Self { server, flags, _folder: folder }
    }

    /// Runs a command behind a proxy. Kills the server when `word` begins a line for the n-th time,
    /// and starts the server again after the end of the command.
    fn kill_during(&mut self, word: &'static str, count: usize, arguments: &[&str]) -> Ran {
        let proxy = Proxy::new(&self.server.address, word, count);
        let arguments = [&["--server", &proxy.address], arguments].concat();
        let child = self.server.command(&arguments).spawn().unwrap();
        proxy.wait();
        self.server.daemon.signal(9).unwrap();
        proxy.go_on();
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        self.server.restart(&self.flags.iter().map(String::as_str).collect::<Vec<_>>());
        ran
    }
}

/// Returns the number after these words in a message.
fn number_after(text: &str, words: &str) -> usize {
    let rest = text.split_once(words).unwrap_or_else(|| panic!("{words}: {text}")).1;
    let digits = rest.split(|it: char| !it.is_ascii_digit()).next().unwrap();
    digits.parse().unwrap()
}

/// Returns the lines that a message names after these words, such as `lines 3, 5-9.`
fn lines_after(text: &str, words: &str) -> Vec<usize> {
    let Some((_, rest)) = text.split_once(&format!("{words}: lines ")) else { return Vec::new() };
    let ranges = rest.split_once('.').unwrap().0.split(", ");
    let ends = ranges.map(|range| range.split_once('-').unwrap_or((range, range)));
    ends.flat_map(|(first, last)| first.parse().unwrap()..=last.parse().unwrap()).collect()
}

/// Fails unless the tube has each body from `1` to `count` once; a named body may be there twice.
fn check(server: &Server, tube: &str, count: usize, named: &[usize]) {
    let mut found = BTreeMap::new();
    for job in server.objects(&["list", tube, "--bodies"]) {
        let number: usize = job["body"].as_str().unwrap().parse().unwrap();
        *found.entry(number).or_insert(0) += 1;
    }
    for number in 1..=count {
        let found = found.get(&number).copied().unwrap_or(0);
        assert!(found == 1 || found == 2 && named.contains(&number), "{number}: {found} times");
    }
}

/// Lines of JSON with the bodies `1` to `count`.
fn lines(count: usize, state: &str) -> String {
    (1..=count).fold(String::new(), |mut all, number| {
        let _ = writeln!(all, "{{\"tube\":\"a\",\"state\":\"{state}\",\"body\":\"{number}\"}}");
        all
    })
}

/// Lines for `put --lines` with the bodies `1` to `count`.
fn numbers(count: usize) -> String {
    (1..=count).map(|number| format!("{number}\n")).collect::<Vec<_>>().concat()
}

/// Runs a command line in a shell, and returns the output.
fn carry_out(advice: &str) -> String {
    let mut shell = Command::new("sh");
    shell.args(["-c", &advice.replace("beanstalkctl", PROGRAM)]).stderr(Stdio::null());
    let output = shell.env_remove("BEANSTALKD_SERVER").output().unwrap();
    assert!(output.status.success(), "{advice}");
    String::from_utf8(output.stdout).unwrap()
}

/// Carries out the advice of `put --lines`.
fn continue_put(ran: &Ran, file: &str) {
    let advice = ran.stderr.split_once("continue with ").unwrap().1.lines().next().unwrap();
    carry_out(&advice.replace("FILE", file));
}

/// A draining server refuses every put, so an import must continue at the first refused line.
#[test]
fn refused_lines_are_repeated() {
    for program in programs() {
        for (held, is_import) in [(1, true), (2_001, true), (4_500, true), (2_700, false)] {
            let mut server = Server::tcp(&program, &[]);
            let file = server.file("jobs");
            let text = if is_import { lines(5_000, "ready") } else { numbers(5_000) };
            std::fs::write(&file, text).unwrap();
            let proxy = Proxy::new(&server.address, "put ", held);
            let import: &[&str] = if is_import {
                &["import", &file]
            } else {
                &["put", "a", "--lines", "--file", &file]
            };
            let import = [&["--server", &proxy.address], import].concat();
            let child = server.command(&import).spawn().unwrap();
            proxy.wait();
            server.daemon.signal(10).unwrap();
            ct::eventually("it drains", || {
                server.objects(&["stats"])[0]["draining"] != false || program != ours()
            });
            std::thread::sleep(std::time::Duration::from_millis(100));
            proxy.go_on();
            let ran = Ran::of(child.wait_with_output().unwrap());
            assert_eq!(ran.code(), Some(1), "{ran:?}");
            let skip = number_after(&ran.stderr, "Ended after line ");
            let before = drain(&mut server.client(), "a").len();
            assert_eq!(before, skip, "{ran:?}");
            assert!(ran.stderr.contains(&format!("Not put: lines {}-", skip + 1)), "{ran:?}");
            // Only a restart ends the draining of the original.
            server.restart(&[]);
            if is_import {
                server.must(&["import", &file, "--skip", &skip.to_string()]);
            } else {
                continue_put(&ran, &file);
            }
            assert_eq!(drain(&mut server.client(), "a").len(), 5_000 - before);
        }
    }
}

/// Jobs of lines that a killed server did not confirm may be missing, so they must be put again.
#[test]
fn lines_that_were_not_confirmed_are_repeated() {
    for program in programs() {
        let mut durable = Durable::start(&program);
        let file = durable.server.file("jobs");
        std::fs::write(&file, lines(8_000, "ready")).unwrap();
        let ran = durable.kill_during("put ", 5_700, &["import", &file]);
        let skip = number_after(&ran.stderr, "continue with --skip ").to_string();
        durable.server.must(&["import", &file, "--skip", &skip]);
        check(&durable.server, "a", 8_000, &lines_after(&ran.stderr, "so their jobs may exist"));

        std::fs::write(&file, numbers(8_000)).unwrap();
        let numbers = ["--pri", "7", "--delay", "1h", "--ttr", "99"];
        let put = [&["put", "b", "--lines", "--file", &file], &numbers[..]].concat();
        let ran = durable.kill_during("put ", 5_700, &put);
        continue_put(&ran, &file);
        check(&durable.server, "b", 8_000, &lines_after(&ran.stderr, "so their jobs may exist"));
        for job in durable.server.objects(&["list", "b"]) {
            assert!(job["pri"] == 7 && job["state"] == "delayed", "{job}");
        }
        assert!(ran.stderr.contains("--ttr 99"), "{ran:?}");
    }
}

/// A server that is short of memory may refuse a line and accept later lines, which are reported.
#[test]
fn a_line_may_be_refused_and_later_ones_accepted() {
    let played = Played::new(|line| match line {
        "stats" => "---\nmax-job-size: 65535\n".into(),
        "use a" => "USING a".into(),
        "3" | "5" => "OUT_OF_MEMORY".into(),
        line if line.starts_with("put ") => Heard::Nothing,
        body => Heard::Reply(format!("INSERTED {body}")),
    });
    let server = Server::tcp(&ours(), &[]);
    for (input, command) in
        [(lines(7, "ready"), &["import"][..]), (numbers(7), &["put", "a", "--lines"])]
    {
        let arguments = [&["--server", &played.address], command].concat();
        let ran = server.run_with(input.as_bytes(), &arguments);
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        for part in ["Not put: lines 3, 5.", "exist twice", ": lines 4, 6-7.", "after line 2: "] {
            assert!(ran.stderr.contains(part), "{part}: {ran:?}");
        }
    }
}

/// The server will never accept a line that is too large, so `import` must continue after it.
#[test]
fn a_line_that_is_too_large_is_reported_and_left_out() {
    let server = Server::tcp(&ours(), &["-z", "100"]);
    let file = server.file("jobs");
    let long = "x".repeat(100_000);
    std::fs::write(&file, lines(5, "ready").replace("\"3\"", &format!("\"{long}\""))).unwrap();
    let ran = server.run(&["import", &file]);
    assert!(ran.stderr.contains("line 3 is too large for the server: it is longer"), "{ran:?}");
    let skip = number_after(&ran.stderr, "continue with --skip ").to_string();
    server.must(&["import", &file, "--skip", &skip]);
    std::fs::write(&file, numbers(5).replace('3', &long)).unwrap();
    let ran = server.run(&["put", "b", "--lines", "--file", &file]);
    assert!(ran.stderr.contains("line 3 is too large for the server: it is longer"), "{ran:?}");
    continue_put(&ran, &file);
    for tube in ["a", "b"] {
        assert_eq!(drain(&mut server.client(), tube), [b"1", b"2", b"4", b"5"], "{tube}");
    }
}

/// A line that is no job ends an import. After its correction, the import continues at that line.
#[test]
fn a_wrong_line_is_corrected() {
    let server = Server::tcp(&ours(), &[]);
    let file = server.file("jobs");
    let text = lines(5, "ready");
    std::fs::write(
        &file,
        text.replace("\"tube\":\"a\",\"state\":\"ready\",\"body\":\"4\"", "oops"),
    )
    .unwrap();
    let ran = server.run(&["import", &file]);
    let skip = number_after(&ran.stderr, "continue with --skip ").to_string();
    assert_eq!(skip, "3", "{ran:?}");
    std::fs::write(&file, text).unwrap();
    server.must(&["import", &file, "--skip", &skip]);
    check(&server, "a", 5, &[]);
}

#[test]
fn sigquit_ends_an_import_and_a_move_between_two_batches() {
    let server = Server::tcp(&ours(), &[]);
    let file = server.file("jobs");
    std::fs::write(&file, lines(5_000, "ready")).unwrap();
    let quit = |word, arguments: &[&str]| {
        let proxy = Proxy::new(&server.address, word, 300);
        let arguments = [&["--server", &proxy.address], arguments].concat();
        let child = server.command(&arguments).spawn().unwrap();
        proxy.wait();
        send_signal(&child, "QUIT");
        proxy.go_on();
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code(), Some(131), "{ran:?}");
        ran
    };
    let ran = quit("put ", &["import", &file]);
    let skip = number_after(&ran.stderr, "continue with --skip ").to_string();
    server.must(&["import", &file, "--skip", &skip]);
    quit("delete ", &["move", "a", "b", "--yes"]);
    server.must(&["move", "a", "b", "--yes"]);
    check(&server, "b", 5_000, &[]);
}

/// Returns the ids of copies that an ended command left delayed by a year, found by the command in
/// the manual. Fails if there are more than 100.
fn held_ids(server: &Server) -> Vec<String> {
    let held = server.objects(&["list", "*", "--due-after", "300d"]);
    assert!(held.len() <= 100, "{} copies are delayed", held.len());
    held.iter().map(|job| job["id"].to_string()).collect()
}

/// Buries the copies that a command left delayed by a year, as the manual advises.
fn bury_held(server: &Server) {
    let ids = held_ids(server);
    if ids.is_empty() {
        return;
    }
    server.must(&[&["bury"][..], &ids.iter().map(String::as_str).collect::<Vec<_>>()].concat());
    assert!(held_ids(server).is_empty());
}

/// Begins a command, and kills it when `word` begins a line for the n-th time. Until the returned
/// proxy is dropped, the server does not get the rest of the command's lines.
fn kill_at(server: &Server, word: &'static str, count: usize, arguments: &[&str]) -> Proxy {
    let proxy = Proxy::new(&server.address, word, count);
    let arguments = [&["--server", &proxy.address], arguments].concat();
    let mut child = server.command(&arguments).spawn().unwrap();
    proxy.wait();
    child.kill().unwrap();
    child.wait().unwrap();
    proxy
}

/// If the server is killed before `import` has buried its copies, the message names these copies.
#[test]
fn copies_that_a_killed_server_left_delayed_are_buried() {
    for program in programs() {
        // If the original is killed within a put, it may restore the job with another body.
        let words = if program == ours() { &["bury ", "put "][..] } else { &["bury "] };
        for &word in words {
            let mut durable = Durable::start(&program);
            let file = durable.server.file("jobs");
            std::fs::write(&file, lines(1_000, "buried")).unwrap();
            let ran = durable.kill_during(word, 250, &["import", &file]);
            let advice = ran.stderr.split_once("and bury them with ").unwrap().1;
            let advice = advice.split(": ").next().unwrap();
            let named: Vec<_> = advice.split(' ').collect();
            let server = &durable.server;
            let held = held_ids(server);
            if word == "bury " {
                let is_named = |id: &String| named.contains(&id.as_str());
                assert!(!held.is_empty() && held.iter().all(is_named), "{ran:?}");
            }
            if !held.is_empty() {
                carry_out(&format!("{}; true", advice.replace("ID...", &held.join(" "))));
            }
            assert!(held_ids(server).is_empty(), "{ran:?}");
            let skip = number_after(&ran.stderr, "continue with --skip ").to_string();
            server.must(&["import", &file, "--skip", &skip]);
            check(server, "a", 1_000, &lines_after(&ran.stderr, "so their jobs may exist"));
            let stats = &server.objects(&["stats", "a"])[0];
            let count = |state| stats[format!("current-jobs-{state}")].as_u64().unwrap();
            // A copy between its reserve and its bury is ready after the restart of the server.
            assert!(count("ready") <= 1 && count("delayed") == 0, "{stats}");
        }
    }
}

/// A killed import reports nothing. The command in the manual must find the copies that it left.
#[test]
fn copies_that_a_killed_command_left_delayed_are_found() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let file = server.file("jobs");
        std::fs::write(&file, lines(1_000, "buried")).unwrap();
        let _import = kill_at(&server, "reserve-job ", 250, &["import", &file]);
        assert!(!held_ids(&server).is_empty());
        bury_held(&server);
        let stats = &server.objects(&["stats", "a"])[0];
        // A copy between its reserve and its bury is ready once the connection is closed.
        assert!(stats["current-jobs-buried"].as_u64().unwrap() >= 299, "{stats}");
        server.must(&["import", &file, "--skip", "300"]);
        // Unlike an import, a move still has the originals, so the copies can be deleted.
        let _move = kill_at(&server, "reserve-job ", 250, &["move", "a", "b", "--yes"]);
        let held = held_ids(&server);
        assert!(!held.is_empty());
        let delete = ["delete", "--yes"].into_iter().chain(held.iter().map(String::as_str));
        server.must(&delete.collect::<Vec<_>>());
        let bodies = |tube: &str| -> BTreeSet<String> {
            let ran = server.run(&["list", tube, "--bodies", "--json"]);
            let jobs = ran.stdout.lines().map(|it| serde_json::from_str::<Value>(it).unwrap());
            jobs.map(|job| job["body"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(bodies("a").union(&bodies("b")).count(), 1_000);
    }
}

/// Carries out the advice of a move that did not end normally.
fn follow_move(ran: &Ran) {
    let (_, advice) = ran.stderr.split_once("may be in both places; if ").unwrap();
    let (commands, pairs) = advice.split_once(" delete: ").unwrap();
    let (from, rest) = commands.split_once(" job finds a job, and ").unwrap();
    let (to, other) = rest.split_once(" job its copy, delete the copy with ").unwrap();
    assert_eq!(to, other);
    for pair in pairs.lines().next().unwrap().split(", ") {
        let (id, copy) = pair.strip_suffix(')').unwrap().split_once(" (copy ").unwrap();
        if copy != "?" {
            let is_there = |command, id| format!("{command} job {id} > /dev/null");
            let both = [is_there(from, id), is_there(to, copy)].join(" && ");
            carry_out(&format!("if {both}; then {to} delete {copy} --yes; fi"));
        }
    }
    if let Some((_, advice)) = ran.stderr.split_once("365 days instead: list them with ") {
        let list = advice.split_once(&format!(", and delete them with {to} delete")).unwrap().0;
        for line in carry_out(&format!("{list} --json || true")).lines() {
            let job: Value = serde_json::from_str(line).unwrap();
            carry_out(&format!("{to} delete {} --yes", job["id"]));
        }
    }
}

/// If a job is in both tubes after a failed move, the advice must delete the copy, and only that.
#[test]
fn jobs_in_both_places_lose_their_copies() {
    for program in programs() {
        for (word, count, kind) in [
            ("delete ", 300, "ready"),
            ("put ", 300, "ready"),
            ("bury ", 150, "buried"),
            ("put ", 150, "buried"),
        ] {
            let mut durable = Durable::start(&program);
            let text = lines(1_000, kind);
            assert!(durable.server.run_with(text.as_bytes(), &["import"]).status.success());
            let ran = durable.kill_during(word, count, &["move", "a", "b", "--yes"]);
            assert!(!ran.stderr.contains("bury them"), "{ran:?}");
            follow_move(&ran);
            let server = &durable.server;
            assert!(held_ids(server).is_empty(), "{ran:?}");
            server.must(&["move", "a", "b", "--yes"]);
            let unknown =
                if kind == "ready" && ran.stderr.contains("(copy ?)") { 1_000 } else { 0 };
            check(server, "b", 1_000, &(1..=unknown).collect::<Vec<_>>());
        }
    }
}

/// A copy's id on the target server may be another job's id on this server, which must stay.
#[test]
fn the_advice_of_a_move_to_another_server_changes_nothing_here() {
    for program in programs() {
        for word in ["bury ", "put "] {
            let from = Server::tcp(&program, &[]);
            assert!(from.run_with(lines(300, "buried").as_bytes(), &["import"]).status.success());
            let mut to = Durable::start(&program);
            let proxy = Proxy::new(&to.server.address, word, 150);
            let arguments = ["move", "a", "b", "--yes", "--to", &proxy.address];
            let child = from.command(&arguments).spawn().unwrap();
            proxy.wait();
            to.server.daemon.signal(9).unwrap();
            proxy.go_on();
            let ran = Ran::of(child.wait_with_output().unwrap());
            to.server.restart(&to.flags.iter().map(String::as_str).collect::<Vec<_>>());
            let before = from.objects(&["list", "a"]).len();
            follow_move(&ran);
            assert_eq!(from.objects(&["list", "a"]).len(), before, "{ran:?}");
            from.must(&["move", "a", "b", "--yes", "--to", &to.server.address]);
            check(&to.server, "b", 300, &[]);
        }
    }
}

/// If the target refuses to bury a copy, the move must delete the copy and keep the original.
#[test]
fn a_copy_that_cannot_be_buried_is_deleted() {
    let played = Played::new(|line| match line.split(' ').next().unwrap() {
        "stats" => "---\nmax-job-size: 65535\npid: 0\n".into(),
        "use" | "list-tube-used" => "USING b".into(),
        "put" => Heard::Nothing,
        "reserve-job" => "RESERVED 9 1\r\nx".into(),
        "bury" => "INTERNAL_ERROR".into(),
        "delete" => "DELETED".into(),
        "x" => "INSERTED 9".into(),
        _ => "UNKNOWN_COMMAND".into(),
    });
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let line = b"{\"tube\":\"a\",\"state\":\"buried\",\"body\":\"x\"}\n";
        assert!(server.run_with(line, &["import"]).status.success());
        let ran = server.run(&["move", "a", "b", "--yes", "--to", &played.address]);
        assert!(ran.code() == Some(1) && ran.stderr.contains("0 jobs moved"), "{ran:?}");
        assert!(!ran.stderr.contains("delayed by"), "{ran:?}");
        assert_eq!(server.objects(&["list", "a", "--state", "buried"]).len(), 1, "{ran:?}");
    }
}

/// The message must count the accepted jobs of all batches, and the jobs that may exist.
#[test]
fn a_put_that_is_cut_reports_each_body() {
    let server = Server::tcp(&ours(), &[]);
    for (rate, report) in [
        (&[][..], "accepted 1 of 3 jobs and did not confirm 2, which may exist"),
        (&["--rate", "10"], "accepted 1 of 3 jobs and did not confirm 1, which may exist"),
    ] {
        let played = Played::new(|line| match line {
            "stats" => "---\nmax-job-size: 65535\n".into(),
            "use a" => "USING a".into(),
            "1" => "INSERTED 1".into(),
            line if line.starts_with("put ") => Heard::Nothing,
            _ => Heard::End,
        });
        let put = [&["--server", &played.address, "put", "a", "1", "2", "3"], rate].concat();
        let ran = server.run(&put);
        assert!(ran.code() == Some(1) && ran.stderr.contains(report), "{ran:?}");
    }
}

/// If a server is killed during `clear --save`, the file must have all jobs of the last batch.
#[test]
fn a_file_of_a_clear_that_was_not_confirmed_is_imported() {
    for program in programs() {
        let mut durable = Durable::start(&program);
        let text = lines(2_500, "ready");
        assert!(durable.server.run_with(text.as_bytes(), &["import"]).status.success());
        let file = durable.server.file("saved");
        let clear = ["clear", "a", "--yes", "--save", &file];
        let ran = durable.kill_during("delete ", 1_300, &clear);
        assert!(ran.stderr.contains(&format!("all of them are in {file}")), "{ran:?}");
        durable.server.must(&["import", &file]);
        check(&durable.server, "a", 2_500, &(1_001..=2_000).collect::<Vec<_>>());
    }
}

/// A kick that ends early must report how many jobs it kicked, and a second kick does the rest.
#[test]
fn a_kick_that_was_not_confirmed_is_repeated() {
    for program in programs() {
        let mut durable = Durable::start(&program);
        let text = lines(300, "buried");
        assert!(durable.server.run_with(text.as_bytes(), &["import"]).status.success());
        let ran = durable.kill_during("kick-job ", 150, &["kick", "a", "--all"]);
        let server = &durable.server;
        let kicked = number_after(&ran.stderr.replace(&server.address, ""), ": ");
        let ready = server.objects(&["stats", "a"])[0]["current-jobs-ready"].as_u64().unwrap();
        assert!(kicked as u64 <= ready, "{ran:?}");
        server.must(&["kick", "a", "--all"]);
        assert_eq!(server.objects(&["list", "a", "--state", "ready"]).len(), 300);
    }
}
