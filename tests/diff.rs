//! Seeded traffic to this daemon and to the original at the same time: every answer must be the
//! same but for the declared masks. And the tool itself: a difference that is there must be found.
//!
//! `make diff` plays more of it. The scripts that `ct-check` plays are held to the same two daemons
//! by `tests/golden.rs`.

use std::{io::Write, path::Path, time::Duration};

use ct::{
    Dialect,
    diff::{Options, Summary, Target, compare},
};

const OURS: &str = env!("CARGO_BIN_EXE_beanstalkd");
const ORIGINAL: &str = "/usr/bin/beanstalkd";

/// Plays runs on two daemons.
fn play(left: &str, right: &str, options: &Options) -> Summary {
    let [left, right] = [left, right].map(|it| Target::parse(it).expect("a daemon"));
    compare([&left, &right], options, &|_| ()).expect("both daemons start")
}

/// Says so on the terminal where the original is missing: past the test harness, which would keep
/// the line to itself.
fn has_original(test: &str) -> bool {
    let is_there = Path::new(ORIGINAL).exists();
    if !is_there {
        let line = format!(
            "\n*** SKIPPED: {test}: {ORIGINAL} is not installed (Debian's package beanstalkd)\n"
        );
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    is_there
}

/// Finds a difference and returns its script, which must be short.
fn find(left: &str, right: &str, options: Options) -> String {
    let options = Options { shrink_time: Duration::from_secs(15), parallel: 4, ..options };
    let summary = play(left, right, &options);
    let finding = summary.findings.first().expect("the difference is found");
    let acts = finding.script.lines().filter(|line| line.contains("> ") || line.starts_with('+'));
    assert!(acts.count() <= 6, "not short:\n{}", finding.script);
    finding.script.clone()
}

/// Returns what is known about the original, but for one difference.
fn forgetful(mask: &str) -> [Option<Dialect>; 2] {
    let mut dialect = Dialect::named("1.12").expect("a dialect of the table");
    assert!(dialect.masks.remove(mask), "{mask} is a mask of it");
    [Dialect::named("ours"), Some(dialect)]
}

#[test]
fn with_the_original() {
    if !has_original("with_the_original") {
        return;
    }
    for (garbage, runs) in [(false, 40), (true, 20)] {
        let options = Options { garbage, runs, steps: 120, ..Options::default() };
        let summary = play(OURS, ORIGINAL, &options);
        let told = summary.findings.iter().map(|it| format!("{}\n{}", it.message, it.script));
        assert!(summary.findings.is_empty(), "{}", told.collect::<String>());
        assert!(summary.agreed >= runs * 9 / 10, "too few runs count: {summary:?}");
    }
}

#[test]
fn a_planted_difference_is_found_and_made_short() {
    let left = format!("{OURS} -z 65536");
    let script = find(&left, OURS, Options::default());
    assert!(script.contains("max-job-size: 65535\n"), "{script}");
}

#[test]
fn the_originals_differences_are_found_where_they_are_not_declared() {
    if !has_original("the_originals_differences_are_found_where_they_are_not_declared") {
        return;
    }
    for (mask, garbage, sign) in
        [("unquoted-names", false, ": {any}\n"), ("lone-cr-mutes", true, "\\r")]
    {
        let options = Options { garbage, dialects: forgetful(mask), ..Options::default() };
        let script = find(OURS, ORIGINAL, options);
        assert!(script.contains(sign), "{mask}:\n{script}");
    }
}
