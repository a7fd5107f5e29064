//! The commands except `put`: each method checks, gets a permit, changes the queue, and answers.

use std::time::Duration;

use ::log::trace;

use super::{
    Growing, Server,
    background::{LongCommand, LongWork},
    binlog::{self, Permit},
    stats::LISTED_JOB_MAX_BYTES,
};
use crate::{
    clock::Time,
    collections::Key,
    conn::Conn,
    proto::{self, Command, JobState, List, Reply},
    queue::{Client, Job, State, Tube},
    wal::Change,
};

/// The result of a command. An error is the reply to a command that was not executed.
type Answer = Result<(), Reply<'static>>;

/// A delete is counted as one more command for every 8 KiB of the body, because the kernel takes
/// about as long to free 8 KiB as the daemon takes to execute a command.
const FREED_BYTES_PER_COMMAND: usize = 8 * 1024;

impl Server {
    /// Parses and executes one line. `rest`, the input after the line, may begin with a body.
    pub(super) fn dispatch(&mut self, key: Key<Conn>, line: &[u8], rest: &mut &[u8], now: Time) {
        trace!("{key:?} > {}", line.escape_ascii());
        let now = self.instant(now);
        let answer = match proto::parse(line, self.settings.job_size_limit) {
            Ok((command, place)) => {
                self.figures.commands[place] += 1;
                self.execute(key, command, rest, now)
            }
            Err(reply) => Err(reply),
        };
        if let Err(reply) = answer {
            self.reply(key, reply);
        }
    }

    /// Executes a command. Fails with an error reply if the job or tube does not exist, if the
    /// client has no right to change the job, if there is no memory, or if the binlog permits no
    /// change.
    fn execute(
        &mut self,
        key: Key<Conn>,
        command: Command<'_>,
        rest: &mut &[u8],
        now: Time,
    ) -> Answer {
        let client = key.paired();
        match command {
            Command::Put(header) => self.put_header(key, header, rest, now),
            Command::TooBig(size) => self.conns[key].skip_body(size, Reply::JOB_TOO_BIG),
            Command::Malformed => return Err(Reply::BAD_FORMAT),
            Command::Use(name) => {
                let tube = self.tube_named(name)?;
                self.queue.use_tube(client, tube);
                self.reply(key, Reply::Using(name));
            }
            Command::Reserve(timeout) => return self.reserve(key, timeout, now),
            Command::ReserveWithAbort => {
                self.reserve(key, None, now)?;
                self.conns[key].end_wait_on_input();
            }
            Command::ReserveJob(id) => return self.reserve_job(key, id, now),
            Command::Delete(id) => return self.delete(key, id, now),
            Command::Release { id, pri, delay } => return self.release(key, id, pri, delay, now),
            Command::Bury { id, pri } => return self.bury(key, id, pri, now),
            Command::Touch(id) => return self.touch(key, id, now),
            Command::Watch(name) => return self.watch(key, name),
            Command::Ignore(name) => self.ignore(key, name),
            Command::Peek(id) => return self.peek(key, self.queue.find(id)),
            Command::PeekReady => return self.peek(key, self.queue.first_ready(self.used(key))),
            Command::PeekDelayed => {
                return self.peek(key, self.queue.first_delayed(self.used(key)));
            }
            Command::PeekBuried => return self.peek(key, self.queue.first_buried(self.used(key))),
            Command::Kick(bound) => return self.kick(key, bound, now),
            Command::KickJob(id) => return self.kick_job(key, id, now),
            Command::Stats => self.send_document(key, &self.stats(now)),
            Command::StatsJob(id) => return self.send_stats_job(key, id, now),
            Command::StatsTube(name) => return self.send_stats_tube(key, name, now),
            Command::ListTubes => return self.list_tubes(key, None),
            Command::ListTubeUsed => {
                let reply = Reply::Using(self.queue.tube_name(self.used(key)));
                self.conns[key].output.reply(reply);
                self.mark_dirty(key);
            }
            Command::ListTubesWatched => return self.list_tubes(key, Some(client)),
            Command::PauseTube { name, delay } => return self.pause_tube(key, name, delay, now),
            Command::Capabilities => self.send_document(key, &self.capabilities()),
            Command::ListJobs { name, state, limit } => {
                return self.list_jobs(key, name, state, limit as usize, now);
            }
            Command::DeleteTube { name, state, last_id } => {
                return self.delete_tube(key, name, state, last_id, now);
            }
            Command::Drain(drains) => self.answer_drain(key, drains),
            Command::Metrics(tube) => return self.send_metrics(key, tube, now),
            Command::Quit => self.end_of_input(key),
        }
        Ok(())
    }

