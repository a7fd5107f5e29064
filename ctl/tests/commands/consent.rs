//! Acts whose jobs other clients change between the question and the answer. An act must change
//! only jobs that its question named, and report each named job that it did not change.
//!
//! `ROUNDS=n cargo test -p beanstalkctl --test commands consent` makes n rounds on each daemon,
//! from the round `FROM` on. A failing round prints its number, the seed of all its choices.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use ct::Prng;
use serde_json::{Value, json};

use crate::harness::page::Page;
use crate::harness::{PROGRAM, Server, bury, has_tool, programs, put};

/// Numbers of jobs below and above each limit. Small numbers occur more often, to be chosen more.
const COUNTS: [usize; 12] = [1, 3, 20, 150, 150, 300, 300, 500, 9_999, 9_999, 10_001, 100_001];

/// The acts of the command and of the page, each with the states in which it changes jobs.
const ACTS: [(&str, &[&str]); 9] = [
    ("clear a", &["ready", "delayed", "buried"]),
    ("clear a --save", &["ready", "delayed", "buried"]),
    ("move a b", &["ready", "delayed", "buried"]),
    ("delete", &["ready", "delayed", "buried"]),
    ("page delete", &["ready", "delayed", "buried"]),
    ("page move", &["ready", "delayed", "buried"]),
    ("page kick", &["delayed", "buried"]),
    ("page bury", &["ready", "delayed"]),
    // The released jobs are delayed afterwards, so jobs that are delayed already are left out.
    ("page release", &["ready", "buried"]),
];

/// The largest number of jobs for [`Choice::Ids`] and [`Choice::First`].
const CHOSEN_MAX: usize = 500;

/// How the jobs of an act are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// All jobs in some states.
    States,
    /// Some jobs in these states, by their ids.
    Ids,
    /// The first jobs in one state.
    First,
}

/// The states of jobs by their ids.
type States = BTreeMap<u64, String>;

/// The report of an act: the numbers of jobs that the act changed, and that it left unchanged.
#[derive(Debug, Default, PartialEq, Eq)]
struct Report {
    taken: usize,
    left: usize,
}

/// Finds the first of these words in the text, and returns the number before or after the word.
fn number(text: &str, words: &[&str], is_before: bool) -> Option<usize> {
    let (before, after) = words.iter().find_map(|word| text.split_once(word))?;
    let digits = if is_before { before.rsplit(' ').next()? } else { after.split(' ').next()? };
    digits.parse().ok()
}

impl Report {
    /// Reads the report in the output of a command or in the page's answer.
    fn read(text: &str) -> Self {
        let words = ["jobs deleted (", "job deleted (", "jobs moved (", "job moved ("];
        let words = words.map(|word| format!(" {word}"));
        let taken = number(text, &words.each_ref().map(String::as_str), true).unwrap_or(0);
        let words = ["or deleted them: ", "or they timed out: "];
        Self { taken, left: number(text, &words, false).unwrap_or(0) }
    }
}

fn choose<T: Copy>(all: &[T], prng: &mut Prng) -> T {
    all[usize::try_from(prng.below(all.len() as u64)).unwrap()]
}

/// Returns the states of all jobs of a server.
fn states(server: &Server) -> States {
    let of = |job: &Value| (job["id"].as_u64().unwrap(), job["state"].as_str().unwrap().to_owned());
    server.objects(&["list", "*"]).iter().map(of).collect()
}

/// Fills the tube with jobs of all states, with the ids from 1 on.
fn fill(server: &Server, count: usize, prng: &mut Prng) -> States {
    let (mut lines, mut states) = (String::new(), States::new());
    for id in 1..=count as u64 {
        let state = choose(&["ready", "ready", "delayed", "buried"], prng);
        let left = if state == "delayed" { ",\"time-left\":5000" } else { "" };
        writeln!(lines, "{{\"tube\":\"a\",\"body\":\"x\",\"state\":\"{state}\"{left}}}").unwrap();
        states.insert(id, state.to_owned());
    }
    let ran = server.run_with(lines.as_bytes(), &["import"]);
    assert!(ran.status.success(), "{ran:?}");
    states
}

