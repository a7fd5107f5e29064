//! Generates the operations of a run from a seed. The choices favour states in which faults are
//! likely: few tubes, few priorities, short times, jobs that exist, commands that are nearly valid.
//!
//! The generator never sees a reply, so a seed means the same operations for all daemons. The
//! runner omits operations that must not be sent to one of the daemons.
//!
//! **Time.** All timers of the protocol run for whole seconds. Some runs have pauses of 0.25, 1.25
//! or 2.25 seconds between bursts. So the time from the beginning of one burst to the beginning of
//! another differs from a whole number of seconds by at least 0.25 seconds, unless they begin
//! together. If a burst takes only a fraction of 0.25 seconds, both daemons agree on which timers
//! are due. After a fourth pause, operations and timers could coincide, so a run has at most three
//! pauses.

use std::time::Duration;

use super::operation::{Command, Job, Operation, Part, Peer};
use crate::prng::Prng;

/// The number of bursts in a run with pauses.
const BURSTS_PER_RUN: usize = 3;
/// The most operations of a burst.
const OPERATIONS_PER_BURST: usize = 20;
/// The most operations of a run without pauses.
const QUICK_RUN_OPERATIONS_MAX: usize = 400;

/// A job id that no run reaches.
const NO_JOB: &str = "4000000000";

/// The kind of run to generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GeneratorOptions {
    /// The most operations of a run. Some kinds of run allow fewer operations.
    pub(crate) steps: usize,
    /// Whether most commands are garbage.
    pub(crate) garbage: bool,
    /// Whether a run may send SIGUSR1, after which the daemons refuse puts.
    pub(crate) can_drain: bool,
    /// Whether the daemons are restarted. Runs with restarts omit `reserve-job`, releases without
    /// delay (B12) and `bury` (B13), which the original's binlog does not record correctly. One job
    /// exists during the whole run, so that ids continue after a restart (B16).
    pub(crate) restarts: bool,
}

/// Generates the operations of a run from a seed.
pub(crate) fn generate(seed: u64, options: GeneratorOptions) -> Vec<Operation> {
    let mut prng = Prng::new(seed);
    let peers = 2 + at_most(&mut prng, 3);
    let is_timed = prng.chance(2, 5);
    let drains = options.can_drain && prng.chance(1, 12);
    let mut generator = Generator { prng, options, peers, puts: 0 };
    let mut operations = if is_timed { generator.timed() } else { generator.quick() };
    if options.restarts {
        for _ in 0..=at_most(&mut generator.prng, 2) {
            let position = at_most(&mut generator.prng, operations.len());
            operations.insert(position, Operation::Restart);
        }
        // The first operation, on a connection of its own, puts the job that exists during the
        // whole run.
        operations.insert(0, Operation::send(peers, generator.put(u32::MAX, u32::MAX)));
    }
    if drains {
        let last = operations.len() / 5;
        let position = operations.len() - at_most(&mut generator.prng, last);
        operations.insert(position, Operation::Drain);
    }
    operations
}

/// Returns a random number of the generator from 0 to `most`, both included.
fn at_most(prng: &mut Prng, most: usize) -> usize {
    usize::try_from(prng.below(most as u64 + 1)).expect("not above a usize")
}

struct Generator {
    prng: Prng,
    options: GeneratorOptions,
    peers: usize,
    /// The number of puts that were generated so far.
    puts: usize,
}

impl Generator {
    /// Generates the operations of a run without pauses.
    fn quick(&mut self) -> Vec<Operation> {
        (0..self.options.steps.min(QUICK_RUN_OPERATIONS_MAX)).map(|_| self.operation()).collect()
    }

    /// Generates the operations of a run with pauses between bursts.
    fn timed(&mut self) -> Vec<Operation> {
        let each = self.options.steps.div_ceil(BURSTS_PER_RUN).min(OPERATIONS_PER_BURST);
        let mut operations = Vec::new();
        for _ in 0..BURSTS_PER_RUN {
            operations.extend((0..each).map(|_| self.operation()));
            operations
                .push(Operation::Sleep(Duration::from_millis(self.pick(&[250, 1250, 1250, 2250]))));
        }
        operations
    }

