//! Reports tests that cannot run on this machine, or can run only in part.
//!
//! Rust's test harness cannot skip a test: a test that returns early passes, and its output is
//! hidden. So [`skip()`] writes to standard error directly, where the harness hides nothing, and
//! appends the test to a list. `make check` prints that list at the end, grouped by reason.

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::ToSocketAddrs as _;
use std::path::Path;
use std::process::Command;
use std::thread;

/// The environment variable that names the file for the list of skipped tests.
const LIST_VARIABLE: &str = "SKIPPED";

/// Reports the test in this thread as skipped. `reason` is why the test proves nothing on this
/// machine, or less than on other machines.
///
/// The report is a line on standard error, and a line in the file that the variable `SKIPPED`
/// names. The line in the file has the reason, a tab, and the test's name.
pub fn skip(reason: &str) {
    let current = thread::current();
    let test = test_name(current.name());
    // Errors of these writes are ignored, because there is no other way to report a skipped test.
    let _ = std::io::stderr().write_all(format!("\n*** SKIPPED: {test}: {reason}\n").as_bytes());
    if let Some(list) = env::var_os(LIST_VARIABLE) {
        let _ = append(list.as_ref(), &format!("{reason}\t{test}"));
    }
}

/// Returns whether this machine resolves `localhost`, as most machines do by /etc/hosts. If it does
/// not, reports the test that runs in this thread as skipped.
pub fn knows_localhost() -> bool {
    let is_known = ("localhost", 0).to_socket_addrs().is_ok();
    if !is_known {
        skip("localhost has no address here: see /etc/hosts");
    }
    is_known
}

/// Returns whether this machine has git. Without git, reports the test in this thread as skipped.
pub fn has_git() -> bool {
    let has_git = Command::new("git").arg("--version").output().is_ok();
    if !has_git {
        skip("there is no git");
    }
    has_git
}

/// Returns a test's name, which is its thread's name; returns `a test` for the thread `main` and
/// for threads without a name.
fn test_name(thread: Option<&str>) -> &str {
    thread.filter(|&name| name != "main").unwrap_or("a test")
}

/// Appends a line to the list of skipped tests in a single write, because other threads may append
/// at the same time.
fn append(list: &Path, line: &str) -> std::io::Result<()> {
    let mut list = OpenOptions::new().append(true).create(true).open(list)?;
    list.write_all(format!("{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_known_by_the_name_of_its_thread() {
        assert_eq!(test_name(Some("module::a_test")), "module::a_test");
        assert_eq!([test_name(Some("main")), test_name(None)], ["a test"; 2]);
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
