//! What fuzzing has found worth keeping, in `ct/fuzz/corpus`, judged once more without a fuzzer.

use std::{fs, path::Path};

use crate::oracles::{flags, parse, replay, server};

/// Judges every input kept for a target. The name printed last is that of the one that fails.
fn judge_all(target: &str, judge: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("ct/fuzz/corpus").join(target);
    let mut count = 0;
    for entry in fs::read_dir(&folder).expect("a folder for each target") {
        let path = entry.expect("an entry").path();
        println!("{}", path.display());
        judge(&fs::read(path).expect("a file"));
        count += 1;
    }
    assert!(count > 0, "nothing is kept for {target}");
}

/// Bytes from a stranger that once led to a new place of the daemon, or through a wrong one.
#[test]
fn any_bytes_on_any_connection() {
    judge_all("server", server::judge);
}

/// A line that is read otherwise than the original would read it.
#[test]
fn any_line() {
    judge_all("parse", parse::judge);
}

/// Files that make a start panic, hang or lose a job.
#[test]
fn any_binlog() {
    judge_all("replay", replay::judge);
}

/// Arguments of a service file that stop the daemon in the wrong way.
#[test]
fn any_arguments() {
    judge_all("flags", flags::judge);
}
