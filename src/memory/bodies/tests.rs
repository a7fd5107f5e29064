use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use proptest::prelude::*;

use super::slots::FREED_PART;
use super::*;
use crate::memory::{Supply, block::BLOCK_BYTES};

fn filled(len: usize, byte: u8) -> Vec<u8> {
    vec![byte; len]
}

/// Bodies, and the jobs that own them.
#[derive(Default)]
struct Jobs {
    bodies: Bodies,
    owned: BTreeMap<usize, Body>,
    next: usize,
}

impl BodyOwners for BTreeMap<usize, Body> {
    fn body_mut(&mut self, index: usize) -> &mut Body {
        self.get_mut(&index).expect("its owner lives")
    }
}

impl Jobs {
    fn add(&mut self, body: Body) -> usize {
        let index = self.next;
        self.next += 1;
        self.owned.insert(index, body);
        self.bodies.own(&mut self.owned, index);
        index
    }

    fn put(&mut self, bytes: &[u8]) -> Growth<usize> {
        let body = self.bodies.store(bytes)?;
        Ok(self.add(body))
    }

    fn delete(&mut self, index: usize) {
        let body = self.owned.remove(&index).expect("it is there");
        self.bodies.remove(body);
    }

    fn move_all(&mut self) {
        self.bodies.move_some(&mut self.owned, u32::MAX, usize::MAX);
    }

    fn check(&self) -> usize {
        self.bodies.check(|index| &self.owned[&index])
    }

    /// How many bytes of memory the bodies take, including the blocks that could be released.
    fn held(&self) -> usize {
        let own = self.bodies.referenced.iter().map(|(_, entry)| entry.own.capacity());
        let blocks = self.bodies.blocks.len() + self.bodies.releasable.len();
        blocks * BLOCK_BYTES + own.sum::<usize>()
    }
}

#[test]
fn small_and_large_bodies_read_the_same() {
    let mut bodies = Bodies::default();
    for len in [
        1,
        2,
        8,
        9,
        COPIED_BODY_MAX_BYTES - 1,
        COPIED_BODY_MAX_BYTES,
        COPIED_BODY_MAX_BYTES + 1,
        SLOT_BODY_MAX_BYTES,
        SLOT_BODY_MAX_BYTES + 1,
        1_000_000,
    ] {
        let wanted: Vec<u8> = (0..=250).cycle().take(len).collect();
        let whole = bodies.store(&wanted).expect("there is memory");
        assert_eq!((bodies.bytes(&whole), whole.len()), (&wanted[..], len));
        let mut grown = bodies.begin(len).expect("there is memory");
        for piece in wanted.chunks(777) {
            bodies.append(&mut grown, piece).expect("there is memory");
        }
        assert_eq!((bodies.bytes(&grown), grown.len()), (&wanted[..], len));
        bodies.remove(whole);
        assert_eq!(bodies.bytes(&grown), wanted);
        bodies.remove(grown);
        assert_eq!(bodies.counted, 0);
    }
}

#[test]
fn a_shared_body_stays_until_its_last_handle_is_removed() {
    for len in [COPIED_BODY_MAX_BYTES + 1, SLOT_BODY_MAX_BYTES + 1] {
        let mut bodies = Bodies::default();
        let one = bodies.store(&filled(len, 1)).expect("there is memory");
        let two = bodies.add_ref(&one);
        let three = bodies.add_ref(&two);
        bodies.remove(one);
        bodies.remove(three);
        let other = bodies.store(&filled(len, 2)).expect("there is memory");
        assert_eq!(bodies.bytes(&two), filled(len, 1));
        bodies.remove(two);
        let next = bodies.store(&filled(len, 3)).expect("there is memory");
        assert_eq!(bodies.bytes(&other), filled(len, 2));
        bodies.remove(other);
        bodies.remove(next);
        assert_eq!((bodies.counted, bodies.referenced.len()), (0, 0));
    }
}

#[test]
fn an_empty_store_has_few_blocks() {
    let mut all = Jobs::default();
    for n in 0..30_000 {
        let len = if n % 10 == 0 { 2 + n } else { 2 + n % 700 };
        all.put(&filled(len, 1)).expect("there is memory");
    }
    assert!(all.held() > 30_000 * 1800);
    for index in 0..30_000 {
        all.delete(index);
    }
    while all.bodies.release_one() {}
    assert!(all.held() <= 2 * BLOCK_BYTES);
}

