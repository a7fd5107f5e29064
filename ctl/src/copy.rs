//! Puts copies of jobs, each in the state of the copied job; copies of reserved jobs are ready.

use anyhow::{Error, Result};

use crate::address::Address;
use crate::client::{Client, Reply};
use crate::job::{DEFAULT_TTR, Job, State};
use crate::message::{conflict, counted};

/// The copy of a buried job is put with this delay, in seconds, and then buried. The delay is so
/// long that no worker reserves the copy, even if this program is killed before the bury.
const HOLD_SECONDS: u32 = 365 * 24 * 3600;

/// At most this many copies are delayed by [`HOLD_SECONDS`] at the same time. If this program is
/// killed before it has buried these copies, they stay delayed.
const HELD_COPIES_MAX: usize = 100;

/// The largest number of ranges shown in a list of line numbers.
const RANGES_MAX: usize = 20;

/// The result of one copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copied {
    /// The server has confirmed the copy, which has this id.
    Put(u64),
    /// The server refused the copy because the body is too large, so a retry is useless.
    TooLarge,
    /// The copy was not sent, or was refused, for instance because the server is draining.
    Refused,
    /// The connection was lost before the reply, so the copy may exist.
    Unconfirmed,
}

/// The results of a batch of copies.
#[derive(Debug)]
pub(crate) struct Copies {
    /// The result of each job's copy, in the order of the jobs.
    pub(crate) results: Vec<Copied>,
    /// The reason why a copy was refused, not confirmed or not buried.
    pub(crate) failure: Option<Error>,
    /// The ids of copies that may still be delayed, because their burial was not confirmed.
    pub(crate) held: Vec<u64>,
}

impl Copies {
    /// Returns the ids of the confirmed copies.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> {
        self.results.iter().filter_map(|result| match result {
            Copied::Put(id) => Some(*id),
            _ => None,
        })
    }

    /// `items` has one item for each job. Returns the items of those jobs whose result
    /// `is_selected` accepts.
    pub(crate) fn select<'a, T>(
        &'a self,
        items: &'a [T],
        is_selected: impl Fn(Copied) -> bool + 'a,
    ) -> impl Iterator<Item = &'a T> {
        let pairs = items.iter().zip(&self.results);
        pairs.filter(move |(_, result)| is_selected(**result)).map(|(item, _)| item)
    }

    /// Fails if a copy of this batch was not put, or the copy of a buried job was not buried. In
    /// earlier batches, the server has accepted `before` of the `all` jobs.
    pub(crate) fn into_result(self, before: usize, all: usize) -> Result<()> {
        let (accepted, all) = (before + self.ids().count(), counted(all as u64, "job"));
        let open = self.results.iter().filter(|it| **it == Copied::Unconfirmed).count();
        let open = format!(" and did not confirm {open}, which may exist");
        let open = if self.results.contains(&Copied::Unconfirmed) { open } else { String::new() };
        let is_too_large = self.results.contains(&Copied::TooLarge);
        let error = self.failure.or_else(|| {
            let text = "a body is larger than the server accepts (JOB_TOO_BIG)";
            is_too_large.then(|| conflict(text))
        });
        error.map_or(Ok(()), |error| {
            Err(error.context(format!("the server accepted {accepted} of {all}{open}")))
        })
    }

    /// Explains that copies of these jobs may be delayed by `HOLD_SECONDS`, and how to list these
    /// copies. `act` is the command that the text advises, `bury` or, after a move, `delete`.
    pub(crate) fn describe_held(&self, jobs: &[Job], to: &Address, act: &str) -> Option<String> {
        let mut unconfirmed = self.select(jobs, |it| it == Copied::Unconfirmed);
        let unknown = unconfirmed.any(|job| job.state == State::Buried).then(|| "ID...".into());
        let ids = self.held.iter().map(ToString::to_string).chain(unknown);
        let ids = ids.collect::<Vec<_>>().join(" ");
        let (command, days) = (to.command(), HOLD_SECONDS / (24 * 3600));
        (!ids.is_empty()).then(|| {
            format!(
                "copies of buried jobs may be delayed by {days} days instead: list them with \
                 {command} list '*' --due-after 300d, and {act} them with {command} {act} {ids}"
            )
        })
    }

    /// Lists the numbers of the lines that the user must check after an import, in one sentence for
    /// each reason. Also returns the number of the last line that the next import can skip; `None`
    /// if no further import is needed.
    pub(crate) fn describe_lines(&self, numbers: &[usize]) -> (Vec<String>, Option<usize>) {
        let pairs = || numbers.iter().copied().zip(self.results.iter().copied());
        let is_open = |it| matches!(it, Copied::Refused | Copied::Unconfirmed);
        let first = pairs().find(|(_, it)| is_open(*it)).map(|(number, _)| number);
        let list = |is_selected: &dyn Fn(usize, Copied) -> bool| -> Vec<usize> {
            pairs().filter(|(number, it)| is_selected(*number, *it)).map(|(it, _)| it).collect()
        };
        let kinds = [
            ("Too large for the server", list(&|_, it| it == Copied::TooLarge)),
            ("Not put", list(&|_, it| it == Copied::Refused)),
            ("Not confirmed, so their jobs may exist", list(&|_, it| it == Copied::Unconfirmed)),
            // The next import starts at line `first`, and would put jobs of later lines again.
            (
                "Already put: remove these lines, or their jobs will exist twice",
                list(&|number, it| {
                    matches!(it, Copied::Put(_)) && first.is_some_and(|first| number > first)
                }),
            ),
        ];
        let kinds = kinds.into_iter().filter(|(_, lines)| !lines.is_empty());
        let sentences = kinds.map(|(kind, lines)| format!("{kind}: {}.", describe_ranges(&lines)));
        (sentences.collect(), first.map(|first| first - 1))
    }
}

