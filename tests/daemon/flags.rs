//! Flags: their meanings, refused ones and the exit statuses.

use std::{fs, net::TcpListener};

use beanstalkd::cli;
use ct::{Daemon, skip};

use crate::harness::{
    Ended, OURS, Peer, daemon, fails_to_start, original, run_to_its_end, start, terminate,
    try_start,
};

/// `--help` or `--version` would start a daemon, or end with the status of an error.
///
/// Proves: Q22.
#[test]
fn help_and_version_are_printed_and_nothing_starts() {
    let version = format!("beanstalkd {}\n", env!("CARGO_PKG_VERSION"));
    let cases = [
        ("-h", cli::usage()),
        ("--help", cli::usage()),
        ("-VhV", cli::usage()),
        ("--verbose --help --version", cli::usage()),
        ("--version", version.clone()),
        ("-v", version.clone()),
        ("-p 1 -Vv -h", version.clone()),
        // The command in a compose file may repeat the name of the image's program.
        ("beanstalkd -v", version.clone()),
        ("/usr/bin/beanstalkd -h", cli::usage()),
        // The rest of the command line is no longer read.
        ("-hx", cli::usage()),
        ("-h -x -p", cli::usage()),
        ("-v --porter start", version.clone()),
        ("-vz ten", version),
    ];
    for (line, wanted) in cases {
        let wanted = Ended { code: 0, stdout: wanted, stderr: String::new() };
        assert_eq!(run_to_its_end(OURS, &words(line)), wanted, "{line}");
    }
}

/// A daemon would start although its service file has a mistake, and do something unintended.
///
/// Proves: Q22.
#[test]
fn arguments_that_make_no_sense_end_it_with_status_5() {
    let cases = [
        ("-x", "unknown flag: -x"),
        ("-Vx", "unknown flag: -x"),
        ("--porter 1", "unknown flag: --porter"),
        ("--port", "flag requires an argument: --port"),
        ("--verbose=2", "flag takes no argument: --verbose"),
        ("-l ::1,", "empty address: ::1,"),
        ("start", "unknown argument: start"),
        ("beanstalkd beanstalkd", "unknown argument: beanstalkd"),
        ("-p 0 stop", "unknown argument: stop"),
        ("-l", "flag requires an argument: -l"),
        ("-VVp", "flag requires an argument: -p"),
        ("-z 10k", "invalid size: 10k"),
        ("-zten", "invalid size: ten"),
        ("-f soon", "invalid size: soon"),
        ("--max-memory -5", "--max-memory must be from 0 to 18446744073709551615: -5"),
        (
            "--max-memory=18446744073709551616",
            "--max-memory must be from 0 to 18446744073709551615: 18446744073709551616",
        ),
        ("--busy-poll=", "--busy-poll must be from 0 to 1000: "),
        ("--bury-after +5", "--bury-after must be from 1 to 4294967295: +5"),
        ("--", "unknown flag: --"),
        ("-p 0 -- -V", "unknown flag: --"),
        // The first mistake is reported, and no later flag corrects it.
        ("-z ten -z 5", "invalid size: ten"),
        ("-s 4096k -s 4096", "invalid size: 4096k"),
        ("-f soon -F -x", "invalid size: soon"),
        ("-l ::1, -l ::1", "empty address: ::1,"),
        ("-x -h", "unknown flag: -x"),
        ("start -v", "unknown argument: start"),
    ];
    for (line, wanted) in cases {
        let stderr = format!("beanstalkd: {wanted} (beanstalkd -h lists the flags)\n");
        let wanted = Ended { code: 5, stdout: String::new(), stderr };
        assert_eq!(run_to_its_end(OURS, &words(line)), wanted, "{line}");
    }
}

