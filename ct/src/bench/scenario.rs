//! The presets: scenarios, each with work for a daemon and the daemon's state before the work.
//!
//! The name of a preset is its family, mostly followed by a slash and a variant. If a family is
//! plotted as a curve, its variants are numbers.

use std::time::Duration;

use super::group::{Group, Pacing, Tubes};
use super::measure::Placement;
use super::op::{Op, Priority};
use super::reader::Body;
use super::state::State;

/// The minimum time of a sync in [`Work::SlowSync`].
pub const SYNC_TIME: Duration = Duration::from_millis(5);

/// One preset.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The name, `family/variant`.
    pub name: String,
    /// A description for the reader of the table.
    pub about: String,
    /// The variable on the x axis of the family's curve, and the value of x in this preset.
    pub curve: Option<(&'static str, f64)>,
    /// Whether the quick comparison includes this preset.
    pub quick: bool,
    /// Whether the bare responder can do this work.
    pub bare: bool,
    /// Whether system calls are counted.
    pub counts_calls: bool,
    /// The flag for syncs of the binlog; `None` without a binlog.
    pub binlog: Option<&'static str>,
    /// The duration of each phase, if it differs from [`Effort::window`].
    pub window: Option<Duration>,
    /// On which cores the daemon and the load run.
    pub placement: Placement,
    /// The state of the daemon before the work.
    pub state: State,
    /// The work to measure.
    pub work: Work,
    /// The base scenario: the same work with fewer tubes, jobs or workers. The first daemon runs
    /// both scenarios in each round, for comparison.
    pub base: Option<Box<Scenario>>,
}

/// The work of a scenario.
#[derive(Debug, Clone)]
pub enum Work {
    /// Runs these loads one after the other, in each round.
    Phases(Vec<Phase>),
    /// Measures the memory of jobs, and the memory that remains after the jobs are deleted.
    Jobs {
        /// The number of jobs.
        jobs: u64,
        /// Bytes of each body.
        body: usize,
    },
    /// Measures the memory of this number of idle connections.
    Connections(usize),
    /// Measures how long a daemon with jobs in its binlog takes to restart.
    Replay {
        /// The number of jobs.
        jobs: u64,
        /// Bytes of each body.
        body: usize,
        /// The number of tubes over which the jobs are spread evenly.
        tubes: u64,
    },
    /// Moves this number of jobs with one `kick`, and measures how long another client waits
    /// meanwhile.
    Kick(u64),
    /// Measures commands that need no sync, while this number of producers put jobs under `-f0` and
    /// each sync takes at least [`SYNC_TIME`].
    SlowSync(usize),
}

/// A load that has a row of its own in the table.
#[derive(Debug, Clone)]
pub struct Phase {
    /// The part of the row's name after the scenario's name; empty for a scenario's only phase.
    pub name: &'static str,
    /// The connections and their commands.
    pub groups: Vec<Group>,
    /// The maximum number of cycles; `None` for the number that the previous phase completed.
    pub cycles: Option<u64>,
}

/// The number and the duration of measurements, and the size of large backlogs.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// The number of measured rounds; an additional first round only warms up.
    pub rounds: usize,
    /// The duration of a phase in each round.
    pub window: Duration,
    /// The number of jobs in a large backlog.
    pub backlog: u64,
}

impl Effort {
    /// A comparison that takes about fourteen minutes for two daemons.
    pub const FULL: Self =
        Self { rounds: 5, window: Duration::from_millis(300), backlog: 1_000_000 };
    /// A comparison that takes about a minute.
    pub const QUICK: Self =
        Self { rounds: 3, window: Duration::from_millis(200), backlog: 100_000 };
}

const PUT: Op = put(Priority::Fixed(10));
/// A lone client is measured for this long, because it gets its own core only after some time.
const LONE_WINDOW: Duration = Duration::from_secs(2);
/// The size of bodies in presets that do not vary that size.
const BODY_BYTES: usize = 64;
/// The most jobs that one phase puts and the next phase reserves.
const BURST_JOBS_MAX: u64 = 300_000;

/// Makes a `put` with delay 0, for the commands that a scenario repeats.
const fn put(priority: Priority) -> Op {
    Op::Put { priority, delay: 0 }
}

