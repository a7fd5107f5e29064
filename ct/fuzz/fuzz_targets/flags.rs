//! The fuzz target of `oracles/flags.rs`.
#![no_main]

#[path = "../oracles/flags.rs"]
mod flags;

libfuzzer_sys::fuzz_target!(|input: &[u8]| flags::check(input));
