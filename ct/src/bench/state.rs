//! What stands in a daemon while it is measured: backlogs, tubes, and connections that wait.

use std::io;
use std::time::{Duration, Instant};

use super::feeder::Feeder;
use super::op::Priority;
use super::reader::{Body, Kind};
use crate::Prng;

/// How long a daemon may take to be brought into a state.
const LIMIT: Duration = Duration::from_secs(60);
/// The delay of jobs that are to stay delayed, in seconds; up to a thousand more are added.
const DELAY: u32 = 1_000_000;

/// Everything that is there before the load begins, and is still there when it has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Tubes `t0`, `t1`, … with a delayed job each.
    pub tubes: u64,
    /// Connections blocked in `reserve` on a tube without jobs.
    pub blocked: usize,
    /// Connections that watch `default` and do nothing.
    pub idle: usize,
    /// Ready jobs in a tube nobody reserves from.
    pub apart: u64,
    /// Ready jobs in `default`.
    pub ready: u64,
    /// Delayed jobs in `default`.
    pub delayed: u64,
    /// Buried jobs in `default`.
    pub buried: u64,
    /// The priority of the jobs in `default`.
    pub priority: Priority,
    /// Bytes of each job.
    pub body: usize,
}

impl Default for State {
    fn default() -> Self {
        Self {
            tubes: 0,
            blocked: 0,
            idle: 0,
            apart: 0,
            ready: 0,
            delayed: 0,
            buried: 0,
            priority: Priority::Fixed(10),
            body: 64,
        }
    }
}

impl State {
    /// Brings an empty daemon into this state; the connections returned belong to it.
    ///
    /// An error if that takes longer than a minute.
    pub fn build(&self, address: &str, progress: &mut dyn FnMut(&str)) -> io::Result<Vec<Feeder>> {
        let mut feeder = Feeder::connect(address, Body::plain(self.body))?;
        feeder.set_deadline(Instant::now() + LIMIT);
        self.fill_tubes(&mut feeder, progress)?;
        self.fill_default(&mut feeder, progress)?;
        self.gather(address, progress)
    }

    fn fill_tubes(&self, feeder: &mut Feeder, progress: &mut dyn FnMut(&str)) -> io::Result<()> {
        if self.tubes > 0 {
            progress(&format!("{} tubes with a delayed job", self.tubes));
        }
        for tube in 0..self.tubes {
            feeder.command(&format!("use t{tube}\r\n"), Kind::Using)?;
            feeder.put(1, |_| (10, delay(tube)))?;
        }
        if self.apart > 0 {
            progress(&format!("{} ready jobs elsewhere", self.apart));
            feeder.command("use elsewhere\r\n", Kind::Using)?;
            feeder.put(self.apart, |_| (10, 0))?;
        }
        feeder.command("use default\r\n", Kind::Using)
    }

    fn fill_default(&self, feeder: &mut Feeder, progress: &mut dyn FnMut(&str)) -> io::Result<()> {
        let mut prng = Prng::new(7);
        let priority = self.priority;
        if self.buried > 0 {
            progress(&format!("{} buried jobs", self.buried));
            feeder.put(self.buried, |_| (priority.choose(&mut prng), 0))?;
            feeder.bury(self.buried)?;
        }
        if self.delayed > 0 {
            progress(&format!("{} delayed jobs", self.delayed));
            feeder.put(self.delayed, |number| (priority.choose(&mut prng), delay(number)))?;
        }
        if self.ready > 0 {
            progress(&format!("{} ready jobs", self.ready));
            feeder.put(self.ready, |_| (priority.choose(&mut prng), 0))?;
        }
        Ok(())
    }

    fn gather(&self, address: &str, progress: &mut dyn FnMut(&str)) -> io::Result<Vec<Feeder>> {
        let mut bystanders = Vec::new();
        if self.blocked + self.idle > 0 {
            progress(&format!("{} connections that wait", self.blocked + self.idle));
        }
        for number in 0..self.blocked + self.idle {
            let mut bystander = Feeder::connect(address, Body::plain(self.body))?;
            if number < self.blocked {
                bystander.enter("blocked")?;
                bystander.send_unanswered("reserve\r\n")?;
            } else {
                bystander.command("watch default\r\n", Kind::Watching)?;
            }
            bystanders.push(bystander);
        }
        Ok(bystanders)
    }
}

/// Spreads deadlines over a quarter of an hour, as real ones are.
fn delay(number: u64) -> u32 {
    DELAY + u32::try_from(number % 1_000).expect("below 1,000")
}
