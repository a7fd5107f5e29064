//! The pages about performance and reliability must agree with the measurements.
//!
//! The measurements are doc/performance/run-*.md and doc/reliability/raw.md. Tables on the pages
//! are compared with them cell by cell; `UPDATE=1 cargo test --test figures` rewrites the tables.
//! Sentences are checked by [`claims`]; a wrong sentence must be changed by hand.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use ct::bench::plot;
use ct::bench::report::ratio_number;
use ct::bench::run_file::{Figure, RunFile, RunRow};

/// The pages with tables of figures from the runs.
const PAGES: [&str; 3] =
    ["doc/performance.md", "doc/performance/rows.md", "doc/performance/goals.md"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the runs in the order of their numbers.
fn runs() -> Vec<RunFile> {
    let path = |number: usize| format!("doc/performance/run-{number}.md");
    let is_there = |number: &usize| root().join(path(*number)).exists();
    let parse = |number| RunFile::parse(&read(&path(number))).expect("a run file has its table");
    let runs: Vec<RunFile> = (1..100).take_while(is_there).map(parse).collect();
    assert!(!runs.is_empty(), "there is no {}", path(1));
    runs
}

/// Returns the names of the files in a folder that end in `ending`.
fn files(folder: &str, ending: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(root().join(folder)).expect("the folder can be read");
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let names = entries.map(|entry| name(entry.expect("an entry can be read")));
    names.filter(|name| name.ends_with(ending)).collect()
}

/// Compares a page with its expected text, or writes it if the environment requests that.
fn check_page(path: &str, expected: &str) {
    let actual = read(path);
    if env::var_os("UPDATE").is_some() && actual != expected {
        fs::write(root().join(path), expected).expect("a page can be written");
        return;
    }
    for (actual, expected) in actual.lines().zip(expected.lines()) {
        assert_eq!(
            actual, expected,
            "{path} differs from the measurements; `UPDATE=1 cargo test --test figures` mends it"
        );
    }
    assert_eq!(actual.lines().count(), expected.lines().count(), "{path}");
}

fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split('|').map(str::trim).collect()
}

/// Rewrites every table whose header has the column `key`: a cell becomes the result of `cell` for
/// the key and the header, or stays as it is if the result is `None`.
fn with_tables(
    page: &str,
    key: &str,
    cell: impl Fn(&str, &str, &[&str]) -> Option<String>,
) -> String {
    let mut header: Vec<&str> = Vec::new();
    let mut lines = Vec::new();
    for line in page.lines() {
        if !line.starts_with('|') {
            header.clear();
        } else if header.is_empty() {
            header = cells(line);
        } else if let Some(at) = header.iter().position(|name| *name == key) {
            let old = cells(line);
            if old.len() == header.len() && !old[at].starts_with("--") {
                let new = header.iter().zip(&old).map(|(name, cell_now)| {
                    cell(old[at], name, &old).unwrap_or_else(|| (*cell_now).to_owned())
                });
                lines.push(format!("| {} |", new.collect::<Vec<_>>().join(" | ")));
                continue;
            }
        }
        lines.push(line.to_owned());
    }
    lines.join("\n") + "\n"
}

/// Returns the expected text of a table's cell, if its header names a figure of the runs. Unless
/// the cell compares runs, the last run is used.
fn figure_cell(runs: &[RunFile], row: &str, header: &str) -> Option<String> {
    let last = runs.last().expect("there is a run");
    let find = |run: &'_ RunFile| -> RunRow {
        run.row(row).unwrap_or_else(|| panic!("no run has the row {row}")).clone()
    };
    if let Some(rest) = header.strip_prefix('×') {
        let (rest, gain): (&str, fn(&RunRow) -> Option<f64>) = match rest.strip_prefix(" rival") {
            Some(rest) => (rest, gain_on_rival),
            None => (rest, gain),
        };
        let run = rest.strip_prefix(" run ").map_or(last, |number| {
            let number: usize = number.parse().expect("the number of a run");
            runs.get(number - 1).unwrap_or_else(|| panic!("there is no run {number}"))
        });
        return Some(gain(&find(run)).map_or_else(|| "–".to_owned(), ratio_number));
    }
    let (side, figures) = header.split_once(' ')?;
    let index = match side {
        "ours" => 0,
        "original" => 1,
        "rival" => 2,
        "saturated:" => {
            let saturated = |index: usize| {
                let text = find(last).sides.get(index).map(|side| side.saturated.clone());
                text.filter(|text| !text.is_empty()).unwrap_or_else(|| "–".to_owned())
            };
            return Some(format!("{}, {}", saturated(0), saturated(1)));
        }
        _ => return None,
    };
    let figures: &[&str] = match figures {
        "/s" => &["rate"],
        "CPU µs" => &["cpu"],
        "CPU s" => &["cpu_seconds"],
        "p99 µs" => &["p99"],
        "p50, p99 µs" => &["p50", "p99"],
        "bytes each" => &["bytes_each"],
        "MB left" => &["megabytes_left"],
        _ => panic!("no figure is {header:?}"),
    };
    let text = |figure: &&str| {
        let row = find(last);
        let figure = row.sides.get(index).and_then(|side| side.figures.get(*figure));
        figure.map_or_else(|| "–".to_owned(), |figure| figure.text.clone())
    };
    Some(figures.iter().map(text).collect::<Vec<_>>().join(", "))
}