#[test]
fn a_lone_body_uses_the_memory_of_the_one_before() {
    for len in [20, SLOT_BODY_MAX_BYTES] {
        let mut all = Jobs::default();
        for _ in 0..100 {
            let index = all.put(&filled(len, 1)).expect("there is memory");
            all.delete(index);
        }
        assert_eq!(all.held(), BLOCK_BYTES);
    }
}

/// If bodies did not move, the few remaining jobs in each block would keep all memory in use.
#[test]
fn a_few_survivors_of_each_size_keep_little_memory() {
    let mut all = Jobs::default();
    let mut live = 0;
    for len in (100..3000).step_by(100) {
        let put: Vec<_> =
            (0..8000).map(|_| all.put(&filled(len, 7)).expect("there is memory")).collect();
        for (n, index) in put.into_iter().enumerate() {
            if n % 100 == 0 {
                live += len;
            } else {
                all.delete(index);
            }
        }
        all.move_all();
        all.check();
        while all.bodies.release_one() {}
        let tolerated = BLOCK_BYTES + all.held() / FREED_PART;
        let most = live + 8 * all.owned.len() + tolerated + 2 * BLOCK_BYTES;
        assert!(all.held() <= most, "{} bytes for {live}", all.held());
    }
    for body in all.owned.values() {
        assert!(all.bodies.bytes(body).iter().all(|&byte| byte == 7));
    }
}

/// A source that has no memory.
#[derive(Debug)]
struct Nothing;

impl Supply for Nothing {
    fn left(&mut self) -> usize {
        0
    }
    fn refill(&mut self, _: usize) {}
}

/// If freed slots were not reused, jobs would be refused although others had been deleted.
#[test]
fn without_memory_the_slot_of_a_removed_body_is_used_again() {
    let mut all = Jobs::default();
    for _ in 0..64 {
        all.put(&filled(60_000, 1)).expect("there is memory");
    }
    all.bodies.memory.set_supply(Box::new(Nothing));
    for round in 0..20 {
        let index = *all.owned.keys().nth(round * 3 % all.owned.len()).expect("there are some");
        all.delete(index);
        if round % 2 == 0 {
            all.put(&filled(60_000, 2)).expect("a place is free");
        } else {
            let mut body = all.bodies.begin(60_000).expect("a place is free");
            for piece in filled(60_000, 2).chunks(9000) {
                all.bodies.append(&mut body, piece).expect("it fits");
            }
            all.add(body);
        }
        all.check();
    }
    assert_eq!(all.put(&filled(60_000, 3)), Err(OutOfMemory));
}

/// If an empty block were kept, it would add 22 bytes to each of twelve thousand small jobs.
#[test]
fn if_bodies_are_small_no_empty_block_is_kept() {
    let mut all = Jobs::default();
    let put = [(); 20_000].map(|()| all.put(&filled(18, 1)).expect("there is memory"));
    assert!(all.held() > BLOCK_BYTES);
    for index in put {
        all.delete(index);
    }
    while all.bodies.release_one() {}
    assert!(all.held() <= BLOCK_BYTES);
}

/// If an empty block were kept, a worker might find no memory to connect.
#[test]
fn if_a_connection_was_refused_no_empty_block_is_kept() {
    let mut all = Jobs::default();
    let put = [(); 20].map(|()| all.put(&filled(60_000, 1)).expect("there is memory"));
    for index in put {
        all.delete(index);
    }
    while all.bodies.release_one() {}
    assert_eq!(all.held(), 2 * BLOCK_BYTES);
    all.bodies.memory.set_supply(Box::new(Nothing));
    assert!(!all.bodies.memory.admits(Level::Low));
    all.bodies.begin_turn();
    while all.bodies.release_one() {}
    assert_eq!(all.held(), BLOCK_BYTES);
}

