//! Executes a script on a daemon, or on a server in the same process.
//!
//! A [`Stage`] gives access to a daemon through sockets, or to the daemon's server code in the same
//! process, with a simulated clock. [`run`] executes the script, compares the replies, and records
//! the conversation for the report. `run` does not measure time, and never repeats a statement.
//!
//! **Order.** Over sockets, a command of connection `a` may be processed after a later command of
//! connection `b`. So a barrier precedes every statement that must wait until earlier statements
//! are processed. A barrier is two round trips of an unknown command on a separate connection,
//! opened at the first barrier. Before the second reply, the daemon has read all sockets. All
//! stages make the same barriers, because barriers increase the daemon's counters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use crate::dialect::Dialect;
use crate::script::{Action, Line, Script, Statement};
use crate::text::{Ids, Match, Pattern, Text, show};

/// The name of the connection for barriers; no connection of a script can have this name.
pub const BARRIER_CONNECTION: &str = "(barrier)";

/// The largest body that `OK <bytes>` may announce; a larger size is a wrong reply.
const BODY_MAX_BYTES: usize = 64 << 20;

/// The most bytes of a wrong reply that are collected for the message.
const UNEXPECTED_MAX_BYTES: usize = 4096;

/// The result of a [`Stage::receive`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arrived {
    /// At least one byte.
    Bytes(Vec<u8>),
    /// The daemon closed or reset the connection.
    Closed,
    /// Nothing came within the time limit.
    Nothing,
}

/// How long to wait for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// A reply is expected: wait for it, for some seconds at most.
    Reply,
    /// No reply is expected: wait for a fraction of a second.
    Silence,
}

/// A daemon, connections to it, and a clock.
///
/// Connections have names. After a script or the daemon has closed a connection, a new connection
/// may have the same name. Errors are sentences for the message of a [`Failure`].
pub trait Stage {
    /// Opens a connection to the daemon.
    fn connect(&mut self, connection: &str) -> Result<(), String>;
    /// Sends bytes on a connection to the daemon.
    fn send(&mut self, connection: &str, bytes: &[u8]) -> Result<(), String>;
    /// Returns the bytes that have arrived on a connection to the daemon since the previous call;
    /// waits if there are none.
    fn receive(&mut self, connection: &str, patience: Patience) -> Result<Arrived, String>;
    /// Shuts down the sending side of a connection to the daemon.
    fn half_close(&mut self, connection: &str) -> Result<(), String>;
    /// Closes a connection to the daemon.
    fn close(&mut self, connection: &str) -> Result<(), String>;
    /// Sends a byte as TCP urgent data; does nothing if the connection does not use TCP.
    fn urgent(&mut self, connection: &str, byte: u8) -> Result<(), String>;
    /// Starts drain mode: by SIGUSR1 or, for a server in the same process, by a function call.
    fn drain(&mut self) -> Result<(), String>;
    /// Lets time pass for the daemon.
    fn advance(&mut self, time: Duration) -> Result<(), String>;
}

/// The result of a script that ran to its end.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The masks whose `when` part was executed.
    pub masks_used: BTreeSet<String>,
    /// The conversation, in the language of scripts.
    pub transcript: String,
}

/// The result of a script whose expectations were not met.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The number of the line in the script; 0 if the failure belongs to no line.
    pub line: usize,
    /// The expectation and the actual result, in a sentence.
    pub message: String,
    /// The conversation up to the failing line.
    pub transcript: String,
    /// The masks whose `when` part was executed.
    pub masks_used: BTreeSet<String>,
}

/// Executes a script on `stage`. `base` is the highest job id that the daemon has given so far.
pub fn run(
    script: &Script,
    dialect: &Dialect,
    base: u64,
    stage: &mut dyn Stage,
) -> Result<Outcome, Failure> {
    let mut run = Run {
        dialect,
        stage,
        ids: Ids { base, round: 0 },
        line: 0,
        unread: BTreeMap::new(),
        unsynchronized: BTreeSet::new(),
        has_barrier: false,
        masks_used: BTreeSet::new(),
        transcript: String::new(),
    };
    let result = run.lines(&script.lines);
    let Run { line, masks_used, transcript, .. } = run;
    match result {
        Ok(_) => Ok(Outcome { masks_used, transcript }),
        Err(message) => Err(Failure { line, message, transcript, masks_used }),
    }
}

