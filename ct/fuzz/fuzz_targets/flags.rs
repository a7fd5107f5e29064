//! Feeds the fuzzer's input to `tests/core/oracles/flags.rs`.
#![no_main]

#[path = "../../../tests/core/oracles/flags.rs"]
mod flags;

libfuzzer_sys::fuzz_target!(|input: &[u8]| flags::judge(input));
