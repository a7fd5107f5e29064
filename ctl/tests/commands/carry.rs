//! `export` and `import`: from server to server, through files, and from a binlog.

use std::process::Stdio;

use crate::harness::proxy::Proxy;
use crate::harness::{Ran, Server, bury, drain, each_server, four, interrupt, programs, put};
use serde_json::Value;

/// The jobs in lines of JSON, without values that differ between servers or times.
fn essence(text: &str) -> Vec<Value> {
    let mut jobs: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &Value| line.get("count").is_none())
        .map(|mut job| {
            let object = job.as_object_mut().unwrap();
            for key in ["id", "age", "reserves", "buries", "kicks", "timeouts", "releases"] {
                object.remove(key);
            }
            if let Some(left) = object.get_mut("time-left") {
                assert!(left.as_u64().unwrap() > 900, "{left}");
                *left = 1.into();
            }
            job
        })
        .collect();
    jobs.sort_by_key(Value::to_string);
    jobs
}

#[test]
fn all_jobs_go_from_one_server_to_another() {
    for source in programs() {
        for target in programs() {
            let (source, target) = (Server::tcp(&source, &[]), Server::unix(&target, &[]));
            let mut client = source.client();
            let [_, _, _, reserved] = four(&mut client, "a");
            put(&mut client, "b", 4_294_967_295, 0, b"");
            let mut export = source.command(&["export"]).spawn().unwrap();
            let mut import = target.command(&["import"]);
            let import = import.stdin(export.stdout.take().unwrap()).output().unwrap();
            assert!(export.wait().unwrap().success() && import.status.success());
            assert!(client.command(&format!("release {reserved} 5 0")).unwrap() == "RELEASED");
            let (left, right) = (source.must(&["export"]), target.must(&["export"]));
            assert_eq!(essence(&left), essence(&right));
            assert_eq!(left.lines().count(), 6);
        }
    }
}

#[test]
fn a_file_is_checked_and_never_overwritten() {
    each_server(&[], |server| {
        let mut client = server.client();
        four(&mut client, "a");
        let file = server.file("jobs");
        assert!(
            server.run(&["export", &file, "--tube", "nosuch"]).stderr.contains("0 jobs exported")
        );
        assert_eq!(server.run(&["export", &file]).code(), Some(1));
        let file = server.file("more");
        server.must(&["export", &file, "--tube", "a", "--state", "ready,buried"]);
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text.lines().count(), 3);
        let ran =
            server.run_with(format!("{text}oops\n{text}").as_bytes(), &["import", "--tube", "b"]);
        assert_eq!(ran.code(), Some(1));
        assert!(ran.stderr.contains("line 4") && ran.stderr.contains("2 jobs imported"), "{ran:?}");
        let ran = server.run(&["import", &file, "--dry-run"]);
        assert!(ran.stderr.contains("2 jobs would be imported"), "{ran:?}");
        let ran = server.run(&["import", &file, "--skip", "1", "--tube", "b"]);
        assert!(ran.stderr.contains("1 job imported"), "{ran:?}");
        let ran = server.run_with(b"{\"body\":\"plain\"}\n", &["import"]);
        assert!(ran.status.success(), "{ran:?}");
        assert_eq!(server.objects(&["list", "b"]).len(), 3);
        assert_eq!(drain(&mut server.client(), "default"), [b"plain"]);
    });
}

/// While a buried job is copied, no worker may get the copy.
#[test]
fn a_copy_of_a_buried_job_is_never_ready() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let proxy = Proxy::new(&server.address, "reserve-job ", 1);
        let line = b"{\"tube\":\"a\",\"state\":\"buried\",\"body\":\"x\"}\n";
        let file = server.file("jobs");
        std::fs::write(&file, line).unwrap();
        let child = server.command(&["--server", &proxy.address, "import", &file]).spawn().unwrap();
        proxy.wait();
        assert_eq!(server.objects(&["list", "a"])[0]["state"], "delayed");
        proxy.go_on();
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert!(ran.status.success(), "{ran:?}");
        assert_eq!(server.objects(&["list", "a"])[0]["state"], "buried");
    }
}

