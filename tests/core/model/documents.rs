//! The documents of the model: statistics and lists, computed anew for each request.

use std::fmt::Write;

use super::{Job, Model, SECOND, State};

const COUNTERS: [&str; 22] = [
    "put",
    "peek",
    "peek-ready",
    "peek-delayed",
    "peek-buried",
    "reserve",
    "reserve-with-timeout",
    "delete",
    "release",
    "use",
    "watch",
    "ignore",
    "bury",
    "kick",
    "touch",
    "stats",
    "stats-job",
    "stats-tube",
    "list-tubes",
    "list-tube-used",
    "list-tubes-watched",
    "pause-tube",
];

pub(super) fn list(names: &[String]) -> String {
    names.iter().fold(String::from("---\n"), |text, name| text + "- " + name + "\n")
}

impl Model {
    fn count(&self, tube: Option<&str>, test: impl Fn(&Job) -> bool) -> usize {
        let jobs = self.jobs.values().filter(|job| tube.is_none_or(|tube| job.tube == tube));
        jobs.filter(|job| test(job)).count()
    }

    fn counts(&self, tube: Option<&str>) -> String {
        let is_ready = |job: &Job| job.state == State::Ready;
        let urgent = self.count(tube, |job| is_ready(job) && job.pri < 1024);
        let ready = self.count(tube, is_ready);
        let reserved = self.count(tube, |job| matches!(job.state, State::Reserved { .. }));
        let delayed = self.count(tube, |job| matches!(job.state, State::Delayed { .. }));
        let buried = self.count(tube, |job| matches!(job.state, State::Buried { .. }));
        format!(
            "current-jobs-urgent: {urgent}\ncurrent-jobs-ready: {ready}\n\
             current-jobs-reserved: {reserved}\ncurrent-jobs-delayed: {delayed}\n\
             current-jobs-buried: {buried}\n"
        )
    }

    pub(super) fn stats(&self, now: u64) -> String {
        let mut text = format!("---\n{}", self.counts(None));
        for name in COUNTERS {
            let count = self.counters.get(name).unwrap_or(&0);
            text = text + "cmd-" + name + ": " + &count.to_string() + "\n";
        }
        let open = || self.peers.iter().filter(|peer| peer.is_open);
        text + &format!(
            "job-timeouts: {}\ntotal-jobs: {}\nmax-job-size: {}\ncurrent-tubes: {}\n\
             current-connections: {}\ncurrent-producers: {}\ncurrent-workers: {}\n\
             current-waiting: {}\ntotal-connections: {}\npid: 4711\nversion: \"{}\"\n\
             rusage-utime: 0.000000\nrusage-stime: 0.000000\nuptime: {}\n\
             binlog-oldest-index: 0\nbinlog-current-index: 0\nbinlog-records-migrated: 0\n\
             binlog-records-written: 0\nbinlog-max-size: 10485760\ndraining: {}\n\
             id: 0123456789abcdef\nhostname: \"host\"\nos: \"os 1\"\nplatform: \"machine\"\n",
            self.timeouts,
            self.total_jobs,
            self.job_size_limit,
            self.tubes.len(),
            open().count(),
            open().filter(|peer| peer.is_producer).count(),
            open().filter(|peer| peer.is_worker).count(),
            open().filter(|peer| peer.wait.is_some()).count(),
            self.peers.len() - self.peers_before,
            env!("CARGO_PKG_VERSION"),
            (now - self.started) / SECOND,
            self.is_draining,
        )
    }

    pub(super) fn capabilities(&self) -> String {
        let state = if self.is_draining { "draining" } else { "serving" };
        let bury_after = self.bury_after.map(|losses| format!("bury-after: {losses}\n"));
        format!(
            "---\nversion: \"{}\"\nstate: {state}\nmax-job-size: {}\n\
             max-line-size: 224\nmax-tube-name-size: 200\n{}extensions:\n- capabilities\n\
             - list-jobs\n- delete-tube\n- drain\n- metrics\n- reserve-with-abort\n",
            env!("CARGO_PKG_VERSION"),
            self.job_size_limit,
            bury_after.unwrap_or_default(),
        )
    }

    pub(super) fn list_jobs(&self, name: &str, state: &str, limit: u32, now: u64) -> String {
        let ids = self.in_state(name, state).into_iter().take(limit as usize);
        ids.fold(String::from("---\n"), |text, id| text + &self.listed(id, now))
    }

    fn listed(&self, id: u64, now: u64) -> String {
        let job = &self.jobs[&id];
        let mut text = format!(
            "- id: {id}\n  pri: {}\n  age: {}\n  size: {}\n",
            job.pri,
            (now - job.created) / SECOND,
            job.body.len()
        );
        if let State::Delayed { until } | State::Reserved { until, .. } = job.state {
            text =
                text + "  time-left: " + &(until.saturating_sub(now) / SECOND).to_string() + "\n";
        }
        text
    }