    /// Picks one of the generator's choices at random.
    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[at_most(&mut self.prng, choices.len() - 1)]
    }

    /// Generates an operation.
    fn operation(&mut self) -> Operation {
        let peer = at_most(&mut self.prng, self.peers - 1);
        match self.prng.below(100) {
            0..=1 => Operation::Close(peer),
            2 => Operation::HalfClose(peer),
            3..=12 => {
                let commands = (0..2 + at_most(&mut self.prng, 4)).map(|_| self.command());
                Operation::Send { peer, commands: commands.collect(), cut: None }
            }
            13..=15 => self.worker(peer),
            16..=22 => {
                let commands = (0..=at_most(&mut self.prng, 2)).map(|_| self.command()).collect();
                let cut = u16::try_from(self.prng.below(1001)).expect("at most 1000");
                Operation::Send { peer, commands, cut: Some(cut) }
            }
            _ => Operation::send(peer, self.command()),
        }
    }

    /// Generates a worker: a connection that waits for the jobs of one tube.
    fn worker(&mut self, peer: Peer) -> Operation {
        let tube = self.tube();
        let reserve = self.pick(&["reserve", "reserve-with-timeout 1", "reserve-with-timeout 2"]);
        let lines = [&format!("watch {tube}"), "ignore default", "ignore a", reserve];
        let lines = lines.into_iter().filter(|line| *line != format!("ignore {tube}"));
        Operation::Send { peer, commands: lines.map(Command::line).collect(), cut: None }
    }

    /// Generates a command, valid or not.
    fn command(&mut self) -> Command {
        match self.prng.below(100) {
            _ if self.options.garbage && self.prng.chance(2, 3) => self.garbage(),
            // A mutation can change the delay of a release to 0, which a run with restarts must not
            // contain.
            0..=4 if !self.options.restarts => {
                let command = self.valid();
                self.mutate_command(command)
            }
            5 => self.bad_put(),
            _ => self.valid(),
        }
    }

    /// Generates a valid command.
    fn valid(&mut self) -> Command {
        let pri = self.pick(&[0, 1, 1, 1023, 1024, u32::MAX]);
        let delay = self.pick(&[0, 0, 0, 1, 2, u32::MAX]);
        match self.prng.below(44) {
            0..=8 => self.put(pri, delay),
            9..=10 => Command::line(format!("use {}", self.tube())),
            11 => Command::line("reserve"),
            12..=17 => {
                let seconds = self.pick(&[0, 0, 0, 0, 1, 2, 0x7FFF_FFFF]);
                Command::line(format!("reserve-with-timeout {seconds}"))
            }
            18..=19 | 26..=28 if self.options.restarts => self.on_job("kick-job", ""),
            18..=19 => self.on_job("reserve-job", ""),
            20..=22 => self.on_job("delete", ""),
            23..=25 => {
                let least = u32::from(self.options.restarts);
                self.on_job("release", &format!(" {pri} {}", delay.max(least)))
            }
            26..=28 => self.on_job("bury", &format!(" {pri}")),
            29 => self.on_job("touch", ""),
            30..=31 => Command::line(format!("watch {}", self.tube())),
            32..=33 => Command::line(format!("ignore {}", self.tube())),
            34 => self.on_job("peek", ""),
            35 => Command::line(self.pick(&["peek-ready", "peek-delayed", "peek-buried", "stats"])),
            36..=37 => Command::line(format!("kick {}", self.pick(&[0, 1, 1, 2, 100, u32::MAX]))),
            38 => self.on_job("kick-job", ""),
            39 => self.on_job("stats-job", ""),
            40 => Command::line(format!("stats-tube {}", self.tube())),
            41 => Command::line(self.pick(&["list-tubes", "list-tube-used", "list-tubes-watched"])),
            42 => {
                let seconds = self.pick(&[0, 0, 1, 2, 100, u32::MAX]);
                Command::line(format!("pause-tube {} {seconds}", self.tube()))
            }
            _ if self.prng.chance(1, 4) => Command::line("quit"),
            _ => Command::line("stats"),
        }
    }

    /// Picks the name of a tube for a generated command.
    fn tube(&mut self) -> &'static str {
        self.pick(&["default", "default", "a", "a", "b", "c", "long-name.with/all;kinds_(of)+$"])
    }

    /// Generates a command on a job that probably exists.
    fn on_job(&mut self, word: &str, rest: &str) -> Command {
        let latest = self.puts.saturating_sub(1);
        let recent = at_most(&mut self.prng, latest.min(6));
        let job = match self.prng.below(10) {
            0..=5 => Job::Held(self.pick(&[0, 0, 0, 1, 2])),
            6..=8 => Job::Put(latest - recent),
            _ => Job::Put(at_most(&mut self.prng, self.puts + 1)),
        };
        Command::on_job(word, job, rest)
    }

    /// Generates a `put` with a body of the announced length.
    fn put(&mut self, pri: u32, delay: u32) -> Command {
        let ttr = self.pick(&[0, 1, 1, 2, 3, 120, u32::MAX]);
        let size = self.pick(&[0, 1, 1, 5, 20, 300, 20_000]);
        self.put_of(format!("put {pri} {delay} {ttr} {size}\r\n"), body(size), b"\r\n")
    }

    /// Generates a `put` whose body is too large, or has a wrong length or a wrong end.
    fn bad_put(&mut self) -> Command {
        let (announced, sent) = self.pick(&[(3, 2), (3, 4), (5, 1), (0, 3), (20, 9), (2, 30)]);
        let (announced, sent) = match self.prng.below(8) {
            0 => (65_536, 65_536),
            1 => (70_000, 69_990),
            _ => (announced, sent),
        };
        let end: &[u8] = self.pick(&[b"\r\n", b"", b"\r", b"\n", b"\n\r", b"xx"]);
        self.put_of(format!("put 1 0 120 {announced}\r\n"), body(sent), end)
    }

    /// Makes a `put` from a line, a body and the bytes after the body, and counts the put.
    fn put_of(&mut self, line: String, body: Vec<u8>, end: &[u8]) -> Command {
        self.puts += 1;
        let bytes = [line.into_bytes(), body, end.to_vec()].concat();
        Command { put: Some(self.puts - 1), ..Command::raw(bytes) }
    }

    /// Changes a byte, a space, a number or the end of a generated command.
    fn mutate_command(&mut self, mut command: Command) -> Command {
        for _ in 0..=at_most(&mut self.prng, 1) {
            let part = at_most(&mut self.prng, command.parts.len() - 1);
            match &mut command.parts[part] {
                Part::Bytes(bytes) => self.mutate_bytes(bytes),
                id @ Part::Id(_) => *id = Part::Bytes(self.number().into()),
            }
        }
        command
    }

    /// Changes a generated command's bytes so that the command is nearly valid.
    fn mutate_bytes(&mut self, bytes: &mut Vec<u8>) {
        let line = bytes.windows(2).position(|pair| pair == b"\r\n").unwrap_or(bytes.len());
        let position = at_most(&mut self.prng, line);
        let odd = self.pick(b"  \t\0\n-+:;_09azAZ|%\x7f\x80\xff");
        match self.prng.below(9) {
            0 => bytes.insert(position, odd),
            1 | 2 if position < line => {
                bytes.remove(position);
            }
            3 if position < line => bytes[position] = odd,
            4 if position < line => bytes[position] ^= 0x20,
            5 => bytes.truncate(position),
            6 => {
                let word = [b" ", self.number().as_bytes()].concat();
                bytes.splice(position..position, word);
            }
            7 => {
                let filling = vec![self.pick(b"a 0\0"); self.pick(&[190, 200, 201, 215, 400, 900])];
                bytes.splice(position..position, filling);
            }
            _ => {
                let number = self.number();
                replace_number(bytes, line, number);
            }
        }
    }

    /// Picks a number, valid or not, for a generated command.
    fn number(&mut self) -> &'static str {
        self.pick(&[
            "0",
            "1",
            "007",
            "-1",
            "+1",
            "",
            " ",
            "1x",
            "1.5",
            "2147483647",
            "2147483648",
            "4294967295",
            "4294967296",
            "18446744073709551615",
            "18446744073709551616",
            "99999999999999999999999999",
            "0x10",
            NO_JOB,
        ])
    }

    /// Generates a line of words and bytes that no client would send.
    fn garbage(&mut self) -> Command {
        let mut bytes = Vec::new();
        for _ in 0..=at_most(&mut self.prng, 7) {
            match self.prng.below(12) {
                0..=3 => bytes.extend_from_slice(self.word().as_bytes()),
                4 | 5 => bytes.extend_from_slice(self.number().as_bytes()),
                6 => bytes.extend_from_slice(self.tube().as_bytes()),
                7 => bytes.extend((0..at_most(&mut self.prng, 20)).map(|_| self.byte())),
                8 => {
                    let (byte, most) = (self.byte(), self.pick(&[3, 30, 300]));
                    bytes.extend(vec![byte; at_most(&mut self.prng, most)]);
                }
                9 => bytes.extend_from_slice(b"\r\n"),
                _ => bytes.push(b' '),
            }
            if self.prng.chance(1, 2) {
                bytes.push(b' ');
            }
        }
        if !self.prng.chance(1, 12) {
            bytes.extend_from_slice(b"\r\n");
        }
        Command::raw(bytes)
    }

    /// Generates a byte of any value.
    fn byte(&mut self) -> u8 {
        u8::try_from(self.prng.below(256)).expect("a byte")
    }

    /// Picks a word for a generated line that no client would send.
    fn word(&mut self) -> &'static str {
        self.pick(&[
            "put",
            "put 0 0 120 1",
            "put 1 0 1 3\r\nabc",
            "use",
            "reserve",
            "reserve-with-timeout",
            "reserve-with-timeout 0",
            "reserve-job",
            "delete",
            "release",
            "bury",
            "touch",
            "watch",
            "ignore",
            "peek",
            "peek-ready",
            "peek-delayed",
            "peek-buried",
            "kick",
            "kick-job",
            "stats",
            "stats-job",
            "stats-tube",
            "list-tubes",
            "list-tube-used",
            "list-tubes-watched",
            "pause-tube",
            "qui",
        ])
    }
}