/// Whether the script continues after a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Continue,
    Stop,
}

struct Run<'a> {
    dialect: &'a Dialect,
    stage: &'a mut dyn Stage,
    ids: Ids,
    /// The number of the current line, which a failure reports.
    line: usize,
    /// The open connections, with the received bytes that no statement has matched yet.
    unread: BTreeMap<String, Vec<u8>>,
    /// Connections whose last action the daemon may not have processed yet.
    unsynchronized: BTreeSet<String>,
    has_barrier: bool,
    masks_used: BTreeSet<String>,
    transcript: String,
}

impl Run<'_> {
    /// Executes lines of a script one by one.
    fn lines(&mut self, lines: &[Line]) -> Result<Flow, String> {
        for line in lines {
            self.line = line.number;
            if self.statement(&line.statement)? == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        Ok(Flow::Continue)
    }

    /// Executes a statement of a script.
    fn statement(&mut self, statement: &Statement) -> Result<Flow, String> {
        match statement {
            Statement::On { connection, action } => {
                // An old connection must have ended before its name is used for a new connection.
                let all = matches!(action, Action::Silent) || !self.unread.contains_key(connection);
                self.synchronize(|other| all || other != connection)?;
                self.on_connection(connection, action)?;
            }
            Statement::Advance(time) => {
                self.synchronize(|_| true)?;
                self.transcribe(format_args!("+{}ms", time.as_millis()));
                self.stage.advance(*time)?;
            }
            Statement::Drain => {
                self.synchronize(|_| true)?;
                self.transcribe(format_args!("drain"));
                self.stage.drain()?;
            }
            Statement::Stop => return Ok(Flow::Stop),
            Statement::When { mask, then, otherwise } => {
                if !self.dialect.masks.contains(mask) {
                    return self.lines(otherwise);
                }
                self.masks_used.insert(mask.clone());
                return self.lines(then);
            }
            Statement::Repeat { rounds, lines } => {
                for round in 1..=*rounds {
                    self.ids.round = round;
                    if self.lines(lines)? == Flow::Stop {
                        return Ok(Flow::Stop);
                    }
                }
            }
        }
        Ok(Flow::Continue)
    }

    /// Executes a statement's action on a connection.
    fn on_connection(&mut self, connection: &str, action: &Action) -> Result<(), String> {
        if matches!(action, Action::Connect) && self.unread.contains_key(connection) {
            return Err(format!("expected {connection} to be closed, got an open connection"));
        }
        self.open(connection)?;
        match action {
            Action::Send(text) => self.send(connection, text)?,
            Action::Expect(text) => self.expect(connection, text)?,
            Action::ExpectYaml(lines) => self.expect_yaml(connection, lines)?,
            Action::Silent => self.expect_silence(connection)?,
            Action::Closed => self.expect_closed(connection)?,
            Action::Close => {
                self.transcribe(format_args!("{connection}: close"));
                self.stage.close(connection)?;
                self.unread.remove(connection);
            }
            Action::Shutdown => {
                self.transcribe(format_args!("{connection}: shutdown"));
                self.stage.half_close(connection)?;
            }
            Action::Urgent(byte) => {
                self.transcribe(format_args!("{connection}: urgent {}", char::from(*byte)));
                self.stage.urgent(connection, *byte)?;
            }
            Action::Connect => self.transcribe(format_args!("{connection}: connect")),
        }
        if action.awaits_no_reply() {
            self.unsynchronized.insert(connection.to_owned());
        } else {
            self.unsynchronized.remove(connection);
        }
        Ok(())
    }

    /// Opens the connection of a statement if it is not open yet.
    fn open(&mut self, connection: &str) -> Result<(), String> {
        if !self.unread.contains_key(connection) {
            self.stage.connect(connection)?;
            self.unread.insert(connection.to_owned(), Vec::new());
        }
        Ok(())
    }

    /// Sends the text of a statement.
    fn send(&mut self, connection: &str, text: &Text) -> Result<(), String> {
        let bytes = text.bytes(self.ids);
        match bytes.strip_suffix(b"\r\n") {
            Some(line) => self.transcribe(format_args!("{connection}> {}", show(line))),
            None => self.transcribe(format_args!("{connection}>> {}", show(&bytes))),
        }
        self.stage.send(connection, &bytes)
    }

    /// Fails unless the text that a statement expects comes next.
    fn expect(&mut self, connection: &str, text: &Text) -> Result<(), String> {
        let pattern = text.pattern(self.ids);
        let reply = self.take(connection, &pattern)?;
        let line = reply.strip_suffix(b"\r\n").unwrap_or(&reply);
        self.transcribe(format_args!("{connection}< {}", show(line)));
        Ok(())
    }

    /// Takes the bytes that match an expected pattern from the received bytes.
    fn take(&mut self, connection: &str, pattern: &Pattern) -> Result<Vec<u8>, String> {
        let expectation = || {
            let shown = pattern.show();
            format!("expected `{}`", shown.strip_suffix('|').unwrap_or(&shown))
        };
        loop {
            match pattern.match_prefix(self.unread(connection)) {
                Match::Complete(length) => {
                    return Ok(self.unread(connection).drain(..length).collect());
                }
                Match::Mismatch => {
                    return Err(format!(
                        "{}, got {}",
                        expectation(),
                        self.describe_rest(connection)?
                    ));
                }
                Match::Partial => self.receive_more(connection, expectation)?,
            }
        }
    }

    /// Waits for more bytes of the reply that a statement expects. If no bytes come, the error's
    /// message begins with `expectation`.
    fn receive_more(
        &mut self,
        connection: &str,
        expectation: impl Fn() -> String,
    ) -> Result<(), String> {
        let end = match self.stage.receive(connection, Patience::Reply)? {
            Arrived::Bytes(bytes) => {
                self.unread(connection).extend(bytes);
                return Ok(());
            }
            Arrived::Closed => "the end of the connection",
            Arrived::Nothing => "nothing more",
        };
        let unread = self.unread(connection);
        if unread.is_empty() {
            let end = if end == "nothing more" { "nothing" } else { end };
            return Err(format!("{}, got {end}", expectation()));
        }
        Err(format!("{}, got `{}`, then {end}", expectation(), show(unread)))
    }

    /// Waits a moment for the rest of a wrong reply, and returns all received bytes as text.
    fn describe_rest(&mut self, connection: &str) -> Result<String, String> {
        while self.unread(connection).len() < UNEXPECTED_MAX_BYTES {
            match self.stage.receive(connection, Patience::Silence)? {
                Arrived::Bytes(bytes) => self.unread(connection).extend(bytes),
                Arrived::Closed | Arrived::Nothing => break,
            }
        }
        let shown = show(self.unread(connection));
        Ok(format!("`{}`", shown.strip_suffix('|').unwrap_or(&shown)))
    }

    /// Of the bytes received on a connection, returns those that no statement has matched yet.
    fn unread(&mut self, connection: &str) -> &mut Vec<u8> {
        self.unread.entry(connection.to_owned()).or_default()
    }

    /// Fails unless the YAML body that a statement expects comes next.
    fn expect_yaml(&mut self, connection: &str, expected: &[Text]) -> Result<(), String> {
        let header = Text::parse("OK {int}|", crate::text::Use::Expect)?.pattern(self.ids);
        let header = self.take(connection, &header)?;
        let header = String::from_utf8_lossy(&header).trim_end().to_owned();
        let announced = header.strip_prefix("OK ").and_then(|bytes| bytes.parse().ok());
        let Some(announced) = announced.filter(|&bytes: &usize| bytes <= BODY_MAX_BYTES) else {
            return Err(format!("expected `OK <bytes>`, got `{header}`"));
        };
        let body = self.body(connection, announced)?;
        self.transcribe(format_args!("{connection}< {header}"));
        for line in String::from_utf8_lossy(&body).lines() {
            self.transcribe(format_args!("  {line}"));
        }
        compare_lines(&body, expected, self.ids)
    }

    /// Takes from the received bytes a body of exactly this size and the CR LF after it.
    fn body(&mut self, connection: &str, announced: usize) -> Result<Vec<u8>, String> {
        let expectation = || format!("expected {announced} bytes, as announced, and CR LF");
        while self.unread(connection).len() < announced + 2 {
            self.receive_more(connection, expectation)?;
        }
        if self.unread(connection)[announced..].starts_with(b"\r\n") {
            let whole: Vec<u8> = self.unread(connection).drain(..announced + 2).collect();
            return Ok(whole[..announced].to_vec());
        }
        Err(format!("{}, got {}", expectation(), self.describe_rest(connection)?))
    }

    /// Fails if the daemon has sent unmatched bytes or has closed the connection.
    fn expect_silence(&mut self, connection: &str) -> Result<(), String> {
        if self.unread(connection).is_empty() {
            match self.stage.receive(connection, Patience::Silence)? {
                Arrived::Nothing => {
                    self.transcribe(format_args!("{connection}: silent"));
                    return Ok(());
                }
                Arrived::Closed => {
                    return Err(format!(
                        "expected silence on {connection}, got the end of the connection"
                    ));
                }
                Arrived::Bytes(bytes) => self.unread(connection).extend(bytes),
            }
        }
        Err(format!("expected silence on {connection}, got {}", self.describe_rest(connection)?))
    }

    /// Fails unless the daemon closes the connection without sending anything more.
    fn expect_closed(&mut self, connection: &str) -> Result<(), String> {
        let expectation = format!("expected the end of {connection}");
        if self.unread(connection).is_empty() {
            match self.stage.receive(connection, Patience::Reply)? {
                Arrived::Closed => {
                    self.transcribe(format_args!("{connection}: closed"));
                    self.unread.remove(connection);
                    return Ok(());
                }
                Arrived::Nothing => return Err(format!("{expectation}, got nothing")),
                Arrived::Bytes(bytes) => self.unread(connection).extend(bytes),
            }
        }
        Err(format!("{expectation}, got {}", self.describe_rest(connection)?))
    }

    /// Makes a barrier if the daemon may not have processed the last action of a connection for
    /// which `concerns` is true.
    fn synchronize(&mut self, concerns: impl Fn(&str) -> bool) -> Result<(), String> {
        if !self.unsynchronized.iter().any(|other| concerns(other)) {
            return Ok(());
        }
        if !self.has_barrier {
            self.stage.connect(BARRIER_CONNECTION)?;
            self.has_barrier = true;
        }
        self.transcribe(format_args!("{BARRIER_CONNECTION}"));
        let answer = Text::parse("UNKNOWN_COMMAND|", crate::text::Use::Expect)?.pattern(self.ids);
        for _ in 0..2 {
            self.stage.send(BARRIER_CONNECTION, b"barrier\r\n")?;
            let taken = self.take(BARRIER_CONNECTION, &answer);
            taken.map_err(|message| format!("at the barrier before this line: {message}"))?;
        }
        self.unsynchronized.clear();
        Ok(())
    }

    /// Adds a line to the transcript of the script's run.
    fn transcribe(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.transcript, "{line}").expect("a String takes everything");
    }
}

