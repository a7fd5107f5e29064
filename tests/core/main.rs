//! The tests that run in memory: the pure server, its queue and its binlog, without sockets, files
//! or the system's clock.
//!
//! | module | subject |
//! |---|---|
//! | `golden` | the golden scripts, whole, byte by byte and in random pieces |
//! | `sim` | seeded clients, clock jumps, kills and restarts, judged by the model after each step |
//! | `crash` | the jobs that a restart finds after a kill or a power cut at any moment |
//! | `takeover` | two daemons and one directory, while a network file system revokes locks |
//! | `corpus` | the inputs kept from fuzzing, judged again |
//! | `guards` | a limit on memory, and HTTP requests |
//! | `scale` | the cost of a command in a crowd, counted in items visited |
//! | `steps` | the memory that a step takes, counted by the allocator |
//!
//! These modules share `world` (the event loop without sockets), `model` (the oracle of the
//! simulator), `disk` (a disk that fails in every way), `seeds` and `oracles` (those of the fuzz
//! targets, which include them by path).

mod corpus;
mod crash;
mod disk;
mod golden;
mod guards;
mod model;
mod oracles;
// The queue counts visited items in debug builds only.
#[cfg(debug_assertions)]
mod scale;
mod seeds;
mod sim;
mod steps;
mod takeover;
mod world;
