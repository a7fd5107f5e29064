//! Commands on single jobs and tubes, on this daemon and on the original, over TCP and a UNIX
//! socket.

use std::io::Write as _;
use std::process::Stdio;

use crate::harness::{bury, each_server, four, put, state};

/// `put` must accept a body from an argument, a file or standard input, with any bytes.
#[test]
fn jobs_are_put_from_everywhere() {
    each_server(&[], |server| {
        let mut client = server.client();
        let id = server.must(&["put", "a", "hello", "--pri", "3", "--delay", "1h", "--ttr", "5"]);
        let job = &server.objects(&["job", id.trim()])[0];
        assert_eq!((job["pri"].as_u64(), job["ttr"].as_u64()), (Some(3), Some(5)));
        assert!(job["time-left"].as_u64().unwrap() >= 3000, "{job}");
        let body = b"any\0\xff\r\nbytes";
        let id = server.run_with(body, &["put", "b"]).stdout;
        let (_, found) = client.with_body(&format!("peek {}", id.trim())).unwrap();
        assert_eq!(found, body);
        let file = server.file("lines");
        std::fs::write(&file, "one\ntwo\n\nfour").unwrap();
        assert_eq!(server.must(&["put", "c", "--lines", "--file", &file]).lines().count(), 4);
        assert_eq!(server.objects(&["grep", "^(one|two|four|)$", "c"]).len(), 4);
        assert_eq!(server.objects(&["put", "d", "x", "y", "--rate", "1000"]).len(), 2);
        let line = |number: u32| format!("{number}\n");
        let many = (0..30_000).map(line).collect::<Vec<_>>().concat();
        let ran = server.run_with(many.as_bytes(), &["put", "e", "--lines"]);
        assert_eq!(ran.stdout.lines().count(), 30_000, "{}", ran.stderr);
        assert_eq!(server.must(&["grep", "^29999$", "e", "--ids"]).lines().count(), 1);
    });
}

