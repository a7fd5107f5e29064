use std::collections::VecDeque;

use super::*;
use crate::dialect::MASKS;

/// A fake stage that takes the replies to commands from a list, and records all calls.
#[derive(Default)]
struct Fake {
    replies: VecDeque<&'static str>,
    arrived: BTreeMap<String, Vec<u8>>,
    closed: BTreeSet<String>,
    asked: Vec<String>,
}

impl Fake {
    #[expect(clippy::unnecessary_wraps, reason = "every method of a stage ends with it")]
    fn ask(&mut self, what: String) -> Result<(), String> {
        self.asked.push(what);
        Ok(())
    }
}

impl Stage for Fake {
    fn connect(&mut self, connection: &str) -> Result<(), String> {
        self.closed.remove(connection);
        self.ask(format!("connect {connection}"))
    }

    fn send(&mut self, connection: &str, bytes: &[u8]) -> Result<(), String> {
        let reply = match bytes {
            b"barrier\r\n" => "UNKNOWN_COMMAND\r\n",
            b"quit\r\n" => {
                self.closed.insert(connection.to_owned());
                ""
            }
            _ => self.replies.pop_front().unwrap_or(""),
        };
        self.arrived.entry(connection.to_owned()).or_default().extend(reply.bytes());
        self.ask(format!("{connection}> {}", show(bytes)))
    }

    fn receive(&mut self, connection: &str, _: Patience) -> Result<Arrived, String> {
        // The bytes arrive one at a time, which is the hardest case for the matcher.
        let arrived = self.arrived.entry(connection.to_owned()).or_default();
        if !arrived.is_empty() {
            return Ok(Arrived::Bytes(arrived.drain(..1).collect()));
        }
        let closed = self.closed.contains(connection);
        Ok(if closed { Arrived::Closed } else { Arrived::Nothing })
    }

    fn half_close(&mut self, connection: &str) -> Result<(), String> {
        self.ask(format!("{connection} half-closed"))
    }

    fn close(&mut self, connection: &str) -> Result<(), String> {
        self.ask(format!("{connection} closed"))
    }

    fn urgent(&mut self, connection: &str, byte: u8) -> Result<(), String> {
        self.ask(format!("{connection} urgent {byte}"))
    }

    fn drain(&mut self) -> Result<(), String> {
        self.ask("drain".to_owned())
    }

    fn advance(&mut self, time: Duration) -> Result<(), String> {
        self.ask(format!("+{time:?}"))
    }
}