    pub(super) fn stats_job(&self, id: u64, now: u64) -> String {
        let job = &self.jobs[&id];
        let (state, left) = match job.state {
            State::Ready => ("ready", 0),
            State::Delayed { until } => ("delayed", until.saturating_sub(now)),
            State::Reserved { until, .. } => ("reserved", until.saturating_sub(now)),
            State::Buried { .. } => ("buried", 0),
        };
        format!(
            "---\nid: {id}\ntube: \"{}\"\nstate: {state}\npri: {}\nage: {}\ndelay: {}\nttr: {}\n\
             time-left: {}\nfile: 0\nreserves: {}\ntimeouts: {}\nreleases: {}\nburies: {}\n\
             kicks: {}\n",
            job.tube,
            job.pri,
            (now - job.created) / SECOND,
            job.delay,
            job.ttr,
            left / SECOND,
            job.reserves,
            job.timeouts,
            job.releases,
            job.buries,
            job.kicks,
        )
    }

    pub(super) fn stats_tube(&self, name: &str, now: u64) -> String {
        let tube = self.tube(name);
        let peers = || self.peers.iter().filter(|peer| peer.is_open);
        let watching = || peers().filter(|peer| peer.watches.iter().any(|watched| watched == name));
        let (pause, left) =
            tube.pause.map_or((0, 0), |(pause, until)| (pause, until.saturating_sub(now)));
        format!(
            "---\nname: \"{name}\"\n{}total-jobs: {}\ncurrent-using: {}\ncurrent-watching: {}\n\
             current-waiting: {}\ncmd-delete: {}\ncmd-pause-tube: {}\npause: {pause}\n\
             pause-time-left: {}\n",
            self.counts(Some(name)),
            tube.total,
            peers().filter(|peer| peer.uses == name).count(),
            watching().count(),
            watching().filter(|peer| peer.wait.is_some()).count(),
            tube.deletes,
            tube.pauses,
            left / SECOND,
        )
    }

    pub(super) fn metrics(&self) -> String {
        let mut text = format!(
            "---\nstate: {}\nbinlog-state: none\njob-bytes: {}\n",
            if self.is_draining { "draining" } else { "serving" },
            self.held(),
        );
        if let Some(limit) = self.memory_limit {
            writeln!(text, "job-bytes-limit: {limit}").expect("memory does not fail");
        }
        if self.bury_after.is_some() {
            text += &burials(self.buried_for_losses);
        }
        let waits = self.counters.get("reserve-with-abort").unwrap_or(&0);
        writeln!(text, "cmd-reserve-with-abort: {waits}").expect("memory does not fail");
        // Only the event loop counts turns.
        for bound in TURN_BOUNDS {
            writeln!(text, "turn-seconds-le-{bound}: 0").expect("memory does not fail");
        }
        text + "turn-seconds-le-inf: 0\nturn-seconds-sum: 0\n"
    }

    pub(super) fn metrics_of_tube(&self, name: &str, now: u64) -> String {
        let tube = self.tube(name);
        let mut text = format!("---\nname: \"{name}\"\n");
        if let Some(id) = self.first_ready(name) {
            let job = &self.jobs[&id];
            let wait = now - job.since.max(self.started);
            let age = (now - job.created) / SECOND;
            writeln!(text, "next-ready-age: {age}\nnext-ready-wait: {}", seconds(wait))
                .expect("memory does not fail");
        }
        if self.bury_after.is_some() {
            text += &burials(tube.buried_for_losses);
        }
        if tube.has_had_a_job {
            text += &histogram("wait", &tube.waits);
            text += &histogram("run", &tube.runs);
        }
        text
    }
}

const TURN_BOUNDS: [&str; 9] =
    ["0.00002", "0.0001", "0.0005", "0.002", "0.01", "0.05", "0.2", "1", "5"];

/// Each bound of the histograms as text, and in milliseconds.
const TIME_BOUNDS: [(&str, u64); 11] = [
    ("0.001", 1),
    ("0.005", 5),
    ("0.025", 25),
    ("0.1", 100),
    ("0.5", 500),
    ("2.5", 2500),
    ("10", 10_000),
    ("60", 60_000),
    ("300", 300_000),
    ("1800", 1_800_000),
    ("7200", 7_200_000),
];

fn burials(count: u64) -> String {
    format!("jobs-buried-for-losses: {count}\n")
}

fn histogram(name: &str, times: &[u64]) -> String {
    let mut text = String::new();
    for (bound, milliseconds) in TIME_BOUNDS {
        let count = times.iter().filter(|&&time| time <= milliseconds * 1_000_000).count();
        writeln!(text, "{name}-seconds-le-{bound}: {count}").expect("memory does not fail");
    }
    let sum = times.iter().fold(0u64, |sum, &time| sum.saturating_add(time));
    text + &format!(
        "{name}-seconds-le-inf: {}\n{name}-seconds-sum: {}\n",
        times.len(),
        seconds(sum)
    )
}

/// Nanoseconds as decimal seconds, without zeros at the end.
fn seconds(nanoseconds: u64) -> String {
    let text = format!("{}.{:09}", nanoseconds / SECOND, nanoseconds % SECOND);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
