//! Looking at many jobs of a tube, and deleting them.

use std::collections::BinaryHeap;

use super::{Job, Queue, State, Tube};
use crate::collections::Key;

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

    /// Reserved jobs, by their deadlines. A tube does not know them, so all clients are asked:
    /// O([`Queue::steps_to_list_reserved`] · log count).
    pub fn list_reserved(&self, tube: Key<Tube>, count: usize) -> Vec<Key<Job>> {
        let mut first = BinaryHeap::with_capacity(count + 1);
        for (_, client) in self.clients.iter() {
            for (due, job) in client.deadlines.iter() {
                if self.jobs.arena[job].tube == tube {
                    first.push((due, job));
                    if first.len() > count {
                        first.pop();
                    }
                }
            }
        }
        first.into_sorted_vec().into_iter().map(|(_, job)| job).collect()
    }

    /// How many clients and jobs [`Queue::list_reserved`] looks at.
    pub fn steps_to_list_reserved(&self) -> usize {
        let reserved = usize::try_from(self.counts.reserved).unwrap_or(usize::MAX);
        self.clients.slots().saturating_add(reserved)
    }
}

/// A `delete-tube` in progress. It deletes the jobs that were put before it began, one at a time,
/// each if it is in one of the states when its turn comes.
#[derive(Debug, Clone, Copy)]
pub struct DeleteTube {
    tube: Key<Tube>,
    /// The state whose jobs are deleted now. `None` at the end.
    from: Option<State>,
    /// Whether the other states follow.
    takes_all: bool,
    /// Jobs from this id on were put later, and stay.
    next_id: u64,
    /// How many entries of the heap, from its beginning, have not been looked at in this pass.
    unseen: usize,
    /// Whether this pass has deleted a job. Then entries may have changed places, and another pass
    /// follows.
    has_found: bool,
    /// How many jobs have been deleted so far.
    pub deleted: u64,
}

/// One step of a [`DeleteTube`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteStep {
    /// This job is to be deleted.
    Job(Key<Job>),
    /// None was found yet.
    Nothing,
    /// All have been deleted.
    End,
}

/// Deleting.
impl Queue {
    /// Begins a `delete-tube`: of one state, or of all but reserved jobs. The tube is kept until
    /// [`Queue::end_delete_tube`].
    pub fn begin_delete_tube(&mut self, tube: Key<Tube>, state: Option<State>) -> DeleteTube {
        self.tubes.arena[tube].pins += 1;
        DeleteTube {
            tube,
            from: Some(state.unwrap_or(State::Ready)),
            takes_all: state.is_none(),
            next_id: self.next_id,
            unseen: usize::MAX,
            has_found: false,
            deleted: 0,
        }
    }

    /// Takes a step, and returns the next job, which the caller must delete by [`Queue::delete`].
    /// O(1).
    pub fn step_delete_tube(&self, delete: &mut DeleteTube) -> DeleteStep {
        let Tube { ready, delayed, buried, .. } = &self.tubes.arena[delete.tube];
        let is_old = |job: &Key<Job>| self.jobs.arena[*job].record.id < delete.next_id;
        let (length, entry): (usize, &dyn Fn(usize) -> Option<Key<Job>>) = match delete.from {
            None => return DeleteStep::End,
            Some(State::Ready) => (ready.len(), &|position| ready.get(position)),
            Some(State::Delayed) => (delayed.len(), &|position| delayed.get(position)),
            // What is buried meanwhile comes last.
            Some(_) => (usize::from(!buried.is_empty()), &|_| buried.front()),
        };
        // From the end on, because to remove the last entry moves no other one.
        delete.unseen = delete.unseen.min(length);
        if let Some(last) = delete.unseen.checked_sub(1) {
            if let Some(job) = entry(last).filter(is_old) {
                // Whatever takes its place has been seen, or comes from among the unseen.
                delete.has_found = true;
                delete.deleted += 1;
                return DeleteStep::Job(job);
            }
            delete.unseen = last;
            return DeleteStep::Nothing;
        }
        delete.unseen = usize::MAX;
        if !std::mem::take(&mut delete.has_found) || length == 0 {
            delete.from = match delete.from {
                Some(State::Ready) if delete.takes_all => Some(State::Delayed),
                Some(State::Delayed) if delete.takes_all => Some(State::Buried),
                _ => None,
            };
        }
        DeleteStep::Nothing
    }

    /// Ends a `delete-tube`, which no longer keeps its tube.
    pub fn end_delete_tube(&mut self, delete: DeleteTube) {
        self.tubes.arena[delete.tube].pins -= 1;
        self.drop_if_idle(delete.tube);
    }
}