/// A line from a pipe must become a job at once, even if the pipe stays open.
#[test]
fn a_line_is_put_as_soon_as_it_comes() {
    each_server(&[], |server| {
        let mut child =
            server.command(&["put", "a", "--lines"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"now\n").unwrap();
        let mut client = server.client();
        client.command("watch a").unwrap();
        let (_, body) = client.with_body("reserve-with-timeout 10").unwrap();
        assert_eq!(body, b"now");
        drop(stdin);
        assert!(child.wait().unwrap().success());
    });
}

#[test]
fn what_the_server_refuses_is_told() {
    each_server(&["-z", "10"], |server| {
        let ran = server.run(&["put", "a", "eleven byte"]);
        assert_eq!(ran.code(), Some(1));
        assert!(ran.stderr.contains("JOB_TOO_BIG"), "{ran:?}");
        let ran = server.run(&["put", "a b", "x"]);
        assert!(ran.stderr.contains("is not a tube name"), "{ran:?}");
    });
}

/// A `-` in place of a body must mean standard input, as for ids and files, and not be the body.
#[test]
fn a_body_may_come_from_standard_input() {
    each_server(&[], |server| {
        let ran = server.run_with(b"two\nlines\n", &["put", "a", "-"]);
        assert!(ran.status.success(), "{ran:?}");
        assert_eq!(server.must(&["reserve", "a", "--delete", "--raw"]), "two\nlines\n");
        server.run_with(b"from input", &["put", "a", "one", "-"]);
        let bodies = server.must(&["reserve", "a", "--count", "2", "--delete", "--raw"]);
        assert_eq!(bodies, "onefrom input");
    });
}

/// With a number outside the protocol's range, the server would read the body as commands.
#[test]
fn a_body_is_never_taken_for_commands() {
    each_server(&[], |server| {
        let mut client = server.client();
        let id = put(&mut client, "victim", 5, 0, b"x");
        let command = format!("delete {id}");
        for flag in ["--delay", "--ttr"] {
            let ran = server.run(&["put", "a", &command, flag, "50000d"]);
            assert_eq!(ran.code(), Some(2), "{ran:?}");
        }
        for tube in [format!("a\r\n{command}"), "a b".to_owned(), String::new()] {
            let ran = server.run(&["put", &tube, &command]);
            assert_eq!(ran.code(), Some(2), "{ran:?}");
        }
        let large = vec![b"x\r\n".as_slice(); 30_000].concat();
        let ran = server.run_with(&[&large, command.as_bytes()].concat(), &["put", "a"]);
        assert!(ran.stderr.contains("larger than 65535 bytes"), "{ran:?}");
        for (key, value) in
            [("tube", format!("\"a\\r\\n{command}\"")), ("ttr", "5000000000".to_owned())]
        {
            let line = format!("{{\"{key}\":{value},\"body\":\"{command}\"}}\n");
            let ran = server.run_with(line.as_bytes(), &["import"]);
            assert!(ran.code() == Some(1) && ran.stderr.contains("line 1"), "{ran:?}");
        }
        assert_eq!(state(&mut client, id).as_deref(), Some("ready"));
        assert_eq!(server.objects(&["list", "*"]).len(), 1);
    });
}

/// If the server refuses a line, the jobs of later lines are already sent, and must be reported.
#[test]
fn a_refused_line_does_not_hide_what_became_of_the_others() {
    each_server(&["-z", "10"], |server| {
        let ran = server.run_with(b"one\ntwo\nlonger than ten\nfour\n", &["put", "a", "--lines"]);
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        assert!(ran.stderr.contains("line 3 is too large for the server: it is longer"), "{ran:?}");
        let told = ran.stdout.lines().count();
        assert_eq!((told, server.objects(&["list", "a"]).len()), (2, 2), "{ran:?}");
        let ran = server.run(&["put", "b", "one", "longer than ten", "three"]);
        assert!(ran.stderr.contains("JOB_TOO_BIG"), "{ran:?}");
        assert_eq!((ran.stdout.lines().count(), server.objects(&["list", "b"]).len()), (2, 2));
        let line = |body: &str| format!("{{\"tube\":\"c\",\"body\":\"{body}\"}}\n");
        let lines = [line("1"), line("longer than ten"), line("3"), line("longer still")].concat();
        let ran = server.run_with(lines.as_bytes(), &["import"]);
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        assert!(ran.stderr.contains("Too large for the server: lines 2, 4."), "{ran:?}");
        assert_eq!(server.objects(&["list", "c"]).len(), 2);
    });
}

#[test]
fn buried_jobs_are_kicked() {
    each_server(&[], |server| {
        let mut client = server.client();
        let [_, delayed, buried, reserved] = four(&mut client, "a");
        let second = put(&mut client, "a", 5, 0, b"x");
        bury(&mut client, second);
        assert!(server.run(&["kick", "a"]).stderr.contains("1 buried job kicked"));
        assert_eq!(state(&mut client, buried).as_deref(), Some("ready"));
        assert_eq!(state(&mut client, second).as_deref(), Some("buried"));
        let ids = format!("{second},{reserved}");
        let ran = server.run(&["kick", "--id", &ids]);
        assert_eq!(ran.code(), Some(1));
        assert!(ran.stderr.contains(&format!("job {reserved} is neither buried")), "{ran:?}");
        assert_eq!(state(&mut client, second).as_deref(), Some("ready"));
        assert!(server.run(&["kick", "a", "--all"]).stderr.contains("1 delayed job kicked"));
        assert_eq!(state(&mut client, delayed).as_deref(), Some("ready"));
        bury(&mut client, second);
        let ids = server.must(&["grep", "^x$", "--ids"]);
        let ran = server.run_with(ids.as_bytes(), &["kick", "--id", "-"]);
        assert!(ran.stderr.contains("1 job kicked"), "{ran:?}");
        let ran = server.run(&["kick", "nosuch"]);
        assert!(ran.stderr.contains("no tube nosuch"), "{ran:?}");
    });
}

/// `delete` must delete nothing without `--yes`, with `--dry-run`, or if a job is reserved.
#[test]
fn jobs_are_deleted_only_with_consent() {
    each_server(&[], |server| {
        let mut client = server.client();
        let jobs = four(&mut client, "a");
        let [ready, delayed, buried, reserved] = jobs.map(|id| id.to_string());
        let ran = server.run(&["delete", &ready]);
        assert_eq!(ran.code(), Some(1));
        assert!(ran.stderr.contains("delete 1 job: 1 ready"), "{ran:?}");
        assert!(ran.stderr.contains("--yes"), "{ran:?}");
        let ran = server.run(&["delete", &ready, &buried, "--dry-run"]);
        assert_eq!(ran.code(), Some(0));
        assert!(ran.stderr.contains("Would delete 2 jobs: 1 ready, 1 buried"), "{ran:?}");
        assert_eq!(state(&mut client, jobs[0]).as_deref(), Some("ready"));

        let file = server.file("saved");
        let all =
            [&["delete", "--yes", "--save", &file][..], &[&ready, &delayed, &buried, &reserved]];
        let ran = server.run(&all.concat());
        assert_eq!(ran.code(), Some(1), "a reserved one stays: {ran:?}");
        assert!(ran.stderr.contains("Left unchanged: 1 reserved."));
        assert!(ran.stderr.contains("3 jobs deleted"), "{ran:?}");
        assert_eq!(jobs.map(|id| state(&mut client, id).is_some()), [false, false, false, true]);
        let saved = std::fs::read_to_string(&file).unwrap();
        assert_eq!(saved.lines().count(), 4, "three jobs and their count");
        assert!(saved.contains("first ready") && saved.contains("c2Vjb25kIP8ADQpkZWxheWVk"));
        let ran = server.run(&["delete", "--yes", "--save", &file, &reserved]);
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        let ran = server.run_with(b"998 999\n", &["delete", "--yes", "-"]);
        assert!(ran.stderr.contains("No jobs to delete"), "{ran:?}");
    });
}