/// Returns the scenarios of all presets, in the order of the table.
pub fn presets(effort: Effort) -> Vec<Scenario> {
    let mut all = Vec::new();
    all.extend([1, 10, 100, 1_000, 10_000].map(connections));
    all.extend([lone_client(), lone_pair(), one_core()]);
    all.extend([1, 4, 16, 64, 256, 512].map(pipeline));
    all.extend([1, 64].map(burst));
    all.extend([(10, 10), (100, 100), (10, 10_000)].map(workers));
    all.extend([5_000, 15_000, 25_000, 35_000, 45_000].map(open));
    all.extend([100, 1_000, 10_000].map(offered));
    all.extend([(2_000, 1), (10_000, 10), (30_000, 10)].map(wakeup));
    all.extend([0, 10_000].map(idle));
    all.extend([1, 1_000, 10_000, 100_000].map(tubes));
    all.extend([1, 1_000].map(watching));
    all.extend([1, 10, 100, 1_000].map(watches));
    all.extend([10, 10_000, effort.backlog].map(held));
    all.extend(backlogs(effort.backlog));
    all.extend([0, 128, 1_024, 16_384, 65_535].map(body));
    all.extend(binlogs());
    all.extend(["-f0", "-f50"].map(durable_workers));
    all.push(slow_sync(100));
    all.extend([16, 128, 1_024].map(|body| memory(effort.backlog, body)));
    all.extend([idle_connections(10_000), kick(effort.backlog)]);
    let replays = [("", 128, 1), ("/16", 16, 1), ("/1024", 1_024, 1), ("/tubes", 128, 1_000)];
    all.extend(replays.map(|row| replay(effort.backlog, row)));
    all
}

impl Scenario {
    /// Makes a scenario with the usual settings.
    fn new(name: String, about: String, work: Work) -> Self {
        let state = State::default();
        Self {
            name,
            about,
            curve: None,
            quick: false,
            bare: false,
            counts_calls: false,
            binlog: None,
            window: None,
            placement: Placement::default(),
            state,
            work,
            base: None,
        }
    }

    /// Makes a scenario with a single phase, whose number of cycles is not limited.
    fn one(name: String, about: String, groups: Vec<Group>) -> Self {
        let phase = Phase { name: "", groups, cycles: Some(u64::MAX) };
        Self::new(name, about, Work::Phases(vec![phase]))
    }

    /// Makes the scenario a point of a curve over the variable `what`.
    fn on_curve(self, what: &'static str, value: f64) -> Self {
        Self { curve: Some((what, value)), ..self }
    }

    /// Includes the scenario in quick comparisons if `quick`.
    fn quick_if(self, quick: bool) -> Self {
        Self { quick, ..self }
    }

    /// Makes the scenario measure also `ct-bare`, a server that only sends fixed replies.
    fn with_bare(self) -> Self {
        Self { bare: true, ..self }
    }

    /// Makes the scenario count system calls, too.
    fn with_calls(self) -> Self {
        Self { counts_calls: true, ..self }
    }

    /// Sets the cores of daemon and load in the scenario.
    fn placed(self, placement: Placement) -> Self {
        Self { placement, ..self }
    }

    /// Sets the duration of a lone client's scenario, and the cores of daemon and load.
    fn alone(self, placement: Placement) -> Self {
        Self { window: Some(LONE_WINDOW), ..self.placed(placement) }
    }

    /// Sets the state of the scenario's daemon before the work.
    fn with_state(self, state: State) -> Self {
        Self { state, ..self }
    }

    /// Sets the base scenario, which is measured in each round after this scenario.
    fn beside(self, base: Option<Self>) -> Self {
        Self { base: base.map(Box::new), ..self }
    }

    /// Returns the name of the row that this phase of the scenario has in the table.
    pub fn row_name(&self, phase: &str) -> String {
        if phase.is_empty() { self.name.clone() } else { format!("{} {phase}", self.name) }
    }
}

impl Phase {
    /// Makes a phase of a scenario; the number of the phase's cycles is not limited.
    fn endless(name: &'static str, groups: Vec<Group>) -> Self {
        Self { name, groups, cycles: Some(u64::MAX) }
    }
}

/// Makes, for a preset, a group of connections that put, reserve and delete.
fn cycle(connections: usize, depth: usize, body: usize) -> Group {
    Group::new(connections, depth, &[PUT, Op::Reserve, Op::Delete], Body::plain(body))
}

