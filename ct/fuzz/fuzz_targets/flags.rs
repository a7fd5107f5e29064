//! The fuzzer's way to `judges/flags.rs`.
#![no_main]

#[path = "../judges/flags.rs"]
mod flags;

libfuzzer_sys::fuzz_target!(|input: &[u8]| flags::judge(input));
