//! Clients that fill the daemon's memory, one kind of client after the other, under a limit on
//! address space. The daemon may refuse commands or let clients wait, but must not end, lose a job,
//! or stop serving a well-behaved client. After the load, the daemon must accept everything again.
//!
//! The tests are a crate of their own, so that no other tests run meanwhile. Crowds of clients
//! flood the loopback device, so bytes arrive late. A test that suspends a daemon while bytes come
//! would fail.
#![cfg(target_os = "linux")]

use std::{
    io::{ErrorKind, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    time::Duration,
};

use ct::{Client, Daemon, LONG, SocketStage, Stage, eventually};

const OURS: &str = env!("CARGO_BIN_EXE_beanstalkd");

/// The most connections of a crowd.
const CROWD: usize = 3000;

/// The daemon's address space, in bytes.
const LIMIT: usize = 64_000_000;

/// A daemon with little memory, and a well-behaved client.
struct Siege {
    daemon: Daemon,
    place: SocketAddr,
    steady: Client,
    /// The bodies of the jobs that were put before the load.
    early: Vec<Vec<u8>>,
}

impl Siege {
    fn begin(flags: &[&str]) -> Self {
        ct::soak::prepare().expect("more files");
        let script = format!(r#"ulimit -v {}; exec "$0" "$@""#, LIMIT / 1024);
        let arguments = [&["-c", &script, OURS, "-Vl127.0.0.1", "-p0"], flags].concat();
        let daemon = Daemon::spawn_raw(Path::new("/bin/sh"), &arguments).expect("it starts");
        let mut place = None;
        eventually("it listens", || {
            let said = daemon.stderr();
            let told = said.split_once(" listens on ").and_then(|(_, rest)| rest.split_once('\n'));
            place = told.and_then(|(place, _)| place.parse().ok());
            place.is_some()
        });
        let place: SocketAddr = place.expect("it listens");
        let mut steady = Client::connect(&place.to_string()).expect("a connection");
        steady.set_timeout(LONG).expect("a connection");
        let mut early = Vec::new();
        for (id, size) in [(1, 10), (2, 4000), (3, 5000), (4, 60_000)] {
            early.push(vec![b'a' + id; size]);
            let reply = steady.put(0, 0, 600, &early[early.len() - 1]).expect("a reply");
            assert_eq!(reply, format!("INSERTED {id}"));
        }
        Self { daemon, place, steady, early }
    }

    fn ask(&mut self, command: &str) -> String {
        let reply = self.steady.command(command);
        reply.unwrap_or_else(|error| panic!("{command}: {error}\n{}", self.daemon.stderr()))
    }

    /// Connects another client, if the daemon accepts it.
    fn connect(&self) -> Option<TcpStream> {
        let stream = TcpStream::connect_timeout(&self.place, Duration::from_millis(300)).ok()?;
        stream.set_nonblocking(true).expect("a socket");
        Some(stream)
    }

    /// Connects many clients. Each client sends what the daemon takes of `bytes`, and never reads.
    fn crowd(&self, bytes: &[u8]) -> Vec<TcpStream> {
        let mut crowd = Vec::new();
        while crowd.len() < CROWD {
            let Some(mut stream) = self.connect() else { break };
            send_what_fits(&mut stream, bytes);
            crowd.push(stream);
        }
        crowd
    }

    /// Checks that the well-behaved client is served, and that every early job is unchanged.
    fn stands(&mut self) {
        for _ in 0..50 {
            assert_eq!(self.ask("list-tube-used"), "USING default");
        }
        for id in 1..=self.early.len() {
            let (line, body) = self.steady.with_body(&format!("peek {id}")).expect("a job");
            assert_eq!(line, format!("FOUND {id} {}", body.len()));
            assert!(body == self.early[id - 1], "another body");
        }
    }

    /// Checks that the daemon accepts everything again after the load has gone.
    fn recovers(&mut self) {
        self.stands();
        eventually("there is memory again", || {
            let name = "n".repeat(200);
            let is_watched = self.ask(&format!("watch {name}")) == "WATCHING 2";
            assert_eq!(self.ask(&format!("ignore {name}")), "WATCHING 1");
            let put = self.steady.put(0, 0, 60, &vec![b'x'; 60_000]).expect("a reply");
            // A client of the crowd whose `watch` was refused waits for jobs of `default`. Until
            // the daemon has closed its connection, it may reserve this one.
            let is_deleted = put
                .strip_prefix("INSERTED ")
                .is_some_and(|id| self.ask(&format!("delete {id}")) == "DELETED");
            let other = Client::connect(&self.place.to_string()).and_then(|mut other| {
                other.set_timeout(Duration::from_secs(1))?;
                other.command("list-tube-used")
            });
            is_watched && is_deleted && other.is_ok()
        });
        self.stands();
    }
}

/// Sends on a socket that does not block. The daemon may have closed a connection that is not read;
/// other code checks whether the daemon is still running.
fn send_what_fits(stream: &mut TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) => {
                use ErrorKind::{BrokenPipe, ConnectionReset, WouldBlock};
                let is_known = matches!(error.kind(), WouldBlock | BrokenPipe | ConnectionReset);
                assert!(is_known, "{error}");
                return;
            }
        }
    }
}