/// If each turn tried again in vain to move bodies, the event loop would never sleep.
#[test]
fn without_memory_to_move_bodies_the_attempt_waits_for_a_removal() {
    let mut all = Jobs::default();
    let put: Vec<_> =
        (0..4000).map(|_| all.put(&filled(4000, 1)).expect("there is memory")).collect();
    for index in put.iter().filter(|index| **index % 2 == 0) {
        all.delete(*index);
    }
    assert!(all.bodies.should_move());
    all.bodies.memory.set_supply(Box::new(Nothing));
    all.bodies.release_all();
    while let Ok(index) = all.put(&filled(4000, 2)) {
        assert!(index < 10_000);
    }
    all.move_all();
    assert!(!all.bodies.should_move());
    all.delete(put[1]);
    assert!(all.bodies.should_move());
    all.check();
}

/// Clients that announce jobs but send little must not take the memory of other connections.
#[test]
fn a_body_takes_no_more_than_twice_the_memory_of_its_bytes() {
    let mut all = Jobs::default();
    for size in [5000, 65_000, 1_000_000] {
        for sent in [1, 100, size / 2 - 1] {
            let mut body = all.bodies.begin(size).expect("there is memory");
            all.bodies.append(&mut body, &filled(sent, 1)).expect("there is memory");
            assert!(all.held() <= 2 * sent, "{} bytes for {sent} of {size}", all.held());
            all.bodies.remove(body);
        }
    }
}

/// Moving unfinished bodies frees no memory. If bodies moved without end, clients that never finish
/// their uploads would keep the daemon busy for ever.
#[test]
fn beside_unfinished_uploads_the_moves_end() {
    let mut all = Jobs::default();
    let mut upload = || {
        let mut body = all.bodies.begin(4000).expect("there is memory");
        all.bodies.append(&mut body, &[0; 2000]).expect("there is memory");
        body
    };
    let mut begun: Vec<_> = (0..40_000).map(|_| upload()).collect();
    // Removes so few unfinished bodies from each block that no block becomes sparse.
    for number in (0..begun.len()).rev().step_by(80) {
        all.bodies.remove(begun.swap_remove(number));
    }
    all.move_all();
    assert!(!all.bodies.should_move());
    all.bodies.expect_shortage();
    all.move_all();
    assert!(!all.bodies.should_move());
    assert_eq!(all.check(), begun.len());
}

/// If one turn could move all large bodies, all clients would wait during this turn.
#[test]
fn a_turn_moves_no_more_bytes_than_allowed() {
    const BYTES: usize = 4_000_000;
    const MOST: usize = 100_000;
    for size in [100, 4000, 50_000] {
        let mut all = Jobs::default();
        for _ in 0..BYTES / size {
            all.put(&filled(size, 1)).expect("there is memory");
        }
        for index in (0..BYTES / size).filter(|index| index % 4 > 0) {
            all.delete(index);
        }
        let places = |all: &Jobs| -> Vec<_> {
            all.owned.values().map(|body| all.bodies.bytes(body).as_ptr()).collect()
        };
        assert!(all.bodies.should_move());
        while all.bodies.should_move() {
            let before = places(&all);
            all.bodies.move_some(&mut all.owned, 1000, MOST);
            let moved = before.iter().zip(places(&all)).filter(|&(&from, to)| from != to).count();
            assert!(moved * size <= MOST + size && moved <= 1000, "{moved} of {size} bytes");
        }
    }
}

/// A source of memory that has a limited number of bytes for bodies.
#[derive(Debug)]
struct Limited {
    bytes: usize,
    held: Arc<AtomicUsize>,
}

impl Supply for Limited {
    fn left(&mut self) -> usize {
        self.bytes.saturating_sub(self.held.load(Relaxed))
    }
    fn refill(&mut self, _: usize) {}
}

/// If new jobs took all blocks that became empty because bodies moved, no memory would be left for
/// clients to connect.
#[test]
fn moves_leave_the_memory_of_connections() {
    const BYTES: usize = 20_000_000;
    let (mut all, held) = (Jobs::default(), Arc::new(AtomicUsize::new(0)));
    let source = Limited { bytes: BYTES, held: held.clone() };
    all.bodies.memory.set_supply(Box::new(source));
    let mut most = 0;
    for round in 0..8 {
        while all.put(&filled(5000, 1)).is_ok() {
            held.store(all.held(), Relaxed);
        }
        if round == 0 {
            most = all.held();
        }
        assert!(all.held() <= most, "round {round}: {} bytes of {most}", all.held());
        let put: Vec<_> = all.owned.keys().copied().collect();
        for index in put.iter().filter(|index| **index % 3 == round % 3) {
            all.delete(*index);
        }
        all.bodies.memory.begin_turn();
        all.bodies.expect_shortage();
        while all.bodies.should_move() {
            all.bodies.move_some(&mut all.owned, 100, usize::MAX);
            held.store(all.held(), Relaxed);
        }
        all.check();
    }
}

