//! The full screen of `top`.

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::args::TopArgs;
use crate::context::Outcome;
use crate::filter::Tubes;
use crate::interrupt::Interrupt;
use crate::output::inert_body;
use crate::progress::count_as_f64;
use crate::sample::{Sample, Sampler, TubeSample};
use crate::terminal::{Key, Terminal};

/// While no key is pressed, `top` checks at this interval for new samples and Ctrl-C.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(100);

/// The least number of lines for the table with its heading.
const TABLE_LINES_MIN: usize = 3;
/// The least number of characters for a name.
const NAME_COLUMNS_MIN: usize = 12;

/// The number of rows by which `PageUp` and `PageDown` move the selection.
const PAGE_KEY_ROWS: usize = 20;

/// Colors and font weights, as parameters of control sequences.
const DEFAULT_COLOR: &str = "39";
const RED: &str = "31";
const YELLOW: &str = "33";
const NORMAL: &str = "22";
const BOLD: &str = "1";

/// The state of the screen.
struct Screen {
    /// Each server's name, with its last sample or error.
    servers: Vec<(String, Result<Sample, String>)>,
    sort: usize,
    is_reversed: bool,
    /// The index of the selected row, which is bold.
    selected: usize,
    /// The index of the first row on the screen.
    first: usize,
    has_color: bool,
}

/// The samples of a server, and the time of the last sample.
type Samples = (Receiver<Result<Sample, String>>, Instant);

/// How long a sample may be overdue before the screen shows that the server does not answer.
const LATE_TIME: Duration = Duration::from_secs(1);

/// Samples a server for the screen in a separate thread, so that a server that does not answer
/// delays neither the effect of keys nor the other servers. The thread runs until the program
/// exits.
fn start_sampling(mut sampler: Sampler, selected: Tubes, interval: Duration) -> Samples {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        loop {
            let began = Instant::now();
            let sample = sampler.sample(&selected).map_err(|error| format!("{error:#}"));
            if sender.send(sample).is_err() {
                return;
            }
            thread::sleep(interval.saturating_sub(began.elapsed()));
        }
    });
    (receiver, Instant::now())
}

/// Whether a pressed key ends the full screen.
#[derive(Debug, PartialEq, Eq)]
enum KeyEffect {
    End,
    Nothing,
}

/// Shows the screen of `top` until the user quits, or until `--count` updates were shown.
pub(crate) fn run(
    args: &TopArgs,
    samplers: Vec<Sampler>,
    selected: &Tubes,
    interrupt: &Interrupt,
) -> Result<Outcome> {
    let interval = Duration::from_secs(args.interval);
    let servers = samplers.iter().map(|it| (it.address.to_string(), Err(String::new()))).collect();
    let start = |sampler| start_sampling(sampler, selected.clone(), interval);
    let mut all: Vec<_> = samplers.into_iter().map(start).collect();
    let mut terminal = Terminal::open()?;
    let mut screen = Screen::new(servers);
    screen.has_color = std::env::var_os("NO_COLOR").is_none();
    let mut counts = vec![0; all.len()];
    while !interrupt.is_set() {
        for (at, (samples, heard)) in all.iter_mut().enumerate() {
            let (name, last) = &mut screen.servers[at];
            for sample in samples.try_iter() {
                (*last, *heard) = (sample, Instant::now());
                counts[at] += 1;
            }
            if counts[at] == 0 || heard.elapsed() >= interval + LATE_TIME {
                let seconds = heard.elapsed().as_secs();
                *last = Err(format!("{name}: no answer for {seconds} s"));
            }
        }
        if args.count.is_some_and(|count| counts.iter().any(|it| *it > count)) {
            break;
        }
        let size = Terminal::size()?;
        terminal.draw(&screen.lines(size), size)?;
        for key in Terminal::keys(INTERRUPT_INTERVAL)? {
            if screen.press(key) == KeyEffect::End {
                return Ok(Outcome::Done);
            }
        }
    }
    Ok(Outcome::Done)
}

impl Screen {
    /// Makes the screen of `top`, with the servers that it shows.
    fn new(servers: Vec<(String, Result<Sample, String>)>) -> Self {
        Self { servers, sort: 1, is_reversed: false, selected: 0, first: 0, has_color: false }
    }

