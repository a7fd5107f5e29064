//! The fuzz target of `oracles/replay.rs`.
#![no_main]

#[path = "../oracles/replay.rs"]
mod replay;

libfuzzer_sys::fuzz_target!(|input: &[u8]| replay::check(input));
