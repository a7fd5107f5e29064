//! Feeds the fuzzer's input to `tests/core/oracles/server.rs`.
#![no_main]

#[allow(dead_code, reason = "the simulator uses all of it, this target a part")]
#[path = "../../../tests/core/allocations.rs"]
mod allocations;
#[allow(dead_code, reason = "the simulator uses all of it, this target a part")]
#[path = "../../../tests/core/model.rs"]
mod model;
#[path = "../../../tests/core/oracles/reference.rs"]
mod reference;
#[path = "../../../tests/core/oracles/server.rs"]
mod server;
#[allow(dead_code, reason = "the simulator uses all of it, this target a part")]
#[path = "../../../tests/core/world.rs"]
mod world;

libfuzzer_sys::fuzz_target!(|input: &[u8]| server::judge(input));
