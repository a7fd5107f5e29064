//! The targets of records in a replay: the queue, the bodies and the index of segments.

use super::window::Window;
use crate::{
    clock::{Calendar, Time},
    collections::{Key, OutOfMemory},
    memory::{Bodies, Body, Level},
    queue::{Queue, Record, State, Tube},
    wal::{
        Error,
        index::SegmentIndex,
        record::{Frame, JobFields, Kind},
    },
};

/// The targets that records are applied to.
pub(super) struct Sink<'a> {
    pub(super) queue: &'a mut Queue,
    pub(super) bodies: &'a mut Bodies,
    pub(super) index: SegmentIndex,
    pub(super) calendar: Calendar,
    pub(super) now: Time,
    /// From the last segment header: clients may have seen ids below this one.
    pub(super) seen_below: u64,
}

impl Sink<'_> {
    /// Releases the memory of the jobs that have been deleted, in the queue and in the index.
    pub(super) fn release_unused(&mut self) {
        while self.queue.release_one() || self.index.release_one() {}
    }

    /// Converts the fields of a record to the fields of a job in the queue.
    pub(super) fn known(&self, fields: &JobFields) -> Record {
        let deadline_at = self.calendar.instant(fields.deadline_at);
        let seconds = |ns: i64| u32::try_from(ns.max(0) / 1_000_000_000).unwrap_or(u32::MAX);
        let (state, state_at) = match fields.kind {
            Kind::Buried => (State::Buried, deadline_at),
            Kind::Delayed if deadline_at > self.now => (State::Delayed, deadline_at),
            Kind::Delayed => (State::Ready, deadline_at),
            // In `deadline_at`, the original leaves the end of an earlier reservation.
            Kind::Ready | Kind::Deleted => (State::Ready, self.now),
        };
        Record {
            id: fields.id,
            pri: fields.pri,
            delay: seconds(fields.delay),
            ttr: seconds(fields.ttr).max(1),
            created_at: self.calendar.instant(fields.created_at),
            state_at,
            history: fields.history,
            state,
        }
    }

    /// Ensures the memory for the job of the full record at `at`, makes its tube, and stores its
    /// body: at once if the record fits into the window, or else piece by piece. Fails if there is
    /// no memory.
    pub(super) fn store_body(
        &mut self,
        window: &mut Window<'_>,
        at: u64,
        frame: &Frame,
    ) -> Result<(Key<Tube>, Body), Error> {
        if !self.bodies.memory.admits(Level::Plenty) {
            self.release_unused();
            self.bodies.begin_turn();
        }
        let Self { queue, bodies, index, .. } = self;
        let length = frame.head_length + frame.body_length;
        let bytes = window.at(at, length.min(Window::BYTES))?;
        let name = frame.name(bytes).expect("it has been verified");
        if !bodies.memory.admits(Level::Plenty) {
            return Err(OutOfMemory.into());
        }
        index.make_room()?;
        let tube = queue.make_room_to_restore(name)?;
        if length <= Window::BYTES {
            return Ok((tube, bodies.store(&bytes[frame.head_length..length])?));
        }
        let mut body = bodies.begin(frame.body_length)?;
        let body_at = at + frame.head_length as u64;
        let append = |part: &[u8]| Ok(bodies.append(&mut body, part)?);
        if let Err(error) = window.for_each_part(body_at, frame.body_length, append) {
            bodies.remove(body);
            return Err(error);
        }
        Ok((tube, body))
    }
}
