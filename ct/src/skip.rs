//! Reports what a test could not do on this machine.
//!
//! Rust's test harness has no skipping: a test that does nothing passes, and its output is hidden.
//! So the report bypasses the harness. It goes to the terminal, and into the list that `make check`
//! prints at the end.

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::thread;

/// The environment variable that names the file for the list of skipped tests.
const LIST_VARIABLE: &str = "SKIPPED";

/// Reports that the test in this thread proves nothing here, or less than it could, and why.
///
/// The line goes to standard error, and to the end of the file that the variable `SKIPPED` names.
pub fn skip(reason: &str) {
    let line = line(thread::current().name(), reason);
    // If both fail, there is no way left to report it.
    let _ = std::io::stderr().write_all(format!("\n*** SKIPPED: {line}\n").as_bytes());
    if let Some(list) = env::var_os(LIST_VARIABLE) {
        let _ = append(list.as_ref(), &line);
    }
}

/// Puts the test's name before the reason. Without parallel tests the thread has no test's name.
fn line(test: Option<&str>, reason: &str) -> String {
    match test {
        Some(test) if test != "main" => format!("{test}: {reason}"),
        _ => reason.to_owned(),
    }
}

/// Appends a line in a single write, because tests of one program may skip at the same time.
fn append(list: &Path, line: &str) -> std::io::Result<()> {
    let mut list = OpenOptions::new().append(true).create(true).open(list)?;
    list.write_all(format!("{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_test_is_reported_with_its_reason() {
        assert_eq!(line(Some("a_test"), "there is no fish"), "a_test: there is no fish");
        assert_eq!(line(Some("main"), "there is no fish"), "there is no fish");
        assert_eq!(line(None, "there is no fish"), "there is no fish");
    }

    #[test]
    fn skipped_tests_are_appended_to_the_list() {
        let list = env::temp_dir().join(format!("ct-skipped-{}", std::process::id()));
        append(&list, "one").unwrap();
        append(&list, "two").unwrap();
        let text = std::fs::read_to_string(&list).unwrap();
        std::fs::remove_file(&list).unwrap();
        assert_eq!(text, "one\ntwo\n");
    }
}
