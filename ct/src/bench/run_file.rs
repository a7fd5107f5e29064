//! Reads the Markdown table of a comparison, such as the table in `doc/performance/run-1.md`.
//!
//! [`Report::to_markdown`](super::report::Report::to_markdown) writes the table. The table has
//! medians of figures, and ratios with their ranges, but not the individual samples.

use std::collections::BTreeMap;

use super::report::FIGURES_BY_TITLE;
use super::stats::Spread;

/// The results of a base scenario have a label that consists of this text and the name of the row.
const BASE_LABEL: &str = "the first, as ";

/// The table of one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunFile {
    /// The rows, in the order of the table.
    pub rows: Vec<RunRow>,
}

/// One workload.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRow {
    /// The name, such as `connections/10`.
    pub name: String,
    /// The figures of each daemon, in the order of the table. If the workload is compared with a
    /// base scenario, one more [`Side`] follows: the first daemon's figures in that scenario.
    pub sides: Vec<Side>,
}

/// One daemon's figures in one row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Side {
    /// The daemon's name in the table.
    pub label: String,
    /// The figures by name, such as `rate`, `cpu` or `p99`; empty if the daemon failed.
    pub figures: BTreeMap<String, Figure>,
    /// The saturated side: the daemon, the load, both or none; empty if the row measures something
    /// other than a load.
    pub saturated: String,
}

/// One figure of one daemon, and the ratio of the first daemon's figure to this figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The median as the table shows it, such as `222,895`.
    pub text: String,
    /// The median.
    pub value: f64,
    /// The median, the smallest and the largest of the ratios; `None` if the table has no ratio.
    pub ratio: Option<Spread>,
}

impl RunFile {
    /// Reads the Markdown table of a run file, and ignores the other lines of the file.
    ///
    /// # Errors
    ///
    /// Fails if there is no table, or if a line cannot be parsed; the error shows that line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut run = Self::default();
        let mut lines = text.lines().skip_while(|line| !line.starts_with("| What | Daemon |"));
        if lines.next().is_none() {
            return Err("there is no table of ct-bench".to_owned());
        }
        for line in lines.skip(1).take_while(|line| line.starts_with('|')) {
            run.add(line).ok_or_else(|| format!("not a line of a table: {line}"))?;
        }
        Ok(run)
    }

    /// Finds a row of a run file by its name.
    pub fn row(&self, name: &str) -> Option<&RunRow> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Adds a line of the Markdown table, with the figures of a load, a single figure, or an error.
    fn add(&mut self, line: &str) -> Option<()> {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let [name, label, figure, ratio, rest @ ..] = &cells[..] else { return None };
        // If a row of the run has several lines for the first daemon, each of them begins with the
        // row's name.
        if !name.is_empty() && self.rows.last().is_none_or(|row| row.name != *name) {
            self.rows.push(RunRow { name: (*name).to_owned(), sides: Vec::new() });
        }
        let sides = &mut self.rows.last_mut()?.sides;
        if sides.last().is_none_or(|side| side.label != *label) {
            sides.push(Side { label: (*label).to_owned(), ..Side::default() });
        }
        let side = sides.last_mut()?;
        let (value, unit) = figure.split_once(' ').unwrap_or((figure, ""));
        let known = FIGURES_BY_TITLE.iter().find(|(_, title)| *title == unit);
        let Some((figure, _)) = known.filter(|_| decimal(value).is_some()) else {
            // The line has an error instead of figures.
            return Some(());
        };
        side.add(figure, value, ratio)?;
        if let ("rate", [cpu, cpu_ratio, p50, p99, saturated]) = (*figure, rest) {
            side.add("cpu", cpu, cpu_ratio)?;
            side.add("p50", p50, "")?;
            side.add("p99", p99, "")?;
            (*saturated).clone_into(&mut side.saturated);
        }
        Some(())
    }
}

impl RunRow {
    /// From a row of a run file, returns a figure of the first daemon.
    pub fn own(&self, figure: &str) -> Option<&Figure> {
        self.sides.first()?.figures.get(figure)
    }

    /// Returns two numbers from a row of a run file: a figure of the second daemon, and the first
    /// daemon's gain over it.
    pub fn other(&self, figure: &str) -> Option<&Figure> {
        self.sides.get(1)?.figures.get(figure)
    }

    /// From a row of a run file, returns a figure of the third daemon; `None` without a third
    /// daemon.
    pub fn rival(&self, figure: &str) -> Option<&Figure> {
        let is_daemon = |side: &&Side| side.label != "bare" && !side.label.starts_with(BASE_LABEL);
        self.sides.get(2).filter(is_daemon)?.figures.get(figure)
    }

