//! The tests that run in memory: the pure server, its queue and its binlog, without sockets, files
//! or the system's clock. doc/hacking.md has the subject of each module. The fuzz targets include
//! `oracles` by path.

mod allocations;
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