/// Makes the scenario `connections/N`.
fn connections(connections: u32) -> Scenario {
    let name = format!("connections/{connections}");
    let about = format!("{connections} connections put, reserve, delete; nothing pipelined");
    Scenario::one(name, about, vec![cycle(size(connections), 1, BODY_BYTES)])
        .on_curve("connections", f64::from(connections))
        .quick_if(matches!(connections, 10 | 100 | 1_000))
        .with_bare()
        .with_calls()
}

/// Makes the scenario `lone/client`: one client that waits for each reply, as a script does.
fn lone_client() -> Scenario {
    let about = "1 connection puts, reserves, deletes; the daemon on any core";
    Scenario::one("lone/client".to_owned(), about.to_owned(), vec![cycle(1, 1, BODY_BYTES)])
        .alone(Placement::AnyCore)
}

/// Makes the scenario `lone/pair`: one producer, and one worker that waits.
fn lone_pair() -> Scenario {
    let about = "1 producer, 1 worker that waits; the daemon on any core";
    Scenario { about: about.to_owned(), name: "lone/pair".to_owned(), ..workers((1, 1)) }
        .alone(Placement::AnyCore)
}

/// Makes the scenario `lone/one-core`: daemon and load on the same core.
fn one_core() -> Scenario {
    let about = "1 connection puts, reserves, deletes; daemon and load on the same core";
    Scenario::one("lone/one-core".to_owned(), about.to_owned(), vec![cycle(1, 1, BODY_BYTES)])
        .alone(Placement::Together)
}

/// Makes the scenario `pipeline/N`, with N commands at a time on each connection.
fn pipeline(depth: u32) -> Scenario {
    let name = format!("pipeline/{depth}");
    let about = format!("10 connections put, reserve, delete; {depth} commands at a time each");
    Scenario::one(name, about, vec![cycle(10, size(depth), BODY_BYTES)])
        .on_curve("pipeline depth", f64::from(depth))
        .quick_if(matches!(depth, 16 | 64))
        .with_bare()
        .with_calls()
}

/// Makes the scenario `burst/N`: puts jobs in one phase; reserves and deletes these jobs in the
/// next phase.
fn burst(depth: u32) -> Scenario {
    let name = format!("burst/{depth}");
    let about =
        format!("10 connections, {depth} commands at a time: put; then reserve and delete them");
    let phases = burst_phases(10, size(depth), BODY_BYTES);
    Scenario::new(name, about, Work::Phases(phases)).quick_if(depth == 64)
}

/// Makes the two phases of a `burst` scenario: first puts, then reserves and deletes.
fn burst_phases(connections: usize, depth: usize, body: usize) -> Vec<Phase> {
    let group = |ops: &[Op]| vec![Group::new(connections, depth, ops, Body::plain(body))];
    vec![
        Phase { name: "put", groups: group(&[PUT]), cycles: Some(BURST_JOBS_MAX) },
        Phase { name: "reserve, delete", groups: group(&[Op::Reserve, Op::Delete]), cycles: None },
    ]
}

/// Makes the scenario `workers/PxW`, with P producers, and W workers that wait.
fn workers((producers, workers): (u32, u32)) -> Scenario {
    let body = Body::stamped(BODY_BYTES);
    let put = Group::new(size(producers), 1, &[PUT], body.clone());
    let put = Group { pacing: Pacing::Paired, ..put };
    let about =
        format!("{producers} producers; {workers} workers that wait; a job when one is done");
    let groups = vec![Group::workers(size(workers), body), put];
    let base = (workers == 10_000).then(|| self::workers((10, 10)));
    Scenario::one(format!("workers/{producers}x{workers}"), about, groups)
        .quick_if(matches!((producers, workers), (100, 100)))
        .beside(base)
}

/// Makes the scenario `open/N`: cycles of commands that begin at fixed times, even if the daemon is
/// late.
fn open(rate: u32) -> Scenario {
    let group = cycle(100, 1, BODY_BYTES);
    let group = Group { pacing: Pacing::Open(f64::from(rate)), ..group };
    let about = format!("{rate} jobs a second put, reserved, deleted, on 100 connections");
    Scenario::one(format!("open/{rate}"), about, vec![group])
        .on_curve("jobs offered a second", f64::from(rate))
        .quick_if(rate == 25_000)
        .with_bare()
}

