//! The known differences between our daemon and the original beanstalkd, as a table of masks.
//!
//! A golden script states the behaviour of our daemon. If the original is known to answer
//! differently, the script has a `when MASK` part, and this table lists the releases that have the
//! mask. A mask is a line of the table: the mask's name, a sentence about the difference, and the
//! releases that have it. Answers that differ are checked, too: the `when` part states the exact
//! answers of the original.

use std::collections::BTreeSet;

/// One known difference from the behaviour of our daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mask {
    /// The name that scripts use in `when NAME`.
    pub name: &'static str,
    /// The behaviour of daemons with this mask.
    pub sentence: &'static str,
    /// Whether release 1.12 of the original has this difference.
    pub in_1_12: bool,
    /// Whether release 1.13 of the original has this difference.
    pub in_1_13: bool,
}

/// All known differences. The two booleans are `in_1_12` and `in_1_13`.
#[rustfmt::skip] // One line each.
pub const MASKS: &[Mask] = &[
    mask("unquoted-names", "Names in stats bodies are printed without quotes.", true, false),
    mask("timeout-unchecked", "reserve-with-timeout takes text as 0, wraps numbers.", true, false),
    mask("lone-cr-mutes", "A line with a CR is answered only after 224 of its bytes.", true, true),
    mask("cr-at-224-eats", "A line whose CR is byte 224 swallows the next command.", true, true),
    mask("upload-visible", "A job is found by its id while its body still arrives.", true, true),
    mask("waiters-swap", "Waiters are served out of order: 1, 2, 4, 3, or 2, 1.", true, true),
    mask("timer-lost", "A time to run may end unnoticed until its worker speaks.", true, true),
    mask("urgent-spins", "A byte of TCP urgent data makes it spin until more arrives.", true, true),
    mask("extensions-unknown", "It does not know commands that only this daemon has.", true, true),
    mask("half-close-spins", "A half-closed client with unread replies makes it spin.", true, true),
];

/// Makes one line of the table of masks.
const fn mask(name: &'static str, sentence: &'static str, in_1_12: bool, in_1_13: bool) -> Mask {
    Mask { name, sentence, in_1_12, in_1_13 }
}

/// A daemon's name, and the names of its differences from this daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dialect {
    /// `ours`, `1.13` or `1.12`.
    pub name: String,
    /// The names of the masks that apply to this daemon.
    pub masks: BTreeSet<String>,
}

impl Dialect {
    /// The names of dialects that [`Dialect::named`] accepts.
    pub const NAMES: [&str; 3] = ["ours", "1.13", "1.12"];

    /// Finds a dialect by one of [`Self::NAMES`]. In the dialect `ours`, no mask applies.
    pub fn named(name: &str) -> Option<Self> {
        let holds: fn(&Mask) -> bool = match name {
            "ours" => |_| false,
            "1.13" => |mask| mask.in_1_13,
            "1.12" => |mask| mask.in_1_12,
            _ => return None,
        };
        let masks = MASKS.iter().filter(|mask| holds(mask)).map(|mask| mask.name.to_owned());
        Some(Self { name: name.to_owned(), masks: masks.collect() })
    }

    /// Returns the names of all masks in the table.
    pub fn all_masks() -> BTreeSet<String> {
        MASKS.iter().map(|mask| mask.name.to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mask_has_a_name_of_its_own_a_sentence_and_a_release() {
        assert_eq!(Dialect::all_masks().len(), MASKS.len());
        for mask in MASKS {
            assert!(mask.sentence.ends_with('.'), "{}", mask.name);
            assert!(mask.in_1_12 || mask.in_1_13, "{} holds nowhere", mask.name);
            assert!(!mask.name.contains(char::is_whitespace), "{}", mask.name);
        }
    }

    #[test]
    fn ours_has_no_mask_and_unknown_releases_no_dialect() {
        assert!(Dialect::named("ours").unwrap().masks.is_empty());
        for mask in MASKS {
            let shows = |name| Dialect::named(name).unwrap().masks.contains(mask.name);
            assert_eq!([shows("1.12"), shows("1.13")], [mask.in_1_12, mask.in_1_13]);
        }
        assert_eq!(Dialect::named("1.9"), None);
    }
}
