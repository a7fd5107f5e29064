//! Work that is done in slices: due timers, jobs whose time to run is over, ends of pauses, long
//! commands, the jobs and watches of disconnected clients, moving bodies, and releasing memory.

use std::collections::VecDeque;

use super::{JOBS_PER_SLICE, Server};
use crate::{
    clock::Time,
    collections::Key,
    conn::Conn,
    proto::Reply,
    queue::{DeleteStep, DeleteTube, Expired, Job, Kick, ListReserved, Timer, Tube},
    wal::{Change, Unavailable, Wal},
};

/// A step of `list-jobs` visits this many clients and reserved jobs in total, and takes as long as
/// a delete.
const RESERVED_PER_STEP: usize = 16;

/// Once this many bytes of bodies have moved in a turn, the other bodies move in later turns.
pub(super) const MOVED_BYTES_PER_TURN: usize = 256 * 1024;

/// A command that may take more than one turn.
#[derive(Debug)]
pub(super) struct LongCommand {
    /// The connection to answer; `None` if the client has disconnected while its command continues.
    pub(super) by: Option<Key<Conn>>,
    /// The tube that the command works on, which exists at least until the command ends.
    pub(super) tube: Key<Tube>,
    pub(super) work: LongWork,
}

/// The work of a long command, and its progress.
#[derive(Debug)]
pub(super) enum LongWork {
    Kick(Kick),
    DeleteTube(DeleteTube),
    ListReserved(ListReserved),
}

/// Work that is done in slices.
#[derive(Debug, Default)]
pub(super) struct Slices {
    pub(super) long_commands: VecDeque<LongCommand>,
    /// The number of steps that all long commands together have taken in this turn.
    pub(super) long_steps: u32,
    /// Closed connections whose clients still have reserved jobs or watch tubes.
    pub(super) disconnecting: VecDeque<Key<Conn>>,
    /// How often this turn has tried to end a reservation or a watch of a closed connection.
    pub(super) disconnect_steps: u32,
    /// Closed connections whose clients have no reserved jobs and no watches any more.
    pub(super) reclaimable: Vec<Key<Conn>>,
    /// Whether there may be unused memory that is not yet released to the system.
    pub(super) has_releasable: bool,
}

impl Server {
    /// Returns whether there is memory for the next step of background work. If memory is too short
    /// for background work, due timers included, sets the time at which the server tries it again.
    fn may_step_or_defer(&mut self, now: Time) -> bool {
        let has_memory = self.may_step();
        if !has_memory {
            self.shortage.until = Some(now + self.shortage.retry_delay);
        }
        has_memory
    }

    /// Handles a slice of the timers that are due at `now`, with a limit for each kind: see
    /// [`JOBS_PER_SLICE`].
    pub(super) fn process_timers(&mut self, now: Time) {
        let limit =
            JOBS_PER_SLICE.max(std::mem::take(&mut self.commands_this_turn).saturating_mul(2));
        // The original handles the kinds of timers in the same order.
        for timer in [Timer::Delays, Timer::Pauses, Timer::Clients] {
            for _ in 0..limit {
                if !self.may_step_or_defer(now) {
                    return;
                }
                match self.queue.expire(timer, now) {
                    None => break,
                    Some(Expired::Ready(tube)) => self.hand_out(tube, now),
                    Some(Expired::Lost(job, since)) => self.take_back(job, since, now),
                    Some(Expired::PauseOver(tube)) => {
                        if let Some(pair) = self.queue.end_pause(tube, self.next_instant(now)) {
                            self.deliver(pair, now);
                        }
                    }
                    Some(Expired::DeadlineSoon(client)) => {
                        self.answer_waiting(client, Reply::DEADLINE_SOON);
                    }
                    Some(Expired::TimedOut(client)) => {
                        self.answer_waiting(client, Reply::TIMED_OUT);
                    }
                }
            }
        }
    }

    /// Ends the reservation of a lost job, whose time to run is over or whose worker has
    /// disconnected. The job becomes ready, as if it had waited since `since`, or is buried if
    /// `--bury-after` requires that. With `--bury-after`, the binlog gets a record that the worker
    /// has lost the job.
    fn take_back(&mut self, job: Key<Job>, since: Time, now: Time) {
        let is_lost_too_often = |max| self.queue.job(job).record.is_lost_too_often(max);
        let buries = self.settings.bury_after.map(is_lost_too_often);
        // If the binlog has failed, the job becomes ready. If the job is lost again later, it may
        // be buried then.
        let recorded = buries.zip(self.permit(Change::DeferrableUpdate, now).ok());
        if let Some((true, permit)) = recorded {
            // Each burial has its own instant, so that a restart keeps the order of buried jobs.
            let at = self.instant(now);
            self.queue.bury_lost(job, at);
            return self.record_change(permit, job, now);
        }
        let tube = self.queue.return_job(job, since);
        if let Some((_, permit)) = recorded {
            self.record_change(permit, job, now);
        }
        self.hand_out(tube, now);
    }

