//! A proxy between a command and a server, which holds the command's lines from a given line on.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

/// Passes lines on to a server, and holds them when a word begins a line for the n-th time.
pub(crate) struct Proxy {
    /// The address on which the proxy listens.
    pub(crate) address: String,
    reached: Receiver<()>,
    go_on: Sender<()>,
}

/// The place in the stream at which the proxy holds the lines.
struct Place {
    word: &'static str,
    left: usize,
    reached: Sender<()>,
    go_on: Receiver<()>,
}

impl Proxy {
    /// Makes a proxy in front of the server at `target`.
    pub(crate) fn new(target: &str, word: &'static str, count: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let target = target.to_owned();
        let (is_reached, reached) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel();
        let place = Place { word, left: count, reached: is_reached, go_on: goes_on };
        let place = Arc::new(Mutex::new(place));
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let Ok(server) = TcpStream::connect(&target) else { continue };
                let (back_from, back_to) =
                    (server.try_clone().unwrap(), client.try_clone().unwrap());
                let place = Arc::clone(&place);
                thread::spawn(move || pass(back_from, back_to, None));
                thread::spawn(move || pass(client, server, Some(&place)));
            }
        });
        Self { address, reached, go_on }
    }

    /// Waits until the place is reached. Then the server has received everything before the place,
    /// and nothing after it.
    pub(crate) fn wait(&self) {
        self.reached.recv_timeout(ct::LONG).expect("the place is reached");
    }

    /// Passes on the lines that were held, and all later lines.
    pub(crate) fn go_on(&self) {
        let _ = self.go_on.send(());
    }
}

/// Returns the number of bytes before the place, if the place is within `bytes`.
fn find(place: &mut Place, bytes: &[u8]) -> Option<usize> {
    let word = place.word.as_bytes();
    for at in 0..bytes.len() {
        let begins_line = at == 0 || bytes[at - 1] == b'\n';
        if place.left > 0 && begins_line && bytes[at..].starts_with(word) {
            place.left -= 1;
            if place.left == 0 {
                return Some(at);
            }
        }
    }
    None
}

fn pass(mut from: TcpStream, mut to: TcpStream, place: Option<&Mutex<Place>>) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut bytes = &buffer[..count];
        if let Some(place) = place {
            let mut place = place.lock().unwrap();
            if let Some(before) = find(&mut place, bytes) {
                let _ = to.write_all(&bytes[..before]);
                bytes = &bytes[before..];
                place.reached.send(()).unwrap();
                let _ = place.go_on.recv();
            }
        }
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
