//! Plain sockets, and bytes for them.

use std::{
    io::Write,
    net::{TcpListener, TcpStream},
};

use ct::Prng;

pub(crate) fn loopback() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a free port")
}

#[track_caller]
pub(crate) fn send_all(mut socket: &TcpStream, bytes: &[u8]) {
    socket.write_all(bytes).expect("the daemon takes it");
}

pub(crate) fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut prng = Prng::new(seed);
    let mut bytes: Vec<u8> =
        (0..count.div_ceil(8)).flat_map(|_| prng.next_u64().to_le_bytes()).collect();
    bytes.truncate(count);
    bytes
}
