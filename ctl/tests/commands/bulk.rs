//! `clear`, `delete` and `move`, also interrupted halfway, on this daemon and on the original.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Child, Stdio};

use crate::harness;
use crate::harness::proxy::Proxy;
use crate::harness::{
    Ran, Server, bury, drain, each_server, four, interrupt, programs, put, state,
};

/// The number of jobs for the interrupted commands.
const JOBS: usize = 2_500;

/// Puts jobs into a tube, delays every third and buries every fifth. Returns the bodies.
fn fill(server: &Server, tube: &str) -> BTreeSet<Vec<u8>> {
    let mut client = server.client();
    let body = |number: usize| format!("job {number}").into_bytes();
    for number in 0..JOBS {
        let delay = if number % 3 == 1 { 1000 } else { 0 };
        let id = put(&mut client, tube, 5, delay, &body(number));
        if number % 5 == 4 {
            bury(&mut client, id);
        }
    }
    (0..JOBS).map(body).collect()
}

/// The bodies in a file of `--save`.
fn saved(file: &str) -> BTreeSet<Vec<u8>> {
    let text = std::fs::read_to_string(file).unwrap();
    let object = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    let jobs = text.lines().map(object).filter(|line| line.get("count").is_none());
    jobs.map(|job| job["body"].as_str().unwrap().as_bytes().to_vec()).collect()
}

#[test]
fn a_tube_is_cleared_and_filled_again() {
    each_server(&[], |server| {
        let mut client = server.client();
        let jobs = four(&mut client, "a");
        let other = put(&mut client, "ab", 5, 0, b"x");
        let ran = server.run(&["clear", "a"]);
        assert_eq!(ran.code(), Some(1));
        assert!(ran.stderr.contains("--yes"), "{ran:?}");
        let ran = server.run(&["clear", "a", "--dry-run"]);
        assert!(ran.stderr.contains("Would delete 3 jobs"), "{ran:?}");
        let ran = server.run(&["clear", "a", "--older-than", "1h", "--yes"]);
        assert!(ran.stderr.contains("No jobs to delete"), "{ran:?}");
        assert!(jobs.iter().all(|id| state(&mut client, *id).is_some()));

        let file = server.file("saved");
        let ran = server.run(&["clear", "a", "--yes", "--save", &file]);
        assert_eq!(ran.code(), Some(0), "{ran:?}");
        assert!(ran.stderr.contains("3 jobs deleted"), "{ran:?}");
        let left = jobs.map(|id| state(&mut client, id).is_some());
        assert_eq!(left, [false, false, false, true]);
        server.must(&["import", &file]);
        let objects = server.objects(&["list", "a", "--bodies"]);
        let mut states: Vec<_> = objects.iter().map(|job| job["state"].as_str().unwrap()).collect();
        states.sort_unstable();
        assert_eq!(states, ["buried", "delayed", "ready", "reserved"]);

        assert!(server.run(&["clear", "a", "--yes", "--state", "buried"]).status.success());
        assert_eq!(server.objects(&["list", "a"]).len(), 3);
        assert!(server.run(&["clear", "a*", "--yes"]).status.success());
        assert_eq!(state(&mut client, other), None);
        assert_eq!(server.objects(&["list", "*"]).len(), 1);
        let ran = server.run(&["clear", "a", "--yes", "--state", "reserved"]);
        assert_eq!(ran.code(), Some(2), "{ran:?}");
    });
}

/// Begins a command that deletes 2,500 jobs with `--save`, and holds it at the 1,300th delete.
fn begin_removal(server: &Server, command: &[&str], input: &str) -> (Proxy, String, Child) {
    let proxy = Proxy::new(&server.address, "delete ", 1_300);
    let file = server.file("saved");
    let arguments =
        [&["--server", &proxy.address], command, &["--yes", "--save", &file][..]].concat();
    let mut child = server.command(&arguments).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    proxy.wait();
    (proxy, file, child)
}

/// Interrupts a removal. The current batch must be completed, and each job be in tube or file.
fn interrupt_and_check(
    server: &Server,
    (proxy, file, child): (Proxy, String, Child),
    all: &BTreeSet<Vec<u8>>,
) {
    interrupt(&child);
    proxy.go_on();
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert_eq!(ran.code(), Some(130), "{ran:?}");
    assert!(ran.stderr.contains("2000 jobs deleted"), "{ran:?}");
    let left: BTreeSet<_> = drain(&mut server.client(), "a").into_iter().collect();
    let saved = saved(&file);
    assert_eq!((left.len(), saved.len()), (500, 2000));
    assert_eq!(&left.union(&saved).cloned().collect::<BTreeSet<_>>(), all);
}