/// Returns our commands a second as a multiple of the original's.
fn gain(row: &RunRow) -> Option<f64> {
    Some(row.other("rate")?.ratio?.median)
}

/// Returns our commands a second as a multiple of the rival's.
fn gain_on_rival(row: &RunRow) -> Option<f64> {
    Some(row.rival("rate")?.ratio?.median)
}

/// Formats the smallest and the largest value of a figure in some rows, over all runs.
fn range(runs: &[RunFile], rows: &[&str], figure: impl Fn(&RunRow) -> Option<f64>) -> String {
    let of_run = |run: &RunFile| -> Vec<f64> {
        let value =
            |name: &&str| run.row(name).and_then(&figure).unwrap_or_else(|| panic!("{name}"));
        rows.iter().map(value).collect()
    };
    let values: Vec<f64> = runs.iter().flat_map(of_run).collect();
    let least = ratio_number(values.iter().copied().fold(f64::INFINITY, f64::min));
    let most = ratio_number(values.iter().copied().fold(0.0, f64::max));
    if least == most { least } else { format!("{least} to {most}") }
}

/// Every statement of a page about the runs, with the figures of the runs.
fn claims(runs: &[RunFile]) -> Vec<(&'static str, String)> {
    let gain = |rows: &[&str]| range(runs, rows, gain);
    let waiting =
        gain(&["connections/10", "connections/100", "connections/1000", "connections/10000"]);
    let pipelines = gain(&["pipeline/64", "burst/64 put", "burst/64 reserve, delete"]);
    let tubes = gain(&["tubes/1000 cycle", "tubes/10000 cycle"]);
    let syncs = gain(&["binlog/f0-64x1 put", "binlog/f0-100x1 put"]);
    let (alone, sync_alone) = (gain(&["lone/client"]), gain(&["binlog/f0-1x1 put"]));
    let one_core = gain(&["lone/one-core"]);
    let few_syncs = gain(&["binlog/f0-10x1 put", "binlog/f0-10x1 cycle", "binlog/f0-workers"]);
    let own = |figure: &'static str| {
        range(runs, &["binlog/slow-sync"], |row| Some(row.own(figure)?.value))
    };
    let (unlogged, puts_per_sync) = (own("unlogged_p99"), own("puts_per_sync"));
    let bodies = gain(&["body/65535"]);
    let cpu = |row: &RunRow, base: &str| Some(row.base(base, "cpu")?.ratio?.median);
    let many_tubes = range(runs, &["tubes/100000 cycle"], |row| cpu(row, "tubes/1 cycle"));
    let backlogs: Vec<String> = ["ready", "delayed", "buried"]
        .iter()
        .flat_map(|state| ["equal", "random"].map(|order| format!("backlog/{state}-{order} cycle")))
        .collect();
    let backlogs: Vec<&str> = backlogs.iter().map(String::as_str).collect();
    let many_jobs = range(runs, &backlogs, |row| cpu(row, "backlog/none cycle"));
    let calm = ["open/5000", "open/15000"];
    let other = |row: &RunRow, figure| Some(row.own(figure)?.value / row.other(figure)?.value);
    let calm_p50 = range(runs, &calm, |row| other(row, "p50"));
    let bytes = |name| range(runs, &[name], |row| Some(row.other("bytes_each")?.ratio?.median));
    let seconds =
        |row: &RunRow, side: usize| Some(row.sides.get(side)?.figures.get("seconds")?.value);
    let (restart, their_restart) = (
        range(runs, &["replay"], |row| seconds(row, 0)),
        range(runs, &["replay"], |row| seconds(row, 1)),
    );
    let calls = |row: &RunRow, side: usize| Some(row.sides.get(side)?.figures.get("calls")?.value);
    let (calls, their_calls) = (
        range(runs, &["connections/10"], |row| calls(row, 0)),
        range(runs, &["connections/10"], |row| calls(row, 1)),
    );
    let [agreeing, rows] = agreeing(runs);
    let performance = "doc/performance.md";
    vec![
        ("README.md", format!("{waiting} times if 10 to 10,000 clients wait for each reply")),
        ("README.md", format!("{pipelines} times if 10 clients send 64 commands at a time")),
        ("README.md", format!("{tubes} times with 1,000 to 10,000 other tubes, each with a job")),
        ("README.md", format!("{syncs} times if 64 to 100 producers share each sync of a binlog")),
        ("README.md", format!("{few_syncs} times if 10 to 20 clients share each sync of a binlog")),
        ("README.md", format!("{alone} times for 1 client on another core")),
        (performance, format!("(`reserve`, `peek` and `stats`) is {unlogged} µs in the two runs")),
        (performance, format!("{puts_per_sync} producers share a sync")),
        (performance, format!("on the same processor is served {one_core} times as fast")),
        ("README.md", format!("{sync_alone} times for 1 producer that waits for each sync")),
        (performance, format!("take {many_jobs} times their CPU time without other jobs")),
        (performance, format!("A lone producer with `-f0` is served {sync_alone} times as fast")),
        (performance, format!("Bodies of 64 KiB go through {bodies} times as fast")),
        (
            performance,
            format!("the median latency of a command is {calm_p50} times the original's"),
        ),
        (performance, format!("{} times the original's for bodies of 16", bytes("memory/16"))),
        (performance, format!("{} times for bodies of 1,024", bytes("memory/1024"))),
        (performance, format!("10 clients {calls} for a command instead of {their_calls}")),
        (performance, format!("{many_tubes} times their CPU time with one tube")),
        (
            "doc/performance/rows.md",
            format!("takes {restart} seconds here and {their_restart} seconds with the original"),
        ),
        (
            "doc/performance/rows.md",
            format!("within 10 % between the runs in {agreeing} of {rows} rows"),
        ),
    ]
}

