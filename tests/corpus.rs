//! What fuzzing has found worth keeping, in `ct/fuzz/corpus`, checked once more without a fuzzer.

use std::{fs, path::Path};

#[path = "../ct/fuzz/oracles/flags.rs"]
mod flags;
#[path = "sim/model.rs"]
mod model;
#[path = "../ct/fuzz/oracles/parse.rs"]
mod parse;
#[path = "../ct/fuzz/oracles/reference.rs"]
mod reference;
#[path = "../ct/fuzz/oracles/replay.rs"]
mod replay;
#[path = "../ct/fuzz/oracles/server.rs"]
mod server;
#[path = "sim/world.rs"]
mod world;

/// Checks every input kept for a target. The name printed last is that of the one that fails.
fn check_all(target: &str, check: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("ct/fuzz/corpus").join(target);
    let mut count = 0;
    for entry in fs::read_dir(&folder).expect("a folder for each target") {
        let path = entry.expect("an entry").path();
        println!("{}", path.display());
        check(&fs::read(path).expect("a file"));
        count += 1;
    }
    assert!(count > 0, "nothing is kept for {target}");
}

/// Bytes from a stranger that once led to a new place of the daemon, or through a wrong one.
#[test]
fn any_bytes_on_any_connection() {
    check_all("server", server::check);
}

/// A line that is read otherwise than the original would read it.
#[test]
fn any_line() {
    check_all("parse", parse::check);
}

/// Files that make a start panic, hang or lose a job.
#[test]
fn any_binlog() {
    check_all("replay", replay::check);
}

/// Arguments of a service file that stop the daemon in the wrong way.
#[test]
fn any_arguments() {
    check_all("flags", flags::check);
}
