//! The whole server without sockets, with a clock that jumps. Several connections send any bytes,
//! whole or in pieces, and disconnect at any moment. Every invariant must hold after each step. The
//! simulator's model gets the same bytes, as commands read by the plain reference, and judges every
//! byte of every reply. At the end, all counters are compared.

use std::{num::NonZeroU32, time::Duration};

use beanstalkd::proto;
use ct::Prng;

use super::reference;
use crate::{
    model::{Command, Model, OUTPUT_BOUND, Part, SECOND},
    world::{Arrival, World},
};

/// Larger bodies cost time, and find no more faults.
const JOB_SIZE_LIMIT: u32 = 8000;
const PEERS: usize = 6;

/// The longest line, with its CR LF, as the protocol's description has it.
const LINE_LIMIT: usize = 224;

/// The bytes of one client as commands for the model: a plain second reader of lines and bodies.
#[derive(Debug, Default)]
struct Reading {
    bytes: Vec<u8>,
    /// The length of the next body, with its CR LF, and the reply if the body is skipped.
    body: Option<(usize, Option<&'static str>)>,
    /// Whether the first line has been seen.
    has_spoken: bool,
}

impl Reading {
    fn take(&mut self, new: &[u8]) -> Vec<Command> {
        self.bytes.extend_from_slice(new);
        let mut commands = Vec::new();
        while let Some(command) = self.next() {
            commands.push(command);
        }
        if self.body.is_some_and(|(_, skipped)| skipped.is_none()) && !self.bytes.is_empty() {
            commands.push(Command::Part(Part::Arrived(self.bytes.len() as u64)));
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
        let end = self.bytes.windows(2).position(|two| two == b"\r\n");
        if !self.has_spoken {
            let is_whole = end.is_some_and(|end| end + 2 <= LINE_LIMIT);
            let length = match end {
                Some(end) if is_whole => end,
                _ if self.bytes.len() < LINE_LIMIT => return None,
                _ => LINE_LIMIT,
            };
            self.has_spoken = !self.bytes[..length].trim_ascii().is_empty();
            if reference::is_http(&self.bytes[..length], is_whole) {
                return Some(Command::Part(Part::Http));
            }
        }
        let end = end?;
        let line: Vec<u8> = self.bytes.drain(..end + 2).take(end).collect();
        if end + 2 > LINE_LIMIT {
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
                let (pri, delay, ttr) = (put.pri, put.delay, put.ttr);
                Command::Part(Part::Header { pri, delay, ttr, size: put.size.into() })
            }
            Ok(Read::Use(name)) => Command::Use(name.into()),
            Ok(Read::Reserve(timeout)) => Command::Reserve(timeout),
            Ok(Read::ReserveWithAbort) => Command::ReserveWithAbort,
            Ok(Read::ReserveJob(id)) => Command::ReserveJob(id),
            Ok(Read::Delete(id)) => Command::Delete(id),
            Ok(Read::Release { id, pri, delay }) => Command::Release { id, pri, delay },
            Ok(Read::Bury { id, pri }) => Command::Bury { id, pri },
            Ok(Read::Touch(id)) => Command::Touch(id),
            Ok(Read::Watch(name)) => Command::Watch(name.into()),
            Ok(Read::Ignore(name)) => Command::Ignore(name.into()),
            Ok(Read::Peek(id)) => Command::Peek(id),
            Ok(Read::PeekReady) => Command::PeekReady,
            Ok(Read::PeekDelayed) => Command::PeekDelayed,
            Ok(Read::PeekBuried) => Command::PeekBuried,
            Ok(Read::Kick(bound)) => Command::Kick(bound),
            Ok(Read::KickJob(id)) => Command::KickJob(id),
            Ok(Read::Stats) => Command::Stats,
            Ok(Read::Capabilities) => Command::Capabilities,
            Ok(Read::ListJobs { name, state, limit }) => {
                let state = state_name(state);
                Command::ListJobs { name: name.into(), state, limit: Some(limit) }
            }
            Ok(Read::DeleteTube { name, state, last_id }) => {
                let state = state.map(state_name);
                let last_id = (last_id != u64::MAX).then_some(last_id);
                Command::DeleteTube { name: name.into(), state, last_id }
            }
            Ok(Read::Drain(None)) => Command::Drain("status"),
            Ok(Read::Drain(Some(drains))) => Command::Drain(if drains { "on" } else { "off" }),
            Ok(Read::Metrics(tube)) => Command::Metrics(tube.map(Into::into)),
            Ok(Read::StatsJob(id)) => Command::StatsJob(id),
            Ok(Read::StatsTube(name)) => Command::StatsTube(name.into()),
            Ok(Read::ListTubes) => Command::ListTubes,
            Ok(Read::ListTubeUsed) => Command::ListTubeUsed,
            Ok(Read::ListTubesWatched) => Command::ListTubesWatched,
            Ok(Read::PauseTube { name, delay }) => Command::PauseTube { name: name.into(), delay },
            Ok(Read::Quit) => Command::Quit,
            Ok(Read::Malformed) => {
                let name = if line.starts_with(b"put ") { "put" } else { "pause-tube" };
                bad(Some("BAD_FORMAT"), Some(name))
            }
            Ok(Read::TooBig(size)) => {
                self.body = Some((size as usize + 2, Some("JOB_TOO_BIG")));
                bad(None, Some("put"))
            }
            Err(proto::Reply::UNKNOWN_COMMAND) => bad(Some("UNKNOWN_COMMAND"), None),
            Err(_) => bad(Some("BAD_FORMAT"), None),
        }
    }
}

fn state_name(state: proto::JobState) -> &'static str {
    match state {
        proto::JobState::Ready => "ready",
        proto::JobState::Delayed => "delayed",
        proto::JobState::Buried => "buried",
        proto::JobState::Reserved => "reserved",
    }
}