/// Returns in how many rows the CPU time of a command differs by at most a tenth between the first
/// and the last run, and how many rows have that CPU time in both runs.
fn agreeing(runs: &[RunFile]) -> [usize; 2] {
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return [0, 0] };
    let cpu = |run: &RunFile, name: &str| Some(run.row(name)?.own("cpu")?.value);
    let names = first.rows.iter().map(|row| row.name.as_str());
    let pairs: Vec<(f64, f64)> =
        names.filter_map(|name| Some((cpu(first, name)?, cpu(last, name)?))).collect();
    let agree = |(one, two): &&(f64, f64)| one.max(*two) <= one.min(*two) * 1.1;
    [pairs.iter().filter(agree).count(), pairs.len()]
}

/// Returns a text on one line, without emphasis.
fn plain(text: &str) -> String {
    text.replace("**", "").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns what is wrong with the README's figures: claims that are missing, and numbers or
/// multiples that no claim has.
fn complaints(readme: &str, runs: &[RunFile]) -> Vec<String> {
    let section = readme.split_once("\n## How fast\n").expect("README says how fast it is").1;
    let section = section.split("\n## ").next().expect("a section has an end");
    let mut text = plain(section);
    let mut complaints = Vec::new();
    for (_, claim) in claims(runs).iter().filter(|(page, _)| *page == "README.md") {
        if !text.contains(claim.as_str()) {
            complaints.push(format!("README should say: {claim}"));
        }
        text = text.replace(claim.as_str(), "");
    }
    for label in runs.iter().flat_map(|run| &run.rows).flat_map(|row| &row.sides) {
        text = text.replace(label.label.as_str(), "");
    }
    let is_figure = |word: &&str| word.contains(|it: char| it.is_ascii_digit()) || *word == "times";
    let is_of_prose = |word: &&str| !word.contains("](");
    for word in text.split_whitespace().filter(is_of_prose).filter(is_figure) {
        complaints.push(format!("README says {word:?}, which no run has"));
    }
    complaints
}

/// A reader would choose this daemon for a gain that was never measured.
#[test]
fn the_readme_has_its_figures_from_the_runs() {
    let complaints = complaints(&read("README.md"), &runs());
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Tests the check itself: a figure that is slightly wrong, an additional figure, and a number in
/// words.
#[test]
fn a_wrong_figure_in_the_readme_is_found() {
    let (readme, runs) = (read("README.md"), runs());
    let (_, claim) = &claims(&runs)[1];
    let figure = claim.split(' ').next().expect("a claim begins with its figure");
    let wrong = readme.replace(&format!("**{figure} "), "**12.9 ");
    assert!(wrong != readme, "README has {figure}");
    let wrongs = [
        wrong,
        readme.replace("\n## How fast\n", "\n## How fast\n\nAt best 2,264 faster.\n"),
        readme.replace("\n## How fast\n", "\n## How fast\n\nTwelve to nineteen times as fast.\n"),
    ];
    for wrong in wrongs {
        assert!(!complaints(&wrong, &runs).is_empty());
    }
}

/// A sentence beside a chart would contradict the chart after the next run.
#[test]
fn what_the_pages_claim_is_in_the_runs() {
    let claims = claims(&runs());
    let missing = claims.iter().filter(|(page, claim)| !plain(&read(page)).contains(claim));
    let missing: Vec<String> =
        missing.map(|(page, claim)| format!("{page} should say: {claim}")).collect();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// A reader must find each case in which another daemon is faster, and not only those that flatter.
#[test]
fn each_row_behind_another_daemon_is_named() {
    let page = read("doc/performance.md");
    let section = page.split_once("\n## Little or no gain\n").expect("a section").1;
    let section = plain(section.split("\n## ").next().expect("a section has an end"));
    let runs = runs();
    let (last, earlier) = runs.split_last().expect("there is a run");
    let is_behind = |row: &RunRow| {
        let behind = |name, is_behind: fn(f64) -> bool| {
            [row.other(name), row.rival(name)]
                .map(|it| it.and_then(|it| it.ratio).is_some_and(|it| is_behind(it.median)))
        };
        let rate = behind("rate", |ratio| ratio < 0.97);
        [rate, behind("cpu", |ratio| ratio > 1.03), behind("cpu_seconds", |ratio| ratio > 1.03)]
    };
    for row in &last.rows {
        let mut behind = is_behind(row).as_flattened().to_vec();
        for before in earlier.iter().filter_map(|run| run.row(&row.name)) {
            let before = is_behind(before);
            behind.iter_mut().zip(before.as_flattened()).for_each(|(all, one)| *all &= one);
        }
        let is_named = section.contains(&format!("`{}`", row.name));
        assert!(is_named || !behind.contains(&true), "{} is behind, and is missing", row.name);
    }
}

/// A table copied by hand would have figures of an older run in some cell.
#[test]
fn the_tables_are_those_of_the_runs() {
    let runs = runs();
    for path in PAGES {
        let page = read(path);
        let cell = |row: &str, header: &str, cells: &[&str]| match cells {
            [_, figure, goal, ..] if path.ends_with("goals.md") => {
                goal_cell(&runs, row, header, figure, goal)
            }
            _ => figure_cell(&runs, row, header),
        };
        check_page(path, &with_tables(&page, "row", cell));
    }
    let chart = read("doc/performance/gains.svg");
    for row in read("doc/performance.md").lines().map(cells).filter(|cells| cells.len() == 10) {
        let is_drawn = chart.contains(&format!("\n{}\n", row[0]));
        assert!(is_drawn || matches!(row[0], "Workload" | "---"), "no bar is {:?}", row[0]);
    }
    let listed = read("doc/performance/rows.md");
    for row in runs.iter().flat_map(|run| &run.rows).filter(|row| row.own("rate").is_some()) {
        assert!(listed.contains(&format!("\n| {} |", row.name)), "rows.md lacks {}", row.name);
    }
}

/// The names of the figures in ct/goals, and on the page.
const FIGURES: [(&str, &str); 9] = [
    ("rate", "commands a second"),
    ("cpu", "CPU a command"),
    ("sojourn_p50", "p50 from put to RESERVED"),
    ("sojourn_p99", "p99 from put to RESERVED"),
    ("unlogged_p99", "p99 of commands that need no sync, µs"),
    ("puts_per_sync", "jobs put for each sync"),
    ("bytes_each", "bytes each"),
    ("megabytes_left", "MB left"),
    ("seconds", "seconds"),
];

/// Returns a run's result for a goal.
fn goal_cell(
    runs: &[RunFile],
    row: &str,
    header: &str,
    figure: &str,
    goal: &str,
) -> Option<String> {
    let number: usize = header.strip_prefix("run ")?.parse().expect("the number of a run");
    let run = runs.get(number - 1).unwrap_or_else(|| panic!("there is no run {number}"));
    let row = run.row(row).unwrap_or_else(|| panic!("run {number} has no row {row}"));
    let (words, against) = figure.split_once(" ÷ ").unwrap_or((figure, ""));
    let known = FIGURES.iter().find(|(_, name)| *name == words);
    let name = known.unwrap_or_else(|| panic!("what is {figure:?}, {goal}?")).0;
    let ratio = |figure: &Figure| figure.ratio.map(|ratio| ratio_number(ratio.median));
    match against {
        "" => row.own(name).map(|figure| figure.text.clone()),
        "the original's" => row.other(name).and_then(ratio),
        "the rival's" => row.rival(name).and_then(ratio),
        "the bare responder's" => row.bare(name).and_then(ratio),
        base => row.base(base.strip_prefix("that of ")?, name).and_then(ratio),
    }
    .or_else(|| panic!("run {number} has no {figure:?} of {}", row.name))
}

/// `make bench` would use other goals than those on the page.
#[test]
fn the_page_has_the_goals_of_the_file() {
    let goal = |line: &str| -> Option<String> {
        let parts: Vec<&str> = line.split('|').map(str::trim).collect();
        let [row, figure, against, bound] = parts[..] else { return None };
        let words = FIGURES.iter().find(|(name, _)| *name == figure)?.1;
        let figure = match against {
            "-" => words.to_owned(),
            "other" => format!("{words} ÷ the original's"),
            "rival" => format!("{words} ÷ the rival's"),
            "bare" => format!("{words} ÷ the bare responder's"),
            base => format!("{words} ÷ that of {}", base.strip_prefix("row ")?),
        };
        Some(format!("{row} | {figure} | {bound}"))
    };
    let file = read("ct/goals");
    let lines = file.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let wanted: Vec<String> = lines.map(|line| goal(line).expect("a goal")).collect();
    let page = read("doc/performance/goals.md");
    let rows = page.lines().filter(|line| line.starts_with('|')).map(cells);
    let rows = rows.filter(|cells| cells.len() > 3 && cells[2].starts_with("at "));
    let shown: Vec<String> = rows.map(|cells| cells[..3].join(" | ")).collect();
    assert_eq!(shown, wanted);
}

/// Pictures of an older run would be shown beside the tables of the last run.
#[test]
fn the_pictures_are_drawn_from_the_last_run() {
    let runs = runs();
    let directory = tempfile::tempdir().expect("a directory for pictures");
    let last = runs.last().expect("there is a run");
    let paths = plot::draw(last, directory.path()).expect("a run can be drawn");
    let name = |path: &PathBuf| path.file_name().map(|it| it.to_string_lossy().into_owned());
    let drawn: BTreeSet<String> = paths.iter().filter_map(name).collect();
    assert_eq!(drawn, files("doc/performance", ".svg"), "the pictures that there are");
    let command = format!("ct-bench plot doc/performance/run-{}.md doc/performance", runs.len());
    for name in drawn {
        let new = fs::read_to_string(directory.path().join(&name)).expect("it was drawn");
        assert!(new == read(&format!("doc/performance/{name}")), "{name} is old: {command}");
    }
}

/// A verdict could be more favourable than the table that it comes from.
#[test]
fn the_verdicts_are_those_of_the_raw_table() {
    let raw = read("doc/reliability/raw.md");
    // By abuse and side: the daemon's p99 meanwhile, and whether a goal was missed.
    let find = |abuse: &str, side: usize| -> (String, bool) {
        let rows = raw.lines().filter(|line| line.starts_with('|')).map(cells);
        let rows: Vec<Vec<&str>> =
            rows.filter(|cells| cells.len() == 8 && cells[0] == abuse).collect();
        let cells = rows.get(side).unwrap_or_else(|| panic!("raw.md lacks {abuse}"));
        let meanwhile = cells[3].split_once('→').expect("before and meanwhile").1;
        let value = |text: &&str| text.parse::<f64>().expect("milliseconds");
        let most = meanwhile.split_whitespace().max_by(|a, b| value(a).total_cmp(&value(b)));
        (most.expect("three commands").to_owned(), cells[7] == "survived")
    };
    let cell = |abuse: &str, header: &str, _: &[&str]| match header {
        "ours p99 ms" => Some(find(abuse, 0).0),
        "original p99 ms" => Some(find(abuse, 1).0),
        _ => None,
    };
    let path = "doc/reliability.md";
    let page = read(path);
    check_page(path, &with_tables(&page, "abuse", cell));
    let verdicts = page.split_once("\n## Abuse\n").expect("a section on abuse").1;
    let verdicts = verdicts.split("\n## ").next().expect("a section has an end");
    let mut judged = BTreeSet::new();
    for cells in verdicts.lines().filter(|line| line.starts_with('|')).map(cells) {
        let [abuse, _, _, _, ours, original] = cells[..] else { continue };
        if abuse == "abuse" || abuse.starts_with("--") {
            continue;
        }
        for (side, outcome) in [(0, ours), (1, original)] {
            assert_eq!(outcome == "held", find(abuse, side).1, "{abuse}: {outcome}");
        }
        judged.insert(abuse.to_owned());
    }
    let all = raw.lines().filter(|line| line.starts_with('|')).map(cells);
    let all = all.filter(|cells| cells.len() == 8 && cells[1].starts_with("beanstalkd"));
    assert_eq!(judged, all.map(|cells| cells[0].to_owned()).collect(), "every abuse has a row");
}

/// A release would show figures of another daemon.
#[test]
fn a_release_is_refused_if_its_code_was_not_measured() {
    if !ct::has_git() {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory for a repository");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
        fs::write(path, text).expect("a file can be written");
    };
    let output = |program: &Path, words: &[&str]| {
        let output = Command::new(program).args(words).current_dir(folder.path()).output();
        let output = output.expect("it can be started");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).trim().to_owned())
    };
    let git = |words: &str| {
        let settings = "-c user.name=a -c user.email=a -c commit.gpgSign=no ";
        let words = settings.split_whitespace().chain(words.split(' ')).collect::<Vec<_>>();
        output(Path::new("git"), &words).1
    };
    let refusal = || {
        let script = root().join("pkg/measured");
        let (succeeds, text) = output(&script, &[&folder.path().to_string_lossy()]);
        (!succeeds).then_some(text)
    };
    let source = "/// One.\nfn a() -> u8 { 1 }\n\n#[cfg(test)]\nmod tests {\n    // A test.\n}\n";
    let manifest = "[package]\nversion = \"1.0.0\"\n\n[profile.release]\nlto = \"fat\"\n";
    write("src/a.rs", source);
    write("Cargo.toml", manifest);
    write("doc/performance/run-1.md", "# Run\n");
    let _ = [git("init -q"), git("add .")];
    git("commit -q -m a");
    let text = refusal().expect("no commit is named");
    assert!(text.contains("run-1.md names no commit"), "{text}");
    let commit = git("rev-parse HEAD");
    write("doc/performance/run-1.md", &format!("Run: 2026-11-26T21:40:00Z, commit {commit}\n"));
    assert_eq!(refusal(), None);
    write("src/a.rs", &source.replace("One.", "Uno.\n/// Dos.").replace("A test.", "Another."));
    write("src/a/tests.rs", "");
    write("Cargo.toml", &manifest.replace("1.0.0", "1.0.1"));
    assert_eq!(refusal(), None);
    for (name, text) in [
        ("Cargo.toml", manifest.replace("fat", "off")),
        ("src/a.rs", source.replace("{ 1 }", "{ 2 }")),
    ] {
        write(name, &text);
        assert!(refusal().expect("code has changed").contains("the code has changed since"));
        git("checkout -q .");
        let commit = format!("Run: 2026-11-26T21:40:00Z, commit {commit}\n");
        write("doc/performance/run-1.md", &commit);
        assert_eq!(refusal(), None);
    }
}