/// If the help or an error cannot be printed because the disk is full, the daemon would panic and
/// dump core, and the exit status would not reveal a wrong flag.
///
/// Proves: Q22.
#[test]
fn a_text_that_cannot_be_printed_is_no_reason_to_panic() {
    for (script, wanted) in
        [(r#""$0" -x 2>/dev/full"#, 5), (r#""$0" -h >/dev/full"#, 1), (r#""$0" -v >/dev/full"#, 1)]
    {
        let Ended { code, stderr, .. } = run_to_its_end("/bin/sh", &["-c", script, OURS]);
        assert!(!stderr.contains("panicked"), "{script}: {stderr}");
        assert_eq!(code, wanted, "{script}");
    }
}

/// A daemon that cannot start would not report the reason, or would exit with the status of another
/// reason.
///
/// Proves: Q22.
#[test]
fn each_reason_not_to_start_has_its_status_and_one_clear_line() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("it is bound").port();
    let cases = [
        ("-b /no/such/directory -p 0".into(), 10, "-m 700 /no/such/directory"),
        ("-u no-such-user -l 127.0.0.1 -p 0".into(), 33, "no-such-user"),
        // Each C library has its own wording: musl omits "already".
        (format!("-l 127.0.0.1 -p {port}"), 111, "in use"),
        // The original takes these numbers for other ports.
        (format!("-l 127.0.0.1 -p {}", u32::from(port) + 65536), 111, "not a port: use 0 to 65535"),
        ("-l 127.0.0.1 -p 4294967296".into(), 111, "not a port: use 0 to 65535"),
        ("-l 127.0.0.1 -p 18446744073709551616".into(), 111, "not a port: use 0 to 65535"),
        ("-l 127.0.0.1 -p -65535".into(), 111, "not a port: use 0 to 65535"),
        // No resolver asks the network for a name with an empty label.
        ("-l no..such..host -p 0".into(), 111, "no..such..host"),
        // An address that no machine has, because it is reserved for documentation (RFC 5737).
        ("-l 192.0.2.1 -p 0".into(), 111, "192.0.2.1"),
        ("-l 127.0.0.1 -p no-such-service".into(), 111, "no-such-service"),
        ("-l 127.0.0.1:11300".into(), 111, "; the port is given with -p"),
        ("-l unix:/no/such/directory/socket".into(), 111, "/no/such/directory/socket"),
        ("-l unix:".into(), 111, "unix:"),
    ];
    for (line, status, wanted) in cases {
        let Ended { code, stdout, stderr } = run_to_its_end(OURS, &words(&line));
        assert_eq!((code, &*stdout), (status, ""), "{line}: {stderr}");
        let errors: Vec<_> =
            stderr.lines().filter_map(|line| line.strip_prefix("beanstalkd: error: ")).collect();
        assert!(errors.len() == 1 && errors[0].contains(wanted), "{line}: {stderr}");
        assert!(stderr.ends_with(&format!("{}\n", errors[0])), "{line}: {stderr}");
    }
    // In this case, the original keeps its binlog in the root directory.
    let Ended { code, stderr, .. } = run_to_its_end(OURS, &["-b", "", "-p0", "-l127.0.0.1"]);
    assert_eq!(code, 10, "{stderr}");
}

/// Command lines written for the original would have a different meaning.
///
/// Proves: Q22.
#[test]
fn flags_can_be_joined_combined_and_repeated() {
    let cases = [
        ("-VVp0 -l127.0.0.1 -z10", 10),
        ("-Vl 127.0.0.1 -p0 -z 10 -z20", 20),
        ("-z 10 -l 192.0.2.1 -p 1 -V -z 30 -l 127.0.0.1 -p 0", 30),
    ];
    for (line, job_size) in cases {
        let (_daemon, place) = start(OURS, &words(line));
        assert_eq!(Peer::at(&place).count("stats", "max-job-size"), job_size, "{line}");
    }
}

/// A port given as a service's name would be refused.
///
/// Proves: Q22.
#[test]
fn a_port_can_be_a_service_name() {
    let services = fs::read_to_string("/etc/services").unwrap_or_default();
    let services = services.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (name, place) = (words.next()?, words.next()?);
        let port: u16 = place.strip_suffix("/tcp")?.parse().ok()?;
        // The port is above the privileged ports, and below those that the system gives to clients.
        (1024..32768).contains(&port).then_some((name, port))
    });
    for (name, port) in services {
        if let Ok((_daemon, place)) = try_start(OURS, &["-Vl127.0.0.1", "-p", name]) {
            assert_eq!(place, format!("127.0.0.1:{port}"), "{name}");
            Peer::at(&place).check();
            return;
        }
    }
    skip("no service of /etc/services is free");
}

/// Flags of old service files that no longer mean the same would be taken without a warning.
///
/// Proves: Q22.
#[test]
fn what_is_not_obeyed_to_the_letter_is_warned_of() {
    let cases = [
        ("-c", "-c does nothing", 65_535),
        ("-n", "-n does nothing", 65_535),
        ("-z 1073741824", "", 1 << 30),
        ("-z 1073741825", "-z 1073741825 is too large", 1 << 30),
        ("-z -1", "-z -1 is too large", 1 << 30),
        ("-z 18446744073709551616", "-z 18446744073709551616 is too large", 1 << 30),
        ("-s 2147483649", "-s 2147483649 is too large", 65_535),
        ("-s 99999999999999999999", "-s 99999999999999999999 is too large", 65_535),
    ];
    for (line, warning, job_size) in cases {
        let daemon = daemon(&words(line));
        assert_eq!(Peer::of(&daemon).count("stats", "max-job-size"), job_size, "{line}");
        let stderr = daemon.stderr();
        let warnings: Vec<_> = stderr.lines().filter(|line| line.contains("warning: ")).collect();
        assert_eq!(warnings.len(), usize::from(!warning.is_empty()), "{line}: {stderr}");
        assert!(warnings.iter().all(|line| line.contains(warning)), "{line}: {stderr}");
    }
}

/// Service files written for the original may have such numbers, which the original accepts.
#[test]
fn numbers_of_the_originals_flags_are_read_as_it_reads_them() {
    let programs = [Some(OURS.into()), original()];
    for program in programs.into_iter().flatten() {
        for line in ["-z -1", "-z +1", "-z 18446744073709551616", "-s -1", "-f -1", "-f +1"] {
            let daemon = Daemon::start(&program, &words(line)).expect(line);
            Peer::of(&daemon).check();
        }
        for line in ["-z 10k", "-s ten", "-f 1x"] {
            assert_eq!(fails_to_start(&program, &words(line)).0, 5, "{line}");
        }
    }
}

/// A mistake in a size would fill the disk, or the directory with a file for each job; a mistake in
/// the sync interval would end the daemon.
#[test]
fn a_size_out_of_all_proportion_does_no_harm() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a plain name");
    let (mut daemon, place) = start(OURS, &["-l127.0.0.1", "-p0", "-s1", "-f-1", "-b", path]);
    let mut client = Peer::at(&place);
    for _ in 0..3 {
        client.put(0, 0, b"x");
    }
    assert_eq!(terminate(&mut daemon), 0);
    let names = fs::read_dir(path).expect("a folder").flatten().map(|entry| entry.file_name());
    let segments = names.filter(|name| name.to_string_lossy().starts_with("binlog."));
    assert_eq!(segments.count(), 1, "three small jobs fit into 4096 bytes");
    // Without a binlog, the size is only reported.
    let daemon = self::daemon(&["-s", "-1"]);
    assert_eq!(Peer::of(&daemon).count("stats", "binlog-max-size"), 1 << 31);
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}