    /// Executes a `watch`, which changes nothing if the client already watches the tube. Answers
    /// with the number of watched tubes.
    fn watch(&mut self, key: Key<Conn>, name: &str) -> Answer {
        let client = key.paired();
        let found = self.queue.find_tube(name);
        if found.is_none_or(|tube| self.queue.client(client).watch_of(tube).is_none()) {
            self.admit(Growing::Storage)?;
            self.queue.make_room_to_watch(client)?;
            let tube = self.tube_named(name)?;
            self.queue.add_watch(client, tube);
        }
        let count = self.queue.client(client).watching();
        self.charge(count);
        self.reply(key, Reply::Number("WATCHING", count as u64));
        Ok(())
    }

    /// Executes and answers an `ignore`.
    fn ignore(&mut self, key: Key<Conn>, name: &str) {
        self.charge(self.queue.client(key.paired()).watching());
        let left = self.queue.ignore(key.paired(), name);
        let watching = |count| Reply::Number("WATCHING", count as u64);
        self.reply(key, left.map_or(Reply::NOT_IGNORED, watching));
    }

    /// Begins to execute a `kick`, a long command that is answered when it ends.
    fn kick(&mut self, key: Key<Conn>, bound: u32, now: Time) -> Answer {
        self.make_room_for_long_command()?;
        let tube = self.used(key);
        let work = LongWork::Kick(self.queue.begin_kick(tube, bound));
        self.advance_long(LongCommand { by: Some(key), tube, work }, now);
        Ok(())
    }

    /// Executes and answers a `drain`.
    fn answer_drain(&mut self, key: Key<Conn>, drains: Option<bool>) {
        self.is_draining = drains.unwrap_or(self.is_draining);
        self.reply(key, if self.is_draining { Reply::DRAINING } else { Reply::NOT_DRAINING });
    }

    /// Executes and answers a `pause-tube`.
    fn pause_tube(&mut self, key: Key<Conn>, name: &str, delay: u32, now: Time) -> Answer {
        let tube = self.queue.find_tube(name).ok_or(Reply::NOT_FOUND)?;
        self.queue.pause(tube, delay, now);
        self.reply(key, Reply::PAUSED);
        if delay == 0 {
            self.end_pause(tube, now);
        }
        Ok(())
    }

    /// Begins to execute a `delete-tube`, a long command that is answered when it ends.
    fn delete_tube(
        &mut self,
        key: Key<Conn>,
        name: &str,
        state: Option<JobState>,
        last_id: u64,
        now: Time,
    ) -> Answer {
        let tube = self.queue.find_tube(name).ok_or(Reply::NOT_FOUND)?;
        self.make_room_for_long_command()?;
        let state = match state {
            None => None,
            Some(JobState::Ready) => Some(State::Ready),
            Some(JobState::Delayed) => Some(State::Delayed),
            Some(JobState::Buried) => Some(State::Buried),
            // The parser does not accept this state.
            Some(JobState::Reserved) => return Err(Reply::BAD_FORMAT),
        };
        let work = LongWork::DeleteTube(self.queue.begin_delete_tube(tube, state, last_id));
        self.advance_long(LongCommand { by: Some(key), tube, work }, now);
        Ok(())
    }

