//! The acknowledged jobs of one client, and the checks that the daemon keeps these jobs.
//!
//! Every client has a tube of its own, so no client uses another client's jobs. A job whose `put`
//! was acknowledged must exist, with its body, until its `delete` is acknowledged. A deleted job
//! must never exist again. Commands that were unanswered when the daemon ended may or may not have
//! been executed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::io;

use crate::{Client, Prng};

/// A client with this many jobs or more puts fewer new jobs.
const BACKLOG_MAX_JOBS: usize = 1500;
/// The most commands in a batch.
const BATCH_MAX_COMMANDS: u64 = 30;
/// At most this many deleted jobs are looked up again after a restart.
const REMEMBERED_DELETES_MAX: usize = 5000;
/// The most `peek` commands in flight.
const PEEKS_PER_WINDOW: usize = 200;
/// A job's bytes in the binlog besides its tube's name and its body: two records, and a CR LF.
const JOB_OVERHEAD_BYTES: u64 = 84 + 84 + 2;

/// A job that must exist, or perhaps exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Job {
    /// The number of the job's put among the client's puts; the body contains this number.
    serial: u64,
    size: usize,
}

/// A command without a reply so far.
#[derive(Debug, Clone, Copy)]
enum Sent {
    Put(Job),
    Reserve,
    Delete(u64),
    /// A release or a bury, with the reply that means success.
    Return(&'static str),
    Touch,
    Kick,
    Peek(u64),
}

/// One client's acknowledged jobs, and the generator of its commands.
#[derive(Debug)]
pub(super) struct AcknowledgedJobs {
    prng: Prng,
    tube: String,
    serial: u64,
    jobs: BTreeMap<u64, Job>,
    held: Vec<u64>,
    deleted: VecDeque<u64>,
    sent: VecDeque<Sent>,
    /// The serials of the puts that were unanswered when the daemon ended.
    maybe_put: BTreeSet<u64>,
    /// The ids in the deletes that were unanswered when the daemon ended.
    maybe_deleted: BTreeSet<u64>,
    /// The number of commands that were answered.
    pub(super) commands: u64,
    /// Messages about wrong replies and wrong jobs.
    pub(super) faults: Vec<String>,
    /// The number of acknowledged jobs that are missing.
    pub(super) lost: u64,
}

impl AcknowledgedJobs {
    /// Makes the state of a client that has put no jobs yet.
    pub(super) fn new(number: usize, seed: u64) -> Self {
        Self {
            prng: Prng::new(seed),
            tube: format!("soak-{number}"),
            serial: 0,
            jobs: BTreeMap::new(),
            held: Vec::new(),
            deleted: VecDeque::new(),
            sent: VecDeque::new(),
            maybe_put: BTreeSet::new(),
            maybe_deleted: BTreeSet::new(),
            commands: 0,
            faults: Vec::new(),
            lost: 0,
        }
    }

    /// Returns how many of the client's jobs must exist, and how many more perhaps exist.
    pub(super) fn count(&self) -> (usize, usize) {
        (
            self.jobs.len() - self.maybe_deleted.len(),
            self.maybe_put.len() + self.maybe_deleted.len(),
        )
    }

    /// Returns the size of the live records of the client's jobs in the binlog, in bytes.
    pub(super) fn live_bytes(&self) -> u64 {
        let tube = self.tube.len() as u64;
        self.jobs.values().map(|job| JOB_OVERHEAD_BYTES + tube + job.size as u64).sum()
    }

    /// Connects a client of the soak test, and uses and watches only the client's tube.
    pub(super) fn connect(&self, address: &str) -> io::Result<Client> {
        let mut client = Client::connect(address)?;
        client.command(&format!("use {}", self.tube))?;
        client.command(&format!("watch {}", self.tube))?;
        client.command("ignore default")?;
        Ok(client)
    }