/// Sends commands in batches until a command is refused, then one at a time until a command is
/// refused again, because a batch takes memory itself. Returns how many were not refused.
fn until_refused(client: &mut Client, mut command: impl FnMut(usize) -> String) -> usize {
    let (mut taken, mut batch_length, mut number) = (0, 1000, 0);
    while number < 1_000_000 {
        let batch = number..number + batch_length;
        number = batch.end;
        let commands: String = batch.map(&mut command).collect();
        let replies = commands.matches("\r\n").count() - commands.matches("\r\nx\r\n").count();
        client.send(commands).expect("it is taken");
        let replies: Vec<_> = (0..replies).map(|_| client.line().expect("a reply")).collect();
        let refused = replies.iter().filter(|reply| *reply == "OUT_OF_MEMORY").count();
        taken += replies.len() - refused;
        if refused > 0 {
            if batch_length == 1 {
                return taken;
            }
            batch_length = 1;
        }
    }
    panic!("is there no limit on memory here? {taken} were taken");
}

fn long_name(number: usize) -> String {
    format!("{number:0200}")
}

/// If the daemon leaves part of a line in the kernel, the kernel may have no window for the rest,
/// and the client would wait for ever.
#[test]
fn a_line_in_two_pieces_before_many_others() {
    let folder = tempfile::tempdir().expect("a directory");
    let mut siege = Siege::begin(&["-F", "-b", folder.path().to_str().expect("a path")]);
    for size in [60_000, 3000, 100, 1] {
        let body = vec![b'x'; size];
        while siege.steady.put(0, 0, 600, &body).expect("a reply") != "OUT_OF_MEMORY" {}
    }
    let mut client = Client::connect(&siege.place.to_string()).expect("a connection");
    client.set_timeout(LONG).expect("a connection");
    let more = ["ch 1\r\n", &"touch 1\r\n".repeat(22_222)].concat();
    client.send(["touch 1\r\n".repeat(6666).as_bytes(), b"tou"].concat()).expect("it is taken");
    for reply in 0..28_889 {
        if reply == 6666 {
            client.send(&more).expect("it is taken");
        }
        assert_eq!(client.line().expect("a reply"), "NOT_FOUND", "reply {reply}");
    }
}

/// A client that watches ever more tubes would end the daemon, and all jobs would be lost.
#[test]
fn watching_tubes() {
    let mut siege = Siege::begin(&[]);
    let mut client = Client::connect(&siege.place.to_string()).expect("a connection");
    client.set_timeout(LONG).expect("a connection");
    let taken = until_refused(&mut client, |number| format!("watch {}\r\n", long_name(number)));
    assert!(taken > 1000, "{taken} are not many");
    // The refused command has had no effect.
    assert_eq!(client.command(&format!("watch {}", long_name(0))).expect("a reply").len(), {
        "WATCHING ".len() + (taken + 1).to_string().len()
    });
    let tubes = siege.steady.yaml("stats").expect("a document");
    assert!(tubes.contains(&format!("\ncurrent-tubes: {}\n", taken + 1)), "{tubes}");
    // Existing tubes can be used, paused, and ignored.
    assert_eq!(siege.ask(&format!("use {}", long_name(1))), format!("USING {}", long_name(1)));
    // One more tube may still fit: the refused `watch` also had to make a list grow.
    let reply = siege.ask(&format!("use {}", long_name(usize::MAX)));
    assert!(reply == "OUT_OF_MEMORY" || reply.starts_with("USING "), "{reply}");
    assert_eq!(siege.ask("use default"), "USING default");
    assert_eq!(siege.ask(&format!("pause-tube {} 1000", long_name(1))), "PAUSED");
    for _ in 0..3 {
        let reply = client.command("reserve-with-timeout 0").expect("a reply");
        assert!(reply.starts_with("RESERVED ") || reply == "OUT_OF_MEMORY", "{reply}");
        if let Some(size) = reply.strip_prefix("RESERVED ").and_then(|it| it.split_once(' ')) {
            client.bytes(size.1.parse::<usize>().expect("a size") + 2).expect("a body");
        }
    }
    siege.stands();
    drop(client);
    siege.recovers();
}

