//! The programs that are compared, the parameters of a comparison, and the running daemons.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::measure::{Cores, Placement};
use super::scenario::Effort;
use super::setup::SetupClient;
use super::state::State;
use crate::{Daemon, Program};

/// The parameters of a comparison.
#[derive(Debug, Clone)]
pub struct Config {
    /// The programs; the first program is compared with each of the other programs.
    pub targets: Vec<Target>,
    /// The number and the duration of measurements, and the size of large backlogs.
    pub effort: Effort,
    /// The parent directory of the binlogs.
    pub scratch: PathBuf,
    /// The cores of daemons and load.
    pub cores: Cores,
}

/// One of the programs that are compared.
#[derive(Debug, Clone)]
pub struct Target {
    /// The program's name in the table.
    pub label: String,
    /// How the program is started.
    pub program: Program,
    /// Whether the program is the bare responder.
    pub bare: bool,
    /// Pairs of a flag of the presets, and the flag of this target's program that replaces it, or
    /// no flag.
    replacements: Vec<(String, String)>,
}

impl Target {
    /// Parses a target, `PROGRAM FLAGS`, and asks the program for its version. A word such as
    /// `-f0=-D` is not a flag of the program: it replaces the flag `-f0` of presets with `-D`. The
    /// word `-F=` removes the flag `-F`.
    pub fn daemon(command: &str) -> io::Result<Self> {
        let mut words = command.split_whitespace();
        let path =
            words.next().ok_or_else(|| io::Error::other("the daemon's program is missing"))?;
        let (replacing, flags): (Vec<&str>, Vec<&str>) =
            words.partition(|word| replacement(word).is_some());
        let owned = |(flag, other): (&str, &str)| (flag.to_owned(), other.to_owned());
        let replacements = replacing.into_iter().filter_map(replacement).map(owned).collect();
        let flags = flags.into_iter().map(str::to_owned).collect();
        let program = Program { path: PathBuf::from(path), flags };
        let label = version(&program.path)?;
        Ok(Self { label, program, bare: false, replacements })
    }

    /// Returns the flags for a binlog in `directory`. The last is the preset's `flag`, or the flag
    /// that this target's program has instead.
    pub fn binlog_flags(&self, flag: &str, directory: &Path) -> Vec<String> {
        let replacement = self.replacements.iter().find(|(replaced, _)| replaced == flag);
        let flag = replacement.map_or(flag, |(_, other)| other);
        let mut flags = vec!["-b".to_owned(), directory.to_string_lossy().into_owned()];
        flags.extend((!flag.is_empty()).then(|| flag.to_owned()));
        flags
    }

    /// Returns the command line from which [`Target::daemon`] can make this target again.
    pub fn command(&self) -> String {
        let mut words = vec![self.program.path.display().to_string()];
        words.extend(self.program.flags.iter().cloned());
        words.extend(self.replacements.iter().map(|(flag, other)| format!("{flag}={other}")));
        words.join(" ")
    }

    /// Returns as a target the bare responder `ct-bare`, whose replies are fixed; its file is in
    /// the same directory as this program.
    pub fn bare() -> io::Result<Self> {
        let path = std::env::current_exe()?.with_file_name("ct-bare");
        let label = version(&path)?;
        Ok(Self { label, program: Program::new(path), bare: true, replacements: Vec::new() })
    }
}

/// Splits a word of a target, such as `-f0=-D`, into a flag and its replacement.
fn replacement(word: &str) -> Option<(&str, &str)> {
    let (flag, other) = word.split_once('=')?;
    let is_short = flag.starts_with('-') && !flag.starts_with("--");
    (is_short && (other.is_empty() || other.starts_with('-'))).then_some((flag, other))
}

/// Distinguishes equal labels of targets by numbers, in the order of the command line.
pub fn make_labels_unique(targets: &mut [Target]) {
    for index in 1..targets.len() {
        let (before, rest) = targets.split_at_mut(index);
        let label = &mut rest[0].label;
        let original = label.clone();
        let mut number = 2;
        while before.iter().any(|target| target.label == *label) {
            *label = format!("{original} ({number})");
            number += 1;
        }
    }
}

