//! Runs every scenario in rounds; in each round, one target after another runs the scenario.
//!
//! In each round all targets are measured within seconds, so the ratio of their figures is fair
//! even if the machine's speed drifts. A row shows median and range of the ratios of all rounds.

use std::io;

use super::group::{Pacing, Until};
use super::load::Load;
use super::measure::Figures;
use super::outcome::{Outcome, Row, Sample, named, ratio, sample};
use super::scenario::{Phase, Scenario, Work};
use super::slow_sync;
use super::special;
use super::syscalls::SyscallCounter;
use super::target::{Config, PreparedDaemon, Target};

/// Runs scenarios one after another. A daemon is reused if its state fits the next scenario.
#[derive(Debug)]
pub struct Comparison {
    config: Config,
    prepared: Vec<Option<PreparedDaemon>>,
}

impl Comparison {
    /// Makes a `Comparison` of the targets in `config`; no daemon is started yet.
    pub fn new(config: Config) -> Self {
        let prepared = (0..=config.targets.len()).map(|_| None).collect();
        Self { config, prepared }
    }

    /// Runs one scenario on one target after another, and returns the rows of the scenario. If a
    /// target fails, its results show the error; other targets continue.
    pub fn run(&mut self, scenario: &Scenario, progress: &mut dyn FnMut(&str)) -> Vec<Row> {
        match &scenario.work {
            Work::Phases(phases) => self.run_phases(scenario, phases, progress),
            _ => self.run_special(scenario, progress),
        }
    }

    /// Runs a scenario's phases in rounds; in each round, on one target after another.
    fn run_phases(
        &mut self,
        scenario: &Scenario,
        phases: &[Phase],
        progress: &mut dyn FnMut(&str),
    ) -> Vec<Row> {
        let rows = phases.iter().map(|phase| self.row(scenario, phase.name)).collect();
        let Self { config, prepared } = self;
        let targets = config.targets.iter();
        let mut participants: Vec<Participant<'_>> =
            targets.map(|target| Participant { target, scenario, phases, load: None }).collect();
        if let Some(base) = &scenario.base {
            let Work::Phases(phases) = &base.work else { unreachable!("a base is a load") };
            participants.push(Participant {
                target: participants[0].target,
                scenario: base,
                phases,
                load: None,
            });
        }
        let mut run = InterleavedRun { config, prepared, participants, rows };
        // If all targets together need more connections than the limit on open files allows, each
        // target is connected only during its own measurement.
        let alone = run.open_files() > config.cores.open_files;
        for round in 0..=config.effort.rounds {
            progress(&format!("round {round} of {}", config.effort.rounds));
            for index in 0..run.participants.len() {
                let warms_up = round == 0;
                if alone && !warms_up {
                    run.measure_once(index, true, progress);
                }
                if !alone || !warms_up {
                    run.measure_once(index, warms_up, progress);
                }
                if alone {
                    (run.participants[index].load, run.prepared[index]) = (None, None);
                }
            }
        }
        if scenario.counts_calls && !alone {
            run.count_calls();
        }
        run.rows
    }

    /// Runs a scenario that has no repeated load, on a new daemon for each target.
    fn run_special(&mut self, scenario: &Scenario, progress: &mut dyn FnMut(&str)) -> Vec<Row> {
        self.prepared.fill_with(|| None);
        let mut row = self.row(scenario, "");
        for (result, target) in row.results.iter_mut().zip(&self.config.targets) {
            if target.bare {
                continue;
            }
            progress(&target.label);
            let measured = match scenario.work {
                Work::SlowSync(producers) => slow_sync::run(producers, target, &self.config),
                _ => special::run(scenario, target, &self.config, progress),
            };
            match measured {
                Ok(samples) => result.samples = samples,
                Err(error) => result.error = Some(message(&error)),
            }
        }
        vec![row]
    }

    /// Makes the row of a phase, without figures yet.
    fn row(&self, scenario: &Scenario, phase: &str) -> Row {
        let outcome = |label: String| Outcome { label, ..Outcome::default() };
        let results = self.config.targets.iter().map(|target| outcome(target.label.clone()));
        let base = scenario.base.as_ref().map(|base| outcome(base.row_name(phase)));
        let curve = scenario.curve.map(|(what, value)| (what.to_owned(), value));
        let (name, about) = (scenario.row_name(phase), scenario.about.clone());
        Row { name, about, curve, results: results.collect(), base }
    }
}

/// A scenario with its participants; each round measures one participant after another.
struct InterleavedRun<'a> {
    config: &'a Config,
    /// The daemon of each participant, once the daemon is prepared.
    prepared: &'a mut [Option<PreparedDaemon>],
    /// The targets. If there is a base scenario, the first target is added once more, with that
    /// scenario.
    participants: Vec<Participant<'a>>,
    rows: Vec<Row>,
}