#[test]
fn a_cleared_job_is_in_the_file_whenever_it_is_interrupted() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let all = fill(&server, "a");
        let begun = begin_removal(&server, &["clear", "a"], "");
        interrupt_and_check(&server, begun, &all);
    }
}

#[test]
fn a_cleared_job_is_in_the_file_if_the_server_is_killed() {
    for program in programs() {
        let folder = tempfile::tempdir().unwrap();
        let flags = ["-f0", "-b", folder.path().to_str().unwrap()];
        let server = Server::tcp(&program, &flags);
        let all = fill(&server, "a");
        let (proxy, file, child) = begin_removal(&server, &["clear", "a"], "");
        let saved_until = saved(&file);
        drop(server.daemon);
        proxy.go_on();
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        assert!(ran.stderr.contains("the server did not confirm others"), "{ran:?}");
        let again = Server::tcp(&program, &flags);
        let left: BTreeSet<_> = drain(&mut again.client(), "a").into_iter().collect();
        assert!(left.len() < JOBS && left.len() >= JOBS - 1300, "{}", left.len());
        assert_eq!(left.union(&saved_until).cloned().collect::<BTreeSet<_>>(), all);
    }
}

/// Returns the ids of a tube's jobs, as standard input for `delete`.
fn ids_of(server: &Server, tube: &str) -> String {
    let ids = server.objects(&["list", tube]).into_iter().map(|job| job["id"].to_string());
    ids.collect::<Vec<_>>().join("\n")
}

#[test]
fn an_interrupted_delete_tells_what_is_gone_and_has_it_in_the_file() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let all = fill(&server, "a");
        let begun = begin_removal(&server, &["delete", "-"], &ids_of(&server, "a"));
        interrupt_and_check(&server, begun, &all);
    }
}

#[test]
fn a_deleted_job_is_in_the_file_if_the_server_is_killed() {
    for program in programs() {
        let folder = tempfile::tempdir().unwrap();
        let flags = ["-f0", "-b", folder.path().to_str().unwrap()];
        let server = Server::tcp(&program, &flags);
        let all = fill(&server, "a");
        let (proxy, file, child) = begin_removal(&server, &["delete", "-"], &ids_of(&server, "a"));
        drop(server.daemon);
        proxy.go_on();
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        let parts = ["jobs deleted", "the server did not confirm others", "all of them are in"];
        assert!(parts.iter().all(|part| ran.stderr.contains(part)), "{ran:?}");
        let again = Server::tcp(&program, &flags);
        let left: BTreeSet<_> = drain(&mut again.client(), "a").into_iter().collect();
        assert!(left.len() < JOBS && left.len() >= JOBS - 1300, "{}", left.len());
        assert_eq!(left.union(&saved(&file)).cloned().collect::<BTreeSet<_>>(), all);
    }
}

/// If a worker reserves a job after it was saved, the message must name that job.
#[test]
fn a_job_that_is_saved_and_taken_by_a_worker_is_told() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let mut client = server.client();
        let [_, _, buried, _] = four(&mut client, "a");
        let proxy = Proxy::new(&server.address, "delete ", 1);
        let file = server.file("saved");
        let arguments = ["--server", &proxy.address, "clear", "a", "--yes", "--save", &file];
        let child = server.command(&arguments).spawn().unwrap();
        proxy.wait();
        harness::reserve(&mut client, buried);
        proxy.go_on();
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        assert!(ran.stderr.contains(&format!("but not deleted: {buried}\n")), "{ran:?}");
    }
}

/// If the server is killed after a batch was saved and before its deletes, the message must report
/// the batch. Only this daemon is tested: on the original, the plan sends `stats-job`, too.
#[test]
fn a_batch_that_is_saved_and_not_yet_deleted_is_reported() {
    let server = Server::tcp(&harness::ours(), &[]);
    assert!(
        server.run_with("job\n".repeat(100).as_bytes(), &["put", "a", "--lines"]).status.success()
    );
    let proxy = Proxy::new(&server.address, "stats-job ", 150);
    let file = server.file("saved");
    let arguments = ["--server", &proxy.address, "clear", "a", "--yes", "--save", &file];
    let child = server.command(&arguments).spawn().unwrap();
    proxy.wait();
    server.daemon.signal(9).unwrap();
    proxy.go_on();
    let ran = Ran::of(child.wait_with_output().unwrap());
    let report = format!("100 jobs saved to {file} but not deleted");
    assert!(ran.code() == Some(1) && ran.stderr.contains(&report), "{ran:?}");
    assert_eq!(saved(&file).len(), 1, "all bodies are equal");
}