/// Returns the first line that a target's program prints for `-v`; if there is none, the name of
/// the program's file.
fn version(path: &Path) -> io::Result<String> {
    let output = Command::new(path).arg("-v").output();
    let output = output
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let name = || path.file_name().map(|name| name.to_string_lossy().into_owned());
    let line = text.lines().next().map(str::trim).filter(|line| !line.is_empty());
    Ok(line.map(str::to_owned).or_else(name).unwrap_or_default())
}

/// A daemon in a state, with the blocked and idle connections of that state.
#[derive(Debug)]
pub struct PreparedDaemon {
    /// This field is declared first, because the connections must be closed before the daemon ends.
    _background: Vec<SetupClient>,
    /// The running daemon.
    pub daemon: Daemon,
    state: State,
    placement: Placement,
    /// This field is declared last, because the directory must outlive the daemon.
    binlog: Option<ScratchDir>,
}

impl PreparedDaemon {
    /// Starts a target's daemon and brings it into a state. `binlog` is the flag for syncs and the
    /// directory below which a new binlog directory is made.
    pub fn prepare(
        target: &Target,
        cores: &Cores,
        placement: Placement,
        state: &State,
        binlog: Option<(&str, &Path)>,
        progress: &mut dyn FnMut(&str),
    ) -> io::Result<Self> {
        let (flags, scratch) = match binlog {
            Some((flag, parent)) => {
                let scratch = ScratchDir::new(parent)?;
                (target.binlog_flags(flag, scratch.path()), Some(scratch))
            }
            None => (Vec::new(), None),
        };
        let daemon = cores.start(placement, &target.program, &flags)?;
        let mut background = Vec::new();
        if !target.bare {
            background = state.build(daemon.address(), progress)?;
        }
        Ok(Self {
            _background: background,
            daemon,
            state: state.clone(),
            placement,
            binlog: scratch,
        })
    }

    /// Returns whether the prepared daemon has this state and placement, and no binlog; if so, a
    /// scenario without a binlog can use the daemon.
    pub fn is_in(&self, state: &State, placement: Placement) -> bool {
        self.state == *state && self.placement == placement && self.binlog.is_none()
    }
}

/// A directory that is removed when this value is dropped.
#[derive(Debug)]
pub struct ScratchDir {
    path: PathBuf,
}

impl ScratchDir {
    /// Makes, in the directory `parent`, a new scratch directory for a daemon.
    pub fn new(parent: &Path) -> io::Result<Self> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("ct-bench-{}-{number}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self { path })
    }

    /// Returns the path of the scratch directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDir {
    /// Removes the scratch directory.
    fn drop(&mut self) {
        // Ignores errors: a directory that cannot be removed stays in its parent.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_labels_become_unique() {
        let target = |label: &str| Target {
            label: label.to_owned(),
            program: Program::new("x"),
            bare: false,
            replacements: Vec::new(),
        };
        let mut targets = [target("a"), target("b"), target("a"), target("a")];
        make_labels_unique(&mut targets);
        let labels = targets.map(|target| target.label);
        assert_eq!(labels, ["a", "b", "a (2)", "a (3)"]);
    }

    #[test]
    fn a_daemon_may_have_flags_of_its_own_for_a_preset() {
        let target = Target::daemon("/bin/true -n -f0=-D --busy-poll=0 -F=").unwrap();
        assert_eq!(target.program.flags, ["-n", "--busy-poll=0"]);
        let flags = |flag| target.binlog_flags(flag, Path::new("/d"));
        assert_eq!(flags("-f0"), ["-b", "/d", "-D"]);
        assert_eq!(flags("-F"), ["-b", "/d"]);
        assert_eq!(flags("-f50"), ["-b", "/d", "-f50"]);
        assert_eq!(target.command(), "/bin/true -n --busy-poll=0 -f0=-D -F=");
    }

    #[test]
    fn a_scratch_directory_is_removed_when_dropped() {
        let scratch = ScratchDir::new(&std::env::temp_dir()).unwrap();
        let path = scratch.path.clone();
        assert!(path.is_dir());
        fs::write(path.join("binlog.1"), b"x").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = Target::daemon("/nonexistent/daemon -f0").unwrap_err();
        assert!(error.to_string().contains("/nonexistent/daemon"), "{error}");
        assert!(Target::daemon("  ").is_err());
    }
}
