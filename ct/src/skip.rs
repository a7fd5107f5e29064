//! Says what a test could not do on this machine.
//!
//! The harness of Rust's tests knows no skipping: a test that does nothing passes, and what it
//! prints is kept from the reader. So the word on it goes past the harness, to the terminal, and
//! into the list that `make check` shows in the end.

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::thread;

/// The variable with the name of the file that collects what was skipped.
const LIST_VARIABLE: &str = "SKIPPED";

/// Says that the test that runs in this thread proves nothing here, or less than it could, and why.
///
/// The line goes to standard error, and to the end of the file that the variable `SKIPPED` names.
pub fn skip(reason: &str) {
    let line = line(thread::current().name(), reason);
    // Nobody is left to tell it where both fail.
    let _ = std::io::stderr().write_all(format!("\n*** SKIPPED: {line}\n").as_bytes());
    if let Some(list) = env::var_os(LIST_VARIABLE) {
        let _ = append(list.as_ref(), &line);
    }
}

/// Names the test; whoever runs tests one after the other has them in a thread without their name.
fn line(test: Option<&str>, reason: &str) -> String {
    match test {
        Some(test) if test != "main" => format!("{test}: {reason}"),
        _ => reason.to_owned(),
    }
}

/// Adds a line by a single write: tests of one program skip at the same time.
fn append(list: &Path, line: &str) -> std::io::Result<()> {
    let mut list = OpenOptions::new().append(true).create(true).open(list)?;
    list.write_all(format!("{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_learns_which_test_it_was_and_why() {
        assert_eq!(line(Some("a_test"), "there is no fish"), "a_test: there is no fish");
        assert_eq!(line(Some("main"), "there is no fish"), "there is no fish");
        assert_eq!(line(None, "there is no fish"), "there is no fish");
    }

    #[test]
    fn the_list_grows() {
        let list = env::temp_dir().join(format!("ct-skipped-{}", std::process::id()));
        append(&list, "one").unwrap();
        append(&list, "two").unwrap();
        let text = std::fs::read_to_string(&list).unwrap();
        std::fs::remove_file(&list).unwrap();
        assert_eq!(text, "one\ntwo\n");
    }
}
