//! The change to another user.

use std::{
    fs,
    process::{Command, Stdio},
};

use ct::skip;

use crate::harness::{OURS, Peer, process_status, terminate, try_start};

/// With `-u` the daemon would keep some of root's rights.
///
/// Proves: B17.
#[test]
fn it_becomes_another_user_wholly_and_after_it_listens() {
    let groups = ["--groups", "4,24"];
    let probe = Command::new("setpriv").args(groups).arg("true").stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        return skip("-u needs root, and setpriv of util-linux");
    }
    let passwords = fs::read_to_string("/etc/passwd").expect("a user database");
    let nobody = passwords.lines().find_map(|line| line.strip_prefix("nobody:"));
    let nobody: Vec<&str> = nobody.expect("the user nobody").split(':').collect();
    // The port is one that only root may use.
    let mut outcome = Err(String::new());
    for port in (600..1024).rev() {
        let port = port.to_string();
        let rest = [OURS, "-u", "nobody", "-Vl127.0.0.1", "-p", &port];
        outcome = try_start("setpriv", &[&groups[..], &rest].concat());
        if !matches!(&outcome, Err(stderr) if stderr.contains("in use")) {
            break;
        }
    }
    let (mut daemon, place) = outcome.expect("it starts");
    Peer::at(&place).check();
    let status = |key: &str| process_status(daemon.pid(), key);
    assert_eq!(status("Uid").split('\t').collect::<Vec<_>>(), [nobody[1]; 4]);
    assert_eq!(status("Gid").split('\t').collect::<Vec<_>>(), [nobody[2]; 4]);
    assert_eq!(status("Groups").trim(), "");
    assert_eq!(status("CapEff").trim_matches('0'), "");
    assert_eq!(status("CapPrm").trim_matches('0'), "");
    assert_eq!(terminate(&mut daemon), 0);
}
