//! The health check, `--ping`.
#![expect(clippy::disallowed_methods, reason = "a real daemon is met in real time")]

use std::{net::TcpStream, process::Command, thread, time::Instant};

use ct::LONG;

use crate::harness::{OURS, ends, freeze, loopback, serve_at, thaw};

/// The health check would report a daemon that does not serve as healthy, or a daemon that serves
/// as unhealthy.
#[test]
fn a_ping_tells_whether_it_serves() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("unix:{}", folder.path().join("socket").display());
    let list = format!("{address},127.0.0.1");
    let (daemon, places) = serve_at(2, Command::new(OURS).args(["-p0", "-l", &list]));
    let port = places[1].rsplit(':').next().expect("a port");
    let ping = |list: &str, port: &str| {
        let mut command = Command::new(OURS);
        command.args(["-l", list, "-p", port, "--ping"]);
        let began = Instant::now();
        let (status, stderr) = ends(&mut command);
        assert!(began.elapsed() < LONG / 2, "{list} port {port}");
        (status, stderr)
    };
    let named = if ct::knows_localhost() { "localhost" } else { "127.0.0.1" };
    for list in [&*list, "127.0.0.1", named, "0.0.0.0", &address] {
        assert_eq!(ping(list, port), (0, String::new()), "{list}");
    }
    let listener = loopback();
    let silent = listener.local_addr().expect("it is bound");
    // Nobody can listen on the port of a client.
    let client = TcpStream::connect(silent).expect("it listens");
    let free = client.local_addr().expect("it is bound").port().to_string();
    let silent = silent.port().to_string();
    let other = loopback();
    let chatty = other.local_addr().expect("it is bound").port().to_string();
    let chatter = thread::spawn(move || {
        let (mut client, _) = other.accept().expect("a client");
        std::io::Write::write_all(&mut client, b"HTTP/1.1 400 Bad Request\r\n").expect("a client");
        client
    });
    let cases = [
        ("127.0.0.1", &*free, "Connection refused"),
        ("127.0.0.1", &*silent, "no answer within 5 seconds"),
        ("127.0.0.1", &*chatty, "not a beanstalkd server: it replied HTTP/1.1 400 Ba"),
        ("unix:/no/such/socket", "1", "unix:/no/such/socket: No such file"),
    ];
    for (list, port, wanted) in cases {
        let (status, stderr) = ping(list, port);
        assert_eq!(status, 1, "{stderr}");
        assert!(stderr.starts_with("beanstalkd: ") && stderr.contains(wanted), "{stderr}");
    }
    chatter.join().expect("a thread");
    freeze(&daemon);
    assert_eq!(ping(&address, "1").0, 1, "it hangs");
    thaw(&daemon);
}
