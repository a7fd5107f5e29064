//! A command of `work` must end when the reservation of its job ends, or when `work` itself ends.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ct::Client;

use crate::harness::played::{Heard, Played};
use crate::harness::{PROGRAM, Ran, Server, bury, ours, programs, put, send_signal, state};

/// A server with a job, and a worker with a command that runs until it is ended.
struct Leased {
    _server: Server,
    other: Client,
    id: u64,
    child: Option<Child>,
    /// The path of a file that grows while the command runs.
    file: String,
}

impl Leased {
    fn begin(server: Server, ttr: u32, arguments: &[&str], script: &str) -> Self {
        let mut other = server.client();
        other.command("use a").unwrap();
        let reply = other.put(5, 0, ttr, b"x").unwrap();
        let id = reply.strip_prefix("INSERTED ").unwrap().parse().unwrap();
        let file = server.file("runs");
        let script =
            format!("{script}\necho $$ > {file}.pid; while :; do echo >> {file}; sleep 0.02; done");
        let arguments = [&["work", "a"], arguments, &["--", "sh", "-c", &script]].concat();
        let child = Some(server.command(&arguments).spawn().unwrap());
        ct::eventually("the command runs", || Path::new(&file).exists());
        Self { _server: server, other, id, child, file }
    }

    fn child(&self) -> &Child {
        self.child.as_ref().unwrap()
    }

    /// Whether the command still runs: whether its file grows within two seconds.
    fn runs(&self) -> bool {
        let size = || fs::metadata(&self.file).unwrap().len();
        let before = size();
        (0..6).any(|_| {
            std::thread::sleep(Duration::from_millis(300));
            size() > before
        })
    }

    /// Makes the command exit with success, and checks that its job is deleted.
    fn succeed(&mut self) {
        let ran = self.end_by_trap();
        assert!(ran.status.success(), "{ran:?}");
        assert_eq!(state(&mut self.other, self.id), None, "its job is deleted");
    }

    fn end_by_trap(&mut self) -> Ran {
        let kill = format!("kill -USR2 $(cat {}.pid)", self.file);
        assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        self.end()
    }

    fn end(&mut self) -> Ran {
        Ran::of(self.child.take().unwrap().wait_with_output().unwrap())
    }
}

/// Runs `act` for this daemon and for the original at the same time, because `act` waits longer
/// than it computes.
fn each_program(act: impl Fn(&Path) + Sync) {
    let (act, programs) = (&act, programs());
    std::thread::scope(|scope| {
        for program in &programs {
            scope.spawn(move || act(program));
        }
    });
}

/// If the command outlived `work`, the next worker's command would run at the same time.
#[test]
fn the_command_ends_with_its_worker_whatever_ends_that() {
    for signal in ["QUIT", "ABRT", "USR1", "KILL"] {
        let mut leased = Leased::begin(Server::tcp(&ours(), &[]), 120, &[], "");
        send_signal(leased.child(), signal);
        leased.end();
        assert!(!leased.runs(), "{signal}");
        let id = leased.id;
        ct::eventually("it is ready", || state(&mut leased.other, id).as_deref() == Some("ready"));
    }
}

/// Ctrl-\ must end all processes that the command started, as a second Ctrl-C does.
#[test]
fn sigquit_ends_the_whole_group() {
    let file_loop = "(while :; do echo >> $0; sleep 0.02; done) & sleep 1000";
    let server = Server::tcp(&ours(), &[]);
    server.must(&["put", "a", "x"]);
    let file = server.file("inner");
    let arguments = ["work", "a", "--", "sh", "-c", file_loop, &file];
    let mut child = server.command(&arguments).spawn().unwrap();
    ct::eventually("it runs", || Path::new(&file).exists());
    send_signal(&child, "QUIT");
    child.wait().unwrap();
    let size = || fs::metadata(&file).unwrap().len();
    let before = size();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(size(), before);
}

