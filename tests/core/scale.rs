//! A command's cost must not grow with the jobs, tubes and connections of other clients. The cost
//! is counted in items visited, not in seconds. Large work must be done in slices.

use std::time::Duration;

use beanstalkd::server::JOBS_PER_SLICE;

use crate::world::{Arrival, World};

/// The commands of a worker's round on a tube of its own.
const ROUND: &[u8] =
    b"use work\r\nwatch work\r\nignore default\r\nput 9 0 60 1\r\nx\r\nput 8 1 60 1\r\n\
    y\r\nreserve\r\nstats-tube work\r\npause-tube work 1\r\npause-tube work 0\r\n";

/// Makes a world with `count` of everything that the original searches: tubes with a delayed job,
/// connections that wait in a reserve, ready jobs, jobs held by one connection.
fn crowded(count: usize) -> World {
    let mut world = World::new(Arrival::Whole, 65_535);
    let producer = world.connect();
    for number in 0..count {
        let delayed = format!("use tube-{number}\r\nput 0 1000 60 1\r\nx\r\n");
        world.send(producer, delayed.as_bytes());
        world.send(producer, b"use backlog\r\nput 0 0 60 1\r\nx\r\n");
    }
    let holder = world.connect();
    world.send(holder, b"watch backlog\r\n");
    for _ in 0..count / 2 {
        world.send(holder, b"reserve\r\n");
    }
    for _ in 0..count {
        let waiter = world.connect();
        world.send(waiter, b"watch waiters\r\nignore default\r\nreserve\r\n");
    }
    world
}

/// Returns how many items a worker's commands, and the tick of its delayed job, visit.
fn visits_of_a_round(world: &mut World) -> u64 {
    let worker = world.connect();
    world.send(worker, ROUND);
    let before = world.server.queue().visits();
    world.send(worker, ROUND);
    world.advance(Duration::from_secs(2));
    let visits = world.server.queue().visits() - before;
    assert!(!world.receive(worker).is_empty());
    visits
}

/// The original looked at all tubes on every put, reserve, use and watch and in every turn, and at
/// all waiters on every wake-up. Ten thousand tubes made the original fifty times slower.
///
/// Proves: B23.
#[test]
fn a_command_costs_the_same_in_a_crowd() {
    let few = visits_of_a_round(&mut crowded(10));
    let many = visits_of_a_round(&mut crowded(2_000));
    // Three heaps grow from 10 to 2,000 entries: eight levels more, for each of a few operations.
    assert!(many <= few + 100, "{few} items looked at among few, {many} among many");
}

/// A worker that holds a thousand jobs could touch, release and delete only seventeen a second.
///
/// Proves: B23.
#[test]
fn a_held_job_costs_the_same_among_many() {
    let visits = |held: usize| {
        let mut world = World::new(Arrival::Whole, 65_535);
        let worker = world.connect();
        for _ in 0..held {
            world.send(worker, b"put 0 0 1000 1\r\nx\r\nreserve\r\n");
        }
        let before = world.server.queue().visits();
        world.send(worker, b"touch 1\r\nrelease 2 0 0\r\ndelete 3\r\nbury 4 0\r\n");
        world.server.queue().visits() - before
    };
    let (few, many) = (visits(10), visits(5_000));
    assert!(many <= few + 100, "{few} items looked at among few, {many} among many");
}

/// A worker that watches many tubes would join and leave the waiters of all of them for each job.
#[test]
fn waiting_costs_the_same_for_a_worker_with_many_tubes() {
    let visits = |tubes: usize| {
        let mut world = World::new(Arrival::Whole, 65_535);
        let (producer, worker) = (world.connect(), world.connect());
        for number in 0..tubes {
            world.send(worker, format!("watch tube-{number}\r\n").as_bytes());
        }
        let mut round = || {
            world.send(worker, b"reserve\r\n");
            world.send(producer, b"put 0 0 60 1\r\nx\r\n");
        };
        round();
        round();
        let before = world.server.queue().visits();
        world.send(worker, b"reserve\r\n");
        world.send(producer, b"put 0 0 60 1\r\nx\r\n");
        let visits = world.server.queue().visits() - before;
        world.server.check();
        visits
    };
    let (one, many) = (visits(1), visits(1_000));
    assert!(many <= one + 10, "{one} items looked at with one tube, {many} with a thousand");
}