/// Makes the scenario `offered/N`: a low, fixed rate of commands, to measure the CPU time that each
/// command takes.
fn offered(commands: u32) -> Scenario {
    let group = cycle(10, 1, BODY_BYTES);
    let group = Group { pacing: Pacing::Open(f64::from(commands) / 3.0), ..group };
    let about = format!("{commands} commands a second on 10 connections; the daemon on any core");
    Scenario::one(format!("offered/{commands}"), about, vec![group]).placed(Placement::AnyCore)
}

/// Makes the scenario `wakeup/N`, which measures the time from the `put` of a job until a waiting
/// worker gets the job.
fn wakeup((rate, pairs): (u32, usize)) -> Scenario {
    let body = Body::stamped(BODY_BYTES);
    let put = Group::new(pairs, 1, &[PUT], body.clone());
    let put = Group { pacing: Pacing::Open(f64::from(rate)), ..put };
    let about = format!("{rate} jobs a second; producers and workers that wait: {pairs} each");
    let groups = vec![Group::workers(pairs, body), put];
    Scenario::one(format!("wakeup/{rate}"), about, groups)
}

/// Makes the scenario `idle/N`: commands on a daemon that also has N idle connections.
fn idle(idle: u32) -> Scenario {
    let about = format!("10 connections put, reserve, delete beside {idle} idle ones");
    Scenario::one(format!("idle/{idle}"), about, vec![cycle(10, 1, BODY_BYTES)])
        .with_state(State { idle: size(idle), ..State::default() })
}

/// Makes the scenario `tubes/N`: commands of several kinds on a daemon that has N tubes.
fn tubes(tubes: u32) -> Scenario {
    let group = |ops: &[Op]| vec![Group::new(10, 1, ops, Body::plain(BODY_BYTES))];
    let count = u64::from(tubes);
    let phases = vec![
        Phase::endless("cycle", vec![cycle(10, 1, BODY_BYTES)]),
        Phase::endless("use", group(&[Op::Use(count)])),
        Phase::endless("watch, ignore", group(&[Op::Watch(count), Op::Ignore])),
        Phase::endless("stats-tube", group(&[Op::StatsTube(count)])),
        Phase::endless("stats", group(&[Op::Stats])),
        Phase::endless("list-tubes", group(&[Op::ListTubes])),
    ];
    let about = format!("10 connections beside {tubes} tubes with a delayed job each");
    Scenario::new(format!("tubes/{tubes}"), about, Work::Phases(phases))
        .on_curve("tubes with a delayed job", f64::from(tubes))
        .with_state(State { tubes: count, ..State::default() })
        .quick_if(tubes == 1_000)
        .beside((tubes > 1).then(|| self::tubes(1)))
}

/// Makes the scenario `watching/N`: waiting workers that watch N tubes.
fn watching(tubes: u32) -> Scenario {
    let put =
        Group { pacing: Pacing::Paired, ..Group::new(10, 1, &[PUT], Body::plain(BODY_BYTES)) };
    let workers = Group::workers(10, Body::plain(BODY_BYTES));
    let workers = Group { tubes: Tubes::Many(u64::from(tubes) - 1), ..workers };
    let about = format!("10 producers; 10 workers that watch {tubes} tubes");
    Scenario::one(format!("watching/{tubes}"), about, vec![workers, put])
        .beside((tubes > 1).then(|| watching(1)))
}

/// Makes the scenario `watches/N`: each connection watches N tubes, and puts, reserves and deletes.
fn watches(tubes: u32) -> Scenario {
    let group = Group { tubes: Tubes::Many(u64::from(tubes) - 1), ..cycle(10, 1, BODY_BYTES) };
    let about = format!("10 connections that watch {tubes} tubes put, reserve, delete");
    Scenario::one(format!("watches/{tubes}"), about, vec![group])
}

/// Makes the scenario `held/N`: one connection that holds N reserved jobs and works on 8 of them at
/// a time.
fn held(held: u64) -> Scenario {
    let ops = [
        Op::Touch,
        Op::Release { priority: Priority::Fixed(10) },
        Op::Reserve,
        Op::Delete,
        PUT,
        Op::Reserve,
    ];
    let about = format!(
        "one connection that holds {held} reserved jobs, 8 commands at a time: touch, release, \
         reserve, delete, put, reserve"
    );
    let group = Group { hold: held, ..Group::new(1, 8, &ops, Body::plain(BODY_BYTES)) };
    Scenario::one(format!("held/{held}"), about, vec![group])
        .with_state(State { ready: held, ..State::default() })
        .quick_if(held == 10_000)
        .beside((held > 10).then(|| self::held(10)))
}

