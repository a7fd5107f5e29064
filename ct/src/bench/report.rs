//! The results of a comparison: a table for the terminal, Markdown for documents, JSON for files.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::outcome::{Outcome, Row, Sample};
use super::stats::Spread;

/// All results of a comparison, with the command and the machine, to repeat the comparison.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The command line.
    pub command: String,
    /// When the comparison began, in UTC; empty in files of old versions.
    pub date: String,
    /// The commit of the sources, or `modified`; `None` outside git and in files of old versions.
    pub commit: Option<String>,
    /// The machine, its kernel, and how daemon and load shared its cores.
    pub machine: String,
    /// The programs that were compared.
    pub targets: Vec<Build>,
    /// The rows, one for each phase of a scenario.
    pub rows: Vec<Row>,
}

/// One of the programs that were compared.
#[derive(Debug, Clone, Default)]
pub struct Build {
    /// The program's name in the table.
    pub label: String,
    /// How the program was started.
    pub command: String,
    /// The version in `stats`; empty for the bare responder and in files of old versions.
    pub version: String,
    /// The SHA-256 of the program's file; empty in files of old versions.
    pub sha256: String,
}

/// The figures in the columns of the terminal's table; all other figures have lines of their own.
const COLUMNS: [&str; 12] = [
    "rate",
    "cpu",
    "p50",
    "p99",
    "p99.9",
    "max",
    "busy",
    "waited",
    "load_cpu",
    "load_busy",
    "load_waited",
    "system_share",
];

/// The figures that have lines in the Markdown table, each with the words that follow its number.
pub(crate) const FIGURES_BY_TITLE: [(&str, &str); 11] = [
    ("rate", "commands/s"),
    ("sojourn_p50", "µs from put to RESERVED, half of the jobs"),
    ("sojourn_p99", "µs from put to RESERVED, 99 % of the jobs"),
    ("calls", "system calls a command"),
    ("bytes_each", "bytes of resident memory each"),
    ("megabytes_left", "MB of resident memory left"),
    ("longest_wait", "µs of the longest wait"),
    ("seconds", "s until it answers"),
    ("cpu_seconds", "s of CPU time until it answers"),
    ("unlogged_p99", "µs of latency of commands that need no sync, 99 % of them"),
    ("puts_per_sync", "jobs put for each sync"),
];

impl Report {
    /// Returns the head of the report's table and the meaning of its columns.
    pub fn head() -> String {
        let mut text = "\
The first daemon is compared with each of the others: × is its figure divided by theirs, the median
of pairwise ratios with the smallest and the largest. CPU is the daemon's per command, latencies are
measured by the load; both in µs. The last column names the side that had no time left; sys is the
kernel's share of the daemon's CPU time, and load is the load's own CPU per command.

"
        .to_owned();
        let _ = writeln!(
            text,
            "{:22} {:>10} {:20} {:>8} {:16} {:>8} {:>8} {:>8} {:>9} {:>4} {:>6} saturated",
            "", "commands/s", "×", "CPU", "×", "p50", "p99", "p99.9", "max", "sys", "load",
        );
        text
    }

    /// Returns the report as JSON, with one row per line.
    pub fn to_text(&self) -> String {
        let mut value = self.to_json();
        let rows = value["rows"].take();
        let rows: Vec<String> =
            rows.as_array().into_iter().flatten().map(Value::to_string).collect();
        let head = value.to_string().replace("\"rows\":null", "\"rows\":[\n");
        let (before, after) = head.split_once("[\n").unwrap_or((&head, ""));
        format!("{before}[\n{}\n]{after}\n", rows.join(",\n"))
    }

    /// Returns the report as JSON with every sample, and adds medians and ratios for human readers.
    pub fn to_json(&self) -> Value {
        let target = |one: &Build| {
            let (version, sum) = (&one.version, &one.sha256);
            json!({ "label": one.label, "command": one.command, "version": version, "sha256": sum })
        };
        let targets: Vec<Value> = self.targets.iter().map(target).collect();
        let rows: Vec<Value> = self.rows.iter().map(row_to_json).collect();
        let Self { command, date, commit, machine, .. } = self;
        json!({
            "command": command,
            "date": date,
            "commit": commit,
            "machine": machine,
            "targets": targets,
            "rows": rows,
        })
    }

