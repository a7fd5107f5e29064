use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn filled(len: usize, byte: u8) -> Vec<u8> {
    vec![byte; len]
}

/// Bodies, and a job for each that has been put.
#[derive(Default)]
struct Jobs {
    bodies: Bodies,
    owned: BTreeMap<usize, Body>,
    next: usize,
}

impl Jobs {
    fn add(&mut self, mut body: Body) -> usize {
        let index = self.next;
        self.next += 1;
        self.bodies.own(&mut body, index);
        self.owned.insert(index, body);
        index
    }

    fn put(&mut self, bytes: &[u8]) -> Result<usize, OutOfMemory> {
        let body = self.bodies.store(bytes)?;
        Ok(self.add(body))
    }

    fn delete(&mut self, index: usize) {
        let body = self.owned.remove(&index).expect("it is there");
        self.bodies.remove(body);
    }

    fn move_all(&mut self) {
        while let Some(index) = self.bodies.next_to_move(&mut 0, usize::MAX) {
            let body = self.owned.get_mut(&index).expect("its owner lives");
            if self.bodies.relocate(body).is_err() {
                break;
            }
        }
    }

    fn check(&self) {
        self.bodies.check(|index| &self.owned[&index]);
    }

    /// Bytes of memory, with those that could be released.
    fn held(&self) -> usize {
        let releasable = self.bodies.releasable.iter().map(|(bytes, _)| bytes);
        let memory = self.bodies.blocks.iter().map(|block| &block.bytes).chain(releasable);
        memory.map(Vec::capacity).sum()
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
        let mut grown = bodies.begin(1, len).expect("there is memory");
        for piece in wanted.chunks(777) {
            bodies.append(&mut grown, piece, len).expect("there is memory");
        }
        assert_eq!((bodies.bytes(&grown), grown.len()), (&wanted[..], len));
        bodies.remove(whole);
        assert_eq!(bodies.bytes(&grown), wanted);
        bodies.remove(grown);
        assert_eq!(bodies.handles(), 0);
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
        assert_eq!((bodies.handles(), bodies.referenced.len()), (0, 0));
    }
}

#[test]
fn an_empty_store_has_one_block() {
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
    assert!(all.held() <= (1 + KEPT_BLOCKS_MAX) * BLOCK_BYTES);
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

/// A few jobs of each size that ever was would keep all memory.
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
        let tolerated = FREED_MIN_BYTES + all.bodies.budget.body_bytes() / FREED_PART;
        let tolerated = usize::try_from(tolerated).expect("little");
        let most = live + tolerated + (OPEN_BLOCKS_MAX + KEPT_BLOCKS_MAX) * BLOCK_BYTES;
        assert!(all.held() <= most, "{} bytes for {live}", all.held());
    }
    for body in all.owned.values() {
        assert!(all.bodies.bytes(body).iter().all(|&byte| byte == 7));
    }
}

/// The daemon would end: a handle has no room for such a start.
#[test]
fn no_slot_starts_at_the_very_end_of_a_block() {
    let mut all = Jobs::default();
    let put: Vec<_> =
        (0..16).map(|_| all.put(&filled(65_537, 1)).expect("there is memory")).collect();
    all.delete(put[7]);
    all.put(&filled(65_537 - 64, 2)).expect("there is memory");
    assert_eq!(all.held(), 2 * BLOCK_BYTES, "the slot is used again");
    all.put(&filled(20, 3)).expect("there is memory");
    all.check();
}

/// A source that always fails.
#[derive(Debug)]
struct Nothing;

impl crate::memory::MemorySource for Nothing {
    fn can_allocate(&mut self, _: usize, _: usize) -> bool {
        false
    }
}

/// At the memory limit, jobs were refused though others had been deleted.
#[test]
fn without_memory_the_slot_of_a_removed_body_is_used_again() {
    let mut all = Jobs::default();
    for _ in 0..64 {
        all.put(&filled(60_000, 1)).expect("there is memory");
    }
    all.bodies.budget_mut().set_source(Box::new(Nothing), 0);
    for round in 0..20 {
        let index = *all.owned.keys().nth(round * 3 % all.owned.len()).expect("there are some");
        all.delete(index);
        if round % 2 == 0 {
            all.put(&filled(60_000, 2)).expect("a place is free");
        } else {
            let mut body = all.bodies.begin(16 * 1024, 60_000).expect("a place is free");
            for piece in filled(60_000, 2).chunks(9000) {
                all.bodies.append(&mut body, piece, 60_000).expect("it can grow there");
            }
            all.add(body);
        }
        all.check();
    }
    assert_eq!(all.put(&filled(60_000, 3)), Err(OutOfMemory));
}

/// The event loop would never sleep again.
#[test]
fn without_memory_to_move_bodies_the_attempt_waits_for_a_removal() {
    let mut all = Jobs::default();
    let put: Vec<_> =
        (0..4000).map(|_| all.put(&filled(4000, 1)).expect("there is memory")).collect();
    for index in put.iter().filter(|index| **index % 2 == 0) {
        all.delete(*index);
    }
    assert!(all.bodies.should_move());
    all.bodies.budget_mut().set_source(Box::new(Nothing), 0);
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

proptest! {
    /// If one body overwrote another, a worker would get another job's work.
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
            // From a few bytes to a little more than the largest, small ones more often.
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
                    let mut body = all.bodies.begin(len / 5 + 1, len).expect("there is memory");
                    for piece in bytes.chunks(len / 3 + 1) {
                        all.bodies.append(&mut body, piece, len).expect("there is memory");
                    }
                    wanted.insert(all.add(body), bytes);
                }
                (6, _) => {
                    // As if free slots took too much.
                    let mut closed = all.bodies.blocks.iter().enumerate().filter(|(_, block)| {
                        !block.is_open && !block.is_single && block.end > 0
                    });
                    if let (None, Some((block, _))) = (all.bodies.moving, closed.next()) {
                        all.bodies.vacancies.retain(|(place, _)| place.block != block);
                        all.bodies.moving = Some(Place { block, start: 0 });
                    }
                    if let Some(job) = all.bodies.next_to_move(&mut 0, usize::MAX) {
                        let body = all.owned.get_mut(&job).expect("its owner lives");
                        all.bodies.relocate(body).expect("there is memory");
                    }
                }
                _ => {
                    wanted.insert(all.put(&bytes).expect("there is memory"), bytes);
                }
            }
            prop_assert_eq!(all.bodies.handles(), all.owned.len() + shared.len());
            all.check();
            let orphans: BTreeMap<_, _> = shared
                .iter()
                .filter(|(it, _)| {
                    let is_same = |job: &Body| job.unit == REFERENCED && job.at == it.at;
                    !all.owned.values().any(is_same)
                })
                .map(|(it, _)| (it.at, it.len()))
                .collect();
            let lens = all.owned.values().map(Body::len).chain(orphans.into_values());
            let counted: u64 = lens.map(|len| len as u64 + BODY_OVERHEAD_BYTES).sum();
            prop_assert_eq!(all.bodies.budget().body_bytes(), counted);
        }
        for (index, body) in &all.owned {
            prop_assert_eq!(all.bodies.bytes(body), &wanted[index][..]);
        }
        for (body, wanted) in &shared {
            prop_assert_eq!(all.bodies.bytes(body), wanted);
        }
    }
}
