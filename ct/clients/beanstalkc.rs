//! Calls to beanstalkc, which knows TCP only: arguments are `tcp HOST PORT`.
//!
//! It has no reserve by id.

use std::collections::hash_map::{DefaultHasher, HashMap};
use std::hash::Hasher;
use std::thread::{self, sleep};
use std::time::Duration;

use beanstalkc::{Beanstalkc, BeanstalkcError, BeanstalkcResult, Job};
use serde_json::{Value, json};

const NONE: Duration = Duration::ZERO;
const MINUTE: Duration = Duration::from_secs(60);

/// Calls a method of a named client, prints `name.call(arguments) -> JSON` and returns the JSON.
macro_rules! call {
    ($client:ident . $method:ident ($($argument:expr),*)) => {{
        let (line, answer) = quiet_call!($client.$method($($argument),*));
        println!("{line}");
        answer
    }};
}

/// Calls a method of a named client; returns the line without printing it, and the JSON.
macro_rules! quiet_call {
    ($client:ident . $method:ident ($($argument:expr),*)) => {{
        let answer = settled($client.$method($($argument),*));
        let arguments: &[&str] = &[$(stringify!($argument)),*];
        let arguments = arguments.join(", ");
        let (name, method) = (stringify!($client), stringify!($method));
        (format!("{name}.{method}({arguments}) -> {answer}"), answer)
    }};
}

fn main() {
    let (mut a, mut b) = (client(), client());

    println!("# an empty daemon");
    call!(a.tubes());
    call!(a.using());
    call!(a.watching());
    call!(a.peek(1));
    call!(a.delete(1));
    call!(a.kick_job(1));
    call!(a.touch(1));
    call!(a.stats_job(1));
    call!(a.peek_ready());
    call!(a.peek_delayed());
    call!(a.peek_buried());
    call!(a.kick(10));
    call!(a.reserve_with_timeout(NONE));
    call!(a.stats_tube("nosuch"));
    call!(a.pause_tube("nosuch", MINUTE));
    call!(a.stats_tube("default"));

    println!("# from put to delete");
    let job = id(&call!(a.put_default(b"hello")));
    call!(a.peek(job));
    call!(a.peek_ready());
    call!(a.stats_job(job));
    call!(a.reserve());
    call!(a.stats_job(job));
    call!(b.peek(job));
    call!(b.delete(job));
    call!(b.kick_job(job));
    call!(a.delete(job));
    call!(a.delete(job));

    println!("# bodies");
    let bytes: Vec<u8> = (0..=255).collect();
    let bodies: [&[u8]; 9] = [
        b"",
        b"x",
        "Grüße, 世界 🫘".as_bytes(),
        b"two\r\nlines\r\n",
        b"DELETED\r\nRESERVED 1 1\r\n",
        b"\0",
        b"\r\n",
        &bytes,
        &bytes.repeat(255),
    ];
    for body in bodies {
        call!(a.put_default(body));
        call!(a.peek_ready());
        let job = id(&call!(a.reserve()));
        call!(a.delete(job));
    }
    call!(a.put_default(&[b'x'; 65_536]));
    call!(a.using());

    println!("# priority, then age");
    call!(a.put(b"late", 2000, NONE, MINUTE));
    call!(a.put(b"first", 0, NONE, MINUTE));
    call!(a.put(b"second", 5, NONE, MINUTE));
    call!(a.put(b"third", 5, NONE, MINUTE));
    call!(a.put(b"last", u32::MAX, NONE, MINUTE));
    call!(a.stats_tube("default"));
    for _ in 0..5 {
        let job = id(&call!(a.reserve_with_timeout(NONE)));
        call!(a.delete(job));
    }

    println!("# release");
    let job = id(&call!(a.put(b"again", 10, NONE, MINUTE)));
    call!(a.reserve());
    call!(a.release(job, 7, NONE));
    call!(b.release_default(job));
    call!(a.reserve());
    call!(a.stats_job(job));
    call!(a.release(job, 8, seconds(1)));
    call!(a.stats_job(job));
    call!(a.peek_delayed());
    call!(a.reserve_with_timeout(NONE));
    call!(a.reserve_with_timeout(seconds(3)));
    call!(a.stats_job(job));
    call!(a.delete(job));

    println!("# bury and kick");
    let mut jobs = Vec::new();
    for body in [b"1", b"2", b"3"] {
        call!(a.put_default(body));
        jobs.push(id(&call!(a.reserve())));
    }
    call!(a.bury(jobs[1], 3));
    call!(a.bury(jobs[0], 3));
    call!(a.bury(jobs[2], 3));
    call!(a.bury_default(jobs[0]));
    call!(a.peek_buried());
    call!(a.stats_job(jobs[1]));
    let delayed = id(&call!(a.put(b"later", 0, seconds(1_000), MINUTE)));
    call!(a.stats_job(delayed));
    call!(b.kick(2));
    call!(b.kick_job(jobs[2]));
    call!(b.kick_job(jobs[2]));
    call!(b.kick(10));
    call!(b.kick(10));
    call!(a.stats_job(jobs[2]));
    call!(a.stats_tube("default"));
    for _ in 0..4 {
        let job = id(&call!(a.reserve_with_timeout(NONE)));
        call!(a.delete(job));
    }

    println!("# touch, DEADLINE_SOON and the end of the time to run");
    let job = id(&call!(a.put(b"short", 0, NONE, seconds(2))));
    call!(b.reserve());
    sleep(Duration::from_millis(200));
    call!(b.touch(job));
    call!(a.touch(job));
    call!(b.stats_job(job));
    call!(b.reserve_with_timeout(seconds(5)));
    call!(b.reserve_with_timeout(NONE));
    call!(b.reserve());
    sleep(Duration::from_millis(1_300));
    call!(b.using()); // 1.12 may notice the end only when the worker sends something.
    sleep(Duration::from_millis(100));
    call!(b.touch(job));
    call!(b.release_default(job));
    call!(b.stats_job(job));
    call!(a.reserve_with_timeout(seconds(3)));
    call!(a.stats_job(job));
    call!(a.delete(job));

    println!("# waiting");
    call!(a.reserve_with_timeout(seconds(1)));
    thread::scope(|scope| {
        let b = &mut b;
        let waiting = scope.spawn(move || quiet_call!(b.reserve_with_timeout(seconds(5))));
        sleep(Duration::from_millis(300));
        call!(a.stats_tube("default"));
        call!(a.put_default(b"for b"));
        println!("{}", waiting.join().unwrap().0);
    });
    call!(b.delete(job + 1));
    call!(a.put(b"soon", 0, seconds(1), MINUTE));
    let job = id(&call!(b.reserve()));
    call!(b.delete(job));

    println!("# tubes");
    call!(a.use_tube("mail"));
    call!(a.using());
    call!(a.put_default(b"letter"));
    call!(b.watch("mail"));
    call!(b.watch("mail"));
    call!(b.watch("a/b+c;d.e$f_g(h)-0"));
    call!(b.watching());
    call!(b.tubes());
    call!(b.ignore("default"));
    call!(b.ignore("nosuch"));
    let job = id(&call!(b.reserve_with_timeout(NONE)));
    call!(b.delete(job));
    call!(b.ignore("mail"));
    call!(b.ignore("a/b+c;d.e$f_g(h)-0"));
    call!(b.watch(&"x".repeat(200)));
    call!(b.watch(&"x".repeat(201)));
    call!(b.use_tube("white space"));
    call!(b.watch("default"));
    call!(b.ignore(&"x".repeat(200)));
    call!(a.use_tube("default"));
    call!(a.tubes());

    println!("# pause");
    call!(a.put_default(b"paused"));
    call!(a.pause_tube("default", seconds(1_000)));
    call!(a.stats_tube("default"));
    call!(a.reserve_with_timeout(NONE));
    call!(a.peek_ready());
    call!(a.pause_tube("default", seconds(1)));
    let job = id(&call!(a.reserve_with_timeout(seconds(3))));
    call!(a.delete(job));

    println!("# a worker leaves");
    let job = id(&call!(a.put_default(b"kept")));
    let mut gone = client();
    call!(gone.reserve());
    call!(a.stats_job(job));
    drop(gone);
    call!(a.reserve_with_timeout(seconds(3)));
    call!(a.delete(job));

    println!("# what is left");
    call!(b.use_tube("default"));
    call!(b.put_default(b"left"));
    call!(b.stats_tube("default"));
    call!(b.stats_tube("mail"));
    call!(b.tubes());
    call!(b.stats());
    println!("done");
}

