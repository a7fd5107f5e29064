//! The full screen of `top`.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::top::{COLUMNS, Sample, Watch, rows};
use crate::cli::TopArgs;
use crate::context::Outcome;
use crate::filter::Tubes;
use crate::interrupt::Interrupt;
use crate::output::one_line;
use crate::terminal::{Key, Terminal};

/// The longest wait for a key before Ctrl-C is noticed.
const NAP: Duration = Duration::from_millis(100);

/// Lines that the table gets at least, with its heading; and columns that names get.
const TABLE_LINES_MIN: usize = 3;
const NAME_COLUMNS_MIN: usize = 12;

/// Rows that `PageUp` and `PageDown` pass.
const PAGE_ROWS: usize = 20;

/// Colors and weights as control sequences have them.
const DEFAULT_COLOR: &str = "39";
const RED: &str = "31";
const YELLOW: &str = "33";
const NORMAL: &str = "22";
const BOLD: &str = "1";

/// What the user sees and has chosen.
struct Screen {
    /// Each server's name, and its last sample or why there is none.
    servers: Vec<(String, Result<Sample, String>)>,
    sort: usize,
    is_reversed: bool,
    /// The row in bold, and the first one on the screen.
    selected: usize,
    first: usize,
    has_color: bool,
}

/// A thread that looks at a server. While one server is silent, keys and the other servers are
/// attended to.
struct Looker {
    name: String,
    wish: Sender<()>,
    sample: Receiver<Result<Sample, String>>,
    /// Since when an answer is due.
    asked: Option<Instant>,
}

/// After how long a server that does not answer is told.
const LATE: Duration = Duration::from_secs(2);

impl Looker {
    /// Starts the thread. It ends with the program, whatever it waits for.
    fn start(mut watch: Watch, meant: Tubes) -> Self {
        let (wish, wishes) = mpsc::channel();
        let (samples, sample) = mpsc::channel();
        let name = watch.address.to_string();
        thread::spawn(move || {
            for () in wishes {
                let look = watch.look(&meant).map_err(|error| format!("{error:#}"));
                if samples.send(look).is_err() {
                    return;
                }
            }
        });
        Self { name, wish, sample, asked: None }
    }

    /// Asks for a look, unless an answer is still due.
    fn ask(&mut self) {
        if self.asked.is_none() && self.wish.send(()).is_ok() {
            self.asked = Some(Instant::now());
        }
    }

    fn answer(&mut self) -> Option<Result<Sample, String>> {
        let answer = self.sample.try_recv().ok();
        if answer.is_some() {
            self.asked = None;
        }
        answer
    }

    fn is_late(&self) -> bool {
        self.asked.is_some_and(|asked| asked.elapsed() >= LATE)
    }

    /// Tells that there is no answer.
    fn silence(&self) -> String {
        let seconds = self.asked.map_or(0, |asked| asked.elapsed().as_secs());
        format!("{}: no answer for {seconds} s", self.name)
    }
}

/// What a key means.
#[derive(Debug, PartialEq, Eq)]
enum Wish {
    End,
    Nothing,
}

/// Runs until the user ends it.
pub(crate) fn run(
    args: &TopArgs,
    watches: Vec<Watch>,
    meant: &Tubes,
    interrupt: &Interrupt,
) -> Result<Outcome> {
    let watches = watches.into_iter().map(|watch| Looker::start(watch, meant.clone())).collect();
    watch(&mut Terminal::open()?, args, watches, interrupt)
}