/// Changes random jobs in each way that other clients can, and returns the states afterwards.
fn disturb(client: &mut ct::Client, jobs: &States, prng: &mut Prng) -> States {
    let mut jobs = jobs.clone();
    let last = *jobs.keys().next_back().unwrap();
    for _ in 0..prng.below(150) {
        let id = 1 + prng.below(last);
        let Some(state) = jobs.get(&id).cloned() else { continue };
        match prng.below(6) {
            0 if state == "delayed" || state == "buried" => {
                assert_eq!(client.command(&format!("kick-job {id}")).unwrap(), "KICKED");
                jobs.insert(id, "ready".into());
            }
            1 if state != "reserved" => {
                assert_eq!(client.command(&format!("delete {id}")).unwrap(), "DELETED");
                jobs.remove(&id);
            }
            2 if state != "reserved" => {
                bury(client, id);
                jobs.insert(id, "buried".into());
            }
            3 if state != "reserved" => {
                client.with_body(&format!("reserve-job {id}")).unwrap();
                jobs.insert(id, "reserved".into());
            }
            4 if state != "reserved" => {
                client.with_body(&format!("reserve-job {id}")).unwrap();
                assert_eq!(client.command(&format!("release {id} 3 4000")).unwrap(), "RELEASED");
                jobs.insert(id, "delayed".into());
            }
            5 => {
                let id = put(client, "a", 5, 0, b"new");
                jobs.insert(id, "ready".into());
                if prng.below(2) == 0 {
                    bury(client, id);
                    jobs.insert(id, "buried".into());
                }
            }
            _ => {}
        }
    }
    jobs
}

