//! The time of a turn while the queue grows to millions of jobs and shrinks again. No other client
//! is served during a turn. The time is the CPU time of the process, and is measured only on
//! request (`make turns`), because a busy machine has slower caches.
//!
//! This test is a crate of its own because it measures the CPU time of its whole process, and sets
//! how the process allocates large blocks: no other test may run in that process.
//!
//! The same commands run several times, and the shortest time of each turn is used: slow work of
//! the turn itself is slow every time, but disturbances by the machine are not.
//!
//! JOBS=10000000 sets the number of jobs, MOST=2000 the microseconds that a turn may take, RUNS=3
//! how often the commands run.

use std::{env, fmt::Write as _, time::Duration};

use beanstalkd::{
    clock::Time,
    collections::Key,
    conn::Conn,
    server::{COMMANDS_PER_CONNECTION, COMMANDS_PER_TURN, Identity, Server, Settings},
    sys,
};

/// How many connections with full buffers use up a turn.
const CONNECTIONS: u32 = COMMANDS_PER_TURN / COMMANDS_PER_CONNECTION;

/// A server and the CPU time of its turns.
struct Stage {
    server: Server,
    conns: Vec<Key<Conn>>,
    now: Time,
    /// The microseconds of each turn of the present act.
    turns: Vec<u64>,
    acts: Vec<Act>,
}

/// A part of the run.
struct Act {
    name: &'static str,
    /// The microseconds of each turn of the act.
    turns: Vec<u64>,
}

impl Act {
    fn hear_again(&mut self, other: &Self) {
        assert_eq!((self.name, self.turns.len()), (other.name, other.turns.len()));
        for (least, again) in self.turns.iter_mut().zip(&other.turns) {
            *least = (*least).min(*again);
        }
    }

    fn worst(&self) -> u64 {
        self.turns.iter().copied().max().unwrap_or_default()
    }

    fn report(&self) -> String {
        let mut turns = self.turns.clone();
        turns.sort_unstable();
        let above = turns.iter().rev().take(5).map(u64::to_string).collect::<Vec<_>>().join(" ");
        let (name, count, median) = (self.name, turns.len(), turns[turns.len() / 2]);
        format!("{name:<36} {count:>6} turns, median {median:>5} us, worst {above}\n")
    }
}

fn cpu_microseconds() -> u64 {
    let (user, system) = sys::cpu_time();
    u64::try_from((user + system).as_micros()).expect("half a million years")
}

fn variable(name: &str, default: u64) -> u64 {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

impl Stage {
    fn new() -> Self {
        let identity = Identity {
            pid: 1,
            version: String::new(),
            id: String::new(),
            hostname: String::new(),
            os: String::new(),
            platform: String::new(),
            rusage: Default::default,
        };
        let now = Time::from_nanoseconds(1_000_000_000_000);
        let settings = Settings::default();
        let mut server = Server::new(identity, settings, now);
        let conns = (0..CONNECTIONS).map(|_| server.open()).collect();
        Self { server, conns, now, turns: Vec::new(), acts: Vec::new() }
    }

    /// Performs a turn as the event loop does, with these bytes for each of the connections.
    fn turn(&mut self, bytes: &[Vec<u8>]) {
        let began = cpu_microseconds();
        self.server.tick(self.now);
        for (&key, bytes) in self.conns.iter().zip(bytes) {
            let (consumed, _) = self.server.feed(key, bytes, COMMANDS_PER_CONNECTION, self.now);
            assert_eq!(consumed, bytes.len());
        }
        self.server.commit(self.now);
        while let Some(key) = self.server.next_dirty() {
            while !self.server.conn(key).output.is_empty() {
                let (slices, count) = self.server.output(key);
                let sent = slices[..count].iter().map(|slice| slice.len()).sum();
                self.server.sent(key, sent);
            }
        }
        self.server.reclaim();
        self.turns.push(cpu_microseconds() - began);
        self.now = self.now + Duration::from_micros(1);
    }

    /// Executes `command` for each number below `count`, in full turns.
    fn all(&mut self, act: &'static str, count: u64, mut command: impl FnMut(u64, &mut String)) {
        let mut number = 0;
        while number < count {
            let bytes: Vec<_> = (0..CONNECTIONS)
                .map(|_| {
                    let mut text = String::new();
                    for _ in 0..COMMANDS_PER_CONNECTION {
                        if number < count {
                            command(number, &mut text);
                        }
                        number += 1;
                    }
                    text.into_bytes()
                })
                .collect();
            self.turn(&bytes);
        }
        self.end(act);
    }

    /// Sends `text` on the first connection, and performs turns until nothing more is due.
    fn once(&mut self, act: &'static str, text: &str) {
        self.turn(&[text.into()]);
        while self.server.next_deadline().is_some_and(|at| at <= self.now) {
            self.turn(&[]);
        }
        self.end(act);
    }

    fn end(&mut self, name: &'static str) {
        self.acts.push(Act { name, turns: std::mem::take(&mut self.turns) });
    }
}

/// Numbers in an order that no cache predicts: a multiplication by an odd number permutes them.
fn scattered(number: u64, bits: u32) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15 | 1) & ((1 << bits) - 1)
}