proptest! {
    /// If one body overwrote another, a worker would get the body of another job.
    #[test]
    fn bodies_do_not_overlap(
        operations in prop::collection::vec(
            (1..140usize, any::<u8>(), 0..7u8, any::<prop::sample::Index>()),
            1..1000,
        ),
    ) {
        let mut all = Jobs::default();
        let mut wanted = BTreeMap::<usize, Vec<u8>>::new();
        let mut shared = Vec::<(Body, Vec<u8>)>::new();
        for (len, byte, operation, index) in operations {
            // The lengths range from 7 bytes to more than a slot can hold; most are small.
            let len = len * len * 7;
            let bytes = filled(len, byte);
            let at = index.index(all.owned.len().max(1));
            let chosen = all.owned.keys().nth(at).copied();
            match (operation, chosen) {
                (1 | 2, Some(job)) => {
                    all.delete(job);
                    wanted.remove(&job);
                }
                (3, Some(job)) if all.owned[&job].is_large() => {
                    shared.push((all.bodies.add_ref(&all.owned[&job]), wanted[&job].clone()));
                }
                (4, _) if !shared.is_empty() => {
                    let (body, wanted) = shared.swap_remove(index.index(shared.len()));
                    assert_eq!(all.bodies.bytes(&body), wanted);
                    all.bodies.remove(body);
                }
                (5, _) => {
                    let mut body = all.bodies.begin(len).expect("there is memory");
                    for piece in bytes.chunks(len / 3 + 1) {
                        all.bodies.append(&mut body, piece).expect("there is memory");
                    }
                    wanted.insert(all.add(body), bytes);
                }
                (6, _) => {
                    // Pretends that memory is short.
                    all.bodies.expect_shortage();
                    all.bodies.move_some(&mut all.owned, 1 + u32::from(byte), usize::MAX);
                }
                _ => {
                    wanted.insert(all.put(&bytes).expect("there is memory"), bytes);
                }
            }
            prop_assert_eq!(all.check(), all.owned.len() + shared.len());
            let orphans: BTreeMap<_, _> = shared
                .iter()
                .filter(|(it, _)| {
                    let is_same = |job: &Body| job.entry() == it.entry();
                    !all.owned.values().any(is_same)
                })
                .map(|(it, _)| (it.place.block, it.len()))
                .collect();
            let lens = all.owned.values().map(Body::len).chain(orphans.into_values());
            let counted: u64 = lens.map(|len| len as u64 + BODY_OVERHEAD_BYTES).sum();
            prop_assert_eq!(all.bodies.counted, counted);
        }
        for (index, body) in &all.owned {
            prop_assert_eq!(all.bodies.bytes(body), &wanted[index][..]);
        }
        for (body, wanted) in &shared {
            prop_assert_eq!(all.bodies.bytes(body), wanted);
        }
    }
}

/// An unfinished upload has memory that is not resident yet. If all uploads continued at once,
/// resident memory would exceed the limit.
#[test]
fn an_upload_asks_for_memory_again_when_its_bytes_arrive() {
    let held = Arc::new(AtomicUsize::new(0));
    let mut bodies = Bodies::default();
    let source = Limited { bytes: 60_000_000, held: held.clone() };
    bodies.memory.set_supply(Box::new(source));
    bodies.memory.limits_resident = true;
    let mut body = bodies.begin(90_000).expect("there is memory");
    assert_eq!(bodies.append(&mut body, &[0; 100]), Ok(()));
    held.store(59_000_000, Relaxed);
    bodies.begin_turn();
    assert_eq!(bodies.append(&mut body, &[0; 100]), Err(OutOfMemory));
    assert_eq!(body.len(), 100);
    held.store(0, Relaxed);
    bodies.begin_turn();
    assert_eq!(bodies.append(&mut body, &filled(89_900, 0)), Ok(()));
    bodies.remove(body);
}