impl InterleavedRun<'_> {
    /// Runs the load once more on each target while system calls are counted. Counting slows the
    /// run, so the run's other figures are dropped.
    fn count_calls(&mut self) {
        for (index, side) in self.participants.iter_mut().enumerate() {
            let (Some([load]), Some(prepared)) = (side.load.as_deref_mut(), &self.prepared[index])
            else {
                continue;
            };
            let Some(calls) = SyscallCounter::start(prepared.daemon.pid()) else { return };
            let tally = load.run(Until::time(self.config.effort.window));
            let (Ok(tally), Some(calls)) = (tally, calls.stop()) else { return };
            let outcome = self.rows[0].side(index);
            if let Some(sample) = outcome.and_then(|outcome| outcome.samples.last_mut()) {
                sample.extend(named([("calls", ratio(calls, tally.commands))]));
            }
        }
    }

    /// Measures one participant of the comparison once, unless the participant has failed or cannot
    /// run the scenario.
    fn measure_once(&mut self, index: usize, warms_up: bool, progress: &mut dyn FnMut(&str)) {
        let side = &mut self.participants[index];
        let has_failed = self.rows[0].side(index).is_none_or(|outcome| outcome.error.is_some());
        if has_failed || (side.target.bare && !side.scenario.bare) {
            return;
        }
        let prepared = &mut self.prepared[index];
        match side.measure(self.config, prepared, progress) {
            Ok(_) if warms_up => {}
            Ok(samples) => {
                for (row, sample) in self.rows.iter_mut().zip(samples) {
                    if let Some(outcome) = row.side(index) {
                        outcome.samples.push(sample);
                    }
                }
            }
            Err(error) => {
                (side.load, *prepared) = (None, None);
                for outcome in self.rows.iter_mut().filter_map(|row| row.side(index)) {
                    outcome.error = Some(message(&error));
                }
            }
        }
    }

    /// Returns how many open files all participants of the comparison need together.
    fn open_files(&self) -> usize {
        self.participants.iter().map(Participant::open_files).sum()
    }
}

/// A target with its scenario.
struct Participant<'a> {
    target: &'a Target,
    scenario: &'a Scenario,
    phases: &'a [Phase],
    /// One load for each phase, already connected to the daemon.
    load: Option<Vec<Load>>,
}

impl Participant<'_> {
    /// Returns how many open files one participant of the comparison needs.
    fn open_files(&self) -> usize {
        let groups = self.phases.iter().flat_map(|phase| &phase.groups);
        let connections: usize = groups.map(|group| group.connections).sum();
        connections + self.scenario.state.blocked + self.scenario.state.idle + 100
    }

    /// Runs each phase once on one participant. Before the first phase, connects the loads if they
    /// are not connected.
    fn measure(
        &mut self,
        config: &Config,
        prepared: &mut Option<PreparedDaemon>,
        progress: &mut dyn FnMut(&str),
    ) -> io::Result<Vec<Sample>> {
        if self.load.is_none() {
            self.load = Some(self.connect(config, prepared, progress)?);
        }
        config.cores.place_load(self.scenario.placement)?;
        let (Some(loads), Some(prepared)) = (&mut self.load, &*prepared) else {
            unreachable!("both were made by now");
        };
        let mut before = 0;
        let mut samples = Vec::new();
        for (load, phase) in loads.iter_mut().zip(self.phases) {
            let window = self.scenario.window.unwrap_or(config.effort.window);
            let until = match phase.cycles {
                Some(cycles) => Until { time: window, cycles },
                None => Until::cycles(before),
            };
            let figures = Figures::measure(load, prepared.daemon.pid(), until)?;
            before = figures.tally.cycles;
            let mut sample = sample(&figures);
            if phase.groups.iter().any(|group| matches!(group.pacing, Pacing::Open(_))) {
                // Drops the load's CPU figures: an open loop spins before each of its cycles.
                sample.retain(|figure, _| !figure.starts_with("load_"));
            }
            samples.push(sample);
        }
        Ok(samples)
    }

    /// Connects the loads of all phases, to a new daemon unless the current daemon is suitable.
    fn connect(
        &self,
        config: &Config,
        prepared: &mut Option<PreparedDaemon>,
        progress: &mut dyn FnMut(&str),
    ) -> io::Result<Vec<Load>> {
        let Self { target, scenario, phases, .. } = self;
        let holds = phases.iter().flat_map(|phase| &phase.groups).any(|group| group.hold > 0);
        let fits = |prepared: &PreparedDaemon| {
            prepared.is_in(&scenario.state, scenario.placement) && scenario.binlog.is_none()
        };
        if holds || !prepared.as_ref().is_some_and(fits) {
            *prepared = None;
            let binlog = scenario.binlog.map(|flag| (flag, config.scratch.as_path()));
            let state = &scenario.state;
            let mut report = |text: &str| progress(&format!("{}: {text}", target.label));
            *prepared = Some(PreparedDaemon::prepare(
                target,
                &config.cores,
                scenario.placement,
                state,
                binlog,
                &mut report,
            )?);
        }
        let address = prepared.as_ref().map_or("", |prepared| prepared.daemon.address());
        let connect = |phase: &Phase| Load::connect(address, &phase.groups, target.bare, 1);
        phases.iter().map(connect).collect()
    }
}

/// Returns the message of a failed measurement in one line.
fn message(error: &io::Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