/// Generates a body of one repeated byte or, if the body is short, of bytes that are hard to parse.
fn body(size: usize) -> Vec<u8> {
    match size {
        0..=20 => (0..size).map(|at| b"\r\n\0put 0 stats"[at % 13]).collect(),
        _ => vec![b'x'; size],
    }
}

/// Replaces the last number of a generated line.
fn replace_number(bytes: &mut Vec<u8>, line: usize, number: &str) {
    let Some(last) = bytes[..line].iter().rposition(u8::is_ascii_digit) else { return };
    let before = bytes[..last].iter().rposition(|byte| !byte.is_ascii_digit());
    bytes.splice(before.map_or(0, |at| at + 1)..=last, number.bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: GeneratorOptions =
        GeneratorOptions { steps: 120, garbage: false, can_drain: true, restarts: false };

    #[test]
    fn a_seed_gives_the_same_operations_every_time() {
        for seed in 0..50 {
            for garbage in [false, true] {
                let options = GeneratorOptions { garbage, ..OPTIONS };
                assert_eq!(generate(seed, options), generate(seed, options));
            }
            assert_ne!(generate(seed, OPTIONS), generate(seed + 1, OPTIONS));
        }
    }

    #[test]
    fn no_two_bursts_share_a_quarter_of_a_second() {
        let mut timed = 0;
        for seed in 0..200 {
            let operations = generate(seed, OPTIONS);
            let sleeps = operations.iter().filter_map(|operation| match operation {
                Operation::Sleep(time) => Some(time.as_millis()),
                _ => None,
            });
            let sleeps: Vec<u128> = sleeps.collect();
            assert!(sleeps.iter().all(|time| time % 1000 == 250), "{sleeps:?}");
            assert!(sleeps.is_empty() || sleeps.len() == BURSTS_PER_RUN);
            timed += usize::from(!sleeps.is_empty());
        }
        assert!((50..110).contains(&timed), "{timed} of 200 runs let time pass");
    }

    /// Differences in a command that is never generated would never be found.
    #[test]
    fn every_command_and_every_operation_is_generated() {
        let mut text = String::new();
        for seed in 0..60 {
            for operation in generate(seed, OPTIONS) {
                match operation {
                    Operation::Send { commands, cut, .. } => {
                        text += if cut.is_some() { "Cut;" } else { "" };
                        for command in commands {
                            let Part::Bytes(bytes) = &command.parts[0] else { continue };
                            text += &String::from_utf8_lossy(bytes);
                            text.push(';');
                        }
                    }
                    other => {
                        let name = format!("{other:?}");
                        text += &name;
                        text.push(';');
                    }
                }
            }
        }
        let words = [
            "put ",
            "use ",
            "reserve\r",
            "reserve-with-timeout ",
            "reserve-job ",
            "delete ",
            "release ",
            "bury ",
            "touch ",
            "watch ",
            "ignore ",
            "peek ",
            "peek-ready",
            "peek-delayed",
            "peek-buried",
            "kick ",
            "kick-job ",
            "stats\r",
            "stats-job ",
            "stats-tube ",
            "list-tubes\r",
            "list-tube-used",
            "list-tubes-watched",
            "pause-tube ",
            "quit",
            "HalfClose",
            "Close",
            "Sleep",
            "Drain",
            "Cut",
        ];
        for word in words {
            let found = text.contains(&format!(";{word}"));
            assert!(found, "{word} never comes up");
        }
    }

    #[test]
    fn a_number_is_replaced_in_its_line() {
        let mut bytes = b"put 1 20 300 4\r\n1234\r\n".to_vec();
        replace_number(&mut bytes, 14, "-1");
        assert_eq!(bytes, b"put 1 20 300 -1\r\n1234\r\n");
        let mut bytes = b"stats\r\n".to_vec();
        replace_number(&mut bytes, 5, "-1");
        assert_eq!(bytes, b"stats\r\n");
    }
}