    /// Makes a report from the JSON of [`Report::to_json`]; `None` if `value` is other JSON.
    pub fn from_json(value: &Value) -> Option<Self> {
        let text = |value: &Value, name: &str| Some(value.get(name)?.as_str()?.to_owned());
        let targets = value.get("targets")?.as_array()?.iter();
        let targets = targets.map(|one| {
            Some(Build {
                label: text(one, "label")?,
                command: text(one, "command")?,
                version: text(one, "version").unwrap_or_default(),
                sha256: text(one, "sha256").unwrap_or_default(),
            })
        });
        let rows = value.get("rows")?.as_array()?.iter().map(row_from_json);
        Some(Self {
            command: text(value, "command")?,
            date: text(value, "date").unwrap_or_default(),
            commit: text(value, "commit"),
            machine: text(value, "machine")?,
            targets: targets.collect::<Option<_>>()?,
            rows: rows.collect::<Option<_>>()?,
        })
    }

    /// Returns the report in Markdown; its table has a line for each workload and target.
    pub fn to_markdown(&self) -> String {
        let mut text = String::new();
        if !self.date.is_empty() {
            let commit = self.commit.as_deref().unwrap_or("none");
            let _ = writeln!(text, "Run: {}, commit {commit}\n", self.date);
        }
        let _ = writeln!(text, "Machine: {}\n", self.machine);
        for Build { label, command, version, sha256 } in &self.targets {
            let _ = write!(text, "- {label}: `{command}`");
            for (name, value) in [("version", version), ("sha256", sha256)] {
                if !value.is_empty() {
                    let _ = write!(text, ", {name} `{value}`");
                }
            }
            text.push('\n');
        }
        let _ = writeln!(text, "\nTo repeat it: `{}`\n", self.command);
        text += "| What | Daemon | Figure | × | CPU, µs | × ";
        text += "| p50, µs | p99, µs | Saturated |\n";
        text += "|---|---|---|---|---|---|---|---|---|\n";
        for row in &self.rows {
            for (index, result) in row.results.iter().enumerate() {
                text += &markdown_line(row, index, result);
            }
            if let Some(base) = &row.base {
                let label = format!("the first, as {}", base.label);
                text += &markdown_line(row, row.results.len(), &Outcome { label, ..base.clone() });
            }
        }
        text
    }
}

/// Returns a row of the table as lines for a terminal.
pub fn table_row(row: &Row) -> String {
    let mut text = format!("{}: {}\n", row.name, row.about);
    for (index, result) in row.results.iter().enumerate() {
        let subject = row.results.first().filter(|_| index > 0);
        if let Some(error) = &result.error {
            let _ = writeln!(text, "  {:20} ERROR: {error}", result.label);
        }
        if result.spread("rate").is_some() {
            text += &load_line(result, subject);
        }
        text += &other_lines(result, subject);
    }
    if let Some(base) = &row.base {
        let label = format!("as {}", base.label);
        if let Some(error) = &base.error {
            let _ = writeln!(text, "  {label} ERROR: {error}");
        }
        text += &load_line(&Outcome { label, ..base.clone() }, row.results.first());
    }
    text
}

/// Returns the line of the terminal's table that shows a target's rate, CPU time and latencies
/// under a load.
fn load_line(result: &Outcome, subject: Option<&Outcome>) -> String {
    let cell = |figure: &str| result.spread(figure).map(|spread| number(spread.median));
    let cell = |figure: &str| cell(figure).unwrap_or_default();
    let ratio = |figure: &str| subject.and_then(|subject| subject.ratio_to(result, figure));
    let ratio = |figure: &str| ratio(figure).as_ref().map(ratio_text).unwrap_or_default();
    let system = result.spread("system_share").map_or(0.0, |spread| spread.median * 100.0);
    format!(
        "  {:20} {:>10} {:20} {:>8} {:16} {:>8} {:>8} {:>8} {:>9} {:>3.0}% {:>6} {}\n",
        result.label,
        cell("rate"),
        ratio("rate"),
        cell("cpu"),
        ratio("cpu"),
        cell("p50"),
        cell("p99"),
        cell("p99.9"),
        cell("max"),
        system,
        cell("load_cpu"),
        result.saturated(),
    )
}

/// Returns a line of the terminal's table for each figure that has no column.
fn other_lines(result: &Outcome, subject: Option<&Outcome>) -> String {
    let mut text = String::new();
    for figure in other_figures(result) {
        let Some(spread) = result.spread(figure) else { continue };
        let ratio = subject.and_then(|subject| subject.ratio_to(result, figure));
        let ratio = ratio.as_ref().map(|ratio| format!("× {}", ratio_text(ratio)));
        let (what, median) = (title(figure), number(spread.median));
        let _ = writeln!(
            text,
            "  {:20} {median:>10} {what} ({} to {}) {}",
            result.label,
            number(spread.least),
            number(spread.most),
            ratio.unwrap_or_default()
        );
    }
    text
}