    /// Returns a figure of the bare responder `ct-bare` from a row of a run file.
    pub fn bare(&self, figure: &str) -> Option<&Figure> {
        self.sides.iter().find(|side| side.label == "bare")?.figures.get(figure)
    }

    /// Returns a figure of the first daemon in the base scenario named `row`.
    pub fn base(&self, row: &str, figure: &str) -> Option<&Figure> {
        let name = |side: &&Side| side.label.strip_prefix(BASE_LABEL) == Some(row);
        self.sides.iter().find(name)?.figures.get(figure)
    }
}

impl Side {
    /// Adds a figure from a cell of the Markdown table, unless the cell is empty.
    fn add(&mut self, name: &str, text: &str, ratio: &str) -> Option<()> {
        if text.is_empty() {
            return Some(());
        }
        let ratio = if ratio.is_empty() { None } else { Some(spread(ratio)?) };
        let figure = Figure { text: text.to_owned(), value: decimal(text)?, ratio };
        self.figures.insert(name.to_owned(), figure);
        Some(())
    }
}

/// Parses a number of the Markdown table, which may have commas between thousands.
fn decimal(text: &str) -> Option<f64> {
    text.replace(',', "").parse().ok()
}

/// Parses a median with its range from the Markdown table, such as `1.48 (1.42–1.60)`.
fn spread(text: &str) -> Option<Spread> {
    let (median, ends) = text.split_once(" (")?;
    let (least, most) = ends.strip_suffix(')')?.split_once('–')?;
    Some(Spread { least: decimal(least)?, median: decimal(median)?, most: decimal(most)? })
}

#[cfg(test)]
mod tests {
    use super::super::outcome::{Outcome, Row, named};
    use super::super::report::Report;
    use super::*;

    /// Returns a report of two rounds, with an error of the third daemon, and with a base scenario.
    fn report() -> Report {
        let outcome = |label: &str, rates: [f64; 2]| Outcome {
            label: label.to_owned(),
            samples: rates
                .map(|rate| named([("rate", rate), ("cpu", 1e5 / rate), ("p99", 7.0)]))
                .into(),
            error: None,
        };
        let mut first = outcome("a", [30_000.0, 34_000.0]);
        first.samples[1].insert("calls".to_owned(), 2.5);
        let failed = Outcome { error: Some("2 bad".to_owned()), ..outcome("c", [1.0, 1.0]) };
        let row = Row {
            name: "x/10 use".to_owned(),
            about: String::new(),
            curve: None,
            results: vec![first, outcome("b", [20_000.0, 17_000.0]), failed],
            base: Some(outcome("x/1 use", [30_000.0, 34_000.0])),
        };
        let memory = Outcome {
            label: "a".to_owned(),
            samples: vec![named([("bytes_each", 141.0), ("megabytes_left", 5.2)])],
            error: None,
        };
        let memory = Row { name: "m".to_owned(), results: vec![memory], base: None, ..row.clone() };
        Report { rows: vec![row, memory], ..Report::default() }
    }

    #[test]
    fn what_a_report_writes_is_read_back() {
        let run = RunFile::parse(&format!("# Head\n\n{}\nTail\n", report().to_markdown())).unwrap();
        let names: Vec<&str> = run.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["x/10 use", "m"]);
        let row = run.row("x/10 use").unwrap();
        assert_eq!(row.own("rate").unwrap().text, "32,000");
        assert!((row.own("calls").unwrap().value - 2.5).abs() < 1e-9);
        let gain = row.other("rate").unwrap().ratio.unwrap();
        assert_eq!(gain, Spread { least: 1.5, median: 1.75, most: 2.0 });
        assert!(row.other("cpu").unwrap().ratio.is_some());
        assert!((row.other("p99").unwrap().value - 7.0).abs() < 1e-9);
        assert!(row.sides[2].figures.is_empty(), "{row:?}");
        assert_eq!((row.rival("rate"), run.row("m").unwrap().rival("rate")), (None, None));
        assert_eq!(row.base("x/1 use", "rate").unwrap().text, "32,000");
        assert_eq!(row.base("x/2 use", "rate"), None);
        assert_eq!(run.row("m").unwrap().own("megabytes_left").unwrap().text, "5.20");
    }

    #[test]
    fn what_is_no_table_is_an_error() {
        assert!(RunFile::parse("# Head\n").is_err());
        let table = report().to_markdown().replace("1.75 (1.50", "1.75 [1.50");
        let error = RunFile::parse(&table).unwrap_err();
        assert!(error.contains("1.75 [1.50"), "{error}");
    }
}
