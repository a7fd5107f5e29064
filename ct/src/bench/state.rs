//! The state of a daemon while it is measured: backlogs, tubes, and background connections.

use std::io;
use std::time::{Duration, Instant};

use super::op::Priority;
use super::reader::{Body, Kind};
use super::setup::SetupClient;
use crate::Prng;

/// Time limit for bringing a daemon into a state.
const BUILD_TIMEOUT: Duration = Duration::from_secs(60);
/// The shortest delay, in seconds, of jobs that must stay delayed during all measurements.
const DELAY_SECONDS: u32 = 1_000_000;

/// The tubes, jobs and connections that exist before the load begins and after the load has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The number of tubes `t0`, `t1`, … with a delayed job each.
    pub tubes: u64,
    /// The number of connections that wait in `reserve` and watch a tube without jobs.
    pub blocked: usize,
    /// The number of connections that watch `default` and send nothing more.
    pub idle: usize,
    /// The number of ready jobs in a tube that no client watches.
    pub ready_elsewhere: u64,
    /// The number of ready jobs, all in `default` unless `ready_tubes` is above 1.
    pub ready: u64,
    /// The number of tubes over which the ready jobs are spread; 1 means `default` alone.
    pub ready_tubes: u64,
    /// The number of delayed jobs in `default`.
    pub delayed: u64,
    /// The number of buried jobs in `default`.
    pub buried: u64,
    /// The priority of the jobs in `default`.
    pub priority: Priority,
    /// Bytes of each job's body.
    pub body: usize,
}

impl Default for State {
    /// Returns the state of an empty daemon. Jobs that are put into it later get the usual priority
    /// and body.
    fn default() -> Self {
        Self {
            tubes: 0,
            blocked: 0,
            idle: 0,
            ready_elsewhere: 0,
            ready: 0,
            ready_tubes: 1,
            delayed: 0,
            buried: 0,
            priority: Priority::Fixed(10),
            body: 64,
        }
    }
}

impl State {
    /// Brings an empty daemon into this state; returns the blocked and the idle connections.
    ///
    /// Fails if putting the jobs takes longer than a minute.
    pub fn build(
        &self,
        address: &str,
        progress: &mut dyn FnMut(&str),
    ) -> io::Result<Vec<SetupClient>> {
        let mut client = SetupClient::connect(address, Body::plain(self.body))?;
        client.set_deadline(Instant::now() + BUILD_TIMEOUT);
        self.fill_tubes(&mut client, progress)?;
        self.fill_default(&mut client, progress)?;
        self.connect_background(address, progress)
    }

    /// Puts the state's jobs that belong in tubes other than `default`.
    fn fill_tubes(
        &self,
        client: &mut SetupClient,
        progress: &mut dyn FnMut(&str),
    ) -> io::Result<()> {
        if self.tubes > 0 {
            progress(&format!("{} tubes with a delayed job", self.tubes));
        }
        for tube in 0..self.tubes {
            client.command(&format!("use t{tube}\r\n"), Kind::Using)?;
            client.put(1, |_| (10, delay(tube)))?;
        }
        if self.ready_elsewhere > 0 {
            progress(&format!("{} ready jobs in another tube", self.ready_elsewhere));
            client.command("use elsewhere\r\n", Kind::Using)?;
            client.put(self.ready_elsewhere, |_| (10, 0))?;
        }
        client.command("use default\r\n", Kind::Using)
    }

    /// Puts the buried, delayed and ready jobs of this state into the default tube.
    fn fill_default(
        &self,
        client: &mut SetupClient,
        progress: &mut dyn FnMut(&str),
    ) -> io::Result<()> {
        let mut prng = Prng::new(7);
        let priority = self.priority;
        if self.buried > 0 {
            progress(&format!("{} buried jobs", self.buried));
            client.put(self.buried, |_| (priority.choose(&mut prng), 0))?;
            client.bury(self.buried)?;
        }
        if self.delayed > 0 {
            progress(&format!("{} delayed jobs", self.delayed));
            client.put(self.delayed, |number| (priority.choose(&mut prng), delay(number)))?;
        }
        if self.ready > 0 {
            progress(&format!("{} ready jobs", self.ready));
            client
                .put_in_turn(self.ready, self.ready_tubes, |_| (priority.choose(&mut prng), 0))?;
        }
        Ok(())
    }

    /// Connects the state's background connections: blocked and idle ones.
    fn connect_background(
        &self,
        address: &str,
        progress: &mut dyn FnMut(&str),
    ) -> io::Result<Vec<SetupClient>> {
        let mut background = Vec::new();
        if self.blocked + self.idle > 0 {
            progress(&format!("{} blocked or idle connections", self.blocked + self.idle));
        }
        for number in 0..self.blocked + self.idle {
            let mut client = SetupClient::connect(address, Body::plain(self.body))?;
            if number < self.blocked {
                client.switch_to_tube("blocked")?;
                client.send_unanswered("reserve\r\n")?;
            } else {
                client.command("watch default\r\n", Kind::Watching)?;
            }
            background.push(client);
        }
        Ok(background)
    }
}

/// Returns the delay of a backlog's job in seconds; the delays spread the deadlines of jobs over
/// 1,000 seconds.
fn delay(number: u64) -> u32 {
    DELAY_SECONDS + u32::try_from(number % 1_000).expect("below 1,000")
}