    /// Releases one piece of unused memory of the server to the system, and returns whether there
    /// was such a piece.
    pub(super) fn release_one(&mut self) -> bool {
        self.bodies.release_one()
            || self.queue.release_one()
            || self.conns.release_one()
            || self.wal.as_mut().is_some_and(Wal::release_one)
    }
}

impl Server {
    /// Ends the pause of a tube in slices: hands out at most [`JOBS_PER_SLICE`] jobs now. The next
    /// ticks hand out the other jobs: the timer of the pause stays due until then.
    pub(super) fn end_pause(&mut self, tube: Key<Tube>, now: Time) {
        for _ in 0..JOBS_PER_SLICE {
            if !self.may_step_or_defer(now) {
                break;
            }
            let Some(pair) = self.queue.end_pause(tube, self.next_instant(now)) else { break };
            self.deliver(pair, now);
        }
    }

    /// Takes steps of a long command until the command ends or the steps of this turn are used up.
    /// Answers a command that has ended, and queues any other command for the next turn.
    pub(super) fn advance_long(&mut self, mut long: LongCommand, now: Time) {
        while self.slices.long_steps < JOBS_PER_SLICE {
            if !self.may_step_or_defer(now) {
                // The other long commands of this turn would find no memory either.
                self.slices.long_steps = JOBS_PER_SLICE;
                break;
            }
            let step = match &mut long.work {
                LongWork::Kick(kick) => self.step_kick(kick, now),
                LongWork::DeleteTube(delete) => self.step_delete_tube(delete, now),
                LongWork::ListReserved(list) => {
                    if let Some(jobs) = self.queue.step_list_reserved(list, RESERVED_PER_STEP) {
                        return self.end_list_reserved(&long, &jobs, now);
                    }
                    None
                }
            };
            if let Some(reply) = step {
                return self.end_long(&long, reply);
            }
            self.slices.long_steps += 1;
        }
        if let Some(key) = long.by {
            self.conns[key].wait();
        }
        self.slices.long_commands.push_back(long);
    }

