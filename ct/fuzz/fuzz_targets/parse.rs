//! Feeds the fuzzer's input to `tests/core/oracles/parse.rs`.
#![no_main]

#[path = "../../../tests/core/oracles/parse.rs"]
mod parse;
#[path = "../../../tests/core/oracles/reference.rs"]
mod reference;

libfuzzer_sys::fuzz_target!(|input: &[u8]| parse::judge(input));
