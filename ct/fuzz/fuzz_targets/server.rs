//! The whole server without sockets: several connections that send any bytes, whole or in pieces,
//! go away at any moment, and a clock that jumps. Every invariant must hold after each step, and
//! every byte of every reply is judged by the simulator's model, which gets the same bytes as read
//! by the plain reference.
#![no_main]

use std::time::Duration;

use beanstalkd::proto;
use ct::Prng;
use libfuzzer_sys::fuzz_target;

mod reference;

#[path = "../../../tests/sim/model.rs"]
mod model;
#[path = "../../../tests/sim/world.rs"]
mod world;

use model::{Command, Model, Part, SECOND};
use world::{Arrival, World};

const JOB_SIZE_LIMIT: u32 = 65_535;
const PEERS: usize = 6;

/// The bytes of one client, as the model is to take them: a plain second reading of lines and
/// bodies, which sees all that was ever sent and forgets what it has read.
#[derive(Debug, Default)]
struct Reading {
    bytes: Vec<u8>,
    /// How long the body is that comes next, with its CR LF, and what it is answered if it is
    /// skipped.
    body: Option<(usize, Option<&'static str>)>,
}

impl Reading {
    fn take(&mut self, new: &[u8]) -> Vec<Command> {
        self.bytes.extend_from_slice(new);
        let mut commands = Vec::new();
        while let Some(command) = self.next() {
            commands.push(command);
        }
        commands
    }

    fn next(&mut self) -> Option<Command> {
        if let Some((size, skipped)) = self.body {
            if self.bytes.len() < size {
                return None;
            }
            self.body = None;
            let body = self.bytes.drain(..size).collect();
            return Some(Command::Part(match skipped {
                Some(reply) => Part::Skipped(reply),
                None => Part::Body(body),
            }));
        }
        let end = self.bytes.windows(2).position(|two| two == b"\r\n")?;
        let line: Vec<u8> = self.bytes.drain(..end + 2).take(end).collect();
        if end + 2 > proto::LINE_LIMIT {
            return Some(Command::Part(Part::Skipped("BAD_FORMAT")));
        }
        Some(self.line(&line))
    }

    fn line(&mut self, line: &[u8]) -> Command {
        use proto::Command as Read;
        let bad = |reply, counted| Command::Part(Part::BadLine { reply, counted });
        match reference::read(line, JOB_SIZE_LIMIT) {
            Ok(Read::Put(put)) => {
                self.body = Some((put.size as usize + 2, None));
                Command::Part(Part::Header { pri: put.pri, delay: put.delay, ttr: put.ttr })
            }
            Ok(Read::Use(name)) => Command::Use(name.into()),
            Ok(Read::Reserve { timeout }) => Command::Reserve(timeout),
            Ok(Read::ReserveJob { id }) => Command::ReserveJob(id),
            Ok(Read::Delete { id }) => Command::Delete(id),
            Ok(Read::Release { id, pri, delay }) => Command::Release { id, pri, delay },
            Ok(Read::Bury { id, pri }) => Command::Bury { id, pri },
            Ok(Read::Touch { id }) => Command::Touch(id),
            Ok(Read::Watch(name)) => Command::Watch(name.into()),
            Ok(Read::Ignore(name)) => Command::Ignore(name.into()),
            Ok(Read::Peek { id }) => Command::Peek(id),
            Ok(Read::PeekReady) => Command::PeekReady,
            Ok(Read::PeekDelayed) => Command::PeekDelayed,
            Ok(Read::PeekBuried) => Command::PeekBuried,
            Ok(Read::Kick { bound }) => Command::Kick(bound),
            Ok(Read::KickJob { id }) => Command::KickJob(id),
            Ok(Read::Stats) => Command::Stats,
            Ok(Read::StatsJob { id }) => Command::StatsJob(id),
            Ok(Read::StatsTube(name)) => Command::StatsTube(name.into()),
            Ok(Read::ListTubes) => Command::ListTubes,
            Ok(Read::ListTubeUsed) => Command::ListTubeUsed,
            Ok(Read::ListTubesWatched) => Command::ListTubesWatched,
            Ok(Read::PauseTube { name, delay }) => Command::PauseTube { name: name.into(), delay },
            Ok(Read::Quit) => Command::Quit,
            Err(proto::Refusal::UnknownCommand) => bad(Some("UNKNOWN_COMMAND"), None),
            Err(proto::Refusal::BadFormat(verb)) => {
                bad(Some("BAD_FORMAT"), verb.map(|verb| proto::Verb::NAMES[verb as usize]))
            }
            Err(proto::Refusal::JobTooBig(size)) => {
                self.body = Some((size as usize + 2, Some("JOB_TOO_BIG")));
                bad(None, Some("put"))
            }
        }
    }
}

/// The fuzzer's bytes, as choices.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn among<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// A command that means something more often than not: few tubes, few priorities, short
    /// times, small ids.
    fn command(&mut self) -> Vec<u8> {
        let verb = self.byte();
        let pri = self.among(&["0", "1", "1023", "1024", "4294967295", "4294967296"]);
        let delay = self.among(&["0", "0", "1", "2", "5", "4294967295"]);
        let name = self.among(&["default", "a", "b", "long-name.with/all;kinds_(of)+$", "-"]);
        let id = self.byte() % 24;
        let line = match verb % 26 {
            0..=3 => {
                let ttr = self.among(&["0", "1", "2", "3", "10", "4294967295"]);
                let size = self.among(&[0, 1, 5, 20, 300, 5000, 65_535, 65_536]);
                let body = "x".repeat(size);
                format!("put {pri} {delay} {ttr} {size}\r\n{body}")
            }
            4 => format!("use {name}"),
            5 => "reserve".into(),
            6 | 7 => {
                let timeout = self.among(&["0", "0", "1", "2", "2147483647"]);
                format!("reserve-with-timeout {timeout}")
            }
            8 => format!("reserve-job {id}"),
            9 | 10 => format!("delete {id}"),
            11 => format!("release {id} {pri} {delay}"),
            12 => format!("bury {id} {pri}"),
            13 => format!("touch {id}"),
            14 => format!("watch {name}"),
            15 => format!("ignore {name}"),
            16 => format!("peek {id}"),
            17 => self.among(&["peek-ready", "peek-delayed", "peek-buried"]).into(),
            18 => format!("kick {}", self.among(&["0", "1", "2", "-1"])),
            19 => format!("kick-job {id}"),
            20 => "stats".into(),
            21 => format!("stats-job {id}"),
            22 => format!("stats-tube {name}"),
            23 => self.among(&["list-tubes", "list-tube-used", "list-tubes-watched"]).into(),
            24 => format!("pause-tube {name} {delay}"),
            _ => self.among(&["quit", "", "nonsense", "put 0 0 0"]).into(),
        };
        format!("{line}\r\n").into_bytes()
    }