/// Returns the names of a result's figures that have no column in the report's table.
fn other_figures(result: &Outcome) -> Vec<&str> {
    // Takes the names from the last sample, because figures measured only once are in that sample.
    let names = result.samples.last().into_iter().flat_map(Sample::keys).map(String::as_str);
    names.filter(|name| !COLUMNS.contains(name)).collect()
}

/// Returns the title of a kind of figure in the report's table, or the kind's name if it has no
/// title.
fn title(figure: &str) -> &str {
    let known = FIGURES_BY_TITLE.iter().find(|(name, _)| *name == figure);
    known.map_or(figure, |(_, title)| title)
}

/// Returns the lines of the Markdown table for the results of one target in one [`Row`].
fn markdown_line(row: &Row, index: usize, result: &Outcome) -> String {
    let subject = row.results.first().filter(|_| index > 0);
    let median = |figure: &str| result.spread(figure).map(|spread| number(spread.median));
    let ratio = |figure: &str| {
        let ratio = subject.and_then(|subject| subject.ratio_to(result, figure));
        ratio.as_ref().map(ratio_text).unwrap_or_default()
    };
    let label = &result.label;
    let name = if index == 0 { row.name.as_str() } else { "" };
    if let Some(error) = &result.error {
        return format!("| {name} | {label} | {error} | | | | | | |\n");
    }
    let mut text = String::new();
    if let Some(rate) = median("rate") {
        let cell = |figure| median(figure).unwrap_or_default();
        let _ = writeln!(
            text,
            "| {name} | {label} | {rate} commands/s | {} | {} | {} | {} | {} | {} |",
            ratio("rate"),
            cell("cpu"),
            ratio("cpu"),
            cell("p50"),
            cell("p99"),
            result.saturated(),
        );
    }
    for figure in other_figures(result) {
        let (value, what) = (median(figure).unwrap_or_default(), title(figure));
        let _ =
            writeln!(text, "| {name} | {label} | {value} {what} | {} | | | | | |", ratio(figure));
    }
    text
}

/// Formats a figure of the report with about three significant digits and commas between thousands.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    let (whole, fraction) = text.split_once('.').map_or((text.as_str(), ""), |parts| parts);
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 && digit.is_ascii_digit() {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if fraction.is_empty() { grouped } else { format!("{grouped}.{fraction}") }
}

/// Formats a ratio of the report: with two decimals below ten, one below a hundred, and otherwise
/// none.
pub fn ratio_number(value: f64) -> String {
    if value < 1.0 { format!("{value:.2}") } else { number(value) }
}

/// Formats a ratio with its range, for the Markdown table.
fn ratio_text(ratio: &Spread) -> String {
    format!("{:.2} ({:.2}–{:.2})", ratio.median, ratio.least, ratio.most)
}

/// Converts a row of the report to JSON.
fn row_to_json(row: &Row) -> Value {
    let to_json = |result: &Outcome| {
        let subject = &row.results[0];
        json!({
            "label": result.label,
            "error": result.error,
            "saturated": result.spread("rate").map(|_| result.saturated()),
            "medians": figures(result, |figure| result.spread(figure)),
            "ratios": figures(result, |figure| subject.ratio_to(result, figure)),
            "samples": result.samples,
        })
    };
    let results: Vec<Value> = row.results.iter().map(to_json).collect();
    let base = row.base.as_ref().map(to_json);
    let curve = row.curve.as_ref().map(|(what, value)| json!({ "what": what, "value": value }));
    let (name, about) = (&row.name, &row.about);
    json!({ "name": name, "about": about, "curve": curve, "results": results, "base": base })
}

/// Converts medians and ranges of a result to JSON, for the report.
fn figures(result: &Outcome, spread: impl Fn(&str) -> Option<Spread>) -> Value {
    let names = result.samples.last().into_iter().flat_map(Sample::keys);
    let figure = |name: &String| {
        let Spread { least, median, most } = spread(name)?;
        Some((name.clone(), json!({ "median": median, "least": least, "most": most })))
    };
    Value::Object(names.filter_map(figure).collect())
}