    /// Sends a batch of the client's commands and reads the replies. Fails if the daemon has ended.
    pub(super) fn run_batch(&mut self, client: &mut Client) -> io::Result<()> {
        let mut bytes = Vec::new();
        for _ in 0..=self.prng.below(BATCH_MAX_COMMANDS) {
            let sent = self.choose_command(&mut bytes);
            self.sent.push_back(sent);
        }
        client.send(&bytes)?;
        while let Some(&sent) = self.sent.front() {
            self.receive(client, sent)?;
            self.sent.pop_front();
            self.commands += 1;
        }
        Ok(())
    }

    /// Chooses the client's next command, and appends its bytes.
    fn choose_command(&mut self, bytes: &mut Vec<u8>) -> Sent {
        let roll = self.prng.below(100);
        // With many jobs, the backlog shrinks only slowly, because some cases below put jobs, too.
        let puts = if self.jobs.len() < BACKLOG_MAX_JOBS { 60 } else { 10 };
        if roll < puts {
            return self.put(bytes);
        }
        let mut line = String::new();
        let sent = match (roll % 20, self.held.is_empty()) {
            (0, _) => {
                line.push_str("kick 5");
                Sent::Kick
            }
            (1, _) => match self.random_job() {
                Some(id) => {
                    let _ = write!(line, "peek {id}");
                    Sent::Peek(id)
                }
                None => return self.put(bytes),
            },
            (2..=8, _) | (_, true) => {
                line.push_str("reserve-with-timeout 0");
                Sent::Reserve
            }
            (what, false) => {
                let index = self.prng.below(self.held.len() as u64);
                let index = usize::try_from(index).expect("an index");
                let id = self.held.swap_remove(index);
                match what {
                    9 | 10 => {
                        let delay = self.prng.below(3);
                        let _ = write!(line, "release {id} {} {delay}", self.prng.below(5));
                        Sent::Return("RELEASED")
                    }
                    11 => {
                        let _ = write!(line, "bury {id} 7");
                        Sent::Return("BURIED")
                    }
                    12 => {
                        self.held.push(id);
                        let _ = write!(line, "touch {id}");
                        Sent::Touch
                    }
                    // No command uses the job from now on, so that its time to run ends.
                    13 => return self.put(bytes),
                    _ => {
                        let _ = write!(line, "delete {id}");
                        Sent::Delete(id)
                    }
                }
            }
        };
        bytes.extend_from_slice(line.as_bytes());
        bytes.extend_from_slice(b"\r\n");
        sent
    }

    /// Picks one of the client's jobs that is certain to exist and that no command in flight
    /// deletes.
    fn random_job(&mut self) -> Option<u64> {
        let (&last, _) = self.jobs.last_key_value()?;
        let from = self.prng.below(last + 1);
        let (&id, _) = self.jobs.range(from..).next()?;
        let is_going = |sent: &Sent| matches!(sent, Sent::Delete(other) if *other == id);
        let is_sure = !self.maybe_deleted.contains(&id) && !self.sent.iter().any(is_going);
        is_sure.then_some(id)
    }

    /// Appends a `put` of the client's next job.
    fn put(&mut self, bytes: &mut Vec<u8>) -> Sent {
        let sizes = [10, 100, 100, 300, 1000, 5000];
        let size = sizes[usize::try_from(self.prng.below(6)).expect("an index")];
        let job = Job { serial: self.serial, size };
        self.serial += 1;
        let (pri, delay) = (self.prng.below(5), self.prng.below(10) / 8);
        let ttr = 1 + self.prng.below(3);
        let body = self.body(job);
        let line = format!("put {pri} {delay} {ttr} {}\r\n", body.len());
        bytes.extend_from_slice(line.as_bytes());
        bytes.extend_from_slice(&body);
        bytes.extend_from_slice(b"\r\n");
        Sent::Put(Job { size: body.len(), ..job })
    }

