//! Guards against harm: the limit on memory, and HTTP requests that are not executed.

use beanstalkd::queue::JOB_OVERHEAD_BYTES;

use crate::world::{Arrival, World};

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("replies are text")
}

/// A web page that makes a browser post to the daemon's port could execute commands.
#[test]
fn the_lines_of_an_http_request_are_not_obeyed() {
    for arrival in [Arrival::Whole, Arrival::SingleBytes] {
        let mut world = World::new(arrival, 65_535);
        let long = format!("POST /{} HTTP/1.1\r\n", "x".repeat(1000));
        let heads = [
            "POST / HTTP/1.1\r\n",
            "GET http://host/ HTTP/1.0\r\n",
            "OPTIONS * HTTP/1.1\r\n",
            "GET host:11300 HTTP/1.1\r\n",
            "CONNECT host:11300 HTTP/1.1\r\n",
            // The version may be missing, because a page controls the rest of the line.
            "GET /\r\n",
            "GET / \r\n",
            "GET /?\r\n",
            "CONNECT localhost\r\n",
            // Lenient HTTP servers accept this form.
            "GET  /  HTTP/1.1\r\n",
            "GET\t/\tHTTP/1.1\r\n",
            " GET / HTTP/1.1\r\n",
            "\nGET / HTTP/1.1\n\r\n",
            "M-SEARCH * HTTP/1.1\r\n",
            &long,
        ];
        for head in heads {
            let browser = world.connect();
            let request = format!("{head}Host: h\r\n\r\nput 0 0 60 1\r\nx\r\ndelete 1\r\n");
            world.send(browser, request.as_bytes());
            assert_eq!(text(world.receive(browser)), "");
            assert!(!world.is_open(browser), "{head}");
        }
        // Empty lines before the request are answered as usual, and change nothing else.
        for head in ["\r\nGET / HTTP/1.1\r\n", "\r\n \r\n\r\nCONNECT host:1\r\n"] {
            let browser = world.connect();
            world.send(browser, format!("{head}put 0 0 60 1\r\nx\r\n").as_bytes());
            let replies = text(world.receive(browser));
            assert_eq!(replies.replace("UNKNOWN_COMMAND\r\n", ""), "");
            assert!(!world.is_open(browser), "{head}");
        }
        assert_eq!(world.server.queue().counts().total_jobs, 0);
        // Other connections are not closed, even if a later line looks like HTTP.
        let client = world.connect();
        world.send(client, b"use a\r\nGET / HTTP/1.1\r\nlist-tube-used\r\n");
        assert_eq!(text(world.receive(client)), "USING a\r\nUNKNOWN_COMMAND\r\nUSING a\r\n");
    }
}

/// A client with a typing mistake in its first line would be disconnected without a reply.
#[test]
fn what_is_only_a_mistake_is_answered() {
    let cases = [
        (format!("use /{}", "a".repeat(300)), "BAD_FORMAT"),
        (format!("watch http://{}", "a".repeat(300)), "BAD_FORMAT"),
        ("use /".into(), "USING /"),
        ("get / x".into(), "UNKNOWN_COMMAND"),
        ("PUT 0 0 60 1".into(), "UNKNOWN_COMMAND"),
        ("DELETE 5".into(), "UNKNOWN_COMMAND"),
        ("STATS".into(), "UNKNOWN_COMMAND"),
        ("USE default".into(), "UNKNOWN_COMMAND"),
        ("GET".into(), "UNKNOWN_COMMAND"),
        ("GET ".into(), "UNKNOWN_COMMAND"),
        ("X".repeat(300), "BAD_FORMAT"),
    ];
    for arrival in [Arrival::Whole, Arrival::SingleBytes] {
        for (line, wanted) in &cases {
            let mut world = World::new(arrival.clone(), 65_535);
            let client = world.connect();
            world.send(client, format!("{line}\r\n").as_bytes());
            assert_eq!(text(world.receive(client)), format!("{wanted}\r\n"), "{line}");
            assert!(world.is_open(client), "{line}");
        }
    }
}

