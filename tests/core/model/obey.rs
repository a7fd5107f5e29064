//! What each command does to the model, by families of commands.

use super::documents::list;
use super::{Command, JOB_OVERHEAD_BYTES, Job, Model, Part, Put, SECOND, State, Wait};

/// The execution of all commands.
impl Model {
    pub(super) fn obey(&mut self, peer: usize, command: Command) {
        // The end of a skipped body and a line of HTTP are no commands and take no time.
        match command {
            Command::Part(Part::Skipped(reply)) => return self.reply(peer, reply),
            Command::Part(Part::Body(_)) if self.peers[peer].put.is_none() => {
                return self.reply(peer, "OUT_OF_MEMORY");
            }
            Command::Part(Part::Http) => return self.leave(peer),
            Command::Part(Part::Arrived(bytes)) => return self.arrived(peer, bytes),
            _ => {}
        }
        let now = self.instant();
        if let Some(counter) = command.counter() {
            *self.counters.entry(counter).or_default() += 1;
        }
        if self.is_refusing {
            self.refuse_for_memory(peer, now, &command);
        } else if self.is_missing(peer, &command) {
            self.reply(peer, "NOT_FOUND");
        } else {
            self.act(peer, command, now);
        }
    }

    /// Whether the command names a tube or a job that does not exist, or a job that this client may
    /// not change in its present state.
    fn is_missing(&self, peer: usize, command: &Command) -> bool {
        match *command {
            Command::Peek(id) | Command::StatsJob(id) => !self.jobs.contains_key(&id),
            Command::ReserveJob(id) => !self.jobs.contains_key(&id) || self.is_reserved(id),
            Command::Delete(id) => {
                !self.jobs.contains_key(&id) || self.is_reserved(id) && !self.held_by(peer, id)
            }
            Command::Release { id, .. } | Command::Bury { id, .. } | Command::Touch(id) => {
                !self.held_by(peer, id)
            }
            Command::KickJob(id) => !self.jobs.get(&id).is_some_and(|job| {
                matches!(job.state, State::Buried { .. } | State::Delayed { .. })
            }),
            Command::StatsTube(ref name)
            | Command::Metrics(Some(ref name))
            | Command::ListJobs { ref name, .. }
            | Command::DeleteTube { ref name, .. }
            | Command::PauseTube { ref name, .. } => self.find_tube(name).is_none(),
            _ => false,
        }
    }

    fn act(&mut self, peer: usize, command: Command, now: u64) {
        let uses = self.peers[peer].uses.clone();
        match command {
            Command::Put { pri, delay, ttr, body } => self.put(peer, pri, delay, ttr, body, now),
            Command::Part(part) => self.part(peer, part, now),
            Command::Reserve(timeout) => self.reserve(peer, timeout, false, now),
            Command::ReserveWithAbort => self.reserve(peer, None, true, now),
            Command::ReserveJob(id) => self.reserve_job(peer, id, now),
            Command::Release { id, pri, delay } => self.release(peer, id, pri, delay, now),
            Command::Bury { id, pri } => {
                self.bury(id, pri);
                self.reply(peer, "BURIED");
            }
            Command::Touch(id) => self.touch(peer, id, now),
            Command::Delete(id) => self.delete(peer, id, now),
            Command::Peek(id) => self.found(peer, Some(id)),
            Command::PeekReady => self.found(peer, self.first_ready(&uses)),
            Command::PeekDelayed => self.found(peer, self.delayed(&uses).first().copied()),
            Command::PeekBuried => self.found(peer, self.buried(&uses).first().copied()),
            Command::Kick(bound) => self.kick_up_to(bound as usize, peer, now),
            Command::KickJob(id) => {
                self.reply(peer, "KICKED");
                self.kick(id, now);
            }
            Command::Use(name) => self.use_tube(peer, name),
            Command::Watch(name) => self.watch(peer, name),
            Command::Ignore(name) => self.ignore(peer, &name),
            Command::PauseTube { name, delay } => self.pause_tube(peer, &name, delay, now),
            Command::DeleteTube { name, state, last_id } => {
                self.delete_tube(peer, &name, state, last_id.unwrap_or(u64::MAX));
            }
            Command::ListTubeUsed => self.reply(peer, &format!("USING {uses}")),
            Command::ListTubesWatched => self.document(peer, &list(&self.peers[peer].watches)),
            Command::ListTubes => {
                let names: Vec<_> = self.tubes.iter().map(|tube| tube.name.clone()).collect();
                self.document(peer, &list(&names));
            }
            Command::Stats => self.document(peer, &self.stats(now)),
            Command::StatsJob(id) => self.document(peer, &self.stats_job(id, now)),
            Command::StatsTube(name) => self.document(peer, &self.stats_tube(&name, now)),
            Command::Metrics(None) => self.document(peer, &self.metrics()),
            Command::Metrics(Some(name)) => {
                self.document(peer, &self.metrics_of_tube(&name, now));
            }
            Command::Capabilities => self.document(peer, &self.capabilities()),
            Command::ListJobs { name, state, limit } => {
                self.document(peer, &self.list_jobs(&name, state, limit.unwrap_or(100), now));
            }
            Command::Drain(what) => {
                self.is_draining = what == "on" || what == "status" && self.is_draining;
                self.reply(peer, if self.is_draining { "DRAINING" } else { "NOT_DRAINING" });
            }
            Command::Quit => self.leave(peer),
        }
    }