    /// Changes the screen after a key was pressed.
    fn press(&mut self, key: Key) -> KeyEffect {
        match key {
            Key::Char('q' | '\x03') | Key::Escape => return KeyEffect::End,
            Key::Right => self.sort = (self.sort + 1) % COLUMNS.len(),
            Key::Left => self.sort = (self.sort + COLUMNS.len() - 1) % COLUMNS.len(),
            Key::Char('r') => self.is_reversed = !self.is_reversed,
            Key::Down => self.selected += 1,
            Key::Up => self.selected = self.selected.saturating_sub(1),
            Key::PageDown => self.selected += PAGE_KEY_ROWS,
            Key::PageUp => self.selected = self.selected.saturating_sub(PAGE_KEY_ROWS),
            Key::Char(_) => {}
        }
        KeyEffect::Nothing
    }

    /// Returns the lines of `top` for a screen of this size; the selected row is among the lines.
    fn lines(&mut self, [width, height]: [usize; 2]) -> Vec<String> {
        let mut lines: Vec<_> = self.servers.iter().map(|it| self.summary(it, width)).collect();
        lines.push(String::new());
        lines.truncate(height.saturating_sub(TABLE_LINES_MIN));
        let table_lines = height.saturating_sub(lines.len() + 1).max(TABLE_LINES_MIN);

        let alive = self.servers.iter().filter_map(|(name, sample)| {
            sample.as_ref().ok().map(|sample| (name.clone(), sample.clone()))
        });
        let alive: Vec<_> = alive.collect();
        let rows = screen_rows(&alive, self.servers.len() > 1, self.sort, self.is_reversed);
        self.selected = self.selected.min(rows.len().saturating_sub(1));
        let first_min = (self.selected + 2).saturating_sub(table_lines);
        self.first = self.first.clamp(first_min, self.selected);

        let widths = Self::column_widths(&rows, width);
        lines.push(Self::screen_line(&COLUMNS, &widths, |at, _| {
            (DEFAULT_COLOR, if at == self.sort { "1;7" } else { BOLD })
        }));
        for (at, cells) in rows.iter().enumerate().skip(self.first).take(table_lines - 1) {
            let weight = if at == self.selected { BOLD } else { NORMAL };
            lines.push(Self::screen_line(cells, &widths, |at, text| match at {
                4 if text != "0" => (self.color(RED), weight),
                8 => (self.color(YELLOW), weight),
                _ => (DEFAULT_COLOR, weight),
            }));
        }
        lines.resize(lines.len().max(height.saturating_sub(1)), String::new());
        let keys = "q: quit   left, right: sort column   r: reverse   up, down: scroll";
        lines.push(keys.chars().take(width).collect());
        lines.truncate(height);
        lines
    }

    /// Returns this color, or the default color for a screen without colors.
    fn color(&self, color: &'static str) -> &'static str {
        if self.has_color { color } else { DEFAULT_COLOR }
    }

    /// Formats the summary of a server, which is one line above the rows of the screen.
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
        let numbers: String = inert_body(numbers.as_bytes()).chars().take(width).collect();
        let left = width - numbers.chars().count();
        let notes: String = inert_body(notes.as_bytes()).chars().take(left).collect();
        numbers + &Self::paint(&notes, (self.color(RED), NORMAL))
    }