/// The sizes of bodies: a few are stored apart from small ones, and one is too large.
const SIZES: [usize; 16] = [0, 0, 1, 1, 1, 5, 5, 5, 20, 20, 20, 20, 300, 4095, 8000, 8001];

/// The fuzzer's bytes, from which choices are made.
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

    /// A command that is mostly valid: few tubes, few priorities, short times, small ids.
    fn command(&mut self) -> Vec<u8> {
        let verb = self.byte();
        let pri = self.among(&["0", "1", "1023", "1024", "4294967295", "4294967296"]);
        let delay = self.among(&["0", "0", "1", "2", "5", "4294967295"]);
        let name = self.among(&["default", "a", "b", "long-name.with/all;kinds_(of)+$", "-"]);
        let id = self.byte() % 24;
        let line = match verb % 26 {
            0..=3 => {
                let ttr = self.among(&["0", "1", "2", "3", "10", "4294967295"]);
                let size = self.among(&SIZES);
                let mut body = "\r\n\0put 0 stats".repeat(size / 14 + 1);
                body.truncate(size);
                format!("put {pri} {delay} {ttr} {size}\r\n{body}")
            }
            4 => format!("use {name}"),
            5 => "reserve".into(),
            6 | 7 => {
                let timeout = self.among(&["0", "0", "1", "2", "2147483647", ""]);
                match timeout {
                    "" => "reserve-with-abort".into(),
                    _ => format!("reserve-with-timeout {timeout}"),
                }
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
            _ => match self.byte() % 4 {
                0 => "quit".into(),
                1 => String::new(),
                // A line or a name about as long as allowed.
                2 => {
                    let start = self.among(&["", "use ", "GET /"]);
                    format!("{start}{}", "x".repeat(194 + 2 * usize::from(id)))
                }
                _ => "put 0 0 0".into(),
            },
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
    memory_limit: u64,
}

impl Both {
    fn connect(&mut self) -> usize {
        let peer = self.world.connect();
        self.model.connect(self.world.slot(peer));
        self.readings.push(Reading::default());
        peer
    }

    fn send(&mut self, peer: usize, bytes: &[u8]) {
        self.world.send(peer, bytes);
        let commands = self.readings[peer].take(bytes);
        self.model.set_part(peer, !self.readings[peer].bytes.is_empty());
        self.model.send(peer, &commands);
    }

    fn advance(&mut self, nanoseconds: u64) {
        self.world.advance(Duration::from_nanos(nanoseconds));
        self.model.advance(nanoseconds);
    }

    fn compare(&mut self) {
        let queue = self.world.server.queue();
        self.world.server.check();
        assert_eq!(queue.job_bytes(), self.model.held());
        assert!(queue.job_bytes() <= self.memory_limit);
        assert!(self.world.most_waiting <= OUTPUT_BOUND);
        for peer in 0..self.readings.len() {
            let (got, wanted) = (self.world.receive(peer), self.model.receive(peer));
            assert!(
                got == wanted,
                "peer {peer} got\n{}\nand should have got\n{}",
                got.escape_ascii(),
                wanted.escape_ascii()
            );
            assert_eq!(self.world.is_open(peer), self.model.is_open(peer), "peer {peer}");
        }
    }

    /// Performs one step that the fuzzer chooses.
    fn step(&mut self, choices: &mut Choices<'_>) {
        let (what, who) = (choices.byte(), choices.byte());
        let open: Vec<_> = (0..self.readings.len()).filter(|&it| self.model.is_open(it)).collect();
        if open.is_empty() {
            self.connect();
            return;
        }
        let peer = open[usize::from(who) % open.len()];
        match what {
            0..=159 => {
                let bytes = choices.command();
                self.send(peer, &bytes);
            }
            160..=199 => {
                let bytes = choices.text();
                self.send(peer, &bytes);
            }
            200..=207 => {
                // Several commands in one piece.
                let count = 2 + who % 16;
                let bytes: Vec<_> = (0..count).flat_map(|_| choices.command()).collect();
                self.send(peer, &bytes);
            }
            208..=227 => {
                let times =
                    [1, 1000, SECOND / 2, SECOND - 1, SECOND, 3 * SECOND / 2, 3600 * SECOND];
                self.advance(choices.among(&times) * (1 + u64::from(who % 4)));
            }
            228..=239 if open.len() < PEERS => {
                self.connect();
            }
            240..=244 => {
                self.world.half_close(peer);
                self.model.half_close(peer);
            }
            245..=249 => {
                self.world.close(peer);
                self.model.close(peer);
            }
            250 => {
                self.world.drain();
                self.model.is_draining = true;
            }
            251 => {
                self.world.end_drain();
                self.model.is_draining = false;
            }
            _ => {}
        }
    }

    /// Asks for all counters.
    fn audit(&mut self) {
        let auditor = self.connect();
        let questions = self.model.questions();
        let bytes: Vec<_> = questions.iter().flat_map(Command::bytes).collect();
        self.send(auditor, &bytes);
        self.compare();
    }
}

/// Judges the effect of any bytes, read as choices, on a server.
pub(crate) fn judge(input: &[u8]) {
    let mut choices = Choices(input);
    let first = choices.byte();
    let arrival = match first % 4 {
        0 => Arrival::SingleBytes,
        1 => Arrival::Pieces(Prng::new(choices.byte().into())),
        _ => Arrival::Whole,
    };
    // Exactly two jobs of a usual size fit into the lowest limit.
    let memory_limit =
        choices.among(&[None, None, None, Some(2 * (20 + 130)), Some(1000), Some(50_000)]);
    let mut world = World::new(arrival, JOB_SIZE_LIMIT);
    if let Some(bytes) = memory_limit {
        world.limit_memory(bytes);
    }
    let bury_after = NonZeroU32::new([0, 0, 1, 2][usize::from(first / 4 % 4)]);
    if let Some(losses) = bury_after {
        world.bury_after(losses);
    }
    let bury_after = bury_after.map(NonZeroU32::get);
    let model = Model::new(world.now.as_nanoseconds(), JOB_SIZE_LIMIT, memory_limit, bury_after);
    let memory_limit = memory_limit.unwrap_or(u64::MAX);
    let mut both = Both { world, model, readings: Vec::new(), memory_limit };
    both.connect();
    while !choices.0.is_empty() {
        both.step(&mut choices);
        both.compare();
    }
    both.audit();
    // At the end, more time passes than any delay or any time to run.
    both.advance(u64::from(u32::MAX) * SECOND + SECOND);
    both.compare();
    both.audit();
}