impl Action {
    /// Returns whether the daemon may process a later action of another connection before this
    /// action.
    fn awaits_no_reply(&self) -> bool {
        match self {
            Self::Send(_) | Self::Close | Self::Shutdown | Self::Urgent(_) | Self::Connect => true,
            Self::Expect(_) | Self::ExpectYaml(_) | Self::Silent | Self::Closed => false,
        }
    }
}

/// The maximum number of differing lines in a message.
const DIFFERENCES_MAX: usize = 8;

/// Compares a body with its expected lines; the error lists the first differences.
fn compare_lines(body: &[u8], expected: &[Text], ids: Ids) -> Result<(), String> {
    let Some(text) = body.strip_suffix(b"\n") else {
        return Err(format!("expected a body that ends in LF, got `{}`", show(body)));
    };
    let lines: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
    let mut differences = Vec::new();
    for index in 0..lines.len().max(expected.len()) {
        let pattern = expected.get(index).map(|line| line.pattern(ids));
        let line = lines.get(index);
        if let (Some(pattern), Some(line)) = (&pattern, line) {
            if pattern.matches_line(line) {
                continue;
            }
        }
        let expectation =
            pattern.map_or("no line".to_owned(), |pattern| format!("`{}`", pattern.show()));
        let came = line.map_or("no line".to_owned(), |line| format!("`{}`", show(line)));
        differences.push(format!("body line {}: expected {expectation}, got {came}", index + 1));
    }
    let left_out = differences.len().saturating_sub(DIFFERENCES_MAX);
    differences.truncate(DIFFERENCES_MAX);
    if left_out > 0 {
        differences.push(format!("and {left_out} more lines"));
    }
    if differences.is_empty() {
        return Ok(());
    }
    Err(differences.join("\n"))
}

#[cfg(test)]
mod tests;