    /// Answers a `stats-job`, or fails if the job does not exist.
    fn send_stats_job(&mut self, key: Key<Conn>, id: u64, now: Time) -> Answer {
        let job = self.queue.find(id).ok_or(Reply::NOT_FOUND)?;
        self.show(key, id);
        self.send_document(key, &self.stats_job(job, now));
        Ok(())
    }

    /// Answers a `stats-tube`, or fails if the tube does not exist.
    fn send_stats_tube(&mut self, key: Key<Conn>, name: &str, now: Time) -> Answer {
        let tube = self.queue.find_tube(name).ok_or(Reply::NOT_FOUND)?;
        self.charge(self.queue.waiter_entries(tube));
        self.send_document(key, &self.stats_tube(tube, now));
        Ok(())
    }

    /// Answers `metrics` of the daemon, or of one tube.
    fn send_metrics(&mut self, key: Key<Conn>, tube: Option<&str>, now: Time) -> Answer {
        let document = match tube {
            None => self.metrics(now),
            Some(name) => {
                self.tube_metrics(self.queue.find_tube(name).ok_or(Reply::NOT_FOUND)?, now)
            }
        };
        self.send_document(key, &document);
        Ok(())
    }

    /// Answers a `list-jobs`: the jobs in a state, in the order in which they will leave the state.
    fn list_jobs(
        &mut self,
        key: Key<Conn>,
        name: &str,
        state: JobState,
        limit: usize,
        now: Time,
    ) -> Answer {
        let key_of_tube = self.queue.find_tube(name).ok_or(Reply::NOT_FOUND)?;
        let tube = self.queue.tube(key_of_tube);
        let all = match state {
            JobState::Ready => tube.ready(),
            JobState::Delayed => tube.delayed(),
            JobState::Buried => tube.buried(),
            JobState::Reserved => usize::try_from(tube.reserved).unwrap_or(usize::MAX),
        };
        let count = limit.min(all);
        // If there is no memory for the list, the command must fail before the list is made.
        self.admit_list(count * LISTED_JOB_MAX_BYTES * 2)?;
        let jobs = match state {
            JobState::Ready => self.queue.list_ready(key_of_tube, count),
            JobState::Delayed => self.queue.list_delayed(key_of_tube, count),
            JobState::Buried => self.queue.list_buried(key_of_tube, count),
            JobState::Reserved => {
                self.make_room_for_long_command()?;
                let list = self.queue.begin_list_reserved(key_of_tube, count)?;
                let (tube, work) = (key_of_tube, LongWork::ListReserved(list));
                self.advance_long(LongCommand { by: Some(key), tube, work }, now);
                return Ok(());
            }
        };
        self.send_list(key, &jobs, now)
    }

    /// Sends a list of jobs, or fails if there is no memory for the list.
    pub(super) fn send_list(&mut self, key: Key<Conn>, jobs: &[Key<Job>], now: Time) -> Answer {
        // Checks that there is enough memory for the document and for its copy in the output.
        self.admit_list(jobs.len() * LISTED_JOB_MAX_BYTES * 2)?;
        if let Some(id) = jobs.iter().map(|&job| self.queue.job(job).record.id).max() {
            self.show(key, id);
        }
        self.send_document(key, &self.list_of_jobs(jobs, now));
        Ok(())
    }

