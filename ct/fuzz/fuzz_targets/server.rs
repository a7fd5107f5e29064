//! The fuzzer's way to `judges/server.rs`.
#![no_main]

#[path = "../../../tests/sim/model.rs"]
mod model;
#[path = "../judges/reference.rs"]
mod reference;
#[path = "../judges/server.rs"]
mod server;
#[path = "../../../tests/sim/world.rs"]
mod world;

libfuzzer_sys::fuzz_target!(|input: &[u8]| server::judge(input));
