//! The fuzz target of `oracles/parse.rs`.
#![no_main]

#[path = "../oracles/parse.rs"]
mod parse;
#[path = "../oracles/reference.rs"]
mod reference;

libfuzzer_sys::fuzz_target!(|input: &[u8]| parse::check(input));
