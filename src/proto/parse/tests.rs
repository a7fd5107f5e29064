use super::*;

type Answer<'a> = Result<Command<'a>, Reply<'static>>;

const LIMIT: u32 = 65_535;
const UNKNOWN: Answer<'_> = Err(Reply::UNKNOWN_COMMAND);
const BAD: Answer<'_> = Err(Reply::BAD_FORMAT);

fn listed(name: &str, state: JobState, limit: u32) -> Command<'_> {
    Command::ListJobs { name, state, limit }
}

fn parsed(line: &str) -> Answer<'_> {
    parse(line.as_bytes(), LIMIT).map(|(command, _)| command)
}

fn check(cases: &[(&str, Answer<'_>)]) {
    for &(line, ref wanted) in cases {
        assert_eq!(&parsed(line), wanted, "{line:?}");
    }
}

#[test]
fn every_command_is_parsed() {
    let put = |pri, delay, ttr, size| Ok(Command::Put(PutHeader { pri, delay, ttr, size }));
    check(&[
        ("put 1 2 3 4", put(1, 2, 3, 4)),
        ("put  0  0  60  1", put(0, 0, 60, 1)),
        ("put 4294967295 4294967295 4294967295 65535", put(u32::MAX, u32::MAX, u32::MAX, LIMIT)),
        ("use a", Ok(Command::Use("a"))),
        ("reserve", Ok(Command::Reserve(None))),
        ("reserve-with-timeout 0", Ok(Command::Reserve(Some(0)))),
        ("reserve-with-timeout 2147483647", Ok(Command::Reserve(Some(0x7FFF_FFFF)))),
        ("reserve-with-timeout 7 apples", Ok(Command::Reserve(Some(7)))),
        ("reserve-with-abort", Ok(Command::ReserveWithAbort)),
        ("reserve-job 5", Ok(Command::ReserveJob(5))),
        ("delete 18446744073709551615", Ok(Command::Delete(u64::MAX))),
        ("release 1 2 3", Ok(Command::Release { id: 1, pri: 2, delay: 3 })),
        ("bury 1 2", Ok(Command::Bury { id: 1, pri: 2 })),
        ("touch 9", Ok(Command::Touch(9))),
        ("watch 1.5", Ok(Command::Watch("1.5"))),
        ("ignore default", Ok(Command::Ignore("default"))),
        ("peek 0", Ok(Command::Peek(0))),
        ("peek-ready", Ok(Command::PeekReady)),
        ("peek-delayed", Ok(Command::PeekDelayed)),
        ("peek-buried", Ok(Command::PeekBuried)),
        ("kick 10", Ok(Command::Kick(10))),
        ("kick-job 1", Ok(Command::KickJob(1))),
        ("stats", Ok(Command::Stats)),
        ("stats-job 1", Ok(Command::StatsJob(1))),
        ("stats-tube (a)+/;.$_-", Ok(Command::StatsTube("(a)+/;.$_-"))),
        ("list-tubes", Ok(Command::ListTubes)),
        ("list-tube-used", Ok(Command::ListTubeUsed)),
        ("capabilities", Ok(Command::Capabilities)),
        ("capabilities ", BAD),
        ("list-jobs a ready", Ok(listed("a", JobState::Ready, 100))),
        ("list-jobs  a  buried  7", Ok(listed("a", JobState::Buried, 7))),
        ("list-jobs a delayed 0", Ok(listed("a", JobState::Delayed, 0))),
        ("list-jobs a reserved 999999999", Ok(listed("a", JobState::Reserved, 10_000))),
        ("metrics", Ok(Command::Metrics(None))),
        ("metrics a", Ok(Command::Metrics(Some("a")))),
        ("metrics  a", Ok(Command::Metrics(Some("a")))),
        ("metrics ", BAD),
        ("metrics a ", BAD),
        ("metrics a b", BAD),
        ("metrics -a", BAD),
        ("metricsa", BAD),
        ("list-jobs", BAD),
        ("list-jobs ", BAD),
        ("list-jobsa ready", BAD),
        ("list-jobs a", BAD),
        ("list-jobs a sideways", BAD),
        ("list-jobs a ready x", BAD),
        ("list-jobs a ready ", BAD),
        ("list-jobs a ready 1 2", BAD),
        ("list-jobs a ready 4294967296", BAD),
        ("list-jobs -a ready", BAD),
        ("delete-tube a", Ok(Command::DeleteTube { name: "a", state: None, last_id: u64::MAX })),
        (
            "delete-tube a buried",
            Ok(Command::DeleteTube { name: "a", state: Some(JobState::Buried), last_id: u64::MAX }),
        ),
        (
            "delete-tube a ready 7",
            Ok(Command::DeleteTube { name: "a", state: Some(JobState::Ready), last_id: 7 }),
        ),
        ("delete-tube a reserved", BAD),
        ("delete-tube a ", BAD),
        ("delete-tube a ready x", BAD),
        ("delete-tube a 7", BAD),
        ("delete-tube a ready 7 8", BAD),
        ("delete-tube", BAD),
        ("drain on", Ok(Command::Drain(Some(true)))),
        ("drain off", Ok(Command::Drain(Some(false)))),
        ("drain status", Ok(Command::Drain(None))),
        ("drain", BAD),
        ("drain on ", BAD),
        ("drain maybe", BAD),
        ("capability", Err(Reply::UNKNOWN_COMMAND)),
        ("list-tubes-watched", Ok(Command::ListTubesWatched)),
        ("pause-tube default 10", Ok(Command::PauseTube { name: "default", delay: 10 })),
        ("pause-tubedefault 1", Ok(Command::PauseTube { name: "default", delay: 1 })),
        ("quit", Ok(Command::Quit)),
        ("quit now", Ok(Command::Quit)),
        ("quitting", Ok(Command::Quit)),
    ]);
}

#[test]
fn a_line_without_a_known_prefix_is_unknown() {
    check(
        &["", " ", " stats", "STATS", "put", "use", "delete", "kick", "kick-job", "peek"]
            .map(|line| (line, UNKNOWN)),
    );
}

#[test]
fn a_known_prefix_with_bad_arguments_is_malformed() {
    let name = "n".repeat(201);
    let (used, paused) = (format!("use {name}"), format!("pause-tube {name} 1"));
    check(
        &[
            "stats ",
            "statsx",
            "stats x",
            "stats-job",
            "stats-tube",
            "stats-tube ",
            "reserve ",
            "reserve-with-timeout",
            "reserve-with-timeout ",
            "reserve-with-timeout x",
            "reserve-with-timeout -1",
            "reserve-with-timeout 2147483648",
            "reserve-with-abort ",
            "reserve-with-abort 1",
            "reserve-with-abortx",
            "reserve-job",
            "reserve-job ",
            "list-tubesx",
            "list-tubes ",
            "list-tube-used ",
            "peek-ready x",
            "peek 1x",
            "peek 1 ",
            "peek \t1",
            "peek -1",
            "peek +1",
            "peek 18446744073709551616",
            "delete ",
            "touch x",
            "kick-job x",
            "release 1",
            "release 1 2",
            "release 1 2 3 ",
            "bury 1",
            "bury 1 2 3",
            "put 1 2 3",
            "put 1 2 3 x",
            "put -1 0 0 1",
            "put +1 0 0 1",
            "put 4294967296 0 0 1",
            "put 0 4294967296 0 1",
            "put 0 0 0 4294967296",
            "put \t1 0 0 1",
            "use ",
            "use  a",
            "use a b",
            "use -a",
            "use a:b",
            "watch \u{e9}",
            &used,
            "kick ",
            "kick x",
            "kick -",
            "kick - 1",
            "kick 18446744073709551616",
            "kick --1",
            "kick \r5",
            "kick \x0b\r+3x",
            "kick 3\r",
            "kick 3 \0",
            "pause-tube",
            "pause-tube default",
            "pause-tube default 5x",
            "pause-tube default 4294967296",
            "pause-tube : 1",
            "use a\rb",
            "sta\0ts",
            "nonsense\r",
            "nonsense\0",
        ]
        .map(|line| (line, BAD)),
    );
    check(
        &["put 1 2 3 4 ", "put 1 2 3 4x", "pause-tube -x 1", &paused]
            .map(|line| (line, Ok(Command::Malformed))),
    );
}

#[test]
fn a_job_is_too_big_before_its_line_is_malformed() {
    check(&[
        ("put 0 0 0 65536", Ok(Command::TooBig(65_536))),
        ("put 0 0 0 65536 x", Ok(Command::TooBig(65_536))),
        ("put 0 0 0 3000000000", Ok(Command::TooBig(3_000_000_000))),
    ]);
}

#[test]
fn kick_reads_numbers_as_c_does() {
    let kick = |bound| Ok(Command::Kick(bound));
    check(&[
        ("kick 5abc", kick(5)),
        ("kick 5 6", kick(5)),
        ("kick  5", kick(5)),
        ("kick \t\x0b+5", kick(5)),
        ("kick -1", kick(u32::MAX)),
        ("kick 4294967296", kick(0)),
        ("kick 4294967297", kick(1)),
        ("kick -18446744073709551615", kick(1)),
    ]);
}

#[test]
fn the_longest_name_is_200_bytes() {
    let name = "n".repeat(200);
    let line = format!("use {name}");
    assert_eq!(parsed(&line), Ok(Command::Use(&name)));
}

proptest::proptest! {
    /// If some bytes caused a panic, any client could end the daemon.
    #[test]
    fn any_line_gives_a_command_or_an_error(
        line in proptest::collection::vec(proptest::num::u8::ANY, 0..222),
    ) {
        let _ = parse(&line, LIMIT);
    }

    /// Random arguments after a known prefix reach more of the parser than random bytes do.
    #[test]
    fn any_arguments_give_a_command_or_an_error(
        which in 0..COMMANDS.len(), arguments in "[ 0-9a-z+-]{0,40}",
    ) {
        let line = format!("{}{arguments}", COMMANDS[which].0);
        proptest::prop_assert_ne!(parsed(&line), UNKNOWN);
    }
}
