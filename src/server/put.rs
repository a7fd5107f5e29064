//! Adding a job: its header, its body, and the one decision whether it is admitted.

use super::{Server, binlog::Permit, out_of_memory};
use crate::{
    clock::Time,
    collections::Key,
    conn::{Conn, PendingPut},
    memory::Body,
    proto::{CRLF, ErrorReply, PutHeader, Reply},
    queue::Put,
};

/// A body that has arrived completely, with its CR LF.
pub(super) enum ArrivedBody<'a> {
    /// In one piece with its command. Not stored yet.
    Whole(&'a [u8]),
    /// In several pieces, stored as they arrived.
    Collected(Body),
}

impl Server {
    /// Handles the header of a `put`. `rest` holds the input behind it. The id is taken here, so a
    /// failed body leaves a gap.
    pub(super) fn put_header(
        &mut self,
        key: Key<Conn>,
        header: PutHeader,
        rest: &mut &[u8],
        now: Time,
    ) {
        self.queue.mark_producer(key.paired());
        if !self.bodies.admits(u64::from(header.size) + CRLF.len() as u64) {
            return self.conns[key].skip_body(header.size, ErrorReply::OutOfMemory);
        }
        let put = PendingPut { id: self.queue.take_id(), header, received_at: now };
        if let Some(body) = self.conns[key].expect_body(put, rest) {
            self.put(key, put, ArrivedBody::Whole(body), now);
        }
    }

    /// Adds the job whose body has arrived, or sends the error reply.
    pub(super) fn put(
        &mut self,
        key: Key<Conn>,
        put: PendingPut,
        arrived: ArrivedBody<'_>,
        now: Time,
    ) {
        let now = self.instant(now);
        let PendingPut { id, header: PutHeader { pri, delay, ttr, .. }, received_at } = put;
        let bytes = match &arrived {
            ArrivedBody::Whole(bytes) => bytes,
            ArrivedBody::Collected(body) => self.bodies.bytes(body),
        };
        let (size, has_crlf) = (bytes.len(), bytes.ends_with(CRLF));
        let admitted = match (self.admit(key, delay, size, has_crlf, now), arrived) {
            (Ok(permit), ArrivedBody::Whole(bytes)) => {
                self.bodies.store(bytes).map(|body| (permit, body)).map_err(out_of_memory)
            }
            (Ok(permit), ArrivedBody::Collected(body)) => Ok((permit, body)),
            (Err(error), ArrivedBody::Whole(_)) => Err(error),
            (Err(error), ArrivedBody::Collected(body)) => {
                self.bodies.remove(body);
                Err(error)
            }
        };
        let (permit, body) = match admitted {
            Ok(admitted) => admitted,
            Err(error) => return self.reply(key, Reply::Error(error)),
        };
        let put = Put { id, pri, delay, ttr, created_at: received_at };
        let job = self.queue.put(key.paired(), put, body, now);
        self.record_put(permit, job);
        let tube = self.queue.job(job).tube;
        self.acknowledge(key, Reply::Inserted { id });
        self.hand_out(tube, now);
    }

    /// Decides whether a job is admitted, with a body of `size` bytes. It must end in CR LF, the
    /// daemon must not drain, and the queue must have memory and the binlog space. The caller
    /// allocates memory for a body that is not stored yet.
    fn admit(
        &mut self,
        key: Key<Conn>,
        delay: u32,
        size: usize,
        has_crlf: bool,
        now: Time,
    ) -> Result<Permit, ErrorReply> {
        if !has_crlf {
            return Err(ErrorReply::ExpectedCrlf);
        }
        if self.is_draining {
            return Err(ErrorReply::Draining);
        }
        let budget = self.bodies.budget_mut();
        self.queue.ensure_memory_to_put(key.paired(), delay, budget).map_err(out_of_memory)?;
        self.permit_put(key, size, now)
    }
}
