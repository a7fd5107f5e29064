//! The golden scripts on their three stages: the pure server with a virtual clock, this binary,
//! and the original. One text says what the protocol is; see ct/README.md for its language.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    path::Path,
    time::Duration,
};

use ct::{Arrived, Dialect, Original, Patience, Prng, Script, Stage, skip};

use crate::world::{Arrival, World};

fn scripts() -> Vec<Script> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    Script::load_dir(&folder).expect("the golden scripts are well formed")
}

/// The pure server as a stage.
struct Memory {
    world: World,
    peers: BTreeMap<String, usize>,
}

impl Memory {
    fn new(script: &Script, arrival: Arrival) -> Self {
        let limit = match &script.flags[..] {
            [] => beanstalkd::proto::JOB_SIZE_DEFAULT,
            [flag, bytes] if flag == "-z" => bytes.parse().expect("-z takes a number"),
            other => panic!("{}: the pure server does not know the flags {other:?}", script.name),
        };
        Self { world: World::new(arrival, limit), peers: BTreeMap::new() }
    }
}

impl Stage for Memory {
    fn connect(&mut self, connection: &str) -> Result<(), String> {
        let peer = self.world.connect();
        self.peers.insert(connection.into(), peer);
        Ok(())
    }
    fn send(&mut self, connection: &str, bytes: &[u8]) -> Result<(), String> {
        self.world.send(self.peers[connection], bytes);
        Ok(())
    }
    fn receive(&mut self, connection: &str, _: Patience) -> Result<Arrived, String> {
        let peer = self.peers[connection];
        let bytes = self.world.receive(peer);
        if !bytes.is_empty() {
            return Ok(Arrived::Bytes(bytes));
        }
        Ok(if self.world.is_open(peer) { Arrived::Nothing } else { Arrived::Closed })
    }
    fn half_close(&mut self, connection: &str) -> Result<(), String> {
        self.world.half_close(self.peers[connection]);
        Ok(())
    }
    fn close(&mut self, connection: &str) -> Result<(), String> {
        self.world.close(self.peers[connection]);
        Ok(())
    }
    /// Urgent bytes exist only in sockets.
    fn urgent(&mut self, _: &str, _: u8) -> Result<(), String> {
        Ok(())
    }
    fn drain(&mut self) -> Result<(), String> {
        self.world.drain();
        Ok(())
    }
    fn advance(&mut self, time: Duration) -> Result<(), String> {
        self.world.advance(time);
        Ok(())
    }
}

/// Runs every script in memory and fails with all that went wrong.
#[expect(clippy::unwrap_used, reason = "writing to memory does not fail")]
fn run_in_memory(arrival: &Arrival) {
    let ours = Dialect::named("ours").expect("our own dialect is known");
    let scripts = scripts();
    let mut failures = String::new();
    for script in &scripts {
        let mut stage = Memory::new(script, arrival.clone());
        if let Err(failure) = ct::run(script, &ours, 0, &mut stage) {
            let ct::Failure { line, message, transcript, .. } = failure;
            writeln!(failures, "{}:{line}: {message}\n{transcript}", script.name).unwrap();
        }
        stage.world.server.check();
    }
    assert!(failures.is_empty(), "{failures}");
    assert!(!scripts.is_empty());
}

#[test]
fn in_memory() {
    run_in_memory(&Arrival::Whole);
}

/// A client on a bad line must not see another protocol.
#[test]
fn in_memory_byte_by_byte() {
    run_in_memory(&Arrival::SingleBytes);
}

#[test]
fn in_memory_in_random_pieces() {
    for seed in 0..10 {
        run_in_memory(&Arrival::Pieces(Prng::new(seed)));
    }
}

/// What was played on a daemon met through its socket.
struct Played {
    /// The masks that some script took.
    masks: BTreeSet<String>,
    /// Whether every script was judged.
    is_whole: bool,
}

/// Fails with all that went wrong on a daemon met through its socket; what this machine was too
/// slow for is told.
fn run_on(program: &Path, dialect: &Dialect) -> Played {
    let reports = ct::check::check_all(&scripts(), &ct::Program::new(program), dialect);
    let (mut failures, mut is_whole) = (String::new(), true);
    for report in &reports {
        match &report.result {
            ct::Verdict::Passed => {}
            ct::Verdict::Failed(failure) => {
                writeln!(failures, "{}: {failure:?}", report.name).expect("a string grows");
            }
            ct::Verdict::Skipped(reason) => {
                is_whole = false;
                skip(&format!("{}: {reason}", report.name));
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
    assert!(!reports.is_empty());
    let masks = reports.into_iter().flat_map(|report| report.masks_used).collect();
    Played { masks, is_whole }
}

#[test]
fn on_our_daemon() {
    let ours = Dialect::named("ours").expect("our own dialect is known");
    let played = run_on(Path::new(env!("CARGO_BIN_EXE_beanstalkd")), &ours);
    assert_eq!(played.masks, BTreeSet::new(), "the text is ours; only others need masks");
}

/// The masks are the only allowance: a mask that the original does not need is a mistake.
#[test]
fn on_the_original() {
    let Some(Original { path, dialect }) = Original::find() else { return };
    let Played { masks, is_whole } = run_on(&path, &dialect);
    let unused: Vec<_> = dialect.masks.difference(&masks).collect();
    // A script that was not judged may have needed it.
    assert!(unused.is_empty() || !is_whole, "no script of {} uses {unused:?}", dialect.name);
    assert!(masks.is_subset(&dialect.masks), "{masks:?}");
}
