//! Feeds the fuzzer's input to `tests/core/oracles/replay.rs`.
#![no_main]

#[path = "../../../tests/core/oracles/replay.rs"]
mod replay;

libfuzzer_sys::fuzz_target!(|input: &[u8]| replay::judge(input));
