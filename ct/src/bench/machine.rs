//! Describes the machine, the sources and the daemons for the report.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use super::measure::{Cores, Placement};
use super::report::Build;
use super::target::Target;
use crate::Client;

/// Returns the line of the report about the machine: the processor, the cores, the memory and the
/// kernel.
pub fn describe(cores: &Cores) -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let processor = field(&read("/proc/cpuinfo"), "model name");
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let kernel = read("/proc/sys/kernel/osrelease");
    let split = if cores.are_split() { "daemon and load on a core each" } else { "one core" };
    let count = cores.count();
    format!("{processor}, {count} cores, {memory}, Linux {}, {split}", kernel.trim())
}

/// Returns the present time in UTC, for the report.
pub fn date() -> io::Result<String> {
    output(Command::new("date").args(["-u", "+%FT%TZ"]))
}

/// Returns the commit of these sources for the report, or `modified` if a tracked file differs from
/// it; `None` outside git.
pub fn commit() -> Option<String> {
    commit_of(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")))
}

/// Returns the commit of the sources in a directory, or `modified`; `None` outside git.
fn commit_of(folder: &Path) -> Option<String> {
    let git = |words: &[&str]| output(Command::new("git").arg("-C").arg(folder).args(words));
    // Sources unpacked from an archive have no commit, even inside another repository.
    if !folder.join(".git").exists() {
        return None;
    }
    let commit = git(&["rev-parse", "HEAD"]).ok()?;
    let is_clean = git(&["status", "--porcelain", "--untracked-files=no"]).ok()?.is_empty();
    Some(if is_clean { commit } else { "modified".to_owned() })
}

/// Starts a daemon, and returns its version and the checksum of its executable, for the report.
pub fn build(target: &Target, cores: &Cores) -> io::Result<Build> {
    let daemon = cores.start(Placement::AnyCore, &target.program, &[])?;
    let mut version = String::new();
    if !target.bare {
        let stats = Client::connect(daemon.address())?.yaml("stats")?;
        field(&stats, "version").trim_matches('"').clone_into(&mut version);
    }
    let sum = output(Command::new("sha256sum").arg(format!("/proc/{}/exe", daemon.pid())))?;
    let sha256 = sum.split(' ').next().unwrap_or_default().to_owned();
    Ok(Build { label: target.label.clone(), command: target.command(), version, sha256 })
}

/// Runs a program that describes the machine or the sources, and returns its output.
fn output(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{command:?}: {}", error.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the value of a line that describes the machine, such as `model name` of `/proc/cpuinfo`.
fn field(text: &str, name: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let value = line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim());
    value.unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::target::ScratchDir;
    use super::*;

    #[test]
    fn fields_are_read_or_unknown() {
        let text = "model name\t: Some CPU @ 2.10GHz\nflags : a b\n";
        assert_eq!(field(text, "model name"), "Some CPU @ 2.10GHz");
        assert_eq!(field(text, "MemTotal"), "unknown");
    }

    #[test]
    fn a_commit_is_named_only_if_its_files_are_unchanged() {
        if !crate::has_git() {
            return;
        }
        let scratch = ScratchDir::new(&std::env::temp_dir()).unwrap();
        let folder = scratch.path();
        assert_eq!(commit_of(folder), None);
        fs::write(folder.join("a"), "one").unwrap();
        let git = |words: &[&str]| {
            let identity = ["-c", "user.name=a", "-c", "user.email=a", "-c", "commit.gpgSign=no"];
            output(Command::new("git").arg("-C").arg(folder).args(identity).args(words)).unwrap()
        };
        git(&["init", "-q"]);
        git(&["add", "a"]);
        git(&["commit", "-q", "-m", "a"]);
        fs::write(folder.join("b"), "not in git").unwrap();
        assert_eq!(commit_of(folder), Some(git(&["rev-parse", "HEAD"])));
        fs::write(folder.join("a"), "two").unwrap();
        assert_eq!(commit_of(folder).as_deref(), Some("modified"));
        fs::create_dir(folder.join("unpacked")).unwrap();
        assert_eq!(commit_of(&folder.join("unpacked")), None);
    }
}