    /// Executes a `reserve` of any kind: answers with a job, `DEADLINE_SOON` or `TIMED_OUT`, or
    /// makes the client wait.
    fn reserve(&mut self, key: Key<Conn>, timeout: Option<u32>, now: Time) -> Answer {
        let client = key.paired();
        self.charge(self.queue.tubes_to_scan(client));
        self.queue.mark_worker(client);
        if let Some(job) = self.queue.best_ready_job(client) {
            self.reserve_for(client, job, now)?;
            self.send_job(key, job, "RESERVED");
        } else if self.queue.client(client).is_deadline_soon(now) {
            self.reply(key, Reply::DEADLINE_SOON);
        } else if timeout == Some(0) || self.conns[key].is_half_closed {
            self.reply(key, Reply::TIMED_OUT);
        } else {
            let until = timeout.map(|seconds| now + Duration::from_secs(seconds.into()));
            self.charge(self.queue.client(client).unqueued_watches());
            self.admit_bytes(Growing::Waiting, self.queue.bytes_to_wait(client))?;
            self.queue.wait(client, until)?;
            self.conns[key].wait();
        }
        Ok(())
    }

    /// Executes and answers a `reserve-job`.
    fn reserve_job(&mut self, key: Key<Conn>, id: u64, now: Time) -> Answer {
        let job = self.queue.find_unreserved(id).ok_or(Reply::NOT_FOUND)?;
        let permit =
            self.permit(Change::DeferrableUpdate, now).map_err(|_| Reply::INTERNAL_ERROR)?;
        self.queue.mark_worker(key.paired());
        let is_ready = self.queue.job(job).record.state == State::Ready;
        self.reserve_for(key.paired(), job, now)?;
        if !is_ready {
            self.record_change(permit, job, now);
            self.hold(key);
        }
        self.send_job(key, job, "RESERVED");
        Ok(())
    }

    /// Reserves a job for a `reserve` or `reserve-job`, or fails if there is no memory.
    fn reserve_for(&mut self, client: Key<Client>, job: Key<Job>, now: Time) -> Answer {
        self.admit(Growing::ReservedJobs(self.queue.client(client).holding()))?;
        self.queue.reserve_job(client, job, now)?;
        Ok(())
    }

    /// Executes and answers a `delete`.
    fn delete(&mut self, key: Key<Conn>, id: u64, now: Time) -> Answer {
        let job = self.queue.deletable_by(key.paired(), id).ok_or(Reply::NOT_FOUND)?;
        let permit = self.permit(Change::Delete, now).map_err(|_| Reply::INTERNAL_ERROR)?;
        self.delete_job(permit, job, now);
        self.acknowledge(key, Reply::DELETED);
        Ok(())
    }

    /// Deletes a job and its body. A large body is counted as several commands of this turn.
    pub(super) fn delete_job(&mut self, permit: Permit, job: Key<Job>, now: Time) {
        self.record_delete(permit, job);
        let body = self.queue.delete(job, now);
        let commands = u32::try_from(body.len() / FREED_BYTES_PER_COMMAND).unwrap_or(u32::MAX);
        self.commands_this_turn = self.commands_this_turn.saturating_add(commands);
        self.slices.long_steps = self.slices.long_steps.saturating_add(commands);
        self.bodies.remove(body);
    }

    /// Executes and answers a `release`. On a full disk, a release succeeds only if it has no
    /// delay.
    fn release(&mut self, key: Key<Conn>, id: u64, pri: u32, delay: u32, now: Time) -> Answer {
        let job = self.queue.reserved_by(key.paired(), id).ok_or(Reply::NOT_FOUND)?;
        let change = if delay == 0 { Change::DeferrableUpdate } else { Change::Update };
        let permit = self.permit(change, now).map_err(binlog::error_reply)?;
        if delay > 0 {
            self.admit(Growing::Waiting)?;
        }
        let tube = self.queue.release(job, pri, delay, now)?;
        self.record_change(permit, job, now);
        self.acknowledge(key, Reply::RELEASED);
        self.hand_out(tube, now);
        Ok(())
    }

    /// Executes and answers a `bury`.
    fn bury(&mut self, key: Key<Conn>, id: u64, pri: u32, now: Time) -> Answer {
        let job = self.queue.reserved_by(key.paired(), id).ok_or(Reply::NOT_FOUND)?;
        let permit = self.permit(Change::Update, now).map_err(|_| Reply::INTERNAL_ERROR)?;
        self.queue.bury(job, pri, now);
        self.record_change(permit, job, now);
        self.acknowledge(key, Reply::BURIED);
        Ok(())
    }

