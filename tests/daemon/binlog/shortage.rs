//! A shortage of memory, descriptors, threads or space: acknowledged changes stay, a startup that
//! fails for it changes nothing, and a running daemon continues.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpStream,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use ct::{Client, Daemon, Prng, eventually, skip};

use crate::harness::{Folder, OURS, Peer, can_run, complaints, end, from_environment, start};

/// The number of kills at a memory limit with each way of syncing, unless RUNS is set.
const RUNS: u64 = 2;

/// The limit of address space for these kills, in KiB: 150 MiB.
const LIMIT_KIB: u64 = 150 * 1024;

/// Starts the daemon on a directory, under limits that a shell sets.
fn serve_within(limits: &str, folder: &Folder, flags: &[&str]) -> (Daemon, String) {
    let (script, all) = within(limits, folder, flags);
    let mut words = vec!["-c", &script];
    words.extend(all.iter().map(String::as_str));
    start("/bin/sh", &words)
}

fn within(limits: &str, folder: &Folder, flags: &[&str]) -> (String, Vec<String>) {
    let script = format!(r#"{limits}; exec "$0" "$@""#);
    let mut all: Vec<String> =
        [OURS, "-V", "-l", "127.0.0.1", "-p", "0", "-b"].map(Into::into).into();
    all.push(folder.text().into());
    all.extend(flags.iter().map(|&flag| flag.into()));
    (script, all)
}

/// Runs the daemon under limits until it ends by itself, and returns its exit status and its
/// complaints.
fn fails_within(limits: &str, folder: &Folder, flags: &[&str]) -> (i32, String) {
    let (script, all) = within(limits, folder, flags);
    let mut words = vec!["-c", &script];
    words.extend(all.iter().map(String::as_str));
    let mut daemon = Daemon::spawn_raw("/bin/sh".as_ref(), &words).expect("it starts");
    let status = daemon.wait_exit(ct::LONG).expect("it ends by itself");
    (status.code().expect("it ends by itself"), complaints(&daemon))
}

/// All files of a directory with their bytes.
fn contents(folder: &Folder) -> BTreeMap<String, Vec<u8>> {
    let names = folder.files().into_keys();
    names.map(|name| (name.clone(), fs::read(folder.path().join(name)).expect("a file"))).collect()
}

fn body(id: u64, size: usize) -> Vec<u8> {
    let mut body = format!("{id} ").into_bytes();
    body.resize(size.max(body.len()), b'a' + u8::try_from(id % 26).expect("a letter"));
    body
}

/// Puts jobs of this size until there is no memory for another.
fn fill(client: &mut Client, size: usize, jobs: &mut BTreeMap<u64, usize>) {
    loop {
        // The next id is known, because each attempted put has taken an id.
        let next = jobs.keys().next_back().map_or(1, |last| last + 1);
        match &*client.put(0, 0, 60, &body(next, size)).expect("a reply") {
            "OUT_OF_MEMORY" => return,
            reply => {
                let id = reply.strip_prefix("INSERTED ").expect("a job or a shortage");
                jobs.insert(id.parse().expect("an id"), size);
            }
        }
    }
}

/// Jobs that fitted into memory while the daemon ran would not fit after a restart, and would be
/// lost.
#[test]
fn what_fitted_before_a_kill_fits_after_it() {
    let runs = from_environment("RUNS").unwrap_or(RUNS);
    let limits = format!("ulimit -v {LIMIT_KIB}");
    for flags in [&["-f0"][..], &[], &["-F"]] {
        let folder = Folder::new();
        let mut jobs: BTreeMap<u64, usize> = BTreeMap::new();
        let mut prng = Prng::new(7);
        for run in 0..=runs {
            let (daemon, place) = serve_within(&limits, &folder, flags);
            let mut client = Peer::at(&place);
            let stats = client.0.yaml("stats");
            let stats = stats.unwrap_or_else(|it| panic!("run {run}: {it}: {}", daemon.stderr()));
            let wanted = format!("current-jobs-ready: {}\n", jobs.len());
            assert!(stats.contains(&wanted), "run {run}: {stats}\n{}", daemon.stderr());
            for &id in jobs.keys() {
                let (line, found) = client.0.with_body(&format!("peek {id}")).expect("a reply");
                assert!(line.starts_with("FOUND "), "run {run}: job {id}: {line}");
                // The body's first word is the id that the client expected.
                assert_eq!(found.len(), jobs[&id].max(found.len().min(8)), "run {run}: job {id}");
            }
            let gone: Vec<u64> = jobs.keys().copied().filter(|_| prng.chance(1, 2)).collect();
            for id in gone {
                client.tell(&format!("delete {id}"), "DELETED");
                jobs.remove(&id);
            }
            for size in [60_000, 9000, 300] {
                fill(&mut client.0, size, &mut jobs);
            }
            end(daemon, libc::SIGKILL);
        }
        assert!(jobs.len() > 1000, "{flags:?}: {} jobs", jobs.len());
    }
}

/// Many tubes with few jobs each, or jobs in many files, would not fit into memory after a restart:
/// a start may take no more memory for a tube or a file than the daemon took before.
#[test]
fn tubes_that_fitted_before_a_restart_fit_after_it() {
    for (jobs_per_tube, size) in [(1, "10485760"), (2, "10485760"), (1000, "4096")] {
        let folder = Folder::new();
        let flags = ["-F", "-s", size];
        let (daemon, place) = serve_within("ulimit -v 65536", &folder, &flags);
        let mut client = Peer::at(&place);
        let (mut jobs, mut is_full) = (0, false);
        while !is_full {
            let numbers = jobs..jobs + 200;
            let text = numbers.clone().map(|number| {
                format!("use tube-{}\r\nput 0 0 60 1\r\nx\r\n", number / jobs_per_tube)
            });
            client.send(text.collect::<String>());
            for _ in numbers {
                let (used, put) = (client.line(), client.line());
                is_full |= !used.starts_with("USING ") || !put.starts_with("INSERTED ");
                jobs += u64::from(put.starts_with("INSERTED "));
            }
        }
        assert!(jobs > 5000, "{jobs} jobs");
        end(daemon, libc::SIGKILL);
        let (daemon, place) = serve_within("ulimit -v 65536", &folder, &flags);
        let stats = Peer::at(&place).0.yaml("stats");
        let stats = stats.unwrap_or_else(|it| panic!("{it}: {}", daemon.stderr()));
        assert!(stats.contains(&format!("current-jobs-ready: {jobs}\n")), "{jobs}: {stats}");
    }
}

/// Jobs for which there is no memory at startup would be taken for damaged, and be lost; in the
/// original's files, deleted jobs would come back.
#[test]
fn a_start_without_enough_memory_changes_nothing() {
    let folder = Folder::new();
    let daemon = folder.serve(OURS, &["-s", "1048576"]);
    let mut client = Peer::of(&daemon);
    for id in 1..=800 {
        client.put(0, 0, &body(id, 60_000));
    }
    (1..=400).step_by(2).for_each(|id| client.tell(&format!("delete {id}"), "DELETED"));
    end(daemon, libc::SIGKILL);
    let before = contents(&folder);
    let (status, said) = fails_within("ulimit -v 32768", &folder, &[]);
    assert_eq!((status, said.lines().count()), (10, 1), "{said}");
    assert!(said.contains("not enough memory") && said.contains("bytes"), "{said}");
    assert!(contents(&folder) == before, "a start that failed has changed something");

    let check = r#"ulimit -v 32768; exec "$0" --check-binlog "$1""#;
    let words = ["-c", check, OURS, folder.text()];
    let mut checked = Daemon::spawn_raw("/bin/sh".as_ref(), &words).expect("it starts");
    let status = checked.wait_exit(ct::LONG).expect("it ends by itself");
    let said = checked.stderr();
    assert_eq!(status.code(), Some(10), "{said}");
    assert!(said.contains("not enough memory") && !said.contains("damaged"), "{said}");

    let daemon = folder.serve(OURS, &["-s", "1048576"]);
    let mut client = Peer::of(&daemon);
    assert_eq!(client.value::<u64>("stats", "current-jobs-ready"), 600);
    assert!(!folder.files().keys().any(|name| name.ends_with("damaged")));
}

/// A large file of the original with one job would take memory for the whole file, and the time to
/// read all of it.
#[test]
fn a_file_with_holes_takes_the_memory_of_its_jobs() {
    let folder = Folder::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/daemon/binlog/fixtures/1.12/binlog.1");
    let file = folder.path().join("binlog.1");
    fs::write(&file, fs::read(source).expect("a fixture")).expect("a file");
    extend(&file, 1 << 31);
    let (daemon, place) = serve_within("ulimit -v 65536", &folder, &[]);
    let mut client = Peer::at(&place);
    assert!(client.value::<u64>("stats", "current-jobs-ready") > 0);
    // How many bytes the daemon has read.
    let io = fs::read_to_string(format!("/proc/{}/io", daemon.pid())).expect("counted");
    let read = io.lines().find_map(|line| line.strip_prefix("rchar: ")).expect("a number");
    let read: u64 = read.parse().expect("a number");
    if file_has_holes(&folder) {
        assert!(read < 4 << 20, "{read} bytes were read");
    } else {
        skip("this file system does not tell holes from data");
    }
}

/// Makes a file longer by a hole.
fn extend(path: &Path, size: u64) {
    let file = fs::OpenOptions::new().append(true).open(path).expect("a file");
    file.set_len(size).expect("a hole");
}

fn file_has_holes(folder: &Folder) -> bool {
    let probe = folder.path().join("probe");
    fs::write(&probe, "").expect("a file");
    extend(&probe, 1 << 20);
    let blocks = fs::metadata(&probe).expect("its size").blocks();
    fs::remove_file(probe).expect("it was made");
    blocks < 1 << 11
}

/// A large job would be copied as a whole before it is written, which would end the daemon at a
/// memory limit.
#[test]
fn a_job_of_half_the_memory_is_logged() {
    let folder = Folder::new();
    let flags = ["-z", "50000000"];
    let (daemon, place) = serve_within("ulimit -v 65536", &folder, &flags);
    let mut client = Peer::at(&place);
    let large = body(1, 30 << 20);
    assert_eq!(client.put(0, 0, &large), 1);
    end(daemon, libc::SIGKILL);
    let (_daemon, place) = serve_within("ulimit -v 65536", &folder, &flags);
    assert!(Peer::at(&place).take(1) == large);
}

/// A limit on the size of files, as a login shell may set it, would kill the daemon at its first
/// file.
#[test]
fn a_limit_on_file_sizes_is_an_error_like_others() {
    let folder = Folder::new();
    let (daemon, place) = serve_within("ulimit -f 100", &folder, &[]);
    let mut client = Peer::at(&place);
    assert_eq!(client.put(0, 0, b"x"), 1);
    end(daemon, libc::SIGKILL);
    let (_daemon, place) = serve_within("ulimit -f 100", &folder, &[]);
    assert_eq!(Peer::at(&place).take(1), b"x");
}

/// If idle connections take all descriptors, none would be left for the binlog, and every put would
/// be refused.
#[test]
fn the_log_has_its_descriptors_before_connections_get_any() {
    let folder = Folder::new();
    let (daemon, place) = serve_within("ulimit -n 64", &folder, &["-f0", "-s", "4096"]);
    let mut client = Peer::at(&place);
    client.put(0, 0, b"first");
    let mut crowd: Vec<TcpStream> = Vec::new();
    eventually("all descriptors are taken", || {
        if crowd.len() < 128 {
            crowd.extend(TcpStream::connect(&place).ok());
        }
        daemon.stderr().contains("cannot accept connections on ")
    });
    let open = || {
        let entries = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("a list");
        entries.count()
    };
    let before = open();
    for id in 2..=300 {
        assert_eq!(client.put(0, 0, &body(id, 1000)), id);
    }
    (1..=300).step_by(2).for_each(|id| client.tell(&format!("delete {id}"), "DELETED"));
    assert!(folder.files().len() > 20, "the log has many files");
    // A descriptor may just have been closed to open another.
    eventually("it needs a constant number of descriptors", || open() == before);
}

/// If no thread can be started, as in a service with `TasksMax=1`, the binlog would never work.
#[test]
fn without_a_thread_the_daemon_syncs_by_itself() {
    let as_other = "exec setpriv --reuid=65534 --regid=65534 --clear-groups";
    if !can_run("bash", &["-c", &format!("ulimit -u 1; {as_other} true")]) {
        return skip("this test needs bash, setpriv, root, and a user 65534 without processes");
    }
    let folder = Folder::new();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("ours");
    // The daemon's program may be in a directory that only root can enter.
    let program = folder.path().join("daemon");
    let program = program.to_str().expect("a plain name");
    // A copy that this process has open for writing might not be executed.
    assert!(can_run("cp", &[OURS, program]) && can_run("chmod", &["755", program]));
    let script = format!(r#"ulimit -u 1; {as_other} "$0" "$@""#);
    let words = ["-c", &script, program, "-V", "-l", "127.0.0.1", "-p", "0", "-b", folder.text()];
    let (daemon, place) = start("/bin/bash", &words);
    let mut client = Peer::at(&place);
    assert_eq!(client.ask("list-tube-used"), "USING default");
    if !daemon.stderr().contains("cannot start a thread for syncs") {
        return skip("the limit on processes does not hold here");
    }
    for id in 1..=50 {
        assert_eq!(client.put(0, 0, b"x"), id);
        std::thread::sleep(std::time::Duration::from_millis(3));
    }
    assert_eq!(daemon.stderr().matches("cannot start a thread for syncs").count(), 1);
    end(daemon, libc::SIGKILL);
    let daemon = folder.serve(OURS, &[]);
    assert_eq!(Peer::of(&daemon).value::<u64>("stats", "current-jobs-ready"), 50);
}

/// If a preallocated file is removed by someone else, the binlog would fail for good.
#[test]
fn a_spare_that_is_gone_is_made_again() {
    let folder = Folder::new();
    let daemon = folder.serve(OURS, &["-f0", "-s", "4096"]);
    let mut client = Peer::of(&daemon);
    for id in 1..=100 {
        assert_eq!(client.put(0, 0, &body(id, 1000)), id);
        if id % 10 == 0 {
            let spares = folder.files().into_keys().filter(|name| name.starts_with("spare."));
            spares.for_each(|name| drop(fs::remove_file(folder.path().join(name))));
        }
    }
    end(daemon, libc::SIGKILL);
    let daemon = folder.serve(OURS, &["-s", "4096"]);
    assert_eq!(Peer::of(&daemon).value::<u64>("stats", "current-jobs-ready"), 100);
}

/// Startup with large files would write zeros for minutes, and no client would be served meanwhile.
#[test]
fn a_start_writes_no_more_than_it_needs() {
    let folder = Folder::new();
    let daemon = folder.serve(OURS, &["-s", "1073741824"]);
    let mut client = Peer::of(&daemon);
    client.put(0, 0, b"x");
    let io = fs::read_to_string(format!("/proc/{}/io", daemon.pid())).expect("counted");
    let written = io.lines().find_map(|line| line.strip_prefix("wchar: ")).expect("a number");
    let written: u64 = written.parse().expect("a number");
    // If the file system cannot preallocate, smaller files are filled with zeros.
    let is_filled = folder.files().values().all(|&size| size < 1 << 30);
    assert!(is_filled || written < 8 << 20, "{written} bytes");
}

/// The space preallocated for a large job or many small ones would never be freed.
#[test]
fn room_that_is_not_needed_any_more_is_given_back() {
    let folder = Folder::new();
    let daemon = folder.serve(OURS, &["-z", "100000000", "-s", "1048576", "-F"]);
    let mut client = Peer::of(&daemon);
    let taken = || folder.files().into_values().sum::<u64>();
    client.put(0, 0, &body(1, 64 << 20));
    client.tell("delete 1", "DELETED");
    eventually("the room of a large job is given back", || taken() <= 4 << 20);
    for _ in 0..100 {
        client.0.send("put 0 0 60 1\r\nx\r\n".repeat(1000)).expect("the daemon takes it");
        (0..1000).for_each(|_| drop(client.0.line().expect("a reply")));
    }
    let stats: u64 = client.value("stats", "current-jobs-ready");
    assert_eq!(stats, 100_000);
    eventually("there is room for the deletes", || taken() > 100_000 * 84 * 2);
    while let Some(id) = client.reserve_now() {
        client.tell(&format!("delete {id}"), "DELETED");
    }
    eventually("the room of many jobs is given back", || taken() <= 4 << 20);
}

/// With a little less memory than it needs, the daemon would abort after it has begun a segment, or
/// would run without accepting clients.
#[test]
fn a_start_short_of_memory_ends_or_serves() {
    let folder = Folder::new();
    let daemon = folder.serve(OURS, &["-F"]);
    let mut client = Peer::of(&daemon);
    for id in 1..=20_000 {
        client.put(0, 0, &body(id, 200));
    }
    end(daemon, libc::SIGKILL);
    let (mut refused, mut served) = (0, 0);
    for limit_kib in (12_000..40_000).step_by(170) {
        let before = contents(&folder);
        let (script, all) = within(&format!("ulimit -v {limit_kib}"), &folder, &["-F"]);
        let mut words = vec!["-c", &script];
        words.extend(all.iter().map(String::as_str));
        let mut daemon = Daemon::spawn_raw("/bin/sh".as_ref(), &words).expect("it starts");
        let mut answer = None;
        eventually("it ends, or says where it listens", || {
            let stderr = daemon.stderr();
            let told =
                stderr.split_once(" listens on ").and_then(|(_, rest)| rest.split_once('\n'));
            answer = told.map(|(place, _)| Client::connect(place)?.yaml("stats"));
            answer.is_some() || daemon.exit_status().is_some()
        });
        if let Some(Ok(stats)) = answer {
            assert!(stats.contains("current-jobs-ready: 20000\n"), "{limit_kib}: {stats}");
            end(daemon, libc::SIGKILL);
            served += 1;
            if served == 3 {
                break;
            }
            continue;
        }
        let status = daemon.wait_exit(ct::LONG).expect("it ends or answers").code();
        let said = daemon.stderr();
        // Without memory for the program and its libraries, the loader cannot report much either.
        let is_loaded = said.contains("version ");
        assert!(status == Some(10) || !is_loaded, "{limit_kib}: {status:?}: {said}");
        assert!(contents(&folder) == before, "{limit_kib}: a start that failed changed something");
        refused += u32::from(is_loaded);
    }
    assert!(refused > 3 && served == 3, "{refused} starts were refused, {served} served");
}
