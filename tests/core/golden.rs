//! The golden scripts on the pure server with a virtual clock; `tests/daemon/golden.rs` plays the
//! same scripts on this binary and on the original. The scripts are the only definition of the
//! protocol; ct/README.md describes their language.

use std::{collections::BTreeMap, path::Path, time::Duration};

use ct::{Arrived, Dialect, Patience, Prng, Script, Stage};

use crate::world::{Arrival, World};

fn scripts() -> Vec<Script> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    Script::load_dir(&folder).expect("the golden scripts are well formed")
}

/// The pure server as a stage.
struct Memory {
    world: World,
    peers: BTreeMap<String, usize>,
}

impl Memory {
    fn new(script: &Script, arrival: Arrival) -> Self {
        let flags: Vec<&str> = script.flags.iter().map(String::as_str).collect();
        let job_size = |bytes: &str| bytes.parse().expect("-z takes a number");
        let (limit, losses) = match flags[..] {
            [] => (beanstalkd::proto::JOB_SIZE_DEFAULT, None),
            ["-z", bytes] => (job_size(bytes), None),
            ["--bury-after", losses] => (beanstalkd::proto::JOB_SIZE_DEFAULT, Some(losses)),
            _ => panic!("{}: the pure server does not know the flags {flags:?}", script.name),
        };
        let mut world = World::new(arrival, limit);
        if let Some(losses) = losses {
            world.bury_after(losses.parse().expect("--bury-after takes a number"));
        }
        Self { world, peers: BTreeMap::new() }
    }
}

impl Stage for Memory {
    fn connect(&mut self, connection: &str) -> Result<(), String> {
        let peer = self.world.connect();
        self.peers.insert(connection.into(), peer);
        Ok(())
    }
    fn send(&mut self, connection: &str, bytes: &[u8]) -> Result<(), String> {
        self.world.send(self.peers[connection], bytes);
        Ok(())
    }
    fn receive(&mut self, connection: &str, _: Patience) -> Result<Arrived, String> {
        let peer = self.peers[connection];
        let bytes = self.world.receive(peer);
        if !bytes.is_empty() {
            return Ok(Arrived::Bytes(bytes));
        }
        Ok(if self.world.is_open(peer) { Arrived::Nothing } else { Arrived::Closed })
    }
    fn half_close(&mut self, connection: &str) -> Result<(), String> {
        self.world.half_close(self.peers[connection]);
        Ok(())
    }
    fn close(&mut self, connection: &str) -> Result<(), String> {
        self.world.close(self.peers[connection]);
        Ok(())
    }
    /// Urgent bytes exist only in sockets.
    fn urgent(&mut self, _: &str, _: u8) -> Result<(), String> {
        Ok(())
    }
    fn drain(&mut self) -> Result<(), String> {
        self.world.drain();
        Ok(())
    }
    fn advance(&mut self, time: Duration) -> Result<(), String> {
        self.world.advance(time);
        Ok(())
    }
}

/// Plays every script. Fails with the first failure, and the places of the other failures.
fn play(arrival: &Arrival, scripts: &[Script], ours: &Dialect) {
    let failures: Vec<_> = scripts
        .iter()
        .filter_map(|script| {
            let mut stage = Memory::new(script, arrival.clone());
            let failure = ct::run(script, ours, 0, &mut stage).err();
            stage.world.server.check();
            let failure = failure?;
            Some((format!("{}:{}", script.name, failure.line), failure))
        })
        .collect();
    if let Some(((place, first), others)) = failures.split_first() {
        let others: Vec<_> = others.iter().map(|(place, _)| place.as_str()).collect();
        panic!(
            "with bytes that arrive as {arrival:?}:\n{}\n{place}: {}\nalso: {}",
            first.transcript,
            first.message,
            others.join(" ")
        );
    }
}

/// A client whose bytes arrive one by one or in other pieces would get other replies.
#[test]
fn in_memory_in_one_piece_byte_by_byte_and_in_random_pieces() {
    let (scripts, ours) = (scripts(), Dialect::named("ours").expect("our own dialect is known"));
    assert!(!scripts.is_empty());
    play(&Arrival::Whole, &scripts, &ours);
    play(&Arrival::SingleBytes, &scripts, &ours);
    for seed in 0..10 {
        play(&Arrival::Pieces(Prng::new(seed)), &scripts, &ours);
    }
}
