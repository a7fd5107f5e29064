use std::os::unix::ffi::OsStrExt;

use super::*;

fn serve(line: &str) -> Config {
    match read(line) {
        Ok(Invocation::Serve(config)) => config,
        other => panic!("{line}: {other:?}"),
    }
}

fn read(line: &str) -> Result<Invocation, UsageError> {
    parse(&line.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>())
}

fn tcp(host: &str, service: &str) -> Address {
    Address::Tcp { host: host.into(), service: service.into() }
}

fn unix(path: &str) -> Address {
    Address::Unix(path.into())
}

#[test]
fn defaults_are_those_of_the_original() {
    assert_eq!(
        serve(""),
        Config {
            addresses: vec![tcp("0.0.0.0", "11300")],
            is_address_given: false,
            user: None,
            settings: Settings {
                job_size_limit: 65_535,
                binlog_size: 10_485_760,
                memory_limit: None,
                bury_after: None,
            },
            binlog: None,
            sync: SyncPolicy::Within(Duration::from_millis(50)),
            waits_for_lock: false,
            exit_on_binlog_failure: None,
            busy_poll: Duration::from_micros(50),
            verbosity: 0,
            warnings: vec![],
        }
    );
}

#[test]
fn flags_may_be_joined_combined_and_repeated() {
    assert_eq!(serve("-VVV").verbosity, 3);
    assert_eq!(serve("-V -VV").verbosity, 3);
    assert_eq!(serve("-p11301").addresses, [tcp("0.0.0.0", "11301")]);
    assert_eq!(
        serve("-l ::1,::2 -p beanstalk -p 7 -l localhost").addresses,
        [tcp("localhost", "7")]
    );
    assert_eq!(serve("-Vp11301").addresses, [tcp("0.0.0.0", "11301")]);
    assert_eq!(serve("-b/dir -unobody").binlog, Some("/dir".into()));
    assert_eq!(serve("-b/dir -unobody").user, Some("nobody".into()));
    assert_eq!(serve("-l unix:/run/b.sock -p 7").addresses, [unix("/run/b.sock")]);
    assert_eq!(serve("-l unix:///run/b").addresses, [unix("///run/b")]);
}

#[test]
fn a_list_has_one_port_for_all_its_hosts() {
    assert_eq!(
        serve("-l 127.0.0.1,::1,unix:/run/b.sock -p 7").addresses,
        [tcp("127.0.0.1", "7"), tcp("::1", "7"), unix("/run/b.sock")]
    );
    assert_eq!(serve("-lunix:/a,unix:/b").addresses, [unix("/a"), unix("/b")]);
    for list in [",", "::1,", ",::1", "::1,,::2"] {
        let mistake = UsageError(format!("empty address: {list}"));
        assert_eq!(parse(&["-l", list]), Err(mistake));
    }
}

#[test]
fn long_names_mean_the_same_as_their_letters() {
    let pairs = [
        ("--binlog /d --sync 7 --binlog-size=4096", "-b /d -f7 -s4096"),
        ("--sync=7 --no-sync", "-f7 -F"),
        ("--listen ::1 --port=7", "-l ::1 -p 7"),
        ("--user nobody --max-job-size 9 --verbose -V", "-u nobody -z9 -VV"),
        ("-b /d --binlog /e -b /f", "-b /f"),
        ("--version --help", "-v"),
    ];
    for (long, short) in pairs {
        assert_eq!(read(long), read(short), "{long}");
    }
}

#[test]
fn a_ping_is_not_serving() {
    assert_eq!(read("--ping"), Ok(Invocation::Ping(vec![tcp("0.0.0.0", "11300")])));
    assert_eq!(
        read("-l ::1,unix:/a --ping -p 7"),
        Ok(Invocation::Ping(vec![tcp("::1", "7"), unix("/a")]))
    );
}

#[test]
fn the_last_sync_flag_wins() {
    assert_eq!(serve("-f0").sync, SyncPolicy::Within(Duration::ZERO));
    assert_eq!(serve("-F").sync, SyncPolicy::Never);
    assert_eq!(serve("-F -f 10").sync, SyncPolicy::Within(Duration::from_millis(10)));
    assert_eq!(serve("-f 10 -F").sync, SyncPolicy::Never);
    assert_eq!(serve("-f -1").sync, SyncPolicy::Within(Duration::from_millis(u64::MAX)));
    assert_eq!(serve("-F -f 10 -f 20").sync, SyncPolicy::Within(Duration::from_millis(20)));
}

#[test]
fn sizes_are_capped_with_a_warning() {
    assert_eq!(serve("-z 1073741824").settings.job_size_limit, JOB_SIZE_LIMIT);
    assert!(serve("-z 1073741824").warnings.is_empty());
    for line in ["-z 1073741825", "-z 99999999999", "-z -1"] {
        assert_eq!(serve(line).settings.job_size_limit, JOB_SIZE_LIMIT, "{line}");
        assert_eq!(serve(line).warnings.len(), 1, "{line}");
    }
    for line in ["-z 18446744073709551616", "-z -99999999999999999999"] {
        assert_eq!(serve(line).settings.job_size_limit, JOB_SIZE_LIMIT, "{line}");
    }
    assert_eq!(serve("-s 0").settings.binlog_size, 0);
    assert_eq!(serve("-s 2147483648").settings.binlog_size, BINLOG_SIZE_LIMIT);
    assert!(serve("-s 2147483648").warnings.is_empty());
    for text in ["2147483649", "4294967296", "-1", "99999999999999999999"] {
        let Config { settings, warnings, .. } = serve(&format!("-s {text}"));
        assert_eq!(settings.binlog_size, BINLOG_SIZE_LIMIT, "{text}");
        assert_eq!(warnings, [format!("-s {text} is too large: using 2147483648")]);
    }
    assert_eq!(serve("--binlog-size=-1 -s 5").settings.binlog_size, 5);
    assert_eq!(serve("--max-memory 1000000").settings.memory_limit, Some(1_000_000));
    assert_eq!(serve("--bury-after 1").settings.bury_after, NonZeroU32::new(1));
    assert_eq!(serve("--bury-after=4294967295").settings.bury_after, Some(NonZeroU32::MAX));
    assert!(serve("--wait-for-lock").waits_for_lock);
    assert_eq!(serve("--exit-on-binlog-failure 0").exit_on_binlog_failure, Some(Duration::ZERO));
    assert_eq!(serve("--busy-poll 0").busy_poll, Duration::ZERO);
    assert_eq!(serve("--busy-poll=1000").busy_poll, Duration::from_millis(1));
    assert_eq!(serve("-c -n").warnings.len(), 2);
}