    /// Executes and answers a `touch`.
    fn touch(&mut self, key: Key<Conn>, id: u64, now: Time) -> Answer {
        let job = self.queue.reserved_by(key.paired(), id).ok_or(Reply::NOT_FOUND)?;
        self.queue.touch(job, now);
        self.reply(key, Reply::TOUCHED);
        Ok(())
    }

    /// Executes and answers a `kick-job`.
    fn kick_job(&mut self, key: Key<Conn>, id: u64, now: Time) -> Answer {
        let job = self.queue.find(id).ok_or(Reply::NOT_FOUND)?;
        let permit = self.permit(Change::Update, now).map_err(|_| Reply::INTERNAL_ERROR)?;
        let tube = self.queue.kick_job(job, now).ok_or(Reply::NOT_FOUND)?;
        self.record_change(permit, job, now);
        self.acknowledge(key, Reply::KICKED);
        self.hand_out(tube, now);
        Ok(())
    }

    /// Answers a `peek` of any kind with this job, or fails if `job` is `None`.
    fn peek(&mut self, key: Key<Conn>, job: Option<Key<Job>>) -> Answer {
        self.send_job(key, job.ok_or(Reply::NOT_FOUND)?, "FOUND");
        Ok(())
    }

    /// The tube that the client uses, for commands that name no tube, such as `kick`.
    fn used(&self, key: Key<Conn>) -> Key<Tube> {
        self.queue.client(key.paired()).using
    }

    /// Answers a `list-tubes` if `of` is `None`; if not, a `list-tubes-watched` of the client `of`.
    fn list_tubes(&mut self, key: Key<Conn>, of: Option<Key<Client>>) -> Answer {
        let (count, bytes) = self.queue.size_of_tube_names(of);
        let list = List { count, bytes };
        self.charge(list.size() / 2);
        self.admit_list(list.size())?;
        self.conns[key].output.list(list, self.queue.tube_names(of));
        self.mark_dirty(key);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        COMMANDS_PER_CONNECTION, FeedResult,
        testing::{Left, START, connect, exchange, receive, send, server},
    };

    /// A read may return the end of input before an event reports the end. If the `reserve` still
    /// waited after the read, the next job would be reserved for a connection that will soon close.
    #[test]
    fn the_end_of_input_ends_a_wait() {
        let mut server = server(None);
        let (waiter, other) = (connect(&mut server), connect(&mut server));
        send(&mut server, waiter, "reserve-with-abort\r\n");
        server.end_of_input(waiter);
        assert_eq!(receive(&mut server, waiter), "TIMED_OUT\r\n");
        assert_eq!(exchange(&mut server, other, "put 0 0 1 1\r\na\r\n"), "INSERTED 1\r\n");
        assert_eq!(server.queue().counts().ready, 1);
        server.check();
    }

    /// A deferred client waits until memory is free. If a client without further input were
    /// deferred, its next command would wait behind the commands of clients that read no replies.
    #[test]
    fn a_client_with_no_more_input_is_not_short_of_memory() {
        let mut server = server(None);
        let client = connect(&mut server);
        server.set_supply(Box::new(Left(1 << 20)));
        let bytes = b"list-tube-used\r\n";
        let (consumed, result) = server.feed(client, bytes, COMMANDS_PER_CONNECTION, START);
        assert_eq!((consumed, result), (bytes.len(), FeedResult::More));
        let bytes = b"list-tube-used\r\nlist-tube-used\r\n";
        let (consumed, result) = server.feed(client, bytes, COMMANDS_PER_CONNECTION, START);
        assert_eq!((consumed, result), (0, FeedResult::Short), "its reply is unread");
    }
}