/// A suspended worker does not touch its job, so its command must be suspended too, and end if the
/// job times out. The original may not notice the timeout, and then the job is still reserved.
#[test]
fn ctrl_z_stops_the_command_and_a_job_lost_meanwhile_ends_it() {
    each_program(|program| {
        let stop = "trap 'exit 0' USR2";
        let mut leased = Leased::begin(Server::tcp(program, &[]), 4, &["--count", "1"], stop);
        send_signal(leased.child(), "TSTP");
        let began = Instant::now();
        ct::eventually("it stops", || !leased.runs());
        let (other, id) = (&mut leased.other, leased.id);
        ct::eventually("its time is over", || {
            let is_noticed = state(other, id).as_deref() == Some("ready");
            is_noticed || program != ours() && began.elapsed() > Duration::from_secs(6)
        });
        assert!(!leased.runs());
        let is_lost = state(&mut leased.other, id).as_deref() == Some("ready");
        send_signal(leased.child(), "CONT");
        if !is_lost {
            ct::eventually("it goes on", || leased.runs());
            assert_eq!(state(&mut leased.other, id).as_deref(), Some("reserved"));
            leased.succeed();
            return;
        }
        let ran = leased.end();
        let lost = format!("job {id}: it has timed out, so another worker may have it: ending its");
        assert!(ran.stderr.contains(&lost), "{ran:?}");
        assert!(!leased.runs());
        assert_eq!(state(&mut leased.other, id).as_deref(), Some("ready"), "it is left alone");
    });
}

/// After a suspension shorter than the time to run, the command must continue and keep its job.
#[test]
fn ctrl_z_for_a_moment_loses_nothing() {
    each_program(|program| {
        let stop = "trap 'exit 0' USR2";
        let mut leased = Leased::begin(Server::tcp(program, &[]), 60, &["--count", "1"], stop);
        send_signal(leased.child(), "TSTP");
        ct::eventually("it stops", || !leased.runs());
        assert_eq!(state(&mut leased.other, leased.id).as_deref(), Some("reserved"));
        send_signal(leased.child(), "CONT");
        ct::eventually("it goes on", || leased.runs());
        leased.succeed();
    });
}

/// Suspends a worker, but not its command, until the job has timed out.
fn lose(leased: &mut Leased) {
    send_signal(leased.child(), "STOP");
    let (other, id) = (&mut leased.other, leased.id);
    ct::eventually("it times out", || state(other, id).as_deref() == Some("ready"));
    send_signal(leased.child(), "CONT");
}

/// A worker that was suspended during a reserve may read the reply after the job has timed out.
#[test]
fn no_command_is_started_for_a_job_that_timed_out_before() {
    let server = Server::tcp(&ours(), &[]);
    let [runs, errors] = ["runs", "errors"].map(|name| server.file(name));
    let mut worker = server.command(&["work", "a", "--", "touch", &runs]);
    let mut child = worker.stderr(fs::File::create(&errors).unwrap()).spawn().unwrap();
    ct::eventually("it waits", || server.objects(&["stats"])[0]["current-waiting"] == 1);
    send_signal(&child, "STOP");
    let stat = format!("/proc/{}/stat", child.id());
    ct::eventually("it is suspended", || {
        fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") T "))
    });
    let mut other = server.client();
    other.command("use a").unwrap();
    let id = other.put(5, 0, 1, b"x").unwrap().strip_prefix("INSERTED ").unwrap().parse().unwrap();
    ct::eventually("it times out", || server.objects(&["stats"])[0]["job-timeouts"] == 1);
    bury(&mut other, id);
    send_signal(&child, "CONT");
    ct::eventually("it is left alone", || {
        assert!(!Path::new(&runs).exists(), "it is not ours");
        let text = fs::read_to_string(&errors).unwrap();
        text.contains(&format!("job {id}: it has timed out, so another worker may have it"))
    });
    send_signal(&child, "TERM");
    child.wait().unwrap();
    assert!(!Path::new(&runs).exists());
}

