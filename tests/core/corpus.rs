//! The inputs from fuzzing that are kept in `ct/fuzz/corpus`, judged again without a fuzzer.

use std::{fs, path::Path};

use crate::oracles::{flags, parse, replay, server};

/// Judges every input kept for a target. If one fails, its path is the last one printed.
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

/// Bytes of a hostile client would break an invariant, or get a wrong reply.
#[test]
fn any_bytes_on_any_connection() {
    judge_all("server", server::judge);
}

/// A line would be read differently than by the original.
#[test]
fn any_line() {
    judge_all("parse", parse::judge);
}

/// Files in the binlog's directory would make the daemon panic, hang or lose a job at startup.
#[test]
fn any_binlog() {
    judge_all("replay", replay::judge);
}

/// Arguments would make the daemon panic, or be accepted beyond their bounds.
#[test]
fn any_arguments() {
    judge_all("flags", flags::judge);
}
