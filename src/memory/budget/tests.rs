use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use super::*;
use crate::memory::block::BLOCK_BYTES;

/// A memory source with this many bytes, which counts probes.
#[derive(Debug, Clone, Default)]
struct Limited {
    bytes: Arc<AtomicUsize>,
    probes: Arc<AtomicUsize>,
}

impl MemorySource for Limited {
    fn can_allocate(&mut self, bytes: usize, headroom: usize) -> bool {
        self.probes.fetch_add(1, Relaxed);
        bytes.saturating_add(headroom) <= self.bytes.load(Relaxed)
    }
}

fn limited(memory: &Limited) -> MemoryBudget {
    let mut budget = MemoryBudget::default();
    budget.set_source(Box::new(memory.clone()), false);
    budget
}

/// With just enough memory for one need, the needs after it are granted, too.
#[test]
fn later_needs_may_use_more_of_the_headroom() {
    let needs = [Need::Storage, Need::Reply, Need::Connection, Need::Worker, Need::Essential];
    for (at, headroom) in HEADROOM_BYTES.into_iter().enumerate() {
        for missing in [0, 1] {
            let memory = Limited::default();
            memory.bytes.store(headroom + PROBE_STEPS_BYTES[1].0 - missing, Relaxed);
            let mut budget = limited(&memory);
            let count = needs.iter().filter(|&&need| budget.admits(need, 1000)).count();
            assert_eq!(count, needs.len() - at - missing, "beside {headroom} bytes");
        }
    }
}

/// Granted memory becomes resident only when it is first written to, so resident memory would
/// grow further.
#[test]
fn resident_memory_is_read_in_each_turn() {
    let memory = Limited::default();
    memory.bytes.store(usize::MAX, Relaxed);
    let mut budget = MemoryBudget::default();
    budget.set_source(Box::new(memory.clone()), false);
    budget.limits_resident = true;
    assert!(budget.admits(Need::Storage, 1000));
    memory.bytes.store(0, Relaxed);
    budget.forget_refusals();
    assert!(!budget.admits(Need::Essential, 1000));
}

#[test]
fn an_absurd_request_fails_alone() {
    let mut budget = MemoryBudget::default();
    assert!(budget.admits(Need::Storage, 0));
    assert!(!budget.admits(Need::Storage, usize::MAX));
    #[cfg(target_pointer_width = "64")]
    assert!(!budget.admits(Need::Storage, 1 << 62));
    assert!(budget.admits(Need::Storage, 1), "too much for one need is not a shortage for all");
}

#[test]
fn a_probe_covers_a_step_and_no_more() {
    let memory = Limited::default();
    memory.bytes.store(usize::MAX, Relaxed);
    let mut budget = limited(&memory);
    for _ in 0..100 {
        budget.take(Need::Storage, PROBE_STEPS_BYTES[0].0 / 100).expect("there is memory");
    }
    assert_eq!(memory.probes.load(Relaxed), 1);
    budget.take(Need::Storage, PROBE_STEPS_BYTES[0].0 / 10).expect("there is memory");
    assert_eq!(memory.probes.load(Relaxed), 2);
}

#[test]
fn a_refused_need_is_not_probed_until_refusals_are_forgotten() {
    let memory = Limited::default();
    let mut budget = limited(&memory);
    for _ in 0..10 {
        assert_eq!(budget.take(Need::Storage, 1), Err(OutOfMemory));
    }
    assert_eq!(memory.probes.load(Relaxed), 2, "both steps");
    memory.bytes.store(usize::MAX, Relaxed);
    budget.forget_refusals();
    assert_eq!(budget.take(Need::Storage, 1), Ok(()));
}

/// A probe in small pieces takes long, and thousands of jobs may need the same list to grow.
#[test]
fn a_large_request_that_was_refused_is_not_probed_again_and_small_ones_are() {
    let memory = Limited::default();
    memory.bytes.store(HEADROOM_BYTES[0] + BLOCK_BYTES, Relaxed);
    let mut budget = limited(&memory);
    for (count, probes) in
        [(2 * PROBE_STEPS_BYTES[0].0, 2), (3 * PROBE_STEPS_BYTES[0].0, 0), (BLOCK_BYTES, 20)]
    {
        memory.probes.store(0, Relaxed);
        for _ in 0..10 {
            let is_small = count == BLOCK_BYTES;
            assert_eq!(budget.take(Need::Storage, count).is_ok(), is_small);
            assert!(!budget.was_refused(Need::Storage));
        }
        assert_eq!(memory.probes.load(Relaxed), probes, "{count} bytes");
    }
    memory.bytes.store(HEADROOM_BYTES[0], Relaxed);
    memory.probes.store(0, Relaxed);
    for _ in 0..10 {
        assert_eq!(budget.take(Need::Storage, BLOCK_BYTES), Err(OutOfMemory));
        assert!(budget.was_refused(Need::Storage));
    }
    assert_eq!(memory.probes.load(Relaxed), 2);
}

#[test]
fn a_list_that_cannot_grow_is_unchanged() {
    let memory = Limited::default();
    let mut budget = limited(&memory);
    let (mut list, mut deque) = (vec![1, 2, 3], VecDeque::from([1, 2, 3]));
    let (long, deep) = (list.capacity(), deque.capacity());
    assert_eq!(budget.grow_vec(Need::Essential, &mut list, 1000), Err(OutOfMemory));
    assert_eq!(budget.grow_deque(Need::Essential, &mut deque, 1000), Err(OutOfMemory));
    assert_eq!((list.capacity(), deque.capacity()), (long, deep));
    memory.bytes.store(usize::MAX, Relaxed);
    budget.forget_refusals();
    assert_eq!(budget.grow_vec(Need::Essential, &mut list, 1000), Ok(()));
    assert_eq!(budget.grow_deque(Need::Essential, &mut deque, 1000), Ok(()));
    assert!(list.capacity() >= 1000 && deque.capacity() >= 1000);
}
