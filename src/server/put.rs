//! The command `put`: its header, its body, and the decision whether the job is accepted.

use super::{Growing, Server, binlog::Permit};
use crate::{
    clock::Time,
    collections::Key,
    conn::{Conn, PendingPut},
    memory::{BODY_OVERHEAD_BYTES, Body},
    proto::{CRLF, PutHeader, Reply},
    queue::Record,
};

impl Server {
    /// Handles the header of a `put`. `rest` is the input after the header. The job gets its id
    /// now; if its body is rejected later, no job gets this id.
    pub(super) fn put_header(
        &mut self,
        key: Key<Conn>,
        header: PutHeader,
        rest: &mut &[u8],
        now: Time,
    ) {
        self.queue.mark_producer(key.paired());
        let counted = u64::from(header.size) + CRLF.len() as u64 + BODY_OVERHEAD_BYTES;
        if self.bodies.ensure_limit_permits(counted).is_err() {
            return self.conns[key].skip_body(header.size, Reply::OUT_OF_MEMORY);
        }
        let put = PendingPut { id: self.queue.take_id(), header, received_at: now };
        let Some(body) = self.conns[key].expect_body(put, rest) else { return };
        match self.bodies.store(body) {
            Ok(body) => self.put(key, put, body, now),
            Err(error) => self.reply(key, error.into()),
        }
    }

    /// Adds the job of a `put` whose whole body has arrived, or sends an error reply.
    pub(super) fn put(&mut self, key: Key<Conn>, put: PendingPut, body: Body, now: Time) {
        let now = self.instant(now);
        let PendingPut { id, header: PutHeader { pri, delay, ttr, .. }, received_at } = put;
        let permit = match self.admit_put(key, &put, &body, now) {
            Ok(permit) => permit,
            Err(error) => {
                self.bodies.remove(body);
                return self.reply(key, error);
            }
        };
        let record = Record::new(id, pri, delay, ttr, received_at);
        let job = self.queue.put(key.paired(), record, body, now);
        self.bodies.own(&mut self.queue, job.index());
        self.record_put(permit, job);
        let tube = self.queue.job(job).tube;
        self.acknowledge(key, Reply::Number("INSERTED", id));
        self.hand_out(tube, now);
    }

    /// Decides whether a job is accepted: its body must end in CR LF, the daemon must not be
    /// draining, and there must be memory for the job and space in the binlog.
    fn admit_put(
        &mut self,
        key: Key<Conn>,
        put: &PendingPut,
        body: &Body,
        now: Time,
    ) -> Result<Permit, Reply<'static>> {
        if !self.bodies.bytes(body).ends_with(CRLF) {
            return Err(Reply::EXPECTED_CRLF);
        }
        if self.is_draining {
            return Err(Reply::DRAINING);
        }
        let tube = self.queue.client(key.paired()).using;
        self.admit(Growing::Storage)?;
        self.queue.make_room_to_put(tube, put.header.delay > 0)?;
        self.permit_put(key, body.len(), now)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{connect, exchange, send, server};

    /// The first check that fails decides the reply; the protocol defines the order of the checks.
    #[test]
    fn of_several_reasons_against_a_job_the_first_is_answered() {
        let mut server = server(Some(1000));
        let client = connect(&mut server);
        server.set_draining(true);
        let large = format!("put 0 0 1 2000\r\n{}\r\n", "x".repeat(2000));
        assert_eq!(exchange(&mut server, client, &large), "OUT_OF_MEMORY\r\n");
        assert_eq!(exchange(&mut server, client, "put 0 0 1 1\r\nabc"), "EXPECTED_CRLF\r\n");
        assert_eq!(exchange(&mut server, client, "put 0 0 1 1\r\na\r\n"), "DRAINING\r\n");
        server.set_draining(false);
        assert_eq!(exchange(&mut server, client, "put 0 0 1 1\r\na\r\n"), "INSERTED 3\r\n");
        server.check();
    }

    #[test]
    fn a_body_in_pieces_is_admitted_as_one_in_a_piece() {
        for text in ["put 5 0 1 3\r\nabc\r\n", "put 5 0 1 3\r\nabcde"] {
            let mut whole = server(None);
            let client = connect(&mut whole);
            let wanted = exchange(&mut whole, client, text);
            for split in 13..text.len() {
                let mut pieces = server(None);
                let client = connect(&mut pieces);
                send(&mut pieces, client, &text[..split]);
                assert_eq!(exchange(&mut pieces, client, &text[split..]), wanted, "{split}");
                pieces.check();
            }
        }
    }

    /// A body that is refused after its arrival must be freed, or its memory would be lost.
    #[test]
    fn a_collected_body_that_is_not_admitted_is_freed() {
        let mut server = server(None);
        let client = connect(&mut server);
        server.set_draining(true);
        send(&mut server, client, "put 0 0 1 9\r\n1234");
        assert!(server.bodies().counted > 0);
        assert_eq!(exchange(&mut server, client, "56789\r\n"), "DRAINING\r\n");
        assert_eq!(server.bodies().counted, 0);
        server.check();
    }

    #[test]
    fn a_waiting_worker_gets_a_job_with_the_put() {
        let mut server = server(None);
        let (worker, producer) = (connect(&mut server), connect(&mut server));
        send(&mut server, worker, "reserve\r\n");
        assert_eq!(exchange(&mut server, producer, "put 0 0 1 1\r\na\r\n"), "INSERTED 1\r\n");
        assert_eq!(super::super::testing::receive(&mut server, worker), "RESERVED 1 1\r\na\r\n");
        server.check();
    }
}