/// Plays a script on a stage that gives these replies, as for a daemon with the first difference of
/// the table.
fn play(body: &str, replies: &[&'static str]) -> (Result<Outcome, Failure>, Vec<String>) {
    let text = format!("# s\nproves Q1\n{body}").replace("MASK", MASKS[0].name);
    let script = Script::parse("s", &text).unwrap();
    let masks = BTreeSet::from([MASKS[0].name.to_owned()]);
    let dialect = Dialect { name: "fake".to_owned(), masks };
    let mut fake = Fake { replies: replies.iter().copied().collect(), ..Fake::default() };
    let result = run(&script, &dialect, 40, &mut fake);
    (result, fake.asked)
}

fn message(body: &str, replies: &[&'static str]) -> String {
    play(body, replies).0.unwrap_err().message
}

#[test]
fn a_successful_script_returns_its_transcript() {
    let body =
        "a> put 0 0 60 1|x\na< INSERTED %1\na>> us\na>> e b|\na< USING b\na> quit\na: closed";
    let (result, asked) = play(body, &["INSERTED 41\r\n", "", "USING b\r\n"]);
    let transcript =
        "a> put 0 0 60 1|x\na< INSERTED 41\na>> us\na> e b\na< USING b\na> quit\na: closed\n";
    assert_eq!(result.unwrap().transcript, transcript);
    assert_eq!(asked, ["connect a", "a> put 0 0 60 1|x|", "a> us", "a> e b|", "a> quit|"]);
}

#[test]
fn a_wrong_reply_is_shown_beside_the_right_one() {
    let body = "a> put 0 0 60 1|x\n# comment\na< INSERTED %1";
    let (result, _) = play(body, &["BURIED 41\r\n"]);
    let failure = result.unwrap_err();
    assert_eq!(failure.message, "expected `INSERTED 41`, got `BURIED 41`");
    assert_eq!(failure.line, 5);
    assert_eq!(failure.transcript, "a> put 0 0 60 1|x\n");
    let table = [
        ("", "expected `DELETED`, got nothing"),
        ("DEL", "expected `DELETED`, got `DEL`, then nothing more"),
    ];
    for (reply, expected) in table {
        assert_eq!(message("a> delete 1\na< DELETED", &[reply]), expected);
    }
    let expected = "expected `X`, got the end of the connection";
    assert_eq!(message("a> quit\na< X", &[]), expected);
}

#[test]
fn silence_and_the_end_of_a_connection_are_checked() {
    let table = [
        ("a> x\na: silent", "expected silence on a, got `OK`"),
        ("a> quit\na: silent", "expected silence on a, got the end of the connection"),
        ("a> x\na: closed", "expected the end of a, got `OK`"),
        ("a: connect\na: closed", "expected the end of a, got nothing"),
        ("a> x\na: connect", "expected a to be closed, got an open connection"),
    ];
    for (body, expected) in table {
        assert!(message(body, &["OK"]).starts_with(expected), "{}", message(body, &["OK"]));
    }
}

#[test]
fn a_body_is_compared_by_size_and_by_line() {
    let body = "a> list-tubes\na< OK\n  ---\n  - default\n  - {any}\n";
    let good = "OK 20\r\n---\n- default\n- abc\n\r\n";
    assert!(
        play(body, &[good])
            .0
            .unwrap()
            .transcript
            .ends_with("a< OK 20\n  ---\n  - default\n  - abc\n")
    );
    let table = [
        ("OK 19\r\n---\n- default\n- abc\n\r\n", "expected 19 bytes, as announced, and CR LF, got"),
        ("OK 21\r\n---\n- default\n- abc\n\r\n", "expected 21 bytes, as announced, and CR LF, got"),
        ("OK 22\r\n---\n- default\n- abc\n\r\n", "then nothing more"),
        ("OK 19\r\n---\n- default\n- abc\r\n", "expected a body that ends in LF"),
        ("OK -1\r\n", "expected `OK <bytes>`, got `OK -1`"),
        ("NOT_FOUND\r\n", "expected `OK {int}`, got `NOT_FOUND`"),
        ("OK 14\r\n---\n- default\n\r\n", "line 3: expected `- {any}`, got no line"),
        ("OK 20\r\n---\n- Default\n- abc\n\r\n", "line 2: expected `- default`, got `- Default`"),
        ("OK 22\r\n---\n- default\n- a\n- b\n\r\n", "line 4: expected no line, got `- b`"),
    ];
    for (reply, expected) in table {
        let message = message(body, &[reply]);
        assert!(message.contains(expected), "{reply:?}: {message}");
    }
}

#[test]
fn a_barrier_is_made_exactly_when_the_order_could_be_lost() {
    let table = [
        ("a> x\na< R\nb> x\nb< R", 0), // each command was answered
        ("a> x\na> x\na< R", 0),       // one connection's commands stay in order
        ("a> x\nb> x\na< R\nb< R", 2), // before b sends, and before a reads
        ("a> x\nb: connect\n+1s\n+1s\na: silent", 2), // b's connect may be processed late
        ("a> x\na: silent", 1),
        ("a> x\n+1s\na< R", 1),
        ("a> x\ndrain\na< R", 1),
        ("a: close\nb> x\nb< R", 1),
        ("a: shutdown\nb> x", 1),
        ("a: urgent X\n+1s", 1),
        ("a: close\na> x", 1), // the second `a` is a new connection
        ("a> quit\na: closed\na> x\na< R", 0),
        ("a> x\nrepeat 3\na< R\na> x\nend\n+1s", 1),
        ("a> x\na: close", 0),
        ("a> x\nstop\nb> x", 0),
    ];
    for (body, barriers) in table {
        let body = body.replace("a: silent", "c: silent");
        let (result, asked) = play(&body, &["R\r\n"; 9]);
        result.unwrap_or_else(|failure| panic!("{body}: {}", failure.message));
        let trips = asked.iter().filter(|what| *what == "(barrier)> barrier|").count();
        assert_eq!(trips, 2 * barriers, "{body}: {asked:?}");
        let opened = asked.iter().filter(|what| *what == "connect (barrier)").count();
        assert_eq!(opened, barriers.min(1), "{body}: {asked:?}");
    }
}

#[test]
fn a_known_difference_is_played_and_remembered() {
    let body = "when MASK\na> then\notherwise\na> otherwise\nend\nrepeat 2\na> %i+1\nend";
    let (result, asked) = play(body, &[]);
    let outcome = result.unwrap();
    assert_eq!(outcome.masks_used.into_iter().collect::<Vec<_>>(), [MASKS[0].name]);
    assert_eq!(asked, ["connect a", "a> then|", "a> 42|", "a> 43|"]);
    let body = "when MASK\nrepeat 2\nstop\nend\nend\na< X";
    let (result, asked) = play(body, &[]);
    assert_eq!(result.unwrap().masks_used.len(), 1);
    assert_eq!(asked, [""; 0]);
}
