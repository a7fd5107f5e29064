//! A terminal in full-screen mode: draws lines and reads keys.
//!
//! This module uses control sequences of ECMA-48 and xterm that every current terminal understands.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;
use std::{iter, panic};

use rustix::event::{PollFd, PollFlags};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::interrupt::Interrupt;

/// Enters the alternate screen, and turns off the cursor and automatic line breaks.
const ENTER_SEQUENCE: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
/// Turns the cursor and automatic line breaks on again, and leaves the alternate screen.
const LEAVE_SEQUENCE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// A key of the keyboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// An ASCII character; Ctrl-C is `'\x03'`, because Ctrl-C sends no signal in raw mode.
    Char(char),
    Escape,
    Left,
    Right,
    Up,
    Down,
    PageUp,
    PageDown,
}

/// The terminal in full-screen mode. When the value is dropped, the terminal is restored. A panic
/// first restores the terminal, and then prints its message.
#[derive(Debug)]
pub(crate) struct Terminal {
    before: Termios,
    /// The last frame and its size.
    drawn: (String, [usize; 2]),
}

impl Terminal {
    /// Enters the terminal's full-screen mode.
    pub(crate) fn open() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        let (at_panic, report) = (before.clone(), panic::take_hook());
        panic::set_hook(Box::new(move |panic| {
            let _ = leave_full_screen(&at_panic);
            report(panic);
        }));
        let terminal = Self { before, drawn: Default::default() };
        write_terminal(ENTER_SEQUENCE)?;
        Ok(terminal)
    }

    /// Returns the terminal's numbers of columns and lines.
    pub(crate) fn size() -> io::Result<[usize; 2]> {
        let size = tcgetwinsize(io::stdout())?;
        // Some serial consoles report a size of 0.
        let known = |count: u16, default: u16| if count == 0 { default } else { count }.into();
        Ok([known(size.ws_col, 80), known(size.ws_row, 24)])
    }

    /// Draws lines that fit into a terminal of this size. A frame equal to the last frame is not
    /// written.
    pub(crate) fn draw(&mut self, lines: &[String], size: [usize; 2]) -> io::Result<()> {
        let mut frame = String::new();
        let lines = lines.iter().map(String::as_str).chain(iter::repeat(""));
        for (row, line) in (1..=size[1]).zip(lines) {
            // Erase before the text: after a full line, an erase would remove the last character.
            let _ = write!(frame, "\x1b[{row}H\x1b[K{line}");
        }
        let frame = (frame, size);
        if self.drawn != frame {
            write_terminal(&frame.0)?;
            self.drawn = frame;
        }
        Ok(())
    }

    /// Waits for keys of the terminal, for at most `wait`.
    pub(crate) fn keys(wait: Duration) -> io::Result<Vec<Key>> {
        let stdin = io::stdin();
        let mut events = [PollFd::new(&stdin, PollFlags::IN)];
        Interrupt::poll(&mut events, Some(wait))?;
        if events[0].revents().is_empty() {
            return Ok(Vec::new());
        }
        let mut bytes = [0; 64];
        match rustix::io::read(&stdin, &mut bytes)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            length => Ok(parse_keys(&bytes[..length])),
        }
    }
}

impl Drop for Terminal {
    /// Leaves full-screen mode.
    fn drop(&mut self) {
        let _ = leave_full_screen(&self.before);
    }
}

/// Leaves full-screen mode, and restores the terminal's settings.
fn leave_full_screen(before: &Termios) -> io::Result<()> {
    write_terminal(LEAVE_SEQUENCE)?;
    Ok(tcsetattr(io::stdin(), OptionalActions::Now, before)?)
}

/// Writes a text to the terminal at once.
fn write_terminal(text: &str) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Parses keys as sent by a terminal. Unknown sequences are skipped as a whole, so that their bytes
/// are not read as other keys.
fn parse_keys(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let [first, rest @ ..] = bytes {
        bytes = rest;
        if *first != 0x1b {
            keys.push(Key::Char(char::from(*first)));
            continue;
        }
        let [b'[' | b'O', sequence @ ..] = rest else {
            if rest.is_empty() {
                keys.push(Key::Escape);
            }
            // Skip the first byte of a key that was pressed with Alt.
            bytes = rest.get(1..).unwrap_or_default();
            continue;
        };
        let end = sequence.iter().position(|byte| (0x40..=0x7e).contains(byte));
        let (sequence, rest) = sequence.split_at(end.map_or(sequence.len(), |end| end + 1));
        bytes = rest;
        keys.extend(match sequence {
            b"A" => Some(Key::Up),
            b"B" => Some(Key::Down),
            b"C" => Some(Key::Right),
            b"D" => Some(Key::Left),
            b"5~" => Some(Key::PageUp),
            b"6~" => Some(Key::PageDown),
            _ => None,
        });
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_alone_or_many_at_once() {
        use Key::{Char, Down, Escape, PageUp, Up};
        let table: [(&[u8], &[Key]); 6] = [
            (b"q", &[Char('q')]),
            (b"\x1b", &[Escape]),
            (b"\x1b[A\x1bOB\x1b[5~r", &[Up, Down, PageUp, Char('r')]),
            // Delete, Ctrl-Right and Alt-q have no effect; Alt-q does not quit.
            (b"\x1b[3~\x1b[1;5C\x1bqr", &[Char('r')]),
            (b"\x1b[1;", &[]),
            (b"\x03", &[Char('\x03')]),
        ];
        for (bytes, keys) in table {
            assert_eq!(parse_keys(bytes), keys, "{bytes:?}");
        }
    }
}
