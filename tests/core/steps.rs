//! The memory that one step takes: a command or a tick. A step is taken only if the memory of
//! [`Level::Critical`] is left, so the step must take less, and rely on no large allocation.
//!
//! [`Level::Critical`]: beanstalkd::memory::Level::Critical

use std::{collections::BTreeMap, time::Duration};

use ct::Prng;

use crate::{
    allocations::{self, Bytes},
    world::{Arrival, World},
};

/// The most bytes that a step takes in small allocations: half of what must be left for any step.
const STEP_MAX_BYTES: isize = 512 << 10;

/// Draws a command of any kind.
fn command(prng: &mut Prng, jobs: usize) -> String {
    let mut below = |bound: usize| usize::try_from(prng.below(bound as u64)).expect("small");
    let (tube, id) = (below(3000), below(1 + jobs));
    match below(24) {
        0..=6 => {
            let size = [0, 1, 10, 100, 1000, 5000, 65_000][below(7)];
            let delay = [0, 0, 3, 1000][below(4)];
            format!("put {} {delay} 60 {size}\r\n{}\r\n", below(5), "x".repeat(size))
        }
        7 => format!("use tube-{tube:0100}\r\n"),
        8 => format!("watch tube-{tube:0100}\r\n"),
        9 => format!("ignore tube-{tube:0100}\r\n"),
        10 | 11 => "reserve-with-timeout 0\r\n".into(),
        12 => "reserve-with-timeout 1\r\n".into(),
        13 => format!("reserve-job {id}\r\n"),
        14 => format!("delete {id}\r\n"),
        15 => format!("release {id} 0 {}\r\n", below(3)),
        16 => format!("bury {id} 0\r\n"),
        17 => format!("kick {}\r\n", [1, 100, 100_000][below(3)]),
        18 => format!("peek {id}\r\n"),
        19 => ["stats\r\n", "list-tubes\r\n", "list-tubes-watched\r\n"][below(3)].into(),
        20 => format!("stats-tube tube-{tube:0100}\r\n"),
        21 => format!("pause-tube tube-{tube:0100} {}\r\n", below(3)),
        22 if below(50) == 0 => format!("delete-tube tube-{tube:0100} ready 0\r\n"),
        23 if below(50) == 0 => "list-jobs default ready 10000\r\n".into(),
        _ => format!("touch {id}\r\n"),
    }
}

/// The memory kept for steps that cannot be refused would not suffice, and the daemon would end. A
/// step that relies on a large allocation ends this test by a signal.
#[test]
fn a_step_takes_little_memory_and_relies_on_no_large_piece() {
    let mut prng = Prng::new(1);
    let mut world = World::new(Arrival::Whole, 65_535);
    world.single_steps();
    let clients: Vec<usize> = (0..50).map(|_| world.connect()).collect();
    let mut most: BTreeMap<String, Bytes> = BTreeMap::new();
    for round in 0..200_000 {
        let client = clients[usize::try_from(prng.below(50)).expect("small")];
        if prng.below(100) == 0 {
            allocations::refuse_large(prng.chance(1, 2));
            world.most_taken = Bytes::default();
            world.advance(Duration::from_millis(300));
            let of_ticks = most.entry("a tick".into()).or_default();
            *of_ticks = of_ticks.max(world.most_taken);
        }
        let command = command(&mut prng, round / 3);
        let verb = command.split([' ', '\r']).next().expect("a verb").to_owned();
        world.most_taken = Bytes::default();
        world.send(client, command.as_bytes());
        let of_verb = most.entry(verb).or_default();
        *of_verb = of_verb.max(world.most_taken);
        world.receive(client);
    }
    allocations::refuse_large(false);
    for (verb, Bytes { small, large }) in &most {
        println!("{verb:24} {small:9} in small pieces {large:9} in large ones");
        assert!(*small <= STEP_MAX_BYTES, "{verb}: {small} bytes");
    }
    world.server.check();
}
