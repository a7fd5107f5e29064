//! Standard output: tables for people, lines of JSON for programs.

use std::fmt::Write as _;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use anyhow::Result;
use serde_json::{Map, Value};

/// The color of a table's cell on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    /// A problem that an operator should look at.
    Red,
    /// Something that was paused on purpose, and is no problem.
    Yellow,
}

/// A cell of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

impl<T: ToString> From<T> for Cell {
    /// Makes a plain cell of a table.
    fn from(value: T) -> Self {
        Self::toned(&value, Tone::Plain, false)
    }
}

impl Cell {
    /// Makes a cell with this tone if `is_odd`, otherwise a plain cell.
    pub(crate) fn toned(value: &(impl ToString + ?Sized), tone: Tone, is_odd: bool) -> Self {
        let text = inert_text(&value.to_string());
        Self { text, tone: if is_odd { tone } else { Tone::Plain } }
    }
}

/// A heading and rows of cells. Numbers are aligned to the right.
#[derive(Debug, Default)]
pub(crate) struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<Cell>>,
    /// The number of bytes of text in the rows.
    size: usize,
    /// For each column: its width in the rows already written, and whether it has only numbers.
    shape: Vec<(usize, bool)>,
}

/// A table is written as soon as it has this many rows.
const TABLE_ROWS_MAX: usize = 10_000;
/// A table is written as soon as its rows have this many bytes of text.
const TABLE_BYTES_MAX: usize = 64 << 20;