/// A tube for each of very many delayed jobs would end the daemon: each takes memory for a tube, a
/// job and a timer.
#[test]
fn a_tube_for_each_job() {
    let mut siege = Siege::begin(&[]);
    let mut client = Client::connect(&siege.place.to_string()).expect("a connection");
    client.set_timeout(LONG).expect("a connection");
    let taken = until_refused(&mut client, |number| {
        format!("use {number}\r\nput 0 1000 60 1\r\nx\r\npause-tube {number} 1000\r\n")
    });
    assert!(taken > 1000, "{taken} are not many");
    siege.stands();
    // The jobs can still be deleted.
    for id in 5..2000 {
        let reply = siege.ask(&format!("delete {id}"));
        assert!(reply == "DELETED" || reply == "NOT_FOUND", "{reply}");
    }
    siege.stands();
}

/// Commands after a waiting `reserve` would be kept without limit, which would end the daemon.
#[test]
fn commands_behind_a_waiting_reserve() {
    let mut siege = Siege::begin(&[]);
    let bytes =
        "watch a\r\nignore default\r\nreserve\r\n".to_owned() + &"list-tubes\r\n".repeat(9000);
    let crowd = siege.crowd(bytes.as_bytes());
    assert!(crowd.len() > 100);
    siege.stands();
    drop(crowd);
    siege.recovers();
}

/// Unread replies would be kept without limit, which would end the daemon.
#[test]
fn replies_that_nobody_reads() {
    for command in ["stats\r\n", "peek 1\r\n", "peek 2\r\n", "peek 4\r\n", "list-tube-used\r\n"] {
        let mut siege = Siege::begin(&[]);
        let mut crowd = siege.crowd(command.repeat(200_000 / command.len()).as_bytes());
        assert!(crowd.len() > 100);
        for _ in 0..3 {
            for stream in &mut crowd {
                send_what_fits(stream, command.repeat(300_000 / command.len()).as_bytes());
            }
            siege.stands();
        }
        drop(crowd);
        siege.recovers();
    }
}

/// Lists of very many tubes that clients do not read would end the daemon: no other reply to a
/// short command is so large.
#[test]
fn lists_that_nobody_reads() {
    let mut siege = Siege::begin(&[]);
    let mut client = Client::connect(&siege.place.to_string()).expect("a connection");
    client.set_timeout(LONG).expect("a connection");
    for number in 0..20_000 {
        client.send(format!("watch {}\r\n", long_name(number))).expect("it is taken");
        assert_eq!(client.line().expect("a reply"), format!("WATCHING {}", number + 2));
    }
    let crowd = siege.crowd(b"list-tubes\r\nlist-tubes\r\n");
    siege.stands();
    let mut list = || {
        client.send("list-tubes-watched\r\n").expect("it is taken");
        let line = client.line().expect("a reply");
        let size = line.strip_prefix("OK ").map(|size| size.parse::<usize>().expect("a size"));
        assert!(size.is_some() || line == "OUT_OF_MEMORY", "{line}");
        size.is_some_and(|size| client.bytes(size + 2).is_ok())
    };
    // There may be memory already: some of the crowd are closed if others wait to connect.
    list();
    drop(crowd);
    eventually("there is memory again", list);
    drop(client);
    siege.recovers();
}

/// Very many clients that each wait at very many tubes would end the daemon.
#[test]
fn waiting_at_many_tubes() {
    let mut siege = Siege::begin(&[]);
    let names: Vec<_> = (0..2000).map(|number| format!("watch {number}\r\n")).collect();
    let crowd = siege.crowd((names.concat() + "ignore default\r\nreserve\r\n").as_bytes());
    siege.stands();
    drop(crowd);
    siege.recovers();
}