    /// Makes a job's body: the tube, the serial, and bytes that depend on the serial.
    fn body(&self, job: Job) -> Vec<u8> {
        let mut body = format!("{} {} ", self.tube, job.serial).into_bytes();
        let mut prng = Prng::new(job.serial);
        while body.len() < job.size {
            body.extend_from_slice(&prng.next_u64().to_le_bytes());
        }
        body.truncate(job.size.max(24));
        body
    }

    /// Reads the reply to one of the client's commands, and updates the acknowledged jobs.
    fn receive(&mut self, client: &mut Client, sent: Sent) -> io::Result<()> {
        let line = client.line()?;
        let is_right = match sent {
            Sent::Put(job) => match line.strip_prefix("INSERTED ").map(str::parse) {
                Some(Ok(id)) => self.jobs.insert(id, job).is_none(),
                _ => false,
            },
            Sent::Reserve if line.starts_with("RESERVED ") => {
                let (id, body) = body_of(client, &line)?;
                self.check_body(id, &body);
                self.held.push(id);
                true
            }
            Sent::Reserve => line == "TIMED_OUT" || line == "DEADLINE_SOON",
            Sent::Delete(id) => {
                // After its time to run, the job may have been reserved again and deleted.
                let was_there = self.jobs.remove(&id).is_some();
                self.maybe_deleted.remove(&id);
                self.deleted.push_back(id);
                if self.deleted.len() > REMEMBERED_DELETES_MAX {
                    self.deleted.pop_front();
                }
                if was_there && line == "NOT_FOUND" {
                    self.lost += 1;
                }
                line == if was_there { "DELETED" } else { "NOT_FOUND" }
            }
            // `NOT_FOUND` is right if the job's time to run has ended.
            Sent::Return(done) => line == done || line == "NOT_FOUND",
            Sent::Touch => line == "TOUCHED" || line == "NOT_FOUND",
            Sent::Kick => line.starts_with("KICKED "),
            Sent::Peek(id) if line.starts_with("FOUND ") => {
                let (found, body) = body_of(client, &line)?;
                self.check_body(found, &body);
                found == id
            }
            Sent::Peek(_) => false,
        };
        if !is_right {
            self.fault(&format!("{sent:?} was answered {line}"));
        }
        Ok(())
    }

    /// Checks that a job in a reply is one that can exist, and that it has the body that was put.
    fn check_body(&mut self, id: u64, body: &[u8]) {
        let known = self.jobs.get(&id).copied();
        let serial = serial_of(body);
        let job = match (known, serial) {
            (Some(job), _) => job,
            // The job's put was unanswered when the daemon ended.
            (None, Some(serial)) if self.maybe_put.remove(&serial) => {
                let job = Job { serial, size: body.len() };
                self.jobs.insert(id, job);
                job
            }
            _ => return self.fault(&format!("job {id} is not one that should be there")),
        };
        if self.body(job) != body {
            self.fault(&format!("job {id} has another body"));
        }
    }

    /// Records a fault of the daemon: a lost or changed job, or a wrong reply.
    fn fault(&mut self, text: &str) {
        self.faults.push(format!("{}: {text}", self.tube));
    }

    /// After the daemon has ended, marks puts and deletes without a reply as perhaps executed.
    pub(super) fn mark_unanswered(&mut self) {
        for sent in std::mem::take(&mut self.sent) {
            match sent {
                Sent::Put(job) => drop(self.maybe_put.insert(job.serial)),
                Sent::Delete(id) if self.jobs.contains_key(&id) => {
                    self.maybe_deleted.insert(id);
                }
                _ => {}
            }
        }
        self.held.clear();
    }