/// Performs all acts on a new server, and returns them.
fn tell(jobs: u64) -> Vec<Act> {
    let some = jobs / 10;
    // A virtual machine may first have to provide memory; this is not to be measured.
    drop(vec![1u8; usize::try_from(jobs).expect("they fit into memory") * 250]);
    let mut stage = Stage::new();
    let put = |text: &mut String, pri: u64, delay: u32| {
        write!(text, "put {pri} {delay} 60 16\r\n0123456789abcdef\r\n")
            .expect("a string takes all");
    };
    stage.all("put, equal priorities", jobs, |_, text| put(text, 9, 0));
    stage.all("reserve and delete, oldest first", jobs, |number, text| {
        if number % 2 == 0 {
            text.push_str("reserve\r\n");
        } else {
            write!(text, "delete {}\r\n", number / 2 + 1).expect("a string takes all");
        }
    });
    stage.all("delete by id", jobs / 2, |number, text| {
        write!(text, "delete {}\r\n", jobs / 2 + number + 1).expect("a string takes all");
    });
    assert_eq!(stage.server.queue().jobs(), 0);

    let bits = jobs.next_power_of_two().trailing_zeros();
    stage.all("put, random priorities", jobs, |number, text| put(text, scattered(number, 32), 0));
    stage.all("delete in random order", 1 << bits, |number, text| {
        write!(text, "delete {}\r\n", jobs + 1 + scattered(number, bits))
            .expect("a string takes all");
    });
    assert_eq!(stage.server.queue().jobs(), 0);

    stage.all("put with delays", some, |number, text| {
        put(text, 9, 1000 + u32::try_from(number % 1000).expect("below 1000"));
    });
    stage.once("kick of all delayed", "kick 4294967295\r\n");
    let ids = 2 * jobs + 1..2 * jobs + some + 1;
    stage.all("reserve", some, |_, text| text.push_str("reserve\r\n"));
    for key in std::mem::take(&mut stage.conns) {
        stage.server.close(key, stage.now);
    }
    stage.once("return of all reserved", "");
    stage.conns = (0..CONNECTIONS).map(|_| stage.server.open()).collect();
    stage.all("delete by id", some, |number, text| {
        write!(text, "delete {}\r\n", ids.start + number).expect("a string takes all");
    });
    stage.all("put with equal delays", some, |_, text| put(text, 9, 1));
    stage.now = stage.now + Duration::from_secs(2);
    stage.once("all delays end", "");
    stage.all("tubes come", some, |number, text| match number % 2 {
        0 => write!(text, "use tube-{number}\r\n").expect("a string takes all"),
        _ => put(text, 9, 0),
    });

    stage.acts
}

#[test]
#[ignore = "takes minutes and gigabytes: make turns"]
fn no_turn_is_long() {
    sys::tune_allocator();
    let (jobs, runs) = (variable("JOBS", 10_000_000), variable("RUNS", 3));
    let mut acts = tell(jobs);
    for run in 2..=runs {
        eprintln!("told {} of {runs} times", run - 1);
        for (act, again) in acts.iter_mut().zip(&tell(jobs)) {
            act.hear_again(again);
        }
    }
    let report: String = acts.iter().map(Act::report).collect();
    eprintln!("{report}");
    let worst = acts.iter().map(Act::worst).max().expect("there are acts");
    assert!(worst <= variable("MOST", 2000), "a turn took {worst} us");
}
