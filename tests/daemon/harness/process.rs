//! Starts, watches and stops daemons.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    str::FromStr,
};

use ct::{Daemon, LONG, Original, eventually};

use super::{OURS, process_status};

/// The end of a shell script: the shell becomes the program in its arguments.
pub(crate) const THEN_BECOME: &str = r#"; exec "$0" "$@""#;

/// Starts our daemon on a free port of 127.0.0.1.
#[track_caller]
pub(crate) fn daemon(flags: &[&str]) -> Daemon {
    Daemon::start(Path::new(OURS), flags).expect("it starts")
}

/// Starts a program that becomes a daemon, and returns it with the first address in its log.
#[track_caller]
pub(crate) fn start(program: &str, arguments: &[&str]) -> (Daemon, String) {
    try_start(program, arguments).expect("it starts")
}

/// Starts a program that becomes a daemon, and returns it with the first address in its log; or its
/// output, if it ends.
pub(crate) fn try_start(program: &str, arguments: &[&str]) -> Result<(Daemon, String), String> {
    let daemon = Daemon::spawn_raw(Path::new(program), arguments);
    let mut daemon = daemon.map_err(|error| error.to_string())?;
    match places(&mut daemon, 1) {
        Some(mut places) => Ok((daemon, places.remove(0))),
        None => Err(daemon.stderr()),
    }
}

/// Starts a command that becomes a daemon, and returns it with the only address on which it
/// listens.
#[track_caller]
pub(crate) fn serve(command: &mut Command) -> (Daemon, Vec<String>) {
    serve_at(1, command)
}

/// Starts a command that becomes a daemon, and returns it with the `count` addresses on which it
/// listens.
#[track_caller]
pub(crate) fn serve_at(count: usize, command: &mut Command) -> (Daemon, Vec<String>) {
    let mut daemon = Daemon::spawn_command(command).expect("it starts");
    let Some(places) = places(&mut daemon, count) else { panic!("it ends: {}", daemon.stderr()) };
    (daemon, places)
}

/// Waits until the daemon's log has `count` addresses on which it listens, and returns them; `None`
/// if the daemon ends first.
#[track_caller]
pub(crate) fn places(daemon: &mut Daemon, count: usize) -> Option<Vec<String>> {
    let mut places = Vec::new();
    eventually("it listens or ends", || {
        let ended = daemon.exit_status().is_some();
        let stderr = daemon.stderr();
        let lines = stderr.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let told = lines.filter_map(|line| line.split_once("listens on "));
        places = told.map(|(_, place)| place.to_owned()).collect();
        ended || places.len() == count
    });
    (places.len() == count).then_some(places)
}

/// The end of a process: its exit code and its output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Waits for a program that ends by itself.
#[track_caller]
pub(crate) fn run_to_its_end(program: &str, arguments: &[&str]) -> Ended {
    let mut process = Daemon::spawn_raw(Path::new(program), arguments).expect("it starts");
    let code = exit_code(&mut process);
    Ended { code, stdout: process.stdout(), stderr: undated(&process.stderr()) }
}

/// Waits for a command that ends by itself, and returns its exit code and its output.
#[track_caller]
pub(crate) fn ends(command: &mut Command) -> (i32, String) {
    let mut daemon = Daemon::spawn_command(command).expect("it starts");
    (exit_code(&mut daemon), daemon.stderr())
}

/// Waits for a command that must end with an error in its log, and returns the same as [`ends`].
#[track_caller]
pub(crate) fn fails(command: &mut Command) -> (i32, String) {
    let (status, stderr) = ends(command);
    assert!(stderr.contains(" beanstalkd: error: "), "{stderr}");
    (status, stderr)
}

/// Waits for a daemon that must not start, and returns its exit code and its [`complaints`].
#[track_caller]
pub(crate) fn fails_to_start(program: impl AsRef<Path>, flags: &[&str]) -> (i32, String) {
    let mut all = vec!["-l", "127.0.0.1", "-p", "0"];
    all.extend(flags);
    let mut daemon = Daemon::spawn_raw(program.as_ref(), &all).expect("it starts");
    (exit_code(&mut daemon), complaints(&daemon))
}

/// Waits until a process ends, and returns its exit code.
#[track_caller]
fn exit_code(process: &mut Daemon) -> i32 {
    let status = process.wait_exit(LONG);
    let status = status.unwrap_or_else(|| panic!("it runs on: {}", process.stderr()));
    status.code().unwrap_or_else(|| panic!("{status}: {}", process.stderr()))
}

/// Everything in a daemon's log except plain notices: warnings, errors, and other text.
pub(crate) fn complaints(daemon: &Daemon) -> String {
    let said = daemon.stderr();
    let is_ordinary = |line: &&str| {
        let told = line.split_once("Z beanstalkd: ").map(|(_, rest)| rest);
        told.is_some_and(|it| !it.starts_with("warning: ") && !it.starts_with("error: "))
    };
    said.lines().filter(|line| !is_ordinary(line)).collect::<Vec<_>>().join("\n")
}

/// Log lines without their dates.
pub(crate) fn undated(said: &str) -> String {
    let undate = |line: &str| match line.split_once("Z beanstalkd: ") {
        Some((_, rest)) => format!("beanstalkd: {rest}\n"),
        None => format!("{line}\n"),
    };
    said.lines().map(undate).collect()
}

/// Ends a daemon by a signal and waits until it has ended.
#[track_caller]
pub(crate) fn end(mut daemon: Daemon, signal: i32) {
    daemon.signal(signal).expect("it runs");
    daemon.wait_exit(LONG).expect("it ends");
}

/// Ends a daemon by SIGTERM and returns its exit code.
#[track_caller]
pub(crate) fn terminate(daemon: &mut Daemon) -> i32 {
    daemon.signal(libc::SIGTERM).expect("it runs");
    exit_code(daemon)
}

/// Suspends a daemon at whatever point it has reached, until [`thaw`].
#[track_caller]
pub(crate) fn freeze(daemon: &Daemon) {
    daemon.signal(libc::SIGSTOP).expect("it runs");
    await_state(daemon, 'T');
}

/// Waits until a daemon sleeps (`S`) or is suspended (`T`).
#[track_caller]
pub(crate) fn await_state(daemon: &Daemon, state: char) {
    let what = format!("it comes to {state}");
    eventually(&what, || process_status(daemon.pid(), "State").starts_with(state));
}

/// Lets a suspended daemon continue.
#[track_caller]
pub(crate) fn thaw(daemon: &Daemon) {
    daemon.signal(libc::SIGCONT).expect("it is there");
}

/// Whether a program can be run with these arguments and ends with status 0.
pub(crate) fn can_run(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The path of the original. Returns `None`, and reports the comparison as skipped, if it is not
/// installed.
pub(crate) fn original() -> Option<PathBuf> {
    Original::find().map(|original| original.path)
}

/// Returns the number in an environment variable, which longer runs set.
pub(crate) fn from_environment<T: FromStr>(name: &str) -> Option<T> {
    env::var(name).ok().and_then(|text| text.parse().ok())
}