/// A server may hang for longer than a reservation or `--timeout`. The played server answers a
/// touch only after the command has ended, so a command that waits for the answer would hang.
#[test]
fn a_command_is_ended_in_time_although_the_server_hangs() {
    for (arguments, text) in [
        (&[][..], "job 7: it has timed out, so another worker may have it: ending its command"),
        (&["--timeout", "8"], "job 7: killed, because it exceeded --timeout: released"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ended");
        let (ended, touches) = (file.clone(), AtomicUsize::new(0));
        let ttr = if arguments.is_empty() { 6 } else { 16 };
        let played = Played::new(move |line| match line.split(' ').next().unwrap() {
            "reserve-with-timeout" => "RESERVED 7 1\r\nx".into(),
            "stats-job" => Heard::Reply(format!(
                "---\nid: 7\ntube: a\nstate: reserved\npri: 5\nttr: {ttr}\ntime-left: {ttr}\n"
            )),
            "touch" => {
                if touches.fetch_add(1, Ordering::Relaxed) > 0 {
                    ct::eventually("the command is ended", || ended.exists());
                }
                "TOUCHED".into()
            }
            "release" => "RELEASED".into(),
            _ => "WATCHING 1".into(),
        });
        let script =
            format!("trap 'echo > {}; exit 0' TERM; while :; do sleep 0.02; done", file.display());
        let server = ["--server", &played.address, "work", "a", "--count", "1"];
        let arguments = [&server, arguments, &["--", "sh", "-c", &script]].concat();
        let ran = Ran::of(std::process::Command::new(PROGRAM).args(arguments).output().unwrap());
        assert!(ran.status.success() && ran.stderr.contains(text), "{ran:?}");
    }
}

/// An incomplete reply to a touch must not delay the end of the command.
#[test]
fn a_reply_that_stays_incomplete_is_a_lost_connection() {
    let touches = AtomicUsize::new(0);
    let played = Played::new(move |line| match line.split(' ').next().unwrap() {
        "reserve-with-timeout" => "RESERVED 7 1\r\nx".into(),
        "stats-job" => "---\nid: 7\ntube: a\nstate: reserved\nttr: 3\n".into(),
        "touch" if touches.fetch_add(1, Ordering::Relaxed) > 0 => Heard::Part("TOU".into()),
        "touch" => "TOUCHED".into(),
        _ => "WATCHING 1".into(),
    });
    let arguments = ["--server", &played.address, "work", "a", "--", "sleep", "1000"];
    let ran = Ran::of(std::process::Command::new(PROGRAM).args(arguments).output().unwrap());
    let is_told = ran.stderr.contains("job 7: the connection was lost, so another worker may have");
    assert!(is_told && ran.stderr.contains("no complete reply in time"), "{ran:?}");
}

/// A command gets SIGTERM first, so that it can clean up, and SIGKILL ten seconds later.
#[test]
fn a_command_that_ignores_sigterm_is_killed_ten_seconds_later() {
    let mut leased = Leased::begin(Server::tcp(&ours(), &[]), 1, &["--count", "1"], "trap '' TERM");
    let began = Instant::now();
    lose(&mut leased);
    ct::eventually("it ignores SIGTERM", || leased.runs());
    leased.end();
    let seconds = began.elapsed().as_secs();
    assert!((8..60).contains(&seconds), "{seconds}");
    assert!(!leased.runs());
    assert_eq!(state(&mut leased.other, leased.id).as_deref(), Some("ready"));
}

/// With `--keep-going`, a command may finish after its job has timed out; the job must stay ready.
#[test]
fn with_keep_going_the_command_runs_on_and_the_job_is_left_alone() {
    let server = Server::tcp(&ours(), &[]);
    let stop = "trap 'exit 0' USR2";
    let mut leased = Leased::begin(server, 1, &["--count", "1", "--keep-going"], stop);
    lose(&mut leased);
    ct::eventually("it runs", || leased.runs());
    ct::eventually("it still runs", || leased.runs());
    let ran = leased.end_by_trap();
    assert!(ran.status.success() && ran.stderr.contains("not ending its command"), "{ran:?}");
    assert_eq!(state(&mut leased.other, leased.id).as_deref(), Some("ready"));
}

/// The notice of a buried job must show why the command failed.
#[test]
fn the_notice_of_a_buried_job_has_the_last_line_of_its_command() {
    let server = Server::tcp(&ours(), &[]);
    let id = put(&mut server.client(), "a", 5, 0, b"x");
    let script = "echo first >&2; printf 'no route to host\\n\\n' >&2; sleep 2; exit 3";
    let ran =
        server.run(&["work", "a", "--count", "1", "--bury-after", "1", "--", "sh", "-c", script]);
    assert!(ran.stderr.starts_with("first\nno route to host\n\n"), "{ran:?}");
    let notice = format!("job {id}: exit status: 3: buried; its last error: no route to host\n");
    assert!(ran.stderr.ends_with(&notice), "{ran:?}");
}

/// All standard error must pass through, and a process that keeps it open must not delay `work`.
#[test]
fn standard_error_is_passed_on_whole_and_holds_nothing_up() {
    let server = Server::tcp(&ours(), &[]);
    put(&mut server.client(), "a", 5, 0, b"x");
    let script = "sleep 1000 > /dev/null & echo $! >&2; head -c 3000000 /dev/zero >&2; sleep 2";
    let began = Instant::now();
    let ran = server.run(&["work", "a", "--until-empty", "--", "sh", "-c", script]);
    let (pid, rest) = ran.stderr.split_once('\n').unwrap();
    let _ = std::process::Command::new("kill").arg(pid).status();
    assert!(ran.status.success() && began.elapsed() < Duration::from_secs(60));
    assert_eq!(rest.len(), 3_000_000);
}
