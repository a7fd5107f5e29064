//! Looking at many jobs of a tube, and deleting them.

use std::collections::BinaryHeap;

use super::{Job, Queue, State, Tube, job::DueKey};
use crate::{
    collections::Key,
    memory::{self, MemoryBudget, Need},
};

/// The first jobs of a tube, in the order of service.
impl Queue {
    /// Ready jobs, by priority. O(count log count).
    pub fn list_ready(&self, tube: Key<Tube>, count: usize) -> Vec<Key<Job>> {
        self.tubes.arena[tube].ready.first(count)
    }

    /// Delayed jobs, by when they become ready. O(count log count).
    pub fn list_delayed(&self, tube: Key<Tube>, count: usize) -> Vec<Key<Job>> {
        self.tubes.arena[tube].delayed.first(count)
    }

    /// Buried jobs, in the order in which they were buried. O(count).
    pub fn list_buried(&self, tube: Key<Tube>, count: usize) -> Vec<Key<Job>> {
        self.tubes.arena[tube].buried.iter(&self.jobs.arena).take(count).collect()
    }
}

/// A `list-jobs` of reserved jobs in progress. A tube does not know its reserved jobs, so all
/// clients are visited.
#[derive(Debug)]
pub struct ListReserved {
    tube: Key<Tube>,
    count: usize,
    /// The index of the client to visit next, and the position among its deadlines.
    next: (usize, usize),
    /// The first jobs of those found, which may have changed since.
    first: BinaryHeap<(DueKey, Key<Job>)>,
}

/// Listing reserved jobs.
impl Queue {
    /// Begins to list the first `count` reserved jobs of a tube by their deadlines. The tube is
    /// kept until [`Queue::end_list_reserved`].
    pub fn begin_list_reserved(
        &mut self,
        tube: Key<Tube>,
        count: usize,
        budget: &mut MemoryBudget,
    ) -> memory::Result<ListReserved> {
        let mut first = Vec::new();
        budget.grow_vec(Need::Connection, &mut first, count + 1)?;
        self.tubes.arena[tube].pins += 1;
        Ok(ListReserved { tube, count, next: (0, 0), first: first.into() })
    }

    /// Looks at up to `steps` more clients and jobs. After the last one, returns the jobs found
    /// that are still reserved until the same instant.
    pub fn step_list_reserved(
        &self,
        list: &mut ListReserved,
        steps: usize,
    ) -> Option<Vec<Key<Job>>> {
        for _ in 0..steps {
            let (client, position) = list.next;
            if client >= self.clients.slots() || list.count == 0 {
                return Some(self.still_reserved(&list.first));
            }
            let deadlines = self.clients.get(Key::from_index(client)).map(|it| &it.deadlines);
            let Some((due, job)) = deadlines.and_then(|it| it.at(position)) else {
                list.next = (client + 1, 0);
                continue;
            };
            list.next.1 += 1;
            let is_full = list.first.len() == list.count;
            let is_early = !is_full || list.first.peek().is_some_and(|&(last, _)| due < last);
            if is_early && self.jobs.arena[job].tube == list.tube {
                list.first.push((due, job));
                if is_full {
                    list.first.pop();
                }
            }
        }
        None
    }

    fn still_reserved(&self, found: &BinaryHeap<(DueKey, Key<Job>)>) -> Vec<Key<Job>> {
        let mut found: Vec<_> = found.iter().copied().collect();
        found.retain(|&(due, job)| {
            let is_same = self.jobs.arena.get(job).is_some_and(|it| it.record.id == due.id());
            is_same && self.deadline(job) == Some(due.at())
        });
        found.sort_unstable();
        // A job that changed places among its client's deadlines may have been found twice.
        found.dedup();
        found.into_iter().map(|(_, job)| job).collect()
    }

    /// Ends a `list-jobs` of reserved jobs, and no longer keeps its tube.
    pub fn end_list_reserved(&mut self, list: &ListReserved, budget: &mut MemoryBudget) {
        budget.on_resize(list.first.capacity() * size_of::<(DueKey, Key<Job>)>(), 0);
        self.unpin(list.tube);
    }
}