    /// Checks, after a start of the daemon, that every job that must exist is there, and that no
    /// recently deleted job exists.
    pub(super) fn verify(&mut self, client: &mut Client) -> io::Result<()> {
        let ids: Vec<u64> = self.jobs.keys().copied().collect();
        for ids in ids.chunks(PEEKS_PER_WINDOW) {
            client.send(peeks(ids))?;
            for &id in ids {
                let line = client.line()?;
                let was_unsure = self.maybe_deleted.remove(&id);
                if line.starts_with("FOUND ") {
                    let (id, body) = body_of(client, &line)?;
                    self.check_body(id, &body);
                } else {
                    self.jobs.remove(&id);
                    if !was_unsure {
                        self.lost += 1;
                        self.fault(&format!("job {id} is lost: {line}"));
                    }
                }
            }
        }
        let gone: Vec<u64> = self.deleted.drain(..).collect();
        for ids in gone.chunks(PEEKS_PER_WINDOW) {
            client.send(peeks(ids))?;
            for &id in ids {
                let line = client.line()?;
                if line != "NOT_FOUND" {
                    body_of(client, &line)?;
                    self.fault(&format!("job {id} was deleted and is back"));
                }
            }
        }
        Ok(())
    }

    /// Reserves and deletes all the client's jobs; jobs that cannot be reserved count as lost.
    pub(super) fn drain(&mut self, client: &mut Client) -> io::Result<()> {
        client.command("kick 1000000")?;
        loop {
            // The timeout is longer than any delay and any time to run of these jobs.
            let line = client.command("reserve-with-timeout 4")?;
            if !line.starts_with("RESERVED ") {
                break;
            }
            let (id, body) = body_of(client, &line)?;
            self.check_body(id, &body);
            let line = client.command(&format!("delete {id}"))?;
            if line != "DELETED" {
                self.fault(&format!("job {id}: {line} instead of DELETED"));
            }
            self.jobs.remove(&id);
        }
        self.lost += self.jobs.len() as u64;
        if !self.jobs.is_empty() {
            self.fault(&format!("{} jobs could not be reserved", self.jobs.len()));
        }
        Ok(())
    }
}

/// Returns the commands that peek at jobs with these ids, to check that the jobs exist.
fn peeks(ids: &[u64]) -> String {
    ids.iter().fold(String::new(), |mut all, id| {
        let _ = write!(all, "peek {id}\r\n");
        all
    })
}

/// Reads the body of an acknowledged job after a line `RESERVED <id> <bytes>` or
/// `FOUND <id> <bytes>`.
fn body_of(client: &mut Client, line: &str) -> io::Result<(u64, Vec<u8>)> {
    let mut words = line.split(' ').skip(1).map(str::parse::<u64>);
    let (Some(Ok(id)), Some(Ok(size))) = (words.next(), words.next()) else {
        return Err(io::Error::other(format!("no job: {line}")));
    };
    let size = usize::try_from(size).map_err(io::Error::other)?;
    let mut body = client.bytes(size + 2)?;
    body.truncate(size);
    Ok((id, body))
}

/// Parses the serial in the body of an acknowledged job.
fn serial_of(body: &[u8]) -> Option<u64> {
    let text = body.split(|&byte| byte == b' ').nth(1)?;
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_or_unknown_body_is_a_fault() {
        let mut record = AcknowledgedJobs::new(3, 1);
        let job = Job { serial: 12, size: 100 };
        let body = record.body(job);
        assert_eq!((body.len(), serial_of(&body)), (100, Some(12)));
        record.jobs.insert(7, job);
        record.check_body(7, &body);
        assert!(record.faults.is_empty());
        record.check_body(7, &body[..99]);
        record.check_body(8, &body);
        assert_eq!(record.faults.len(), 2, "{:?}", record.faults);
    }

    #[test]
    fn an_unanswered_command_may_have_been_executed() {
        let mut record = AcknowledgedJobs::new(0, 1);
        let job = Job { serial: 0, size: 30 };
        record.jobs.insert(1, job);
        record.sent.extend([Sent::Delete(1), Sent::Put(Job { serial: 1, size: 30 })]);
        record.mark_unanswered();
        assert_eq!(record.count(), (0, 2));
        let body = record.body(Job { serial: 1, size: 30 });
        record.check_body(2, &body);
        assert!(record.faults.is_empty(), "{:?}", record.faults);
        assert_eq!(record.count(), (1, 1));
    }
}