/// An export from a binlog must have the same jobs as an export from its server.
#[test]
fn a_copy_of_a_binlog_has_the_jobs_of_its_server() {
    for program in programs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let server = Server::tcp(&program, &["-f0", "-b", path]);
        let mut client = server.client();
        let [_, _, _, reserved] = four(&mut client, "a");
        for number in 0..300 {
            let id = put(&mut client, "many", number, 0, format!("{number}").as_bytes());
            match number % 3 {
                0 => bury(&mut client, id),
                1 => assert_eq!(client.command(&format!("delete {id}")).unwrap(), "DELETED"),
                _ => {}
            }
        }
        assert_eq!(client.command(&format!("release {reserved} 5 0")).unwrap(), "RELEASED");
        let live = server.must(&["export"]);
        let copied = server.must(&["export", "--binlog", path]);
        assert_eq!(live.lines().count(), 205);
        assert_eq!(essence(&live), essence(&copied));
        let ids = |text: &str| -> Vec<Value> {
            let mut all: Vec<Value> =
                text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            all.retain(|line| line.get("count").is_none());
            all.sort_by_key(|job| job["id"].as_u64());
            all.iter().map(|job| job["id"].clone()).collect()
        };
        assert_eq!(ids(&live), ids(&copied));
        let some = server.must(&["export", "--binlog", path, "--tube", "a", "--state", "buried"]);
        assert_eq!(some.lines().count(), 2);
        let ran = server.run(&["export", "--binlog", "/nonexistent/folder"]);
        assert_eq!(ran.code(), Some(1), "{ran:?}");
    }
}

#[test]
fn an_interrupted_import_tells_where_to_go_on() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let proxy = Proxy::new(&server.address, "put ", 3_000);
        let line = |number: u32| format!("{{\"tube\":\"a\",\"body\":\"{number}\"}}\n");
        let lines = (0..5_000).map(line).collect::<Vec<_>>().concat();
        let file = server.file("jobs");
        std::fs::write(&file, &lines).unwrap();
        let child = server.command(&["--server", &proxy.address, "import", &file]).spawn().unwrap();
        proxy.wait();
        interrupt(&child);
        proxy.go_on();
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code(), Some(130), "{ran:?}");
        assert!(ran.stderr.contains("--skip 4000"), "{ran:?}");
        server.must(&["import", &file, "--skip", "4000"]);
        let bodies = drain(&mut server.client(), "a");
        assert_eq!(bodies.len(), 5_000);
        assert_eq!(bodies[4_999], b"4999");
    }
}

#[test]
fn an_import_to_a_server_that_is_killed_tells_what_is_not_confirmed() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let proxy = Proxy::new(&server.address, "put ", 3_000);
        let line = |number: u32| format!("{{\"body\":\"{number}\"}}\n");
        let lines = (0..5_000).map(line).collect::<Vec<_>>().concat();
        let file = server.file("jobs");
        std::fs::write(&file, &lines).unwrap();
        let child = server.command(&["--server", &proxy.address, "import", &file]).spawn().unwrap();
        proxy.wait();
        drop(server.daemon);
        proxy.go_on();
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        let first: u64 = ran
            .stderr
            .split("so their jobs may exist: lines ")
            .nth(1)
            .unwrap()
            .split('-')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert!((2_001..=3_000).contains(&first), "{ran:?}");
        assert!(ran.stderr.contains(&format!("{} jobs imported", first - 1)), "{ran:?}");
    }
}

/// If the server is killed during an export, the export must fail and report that jobs are missing.
#[test]
fn an_interrupted_export_says_that_it_is_not_all() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let mut client = server.client();
        for _ in 0..1_500 {
            put(&mut client, "a", 5, 0, b"x");
        }
        let proxy = Proxy::new(&server.address, "peek ", 1_200);
        let file = server.file("jobs");
        let child = server.command(&["--server", &proxy.address, "export", &file]).spawn().unwrap();
        proxy.wait();
        drop(server.daemon);
        proxy.go_on();
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        assert!(ran.stderr.contains("1000 jobs exported, but not all"), "{ran:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 1_000);
    }
}

/// A list must not fail if the reader, such as `head`, closes the output early.
#[test]
fn a_reader_may_leave_early() {
    each_server(&[], |server| {
        let mut client = server.client();
        for _ in 0..2000 {
            put(&mut client, "a", 5, 0, &[b'x'; 1000]);
        }
        let mut child =
            server.command(&["list", "a", "--bodies"]).stderr(Stdio::null()).spawn().unwrap();
        drop(child.stdout.take());
        assert!(child.wait().unwrap().success());
    });
}