/// Makes a row of the report from its JSON.
fn row_from_json(value: &Value) -> Option<Row> {
    let text = |value: &Value, name: &str| Some(value.get(name)?.as_str()?.to_owned());
    let result = |value: &Value| {
        let samples = value.get("samples")?.as_array()?.iter().map(|sample| {
            let figure = |(name, value): (&String, &Value)| Some((name.clone(), value.as_f64()?));
            sample.as_object()?.iter().map(figure).collect::<Option<Sample>>()
        });
        Some(Outcome {
            label: text(value, "label")?,
            samples: samples.collect::<Option<_>>()?,
            error: text(value, "error"),
        })
    };
    let curve = value
        .get("curve")
        .and_then(|curve| Some((text(curve, "what")?, curve.get("value")?.as_f64()?)));
    let results = value.get("results")?.as_array()?.iter().map(result);
    Some(Row {
        name: text(value, "name")?,
        about: text(value, "about")?,
        curve,
        results: results.collect::<Option<_>>()?,
        base: value.get("base").and_then(result),
    })
}

#[cfg(test)]
mod tests {
    use super::super::outcome::named;
    use super::*;

    fn report() -> Report {
        let outcome = |label: &str, rates: [f64; 2]| Outcome {
            label: label.to_owned(),
            samples: rates.map(|rate| named([("rate", rate), ("cpu", 1e5 / rate)])).into(),
            error: None,
        };
        let failed = Outcome {
            label: "c".to_owned(),
            samples: Vec::new(),
            error: Some("it | broke".to_owned()),
        };
        let results =
            vec![outcome("a", [30_000.0, 34_000.0]), outcome("b", [20_000.0, 17_000.0]), failed];
        let row = |name: &str, curve| Row {
            name: name.to_owned(),
            about: "something".to_owned(),
            curve,
            results: results.clone(),
            base: None,
        };
        Report {
            command: "ct-bench compare a b".to_owned(),
            date: "2026-11-26T21:40:00Z".to_owned(),
            commit: Some("c0ffee".to_owned()),
            machine: "one".to_owned(),
            targets: vec![Build {
                label: "a".to_owned(),
                command: "./a".to_owned(),
                version: "2.0.0".to_owned(),
                sha256: "0123".to_owned(),
            }],
            rows: vec![row("x/1", Some(("depth".to_owned(), 1.0))), row("y", None)],
        }
    }

    #[test]
    fn a_kept_report_can_be_read_back_and_shown_again() {
        let report = report();
        let text = report.to_text();
        assert_eq!(text.lines().count(), 2 + report.rows.len(), "{text}");
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value, report.to_json());
        let back = Report::from_json(&value).unwrap();
        assert_eq!(format!("{report:?}"), format!("{back:?}"));
        assert_eq!(back.to_markdown(), report.to_markdown());
        assert!(Report::from_json(&json!({ "rows": [] })).is_none());
        let text = report.to_markdown();
        assert!(text.starts_with("Run: 2026-11-26T21:40:00Z, commit c0ffee\n\nMachine: one\n"));
        assert!(text.contains("\n- a: `./a`, version `2.0.0`, sha256 `0123`\n"), "{text}");
    }

    #[test]
    fn a_report_from_before_dates_and_commits_is_read() {
        let target = json!({ "label": "a", "command": "./a" });
        let old = json!({ "command": "c", "machine": "one", "targets": [target], "rows": [] });
        let text = Report::from_json(&old).unwrap().to_markdown();
        assert!(text.starts_with("Machine: one\n\n- a: `./a`\n"), "{text}");
    }

    #[test]
    fn ratios_stand_with_those_the_first_is_compared_with() {
        let text = table_row(&report().rows[0]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("32,000") && !lines[1].contains('–'), "{text}");
        assert!(lines[2].contains("1.75 (1.50–2.00)"), "{text}");
        assert!(lines[2].contains("0.58 (0.50–0.67)"), "{text}");
        assert!(lines[3].contains("ERROR: it | broke"), "{text}");
    }

    #[test]
    fn numbers_are_short_and_grouped() {
        let cases = [
            (1_234_567.8, "1,234,568"),
            (999.6, "1000"),
            (12.34, "12.3"),
            (1.234, "1.23"),
            (0.1234, "0.123"),
            (-1_234.0, "-1,234"),
            (0.0, "0.000"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value).replace("1,000", "1000"), text);
        }
        assert_eq!([0.964, 1.0, 16.68, 105.8].map(ratio_number), ["0.96", "1.00", "16.7", "106"]);
    }
}