fn client() -> Beanstalkc {
    let arguments: Vec<String> = std::env::args().collect();
    let port = arguments[3].parse().expect("a port");
    Beanstalkc::new().host(&arguments[2]).port(port).connect().expect("the daemon listens")
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Returns the id in the result of a put or a reserve.
fn id(answer: &Value) -> u64 {
    answer.get("id").unwrap_or(answer).as_u64().unwrap_or_else(|| panic!("no job: {answer}"))
}

/// Converts a result to JSON. An error reply is a result, too; a lost connection ends the scenario.
fn settled<T: Plain>(result: BeanstalkcResult<T>) -> Value {
    match result {
        Ok(value) => value.plain(),
        Err(BeanstalkcError::ConnectionError(message)) => panic!("{message}"),
        Err(refusal) => json!({ "refused": refusal.to_string() }),
    }
}

/// Converts a value of the library to JSON.
trait Plain {
    fn plain(self) -> Value;
}

impl Plain for () {
    fn plain(self) -> Value {
        Value::Null
    }
}

impl Plain for u64 {
    fn plain(self) -> Value {
        json!(self)
    }
}

impl Plain for String {
    fn plain(self) -> Value {
        json!(self)
    }
}

impl Plain for Vec<String> {
    fn plain(self) -> Value {
        json!(self)
    }
}

impl Plain for HashMap<String, String> {
    fn plain(self) -> Value {
        json!(self)
    }
}

impl Plain for Job<'_> {
    /// A long or binary body is shown as its length and a digest.
    fn plain(self) -> Value {
        let body = match std::str::from_utf8(self.body()) {
            Ok(body) if body.len() <= 80 => body.to_owned(),
            _ => {
                let mut hasher = DefaultHasher::new();
                hasher.write(self.body());
                format!("{} bytes, hash {:016x}", self.body().len(), hasher.finish())
            }
        };
        json!({ "id": self.id(), "body": body })
    }
}