/// A kick of a million jobs would hold up all other clients.
#[test]
fn a_long_kick_lets_others_in_between() {
    let mut world = World::new(Arrival::Whole, 65_535);
    let (operator, other) = (world.connect(), world.connect());
    let count = 3 * JOBS_PER_SLICE + 1;
    for _ in 0..count {
        world.send(operator, b"put 0 1000 60 1\r\nx\r\n");
    }
    world.receive(operator);
    world.pause_turns();
    world.send(operator, b"kick 4294967295\r\nlist-tube-used\r\n");
    world.send(other, b"stats-tube default\r\n");
    for turn in 1..=4 {
        world.turn();
        let ready = world.server.queue().counts().ready;
        assert_eq!(ready, u64::from(count.min(turn * JOBS_PER_SLICE)), "one slice a turn");
        world.server.check();
    }
    let reply = String::from_utf8(world.receive(other)).unwrap();
    assert!(reply.contains("current-jobs-ready: 1000\n"), "served after one slice: {reply}");
    world.turn();
    let replies = String::from_utf8(world.receive(operator)).unwrap();
    assert_eq!(
        replies,
        format!("KICKED {count}\r\nUSING default\r\n"),
        "in order, when all is done"
    );
}

/// The end of a pause, with twenty thousand waiting workers and as many jobs, would hold up all
/// clients.
#[test]
fn the_end_of_a_pause_lets_others_in_between() {
    for by_command in [true, false] {
        let mut world = World::new(Arrival::Whole, 65_535);
        let (operator, other) = (world.connect(), world.connect());
        let count = 2 * JOBS_PER_SLICE + 1;
        let workers: Vec<_> = (0..count).map(|_| world.connect()).collect();
        world.send(operator, b"pause-tube default 10\r\n");
        for &worker in &workers {
            world.send(worker, b"reserve\r\n");
            world.send(operator, b"put 0 0 60 1\r\nx\r\n");
        }
        world.receive(operator);
        world.pause_turns();
        world.turn();
        if by_command {
            world.send(operator, b"pause-tube default 0\r\nreserve-with-timeout 0\r\n");
        } else {
            world.advance(Duration::from_secs(11));
        }
        world.send(other, b"stats-tube default\r\n");
        world.turn();
        let reply = String::from_utf8(world.receive(other)).unwrap();
        assert!(reply.contains("current-jobs-reserved: 1000\n"), "after one slice: {reply}");
        world.turn();
        world.turn();
        world.server.check();
        for worker in workers {
            assert!(world.receive(worker).starts_with(b"RESERVED"), "{worker}");
        }
        let stats = world.server.queue().counts();
        assert_eq!((stats.reserved, stats.waiting), (u64::from(count), 0));
        if by_command {
            world.turn();
            assert_eq!(world.receive(operator), b"PAUSED\r\nTIMED_OUT\r\n");
        }
    }
}

/// A kick whose client disconnects would stop halfway.
#[test]
fn a_long_kick_survives_its_client() {
    let mut world = World::new(Arrival::Whole, 65_535);
    let (operator, other) = (world.connect(), world.connect());
    world.send(operator, b"use lane\r\n");
    for _ in 0..2 * JOBS_PER_SLICE {
        world.send(operator, b"put 0 1000 60 1\r\nx\r\n");
    }
    world.pause_turns();
    world.send(operator, b"kick 4294967295\r\n");
    world.turn();
    world.close(operator);
    world.send(other, b"list-tubes\r\n");
    world.turn();
    world.turn();
    world.turn();
    assert_eq!(world.server.queue().counts().ready, u64::from(2 * JOBS_PER_SLICE));
    assert!(world.server.next_deadline().is_none(), "nothing is left to do");
    world.server.check();
}