    /// Applies a command for which there is no memory, and returns the reply.
    fn refuse_for_memory(&mut self, peer: usize, now: u64, command: &Command) {
        assert!(!self.is_missing(peer, command), "{command:?} needs no memory");
        match *command {
            Command::Put { pri, delay, ttr, ref body } => {
                assert!(self.header(peer, now, [pri, delay, ttr], body.len() as u64));
                self.peers[peer].put = None;
            }
            Command::Reserve(_) | Command::ReserveWithAbort | Command::ReserveJob(_) => {
                self.peers[peer].is_worker = true;
            }
            Command::Release { delay, .. } => assert!(delay > 0),
            Command::Use(ref name) => assert_eq!(self.find_tube(name), None),
            Command::Watch(ref name) => assert!(!self.peers[peer].watches.contains(name)),
            Command::Kick(_)
            | Command::ListTubes
            | Command::ListTubesWatched
            | Command::ListJobs { .. }
            | Command::DeleteTube { .. } => {}
            _ => panic!("{command:?} needs no memory"),
        }
        self.reply(peer, "OUT_OF_MEMORY");
    }
}

/// Commands that put jobs.
impl Model {
    fn put(&mut self, peer: usize, pri: u32, delay: u32, ttr: u32, mut body: Vec<u8>, now: u64) {
        if !self.header(peer, now, [pri, delay, ttr], body.len() as u64) {
            return self.reply(peer, "OUT_OF_MEMORY");
        }
        body.extend_from_slice(b"\r\n");
        let now = self.instant();
        self.body(peer, now, body);
    }

    fn part(&mut self, peer: usize, part: Part, now: u64) {
        match part {
            Part::Header { pri, delay, ttr, size } => {
                self.header(peer, now, [pri, delay, ttr], size);
            }
            Part::Body(body) => self.body(peer, now, body),
            Part::BadLine { reply: Some(reply), .. } => self.reply(peer, reply),
            Part::BadLine { reply: None, .. } => {}
            Part::Skipped(_) | Part::Http | Part::Arrived(_) => unreachable!("it takes no time"),
        }
    }

    /// Whether the limit on memory admits another job of this size.
    fn has_memory(&self, size: u64) -> bool {
        self.admits(size + 2)
    }

    /// Whether the limit on memory admits this many bytes of another body.
    fn admits(&self, bytes: u64) -> bool {
        let uploads: u64 = self.peers.iter().map(|peer| peer.upload).sum();
        self.memory_limit
            .is_none_or(|limit| self.held() + uploads + bytes + JOB_OVERHEAD_BYTES <= limit)
    }

    /// Counts a part of a body. If the limit does not admit the part, the part is dropped, and the
    /// rest of the body is skipped.
    fn arrived(&mut self, peer: usize, bytes: u64) {
        self.peers[peer].upload = 0;
        if self.peers[peer].put.is_none() {
            return;
        }
        if self.admits(bytes) {
            self.peers[peer].upload = bytes + JOB_OVERHEAD_BYTES;
        } else {
            self.peers[peer].put = None;
        }
    }

    /// Returns whether a `put`'s body is accepted; other bodies are skipped, and take no id.
    fn header(&mut self, peer: usize, now: u64, [pri, delay, ttr]: [u32; 3], size: u64) -> bool {
        self.peers[peer].is_producer = true;
        if !self.has_memory(size) {
            return false;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.peers[peer].put = Some(Put { id, pri, delay, ttr, created: now });
        true
    }

    fn body(&mut self, peer: usize, now: u64, mut body: Vec<u8>) {
        let put = self.peers[peer].put.take().expect("a line comes before its body");
        let Put { id, pri, delay, ttr, created } = put;
        self.peers[peer].upload = 0;
        // Other clients may have used the memory since the line was read.
        if !self.has_memory(body.len() as u64 - 2) {
            return self.reply(peer, "OUT_OF_MEMORY");
        }
        if !body.ends_with(b"\r\n") {
            return self.reply(peer, "EXPECTED_CRLF");
        }
        body.truncate(body.len() - 2);
        if self.is_draining {
            return self.reply(peer, "DRAINING");
        }
        let tube = self.peers[peer].uses.clone();
        let place = self.find_tube(&tube).expect("a used tube exists");
        self.tubes[place].total += 1;
        self.tubes[place].has_had_a_job = true;
        self.total_jobs += 1;
        let job = Job {
            tube,
            pri,
            delay,
            ttr: ttr.max(1),
            body,
            state: State::Ready,
            since: now,
            created,
            reserves: 0,
            timeouts: 0,
            releases: 0,
            buries: 0,
            kicks: 0,
        };
        self.jobs.insert(id, job);
        self.last_id = self.last_id.max(id);
        self.reply(peer, &format!("INSERTED {id}"));
        self.enqueue(id, delay, now);
    }
}

/// Commands that reserve jobs.
impl Model {
    fn reserve(&mut self, peer: usize, timeout: Option<u32>, aborts: bool, now: u64) {
        self.peers[peer].is_worker = true;
        if let Some(id) = self.best_ready(&self.peers[peer].watches) {
            return self.hand(id, peer, now);
        }
        if self.is_deadline_soon(peer, now) {
            return self.reply(peer, "DEADLINE_SOON");
        }
        if timeout == Some(0) || self.peers[peer].has_ended {
            return self.reply(peer, "TIMED_OUT");
        }
        let until = timeout.map(|seconds| now + u64::from(seconds) * SECOND);
        self.peers[peer].wait = Some(Wait { until, turn: self.next_turn(), aborts });
    }