impl Table {
    /// Makes a table with these columns.
    pub(crate) fn new(heading: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { heading: heading.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Adds a row to the table.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.size += cells.iter().map(|cell| cell.text.len()).sum::<usize>();
        self.rows.push(cells);
    }

    /// Whether the table should be written now, because its rows are many or long.
    pub(crate) fn is_large(&self) -> bool {
        self.rows.len() >= TABLE_ROWS_MAX || self.size >= TABLE_BYTES_MAX
    }

    /// Writes all rows of the table, and then drops these rows. The first call also writes the
    /// heading; later calls never make a column narrower.
    pub(crate) fn write(&mut self, out: &mut dyn Write, has_color: bool) -> io::Result<()> {
        let columns = self.heading.len();
        let width = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(at));
            let longest = cells.map(|cell| cell.text.chars().count()).max().unwrap_or(0);
            let before = self.shape.get(at).map_or(0, |&(width, _)| width);
            longest.max(self.heading[at].chars().count()).max(before)
        };
        let is_number = |at: usize| {
            if let Some(&(_, is_number)) = self.shape.get(at) {
                return is_number;
            }
            let mut cells = self.rows.iter().filter_map(|row| row.get(at));
            let is_digit = |it: char| it.is_ascii_digit() || ".-".contains(it);
            cells.all(|cell| cell.text.chars().all(is_digit)) && !self.rows.is_empty()
        };
        let shape: Vec<_> = (0..columns).map(|at| (width(at), is_number(at))).collect();
        let heading: Vec<Cell> = self.heading.iter().map(Cell::from).collect();
        let heading = self.shape.is_empty().then_some(&heading);
        // The last column needs no spaces after its text.
        let pad = |at: usize, gap: usize| if at + 1 == columns { 0 } else { gap };
        for row in heading.into_iter().chain(&self.rows) {
            let mut line = String::new();
            for (at, (cell, &(width, is_number))) in row.iter().zip(&shape).enumerate() {
                let gap = width - cell.text.chars().count();
                let gap = " ".repeat(if is_number { gap } else { pad(at, gap) });
                let color = match cell.tone {
                    Tone::Red if has_color => "\x1b[31m",
                    Tone::Yellow if has_color => "\x1b[33m",
                    _ => "",
                };
                let end = if color.is_empty() { "" } else { "\x1b[0m" };
                let space = if at == 0 { "" } else { "  " };
                let text = &cell.text;
                if is_number {
                    line.extend([space, &gap, color, text, end]);
                } else {
                    line.extend([space, color, text, end, &gap]);
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        self.rows.clear();
        (self.shape, self.size) = (shape, 0);
        Ok(())
    }
}

/// Standard output.
#[derive(Debug)]
pub(crate) struct Output {
    writer: BufWriter<StdoutLock<'static>>,
    /// Whether to print lines of JSON.
    pub(crate) json: bool,
    has_color: bool,
}

impl Output {
    /// Locks standard output for a command's output.
    pub(crate) fn new(json: bool) -> Self {
        let stdout = io::stdout();
        let is_plain = Self::is_dumb_terminal() || std::env::var_os("NO_COLOR").is_some();
        let has_color = stdout.is_terminal() && !is_plain;
        Self { writer: BufWriter::with_capacity(256 * 1024, stdout.lock()), json, has_color }
    }

    /// Writes a text of one or more lines to standard output.
    pub(crate) fn line(&mut self, text: &str) -> Result<()> {
        Ok(writeln!(self.writer, "{}", inert_text(text))?)
    }

    /// Writes bytes to standard output unchanged.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.writer.write_all(bytes)?)
    }

    /// Writes a JSON object without its null fields; panics if the value is not an object.
    pub(crate) fn value(&mut self, object: Value, server: Option<&str>) -> Result<()> {
        self.object(json_object(object), server)
    }

    /// Writes an object as a line of JSON, with the server's name if it is given.
    pub(crate) fn object(
        &mut self,
        object: Map<String, Value>,
        server: Option<&str>,
    ) -> Result<()> {
        self.line(&Self::json_line(object, server))
    }

    /// Writes a table to standard output.
    pub(crate) fn table(&mut self, table: &mut Table) -> Result<()> {
        Ok(table.write(&mut self.writer, self.has_color)?)
    }

    /// Flushes the buffer of standard output.
    pub(crate) fn flush(&mut self) -> Result<()> {
        Ok(self.writer.flush()?)
    }

    /// Formats an object as a line of JSON, with the server's name if it is given.
    pub(crate) fn json_line(mut object: Map<String, Value>, server: Option<&str>) -> String {
        object.extend(server.map(|server| ("server".to_owned(), server.into())));
        let text = Value::Object(object).to_string();
        if !text.contains(is_terminal_control) {
            return text;
        }
        // Escape the characters that a terminal would act on, although JSON allows them unescaped.
        let mut line = String::with_capacity(text.len());
        for it in text.chars() {
            if is_terminal_control(it) {
                let _ = write!(line, "\\u{:04x}", u32::from(it));
            } else {
                line.push(it);
            }
        }
        line
    }

    /// Whether the terminal does not understand control sequences.
    pub(crate) fn is_dumb_terminal() -> bool {
        std::env::var_os("TERM").is_some_and(|term| term == "dumb")
    }
}

/// Returns the fields of a JSON object, except null fields: unknown values are omitted.
pub(crate) fn json_object(value: Value) -> Map<String, Value> {
    let Value::Object(mut object) = value else { unreachable!("it is written as an object") };
    object.retain(|_, value| !value.is_null());
    object
}

/// Whether a character might make a terminal do more than show the character, for example move the
/// cursor or change the direction of the text.
pub(crate) fn is_terminal_control(it: char) -> bool {
    it.is_control() || matches!(it, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Replaces with `?` each character, except newlines, that a terminal would act on.
pub(crate) fn inert_text(text: &str) -> String {
    text.chars().map(|it| if is_terminal_control(it) && it != '\n' { '?' } else { it }).collect()
}

/// Formats a body as one line. Escapes backslashes, bytes that are not UTF-8, and characters that a
/// terminal would act on.
pub(crate) fn inert_body(body: &[u8]) -> String {
    let mut line = String::new();
    for chunk in body.utf8_chunks() {
        for character in chunk.valid().chars() {
            if is_terminal_control(character) || character == '\\' {
                line.extend(character.escape_default());
            } else {
                line.push(character);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(line, "\\x{byte:02x}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right() {
        let mut table = Table::new(["tube", "ready"]);
        table.row(vec!["a-long-name".into(), 7.into()]);
        table.row(vec!["b".into(), Cell::toned(&12345, Tone::Red, true)]);
        let mut out = Vec::new();
        table.write(&mut out, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "tube         ready\na-long-name      7\nb            12345\n");
        // Rows written later must be aligned with the rows already written.
        table.row(vec!["c".into(), Cell::toned(&1, Tone::Red, true)]);
        let mut out = Vec::new();
        table.write(&mut out, true).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "c                \x1b[31m1\x1b[0m\n");
    }

    #[test]
    fn bodies_fit_on_a_line() {
        assert_eq!(inert_body("größe\n\u{1b}[1m\\".as_bytes()), "größe\\n\\u{1b}[1m\\\\");
        assert_eq!(inert_body(b"\xffa\0"), "\\xffa\\u{0}");
    }
}