/// One client's wait would take the last memory for its lists, and no client would be served while
/// that client waits.
#[test]
fn waiting_at_tubes_of_its_own() {
    let mut siege = Siege::begin(&[]);
    let mut client = Client::connect(&siege.place.to_string()).expect("a connection");
    client.set_timeout(LONG).expect("a connection");
    let mut watched = 0..;
    while watched.by_ref().take(100).all(|number| {
        client.command(&format!("watch tube-{number}")).expect("a reply") != "OUT_OF_MEMORY"
    }) {}
    client.command("ignore default").expect("a reply");
    let reply = client.command("reserve-with-timeout 1").expect("a reply");
    assert!(["TIMED_OUT", "OUT_OF_MEMORY"].contains(&&*reply), "{reply}");
    siege.stands();
    let mut other = Client::connect(&siege.place.to_string()).expect("a connection");
    other.set_timeout(LONG).expect("a connection");
    assert_eq!(other.command("list-tube-used").expect("a reply"), "USING default");
    drop((client, other));
    siege.recovers();
}

/// A wait at very many tubes would take more memory than was admitted for it, and until it ended no
/// client would be served, nor would the wait itself time out.
#[test]
fn a_wait_that_is_admitted_leaves_memory_for_others() {
    let mut siege = Siege::begin(&[]);
    let mut client = Client::connect(&siege.place.to_string()).expect("a connection");
    client.set_timeout(LONG).expect("a connection");
    for part in 0..70 {
        let names = (0..1000).map(|number| format!("watch tube-{part}-{number}\r\n"));
        client.send(names.collect::<String>()).expect("it is taken");
        (0..1000).for_each(|_| assert!(client.line().expect("a reply").starts_with("WATCHING ")));
    }
    client.command("ignore default").expect("a reply");
    let mut jobs = Vec::new();
    let body = vec![b'x'; 60_000];
    let mut put = || siege.steady.put(0, 0, 60, &body).expect("a reply");
    while let Some(id) = put().strip_prefix("INSERTED ") {
        jobs.push(id.to_owned());
    }
    for id in jobs {
        let reply = client.command("reserve-with-timeout 1").expect("a reply");
        if reply == "TIMED_OUT" {
            siege.stands();
            return siege.recovers();
        }
        assert_eq!(reply, "OUT_OF_MEMORY");
        siege.ask(&format!("delete {id}"));
    }
    panic!("the wait is never admitted");
}

/// A wait makes the lists of all its tubes grow. If all these lists are full, one `reserve` would
/// take the memory that is kept for other clients, and no command would be executed any more.
#[test]
fn a_wait_for_which_a_thousand_full_lists_must_grow() {
    let mut siege = Siege::begin(&[]);
    let names: Vec<_> = (0..1000).map(|number| format!("watch {number}\r\n")).collect();
    let names = names.concat();
    let mut watching: Vec<Client> = Vec::new();
    for _ in 0..129 {
        let mut client = Client::connect(&siege.place.to_string()).expect("a connection");
        client.set_timeout(LONG).expect("a connection");
        client.send(format!("{names}ignore default\r\n")).expect("it is taken");
        (0..1001).for_each(|_| drop(client.line().expect("a reply")));
        watching.push(client);
    }
    let mut last = watching.pop().expect("there are some");
    for client in &mut watching {
        client.send("reserve\r\n").expect("it is taken");
    }
    until_refused(&mut siege.steady, |_| "put 0 0 600 1\r\nx\r\n".into());
    let reply = last.command("reserve-with-timeout 1").expect("a reply");
    assert!(["TIMED_OUT", "OUT_OF_MEMORY"].contains(&&*reply), "{reply}");
    siege.stands();
    drop((watching, last));
    siege.recovers();
}

/// A list of all tubes would take more memory than `--max-memory` allows.
#[test]
fn a_long_list_at_a_limit_on_resident_memory() {
    let daemon = Daemon::start(Path::new(OURS), &["--max-memory=20000000"]).expect("it starts");
    let mut client = Client::connect(daemon.address()).expect("a connection");
    client.set_timeout(LONG).expect("a connection");
    for number in 0..46_usize {
        let name = |at: usize| format!("watch {}\r\n", long_name(1000 * number + at));
        client.send((0..1000).map(name).collect::<Vec<_>>().concat()).expect("it is taken");
        (0..1000).for_each(|_| drop(client.line().expect("a reply")));
    }
    client.send("list-tubes\r\n").expect("it is taken");
    let line = client.line().expect("a reply");
    if let Some(size) = line.strip_prefix("OK ") {
        client.bytes(size.parse::<usize>().expect("a size") + 2).expect("a body");
    }
    let peak = memory(&daemon, "VmHWM:");
    assert!(peak <= 35_000_000, "{peak} bytes at the peak");
}