/// Runs a command on a terminal, calls `meanwhile` while its question is open, and answers yes.
fn answer_command(address: &str, arguments: &str, meanwhile: impl FnOnce()) -> String {
    let mut script = Command::new("script");
    let command = format!("{PROGRAM} --server {address} {arguments}");
    script.args(["-qec", &command, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = script.spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut text = String::new();
    let mut read = |until: &str| {
        let mut buffer = [0; 4096];
        while until.is_empty() || !text.contains(until) {
            let count = stdout.read(&mut buffer).unwrap();
            if count == 0 {
                break;
            }
            text += &String::from_utf8_lossy(&buffer[..count]);
        }
    };
    read("[y/N] ");
    meanwhile();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"y\n").unwrap();
    read("");
    drop(stdin);
    child.wait().unwrap();
    text
}

/// What happens in a round.
#[derive(Debug)]
struct Round {
    number: u64,
    count: usize,
    act: &'static str,
    choice: Choice,
    /// The states of the chosen jobs.
    chosen: Vec<&'static str>,
    is_restarted: bool,
    is_durable: bool,
    /// The ids of the jobs that the question names; empty before `name` chooses the jobs.
    named: Vec<u64>,
}

impl Round {
    fn choose(number: u64, prng: &mut Prng) -> Self {
        // A round with the largest number of jobs takes seconds.
        let choices = if env::var_os("ROUNDS").is_some() { COUNTS.len() } else { COUNTS.len() - 1 };
        let count = choose(&COUNTS[..choices], prng);
        let (act, accepted) = choose(&ACTS, prng);
        let (is_restarted, is_durable) = (prng.below(6) == 0, prng.below(2) == 0);
        let chosen: Vec<_> = accepted.iter().filter(|_| prng.below(3) > 0).copied().collect();
        let mut chosen = if chosen.is_empty() { accepted.to_vec() } else { chosen };
        let mut choice = choose(&[Choice::States, Choice::Ids, Choice::First], prng);
        if act == "delete" {
            choice = Choice::Ids;
        } else if !act.starts_with("page ") || choice == Choice::First && count > CHOSEN_MAX {
            choice = Choice::States;
        }
        if choice == Choice::First {
            chosen.truncate(1);
        }
        Self { number, count, act, choice, chosen, is_restarted, is_durable, named: Vec::new() }
    }

    fn name(&mut self, jobs: &States, prng: &mut Prng) {
        let named = jobs.iter().filter(|(_, it)| self.chosen.contains(&it.as_str()));
        self.named = named.map(|(id, _)| *id).collect();
        if self.choice == Choice::Ids {
            let share = 1 + (self.named.len() / CHOSEN_MAX) as u64;
            self.named.retain(|_| prng.below(2 * share) == 0);
            self.named.truncate(CHOSEN_MAX);
        } else if self.choice == Choice::First {
            self.named.truncate(usize::try_from(1 + prng.below(self.count as u64)).unwrap());
        }
    }

    fn ids(&self) -> Vec<String> {
        self.named.iter().map(ToString::to_string).collect()
    }

    /// Sends the act to the page, and calls `meanwhile` before it answers the page's question.
    fn act_by_page(&self, address: &str, verb: &str, meanwhile: impl FnOnce()) -> Report {
        let page = Page::start(address, &[]);
        let Self { number, chosen, named, .. } = self;
        let jobs = match self.choice {
            Choice::States => json!({ "tube": "a", "states": chosen }),
            Choice::Ids => json!({ "ids": self.ids() }),
            Choice::First => json!({ "tube": "a", "states": chosen, "count": named.len() }),
        };
        let mut what = json!({ "act": verb, "jobs": jobs });
        match verb {
            "move" => what["into"] = "b".into(),
            "release" => what["delay"] = 3_000.into(),
            _ => {}
        }
        let told = page.dry(&what);
        assert_eq!(told["count"], named.len(), "round {number}: {told}");
        meanwhile();
        if self.is_restarted {
            let answer = page.answer(&told);
            assert_eq!(answer.status, 409, "round {number}: {}", answer.text());
            return Report { taken: 0, left: named.len() };
        }
        let done = page.agree(&told);
        let taken = usize::try_from(done["count"].as_u64().unwrap()).unwrap();
        Report { taken, ..Report::read(&done["notes"].to_string()) }
    }

    /// Runs the act as a command, and calls `meanwhile` before it answers the command's question.
    fn act_by_command(&self, address: &str, file: &str, meanwhile: impl FnOnce()) -> Report {
        let act = self.act.replace("--save", &format!("--save {file}"));
        let arguments = match self.choice {
            Choice::Ids => format!("{act} {}", self.ids().join(" ")),
            _ => format!("{act} --state {}", self.chosen.join(",")),
        };
        let text = answer_command(address, &arguments, meanwhile);
        let count = self.named.len();
        assert!(text.contains(&format!(" {count} job")), "round {}: {text}", self.number);
        let report = Report::read(&text);
        if self.is_restarted { Report { left: count, ..report } } else { report }
    }
}

/// Restarts a server, and puts new jobs if it has no binlog. Returns the states afterwards.
fn restart(server: &mut Server, flags: &[&str]) -> States {
    server.restart(flags);
    if flags.is_empty() {
        let mut client = server.client();
        for _ in 0..5 {
            put(&mut client, "a", 5, 0, b"x");
        }
    }
    states(server)
}

/// Plays a round on a daemon. The number of the round is the seed of all choices.
fn play(program: &Path, number: u64) {
    let prng = &mut Prng::new(number);
    let mut round = Round::choose(number, prng);
    eprintln!("{round:?}");

    let folder = tempfile::tempdir().unwrap();
    let flags = ["-b", folder.path().to_str().unwrap()];
    let flags = if round.is_durable { &flags[..] } else { &[] };
    let mut server = Server::tcp(program, flags);
    let mut expected = fill(&server, round.count, prng);
    round.name(&expected, prng);
    if round.named.is_empty() {
        return;
    }
    let (file, address, mut client) =
        (server.file("saved"), server.address.clone(), server.client());
    let meanwhile = || {
        expected = if round.is_restarted {
            restart(&mut server, flags)
        } else {
            disturb(&mut client, &expected, prng)
        };
    };
    let report = match round.act.strip_prefix("page ") {
        Some(verb) => round.act_by_page(&address, verb, meanwhile),
        None => round.act_by_command(&address, &file, meanwhile),
    };
    let named = &round.named;
    // The act has changed each job whose state differs from the expected one.
    let after = states(&server);
    let changed = expected.iter().filter(|(id, state)| after.get(id) != Some(state));
    let changed: Vec<u64> = changed.map(|(id, _)| *id).collect();
    let unnamed: Vec<_> = changed.iter().filter(|id| named.binary_search(id).is_err()).collect();
    assert!(unnamed.is_empty(), "round {number}: taken, but not named: {unnamed:?}");
    let found = Report { taken: changed.len(), left: named.len() - changed.len() };
    assert_eq!(report, found, "round {number}: reported, and found");
}

#[test]
fn acts_change_what_their_questions_named() {
    if !has_tool("script", "--version") {
        return;
    }
    let number = |name: &str, default: u64| {
        env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let (first, count) = (number("FROM", 0), number("ROUNDS", 12));
    thread::scope(|scope| {
        for program in programs() {
            scope.spawn(move || (first..first + count).for_each(|round| play(&program, round)));
        }
    });
}
