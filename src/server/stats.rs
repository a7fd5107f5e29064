//! The bodies of the replies to `stats`, `stats-job`, `stats-tube`, `capabilities`, `metrics` and
//! `list-jobs`, as YAML.

use super::{Health, Server};
use crate::{
    clock::Time,
    collections::Key,
    proto::{
        BinlogMetrics, CRLF, Capabilities, JobStats, LINE_LIMIT, ListedJob, NAME_LIMIT,
        ServerMetrics, ServerStats, TubeMetrics, TubeStats,
    },
    queue::{Job, Tube},
};

/// The commands that the original does not know.
const EXTENSIONS: [&str; 5] = ["capabilities", "list-jobs", "delete-tube", "drain", "metrics"];

impl Server {
    pub(super) fn capabilities(&self) -> Vec<u8> {
        Capabilities {
            version: &self.identity.version,
            state: self.health().name(),
            max_job_size: self.settings.job_size_limit,
            max_line_size: LINE_LIMIT,
            max_tube_name_size: NAME_LIMIT,
            extensions: &EXTENSIONS,
        }
        .document()
    }

    pub(super) fn stats(&self, now: Time) -> Vec<u8> {
        let counts = self.queue.counts();
        let rusage = (self.identity.rusage)();
        let binlog = self.binlog_counts();
        ServerStats {
            current_jobs_urgent: counts.urgent,
            current_jobs_ready: counts.ready,
            current_jobs_reserved: counts.reserved,
            current_jobs_delayed: counts.delayed,
            current_jobs_buried: counts.buried,
            commands: &self.commands,
            job_timeouts: counts.timeouts,
            total_jobs: counts.total_jobs,
            max_job_size: self.settings.job_size_limit,
            current_tubes: self.queue.tubes(),
            current_connections: counts.connections,
            current_producers: counts.producers,
            current_workers: counts.workers,
            current_waiting: counts.waiting,
            total_connections: counts.total_connections,
            pid: self.identity.pid,
            version: &self.identity.version,
            rusage_utime: rusage.user,
            rusage_stime: rusage.system,
            uptime: self.started_at.seconds_until(now),
            binlog_oldest_index: binlog.oldest,
            binlog_current_index: binlog.current,
            binlog_records_migrated: binlog.migrated,
            binlog_records_written: binlog.written,
            binlog_max_size: self.settings.binlog_size,
            draining: self.is_draining,
            id: &self.identity.id,
            hostname: &self.identity.hostname,
            os: &self.identity.os,
            platform: &self.identity.platform,
        }
        .document()
    }

    /// Counts a turn, for `metrics`: from the end of the wait for events until all replies were
    /// sent.
    pub fn count_turn(&mut self, began: Time, ended: Time) {
        self.turns.add(began.nanoseconds_until(ended));
    }

    pub(super) fn metrics(&self, now: Time) -> Vec<u8> {
        ServerMetrics {
            state: self.health().name(),
            binlog: self.wal().map(|wal| BinlogMetrics {
                state: match self.trouble {
                    None => "sound",
                    Some((Health::BinlogFull, _)) => "full",
                    Some(_) => "failed",
                },
                trouble_age: self.trouble.map_or(0, |(_, since)| since.seconds_until(now)),
                unsynced_bytes: wal.unsynced(),
                live_bytes: wal.live(),
                dead_bytes: wal.dead(),
                syncs: wal.sync_times(),
            }),
            job_bytes: self.queue.job_bytes(),
            job_bytes_limit: self.settings.memory_limit,
            turns: &self.turns,
        }
        .document()
    }

    pub(super) fn tube_metrics(&self, key: Key<Tube>, now: Time) -> Vec<u8> {
        let tube = self.queue.tube(key);
        let next_ready = self.queue.first_ready(key).map(|job| {
            let age = self.queue.job(job).record.created_at.seconds_until(now);
            (age, self.queue.ready_since(job).until(now))
        });
        let times = tube.times().map(|times| (&times.wait, &times.run));
        TubeMetrics { name: tube.name(), next_ready, times }.document()
    }

    pub(super) fn listed_job(&self, job: Key<Job>, now: Time) -> ListedJob {
        let Job { record, body, .. } = self.queue.job(job);
        ListedJob {
            id: record.id,
            pri: record.pri,
            age: record.created_at.seconds_until(now),
            size: body.len() - CRLF.len(),
            time_left: self.queue.deadline(job).map(|at| now.seconds_until(at)),
        }
    }

    pub(super) fn stats_job(&self, job: Key<Job>, now: Time) -> Vec<u8> {
        let file = self.wal().map_or(0, |wal| wal.segment_of(job));
        let Job { record, tube, .. } = self.queue.job(job);
        JobStats {
            id: record.id,
            tube: self.queue.tube(*tube).name(),
            state: record.state.name(),
            pri: record.pri,
            age: record.created_at.seconds_until(now),
            delay: record.delay,
            ttr: record.ttr,
            time_left: self.queue.deadline(job).map_or(0, |at| now.seconds_until(at)),
            file,
            reserves: record.reserves,
            timeouts: record.timeouts,
            releases: record.releases,
            buries: record.buries,
            kicks: record.kicks,
        }
        .document()
    }

    pub(super) fn stats_tube(&self, key: Key<Tube>, now: Time) -> Vec<u8> {
        let tube = self.queue.tube(key);
        TubeStats {
            name: tube.name(),
            current_jobs_urgent: tube.urgent,
            current_jobs_ready: tube.ready(),
            current_jobs_reserved: tube.reserved,
            current_jobs_delayed: tube.delayed(),
            current_jobs_buried: tube.buried(),
            total_jobs: tube.total_jobs,
            current_using: tube.users,
            current_watching: tube.watchers,
            current_waiting: self.queue.waiting(key),
            cmd_delete: tube.deletes,
            cmd_pause_tube: tube.pauses,
            pause: tube.pause.map_or(0, |pause| pause.seconds),
            pause_time_left: tube.pause.map_or(0, |pause| now.seconds_until(pause.until)),
        }
        .document()
    }
}