    /// Takes one step of a long `kick`: kicks one job. If no job remains, or the binlog permits no
    /// change, returns the reply.
    fn step_kick(&mut self, kick: &mut Kick, now: Time) -> Option<Reply<'static>> {
        let permit = match self.permit(Change::Update, now) {
            Ok(permit) => permit,
            Err(Unavailable::Full) => return Some(Reply::Number("KICKED", kick.moved.into())),
            Err(Unavailable::Failed) => return Some(Reply::INTERNAL_ERROR),
        };
        let Some(job) = self.queue.kick_next(kick, now) else {
            return Some(Reply::Number("KICKED", kick.moved.into()));
        };
        self.record_change(permit, job, now);
        self.hand_out(self.queue.job(job).tube, now);
        None
    }

    /// Takes one step of a long `delete-tube`: deletes at most one job. If no job remains, or the
    /// binlog permits no delete, returns the reply.
    fn step_delete_tube(&mut self, delete: &mut DeleteTube, now: Time) -> Option<Reply<'static>> {
        let Ok(permit) = self.permit(Change::Delete, now) else {
            return Some(Reply::INTERNAL_ERROR);
        };
        match self.queue.step_delete_tube(delete) {
            DeleteStep::End => return Some(Reply::Number("DELETED", delete.deleted)),
            DeleteStep::More => {}
            DeleteStep::Job(job) => self.delete_job(permit, job, now),
        }
        None
    }

    /// Ends a long command, and answers with a reply that confirms its changes.
    fn end_long(&mut self, long: &LongCommand, reply: Reply<'_>) {
        if let Some(key) = self.resume_after(long) {
            self.acknowledge(key, reply);
        }
    }

    /// Ends a long `list-jobs` of reserved jobs, and answers with the list.
    fn end_list_reserved(&mut self, long: &LongCommand, jobs: &[Key<Job>], now: Time) {
        if let Some(key) = self.resume_after(long) {
            if let Err(refusal) = self.send_list(key, jobs, now) {
                self.reply(key, refusal);
            }
        }
    }

    /// Ends a long command, and returns its connection, which takes commands again.
    fn resume_after(&mut self, long: &LongCommand) -> Option<Key<Conn>> {
        self.queue.unpin(long.tube);
        let key = long.by?;
        if self.conns[key].is_waiting() {
            self.conns[key].resume();
        }
        Some(key)
    }

    /// Makes the long commands of a closed connection continue without a reply.
    pub(super) fn detach_long_commands(&mut self, key: Key<Conn>) {
        for long in &mut self.slices.long_commands {
            if long.by == Some(key) {
                long.by = None;
            }
        }
    }

    /// Ends reservations and watches of disconnected clients, until the steps of this turn are used
    /// up. Each client gets one step at a time.
    pub(super) fn process_disconnects(&mut self, now: Time) {
        while self.slices.disconnect_steps < JOBS_PER_SLICE {
            let Some(key) = self.slices.disconnecting.pop_front() else { return };
            let client = self.queue.client(key.paired());
            if let Some(job) = client.first_reserved() {
                // If there is no memory to make this job ready, a later iteration tries again;
                // those in between may free memory.
                if self.may_step_or_defer(now) {
                    self.take_back(job, now, now);
                }
            } else if client.watching() > 0 {
                // Ending a watch takes no memory, and frees memory.
                self.queue.unwatch_next(key.paired());
            } else {
                self.slices.reclaimable.push(key);
                continue;
            }
            self.slices.disconnect_steps += 1;
            self.slices.disconnecting.push_back(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Left, START, connect, exchange, receive, send, server};
    use super::{super::COMMANDS_PER_CONNECTION, *};

    const JOBS: u32 = JOBS_PER_SLICE * 2 + 500;

    fn bury_all(server: &mut Server, client: Key<Conn>) {
        for id in 1..=JOBS {
            let text = format!("put 0 0 60 1\r\na\r\nreserve\r\nbury {id} 0\r\n");
            assert!(exchange(server, client, &text).ends_with("BURIED\r\n"));
            server.tick(START);
        }
    }

    fn ready(server: &Server) -> u64 {
        server.queue().counts().ready
    }

    /// If memory is short, the jobs of a disconnected client cannot be returned. If other
    /// disconnected clients had to wait until they can be returned, the tubes that these clients
    /// watch would keep much memory.
    #[test]
    fn closed_clients_leave_their_tubes_even_if_memory_is_short() {
        let mut server = server(None);
        let (worker, watcher) = (connect(&mut server), connect(&mut server));
        exchange(&mut server, worker, "put 0 0 60 1\r\na\r\nreserve\r\n");
        exchange(&mut server, watcher, "watch a\r\nwatch b\r\n");
        server.set_supply(Box::new(Left(0)));
        server.retry_at_once();
        server.close(worker, START);
        server.close(watcher, START);
        server.tick(START);
        assert_eq!((server.queue().tubes(), server.queue().counts().reserved), (1, 1));
    }

    /// If one step kicked a million jobs, all other clients would wait.
    #[test]
    fn a_long_kick_takes_a_slice_in_each_turn() {
        let mut server = server(None);
        let (client, other) = (connect(&mut server), connect(&mut server));
        bury_all(&mut server, client);
        send(&mut server, client, &format!("kick {JOBS}\r\n"));
        assert_eq!(ready(&server), u64::from(JOBS_PER_SLICE));
        assert_eq!(receive(&mut server, client), "", "a long command is answered at its end");
        assert_eq!(exchange(&mut server, other, "use other\r\n"), "USING other\r\n");
        assert_eq!(server.next_deadline(), Some(Time::AT_ONCE));
        for moved in [2 * JOBS_PER_SLICE, JOBS] {
            server.tick(START);
            assert_eq!(ready(&server), u64::from(moved));
        }
        assert_eq!(receive(&mut server, client), format!("KICKED {JOBS}\r\n"));
        server.check();
    }

    /// If one step freed a hundred megabytes, all other clients would wait.
    #[test]
    fn large_jobs_are_deleted_over_several_turns() {
        let mut server = server(None);
        server.settings.job_size_limit = 1 << 20;
        let client = connect(&mut server);
        let put = format!("put 0 0 60 1048576\r\n{}\r\n", "x".repeat(1 << 20));
        let fill = |server: &mut Server| {
            for _ in 0..100 {
                assert!(exchange(server, client, &put).starts_with("INSERTED "));
                server.tick(START);
            }
        };
        fill(&mut server);
        let deletes = (1..=100).map(|id| format!("delete {id}\r\n")).collect::<Vec<_>>().concat();
        let mut rest = deletes.as_bytes();
        for turn in 1..100 {
            let (consumed, _) = server.feed(client, rest, COMMANDS_PER_CONNECTION, START);
            rest = &rest[consumed..];
            server.tick(START);
            if rest.is_empty() {
                assert!(turn > 10, "{turn} turns");
                break;
            }
        }
        assert_eq!(receive(&mut server, client), "DELETED\r\n".repeat(100));
        fill(&mut server);
        send(&mut server, client, "delete-tube default\r\n");
        for turn in 1..100 {
            server.tick(START);
            if ready(&server) == 0 {
                assert!(turn > 5, "{turn} turns");
                break;
            }
        }
        assert_eq!(receive(&mut server, client), "DELETED 100\r\n");
        server.check();
    }

    /// If one step visited half a million jobs, all other clients would wait.
    #[test]
    fn a_long_list_of_reserved_jobs_takes_a_slice_in_each_turn() {
        let mut server = server(None);
        let [worker, busy, reader, other]: [_; 4] = std::array::from_fn(|_| connect(&mut server));
        let reserve = |server: &mut Server, worker, count: u32| {
            for _ in 0..count.div_ceil(100) {
                exchange(server, worker, &"put 0 0 60 1\r\na\r\nreserve\r\n".repeat(100));
                server.tick(START);
            }
        };
        reserve(&mut server, worker, 100);
        exchange(&mut server, busy, "use busy\r\nwatch busy\r\nignore default\r\n");
        reserve(&mut server, busy, 16 * 1000);
        send(&mut server, reader, "list-jobs default reserved 50\r\n");
        assert_eq!(receive(&mut server, reader), "", "a long command is answered at its end");
        assert_eq!(exchange(&mut server, other, "use other\r\n"), "USING other\r\n");
        exchange(&mut server, worker, "delete 7\r\n");
        server.tick(START);
        let list = receive(&mut server, reader);
        let ids: Vec<u64> =
            list.lines().filter_map(|line| line.strip_prefix("- id: ")?.parse().ok()).collect();
        let wanted: Vec<u64> = (1..=50).filter(|&id| id != 7).collect();
        assert_eq!(ids, wanted, "a job that has left the state meanwhile is not listed");
        server.check();
    }

    /// If `delete-tube` scanned a heap, it would miss jobs that move when new jobs arrive.
    #[test]
    fn a_deleted_tube_keeps_no_job_that_was_there() {
        for seed in 0..20 {
            let mut server = server(None);
            let (client, other) = (connect(&mut server), connect(&mut server));
            for _ in 0..20 {
                exchange(&mut server, client, &"put 9 0 60 1\r\na\r\n".repeat(250));
                server.tick(START);
            }
            send(&mut server, client, "delete-tube default ready\r\n");
            for round in 0..100 {
                server.tick(START);
                let many = "put 1 0 60 1\r\na\r\n".repeat((37 * seed + round).min(250));
                exchange(&mut server, other, &many);
                exchange(&mut server, other, &"reserve\r\n".repeat(seed % 5));
            }
            assert!(receive(&mut server, client).starts_with("DELETED "), "{seed}");
            let left = (1..=5000).filter(|&id| server.queue().find_unreserved(id).is_some());
            assert_eq!(left.count(), 0, "{seed}");
        }
    }

    #[test]
    fn a_long_kick_goes_on_without_its_client() {
        let mut server = server(None);
        let client = connect(&mut server);
        bury_all(&mut server, client);
        send(&mut server, client, &format!("kick {JOBS}\r\n"));
        server.close(client, START);
        while server.next_dirty().is_some() {}
        server.reclaim();
        let next = connect(&mut server);
        for _ in 0..3 {
            server.tick(START);
        }
        assert_eq!(ready(&server), u64::from(JOBS));
        assert_eq!(receive(&mut server, next), "", "another client may have this key now");
        server.check();
    }

    #[test]
    fn a_disconnected_client_returns_its_jobs_in_slices() {
        let mut server = server(None);
        let client = connect(&mut server);
        for _ in 0..JOBS {
            exchange(&mut server, client, "put 0 0 60 1\r\na\r\nreserve\r\n");
            server.tick(START);
        }
        server.close(client, START);
        let first = ready(&server);
        assert!(first <= u64::from(JOBS_PER_SLICE), "{first}");
        assert_eq!(server.queue().counts().connections, 0, "the client is no longer counted");
        for _ in 0..4 {
            while server.next_dirty().is_some() {}
            server.reclaim();
            server.tick(START);
        }
        assert_eq!(ready(&server), u64::from(JOBS));
        server.check();
    }
}
