//! Checks a comparison against goals, from a file with one goal per line.
//!
//! ```text
//! ROW | FIGURE | AGAINST | at least NUMBER      (or: at most NUMBER)
//! ```
//!
//! ROW and FIGURE are names in the saved comparison. AGAINST names the figure by which the first
//! daemon's figure is divided: the figure of the second daemon (`other`), of the third daemon
//! (`rival`), of the bare responder (`bare`), or of the first daemon in the base scenario
//! (`row NAME`). With `-`, the figure is not divided. A goal with `rival` is ignored if there is no
//! third daemon. Empty lines and lines that begin with `#` are ignored, too.

use std::fmt::Write as _;

use super::outcome::{Outcome, Row};
use super::report::{Report, number};

/// A goal that a figure misses by at most this share does not count as missed.
const SLACK_SHARE: f64 = 0.15;

/// The number by which a goal's figure is divided: a figure of another daemon or of another row, or
/// none.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Reference {
    Other,
    Rival,
    Bare,
    Row(String),
    Nothing,
}

/// A line of the file of goals.
#[derive(Debug, Clone, PartialEq)]
struct Goal {
    row: String,
    figure: String,
    reference: Reference,
    at_least: bool,
    bound: f64,
}

/// The result of checking a comparison against its goals.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// A line for each goal.
    pub text: String,
    /// The number of goals that are missed by more than the slack, or whose figure is missing.
    pub missed: usize,
}

/// Compares a saved comparison with a file of goals.
///
/// # Errors
///
/// Fails if a line of the file cannot be parsed.
pub fn evaluate(report: &Report, goals: &str) -> Result<Verdict, String> {
    let mut verdict = Verdict { text: String::new(), missed: 0 };
    for line in goals.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let goal = Goal::parse(line).ok_or_else(|| format!("not a goal: {line}"))?;
        let (word, value) = match goal.value(report) {
            None if goal.reference == Reference::Rival && rival(report).is_none() => {
                ("no rival", String::new())
            }
            None => ("MISSING", String::new()),
            Some(value) => (goal.rating(value), number(value)),
        };
        verdict.missed += usize::from(matches!(word, "MISSING" | "FAR"));
        let _ = writeln!(verdict.text, "{word:8} {value:>10}  {line}");
    }
    Ok(verdict)
}

/// Returns the third daemon's index, for goals with `rival`; `None` if there is no third daemon.
fn rival(report: &Report) -> Option<usize> {
    let daemons = report.targets.iter().filter(|one| one.label != "bare").count();
    (daemons > 2).then_some(2)
}

impl Goal {
    /// Parses a line of the file of goals.
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.split('|').map(str::trim);
        let (row, figure, reference, bound) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let (least, most) = (bound.strip_prefix("at least "), bound.strip_prefix("at most "));
        Some(Self {
            row: row.to_owned(),
            figure: figure.to_owned(),
            reference: match reference {
                "other" => Reference::Other,
                "rival" => Reference::Rival,
                "bare" => Reference::Bare,
                "-" => Reference::Nothing,
                other => Reference::Row(other.strip_prefix("row ")?.to_owned()),
            },
            at_least: least.is_some(),
            bound: least.or(most)?.parse().ok()?,
        })
    }

    /// Returns the value that a goal limits: a figure of the first daemon, or a ratio of figures.
    fn value(&self, report: &Report) -> Option<f64> {
        let find = |name: &str| report.rows.iter().find(|row| row.name == name);
        let row = find(&self.row)?;
        let own = row.results.first()?;
        let ratio = |other: &Outcome| own.ratio_to(other, &self.figure).map(|ratio| ratio.median);
        let median = |row: &Row| Some(row.results.first()?.spread(&self.figure)?.median);
        match &self.reference {
            Reference::Other => ratio(row.results.get(1)?),
            Reference::Rival => ratio(row.results.get(rival(report)?)?),
            Reference::Bare => ratio(row.results.iter().find(|result| result.label == "bare")?),
            Reference::Row(name) => ratio(row.base.as_ref().filter(|base| base.label == *name)?),
            Reference::Nothing => median(row),
        }
    }

    /// Returns one of three words: the goal is met, missed by at most the slack, or missed by more.
    fn rating(&self, value: f64) -> &'static str {
        let is_met = |bound: f64| if self.at_least { value >= bound } else { value <= bound };
        let slack = if self.at_least { 1.0 / (1.0 + SLACK_SHARE) } else { 1.0 + SLACK_SHARE };
        if is_met(self.bound) {
            "met"
        } else if is_met(self.bound * slack) {
            "short"
        } else {
            "FAR"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::named;
    use super::super::report::Build;
    use super::*;

    fn row(name: &str, rates: [f64; 3]) -> Row {
        let outcome = |(label, rate): (&str, f64)| Outcome {
            label: label.to_owned(),
            samples: vec![named([("rate", rate)])],
            error: None,
        };
        let results = ["ours", "theirs", "bare"].into_iter().zip(rates).map(outcome).collect();
        let base = Some(outcome(("b", rates[0] / 2.0)));
        Row { name: name.to_owned(), about: String::new(), curve: None, results, base }
    }

    fn words(goals: &str) -> (Vec<String>, usize) {
        let rows = vec![row("a", [30.0, 20.0, 40.0]), row("b", [15.0, 1.0, 1.0])];
        let report = Report { rows, ..Report::default() };
        let verdict = evaluate(&report, goals).unwrap();
        let word = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
        (verdict.text.lines().map(word).collect(), verdict.missed)
    }

    #[test]
    fn a_figure_is_divided_by_the_reference_of_its_goal() {
        let goals = "\
            # comment\n\na | rate | other | at least 1.5\na | rate | bare | at most 0.75\n\
            a | rate | row b | at least 2\nb | rate | - | at most 15\n";
        assert_eq!(words(goals), (vec!["met".to_owned(); 4], 0));
    }

    #[test]
    fn a_goal_missed_by_far_or_not_measured_counts() {
        let goals = "\
            a | rate | other | at least 1.6\na | rate | other | at least 1.8\n\
            b | rate | - | at most 14\nb | rate | - | at most 13\nc | rate | - | at most 1\n\
            a | p99 | other | at most 1\n";
        let (words, far) = words(goals);
        assert_eq!(words, ["short", "FAR", "short", "FAR", "MISSING", "MISSING"]);
        assert_eq!(far, 4);
    }

    #[test]
    fn a_rival_is_the_third_daemon_if_there_is_one() {
        let goal = "a | rate | rival | at least 3";
        let report = |labels: &[&str]| {
            let mut row = row("a", [30.0, 20.0, 10.0]);
            for (result, label) in row.results.iter_mut().zip(labels) {
                result.label = (*label).to_owned();
            }
            let named = |label: &&str| Build { label: (*label).to_owned(), ..Build::default() };
            let targets = labels.iter().map(named).collect();
            Report { rows: vec![row], targets, ..Report::default() }
        };
        let verdict = evaluate(&report(&["ours", "theirs", "rival"]), goal).unwrap();
        assert!(verdict.text.starts_with("met "), "{}", verdict.text);
        let verdict = evaluate(&report(&["ours", "theirs", "bare"]), goal).unwrap();
        assert!(verdict.text.starts_with("no rival ") && verdict.missed == 0, "{}", verdict.text);
    }

    #[test]
    fn an_invalid_line_is_an_error() {
        for line in ["a", "a | rate | other | 5", "a | rate | them | at least 5"] {
            assert!(evaluate(&Report::default(), line).is_err(), "{line}");
        }
    }
}
