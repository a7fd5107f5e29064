//! Parses a golden script into statements.
//!
//! A script is a file, `NAME.txt`, with one statement per line:
//!
//! ```text
//! # The first line describes the harm to a user if the script fails.
//! proves Q4 E12       rules that this script proves, at least one
//! flags -z 100        flags of the daemon, which is then started for this script
//! fresh               needs a daemon that was never used
//!
//! a> put 0 0 60 1|x   connection a, opened at its first use, sends this and CR LF; | is CR LF
//! a>> use de          sends without the CR LF at the end
//! a< INSERTED %1      exactly this and CR LF come next
//! a< OK               alone: the header of a YAML body, which follows
//!   ---               in indented lines; its size is checked, too
//! a: silent           nothing more has come
//! a: closed           the daemon has closed the connection
//! a: connect          opens the connection; also close, shutdown, and urgent X, which sends the
//!                     byte X as urgent data
//! +2s                 time passes; also +500ms
//! drain               the daemon gets SIGUSR1
//! when MASK           this part runs on daemons with the difference MASK (see `dialect`)
//! otherwise           this part runs on all others; it may be left out
//! end
//! repeat 3            repeats the lines three times; %i, %i+5 in them count the rounds
//! end
//! stop                ends the script, from inside a `when`
//! ```
//!
//! In texts, `\r \n \0 \t \\ \| \% \{ \xHH` are escapes, `%N` is the script's N-th job id and
//! `{TEXT*N}` is N times TEXT. Expectations may contain `{int}`, `{57..60}` and `{any}`; `{any}`
//! ends at the next literal or line end.
//!
//! [`run()`](crate::run()) executes a script. Every error names the file and the line. An unknown
//! statement is an error. A `when` with a mask that [`dialect`](crate::dialect) does not list is an
//! error, too: the part after a misspelt mask would never be executed.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::dialect::Dialect;
use crate::text::{Text, Use};

/// The most rounds of a `repeat`.
const REPEAT_ROUNDS_MAX: u64 = 1_000_000;

/// A parsed golden script.
#[derive(Debug, Clone)]
pub struct Script {
    /// The file's name without `.txt`.
    pub name: String,
    /// The comment at the top, which describes the harm to a user if the script fails.
    pub description: String,
    /// The rules that the script proves, in the order of the file.
    pub proves: Vec<String>,
    /// The flags of the script's daemon.
    pub flags: Vec<String>,
    /// Whether the script needs a daemon that was never used.
    pub fresh: bool,
    pub(crate) lines: Vec<Line>,
}

/// A statement and its line number.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) number: usize,
    pub(crate) statement: Statement,
}

#[derive(Debug, Clone)]
pub(crate) enum Statement {
    On { connection: String, action: Action },
    Advance(Duration),
    Drain,
    Stop,
    When { mask: String, then: Vec<Line>, otherwise: Vec<Line> },
    Repeat { rounds: u64, lines: Vec<Line> },
}

/// An action on a connection.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    Send(Text),
    Expect(Text),
    /// Expects `OK <bytes>`, then these lines as the body.
    ExpectYaml(Vec<Text>),
    Silent,
    Closed,
    Close,
    Shutdown,
    Urgent(u8),
    Connect,
}

/// An error in a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptError {
    /// The script's file: `NAME.txt`, or the path if the file could not be read.
    pub file: String,
    /// The number of the line, from 1; 0 if the file could not be read.
    pub line: usize,
    /// A description of the error.
    pub message: String,
}

impl fmt::Display for ScriptError {
    /// Formats an error in a script, with the file's name and the number of the line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.message),
            line => write!(f, "{}:{line}: {}", self.file, self.message),
        }
    }
}

impl std::error::Error for ScriptError {}

impl Script {
    /// Parses the text of the script `name`.
    pub fn parse(name: &str, text: &str) -> Result<Self, ScriptError> {
        let mut parser = Parser::new(name, text);
        parser.script().map_err(|(line, message)| ScriptError {
            file: format!("{name}.txt"),
            line,
            message,
        })
    }

    /// Reads and parses the file of one script.
    pub fn load(path: &Path) -> Result<Self, ScriptError> {
        let text = fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Self::parse(&name, &text)
    }

    /// Reads every script of a directory, sorted by name. Fails at the first script that has an
    /// error.
    pub fn load_dir(directory: &Path) -> Result<Vec<Self>, ScriptError> {
        Self::files(directory)?.iter().map(|path| Self::load(path)).collect()
    }

