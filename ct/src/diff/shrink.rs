//! Shrinks a long failing sequence to a short one, by delta debugging.
//!
//! This module knows nothing about daemons. The caller's oracle receives several candidates at a
//! time, so that it can try them in parallel, and returns one that fails. The oracle may give up
//! after some time.

/// Returns a shorter sequence that still fails, or the given sequence.
///
/// `find_failing` is the oracle: it returns the index of a candidate that fails, if it finds one.
/// `simpler` lists simpler sequences of the same length, if there are any. Unless the oracle gave
/// up, the result no longer fails if any single item is removed.
pub fn shrink<T: Clone>(
    mut items: Vec<T>,
    simpler: impl Fn(&[T]) -> Vec<Vec<T>>,
    mut find_failing: impl FnMut(&[Vec<T>]) -> Option<usize>,
) -> Vec<T> {
    loop {
        let before = items.len();
        let mut chunk = items.len().div_ceil(2);
        while chunk > 0 {
            sweep(&mut items, chunk, &mut find_failing);
            chunk /= 2;
        }
        let mut is_simpler = false;
        loop {
            let mut candidates = simpler(&items);
            let Some(index) = find_failing(&candidates) else { break };
            items = candidates.swap_remove(index);
            is_simpler = true;
        }
        if !is_simpler && items.len() == before {
            return items;
        }
    }
}

/// From the end to the beginning, removes every chunk without which the sequence still fails.
///
/// Removal begins at the end, because the last items of a sequence are needed least often.
fn sweep<T: Clone>(
    items: &mut Vec<T>,
    chunk: usize,
    find_failing: &mut impl FnMut(&[Vec<T>]) -> Option<usize>,
) {
    let mut upper = items.len();
    while upper > 0 {
        let ends: Vec<usize> = (1..=upper).rev().step_by(chunk).collect();
        let without = |&end: &usize| [&items[..end.saturating_sub(chunk)], &items[end..]].concat();
        let mut candidates: Vec<Vec<T>> = ends.iter().map(without).collect();
        let Some(index) = find_failing(&candidates) else { return };
        upper = ends[index].saturating_sub(chunk);
        *items = candidates.swap_remove(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    /// Makes an oracle: a candidate fails if it has all of `needed` in order. Counts candidates.
    fn oracle<'a>(
        needed: &'a [u32],
        asked: &'a mut usize,
    ) -> impl FnMut(&[Vec<u32>]) -> Option<usize> + 'a {
        move |candidates| {
            *asked += candidates.len();
            candidates.iter().position(|items| {
                let mut rest = items.iter();
                needed.iter().all(|wanted| rest.any(|item| item % 1000 == *wanted))
            })
        }
    }

    #[test]
    fn only_needed_items_remain() {
        let mut prng = Prng::new(1);
        for _ in 0..50 {
            let count = 1 + usize::try_from(prng.below(6)).unwrap();
            let mut items: Vec<u32> = (100..400).collect();
            let needed: Vec<u32> = (0..u32::try_from(count).unwrap()).collect();
            let mut at = 0;
            for &wanted in &needed {
                at += 1 + usize::try_from(prng.below(50)).unwrap();
                items.insert(at, wanted);
            }
            let mut asked = 0;
            let short = shrink(items, |_| Vec::new(), oracle(&needed, &mut asked));
            assert_eq!(short, needed);
            assert!(asked < 1000, "{asked} questions");
        }
    }

    #[test]
    fn items_become_simpler_and_then_fewer() {
        let smaller = |items: &[u32]| -> Vec<Vec<u32>> {
            let big = items.iter().position(|&item| item >= 1000);
            big.map(|index| [&items[..index], &[items[index] - 1000], &items[index + 1..]].concat())
                .into_iter()
                .collect()
        };
        let mut asked = 0;
        let short = shrink(vec![9, 3001, 8, 2002], smaller, oracle(&[1, 2], &mut asked));
        assert_eq!(short, [1, 2]);
    }

    #[test]
    fn an_oracle_that_gives_up_ends_shrinking() {
        let mut rounds = 0;
        let short = shrink(
            vec![1; 64],
            |items| vec![items.to_vec()],
            |_: &[Vec<u32>]| {
                rounds += 1;
                None
            },
        );
        assert_eq!((short.len(), rounds), (64, 7));
    }
}