/// Formats line numbers as `lines 3, 5-9`. A long list is truncated.
fn describe_ranges(numbers: &[usize]) -> String {
    let mut shown: Vec<String> = Vec::new();
    let mut left = numbers.len();
    for run in numbers.chunk_by(|one, next| one + 1 == *next).take(RANGES_MAX) {
        left -= run.len();
        match *run {
            [one] => shown.push(one.to_string()),
            [first, .., last] => shown.push(format!("{first}-{last}")),
            [] => {}
        }
    }
    let more = if left > 0 { format!(" and {left} more") } else { String::new() };
    format!("lines {}{more}", shown.join(", "))
}

enum Step<'a> {
    Use(&'a str),
    Put(usize, &'a Job),
}

/// Returns the delay with which the copy of a job is put, in seconds.
fn copy_delay(job: &Job) -> u32 {
    match job.state {
        State::Ready | State::Reserved => 0,
        State::Delayed => u32::try_from(job.time_left).unwrap_or(u32::MAX).max(1),
        State::Buried => HOLD_SECONDS,
    }
}

/// Puts a copy of each job into `tube`; if `tube` is `None`, into the job's own tube. Copies of
/// reserved jobs are ready.
pub(crate) fn put_copies(client: &mut Client, jobs: &[Job], tube: Option<&str>) -> Copies {
    let results = vec![Copied::Refused; jobs.len()];
    let mut copies = Copies { results, failure: None, held: Vec::new() };
    let has_buried = jobs.iter().any(|job| job.state == State::Buried);
    let size = if has_buried { HELD_COPIES_MAX } else { jobs.len().max(1) };
    for (jobs, results) in jobs.chunks(size).zip(copies.results.chunks_mut(size)) {
        let put = pipeline_copies(client, jobs, tube, results);
        // Even after a failure, bury the copies that were put before the failure.
        let buried = bury_copies(client, jobs, results, &mut copies.held);
        copies.failure = put.and(buried).err();
        if copies.failure.is_some() {
            break;
        }
    }
    copies
}

/// Writes a `put` command with its body. The types of the numbers exclude values that the protocol
/// does not allow, because a server would refuse a `put` with such a value, and then read the body
/// as commands.
fn write_put_command(out: &mut Vec<u8>, pri: u32, delay: u32, ttr: u32, body: &[u8]) {
    out.extend(format!("put {pri} {delay} {ttr} {}\r\n", body.len()).into_bytes());
    out.extend_from_slice(body);
    out.extend_from_slice(b"\r\n");
}

/// Puts copies of the jobs by pipelined commands, and stores the result of each copy.
fn pipeline_copies(
    client: &mut Client,
    jobs: &[Job],
    tube: Option<&str>,
    results: &mut [Copied],
) -> Result<()> {
    let mut used = None;
    let steps = jobs.iter().enumerate().flat_map(|(at, job)| {
        let tube = tube.unwrap_or(&job.tube);
        let change = (used != Some(tube)).then_some(Step::Use(tube));
        used = Some(tube);
        change.into_iter().chain([Step::Put(at, job)])
    });
    let mut refusal = None;
    let write = |step: &Step<'_>, out: &mut Vec<u8>| match step {
        Step::Use(tube) => out.extend_from_slice(format!("use {tube}\r\n").as_bytes()),
        Step::Put(_, job) => {
            let body = job.body.as_deref().unwrap_or_default();
            let ttr = u32::try_from(job.ttr.unwrap_or(DEFAULT_TTR)).unwrap_or(u32::MAX);
            write_put_command(out, job.pri, copy_delay(job), ttr, body);
        }
    };
    results.fill(Copied::Unconfirmed);
    let take = |step: Step<'_>, reply: Reply| {
        match (step, reply.word(), reply.number()) {
            (Step::Use(_), "USING", _) => {}
            // The original beanstalkd may store a job, but reply BURIED for lack of memory.
            (Step::Put(at, _), "INSERTED" | "BURIED", Some(id)) => results[at] = Copied::Put(id),
            (Step::Put(at, _), "JOB_TOO_BIG", _) => results[at] = Copied::TooLarge,
            (Step::Use(tube), ..) => return Err(reply.error_for(&format!("use {tube}"))),
            // Go on after a refusal, because the replies to later puts are still due.
            (Step::Put(at, job), ..) => {
                results[at] = Copied::Refused;
                let size = job.size.unwrap_or(0);
                refusal.get_or_insert_with(|| reply.error_for(&format!("a put of {size} bytes")));
            }
        }
        Ok(())
    };
    client.pipeline(steps, write, take)?;
    refusal.map_or(Ok(()), Err)
}

