//! What keeps the daemon from harm: a ceiling on memory, and deaf ears for HTTP.

#[path = "sim/world.rs"]
mod world;

use beanstalkd::queue::JOB_COST;
use world::{Arrival, World};

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("replies are text")
}

/// A page that tricks a browser into posting to the port would command the queue.
#[test]
fn the_lines_of_an_http_request_are_not_obeyed() {
    for arrival in [Arrival::Whole, Arrival::SingleBytes] {
        let mut world = World::new(arrival, 65_535);
        let long = format!("POST /{} HTTP/1.1\r\n", "x".repeat(1000));
        for head in ["POST / HTTP/1.1\r\n", "GET http://host/ HTTP/1.0\r\n", &long] {
            let browser = world.connect();
            let request = format!("{head}Host: h\r\n\r\nput 0 0 60 1\r\nx\r\ndelete 1\r\n");
            world.send(browser, request.as_bytes());
            assert_eq!(text(world.receive(browser)), "");
            assert!(!world.is_open(browser), "{head}");
        }
        assert_eq!(world.server.queue().counts().total_jobs, 0);
        // Nobody else is concerned, even with words like these later on.
        let client = world.connect();
        world.send(client, b"use a\r\nGET / HTTP/1.1\r\nlist-tube-used\r\n");
        assert_eq!(text(world.receive(client)), "USING a\r\nUNKNOWN_COMMAND\r\nUSING a\r\n");
    }
}

/// A producer without a worker would take all memory there is, and other services down with it.
#[test]
fn above_the_ceiling_jobs_are_refused_and_deletes_make_room() {
    let mut world = World::new(Arrival::Whole, 65_535);
    world.limit_memory(2 * (JOB_COST + 102));
    let (client, other) = (world.connect(), world.connect());
    let put = |size: usize| format!("put 0 0 60 {size}\r\n{}\r\n", "x".repeat(size));
    // One that is on its way holds nothing yet; the one that arrives later is refused.
    world.send(other, b"put 0 0 60 100\r\nxxx");
    world.send(client, put(100).as_bytes());
    world.send(client, put(100).as_bytes());
    assert_eq!(text(world.receive(client)), "INSERTED 2\r\nINSERTED 3\r\n");
    world.send(other, format!("{}\r\n", "x".repeat(97)).as_bytes());
    assert_eq!(text(world.receive(other)), "OUT_OF_MEMORY\r\n");
    let commands = put(1) + "list-tube-used\r\ndelete 2\r\n" + &put(101) + &put(100);
    world.send(client, commands.as_bytes());
    assert_eq!(
        text(world.receive(client)),
        "OUT_OF_MEMORY\r\nUSING default\r\nDELETED\r\nOUT_OF_MEMORY\r\nINSERTED 4\r\n"
    );
    assert_eq!(world.server.queue().held(), 2 * (JOB_COST + 102));
    world.server.check();
}
