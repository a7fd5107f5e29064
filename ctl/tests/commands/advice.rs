//! The advice of each message is carried out after the failure that prints it: nothing is lost, and
//! a job that exists twice was named.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::played::{Heard, Played};
use crate::harness::proxy::Proxy;
use crate::harness::{PROGRAM, Ran, Server, drain, ours, programs, send_signal};

/// A server with a binlog in a folder of its own.
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

    /// Runs a command that is held when `word` begins a line for the n-th time; kills the server
    /// there, and starts it again after the end of the command.
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

/// Fails unless the tube has the bodies `1` to `count`, each once, or twice if it was named.
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

/// Carries out the advice of `put --lines`, which is a line for a shell.
fn continue_put(server: &Server, ran: &Ran, file: &str) {
    let advice = ran.stderr.split_once("continue with ").unwrap().1.lines().next().unwrap();
    let advice = advice.replace("FILE", file).replace("beanstalkctl", PROGRAM);
    let mut shell = Command::new("sh");
    shell.args(["-c", &advice]).env("BEANSTALKD_SERVER", &server.address).stdout(Stdio::null());
    assert!(shell.status().unwrap().success(), "{advice}");
}

/// A server that drains refuses every put: no line is done.
#[test]
fn refused_lines_are_repeated() {
    for program in programs() {
        for held in [1, 2_001, 4_500] {
            let mut server = Server::tcp(&program, &[]);
            let file = server.file("jobs");
            std::fs::write(&file, lines(5_000, "ready")).unwrap();
            let proxy = Proxy::new(&server.address, "put ", held);
            let import = ["--server", &proxy.address, "import", &file];
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
            let skip = number_after(&ran.stderr, "continue with --skip ");
            let before = drain(&mut server.client(), "a").len();
            assert_eq!(before, skip, "{ran:?}");
            assert!(ran.stderr.contains(&format!("Not put: lines {}-", skip + 1)), "{ran:?}");
            // Only a restart ends the draining of the original.
            server.restart(&[]);
            server.must(&["import", &file, "--skip", &skip.to_string()]);
            assert_eq!(drain(&mut server.client(), "a").len(), 5_000 - before);
        }
    }
}

/// Lines that a killed server did not confirm may be missing.
#[test]
fn lines_that_were_not_confirmed_are_repeated() {
    for program in programs() {
        let mut durable = Durable::start(&program);
        let file = durable.server.file("jobs");
        std::fs::write(&file, lines(8_000, "ready")).unwrap();
        let ran = durable.kill_during("put ", 5_700, &["import", &file]);
        let skip = number_after(&ran.stderr, "continue with --skip ").to_string();
        durable.server.must(&["import", &file, "--skip", &skip]);
        check(&durable.server, "a", 8_000, &lines_after(&ran.stderr, "so the jobs may exist"));

        let numbers = (1..=8_000).map(|number| format!("{number}\n")).collect::<String>();
        std::fs::write(&file, numbers).unwrap();
        let put = ["put", "b", "--lines", "--file", &file];
        let ran = durable.kill_during("put ", 5_700, &put);
        continue_put(&durable.server, &ran, &file);
        check(&durable.server, "b", 8_000, &lines_after(&ran.stderr, "so the jobs may exist"));
    }
}

/// A server that is short of memory refuses one put and accepts the next.
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
    let numbers = (1..=7).map(|number| format!("{number}\n")).collect::<String>();
    for (input, command) in
        [(lines(7, "ready"), &["import"][..]), (numbers, &["put", "a", "--lines"])]
    {
        let arguments = [&["--server", &played.address], command].concat();
        let ran = server.run_with(input.as_bytes(), &arguments);
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        for part in ["Not put: lines 3, 5.", "exist twice", ": lines 4, 6-7.", "after line 2: "] {
            assert!(ran.stderr.contains(part), "{part}: {ran:?}");
        }
    }
}

/// A line that is no job ends an import, and can be corrected.
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
