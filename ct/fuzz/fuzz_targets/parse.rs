//! The fuzzer's way to `judges/parse.rs`.
#![no_main]

#[path = "../judges/parse.rs"]
mod parse;
#[path = "../judges/reference.rs"]
mod reference;

libfuzzer_sys::fuzz_target!(|input: &[u8]| parse::judge(input));
