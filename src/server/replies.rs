//! Appends replies, jobs and documents to the output of connections, and hands out jobs.

use ::log::trace;

use super::Server;
use crate::{
    clock::Time,
    collections::Key,
    conn::Conn,
    proto::{CRLF, Reply},
    queue::{Client, Job, Tube},
};

impl Server {
    /// Hands out ready jobs of a tube to waiting clients, until there is no such job or client.
    pub(super) fn hand_out(&mut self, tube: Key<Tube>, now: Time) {
        while let Some(pair) = self.queue.hand_out(tube, self.next_instant(now)) {
            self.deliver(pair, now);
        }
    }

    /// The instant to use for the next job that is handed out; the next call of [`Server::instant`]
    /// returns the same.
    pub(super) fn next_instant(&self, now: Time) -> Time {
        now.max(self.latest.next())
    }

    /// Sends a job to the client for which the job was just reserved. Each job handed out in a step
    /// is reserved at a later instant than the one before, so that the jobs time out in this order.
    pub(super) fn deliver(&mut self, (client, job): (Key<Client>, Key<Job>), now: Time) {
        self.instant(now);
        let conn = &mut self.conns[client.paired()];
        conn.resume();
        self.dirty.mark_first(client.paired(), conn);
        self.send_job(client.paired(), job, "RESERVED");
    }

    /// Appends a job to the output of a connection: a line with `word`, the job's id and the body's
    /// size, and then the body.
    pub(super) fn send_job(&mut self, key: Key<Conn>, job: Key<Job>, word: &'static str) {
        self.show(key, self.queue.job(job).record.id);
        let Job { record, body, .. } = self.queue.job(job);
        let reply = Reply::Job(word, record.id, body.len() - CRLF.len());
        self.conns[key].output.reply_with(reply, body, &mut self.bodies);
        trace!("{key:?} < {reply:?}");
        self.mark_dirty(key);
    }

    /// Appends the reply to a client whose wait has ended; its connection then takes commands
    /// again.
    pub(super) fn answer_waiting(&mut self, client: Key<Client>, reply: Reply<'_>) {
        self.conns[client.paired()].resume();
        self.reply(client.paired(), reply);
    }

    /// Appends a reply to the output of a connection.
    pub(super) fn reply(&mut self, key: Key<Conn>, reply: Reply<'_>) {
        trace!("{key:?} < {reply:?}");
        self.conns[key].output.reply(reply);
        self.mark_dirty(key);
    }

    /// Marks a connection as dirty after a change to its output or to its readiness for input.
    pub(super) fn mark_dirty(&mut self, key: Key<Conn>) {
        self.dirty.mark(key, &mut self.conns[key]);
    }

    /// Appends a reply with a YAML document to the output of a connection.
    pub(super) fn send_document(&mut self, key: Key<Conn>, document: &[u8]) {
        // Formatting a document takes long: for `stats`, as long as ten simple commands.
        self.charge(document.len() / 2);
        self.conns[key].output.reply(Reply::Ok(document));
        self.mark_dirty(key);
    }
}