/// Makes the scenarios `backlog/VARIANT`: commands on a daemon without other jobs, or with many
/// other jobs in one state.
fn backlogs(backlog: u64) -> Vec<Scenario> {
    let (equal, random) = (Priority::Fixed(10), Priority::Random);
    let none = backlog_of("none", 0, equal, State::default());
    let mut all = vec![none.clone()];
    for (order, priority) in [("equal", equal), ("random", random)] {
        let states = [
            ("ready", State { ready: backlog, priority, ..State::default() }),
            ("delayed", State { delayed: backlog, priority, ..State::default() }),
            ("buried", State { buried: backlog, priority, ..State::default() }),
        ];
        for (kind, state) in states {
            let one = backlog_of(&format!("{kind}-{order}"), backlog, priority, state);
            all.push(one.beside(Some(none.clone())));
        }
    }
    all
}

/// Makes one scenario `backlog/VARIANT`, with a phase for each of three cycles of commands.
fn backlog_of(variant: &str, backlog: u64, priority: Priority, state: State) -> Scenario {
    let group = |ops: &[Op]| vec![Group::new(10, 1, ops, Body::plain(BODY_BYTES))];
    let put = put(priority);
    let release = Op::Release { priority };
    let each = [
        put,
        Op::Reserve,
        Op::Touch,
        release,
        Op::Reserve,
        Op::Bury,
        Op::KickJob,
        // Reserves any job and deletes it: another connection may have reserved the kicked job.
        Op::Reserve,
        Op::Delete,
    ];
    let phases = vec![
        Phase::endless("cycle", group(&[put, Op::Reserve, Op::Delete])),
        Phase::endless("all verbs", group(&each)),
        Phase::endless("delayed put, delete", group(&[delayed(priority), Op::Delete])),
    ];
    let about = format!("10 connections beside {backlog} jobs ({variant})");
    Scenario::new(format!("backlog/{variant}"), about, Work::Phases(phases))
        .with_state(state)
        .quick_if(variant == "ready-random")
}

/// Makes a `put` with a delay of days, for the scenarios with a backlog.
fn delayed(priority: Priority) -> Op {
    Op::Put { priority, delay: 500_000 }
}

/// Makes the scenario `body/N`: jobs of N bytes.
fn body(body: u32) -> Scenario {
    let about = format!("10 connections put, reserve, delete jobs of {body} bytes");
    Scenario::one(format!("body/{body}"), about, vec![cycle(10, 1, size(body))])
        .on_curve("bytes of a body", f64::from(body))
        .quick_if(body == 16_384)
        .with_bare()
}

/// Makes the scenarios `binlog/VARIANT`: commands of a daemon with a binlog.
fn binlogs() -> Vec<Scenario> {
    let rows = [
        ("F", "-F", 10, 1, false),
        ("F", "-F", 10, 64, true),
        ("f50", "-f50", 10, 1, false),
        ("f50", "-f50", 10, 64, false),
        ("f0", "-f0", 1, 1, false),
        ("f0", "-f0", 10, 1, true),
        ("f0", "-f0", 64, 1, false),
        ("f0", "-f0", 100, 1, true),
        ("f0", "-f0", 10, 64, false),
    ];
    let scenario = |(name, flag, connections, depth, quick)| {
        let about = format!("binlog {flag}: {connections} connections, depth {depth}");
        let mut phases = burst_phases(connections, depth, BODY_BYTES);
        if depth == 1 {
            phases.push(Phase::endless("cycle", vec![cycle(connections, 1, BODY_BYTES)]));
        }
        let work = Work::Phases(phases);
        let name = format!("binlog/{name}-{connections}x{depth}");
        Scenario { binlog: Some(flag), ..Scenario::new(name, about, work) }.quick_if(quick)
    };
    rows.map(scenario).into()
}

