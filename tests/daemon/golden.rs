//! The golden scripts on this binary and on the original; `tests/core/golden.rs` plays the same
//! scripts on the pure server. The scripts are the only definition of the protocol; ct/README.md
//! describes their language.

use std::{collections::BTreeSet, fmt::Write, path::Path};

use ct::{Dialect, Original, Script, skip};

use crate::harness::OURS;

fn scripts() -> Vec<Script> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    Script::load_dir(&folder).expect("the golden scripts are well formed")
}

/// The outcome of all scripts on a daemon, over its socket.
struct Played {
    /// The masks whose `when` part some script took.
    masks: BTreeSet<String>,
    /// Whether every script was judged.
    is_whole: bool,
}

/// Plays all scripts on a daemon over its socket, and fails with a list of all failures. Scripts
/// for which this machine is too slow are reported as skipped.
fn run_on(program: &Path, dialect: &Dialect) -> Played {
    let reports = ct::check::check_all(&scripts(), &ct::Program::new(program), dialect);
    let (mut failures, mut is_whole) = (String::new(), true);
    for report in &reports {
        match &report.result {
            ct::Verdict::Passed => {}
            ct::Verdict::Failed(failure) => {
                writeln!(failures, "{}: {failure:?}", report.name).expect("a string grows");
            }
            ct::Verdict::Skipped(reason) => {
                is_whole = false;
                skip(&format!("{}: {reason}", report.name));
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
    assert!(!reports.is_empty());
    let masks = reports.into_iter().flat_map(|report| report.masks_used).collect();
    Played { masks, is_whole }
}

#[test]
fn on_our_daemon() {
    let ours = Dialect::named("ours").expect("our own dialect is known");
    let played = run_on(Path::new(OURS), &ours);
    assert_eq!(played.masks, BTreeSet::new(), "the text is ours; only others need masks");
}

/// The masks are the only exceptions: a mask that the original does not need is a mistake.
#[test]
fn on_the_original() {
    let Some(Original { path, dialect }) = Original::find() else { return };
    let Played { masks, is_whole } = run_on(&path, &dialect);
    let unused: Vec<_> = dialect.masks.difference(&masks).collect();
    // A script that was not judged may have needed the mask.
    assert!(unused.is_empty() || !is_whole, "no script of {} uses {unused:?}", dialect.name);
    assert!(masks.is_subset(&dialect.masks), "{masks:?}");
}