/// A worker that crashes with a million reserved jobs would hold up all other clients.
#[test]
fn a_departed_client_returns_its_jobs_in_slices() {
    let mut world = World::new(Arrival::Whole, 65_535);
    let (worker, other) = (world.connect(), world.connect());
    let count = 2 * JOBS_PER_SLICE + 1;
    for _ in 0..count {
        world.send(worker, b"put 0 0 1000 1\r\nx\r\nreserve\r\n");
    }
    world.pause_turns();
    world.close(worker);
    assert_eq!(
        world.server.queue().counts().ready,
        u64::from(JOBS_PER_SLICE),
        "the first slice at once"
    );
    world.send(other, b"delete 2001\r\n");
    world.turn();
    world.turn();
    assert_eq!(world.receive(other), b"NOT_FOUND\r\n", "it is not back yet");
    world.turn();
    assert_eq!(world.server.queue().counts().ready, u64::from(count));
    assert_eq!(world.server.queue().counts().reserved, 0);
    world.server.check();
}

/// A worker that watches a hundred thousand tubes and disconnects would hold up all other clients.
#[test]
fn a_departed_client_leaves_its_tubes_in_slices() {
    for waits in [false, true] {
        let mut world = World::new(Arrival::Whole, 65_535);
        let (worker, other) = (world.connect(), world.connect());
        for number in 0..2 * JOBS_PER_SLICE {
            world.send(worker, format!("watch tube-{number}\r\n").as_bytes());
        }
        if waits {
            world.send(worker, b"reserve\r\n");
            world.send(other, b"use tube-7\r\n");
        }
        world.pause_turns();
        world.close(worker);
        let tubes = |world: &World| world.server.queue().tubes();
        // The first slice ended that many watches, one of them of `default`, which stays.
        assert_eq!(tubes(&world), 1 + JOBS_PER_SLICE as usize + 1, "the first slice at once");
        assert_eq!(world.server.queue().counts().connections, 1);
        world.server.check();
        if waits {
            world.send(other, b"put 0 0 60 1\r\nx\r\n");
        }
        world.turn();
        world.server.check();
        let used = usize::from(waits);
        assert_eq!(tubes(&world), 1 + 1 + used);
        world.turn();
        assert_eq!(tubes(&world), 1 + used);
        world.turn();
        assert!(world.server.next_deadline().is_none(), "nothing is left to do");
        world.server.check();
    }
}

/// The job of a client that disconnects would be returned only after the hundred thousand jobs of a
/// client that disconnected earlier.
#[test]
fn a_client_with_little_does_not_leave_behind_one_with_much() {
    let mut world = World::new(Arrival::Whole, 65_535);
    let (much, little, other) = (world.connect(), world.connect(), world.connect());
    for _ in 0..10 * JOBS_PER_SLICE {
        world.send(much, b"put 0 0 1000 1\r\nx\r\nreserve\r\n");
    }
    world.send(little, b"use lane\r\nwatch lane\r\nput 0 0 1000 1\r\nx\r\nreserve\r\n");
    world.pause_turns();
    world.close(much);
    world.close(little);
    world.turn();
    world.server.check();
    world.send(other, b"peek 10001\r\nstats-tube lane\r\n");
    world.turn();
    world.turn();
    let reply = String::from_utf8(world.receive(other)).unwrap();
    assert!(reply.contains("current-jobs-ready: 1\n"), "{reply}");
    assert!(
        world.server.queue().counts().reserved > u64::from(5 * JOBS_PER_SLICE),
        "the others still wait"
    );
}

