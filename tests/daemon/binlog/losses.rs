//! With `--bury-after`, a job that crashes its workers is buried, and no other job is, even if the
//! daemon is killed in between.

use std::collections::BTreeMap;

use ct::{Daemon, Prng, eventually};

use crate::harness::{Folder, OURS, Peer, end};

const LOSSES: u32 = 3;
const WORKERS: usize = 100;
const JOBS: u64 = 200;

/// A worker crashes on each tenth job.
const POISON_EACH: u64 = 10;
const POISON: usize = (JOBS / POISON_EACH) as usize;

/// The number of kills, and the number of workers' steps before each.
const KILLS: u32 = 8;
const STEPS_PER_KILL: u32 = 300;

/// More steps than this are never needed.
const STEPS_MAX: u32 = 100_000;

/// A worker, and the job that it holds.
type Worker = (Peer, Option<u64>);

fn start(folder: &Folder, flags: &[&str]) -> (Daemon, Vec<Worker>) {
    // Small segments are compacted all the time.
    let daemon = folder.serve(OURS, &[&["-F", "-s", "16384"], flags].concat());
    let workers = (0..WORKERS).map(|_| (Peer::of(&daemon), None)).collect();
    (daemon, workers)
}

/// Works until all jobs are deleted or buried, and returns how often each job was lost, by a worker
/// or in a kill.
fn work(folder: &Folder, flags: &[&str]) -> BTreeMap<u64, u32> {
    let mut prng = Prng::new(1);
    let (mut daemon, mut workers) = start(folder, flags);
    for _ in 0..JOBS {
        workers[0].0.put(0, 0, b"x");
    }
    let (mut losses, mut since_start) = (BTreeMap::new(), BTreeMap::<u64, u32>::new());
    let mut deleted = 0;
    for step in 1..STEPS_MAX {
        if step % STEPS_PER_KILL == 0 && step / STEPS_PER_KILL <= KILLS {
            for id in workers.iter().filter_map(|&(_, held)| held) {
                *losses.entry(id).or_default() += 1;
            }
            end(daemon, libc::SIGKILL);
            (daemon, workers) = start(folder, flags);
            since_start.clear();
        }
        let number = usize::try_from(prng.below(WORKERS as u64)).expect("below a usize");
        let (worker, held) = &mut workers[number];
        let Some(id) = held.take() else {
            *held = worker.reserve_now();
            let lost = held.and_then(|id| since_start.get(&id)).copied().unwrap_or_default();
            assert!(flags.is_empty() || lost < LOSSES, "{held:?} is reserved once too often");
            if held.is_none() && deleted == JOBS - POISON as u64 {
                let has_left = worker.count("stats", "current-jobs-buried") == POISON;
                if has_left || flags.is_empty() && losses.values().all(|&lost| lost > LOSSES) {
                    break;
                }
            }
            continue;
        };
        if id % POISON_EACH == 0 {
            *losses.entry(id).or_default() += 1;
            *since_start.entry(id).or_default() += 1;
            *worker = Peer::of(&daemon);
        } else if prng.chance(1, 2) {
            worker.tell(&format!("release {id} 0 0"), "RELEASED");
        } else {
            worker.tell(&format!("delete {id}"), "DELETED");
            deleted += 1;
        }
    }
    end(daemon, libc::SIGKILL);
    losses
}

/// One job that crashes its workers would crash all workers, again and again.
#[test]
fn jobs_that_crash_their_workers_end_buried_and_no_others() {
    for flags in [&[][..], &["--bury-after", "3"]] {
        let folder = Folder::new();
        let losses = work(&folder, flags);
        let daemon = folder.serve(OURS, flags);
        let left = Peer::of(&daemon).look_through(1..JOBS + 1);
        let poison: Vec<u64> = (1..=JOBS).filter(|id| id % POISON_EACH == 0).collect();
        assert_eq!(left.keys().copied().collect::<Vec<_>>(), poison);
        let state = if flags.is_empty() { "ready" } else { "buried" };
        for (id, seen) in left {
            assert_eq!(seen.text("state"), state, "{id}: {seen:?}");
            assert!(losses[&id] >= LOSSES, "{id} was lost {} times", losses[&id]);
        }
    }
}

/// A job that crashes its workers would never be buried if the daemon is often killed, and a job
/// that is reserved only at kills would be.
#[test]
fn a_kill_forgets_no_loss_and_is_none() {
    const MOST: u32 = 4;
    let folder = Folder::new();
    // Jobs are written again all the time, reserved ones as well.
    let flags = ["-F", "-s", "4096", "--bury-after", &MOST.to_string()];
    let mut ids = Vec::new();
    for losses in 0..=MOST {
        let daemon = folder.serve(OURS, &flags);
        let mut client = Peer::of(&daemon);
        if ids.is_empty() {
            // One job's time to run ends, and the other job's worker disconnects.
            for ttr in [1, 600] {
                let reply = client.0.put(0, 0, ttr, b"x").expect("a reply");
                ids.push(reply.replace("INSERTED ", "").parse().expect("an id"));
            }
        }
        let state = if losses == MOST { "buried" } else { "ready" };
        for &id in &ids {
            let seen = client.look(id).expect("a job");
            assert_eq!((seen.text("state"), seen.number("reserves")), (state, losses), "{seen:?}");
        }
        if losses < MOST {
            let mut workers = [Peer::of(&daemon), Peer::of(&daemon)];
            workers.iter_mut().zip(&ids).for_each(|(worker, &id)| drop(worker.take(id)));
            let [_slow, crashed] = workers;
            drop(crashed);
            eventually("they are lost", || {
                let seen = ids.iter().map(|&id| client.look(id).expect("a job"));
                seen.map(|it| it.text("state").to_owned()).all(|it| it != "reserved")
            });
        }
        if losses + 1 < MOST {
            let before = client.look(ids[1]).expect("a job").file;
            client.take(ids[1]);
            while client.look(ids[1]).expect("a job").file == before {
                let id = client.put(9, 0, &[b'x'; 1000]);
                client.tell(&format!("delete {id}"), "DELETED");
            }
        }
        end(daemon, libc::SIGKILL);
    }
}