/// If uploads have taken all memory, the return of a worker's very many jobs would end the daemon.
#[test]
fn jobs_that_come_back_when_all_memory_is_taken() {
    const JOBS: usize = 100_000;
    let mut siege = Siege::begin(&["-z1000000"]);
    let mut worker = Client::connect(&siege.place.to_string()).expect("a connection");
    worker.set_timeout(LONG).expect("a connection");
    worker.send("use many\r\nwatch many\r\nignore default\r\n").expect("it is taken");
    (0..3).for_each(|_| drop(worker.line().expect("a reply")));
    for _ in 0..JOBS / 1000 {
        worker.send("put 0 0 600 1\r\nx\r\nreserve\r\n".repeat(1000)).expect("it is taken");
        for _ in 0..1000 {
            let lines = [(); 3].map(|()| worker.line().expect("a reply"));
            assert!(lines[0].starts_with("INSERTED ") && lines[1].starts_with("RESERVED "));
        }
    }
    let mut crowd =
        siege.crowd(&[b"put 0 0 60 900000\r\n".as_slice(), &*vec![b'x'; 200_000]].concat());
    for _ in 0..4 {
        for stream in &mut crowd {
            send_what_fits(stream, &vec![b'x'; 150_000]);
        }
        siege.stands();
    }
    drop(worker);
    eventually("they are ready again", || {
        let stats = siege.steady.yaml("stats-tube many").expect("a document");
        stats.contains(&format!("\ncurrent-jobs-ready: {JOBS}\n"))
    });
    siege.stands();
    drop(crowd);
    siege.recovers();
}

/// Kicks continue after their clients have disconnected, so any number of them would end the
/// daemon.
#[test]
fn kicks_of_clients_that_have_gone() {
    let mut siege = Siege::begin(&[]);
    siege.steady.send("put 0 1000 60 1\r\nx\r\n".repeat(20_000)).expect("it is taken");
    for id in 5..20_005 {
        assert_eq!(siege.steady.line().expect("a reply"), format!("INSERTED {id}"));
    }
    for _ in 0..5 {
        let crowd = siege.crowd(b"kick 1000000\r\n");
        drop(crowd);
        siege.stands();
    }
    siege.recovers();
}

/// After an urgent byte no event reports more input, so the daemon must read until nothing is left.
/// Very many parts of lines would take memory without a check of the level, and stop service.
#[test]
fn parts_of_lines_that_end_in_an_urgent_byte() {
    let mut siege = Siege::begin(&[]);
    let mut stage = SocketStage::new(&siege.place.to_string(), None);
    let names: Vec<_> = (0..9000).map(|number| number.to_string()).collect();
    for name in &names {
        stage.connect(name).expect("a connection");
    }
    eventually("all are accepted", || {
        let stats = siege.steady.yaml("stats").expect("a document");
        stats.contains("\ncurrent-connections: 9001\n")
    });
    for size in [60_000, 1000, 1] {
        let body = vec![b'x'; size];
        while siege.steady.put(0, 0, 600, &body).expect("a reply") != "OUT_OF_MEMORY" {}
    }
    for name in &names {
        stage.send(name, &[b'x'; 219]).expect("a connection");
        stage.urgent(name, b'x').expect("a connection");
    }
    for _ in 0..10 {
        siege.stands();
    }
    assert_eq!(siege.ask("delete 5"), "DELETED");
    drop(stage);
    for id in 6..2000 {
        let reply = siege.ask(&format!("delete {id}"));
        assert!(reply == "DELETED" || reply == "NOT_FOUND", "{reply}");
    }
    siege.recovers();
}

/// More connections than there is memory for would end the daemon; later connections must wait to
/// be accepted.
#[test]
fn connections_that_do_nothing() {
    let mut siege = Siege::begin(&[]);
    let crowds: Vec<_> = (0..5).map(|_| siege.crowd(b"watch a\r\nuse a\r\n")).collect();
    siege.stands();
    drop(crowds);
    siege.recovers();
}