/// With `--state buried`, a job that another client kicks before its batch must not be deleted.
#[test]
fn a_job_that_is_no_longer_meant_stays() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let mut client = server.client();
        let [_, _, buried, _] = four(&mut client, "a");
        // The job is read once more before its delete. On the original, the plan requests all four
        // ids first.
        let count = if program == harness::ours() { 1 } else { 5 };
        let proxy = Proxy::new(&server.address, "stats-job ", count);
        let file = server.file("saved");
        let server_is = ["--server", &proxy.address];
        let arguments = ["clear", "a", "--state", "buried", "--yes", "--save", &file];
        let child = server.command(&[&server_is[..], &arguments].concat()).spawn().unwrap();
        proxy.wait();
        assert_eq!(client.command(&format!("kick-job {buried}")).unwrap(), "KICKED");
        proxy.go_on();
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        assert!(ran.stderr.contains("others reserved, changed or deleted them: 1 job."), "{ran:?}");
        assert_eq!(state(&mut client, buried).as_deref(), Some("ready"));
    }
}

/// On a full disk, a job that cannot be saved must not be deleted, nor be partly in the file.
#[test]
fn what_cannot_be_saved_stays() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let all = fill(&server, "a");
        for command in ["clear a", "move a b"] {
            let file = server.file("saved");
            // A file of at most 300 blocks, as on a nearly full disk.
            let script = format!(
                "trap '' XFSZ; ulimit -f 300; \
                 exec {} {command} --yes --save {file}",
                harness::PROGRAM
            );
            let mut shell = std::process::Command::new("sh");
            shell.args(["-c", &script]).env("BEANSTALKD_SERVER", &server.address);
            let ran = Ran::of(shell.output().unwrap());
            assert_eq!(ran.code(), Some(1), "{ran:?}");
            assert!(ran.stderr.contains(&format!("{file}: ")), "{ran:?}");
            let saved = saved(&file);
            std::fs::remove_file(&file).unwrap();
            // A tube that does not exist is an error.
            let listed = |tube: &str| server.run(&["list", tube, "--json"]).stdout.lines().count();
            let gone = JOBS - listed("a");
            assert_eq!(gone, saved.len(), "{ran:?}");
            assert_eq!(listed("b"), if command == "clear a" { 0 } else { gone });
            if command == "clear a" {
                let text = saved.iter().map(|body| {
                    let body = String::from_utf8_lossy(body).into_owned();
                    format!("{}\n", serde_json::json!({ "tube": "a", "body": body }))
                });
                let text = text.collect::<Vec<_>>().concat();
                server.run_with(text.as_bytes(), &["import"]);
            }
        }
        let mut client = server.client();
        let (left, moved) = (drain(&mut client, "a"), drain(&mut client, "b"));
        assert_eq!(left.len() + moved.len(), JOBS);
        assert_eq!(left.into_iter().chain(moved).collect::<BTreeSet<_>>(), all);
    }
}