    /// Lists the scripts of a directory, `*.txt`, sorted by name.
    pub fn files(directory: &Path) -> Result<Vec<PathBuf>, ScriptError> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(directory).map_err(|error| unreadable(directory, &error))? {
            paths.push(entry.map_err(|error| unreadable(directory, &error))?.path());
        }
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
        paths.sort();
        Ok(paths)
    }

    /// Returns the masks of all `when` parts of the script.
    pub fn masks(&self) -> BTreeSet<String> {
        let mut masks = BTreeSet::new();
        walk(&self.lines, &mut |statement| {
            if let Statement::When { mask, .. } = statement {
                masks.insert(mask.clone());
            }
        });
        masks
    }

    /// Returns whether the script needs a daemon of its own, because the script has flags or
    /// `fresh`, or drains the daemon.
    pub fn needs_own_daemon(&self) -> bool {
        let mut drains = false;
        walk(&self.lines, &mut |statement| drains |= matches!(statement, Statement::Drain));
        drains || self.fresh || !self.flags.is_empty()
    }

    /// Returns the longest time that the script can let pass, whichever part of a `when` runs.
    pub fn total_delay(&self) -> Duration {
        total_delay(&self.lines)
    }
}

/// Makes the error for a script's file that cannot be read.
fn unreadable(path: &Path, error: &std::io::Error) -> ScriptError {
    ScriptError { file: path.display().to_string(), line: 0, message: error.to_string() }
}

/// Calls `visit` with every statement of a script; a statement precedes the statements that it
/// contains.
fn walk(lines: &[Line], visit: &mut dyn FnMut(&Statement)) {
    for line in lines {
        visit(&line.statement);
        match &line.statement {
            Statement::When { then, otherwise, .. } => {
                walk(then, visit);
                walk(otherwise, visit);
            }
            Statement::Repeat { lines, .. } => walk(lines, visit),
            _ => {}
        }
    }
}

/// Returns the sum of the pauses in these lines of a script; of the parts of a `when`, the longer
/// one counts.
fn total_delay(lines: &[Line]) -> Duration {
    let each = lines.iter().map(|line| match &line.statement {
        Statement::Advance(time) => *time,
        Statement::When { then, otherwise, .. } => total_delay(then).max(total_delay(otherwise)),
        Statement::Repeat { rounds, lines } => {
            total_delay(lines).saturating_mul(u32::try_from(*rounds).unwrap_or(u32::MAX))
        }
        _ => Duration::ZERO,
    });
    each.fold(Duration::ZERO, Duration::saturating_add)
}

/// The number of a line, and the error in the line.
type LineError = (usize, String);

/// How a block of statements ended.
#[derive(Debug, PartialEq, Eq)]
enum BlockEnd {
    End,
    Otherwise,
    File,
}

/// Whether a statement is inside a `when`, and whether it is inside a `repeat`.
#[derive(Debug, Clone, Copy, Default)]
struct Enclosing {
    when: bool,
    repeat: bool,
}

impl Enclosing {
    /// Returns whether the parser is within a `when` or a `repeat`.
    fn is_block(self) -> bool {
        self.when || self.repeat
    }
}

struct Parser<'a> {
    lines: Vec<&'a str>,
    /// The number of the line that was read last.
    line_number: usize,
    script: Script,
}

impl<'a> Parser<'a> {
    /// Makes a parser for the text of a script.
    fn new(name: &str, text: &'a str) -> Self {
        let script = Script {
            name: name.to_owned(),
            description: String::new(),
            proves: Vec::new(),
            flags: Vec::new(),
            fresh: false,
            lines: Vec::new(),
        };
        // Keeps a CR at the end of a line, unlike `str::lines`, so that the CR is an error.
        let mut lines: Vec<&str> = text.split('\n').collect();
        if lines.last() == Some(&"") {
            lines.pop();
        }
        Self { lines, line_number: 0, script }
    }

    /// Parses a whole script.
    fn script(&mut self) -> Result<Script, LineError> {
        self.description()?;
        let (lines, end) = self.block(Enclosing::default())?;
        match end {
            BlockEnd::File => {}
            BlockEnd::End => {
                return Err((self.line_number, "`end` without when or repeat".to_owned()));
            }
            BlockEnd::Otherwise => {
                return Err((self.line_number, "`otherwise` without when".to_owned()));
            }
        }
        if self.script.proves.is_empty() {
            return Err((1, "the script proves nothing: add `proves RULE`".to_owned()));
        }
        if lines.is_empty() {
            return Err((self.line_number, "the script has no statement".to_owned()));
        }
        let mut script = self.script.clone();
        script.lines = lines;
        Ok(script)
    }