/// Jobs have taken all the memory that they may, and each worker takes a little more. After such
/// workers have disconnected, no other could connect to delete a job.
#[test]
fn workers_that_come_and_go_beside_jobs_that_take_all_memory() {
    let mut siege = Siege::begin(&[]);
    assert_eq!(siege.ask("use bulk"), "USING bulk");
    until_refused(&mut siege.steady, |_| "put 0 0 600 1\r\nx\r\n".into());
    for _ in 0..3 {
        drop(siege.crowd(b"watch bulk\r\nreserve\r\n"));
        eventually("a worker is served", || {
            let worker = Client::connect(&siege.place.to_string()).and_then(|mut worker| {
                worker.set_timeout(Duration::from_secs(1))?;
                worker.command("list-tube-used")
            });
            worker.is_ok_and(|reply| reply == "USING default")
        });
    }
    assert!(siege.ask("delete-tube bulk").starts_with("DELETED "));
    assert_eq!(siege.ask("use default"), "USING default");
    siege.recovers();
}

/// Many commands that each need several turns would take memory without a check of the level.
#[test]
fn tubes_that_many_clients_delete_at_once() {
    let mut siege = Siege::begin(&[]);
    assert_eq!(siege.ask("use bulk"), "USING bulk");
    until_refused(&mut siege.steady, |_| "put 0 0 600 1\r\nx\r\n".into());
    assert_eq!(siege.ask("use default"), "USING default");
    for _ in 0..3 {
        let crowd = siege.crowd(b"delete-tube bulk ready 0\r\nlist-jobs bulk ready 10000\r\n");
        siege.stands();
        drop(crowd);
    }
    eventually("the tube is deleted", || siege.ask("delete-tube bulk").starts_with("DELETED "));
    siege.recovers();
}

/// Uploads would take the memory in which other clients are served, or would fragment it: the
/// memory left beside a piece of an upload is too small for anything else.
#[test]
fn large_uploads_that_continue_a_little_at_a_time() {
    let mut siege = Siege::begin(&["-z2000000"]);
    let upload = [&b"put 0 0 60 1000000\r\n"[..], &vec![b'x'; 900_000]].concat();
    let mut crowd: Vec<_> =
        siege.crowd(&upload[..22]).into_iter().map(|stream| (stream, 22)).collect();
    for step in [3000, 20_000, 9000, 70_000] {
        for (stream, sent) in &mut crowd {
            let part = &upload[*sent..*sent + step];
            *sent += stream.write(part).unwrap_or_default();
        }
        siege.stands();
    }
    drop(crowd);
    siege.recovers();
    // Some of the crowd may not be closed yet.
    eventually("nothing is left of the uploads", || resident(&siege.daemon) < 12_000_000);
}

/// Starts a daemon with `--max-memory`. Returns a client, and the most bytes the daemon may take.
fn limited(flags: &[&str]) -> (Daemon, Client, usize) {
    const CEILING: usize = 60_000_000;
    ct::soak::prepare().expect("more files");
    let ceiling = format!("--max-memory={CEILING}");
    let daemon = Daemon::start(Path::new(OURS), &[&[&ceiling[..]], flags].concat());
    let daemon = daemon.expect("it starts");
    let mut client = Client::connect(daemon.address()).expect("a connection");
    client.set_timeout(LONG).expect("a connection");
    (daemon, client, CEILING / 4 * 5 + 10_000_000)
}

/// If an upload took no memory for its slot before its bytes arrive, jobs in such slots would later
/// take too much, and the daemon would serve no client any more.
#[test]
fn jobs_in_the_slots_of_uploads_that_sent_little() {
    let (daemon, mut client, most) = limited(&[]);
    let begin = |_| {
        let mut stream = TcpStream::connect(daemon.address()).expect("a connection");
        stream.write_all(b"put 0 0 60 65000\r\nx").expect("it is taken");
        stream
    };
    let mut uploads: Vec<_> = (0..1600).map(begin).collect();
    until_refused(&mut client, |number| format!("watch {}\r\n", long_name(number)));
    while uploads.pop().is_some() {
        for _ in 0..16 {
            let reply = client.put(0, 0, 60, &[b'y'; 4000]).expect("a reply");
            assert!(reply == "OUT_OF_MEMORY" || reply.starts_with("INSERTED "), "{reply}");
        }
    }
    let mut other = Client::connect(daemon.address()).expect("a connection");
    other.set_timeout(LONG).expect("a connection");
    assert_eq!(other.command("list-tube-used").expect("a reply"), "USING default");
    assert!(resident(&daemon) <= most);
}