/// If the file of `--save` exists, the command must fail before it asks a question.
#[test]
fn a_file_that_exists_is_told_first() {
    let server = Server::tcp(&harness::ours(), &[]);
    put(&mut server.client(), "a", 5, 0, b"x");
    let file = server.file("saved");
    std::fs::write(&file, "precious").unwrap();
    for command in [&["clear", "a"][..], &["move", "a", "b"], &["delete", "1"]] {
        let ran = server.run(&[command, &["--yes", "--save", &file]].concat());
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        assert!(!ran.stderr.contains("Will ") && ran.stderr.contains("the file exists"), "{ran:?}");
    }
    let ran = server.run(&["clear", "a", "--yes", "--save", "/nonexistent/folder/file"]);
    assert_eq!(ran.code(), Some(1), "{ran:?}");
    assert_eq!(server.objects(&["list", "a"]).len(), 1);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

#[test]
fn moved_jobs_keep_what_they_are() {
    each_server(&[], |server| {
        let mut client = server.client();
        let jobs = four(&mut client, "a");
        let ran = server.run(&["move", "a", "b"]);
        assert_eq!(ran.code(), Some(1));
        assert!(ran.stderr.contains("move 3 jobs: 1 ready, 1 delayed, 1 buried"), "{ran:?}");
        let ran = server.run(&["move", "a", "b", "--yes", "--grep", "^third"]);
        assert!(ran.stderr.contains("1 job moved"), "{ran:?}");
        assert_eq!(state(&mut client, jobs[2]), None);
        let file = server.file("saved");
        let ran = server.run(&["move", "a", "b", "--yes", "--save", &file]);
        assert!(ran.status.success() && ran.stderr.contains("2 jobs moved"), "{ran:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 3, "with the count");
        let left = jobs.map(|id| state(&mut client, id).is_some());
        assert_eq!(left, [false, false, false, true]);
        let mut objects = server.objects(&["list", "b", "--bodies"]);
        objects.sort_by_key(|job| job["size"].as_u64());
        let shown: Vec<_> = objects
            .iter()
            .map(|job| (job["state"].as_str().unwrap(), job["pri"].as_u64().unwrap()))
            .collect();
        assert_eq!(shown, [("ready", 5), ("buried", 7), ("delayed", 5)]);
        assert_eq!(objects[2]["body_base64"], "c2Vjb25kIP8ADQpkZWxheWVk");
        assert!(objects[2]["time-left"].as_u64().unwrap() > 900);
        assert_eq!(objects[0]["ttr"], 120);
        let ran = server.run(&["move", "a", "a", "--yes"]);
        assert!(ran.stderr.contains("already in that tube"), "{ran:?}");
        let ran = server.run(&["move", "nosuch", "a", "--yes"]);
        assert!(ran.stderr.contains("no tube nosuch"), "{ran:?}");
    });
}

#[test]
fn a_queue_moves_to_another_server() {
    for program in programs() {
        let (from, to) = (Server::tcp(&program, &[]), Server::unix(&harness::ours(), &[]));
        let all = fill(&from, "a");
        let ran = from.run(&["move", "a", "b", "--to", &to.address, "--yes"]);
        assert!(ran.status.success(), "{ran:?}");
        assert_eq!(drain(&mut from.client(), "a").len(), 0);
        let moved = drain(&mut to.client(), "b");
        assert_eq!(moved.len(), JOBS);
        assert_eq!(moved.into_iter().collect::<BTreeSet<_>>(), all);
    }
}

/// Ends a move at the n-th `word` by a signal, and checks that each job is in exactly one tube.
fn interrupted_move(word: &'static str, count: usize, signal: &str, status: i32) {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let all = fill(&server, "a");
        let proxy = Proxy::new(&server.address, word, count);
        let arguments = ["--server", &proxy.address, "move", "a", "b", "--yes"];
        let child = server.command(&arguments).spawn().unwrap();
        proxy.wait();
        harness::send_signal(&child, signal);
        proxy.go_on();
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code(), Some(status), "{ran:?}");
        let mut client = server.client();
        let (left, moved) = (drain(&mut client, "a"), drain(&mut client, "b"));
        assert!(!left.is_empty() && !moved.is_empty());
        assert_eq!(left.len() + moved.len(), JOBS);
        assert_eq!(left.into_iter().chain(moved).collect::<BTreeSet<_>>(), all);
    }
}

/// If a worker reserves a job in the middle of a move, the copy must be deleted.
#[test]
fn a_job_that_is_taken_during_a_move_loses_its_copy() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let mut client = server.client();
        let [_, _, buried, _] = four(&mut client, "a");
        let proxy = Proxy::new(&server.address, "delete ", 1);
        let arguments = ["--server", &proxy.address, "move", "a", "b", "--yes"];
        let child = server.command(&arguments).spawn().unwrap();
        proxy.wait();
        harness::reserve(&mut client, buried);
        proxy.go_on();
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        assert!(ran.stderr.contains("2 jobs moved"), "{ran:?}");
        assert!(ran.stderr.contains("or they timed out: 1 job."), "{ran:?}");
        assert_eq!(state(&mut client, buried).as_deref(), Some("reserved"));
        let bodies = drain(&mut client, "b");
        assert_eq!(bodies, [&b"first ready"[..], b"second \xff\0\r\ndelayed"]);
    }
}

#[test]
fn an_interrupted_move_leaves_no_job_in_two_places() {
    interrupted_move("delete ", 300, "INT", 130);
    interrupted_move("put ", 300, "TERM", 143);
    // SIGHUP is sent when an SSH connection breaks.
    interrupted_move("delete ", 300, "HUP", 129);
}