/// Ten thousand jobs whose times to run end at once would make one long turn, not ten short ones.
#[test]
fn a_mass_expiry_is_done_in_slices() {
    let mut world = World::new(Arrival::Whole, 65_535);
    let worker = world.connect();
    let count = 2 * JOBS_PER_SLICE + 1;
    for _ in 0..count {
        world.send(worker, b"put 0 0 1 1\r\nx\r\nreserve\r\n");
    }
    world.pause_turns();
    // This turn has no commands: commands in a turn let it handle more timers.
    world.turn();
    world.advance(Duration::from_secs(5));
    for turn in 1..=3 {
        world.turn();
        assert_eq!(
            world.server.queue().counts().timeouts,
            u64::from(count.min(turn * JOBS_PER_SLICE))
        );
    }
}

/// Two workers that crash in the same turn, the first with a thousand jobs, would end the daemon.
#[test]
fn several_departed_clients_share_a_slice() {
    let mut world = World::new(Arrival::Whole, 65_535);
    let workers = [world.connect(), world.connect(), world.connect()];
    for worker in workers {
        for _ in 0..JOBS_PER_SLICE {
            world.send(worker, b"put 0 0 1000 1\r\nx\r\nreserve\r\n");
        }
    }
    world.pause_turns();
    for worker in workers {
        world.close(worker);
    }
    for turn in 1..=3 {
        // Each worker leaves a tube as well, which is part of a slice.
        let ready = world.server.queue().counts().ready;
        assert!(ready.abs_diff(u64::from(turn * JOBS_PER_SLICE)) <= 3, "{ready} in turn {turn}");
        world.turn();
    }
    assert_eq!(world.server.queue().counts().ready, u64::from(3 * JOBS_PER_SLICE));
    assert!(world.server.next_deadline().is_none(), "nothing is left to do");
}

/// A kick of one job would wait for another client's kick of a million.
#[test]
fn a_short_kick_does_not_wait_for_a_long_one() {
    let mut world = World::new(Arrival::Whole, 65_535);
    let (operator, other) = (world.connect(), world.connect());
    world.send(other, b"use other\r\nput 0 1000 60 1\r\nx\r\n");
    for _ in 0..5 * JOBS_PER_SLICE {
        world.send(operator, b"put 0 1000 60 1\r\nx\r\n");
    }
    world.receive(other);
    world.pause_turns();
    world.send(operator, b"kick 4294967295\r\n");
    world.turn();
    world.send(other, b"kick 1\r\n");
    // The short kick is done after one more slice of the long kick.
    for _ in 0..3 {
        world.turn();
    }
    assert_eq!(world.receive(other), b"KICKED 1\r\n");
}

/// A very large number of due delayed jobs would keep workers from getting `DEADLINE_SOON` and
/// `TIMED_OUT`.
#[test]
fn a_flood_of_one_kind_leaves_room_for_the_others() {
    let mut world = World::new(Arrival::Whole, 65_535);
    let (producer, worker) = (world.connect(), world.connect());
    for _ in 0..3 * JOBS_PER_SLICE {
        world.send(producer, b"put 0 1 60 1\r\nx\r\n");
    }
    world.send(worker, b"watch quiet\r\nignore default\r\nreserve-with-timeout 1\r\n");
    world.receive(worker);
    world.pause_turns();
    world.turn();
    world.advance(Duration::from_secs(2));
    world.turn();
    assert_eq!(world.server.queue().counts().ready, u64::from(JOBS_PER_SLICE));
    assert_eq!(world.receive(worker), b"TIMED_OUT\r\n");
}

/// Producers would add jobs with short delays faster than such jobs become ready, so that jobs
/// would become ready ever later.
#[test]
fn as_many_alarms_are_heeded_as_a_turn_can_set() {
    let mut world = World::new(Arrival::Whole, 65_535);
    let producers: Vec<_> = (0..10).map(|_| world.connect()).collect();
    world.pause_turns();
    for _ in 0..20 {
        for &producer in &producers {
            world.send(producer, &b"put 0 1 60 1\r\nx\r\n".repeat(500));
        }
        world.turn();
        world.advance(Duration::from_secs(1));
    }
    world.turn();
    let late = world.server.queue().counts().delayed;
    assert!(late <= 5_000, "{late} jobs are late, more than one turn puts");
}