    /// Returns the widths of the screen's columns that fit: numbers get the space that they need,
    /// and the name gets the rest.
    fn column_widths(rows: &[[String; 9]], width: usize) -> Vec<usize> {
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

    /// Formats a row of the screen: the name aligned left, numbers aligned right, each in its color
    /// and weight.
    fn screen_line<'a>(
        cells: &'a [impl AsRef<str>],
        widths: &[usize],
        style: impl Fn(usize, &'a str) -> (&'static str, &'static str),
    ) -> String {
        let mut line = String::new();
        for (at, (cell, &width)) in cells.iter().zip(widths).enumerate() {
            let text: String = inert_body(cell.as_ref().as_bytes()).chars().take(width).collect();
            let gap = " ".repeat(width - text.chars().count());
            let text = Self::paint(&text, style(at, cell.as_ref()));
            line += &if at == 0 { text + &gap } else { [" ", &gap, &text].concat() };
        }
        line
    }

    /// Makes a text of the screen appear in a color and weight.
    fn paint(text: &str, (color, weight): (&str, &str)) -> String {
        format!("\x1b[{color};{weight}m{text}\x1b[0m")
    }
}

/// Makes the rows of the screen, sorted by a column.
pub(crate) fn screen_rows(
    samples: &[(String, Sample)],
    has_servers: bool,
    sort: usize,
    is_reversed: bool,
) -> Vec<[String; 9]> {
    let mut rows: Vec<(&str, &TubeSample)> = samples
        .iter()
        .flat_map(|(server, sample)| sample.tubes.iter().map(|tube| (server.as_str(), tube)))
        .collect();
    let value = |line: &TubeSample| match sort {
        1..=5 => count_as_f64(line.counts[sort - 1]),
        6 => line.puts,
        7 => line.deletes,
        _ => count_as_f64(line.paused),
    };
    rows.sort_by(|left, right| match sort {
        0 => (&left.1.tube, left.0).cmp(&(&right.1.tube, right.0)),
        _ => value(right.1).total_cmp(&value(left.1)).then_with(|| left.1.tube.cmp(&right.1.tube)),
    });
    if is_reversed {
        rows.reverse();
    }
    let row = |(server, line): (&str, &TubeSample)| {
        let name = if has_servers { format!("{server} {}", line.tube) } else { line.tube.clone() };
        let [ready, reserved, delayed, buried, waiting] =
            line.counts.map(|count| count.to_string());
        let (puts, deletes) = (format!("{:.0}", line.puts), format!("{:.0}", line.deletes));
        let paused = if line.paused > 0 { line.paused.to_string() } else { String::new() };
        [name, ready, reserved, delayed, buried, waiting, puts, deletes, paused]
    };
    rows.into_iter().map(row).collect()
}

/// The columns of [`screen_rows`].
pub(crate) const COLUMNS: [&str; 9] =
    ["tube", "ready", "reserved", "delayed", "buried", "waiting", "put/s", "del/s", "paused"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::TubeSample;

    #[test]
    fn a_lost_server_is_told_above_the_tubes_of_the_others() {
        let line = |tube: &str, ready: u64| TubeSample {
            tube: tube.to_owned(),
            counts: [ready, 0, 0, 3, 0],
            puts: 12.0,
            deletes: 0.0,
            paused: 7,
            watching: 4,
        };
        let tubes = vec![line("mail", 5), line("images", 17)];
        let (server, uptime, connections) = (line("", 22), 60, 4);
        let (has_rates, stats) = (true, "draining: true\nbinlog-state: full\n".to_owned());
        let sample = Sample { server, tubes, uptime, connections, has_rates, stats };
        let servers =
            vec![("a:1".to_owned(), Ok(sample)), ("b:1".to_owned(), Err("b:1: lost".into()))];
        let mut screen = Screen::new(servers);
        let text = screen.lines([110, 10]).join("\n");
        let first = "a:1  up 60 s  4 connections  12 put/s  0 del/s";
        for part in [first, "  draining  binlog full", "b:1: lost", "q: quit"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let (images, mail) = (text.find("a:1 images").unwrap(), text.find("a:1 mail").unwrap());
        assert!(images < mail, "{text}");
        // Even in a small terminal, the selected row is on the screen.
        screen.press(Key::PageDown);
        let lines = screen.lines([110, 4]);
        assert!(lines.len() == 4 && lines[3].contains("a:1 mail"), "{lines:?}");
        screen.press(Key::Up);
        screen.press(Key::Left);
        screen.press(Key::Char('r'));
        assert_eq!((screen.sort, screen.is_reversed), (0, true));
        assert_eq!(screen.press(Key::Char('q')), KeyEffect::End);
    }

    #[test]
    fn rows_are_sorted_by_any_column() {
        let line = |tube: &str, ready: u64, puts: f64| TubeSample {
            tube: tube.to_owned(),
            counts: [ready, 0, 0, 0, 0],
            puts,
            deletes: 0.0,
            paused: 0,
            watching: 0,
        };
        let tubes = vec![line("b", 9, 1.0), line("a", 10, 0.0), line("c", 9, 5.0)];
        let server = line("", 0, 0.0);
        let (uptime, connections, has_rates, stats) = (1, 1, true, String::new());
        let sample = Sample { server, tubes, uptime, connections, has_rates, stats };
        let samples = [("s".to_owned(), sample)];
        let names = |sort, is_reversed| {
            let rows = screen_rows(&samples, false, sort, is_reversed);
            rows.iter().map(|row| row[0].clone()).collect::<String>()
        };
        assert_eq!(names(0, false), "abc");
        assert_eq!(names(1, false), "abc");
        assert_eq!(names(6, false), "cba");
        assert_eq!(names(1, true), "cba");
        assert_eq!(screen_rows(&samples, true, 0, false)[0][0], "s a");
    }
}