fn watch(
    terminal: &mut Terminal,
    args: &TopArgs,
    mut lookers: Vec<Looker>,
    interrupt: &Interrupt,
) -> Result<Outcome> {
    let silent = |looker: &Looker| (looker.name.clone(), Err(looker.silence()));
    let servers = lookers.iter().map(silent).collect();
    let mut screen = Screen::new(servers);
    screen.has_color = std::env::var_os("NO_COLOR").is_none();
    let mut looks = 0;
    loop {
        let looked = Instant::now();
        lookers.iter_mut().for_each(Looker::ask);
        looks += 1;
        loop {
            for (looker, server) in lookers.iter_mut().zip(&mut screen.servers) {
                if let Some(sample) = looker.answer() {
                    server.1 = sample;
                } else if looker.is_late() {
                    server.1 = Err(looker.silence());
                }
            }
            let size = Terminal::size()?;
            terminal.draw(&screen.lines(size), size)?;
            let left = Duration::from_secs(args.interval).saturating_sub(looked.elapsed());
            if interrupt.is_set() {
                return Ok(Outcome::Done);
            }
            // A server that is silent holds up none of the others.
            if left.is_zero() && lookers.iter().any(|looker| looker.asked.is_none()) {
                break;
            }
            let left = if left.is_zero() { NAP } else { left };
            for key in Terminal::keys(left.min(NAP))? {
                if screen.press(key) == Wish::End {
                    return Ok(Outcome::Done);
                }
            }
        }
        if args.count.is_some_and(|count| looks >= count) {
            return Ok(Outcome::Done);
        }
    }
}

impl Screen {
    fn new(servers: Vec<(String, Result<Sample, String>)>) -> Self {
        Self { servers, sort: 1, is_reversed: false, selected: 0, first: 0, has_color: false }
    }

    fn press(&mut self, key: Key) -> Wish {
        match key {
            Key::Char('q' | '\x03') | Key::Escape => return Wish::End,
            Key::Right => self.sort = (self.sort + 1) % COLUMNS.len(),
            Key::Left => self.sort = (self.sort + COLUMNS.len() - 1) % COLUMNS.len(),
            Key::Char('r') => self.is_reversed = !self.is_reversed,
            Key::Down => self.selected += 1,
            Key::Up => self.selected = self.selected.saturating_sub(1),
            Key::PageDown => self.selected += PAGE_ROWS,
            Key::PageUp => self.selected = self.selected.saturating_sub(PAGE_ROWS),
            Key::Char(_) => {}
        }
        Wish::Nothing
    }

    /// Returns the lines of a screen with so many columns and lines, with the selected row.
    fn lines(&mut self, [width, height]: [usize; 2]) -> Vec<String> {
        let mut lines: Vec<_> = self.servers.iter().map(|it| self.summary(it, width)).collect();
        lines.push(String::new());
        lines.truncate(height.saturating_sub(TABLE_LINES_MIN));
        let table_lines = height.saturating_sub(lines.len() + 1).max(TABLE_LINES_MIN);

        let alive = self.servers.iter().filter_map(|(name, sample)| {
            sample.as_ref().ok().map(|sample| (name.clone(), sample.clone()))
        });
        let alive: Vec<_> = alive.collect();
        let rows = rows(&alive, self.servers.len() > 1, self.sort, self.is_reversed);
        self.selected = self.selected.min(rows.len().saturating_sub(1));
        let first_min = (self.selected + 2).saturating_sub(table_lines);
        self.first = self.first.clamp(first_min, self.selected);

        let widths = widths(&rows, width);
        lines.push(line(&COLUMNS, &widths, |at, _| {
            (DEFAULT_COLOR, if at == self.sort { "1;7" } else { BOLD })
        }));
        for (at, cells) in rows.iter().enumerate().skip(self.first).take(table_lines - 1) {
            let weight = if at == self.selected { BOLD } else { NORMAL };
            lines.push(line(cells, &widths, |at, text| match at {
                4 if text != "0" => (self.color(RED), weight),
                8 => (self.color(YELLOW), weight),
                _ => (DEFAULT_COLOR, weight),
            }));
        }
        lines.resize(lines.len().max(height.saturating_sub(1)), String::new());
        let keys = "q end   left, right: sort by   r: the other way round   up, down: scroll";
        lines.push(keys.chars().take(width).collect());
        lines.truncate(height);
        lines
    }