/// Kills the server of a move at the n-th `word`, and checks that jobs in both tubes are reported.
fn killed_move(word: &'static str, count: usize) {
    for program in programs() {
        let folder = tempfile::tempdir().unwrap();
        let flags = ["-f0", "-b", folder.path().to_str().unwrap()];
        let server = Server::tcp(&program, &flags);
        let all = fill(&server, "a");
        let proxy = Proxy::new(&server.address, word, count);
        let arguments = ["--server", &proxy.address, "move", "a", "b", "--yes"];
        let child = server.command(&arguments).spawn().unwrap();
        proxy.wait();
        let mut client = server.client();
        ct::eventually("copies of a second batch", || {
            let text = client.yaml("stats-tube b").unwrap_or_default();
            let total = text.lines().find_map(|line| line.strip_prefix("total-jobs: "));
            total.is_some_and(|total| total.parse::<usize>().unwrap() > 200)
        });
        drop(server.daemon);
        proxy.go_on();
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        let again = Server::tcp(&program, &flags);
        let list = |tube: &str| -> Vec<(u64, Vec<u8>)> {
            let objects = again.objects(&["list", tube, "--bodies"]);
            let of = |job: &serde_json::Value| job["body"].as_str().unwrap().as_bytes().to_vec();
            objects.iter().map(|job| (job["id"].as_u64().unwrap(), of(job))).collect()
        };
        let (left, moved) = (list("a"), list("b"));
        let bodies: BTreeSet<_> = left.iter().chain(&moved).map(|(_, body)| body.clone()).collect();
        assert_eq!(bodies, all);
        let copied: BTreeSet<_> = moved.iter().map(|(_, body)| body.clone()).collect();
        assert_eq!(copied.len(), moved.len());
        let told = ran.stderr.lines().find(|line| line.contains("may be in both")).unwrap_or("");
        for (id, body) in &left {
            let is_told = told.contains(&format!(" {id} (copy "));
            assert!(!copied.contains(body) || is_told, "{id} is in both places: {}", ran.stderr);
        }
        assert!(left.iter().any(|(_, body)| copied.contains(body)), "{word}: nothing was in both");
    }
}

/// Kills one of the two servers of a move, and checks the remaining jobs and the report.
fn killed_between_two(kills_target: bool) {
    for program in programs() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let flags = folders.each_ref().map(|it| ["-f0", "-b", it.path().to_str().unwrap()]);
        let from = Server::tcp(&program, &flags[0]);
        let to = Server::tcp(&program, &flags[1]);
        let all = fill(&from, "a");
        let held = if kills_target { &to } else { &from };
        let word = if kills_target { "put " } else { "delete " };
        let proxy = Proxy::new(&held.address, word, 300);
        let (source, target) = if kills_target {
            (&from.address, &proxy.address)
        } else {
            (&proxy.address, &to.address)
        };
        let arguments = ["--server", source, "move", "a", "b", "--to", target, "--yes"];
        let child = from.command(&arguments).spawn().unwrap();
        proxy.wait();
        held.daemon.signal(9).unwrap();
        proxy.go_on();
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        drop((from, to));
        let (from, to) = (Server::tcp(&program, &flags[0]), Server::tcp(&program, &flags[1]));
        let list = |server: &Server, tube: &str| -> Vec<(u64, Vec<u8>)> {
            let objects = server.objects(&["list", tube, "--bodies"]);
            let of = |job: &serde_json::Value| job["body"].as_str().unwrap().as_bytes().to_vec();
            objects.iter().map(|job| (job["id"].as_u64().unwrap(), of(job))).collect()
        };
        let (left, moved) = (list(&from, "a"), list(&to, "b"));
        let copied: BTreeSet<_> = moved.iter().map(|(_, body)| body.clone()).collect();
        let bodies: BTreeSet<_> = left.iter().map(|(_, body)| body.clone()).collect();
        assert_eq!(bodies.union(&copied).cloned().collect::<BTreeSet<_>>(), all);
        assert!(moved.len() >= 200 && copied.len() == moved.len());
        let told = ran.stderr.lines().find(|line| line.contains("may be in both")).unwrap_or("");
        for (id, body) in &left {
            let is_told = told.contains(&format!(" {id} (copy "));
            assert!(!copied.contains(body) || is_told, "{id} is in both places: {}", ran.stderr);
        }
    }
}

#[test]
fn a_move_between_two_servers_of_which_one_is_killed_tells_what_is_in_both() {
    killed_between_two(true);
    killed_between_two(false);
}

#[test]
fn a_move_tells_what_a_killed_server_leaves_in_two_places() {
    killed_move("delete ", 300);
    killed_move("put ", 300);
}
