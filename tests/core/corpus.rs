//! The inputs from fuzzing that are kept in `ct/fuzz/corpus`, judged again without a fuzzer.

use std::{fmt::Write, fs, path::PathBuf};

use crate::oracles::{flags, parse, replay, server};

fn corpus(file: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "ct/fuzz/corpus", file].iter().collect()
}

/// Returns the names and the bytes of a fuzz target's inputs, from the target's archive (ustar).
fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    const BLOCK: usize = 512;
    let archive = fs::read(corpus(&format!("{target}.tar"))).expect("an archive for each target");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("ASCII");
    let (mut rest, mut inputs) = (&*archive, Vec::new());
    while rest[0] != 0 {
        let name = text(rest[..100].split(|&byte| byte == 0).next().expect("a name"));
        let size = usize::from_str_radix(&text(&rest[124..135]), 8).expect("a size in octal");
        inputs.push((name, rest[BLOCK..BLOCK + size].to_vec()));
        rest = &rest[BLOCK + size.next_multiple_of(BLOCK)..];
    }
    inputs
}

/// Judges every input kept for a target. If an input fails, its name is printed last.
fn judge_all(target: &str, judge: impl Fn(&[u8])) {
    let inputs = inputs(target);
    assert!(!inputs.is_empty(), "nothing is kept for {target}");
    for (name, bytes) in inputs {
        println!("{target}/{name}");
        judge(&bytes);
    }
}

/// Reviewers would not notice a changed input, because they cannot read an archive.
#[test]
fn the_listing_has_every_input() {
    let mut listing = String::new();
    for target in ["flags", "parse", "replay", "server"] {
        for (name, bytes) in inputs(target) {
            let (size, checksum) = (bytes.len(), crc32fast::hash(&bytes));
            writeln!(listing, "{target}/{name} {size} {checksum:08x}").expect("it fits");
        }
    }
    let kept = fs::read_to_string(corpus("listing")).expect("a listing");
    assert!(listing == kept, "ct/fuzz/corpus/listing differs: `make corpus` writes it");
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