    fn text(&mut self) -> Vec<u8> {
        let length = usize::from(self.byte()).min(self.0.len());
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        text.into()
    }
}

struct Both {
    world: World,
    model: Model,
    readings: Vec<Reading>,
}

impl Both {
    fn connect(&mut self) {
        let peer = self.world.connect();
        self.model.connect(self.world.slot(peer));
        self.readings.push(Reading::default());
    }

    fn send(&mut self, peer: usize, bytes: &[u8]) {
        self.world.send(peer, bytes);
        let commands = self.readings[peer].take(bytes);
        self.model.send(peer, &commands);
    }

    fn compare(&mut self) {
        self.world.server.queue().check();
        for peer in 0..self.readings.len() {
            let (got, wanted) = (self.world.receive(peer), self.model.receive(peer));
            if got != wanted {
                panic!(
                    "peer {peer} got\n{}\nand should have got\n{}",
                    got.escape_ascii(),
                    wanted.escape_ascii()
                );
            }
            assert_eq!(self.world.is_open(peer), self.model.is_open(peer), "peer {peer}");
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices(input);
    let arrival = match choices.byte() % 4 {
        0 => Arrival::SingleBytes,
        1 => Arrival::Pieces(Prng::new(choices.byte().into())),
        _ => Arrival::Whole,
    };
    let world = World::new(arrival, JOB_SIZE_LIMIT);
    let model = Model::new(world.now.as_nanoseconds());
    let mut both = Both { world, model, readings: Vec::new() };
    both.connect();
    while !choices.0.is_empty() {
        let (what, who) = (choices.byte(), choices.byte());
        let open: Vec<_> = (0..both.readings.len()).filter(|&it| both.model.is_open(it)).collect();
        if open.is_empty() {
            both.connect();
            continue;
        }
        let peer = open[usize::from(who) % open.len()];
        match what {
            0..=159 => {
                let bytes = choices.command();
                both.send(peer, &bytes);
            }
            160..=199 => {
                let bytes = choices.text();
                both.send(peer, &bytes);
            }
            200..=207 => {
                // Several commands in one piece.
                let count = 2 + who % 8;
                let bytes: Vec<_> = (0..count).flat_map(|_| choices.command()).collect();
                both.send(peer, &bytes);
            }
            208..=227 => {
                let time = choices.among(&[1, 1000, SECOND / 2, SECOND - 1, SECOND, 3 * SECOND / 2]);
                let time = time * (1 + u64::from(who % 4));
                both.world.advance(Duration::from_nanos(time));
                both.model.advance(time);
            }
            228..=239 if open.len() < PEERS => both.connect(),
            240..=244 => {
                both.world.half_close(peer);
                both.model.half_close(peer);
            }
            245..=249 => {
                both.world.close(peer);
                both.model.close(peer);
            }
            250 => {
                both.world.drain();
                both.model.is_draining = true;
            }
            _ => {}
        }
        both.compare();
    }
});