/// A producer without a worker would fill all memory of the machine.
#[test]
fn above_the_ceiling_jobs_are_refused_and_deletes_make_room() {
    let mut world = World::new(Arrival::Whole, 65_535);
    world.limit_memory(2 * (JOB_OVERHEAD_BYTES + 102));
    let (client, other) = (world.connect(), world.connect());
    let put = |size: usize| format!("put 0 0 60 {size}\r\n{}\r\n", "x".repeat(size));
    world.send(client, put(100).as_bytes());
    world.send(client, put(100).as_bytes());
    assert_eq!(text(world.receive(client)), "INSERTED 1\r\nINSERTED 2\r\n");
    // The body of a refused put is skipped.
    world.send(other, b"put 0 0 60 100\r\nxxx");
    world.send(other, format!("{}\r\n", "x".repeat(97)).as_bytes());
    assert_eq!(text(world.receive(other)), "OUT_OF_MEMORY\r\n");
    let commands = put(1) + "list-tube-used\r\ndelete 2\r\n" + &put(101) + &put(100);
    world.send(client, commands.as_bytes());
    assert_eq!(
        text(world.receive(client)),
        "OUT_OF_MEMORY\r\nUSING default\r\nDELETED\r\nOUT_OF_MEMORY\r\nINSERTED 3\r\n"
    );
    assert_eq!(world.server.queue().job_bytes(), 2 * (JOB_OVERHEAD_BYTES + 102));
    world.server.check();
}

/// A client that announces a large body and sends little of it would keep all others from putting,
/// or unfinished bodies would exceed `--max-memory`. Only bytes that have arrived are counted.
#[test]
fn what_has_come_of_a_body_counts_and_what_was_announced_does_not() {
    for arrival in [Arrival::Whole, Arrival::SingleBytes] {
        let mut world = World::new(arrival, 65_535);
        let ceiling = 2 * (JOB_OVERHEAD_BYTES + 1002);
        world.limit_memory(ceiling);
        let (client, other) = (world.connect(), world.connect());
        let uploads: Vec<_> = (0..10).map(|_| world.connect()).collect();
        world.send(uploads[0], b"put 0 0 60 1000\r\nx");
        world.send(client, format!("put 0 0 60 1000\r\n{}\r\n", "x".repeat(1000)).as_bytes());
        assert_eq!(text(world.receive(client)), "INSERTED 2\r\n");
        for &upload in &uploads[1..] {
            world.send(upload, b"put 0 0 60 800\r\n");
        }
        for &upload in &uploads[1..] {
            world.send(upload, "x".repeat(500).as_bytes());
            let held = world.server.bodies().counted;
            assert!(held <= ceiling, "{held} bytes are held");
            world.server.check();
        }
        // One of these bodies fitted beside the first byte; no other body does.
        world.send(other, b"put 0 0 60 400\r\n");
        world.send(other, format!("{}\r\n", "x".repeat(400)).as_bytes());
        assert_eq!(text(world.receive(other)), "OUT_OF_MEMORY\r\n");
        for &upload in &uploads {
            world.close(upload);
        }
        world.send(other, format!("put 0 0 60 1000\r\n{}\r\n", "x".repeat(1000)).as_bytes());
        assert!(text(world.receive(other)).starts_with("INSERTED "));
        assert_eq!(world.server.bodies().counted, ceiling);
    }
}

/// A client that does not read its replies would keep the bodies of deleted jobs beyond
/// `--max-memory`.
#[test]
fn a_deleted_job_counts_until_it_has_been_sent() {
    for size in [4000, 6000] {
        let mut world = World::new(Arrival::Whole, 65_535);
        let all = 2 * (JOB_OVERHEAD_BYTES + size as u64 + 2);
        world.limit_memory(all);
        let (worker, client) = (world.connect(), world.connect());
        let put = format!("put 0 0 60 {size}\r\n{}\r\n", "x".repeat(size));
        world.send(client, put.repeat(2).as_bytes());
        world.pause_turns();
        world.send(worker, b"reserve\r\ndelete 1\r\n");
        // Feeding sends no replies: they are sent at the end of a turn.
        world.feed(worker);
        world.feed(worker);
        assert_eq!(world.server.queue().jobs(), 1);
        world.send(client, put.as_bytes());
        world.feed(client);
        world.turn();
        assert!(text(world.receive(client)).ends_with("OUT_OF_MEMORY\r\n"), "{size}");
        world.turn();
        assert!(text(world.receive(worker)).ends_with("DELETED\r\n"));
        assert_eq!(world.server.bodies().counted, all / 2);
        world.send(client, put.as_bytes());
        world.turn();
        world.turn();
        assert!(text(world.receive(client)).starts_with("INSERTED "));
        world.server.check();
    }
}
