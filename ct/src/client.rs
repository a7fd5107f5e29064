//! A small blocking client for tests that are easier to write in Rust than as a script.
//!
//! The client reads lines and bodies, but does not check replies. Every read and write has a time
//! limit, so a daemon that does not answer fails a test instead of blocking the test.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::time::Duration;

use crate::socket::Stream;

/// Time limit of a read, until [`Client::set_timeout`] changes it.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// One connection to a daemon.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<Stream>,
}

impl Client {
    /// Connects the client to `host:port` or `unix:/path`.
    pub fn connect(address: &str) -> io::Result<Self> {
        let stream = Stream::connect(address)?;
        stream.set_read_timeout(READ_TIMEOUT)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sets the time limit of the client's reads; 10 seconds by default.
    pub fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(timeout)
    }

    /// Sends bytes on the client's connection without changing them.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes.as_ref())
    }

    /// Shuts down the client's sending side; the daemon's remaining replies can still be read.
    pub fn half_close(&mut self) -> io::Result<()> {
        self.stream.get_ref().shut_down_writing()
    }

    /// Reads a line from the client's connection and returns it without its CR LF; the end of the
    /// connection is an error.
    pub fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        let text = line.strip_suffix(b"\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// Reads exactly `count` bytes from the client's connection.
    pub fn bytes(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads from the client's connection until the daemon closes it.
    pub fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest)?;
        Ok(rest)
    }

    /// Sends a command and CR LF, and returns the first line of the reply.
    pub fn command(&mut self, command: &str) -> io::Result<String> {
        self.send(format!("{command}\r\n"))?;
        self.line()
    }

    /// Puts a job through this client, as in `put(0, 0, 60, b"x")`, and returns the reply.
    pub fn put(&mut self, priority: u32, delay: u32, ttr: u32, body: &[u8]) -> io::Result<String> {
        let head = format!("put {priority} {delay} {ttr} {}\r\n", body.len());
        self.send([head.as_bytes(), body, b"\r\n"].concat())?;
        self.line()
    }

    /// Sends a command whose reply has a body, as in `OK <bytes>`, `FOUND <id> <bytes>` or
    /// `RESERVED <id> <bytes>`; returns the reply's line and body.
    pub fn with_body(&mut self, command: &str) -> io::Result<(String, Vec<u8>)> {
        let line = self.command(command)?;
        let length = line.rsplit(' ').next().and_then(|word| word.parse::<usize>().ok());
        let length = length.ok_or_else(|| io::Error::other(format!("no body: {line}")))?;
        let mut body = self.bytes(length + 2)?;
        if !body.ends_with(b"\r\n") {
            return Err(io::Error::other(format!("{line}: its body does not end in CR LF")));
        }
        body.truncate(length);
        Ok((line, body))
    }

    /// Sends a command that is answered with `OK <bytes>` and a body; returns the body.
    pub fn yaml(&mut self, command: &str) -> io::Result<String> {
        let (_, body) = self.with_body(command)?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    #[test]
    fn lines_and_bodies_are_distinguished_over_a_unix_socket() {
        let path = std::env::temp_dir().join(format!("ct-client-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let replies = "INSERTED 1\r\nOK 6\r\n---\na\n\r\nFOUND 1 2\r\n\r\n\r\nOK 1\r\nxyz\r\nend";
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut peer, _) = listener.accept().unwrap();
                peer.write_all(replies.as_bytes()).unwrap();
                peer.shutdown(std::net::Shutdown::Write).unwrap();
                let mut sent = String::new();
                peer.read_to_string(&mut sent).unwrap();
                assert_eq!(sent, "put 1 2 3 1\r\nx\r\nlist-tubes\r\npeek 1\r\nstats\r\n");
            });
            let mut client = Client::connect(&format!("unix:{}", path.display())).unwrap();
            assert_eq!(client.put(1, 2, 3, b"x").unwrap(), "INSERTED 1");
            assert_eq!(client.yaml("list-tubes").unwrap(), "---\na\n");
            let found = client.with_body("peek 1").unwrap();
            assert_eq!(found, ("FOUND 1 2".to_owned(), b"\r\n".to_vec()));
            let error = client.yaml("stats").unwrap_err();
            assert!(error.to_string().contains("does not end"), "{error}");
            assert_eq!(client.line().unwrap(), "");
            assert_eq!(client.line().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            assert_eq!(client.rest().unwrap(), b"");
        });
        std::fs::remove_file(&path).unwrap();
    }
}
