//! A job comes in: its body is here, and it is kept or refused.

use super::{Server, out_of_memory};
use crate::{
    clock::Time,
    collections::Key,
    conn::Conn,
    memory::Body,
    proto::{CRLF, Refused, Reply},
    queue::Put,
};

impl Server {
    /// The body of a `put` has arrived with its command.
    pub(super) fn put_whole(&mut self, key: Key<Conn>, put: Put, bytes: &[u8], now: Time) {
        let now = self.instant(now);
        let has_end = bytes.ends_with(CRLF);
        let may_keep = self.may_keep(key, bytes.len(), put.delay, has_end, now);
        let body =
            may_keep.and_then(|()| self.queue.bodies_mut().store(bytes).map_err(out_of_memory));
        match body {
            Ok(body) => self.put(key, put, body, now),
            Err(refused) => self.reply(key, Reply::Refused(refused)),
        }
    }

    /// The body of a `put` has arrived in pieces.
    pub(super) fn put_stored(&mut self, key: Key<Conn>, put: Put, body: Body, now: Time) {
        let now = self.instant(now);
        let has_end = self.queue.bodies().bytes(&body).ends_with(CRLF);
        match self.may_keep(key, body.len(), put.delay, has_end, now) {
            Ok(()) => self.put(key, put, body, now),
            Err(refused) => {
                self.queue.bodies_mut().remove(body);
                self.reply(key, Reply::Refused(refused));
            }
        }
    }

    pub(super) fn put(&mut self, key: Key<Conn>, put: Put, body: Body, now: Time) {
        let job = self.queue.put(key.beside(), put, body, now);
        self.log_put(job);
        let tube = self.queue.job(job).tube;
        self.acknowledge(key, Reply::Inserted { id: put.id });
        self.hand_out(tube, now);
    }

    /// Whether a job may be put: with a body of so many bytes, which ends as it should or not.
    fn may_keep(
        &mut self,
        key: Key<Conn>,
        size: usize,
        delay: u32,
        has_end: bool,
        now: Time,
    ) -> Result<(), Refused> {
        if !has_end {
            return Err(Refused::ExpectedCrlf);
        }
        if self.is_draining {
            return Err(Refused::Draining);
        }
        self.queue.make_room_to_put(key.beside(), delay).map_err(out_of_memory)?;
        self.may_put(key, size, now)
    }
}