/// Clients that send half of a job and no more would keep out all others, if they have taken all
/// memory.
#[test]
fn half_uploads_that_stall_keep_out_no_others() {
    let mut siege = Siege::begin(&[]);
    let half = [&b"put 0 0 60 65000\r\n"[..], &*vec![b'x'; 32_000]].concat();
    let crowds: Vec<_> = (0..3).map(|_| siege.crowd(&half)).collect();
    siege.stands();
    for _ in 0..3 {
        let mut new = Client::connect(&siege.place.to_string()).expect("a connection");
        new.set_timeout(LONG).expect("a connection");
        assert_eq!(new.command("list-tube-used").expect("a reply"), "USING default");
    }
    drop(crowds);
    siege.recovers();
}

/// Clients that announce jobs and do not finish them would keep out all others, for as long as they
/// stay connected.
#[test]
fn uploads_that_stall_keep_out_no_others() {
    ct::soak::prepare().expect("more files");
    for (ceiling, crowd, sent) in
        [(10_000_000, 1500, 1), (10_000_000, 1500, 32_000), (100_000_000, 3000, 1)]
    {
        let ceiling = format!("--max-memory={ceiling}");
        let daemon = Daemon::start(Path::new(OURS), &[&ceiling]).expect("it starts");
        let place: SocketAddr = daemon.address().parse().expect("an address");
        let upload = [&b"put 0 0 60 65000\r\n"[..], &vec![b'x'; sent]].concat();
        let mut steady = Client::connect(daemon.address()).expect("a connection");
        steady.set_timeout(LONG).expect("a connection");
        let mut uploads = Vec::new();
        for _ in 0..crowd {
            let Ok(mut stream) = TcpStream::connect_timeout(&place, Duration::from_millis(300))
            else {
                break;
            };
            stream.set_nonblocking(true).expect("a socket");
            send_what_fits(&mut stream, &upload);
            uploads.push(stream);
            assert_eq!(steady.command("list-tube-used").expect("a reply"), "USING default");
        }
        for _ in 0..3 {
            let mut new = Client::connect(daemon.address()).expect("a connection");
            new.set_timeout(LONG).expect("a connection");
            assert_eq!(new.command("list-tube-used").expect("a reply"), "USING default");
        }
    }
}

/// A start would also read deleted jobs, and keep the memory between the jobs that still exist.
#[test]
fn a_start_takes_no_more_memory_than_the_service_before() {
    let folder = tempfile::tempdir().expect("a directory");
    let binlog = folder.path().to_str().expect("a path");
    let mut numbers = ct::Prng::new(1);
    let (daemon, mut client, most) = limited(&["-b", binlog, "-F"]);
    let (mut live, body) = (Vec::new(), [b'z'; 4000]);
    for _ in 0..7 {
        for _ in 0..live.len().min(6000) {
            let at = usize::try_from(numbers.below(live.len() as u64)).expect("an index");
            let id = live.swap_remove(at);
            assert_eq!(client.command(&format!("delete {id}")).expect("a reply"), "DELETED");
        }
        while live.len() < 14_000 {
            let reply = client.put(0, 0, 60, &body).expect("a reply");
            live.push(reply.strip_prefix("INSERTED ").expect("it fits").to_owned());
        }
    }
    drop((client, daemon));
    let (daemon, mut client, _) = limited(&["-b", binlog, "-F"]);
    let found = client.yaml("stats").expect("a reply");
    assert!(found.contains(&format!("\ncurrent-jobs-ready: {}\n", live.len())), "{found}");
    let peak = memory(&daemon, "VmHWM:");
    assert!(peak <= most, "{peak} bytes at the peak");
}