    fn color(&self, color: &'static str) -> &'static str {
        if self.has_color { color } else { DEFAULT_COLOR }
    }

    fn summary(&self, server: &(String, Result<Sample, String>), width: usize) -> String {
        let (name, sample) = server;
        let (numbers, notes) = match sample {
            Ok(sample) => {
                let Sample { server, uptime, connections, .. } = sample;
                let numbers = format!(
                    "{name}  up {uptime} s  {connections} connections  {:.0} put/s  {:.0} del/s",
                    server.puts, server.deletes
                );
                (numbers, sample.notes())
            }
            Err(error) => (String::new(), error.clone()),
        };
        let numbers: String = one_line(numbers.as_bytes()).chars().take(width).collect();
        let left = width - numbers.chars().count();
        let notes: String = one_line(notes.as_bytes()).chars().take(left).collect();
        numbers + &paint(&notes, (self.color(RED), NORMAL))
    }
}

/// Returns the widths of those columns that fit: the numbers take the space that they need, and the
/// name has the rest.
fn widths(rows: &[[String; 9]], width: usize) -> Vec<usize> {
    let longest = |at: usize| {
        let cells = rows.iter().map(|row| row[at].len());
        cells.chain([COLUMNS[at].len()]).max().unwrap_or(0)
    };
    let mut widths: Vec<_> = (0..COLUMNS.len()).map(longest).collect();
    let numbers: usize = widths[1..].iter().map(|width| width + 1).sum();
    widths[0] = width.saturating_sub(numbers).max(NAME_COLUMNS_MIN).min(width);
    let fits = |count: &usize| widths[..*count].iter().sum::<usize>() + count <= width + 1;
    widths.truncate((1..=COLUMNS.len()).take_while(fits).count());
    widths
}

/// Lays out a row: the name to the left, numbers to the right, each in its color and weight.
fn line<'a>(
    cells: &'a [impl AsRef<str>],
    widths: &[usize],
    style: impl Fn(usize, &'a str) -> (&'static str, &'static str),
) -> String {
    let mut line = String::new();
    for (at, (cell, &width)) in cells.iter().zip(widths).enumerate() {
        let text: String = one_line(cell.as_ref().as_bytes()).chars().take(width).collect();
        let gap = " ".repeat(width - text.chars().count());
        let text = paint(&text, style(at, cell.as_ref()));
        if at == 0 { line.extend([text, gap]) } else { line.extend([" ".to_owned(), gap, text]) }
    }
    line
}

fn paint(text: &str, (color, weight): (&str, &str)) -> String {
    format!("\x1b[{color};{weight}m{text}\x1b[0m")
}

#[cfg(test)]
mod tests {
    use super::super::top::{Line, Trouble};
    use super::*;

    #[test]
    fn a_lost_server_is_told_above_the_tubes_of_the_others() {
        let line = |tube: &str, ready: u64| Line {
            tube: tube.to_owned(),
            counts: [ready, 0, 0, 3, 0],
            puts: 12.0,
            deletes: 0.0,
            paused: 7,
            watching: 4,
        };
        let tubes = vec![line("mail", 5), line("images", 17)];
        let (server, uptime, connections) = (line("", 22), 60, 4);
        let (has_rates, stats) = (true, "draining: true\n".to_owned());
        let trouble = Some(Trouble { state: "full".to_owned(), age: 7 });
        let sample = Sample { server, tubes, uptime, connections, has_rates, stats, trouble };
        let servers =
            vec![("a:1".to_owned(), Ok(sample)), ("b:1".to_owned(), Err("b:1: lost".into()))];
        let mut screen = Screen::new(servers);
        let text = screen.lines([110, 10]).join("\n");
        let first = "a:1  up 60 s  4 connections  12 put/s  0 del/s";
        for part in [first, "  draining  binlog full", "b:1: lost", "q end"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let (images, mail) = (text.find("a:1 images").unwrap(), text.find("a:1 mail").unwrap());
        assert!(images < mail, "{text}");
        // In a small terminal the selected row is on the screen.
        screen.press(Key::PageDown);
        let lines = screen.lines([110, 4]);
        assert!(lines.len() == 4 && lines[3].contains("a:1 mail"), "{lines:?}");
        screen.press(Key::Up);
        screen.press(Key::Left);
        screen.press(Key::Char('r'));
        assert_eq!((screen.sort, screen.is_reversed), (0, true));
        assert_eq!(screen.press(Key::Char('q')), Wish::End);
    }
}