/// A `delete-tube` in progress. It deletes the jobs that were put before it began, one at a time. A
/// job that has left these states before its turn comes stays.
///
/// Entries of a heap change places while other clients put and reserve. So it takes some jobs at a
/// time, and searches again until it has gone through a whole heap without finding any.
#[derive(Debug)]
pub struct DeleteTube {
    tube: Key<Tube>,
    /// The state whose jobs are being deleted. `None` at the end.
    from: Option<State>,
    /// Whether the other states follow.
    takes_all: bool,
    /// Jobs from this id on stay.
    end_id: u64,
    /// The next position in the heap to look at.
    position: usize,
    /// The number of entries looked at since a job was last found.
    seen: usize,
    /// Jobs that were found, and may have changed since. At most [`FOUND_MAX`].
    found: Vec<Key<Job>>,
    /// The number of jobs deleted so far.
    pub deleted: u64,
}

/// The most jobs that a `delete-tube` collects at a time.
const FOUND_MAX: usize = 256;

/// The most entries of a heap that one step looks at: half a millisecond. In a larger heap, a job
/// may change places each time, and so escape.
const SEEN_PER_STEP_MAX: usize = 1 << 18;

/// The most buried jobs that one step looks at, from the first. A job escapes if it comes after
/// this many jobs with ids above the last one to be deleted.
const BURIED_SEEN_MAX: usize = 1 << 14;

/// One step of a [`DeleteTube`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteStep {
    /// This job is to be deleted.
    Job(Key<Job>),
    /// This many entries were looked at.
    Seen(usize),
    /// All have been deleted.
    End,
}

/// Deleting.
impl Queue {
    /// Begins a `delete-tube`: of one state, or of all but reserved jobs, up to the id `last_id`.
    /// The tube is kept until [`Queue::end_delete_tube`].
    pub fn begin_delete_tube(
        &mut self,
        need: Need,
        tube: Key<Tube>,
        state: Option<State>,
        last_id: u64,
        budget: &mut MemoryBudget,
    ) -> memory::Result<DeleteTube> {
        let mut found = Vec::new();
        budget.grow_vec(need, &mut found, FOUND_MAX)?;
        self.tubes.arena[tube].pins += 1;
        Ok(DeleteTube {
            tube,
            from: Some(state.unwrap_or(State::Ready)),
            takes_all: state.is_none(),
            end_id: self.next_id.min(last_id.saturating_add(1)),
            position: 0,
            seen: 0,
            found,
            deleted: 0,
        })
    }

    /// Takes a step, and returns the next job, which the caller must delete by [`Queue::delete`].
    /// O(1) if it returns a job, or else O(entries looked at).
    pub fn step_delete_tube(&self, delete: &mut DeleteTube) -> DeleteStep {
        let Some(from) = delete.from else { return DeleteStep::End };
        let end_id = delete.end_id;
        let is_meant = |job: &Key<Job>| {
            self.jobs.arena.get(*job).is_some_and(|it| {
                it.tube == delete.tube && it.record.state == from && it.record.id < end_id
            })
        };
        let Tube { ready, delayed, buried, .. } = &self.tubes.arena[delete.tube];
        if let Some(job) = delete.found.pop() {
            if !is_meant(&job) {
                return DeleteStep::Seen(1);
            }
            delete.deleted += 1;
            return DeleteStep::Job(job);
        }
        let (start, most, found) = (delete.position, SEEN_PER_STEP_MAX, &mut delete.found);
        let (length, position) = match from {
            State::Ready => (ready.len(), ready.find(start, most, found, |it| it.id() < end_id)),
            State::Delayed => {
                (delayed.len(), delayed.find(start, most, found, |it| it.id() < end_id))
            }
            State::Buried | State::Reserved(_) => {
                let first = buried.iter(&self.jobs.arena).take(BURIED_SEEN_MAX);
                found.extend(first.filter(is_meant).take(FOUND_MAX));
                (0, 0)
            }
        };
        let seen = position.saturating_sub(start);
        delete.seen = if found.is_empty() { delete.seen + seen } else { 0 };
        // After the last entry, or if the heap has shrunk, the search starts again from the
        // beginning.
        delete.position = if position < length { position } else { 0 };
        if delete.found.is_empty() && delete.seen >= length {
            (delete.position, delete.seen) = (0, 0);
            delete.from = match from {
                State::Ready if delete.takes_all => Some(State::Delayed),
                State::Delayed if delete.takes_all => Some(State::Buried),
                _ => None,
            };
        }
        DeleteStep::Seen(seen)
    }

    /// Ends a `delete-tube`, and no longer keeps its tube.
    pub fn end_delete_tube(&mut self, delete: &DeleteTube, budget: &mut MemoryBudget) {
        budget.on_resize(delete.found.capacity() * size_of::<Key<Job>>(), 0);
        self.unpin(delete.tube);
    }
}