/// If a flag for a limit accepted numbers such as `5k`, a typing error could change the limit.
#[test]
fn numbers_of_our_own_flags_are_digits_within_a_range() {
    let flags = [
        ("--max-memory", 0, u64::MAX),
        ("--bury-after", 1, u32::MAX.into()),
        ("--exit-on-binlog-failure", 0, u64::MAX),
        ("--busy-poll", 0, BUSY_POLL_LIMIT_MICROSECONDS),
    ];
    for (flag, min, max) in flags {
        for taken in [min, max] {
            assert!(serve(&format!("{flag} {taken}")).warnings.is_empty(), "{flag} {taken}");
        }
        let above = (u128::from(max) + 1).to_string();
        let below = (i128::from(min) - 1).to_string();
        for wrong in [&*above, &*below, "-5", "+5", " 5", "5 ", "5k", "5.0", "0x5", "five", ""] {
            let wanted = format!("{flag} must be from {min} to {max}: {wrong}");
            assert_eq!(parse(&[flag, wrong]), Err(UsageError(wanted)));
        }
    }
}

#[test]
fn errors_name_the_wrong_argument() {
    let cases = [
        ("-x", "unknown flag: -x"),
        ("-Vx", "unknown flag: -x"),
        ("--porter 5", "unknown flag: --porter"),
        ("--por 5", "unknown flag: --por"),
        ("--help=me", "flag takes no argument: --help"),
        ("--port", "flag requires an argument: --port"),
        ("-p", "flag requires an argument: -p"),
        ("-z", "flag requires an argument: -z"),
        ("-z ten", "invalid size: ten"),
        ("-z 10k", "invalid size: 10k"),
        ("-f +-1", "invalid size: +-1"),
        ("-s 1 -s 10k -s 1", "invalid size: 10k"),
        ("-z ten -z 10 -x", "invalid size: ten"),
        ("-l ,a -x", "empty address: ,a"),
        ("--", "unknown flag: --"),
        ("-V -- x", "unknown flag: --"),
        ("--p 5", "unknown flag: --p"),
        ("--p=5", "unknown flag: --p"),
        ("-V-x", "unknown flag: --"),
        ("-V=", "unknown flag: -="),
        ("-Vé", "unknown flag: -é"),
        ("--é", "unknown flag: --é"),
        ("start -v", "unknown argument: start"),
        ("start", "unknown argument: start"),
        ("-V -", "unknown argument: -"),
    ];
    for (line, wanted) in cases {
        assert_eq!(read(line), Err(UsageError(wanted.into())), "{line}");
    }
    assert_eq!(parse(&["-z", ""]), Err(UsageError("invalid size: ".into())));
    let not_utf8 = UsageError("not UTF-8: \u{fffd}".into());
    for words in [&[OsStr::from_bytes(b"\xff")][..], &["-b".as_ref(), OsStr::from_bytes(b"\xff")]] {
        assert_eq!(parse(words), Err(not_utf8.clone()));
    }
}

#[test]
fn help_and_version_go_before_serving() {
    assert_eq!(read("-h"), Ok(Invocation::Help));
    assert_eq!(read("--help"), Ok(Invocation::Help));
    assert_eq!(read("-v"), Ok(Invocation::Version));
    assert_eq!(read("-p 1 -v -h"), Ok(Invocation::Version));
    assert_eq!(read("-h -v"), Ok(Invocation::Help));
    assert_eq!(read("-hx"), Ok(Invocation::Help));
    assert_eq!(read("-V --help --porter start"), Ok(Invocation::Help));
    assert_eq!(read("-Vv -p"), Ok(Invocation::Version));
    assert_eq!(read("--ping -v"), Ok(Invocation::Version));
}

#[test]
fn every_flag_of_the_table_is_read() {
    for flag in FLAGS {
        let argument = flag.argument().map(|name| if name == "SHELL" { "fish" } else { "7" });
        for name in flag.names() {
            let words = [Some(name), argument];
            assert!(parse(&words.into_iter().flatten().collect::<Vec<_>>()).is_ok(), "{name}");
        }
    }
}

#[test]
fn the_usage_has_the_originals_shape() {
    let usage = usage();
    assert!(usage.starts_with("Use: beanstalkd [OPTIONS]\n\nOptions:\n -b, --binlog DIR    "));
    assert!(usage.contains("\n     --ping                ask"));
    assert!(usage.lines().all(|line| line.len() <= 80));
    // If a synopsis is too long for its column, the help of the flag begins in the next line.
    let with_help = usage.lines().skip(3).filter(|line| !line.ends_with(" SECONDS"));
    let columns: Vec<_> =
        with_help.map(|line| &line[usage::HELP_COLUMN - 1..=usage::HELP_COLUMN]).collect();
    assert!(columns.iter().all(|it| it.starts_with(' ') && !it.ends_with(' ')), "{usage}");
}