/// Buries the copies of buried jobs. Adds to `held` the ids of copies whose burial is unconfirmed.
fn bury_copies(
    client: &mut Client,
    jobs: &[Job],
    results: &[Copied],
    held: &mut Vec<u64>,
) -> Result<()> {
    let copies = jobs.iter().zip(results).filter(|(job, _)| job.state == State::Buried);
    let copies: Vec<_> = copies
        .filter_map(|(job, result)| match result {
            Copied::Put(id) => Some((*id, job.pri)),
            _ => None,
        })
        .collect();
    if copies.is_empty() {
        return Ok(());
    }
    held.extend(copies.iter().map(|(id, _)| *id));
    // `reserve-job` and `bury` are sent together, so that the copy is never ready.
    let steps = copies.iter().flat_map(|copy| [(copy, "reserve-job"), (copy, "bury")]);
    let line = |((id, pri), word): &(&(u64, u32), &str)| match *word {
        "bury" => format!("bury {id} {pri}"),
        word => format!("{word} {id}"),
    };
    let mut refusal = None;
    client.ask_each(steps, line, |((id, _), _), reply| {
        match reply.word() {
            "RESERVED" => {}
            "BURIED" => held.retain(|other| other != id),
            _ => drop(refusal.get_or_insert_with(|| reply.error_for("bury of a copy"))),
        }
        Ok(())
    })?;
    refusal.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_in_a_row_are_listed_by_their_ends() {
        assert_eq!(describe_ranges(&[3]), "lines 3");
        assert_eq!(describe_ranges(&[3, 5, 6, 7, 9, 10]), "lines 3, 5-7, 9-10");
        let odd: Vec<usize> = (0..30).map(|number| 2 * number).collect();
        let text = describe_ranges(&odd);
        assert!(text.ends_with(", 38 and 10 more"), "{text}");
    }

    #[test]
    fn an_import_continues_before_the_first_line_that_may_be_missing() {
        use Copied::{Put, Refused, TooLarge, Unconfirmed};
        let results = vec![Put(1), TooLarge, Refused, Put(2), Unconfirmed];
        let copies = Copies { results, failure: None, held: vec![] };
        let (sentences, after) = copies.describe_lines(&[11, 12, 14, 15, 16]);
        assert_eq!(after, Some(13));
        for (sentence, end) in
            sentences.iter().zip(["lines 12.", "lines 14.", "lines 16.", "lines 15."])
        {
            assert!(sentence.ends_with(end), "{sentence}");
        }
        let copies = Copies { results: vec![Put(1), TooLarge], failure: None, held: vec![] };
        assert_eq!(copies.describe_lines(&[1, 2]).1, None);
    }
}