    /// Reads the comment at the top of the script.
    fn description(&mut self) -> Result<(), LineError> {
        let comments = self.lines.iter().map_while(|line| line.strip_prefix('#'));
        let description: Vec<&str> = comments.map(str::trim).collect();
        self.script.description = description.join(" ");
        if self.script.description.is_empty() {
            return Err((
                1,
                "the first line must be a comment that describes the script".to_owned(),
            ));
        }
        Ok(())
    }

    /// Returns the parser's next line; fails if the line ends with blanks.
    fn next_line(&mut self) -> Result<Option<&'a str>, LineError> {
        let Some(&line) = self.lines.get(self.line_number) else {
            return Ok(None);
        };
        self.line_number += 1;
        if line.ends_with(char::is_whitespace) {
            return Err((
                self.line_number,
                "blanks at the end of the line; \\x20 is a space".to_owned(),
            ));
        }
        Ok(Some(line))
    }

    /// Parses statements up to the end of the current block.
    fn block(&mut self, enclosing: Enclosing) -> Result<(Vec<Line>, BlockEnd), LineError> {
        let mut lines = Vec::new();
        while let Some(line) = self.next_line()? {
            let number = self.line_number;
            match line {
                "" => {}
                "end" => return Ok((lines, BlockEnd::End)),
                "otherwise" => return Ok((lines, BlockEnd::Otherwise)),
                _ if line.starts_with('#') => {}
                _ if self.head(line, lines.is_empty() && !enclosing.is_block(), enclosing)? => {}
                _ => lines.push(Line { number, statement: self.statement(line, enclosing)? }),
            }
        }
        Ok((lines, BlockEnd::File))
    }

    /// Parses a line about the whole script, such as `proves` or `flags`; returns false for any
    /// other line.
    fn head(&mut self, line: &str, is_head: bool, enclosing: Enclosing) -> Result<bool, LineError> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words = rest.split_whitespace().map(str::to_owned);
        match word {
            "proves" if enclosing.is_block() => {
                return self.error("`proves` cannot be in a when or repeat");
            }
            "flags" | "fresh" if !is_head => {
                return self.error(format!("`{word}` must be before the first statement"));
            }
            "proves" | "flags" if rest.trim().is_empty() => {
                return self.error(format!("`{word}` needs words after it"));
            }
            "proves" => self.script.proves.extend(words),
            "flags" => self.script.flags.extend(words),
            "fresh" if rest.is_empty() => self.script.fresh = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Parses the line of a statement.
    fn statement(&mut self, line: &str, enclosing: Enclosing) -> Result<Statement, LineError> {
        if let Some(statement) = self.on_connection(line, enclosing)? {
            return Ok(statement);
        }
        if let Some(step) = line.strip_prefix('+') {
            let time = duration(step)
                .ok_or((self.line_number, "a time step is +Ns or +Nms".to_owned()))?;
            return Ok(Statement::Advance(time));
        }
        match line.split_once(' ').unwrap_or((line, "")) {
            ("drain", "") => Ok(Statement::Drain),
            ("stop", "") => Ok(Statement::Stop),
            ("when", mask) => self.when(mask, enclosing),
            ("repeat", rounds) => self.repeat(rounds, enclosing),
            _ if line.starts_with(' ') => self.error("an indented line belongs after `a< OK` only"),
            _ => self.error(format!("not a statement: `{line}`")),
        }
    }

    /// Parses both parts of a `when`, up to its `end`.
    fn when(&mut self, mask: &str, enclosing: Enclosing) -> Result<Statement, LineError> {
        let start = self.line_number;
        if enclosing.when {
            return self.error("`when` cannot be in another when");
        }
        if !Dialect::all_masks().contains(mask) {
            return self.error(format!("no mask `{mask}` in the table of ct/src/dialect.rs"));
        }
        let enclosing = Enclosing { when: true, ..enclosing };
        let (then, mut end) = self.block(enclosing)?;
        let mut otherwise = Vec::new();
        if end == BlockEnd::Otherwise {
            (otherwise, end) = self.block(enclosing)?;
        }
        match end {
            BlockEnd::End => Ok(Statement::When { mask: mask.to_owned(), then, otherwise }),
            BlockEnd::Otherwise => self.error("a second `otherwise`"),
            BlockEnd::File => Err((start, "`when` without `end`".to_owned())),
        }
    }

    /// Parses a `repeat`, up to its `end`.
    fn repeat(&mut self, rounds: &str, enclosing: Enclosing) -> Result<Statement, LineError> {
        let start = self.line_number;
        if enclosing.repeat {
            return self.error("`repeat` cannot be in another repeat");
        }
        let rounds = rounds.parse().ok().filter(|&rounds: &u64| rounds <= REPEAT_ROUNDS_MAX);
        let Some(rounds) = rounds else {
            return self.error(format!("`repeat` needs a number up to {REPEAT_ROUNDS_MAX}"));
        };
        let (lines, end) = self.block(Enclosing { repeat: true, ..enclosing })?;
        match end {
            BlockEnd::End => Ok(Statement::Repeat { rounds, lines }),
            BlockEnd::Otherwise => self.error("`otherwise` without when"),
            BlockEnd::File => Err((start, "`repeat` without `end`".to_owned())),
        }
    }

    /// Parses the statements of a connection, `a> …`, `a>> …`, `a< …` and `a: …`; returns `None`
    /// for other lines.
    fn on_connection(
        &mut self,
        line: &str,
        enclosing: Enclosing,
    ) -> Result<Option<Statement>, LineError> {
        let end = line.find(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit()));
        let (connection, rest) = line.split_at(end.unwrap_or(line.len()));
        let signs = [">>", ">", "<", ":"];
        let sign = signs.into_iter().find(|&sign| rest.starts_with(sign));
        let (Some(sign), true) = (sign, connection.starts_with(|c: char| c.is_ascii_lowercase()))
        else {
            return Ok(None);
        };
        let text = match &rest[sign.len()..] {
            "" => "",
            spaced => match spaced.strip_prefix(' ') {
                Some(text) => text,
                None => return self.error(format!("a space must follow `{connection}{sign}`")),
            },
        };
        let action = match sign {
            ">>" if text.is_empty() => return self.error("nothing to send"),
            ">>" => Action::Send(self.text(text, Use::Send, b"", enclosing)?),
            ">" => Action::Send(self.text(text, Use::Send, b"\r\n", enclosing)?),
            "<" if text == "OK" => Action::ExpectYaml(self.yaml(enclosing)?),
            "<" => Action::Expect(self.text(text, Use::Expect, b"\r\n", enclosing)?),
            _ => self.event(text)?,
        };
        Ok(Some(Statement::On { connection: connection.to_owned(), action }))
    }

    /// Parses the text that a line of the script sends or expects.
    fn text(
        &mut self,
        source: &str,
        purpose: Use,
        ending: &[u8],
        enclosing: Enclosing,
    ) -> Result<Text, LineError> {
        match Text::parse(source, purpose) {
            Ok(text) if text.has_round() && !enclosing.repeat => {
                self.error("%i has a meaning only inside repeat")
            }
            Ok(text) => Ok(text.followed_by(ending)),
            Err(message) => self.error(message),
        }
    }

    /// Parses the indented lines after `a< OK`, and removes the first line's indentation from every
    /// line.
    fn yaml(&mut self, enclosing: Enclosing) -> Result<Vec<Text>, LineError> {
        let mut body = Vec::new();
        let mut indent = None;
        while self.lines.get(self.line_number).is_some_and(|line| line.starts_with(' ')) {
            let Some(line) = self.next_line()? else { break };
            let spaces = line.len() - line.trim_start_matches(' ').len();
            let indent = *indent.get_or_insert(spaces);
            let Some(line) = line.get(indent..).filter(|_| indent <= spaces) else {
                return self.error("this line is indented by less than the first one");
            };
            body.push(self.text(line, Use::Expect, b"", enclosing)?);
        }
        if body.is_empty() {
            return self.error("after `OK` alone the body must follow in indented lines");
        }
        Ok(body)
    }

    /// Parses the words after `a:`, such as `silent` or `close`.
    fn event(&mut self, text: &str) -> Result<Action, LineError> {
        Ok(match text {
            "silent" => Action::Silent,
            "closed" => Action::Closed,
            "close" => Action::Close,
            "shutdown" => Action::Shutdown,
            "connect" => Action::Connect,
            _ => match text.strip_prefix("urgent ").map(str::as_bytes) {
                Some(&[byte]) => Action::Urgent(byte),
                Some(_) => return self.error("`urgent` sends exactly one byte"),
                None => return self.error(format!("a connection cannot `{text}`")),
            },
        })
    }

    /// Makes an error about the current line of the script.
    fn error<T>(&self, message: impl Into<String>) -> Result<T, LineError> {
        Err((self.line_number, message.into()))
    }
}

/// Parses the time in a statement that lets time pass, such as `2s` or `500ms`.
fn duration(step: &str) -> Option<Duration> {
    if let Some(number) = step.strip_suffix("ms") {
        return number.parse().ok().map(Duration::from_millis);
    }
    step.strip_suffix('s')?.parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests;
