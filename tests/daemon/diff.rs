//! Seeded traffic to this daemon and to the original at the same time: every answer must be the
//! same, except for the declared masks. Also tests the tool itself: a planted difference must be
//! found.
//!
//! On a slow machine, timers may end before earlier operations are complete. Such runs are
//! discarded, and replaced by others for some minutes. Runs that are still missing after that are
//! reported as skipped. A difference fails at once, on any machine.
//!
//! `make diff` plays more runs. `golden.rs` plays the golden scripts on the same two daemons.
#![expect(clippy::disallowed_methods, reason = "real daemons are met in real time")]

use std::time::{Duration, Instant};

use ct::{
    Dialect, Original,
    diff::{Finding, Options, Summary, Target, compare},
    skip,
};

use crate::harness::OURS;

/// The time limit for playing seeds until enough runs are valid.
const BUDGET: Duration = Duration::from_secs(180);

/// The most acts of a short script.
const SHORT: usize = 6;

/// A planted difference must be found before this many runs have agreed.
const AGREED_MAX: u64 = 100;

/// Plays runs on two daemons.
fn play(left: &str, right: &str, options: &Options) -> Summary {
    let [left, right] = [left, right].map(|it| Target::parse(it).expect("a daemon"));
    compare([&left, &right], options, &|_| ()).expect("both daemons start")
}

/// The original's path, as a command.
fn path(original: &Original) -> &str {
    original.path.to_str().expect("a plain name")
}

/// The number of runs that each attempt plays at a time. Fewer runs at a time may succeed if a
/// machine is too slow for all at once.
fn widths() -> impl Iterator<Item = usize> {
    [24, 8, 4].into_iter().chain(std::iter::repeat(2))
}

/// Plays runs until enough have agreed, and fails for any that differs.
fn agree(original: &Original, garbage: bool, runs: u64) {
    let (began, enough) = (Instant::now(), runs * 9 / 10);
    let (mut agreed, mut slow) = (0, 0);
    let mut seed = 1;
    for parallel in widths() {
        let left = BUDGET.saturating_sub(began.elapsed());
        let dialects = [None, Some(original.dialect.clone())];
        let time = Some(left);
        let options = Options {
            seed,
            runs,
            garbage,
            steps: 120,
            parallel,
            time,
            dialects,
            ..Options::default()
        };
        let summary = play(OURS, path(original), &options);
        let told = summary.findings.iter().map(|it| format!("{}\n{}", it.message, it.script));
        assert!(summary.findings.is_empty(), "{}", told.collect::<String>());
        agreed += summary.agreed;
        slow += summary.too_slow.len();
        if agreed >= enough {
            return;
        }
        if left.is_zero() {
            break;
        }
        seed += runs;
    }
    let kind = if garbage { "with garbage" } else { "of commands" };
    skip(&format!(
        "this machine is too slow: {agreed} runs {kind} count, of {enough}, and {slow} do not"
    ));
}

/// The number of acts in a script, without its expectations.
fn acts(finding: &Finding) -> usize {
    let is_act = |line: &&str| line.contains("> ") || line.starts_with('+');
    finding.script.lines().filter(is_act).count()
}

/// Finds a planted difference and returns its script, which must be short. Returns `None`, and
/// reports the test as skipped, if this machine is too slow.
fn find(left: &str, right: &str, options: &Options) -> Option<String> {
    let began = Instant::now();
    let (mut agreed, mut long, mut seed) = (0, 0, options.seed);
    while began.elapsed() < BUDGET {
        let time = Some(BUDGET.saturating_sub(began.elapsed()));
        let summary = play(left, right, &Options { seed, time, parallel: 4, ..options.clone() });
        agreed += summary.agreed;
        if let Some(finding) = summary.findings.first() {
            if acts(finding) <= SHORT {
                return Some(finding.script.clone());
            }
            assert!(!finding.is_shortest, "not short:\n{}", finding.script);
            long += 1;
        }
        assert!(long > 0 || agreed < AGREED_MAX, "{agreed} runs agreed: it is not found");
        seed += options.runs;
    }
    skip(&format!(
        "this machine is too slow: {agreed} runs count and do not show it, {long} do, but could \
         not be made short"
    ));
    None
}

/// Returns the known differences of the original, except for one.
fn forgetful(original: &Original, mask: &str) -> [Option<Dialect>; 2] {
    let mut dialect = original.dialect.clone();
    assert!(dialect.masks.remove(mask), "{mask} is a mask of it");
    [Dialect::named("ours"), Some(dialect)]
}

#[test]
fn with_the_original() {
    let Some(original) = Original::find() else { return };
    for (garbage, runs) in [(false, 40), (true, 20)] {
        agree(&original, garbage, runs);
    }
}

#[test]
fn a_planted_difference_is_found_and_made_short() {
    let left = format!("{OURS} -z 65536");
    let Some(script) = find(&left, OURS, &Options::default()) else { return };
    assert!(script.contains("max-job-size: 65535\n"), "{script}");
}

#[test]
fn the_originals_differences_are_found_where_they_are_not_declared() {
    let Some(original) = Original::find() else { return };
    let planted = [("unquoted-names", false, ": {any}\n"), ("lone-cr-mutes", true, "\\r")];
    // A release of the original need not have all of these masks.
    let there: Vec<_> =
        planted.into_iter().filter(|(mask, ..)| original.dialect.masks.contains(*mask)).collect();
    assert!(!there.is_empty(), "{} has none of {planted:?}", original.dialect.name);
    for (mask, garbage, sign) in there {
        let dialects = forgetful(&original, mask);
        let options = Options { garbage, dialects, ..Options::default() };
        let Some(script) = find(OURS, path(&original), &options) else { continue };
        assert!(script.contains(sign), "{mask}:\n{script}");
    }
}
