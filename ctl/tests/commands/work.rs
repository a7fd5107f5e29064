//! `reserve`, `release`, `bury`, `pause`, `drain` and `work`, on this daemon and on the original.

use crate::harness::{Ran, Server, each_server, four, interrupt, ours, programs, put, state};
use serde_json::json;

#[test]
fn a_reserved_job_is_given_back_deleted_or_buried() {
    each_server(&[], |server| {
        let mut client = server.client();
        let jobs = ["one", "two", "three"].map(|body| put(&mut client, "a", 5, 0, body.as_bytes()));
        let text = server.must(&["reserve", "a", "--count", "2"]);
        assert_eq!(text, format!("{} a: one\n{} a: two\n", jobs[0], jobs[1]));
        assert!(jobs.iter().all(|id| state(&mut client, *id).as_deref() == Some("ready")));
        assert_eq!(server.must(&["reserve", "a", "--delete", "--raw"]), "one");
        assert_eq!(state(&mut client, jobs[0]), None);
        assert_eq!(server.objects(&["reserve", "a", "--bury"])[0]["body"], json!("two"));
        assert_eq!(state(&mut client, jobs[1]).as_deref(), Some("buried"));
        server.must(&["reserve", "a", "--delete", "--count", "9"]);
        let ran = server.run(&["reserve", "a", "--wait", "0"]);
        assert_eq!((ran.code(), ran.stdout.as_str()), (Some(1), ""));
    });
}

#[test]
fn single_jobs_are_released_and_buried() {
    each_server(&[], |server| {
        let mut client = server.client();
        let jobs = four(&mut client, "a");
        let [ready, delayed, buried, reserved] = jobs.map(|id| id.to_string());
        let ran = server.run(&["bury", &ready, &delayed, "--pri", "9"]);
        assert!(ran.status.success() && ran.stderr.contains("2 jobs buried"), "{ran:?}");
        let ran = server.run(&["release", &buried, &ready]);
        assert!(ran.status.success() && ran.stderr.contains("2 jobs released"), "{ran:?}");
        server.must(&["release", &delayed, "--delay", "1h"]);
        let states = jobs.map(|id| state(&mut client, id).unwrap());
        assert_eq!(states, ["ready", "delayed", "ready", "reserved"]);
        assert_eq!(server.objects(&["job", &ready])[0]["pri"], json!(9));
        let ran = server.run(&["bury", &reserved, "999"]);
        assert_eq!(ran.code(), Some(1));
        assert!(ran.stderr.contains(&format!("a worker has reserved job {reserved}")), "{ran:?}");
        assert!(ran.stderr.contains("no job 999"), "{ran:?}");
    });
}

#[test]
fn tubes_are_paused_and_resumed() {
    each_server(&[], |server| {
        let mut client = server.client();
        put(&mut client, "mail-a", 5, 0, b"x");
        put(&mut client, "mail-b", 5, 0, b"x");
        let ran = server.run(&["pause", "mail-*", "--for", "1h"]);
        assert!(ran.stderr.contains("2 tubes paused"), "{ran:?}");
        assert_eq!(server.objects(&["stats", "mail-b"])[0]["pause"], json!(3600));
        server.must(&["resume", "mail-b"]);
        assert_eq!(server.objects(&["stats", "mail-b"])[0]["pause"], json!(0));
        assert_eq!(server.objects(&["stats", "mail-a"])[0]["pause"], json!(3600));
        assert_eq!(server.run(&["pause", "nosuch", "--for", "1h"]).code(), Some(1));
    });
}

/// `drain status` must work on all servers. If a server lacks the command `drain`, `drain on` must
/// print the signal to send instead.
#[test]
fn draining_is_told_and_changed_if_the_server_can() {
    each_server(&[], |server| {
        let status = server.run(&["drain", "status"]);
        // Release 1.12 of beanstalkd does not report whether it is draining.
        assert!(status.stdout == "not draining\n" || status.stderr.contains("no drain state"));
        let ran = server.run(&["drain", "on"]);
        if ran.status.success() {
            assert_eq!(ran.stdout, "draining\n");
            assert!(server.run(&["put", "a", "x"]).stderr.contains("DRAINING"));
            assert_eq!(server.must(&["drain", "off"]), "not draining\n");
            server.must(&["put", "a", "x"]);
        } else {
            let signal = format!("kill -USR1 {}", server.daemon.pid());
            assert!(ran.stderr.contains(&signal), "{ran:?}");
        }
    });
}

#[test]
fn the_exit_status_of_a_command_decides() {
    each_server(&[], |server| {
        let mut client = server.client();
        let jobs = ["good", "bad"].map(|body| put(&mut client, "a", 5, 0, body.as_bytes()));
        let file = server.file("seen");
        let script = format!(
            "cat >> {file}; echo \" $BEANSTALKD_JOB_TUBE\" >> {file}; ! grep -q bad {file}"
        );
        let arguments = ["work", "a", "--until-empty", "--delay", "1h", "--bury-after", "2"];
        let arguments = [&arguments[..], &["--", "sh", "-c", &script]].concat();
        let ran = server.run(&arguments);
        assert!(ran.status.success(), "{ran:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "good a\nbad a\n");
        assert_eq!(state(&mut client, jobs[0]), None);
        assert_eq!(state(&mut client, jobs[1]).as_deref(), Some("delayed"));
        assert!(ran.stderr.contains("released, ready in 3600 s"), "{ran:?}");
        server.must(&["kick", "a"]);
        let ran = server.run(&arguments);
        assert!(ran.stderr.contains("buried"), "{ran:?}");
        assert_eq!(state(&mut client, jobs[1]).as_deref(), Some("buried"));
        put(&mut client, "a", 5, 0, b"x");
        let ran = server.run(&["work", "a", "--count", "1", "--", "/nonexistent/program"]);
        assert_eq!(ran.code(), Some(1), "{ran:?}");
    });
}

/// While a command takes longer than the time to run, its job must not time out.
#[test]
fn a_job_is_touched_while_its_command_runs() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let id = server.must(&["put", "a", "x", "--ttr", "5"]);
        let ran = server.run(&["work", "a", "--count", "1", "--", "sleep", "6"]);
        assert!(ran.status.success() && ran.stderr.is_empty(), "{ran:?}");
        assert_eq!(server.objects(&["stats"])[0]["job-timeouts"], json!(0));
        assert_eq!(state(&mut server.client(), id.trim().parse().unwrap()), None);
    }
}

/// After one Ctrl-C, the running command must be allowed to finish, and its job must be deleted.
#[test]
fn an_interrupted_worker_finishes_its_job() {
    let server = Server::tcp(&ours(), &[]);
    let mut client = server.client();
    let jobs = [put(&mut client, "a", 5, 0, b"one"), put(&mut client, "a", 5, 0, b"two")];
    let (began, ended) = (server.file("began"), server.file("ended"));
    let script = format!("touch {began}; while ! test -e {ended}; do sleep 0.01; done");
    let child = server.command(&["work", "a", "--", "sh", "-c", &script]).spawn().unwrap();
    ct::eventually("the command runs", || std::path::Path::new(&began).exists());
    interrupt(&child);
    std::fs::write(&ended, "").unwrap();
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    assert_eq!(jobs.map(|id| state(&mut client, id).is_some()), [false, true]);
}
