//! The fuzz target of `oracles/server.rs`.
#![no_main]

#[path = "../../../tests/sim/model.rs"]
mod model;
#[path = "../oracles/reference.rs"]
mod reference;
#[path = "../oracles/server.rs"]
mod server;
#[path = "../../../tests/sim/world.rs"]
mod world;

libfuzzer_sys::fuzz_target!(|input: &[u8]| server::check(input));