/// Makes the scenario `binlog/VARIANT-workers`: producers and waiting workers, with a binlog.
fn durable_workers(flag: &'static str) -> Scenario {
    let name = format!("binlog/{}-workers", &flag[1..]);
    let about = format!("binlog {flag}: 10 producers; 10 workers that wait");
    Scenario { binlog: Some(flag), name, about, ..workers((10, 10)) }
}

/// Makes the scenario `binlog/slow-sync`: commands that need no sync, while producers put jobs.
fn slow_sync(producers: usize) -> Scenario {
    let about = format!(
        "binlog -f0 with syncs of {} ms: reserve, peek and stats beside {producers} producers",
        SYNC_TIME.as_millis()
    );
    Scenario {
        binlog: Some("-f0"),
        ..Scenario::new("binlog/slow-sync".to_owned(), about, Work::SlowSync(producers))
    }
}

/// Makes the scenario `memory/N`: the daemon's memory for jobs of N bytes.
fn memory(jobs: u64, body: usize) -> Scenario {
    let about = format!("memory of {jobs} jobs of {body} bytes, and when they are deleted");
    Scenario::new(format!("memory/{body}"), about, Work::Jobs { jobs, body }).quick_if(body == 128)
}

/// Makes the scenario `memory/connections`: the daemon's memory for idle connections.
fn idle_connections(connections: usize) -> Scenario {
    let about = format!("memory of {connections} idle connections");
    let work = Work::Connections(connections);
    Scenario::new("memory/connections".to_owned(), about, work)
}

/// Makes the scenario `kick`: one kick of all delayed jobs.
fn kick(jobs: u64) -> Scenario {
    let about = format!("the longest others wait while one kick moves {jobs} jobs");
    Scenario::new("kick".to_owned(), about, Work::Kick(jobs))
        .with_state(State { delayed: jobs, ..State::default() })
        .quick_if(true)
}

/// Makes the scenario `replay/VARIANT`: a restart with many jobs in the binlog.
fn replay(jobs: u64, (variant, body, tubes): (&str, usize, u64)) -> Scenario {
    let about = format!("restart with {jobs} jobs of {body} bytes in the binlog, tubes: {tubes}");
    let work = Work::Replay { jobs, body, tubes };
    Scenario { binlog: Some("-F"), ..Scenario::new(format!("replay{variant}"), about, work) }
}

/// Converts the variant of a preset to a number of connections, commands or bytes.
fn size(number: u32) -> usize {
    usize::try_from(number).expect("at least 32 bits")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn preset_names_are_unique() {
        for effort in [Effort::FULL, Effort::QUICK] {
            let presets = presets(effort);
            let names: HashSet<&str> = presets.iter().map(|one| one.name.as_str()).collect();
            assert_eq!(names.len(), presets.len());
            assert!(presets.iter().any(|one| one.quick));
        }
    }

    #[test]
    fn the_bare_responder_needs_no_jobs() {
        for scenario in presets(Effort::FULL).iter().filter(|one| one.bare) {
            assert_eq!(scenario.state, State::default(), "{}", scenario.name);
            let Work::Phases(phases) = &scenario.work else {
                panic!("{} needs a daemon", scenario.name);
            };
            let groups = phases.iter().flat_map(|phase| &phase.groups);
            assert!(groups.into_iter().all(|group| !group.waits && group.hold == 0));
        }
    }

    #[test]
    fn a_base_has_the_same_phases() {
        for scenario in presets(Effort::FULL) {
            let Some(base) = &scenario.base else { continue };
            let (Work::Phases(own), Work::Phases(others)) = (&scenario.work, &base.work) else {
                panic!("{} is not a load", scenario.name);
            };
            let names = |phases: &[Phase]| phases.iter().map(|one| one.name).collect::<Vec<_>>();
            assert_eq!(names(own), names(others));
            assert!(base.base.is_none());
        }
    }

    #[test]
    fn a_phase_takes_the_jobs_of_the_one_before() {
        for scenario in presets(Effort::FULL) {
            let Work::Phases(phases) = &scenario.work else { continue };
            assert!(phases[0].cycles.is_some(), "{}", scenario.name);
            for pair in phases.windows(2).filter(|pair| pair[1].cycles.is_none()) {
                assert_eq!(pair[0].groups[0].depth, pair[1].groups[0].depth);
                assert_eq!(pair[0].groups[0].connections, pair[1].groups[0].connections);
            }
        }
    }
}
