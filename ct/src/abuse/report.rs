//! The table of results, in Markdown.

use std::fmt::Write as _;

use super::{Round, Row};

/// Returns the table of attacks and an explanation of its columns.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| abuse | daemon | p50 ms, alone → during the attack | p99 ms, alone → during the \
         attack | longest ms | CPU at rest | memory MB, before → held → after | |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let _ = writeln!(text, "{}", line(row));
    }
    text += "\nThe three figures of p50 and p99 are the latencies of put, reserve and delete of a \
             client with 200 rounds a second, less the time in which other processes had the core \
             of the daemon or the client; each is the median of the rounds. The longest wait is \
             the longest of all rounds. CPU at rest is the daemon's use while attackers and client \
             are silent.\n";
    for row in rows {
        if let Some(round) = row.rounds.last() {
            let _ = writeln!(text, "- {}, {}: {}", row.kind, row.daemon, round.summary);
        }
    }
    text
}

/// Formats the line of an attack on a daemon in the table of attacks.
fn line(row: &Row) -> String {
    let head = format!("| {} | {} |", row.kind, row.daemon);
    let missed = row.missed_goals();
    let verdict = if missed.is_empty() { "survived".to_owned() } else { missed.join("; ") };
    if row.rounds.is_empty() {
        return format!("{head} – | – | – | – | – | {verdict} |");
    }
    let alone = |share| milliseconds(row.latency(|round| &round.baseline, share));
    let during = |share| milliseconds(row.latency(|round| &round.during, share));
    let memory = [0, 1, 2].map(|at| {
        let round = if at == 2 { row.rounds.last() } else { row.rounds.first() };
        round.map_or(0.0, |round| megabytes(round, at))
    });
    format!(
        "{head} {} → {} | {} → {} | {:.1} | {:.1} % | {:.1} → {:.1} → {:.1} | {verdict} |",
        alone(0.5),
        during(0.5),
        alone(0.99),
        during(0.99),
        row.longest(),
        row.median(|round| round.idle_cpu_percent),
        memory[0],
        memory[1],
        memory[2],
    )
}

/// Formats the latencies of the probe's three commands for the table of attacks.
fn milliseconds(values: [f64; 3]) -> String {
    values.map(|value| format!("{value:.2}")).join(" ")
}

/// Returns the daemon's memory before, during or after an attack, in MB.
#[expect(clippy::cast_precision_loss, reason = "megabytes for the eye")]
fn megabytes(round: &Round, at: usize) -> f64 {
    round.memory[at] as f64 / 1e6
}
