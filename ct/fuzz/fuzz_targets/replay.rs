//! The fuzzer's way to `judges/replay.rs`.
#![no_main]

#[path = "../judges/replay.rs"]
mod replay;

libfuzzer_sys::fuzz_target!(|input: &[u8]| replay::judge(input));
