//! The full screen of `top`.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use ratatui::DefaultTerminal;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as TextLine, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

use super::top::{COLUMNS, Sample, Watch, rows};
use crate::cli::TopArgs;
use crate::context::Outcome;
use crate::filter::Tubes;
use crate::interrupt::Interrupt;

/// The longest wait for a key before Ctrl-C is noticed.
const NAP: Duration = Duration::from_millis(100);

/// What the user sees and has chosen.
struct Screen {
    /// Each server's name, and its last sample or why there is none.
    servers: Vec<(String, Result<Sample, String>)>,
    sort: usize,
    is_reversed: bool,
    scroll: TableState,
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
    let mut terminal = ratatui::try_init()?;
    let result = watch(&mut terminal, args, watches, interrupt);
    ratatui::try_restore()?;
    result
}

fn watch(
    terminal: &mut DefaultTerminal,
    args: &TopArgs,
    mut lookers: Vec<Looker>,
    interrupt: &Interrupt,
) -> Result<Outcome> {
    let scroll = TableState::default().with_selected(0);
    let silent = |looker: &Looker| (looker.name.clone(), Err(looker.silence()));
    let servers = lookers.iter().map(silent).collect();
    let mut screen = Screen { servers, sort: 1, is_reversed: false, scroll };
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
            terminal.draw(|frame| screen.draw(frame))?;
            let left = Duration::from_secs(args.interval).saturating_sub(looked.elapsed());
            if interrupt.is_set() {
                return Ok(Outcome::Done);
            }
            // A server that is silent holds up none of the others.
            if left.is_zero() && lookers.iter().any(|looker| looker.asked.is_none()) {
                break;
            }
            let left = if left.is_zero() { NAP } else { left };
            if event::poll(left.min(NAP))?
                && key_of(&event::read()?).is_some_and(|key| screen.press(key) == Wish::End)
            {
                return Ok(Outcome::Done);
            }
        }
        if args.count.is_some_and(|count| looks >= count) {
            return Ok(Outcome::Done);
        }
    }
}

/// Returns the key of an event; Ctrl-C is `q`, because a full screen gets no signal for it.
fn key_of(event: &Event) -> Option<KeyCode> {
    let Event::Key(key) = event else { return None };
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(if is_control && key.code == KeyCode::Char('c') { KeyCode::Char('q') } else { key.code })
}

impl Screen {
    fn press(&mut self, key: KeyCode) -> Wish {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::End,
            KeyCode::Right => self.sort = (self.sort + 1) % COLUMNS.len(),
            KeyCode::Left => self.sort = (self.sort + COLUMNS.len() - 1) % COLUMNS.len(),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Down => self.scroll.select_next(),
            KeyCode::Up => self.scroll.select_previous(),
            KeyCode::PageDown => self.scroll.scroll_down_by(20),
            KeyCode::PageUp => self.scroll.scroll_up_by(20),
            _ => {}
        }
        Wish::Nothing
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let count = u16::try_from(self.servers.len()).unwrap_or(u16::MAX);
        let parts = [Constraint::Length(count + 1), Constraint::Min(3), Constraint::Length(1)];
        let [head, body, foot] = Layout::vertical(parts).areas(frame.area());
        let lines: Vec<TextLine<'_>> = self.servers.iter().map(Self::summary).collect();
        frame.render_widget(Paragraph::new(lines), head);

        let alive = self.servers.iter().filter_map(|(name, sample)| {
            sample.as_ref().ok().map(|sample| (name.clone(), sample.clone()))
        });
        let alive: Vec<_> = alive.collect();
        let rows = rows(&alive, self.servers.len() > 1, self.sort, self.is_reversed);
        // The numbers take what they need, so that the columns fit into 80 characters.
        let width = |at: usize| {
            let longest = rows.iter().map(|row| row[at].len()).max().unwrap_or(0);
            u16::try_from(longest.max(COLUMNS[at].len())).unwrap_or(u16::MAX)
        };
        let numbers: Vec<_> = (1..COLUMNS.len()).map(width).map(Constraint::Length).collect();
        let rows = rows.into_iter().map(|cells| {
            let tone = |at: usize, text: &str| match at {
                4 if text != "0" => Style::new().fg(Color::Red),
                8 => Style::new().fg(Color::Yellow),
                _ => Style::new(),
            };
            let cells = cells.into_iter().enumerate().map(|(at, text)| {
                let style = tone(at, &text);
                let line = TextLine::from(text);
                Cell::from(if at == 0 { line } else { line.right_aligned() }).style(style)
            });
            Row::new(cells)
        });
        let heading = COLUMNS.iter().enumerate().map(|(at, name)| {
            let style = Style::new().add_modifier(Modifier::BOLD);
            let style =
                if at == self.sort { style.add_modifier(Modifier::REVERSED) } else { style };
            let line = TextLine::from(Span::styled(*name, style));
            Cell::from(if at == 0 { line } else { line.right_aligned() })
        });
        let widths = std::iter::once(Constraint::Min(12)).chain(numbers);
        let table = Table::new(rows, widths)
            .header(Row::new(heading))
            .row_highlight_style(Style::new().add_modifier(Modifier::BOLD));
        frame.render_stateful_widget(table, body, &mut self.scroll);
        let keys = "q end   left, right: sort by   r: the other way round   up, down: scroll";
        frame.render_widget(Paragraph::new(keys), foot);
    }

    fn summary((name, sample): &(String, Result<Sample, String>)) -> TextLine<'_> {
        match sample {
            Ok(sample) => {
                let Sample { server, uptime, connections, .. } = sample;
                let numbers = format!(
                    "{name}  up {uptime} s  {connections} connections  {:.0} put/s  {:.0} del/s",
                    server.puts, server.deletes
                );
                let notes = Span::styled(sample.notes(), Style::new().fg(Color::Red));
                TextLine::from_iter([Span::from(numbers), notes])
            }
            Err(error) => TextLine::styled(error.clone(), Style::new().fg(Color::Red)),
        }
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

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
        };
        let tubes = vec![line("mail", 5), line("images", 17)];
        let (server, uptime, connections) = (line("", 22), 60, 4);
        let (has_rates, stats) = (true, "draining: true\n".to_owned());
        let trouble = Some(Trouble { state: "full".to_owned(), age: 7 });
        let sample = Sample { server, tubes, uptime, connections, has_rates, stats, trouble };
        let servers =
            vec![("a:1".to_owned(), Ok(sample)), ("b:1".to_owned(), Err("b:1: lost".into()))];
        let scroll = TableState::default();
        let mut screen = Screen { servers, sort: 1, is_reversed: false, scroll };
        let mut terminal = Terminal::new(TestBackend::new(110, 10)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let text = terminal.backend().to_string();
        let first = "a:1  up 60 s  4 connections  12 put/s  0 del/s  draining  binlog full";
        for part in [first, "b:1: lost", "q end"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let (images, mail) = (text.find("a:1 images").unwrap(), text.find("a:1 mail").unwrap());
        assert!(images < mail, "{text}");
        screen.press(KeyCode::Left);
        screen.press(KeyCode::Char('r'));
        assert_eq!((screen.sort, screen.is_reversed), (0, true));
        assert_eq!(screen.press(KeyCode::Char('q')), Wish::End);
    }
}
