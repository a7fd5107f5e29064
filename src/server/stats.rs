//! The bodies of the replies to `stats`, `stats-job`, `stats-tube` and `capabilities`, as YAML.

use super::Server;
use crate::{
    clock::Time,
    collections::Key,
    proto::{
        CRLF, Capabilities, JobStats, LINE_LIMIT, ListedJob, NAME_LIMIT, ServerStats, TubeStats,
    },
    queue::{Job, State, Tube},
};

/// The commands that the original does not know.
const EXTENSIONS: [&str; 4] = ["capabilities", "list-jobs", "delete-tube", "drain"];

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

    pub(super) fn listed_job(&self, job: Key<Job>, now: Time) -> ListedJob {
        let Job { record, body, .. } = self.queue.job(job);
        let is_timed = matches!(record.state, State::Reserved(_) | State::Delayed);
        ListedJob {
            id: record.id,
            pri: record.pri,
            age: record.created_at.seconds_until(now),
            size: body.len() - CRLF.len(),
            time_left: is_timed.then(|| now.seconds_until(record.deadline_at)),
        }
    }

    pub(super) fn stats_job(&self, job: Key<Job>, now: Time) -> Vec<u8> {
        let file = self.wal().map_or(0, |wal| wal.segment_of(job));
        let Job { record, tube, .. } = self.queue.job(job);
        let time_left = match record.state {
            State::Reserved(_) | State::Delayed => now.seconds_until(record.deadline_at),
            State::Ready | State::Buried => 0,
        };
        JobStats {
            id: record.id,
            tube: self.queue.tube(*tube).name(),
            state: record.state.name(),
            pri: record.pri,
            age: record.created_at.seconds_until(now),
            delay: record.delay,
            ttr: record.ttr,
            time_left,
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