    fn reserve_job(&mut self, peer: usize, id: u64, now: u64) {
        self.peers[peer].is_worker = true;
        let is_ready = self.jobs[&id].state == State::Ready;
        self.hand(id, peer, now);
        if !is_ready {
            self.write_down(id);
        }
    }
}

/// Commands on jobs by their ids, and on the jobs of the used tube.
impl Model {
    fn release(&mut self, peer: usize, id: u64, pri: u32, delay: u32, now: u64) {
        let job = self.job(id);
        job.pri = pri;
        job.delay = delay;
        job.releases += 1;
        self.reply(peer, "RELEASED");
        self.enqueue(id, delay, now);
    }

    fn touch(&mut self, peer: usize, id: u64, now: u64) {
        let job = self.job(id);
        let whole = u64::from(job.ttr) * SECOND;
        if let State::Reserved { until, .. } = &mut job.state {
            *until = now + whole;
        }
        self.reply(peer, "TOUCHED");
    }

    fn delete(&mut self, peer: usize, id: u64, now: u64) {
        let job = self.jobs.remove(&id).expect("it is not missing");
        self.log.remove(&id);
        let tube = self.find_tube(&job.tube).expect("a job has a tube");
        self.tubes[tube].deletes += 1;
        let is_held = matches!(job.state, State::Reserved { .. });
        self.tubes[tube].runs.extend(is_held.then(|| now - job.since));
        self.drop_idle_tubes();
        self.reply(peer, "DELETED");
    }

    fn found(&mut self, peer: usize, id: Option<u64>) {
        match id {
            Some(id) => self.reply_with(peer, "FOUND", id),
            None => self.reply(peer, "NOT_FOUND"),
        }
    }

    fn kick_up_to(&mut self, bound: usize, peer: usize, now: u64) {
        let uses = &self.peers[peer].uses;
        let mut chosen = self.buried(uses);
        if chosen.is_empty() {
            chosen = self.delayed(uses);
        }
        chosen.truncate(bound);
        for &id in &chosen {
            self.kick(id, now);
        }
        self.reply(peer, &format!("KICKED {}", chosen.len()));
    }
}

/// Commands on tubes.
impl Model {
    fn use_tube(&mut self, peer: usize, name: String) {
        self.touch_tube(&name);
        self.reply(peer, &format!("USING {name}"));
        self.peers[peer].uses = name;
        self.drop_idle_tubes();
    }

    fn watch(&mut self, peer: usize, name: String) {
        self.touch_tube(&name);
        let watches = &mut self.peers[peer].watches;
        if !watches.contains(&name) {
            watches.push(name);
        }
        let count = watches.len();
        self.reply(peer, &format!("WATCHING {count}"));
    }

    fn ignore(&mut self, peer: usize, name: &str) {
        let watches = &mut self.peers[peer].watches;
        if let Some(place) = watches.iter().position(|watched| watched == name) {
            if watches.len() == 1 {
                return self.reply(peer, "NOT_IGNORED");
            }
            watches.swap_remove(place);
        }
        let count = watches.len();
        self.drop_idle_tubes();
        self.reply(peer, &format!("WATCHING {count}"));
    }

    fn pause_tube(&mut self, peer: usize, name: &str, delay: u32, now: u64) {
        let tube = self.find_tube(name).expect("it is not missing");
        self.tubes[tube].pauses += 1;
        self.tubes[tube].pause = (delay > 0).then(|| (delay, now + u64::from(delay) * SECOND));
        self.reply(peer, "PAUSED");
        self.serve(now);
    }

    fn delete_tube(&mut self, peer: usize, name: &str, state: Option<&str>, last_id: u64) {
        let states = state.map_or(vec!["ready", "delayed", "buried"], |state| vec![state]);
        let mut chosen: Vec<_> =
            states.into_iter().flat_map(|state| self.in_state(name, state)).collect();
        chosen.retain(|&id| id <= last_id);
        for id in &chosen {
            self.jobs.remove(id);
            self.log.remove(id);
        }
        let tube = self.find_tube(name).expect("it is not missing");
        self.tubes[tube].deletes += chosen.len() as u64;
        self.drop_idle_tubes();
        self.reply(peer, &format!("DELETED {}", chosen.len()));
    }
}