/// After a start with a lower limit, no worker could connect to delete the jobs.
#[test]
fn jobs_of_the_binlog_beyond_a_lowered_limit_can_be_deleted() {
    let folder = tempfile::tempdir().expect("a directory");
    let binlog = folder.path().to_str().expect("a path");
    let (daemon, mut client, _) = limited(&["-b", binlog, "-F"]);
    for _ in 0..1000 {
        client.put(0, 0, 60, &vec![b'z'; 30_000]).expect("a reply");
    }
    drop((client, daemon));
    let flags = ["-b", binlog, "-F", "--max-memory=10000000"];
    let daemon = Daemon::start(Path::new(OURS), &flags).expect("it starts");
    let mut client = Client::connect(daemon.address()).expect("a connection");
    client.set_timeout(LONG).expect("a connection");
    assert_eq!(client.put(0, 0, 60, b"z").expect("a reply"), "OUT_OF_MEMORY");
    for id in 1..=700 {
        assert_eq!(client.command(&format!("delete {id}")).expect("a reply"), "DELETED");
    }
    assert!(client.put(0, 0, 60, b"z").expect("a reply").starts_with("INSERTED "));
}

/// The memory that the process has in use, in bytes.
fn resident(daemon: &Daemon) -> usize {
    memory(daemon, "VmRSS:")
}

/// A figure about the process's memory, in bytes.
fn memory(daemon: &Daemon, name: &str) -> usize {
    let path = format!("/proc/{}/status", daemon.pid());
    let status = std::fs::read_to_string(path).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
    let number = line.trim().strip_suffix(" kB").expect("kilobytes");
    1024 * number.parse::<usize>().expect("a number")
}

/// Unfinished uploads, and deleted jobs in replies that are not read, would take memory beyond
/// `--max-memory`.
#[test]
fn a_ceiling_is_one_for_all_bodies() {
    const CEILING: usize = 10_000_000;
    const BODY: usize = 7_900_000;
    let ceiling = format!("--max-memory={CEILING}");
    let daemon = Daemon::start(Path::new(OURS), &["-z8000000", &ceiling]);
    let daemon = daemon.expect("it starts");
    let mut client = Client::connect(daemon.address()).expect("a connection");
    client.set_timeout(LONG).expect("a connection");
    assert_eq!(client.put(0, 0, 60, b"x").expect("a reply"), "INSERTED 1");
    let before = resident(&daemon);
    let body = vec![b'x'; BODY];
    let upload = [format!("put 0 0 60 {BODY}\r\n").as_bytes(), &body[1..]].concat();
    let connect = |_| {
        let stream = TcpStream::connect(daemon.address()).expect("a connection");
        stream.set_nonblocking(true).expect("a socket");
        (stream, 0)
    };
    // Each client continues where it stopped, a little at a time, and none sends its last byte.
    let mut crowd: Vec<_> = (0..60).map(connect).collect();
    for _ in 0..60 {
        for (stream, sent) in &mut crowd {
            let part = &upload[*sent..upload.len().min(*sent + 200_000)];
            match stream.write(part) {
                Ok(count) => *sent += count,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
        }
        assert_eq!(client.command("list-tube-used").expect("a reply"), "USING default");
        let grown = resident(&daemon).saturating_sub(before);
        assert!(grown < 3 * CEILING, "{grown} bytes of unfinished uploads");
    }
    drop(crowd);
    let mut workers = Vec::new();
    for _ in 0..20 {
        let mut reply = String::from("OUT_OF_MEMORY");
        if workers.is_empty() {
            eventually("there is memory again", || {
                reply = client.put(0, 0, 60, &body).expect("a reply");
                reply.starts_with("INSERTED ")
            });
        } else {
            reply = client.put(0, 0, 60, &body).unwrap_or(reply);
        }
        let Some(id) = reply.strip_prefix("INSERTED ") else {
            assert!(!workers.is_empty(), "{reply}");
            continue;
        };
        let mut worker = Client::connect(daemon.address()).expect("a connection");
        worker.send(format!("peek {id}\r\n")).expect("it is taken");
        assert!(worker.line().expect("a reply").starts_with("FOUND "));
        assert_eq!(client.command(&format!("delete {id}")).expect("a reply"), "DELETED");
        workers.push(worker);
        let grown = resident(&daemon).saturating_sub(before);
        assert!(grown < 3 * CEILING, "{grown} bytes of deleted jobs");
    }
    assert!(workers.len() < 20, "all of them were deleted and not read");
    drop(workers);
    eventually("there is memory again", || {
        client.put(0, 0, 60, &body).expect("a reply").starts_with("INSERTED ")
    });
}
