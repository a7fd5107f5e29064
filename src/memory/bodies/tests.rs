use proptest::prelude::*;

use super::*;

fn filled(len: usize, byte: u8) -> Vec<u8> {
    vec![byte; len]
}

#[test]
fn sizes_lie_close_together() {
    let mut before = (0, 0);
    for len in 1..=SHARED_BLOCK_BODY_MAX_BYTES {
        let (class, size) = class(len);
        assert!(
            size >= len && size - len < ALIGN_BYTES.max(len / SIZES_PER_DOUBLING),
            "{len} in {size}"
        );
        assert!(BLOCK_BYTES / size >= 4);
        assert_eq!(super::class(size), (class, size));
        assert_eq!(class == before.0, size == before.1, "a class has one size");
        assert!(class == before.0 || class == before.0 + 1);
        before = (class, size);
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
        SHARED_BLOCK_BODY_MAX_BYTES,
        SHARED_BLOCK_BODY_MAX_BYTES + 1,
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
    for len in [COPIED_BODY_MAX_BYTES + 1, SHARED_BLOCK_BODY_MAX_BYTES + 1] {
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
        assert_eq!(
            bodies.blocks.len(),
            if len > SHARED_BLOCK_BODY_MAX_BYTES { 2 } else { 1 },
            "slots are reused"
        );
        bodies.remove(other);
        bodies.remove(next);
        assert_eq!(bodies.handles(), 0);
    }
}

#[test]
fn an_empty_store_has_no_large_blocks() {
    let mut bodies = Bodies::default();
    let all: Vec<Body> = (0..30_000)
        .map(|n| {
            let len = if n % 10 == 0 { 2 + n } else { 2 + n % 700 };
            bodies.store(&filled(len, 1)).expect("there is memory")
        })
        .collect();
    let held = |bodies: &Bodies| -> usize {
        let releasable = bodies.releasable.iter().map(|(bytes, _)| bytes);
        let memory = bodies.blocks.iter().map(|block| &block.bytes).chain(releasable);
        memory.map(Vec::capacity).sum()
    };
    assert!(held(&bodies) > 30_000 * 1800);
    for body in all {
        bodies.remove(body);
    }
    while bodies.release_one() {}
    let is_used = |block: &Block| !block.bytes.is_empty() && block.used_bytes() > KEEP_BELOW_BYTES;
    assert!(!bodies.blocks.iter().any(is_used));
    let sizes = bodies.open.iter().filter(|open| !open.is_empty()).count();
    assert!(
        held(&bodies) <= (sizes + KEPT_BLOCKS_MAX) * BLOCK_BYTES,
        "at most one block of each size is left"
    );
}

/// Memory that was used stays resident, even if smaller bodies use it next.
#[test]
fn a_used_block_is_not_kept_for_small_bodies() {
    let mut bodies = Bodies::default();
    let large: Vec<Body> =
        (0..40).map(|_| bodies.store(&filled(60_000, 1)).expect("there is memory")).collect();
    for body in large {
        bodies.remove(body);
    }
    while bodies.release_one() {}
    for len in 1..500 {
        let body = bodies.store(&filled(len * ALIGN_BYTES, 1)).expect("there is memory");
        bodies.remove(body);
    }
    while bodies.release_one() {}
    let kept = bodies.blocks.iter().filter(|block| !block.bytes.is_empty());
    assert_eq!(kept.map(Block::used_bytes).filter(|&used| used > KEEP_BELOW_BYTES).count(), 0);
    assert_eq!(bodies.releasable.len(), KEPT_BLOCKS_MAX);
}

#[test]
fn a_lone_large_body_reuses_the_memory_of_the_one_before() {
    let mut bodies = Bodies::default();
    for _ in 0..10 {
        let body = bodies.store(&filled(SHARED_BLOCK_BODY_MAX_BYTES, 1)).expect("there is memory");
        bodies.remove(body);
        assert!(!bodies.has_releasable());
    }
    assert_eq!(bodies.releasable.len(), 1);
}

/// A source that always fails.
#[derive(Debug)]
struct Nothing;

impl crate::memory::MemorySource for Nothing {
    fn can_allocate(&mut self, _: usize, _: usize) -> bool {
        false
    }
}

/// At the memory limit, jobs were refused though others had been deleted: a body that arrived in
/// pieces first needed slots in blocks of smaller sizes.
#[test]
fn without_memory_the_slot_of_a_removed_body_is_reused() {
    let mut bodies = Bodies::default();
    let mut all: Vec<Body> =
        (0..64).map(|_| bodies.store(&filled(60_000, 1)).expect("there is memory")).collect();
    bodies.budget_mut().set_source(Box::new(Nothing), 0);
    for round in 0..20 {
        bodies.remove(all.swap_remove(round * 3 % all.len()));
        let body = if round % 2 == 0 {
            bodies.store(&filled(60_000, 2)).expect("a place is free")
        } else {
            let mut body = bodies.begin(16 * 1024, 60_000).expect("a place is free");
            for piece in filled(60_000, 2).chunks(9000) {
                bodies.append(&mut body, piece, 60_000).expect("it is large enough");
            }
            body
        };
        all.push(body);
    }
    assert_eq!(bodies.store(&filled(60_000, 3)).map(|_| ()), Err(OutOfMemory));
    for body in all {
        bodies.remove(body);
    }
}

proptest! {
    /// If one body overwrote another, a worker would get another job's work.
    #[test]
    fn bodies_do_not_overlap(
        operations in prop::collection::vec(
            (1..140usize, any::<u8>(), 0..4u8, any::<prop::sample::Index>()),
            1..1000,
        ),
    ) {
        let (mut bodies, mut held) = (Bodies::default(), Vec::<(Body, Vec<u8>)>::new());
        for (len, byte, operation, index) in operations {
            // From a few bytes to a little more than the largest, small ones more often.
            let len = len * len * 7;
            let chosen = if held.is_empty() { 0 } else { index.index(held.len()) };
            match operation {
                1 if !held.is_empty() => {
                    let (body, _) = held.swap_remove(chosen);
                    bodies.remove(body);
                }
                2 if held.get(chosen).is_some_and(|(body, _)| body.is_large()) => {
                    let shared = (bodies.add_ref(&held[chosen].0), held[chosen].1.clone());
                    held.push(shared);
                }
                3 => {
                    let mut body = bodies.begin(len / 5, len).expect("there is memory");
                    for piece in filled(len, byte).chunks(len / 3 + 1) {
                        bodies.append(&mut body, piece, len).expect("there is memory");
                    }
                    held.push((body, filled(len, byte)));
                }
                _ => {
                    let bytes = filled(len, byte);
                    held.push((bodies.store(&bytes).expect("there is memory"), bytes));
                }
            }
            prop_assert_eq!(bodies.handles(), held.len());
            let distinct: std::collections::BTreeMap<_, _> =
                held.iter().map(|(it, _)| ((it.block, it.slot), it.len() as u64)).collect();
            let counted: u64 = distinct.values().map(|len| len + BODY_OVERHEAD_BYTES).sum();
            prop_assert_eq!(bodies.budget().body_bytes(), counted);
        }
        for (body, wanted) in &held {
            prop_assert_eq!(bodies.bytes(body), wanted);
        }
    }
}
