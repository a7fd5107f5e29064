//! `metrics`, with this daemon, with the original, and with servers that the test plays.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness;
use crate::harness::played::{Heard, Played, TUBE, everything};
use crate::harness::{PROGRAM, Ran, Server, each_server, four, ours, programs, put};
use ct::{Daemon, Original, skip};

/// Runs `beanstalkctl` on any server.
fn run(server: &str, arguments: &[&str]) -> Ran {
    let mut command = Command::new(PROGRAM);
    command.args(["--server", server, "metrics"]).args(arguments).stdin(Stdio::null());
    Ran::of(command.output().unwrap())
}

/// Runs `beanstalkctl`, which must succeed, and returns its output.
fn text(server: &str, arguments: &[&str]) -> String {
    let ran = run(server, arguments);
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    ran.stdout
}

/// Whether the text has a line with the label of the server, these labels and this value.
fn has(text: &str, name: &str, server: &str, labels: &str, value: &str) -> bool {
    let comma = if labels.is_empty() { "" } else { "," };
    let wanted = format!("{name}{{server=\"{server}\"{comma}{labels}}} {value}");
    text.lines().any(|line| line == wanted)
}

/// The names of all metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|rest| rest.split(' ').next().unwrap())
        .collect()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Runs the promtool named by `PROMTOOL`, made by `make promtool`, or installed. If there is none,
/// reports the test as skipped.
fn promtool(arguments: &[&str], input: &str) -> Option<Ran> {
    let named = std::env::var_os("PROMTOOL").filter(|path| !path.is_empty()).map(PathBuf::from);
    let got = Path::new(PROGRAM).ancestors().nth(2).unwrap().join("prometheus/usr/bin/promtool");
    let path = named.unwrap_or_else(|| if got.exists() { got } else { "promtool".into() });
    if Command::new(&path).arg("--version").output().is_err() {
        skip(&format!("there is no {}: make promtool", path.display()));
        return None;
    }
    let mut command = Command::new(path);
    command.args(arguments).current_dir(repository().join("pkg/prometheus"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    Some(Ran::of(child.wait_with_output().unwrap()))
}

/// If promtool reports a problem, Prometheus would refuse the metrics, or a metric breaks a
/// convention that users rely on.
#[test]
fn promtool_has_no_complaint() {
    let folder = tempfile::tempdir().unwrap();
    let mut texts = vec![text(&everything().address, &[])];
    for (number, program) in programs().iter().enumerate() {
        let binlog = folder.path().join(number.to_string());
        fs::create_dir(&binlog).unwrap();
        let server = Server::tcp(program, &["-b", binlog.to_str().unwrap()]);
        let mut client = server.client();
        four(&mut client, "a/$b;c");
        texts.push(text(&server.address, &[]));
    }
    for text in texts {
        let Some(ran) = promtool(&["check", "metrics"], &text) else { return };
        assert!(ran.code() == Some(0) && ran.stderr.is_empty(), "{ran:?}\n{text}");
    }
    let ran = promtool(&["check", "metrics"], "# TYPE a counter\na 1\n").unwrap();
    assert_eq!(ran.code(), Some(3), "it must find a name without _total: {ran:?}");
}

#[test]
fn what_servers_count_is_told() {
    each_server(&[], |server| {
        let mut client = server.client();
        four(&mut client, "mail");
        let text = server.must(&["metrics"]);
        let has = |name: &str, labels: &str, value: &str| {
            let is_there = has(&text, name, &server.address, labels, value);
            assert!(is_there, "{name} {labels} {value} in\n{text}");
        };
        has("beanstalkd_up", "", "1");
        has("beanstalkd_tubes_left_out", "", "0");
        has("beanstalkd_jobs_inserted_total", "", "4");
        has("beanstalkd_commands_total", "command=\"put\"", "4");
        has("beanstalkd_commands_total", "command=\"bury\"", "1");
        has("beanstalkd_draining", "", "0");
        for state in ["ready", "reserved", "delayed", "buried"] {
            has("beanstalkd_jobs", &format!("state=\"{state}\""), "1");
            has("beanstalkd_tube_jobs", &format!("tube=\"mail\",state=\"{state}\""), "1");
        }
        has("beanstalkd_tube_urgent_jobs", "tube=\"mail\"", "1");
        has("beanstalkd_tube_users", "tube=\"mail\"", "1");
        // The connection of `metrics` watches `default`, too.
        has("beanstalkd_tube_watchers", "tube=\"default\"", "2");
        assert!(text.contains("beanstalkd_info{server=\""), "{text}");
        assert!(!text.contains("binlog_current_segment"), "there is no binlog:\n{text}");
        let some = server.must(&["metrics", "m*"]);
        assert!(some.contains("tube=\"mail\"") && !some.contains("tube=\"default\""), "{some}");
    });
}

/// A metric that a server does not report must be left out, because a zero would be misleading.
#[test]
fn what_the_original_lacks_is_left_out() {
    let Some(original) = Original::find() else { return };
    let server = Server::tcp(&original.path, &[]);
    let theirs = text(&server.address, &[]);
    let ours = text(&everything().address, &[]);
    let lacking: Vec<_> = names(&ours).difference(&names(&theirs)).copied().collect();
    for name in ["state", "turn_seconds", "tube_wait_seconds", "tube_next_ready_wait_seconds"] {
        assert!(lacking.contains(&&*format!("beanstalkd_{name}")), "{name} is in\n{theirs}");
    }
    assert!(names(&theirs).is_subset(&names(&ours)), "{theirs}");
}

#[test]
fn every_key_of_the_extension_is_told() {
    let played = everything();
    let text = text(&played.address, &[]);
    let has = |name: &str, labels: &str, value: &str| {
        assert!(has(&text, name, &played.address, labels, value), "{name} {value} in\n{text}");
    };
    has("beanstalkd_state", "state=\"binlog-full\"", "1");
    has("beanstalkd_state", "state=\"serving\"", "0");
    has("beanstalkd_binlog_state", "state=\"full\"", "1");
    has("beanstalkd_binlog_trouble_seconds", "", "7");
    has("beanstalkd_binlog_bytes", "content=\"dead\"", "567");
    has("beanstalkd_binlog_sync_seconds_bucket", "le=\"0.00002\"", "3");
    has("beanstalkd_binlog_sync_seconds_bucket", "le=\"+Inf\"", "12");
    has("beanstalkd_binlog_sync_seconds_count", "", "12");
    has("beanstalkd_binlog_sync_seconds_sum", "", "0.001234567");
    has("beanstalkd_turn_seconds_count", "", "9");
    has("beanstalkd_jobs_buried_for_losses_total", "", "6");
    has("beanstalkd_tube_jobs_buried_for_losses_total", "tube=\"a\"", "5");
    has("beanstalkd_commands_total", "command=\"reserve-with-abort\"", "8");
    has("beanstalkd_job_memory_bytes", "", "4096");
    has("beanstalkd_job_memory_max_bytes", "", "1000000");
    has("beanstalkd_tube_next_ready_age_seconds", "tube=\"a\"", "12");
    has("beanstalkd_tube_next_ready_wait_seconds", "tube=\"a\"", "3.250000000");
    has("beanstalkd_tube_wait_seconds_bucket", "tube=\"a\",le=\"0.001\"", "4");
    has("beanstalkd_tube_run_seconds_count", "tube=\"a\"", "9");
    assert!(!text.contains("tube=\"never\",le="), "it never had a job:\n{text}");
}

#[test]
fn labels_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a\"b\\c");
    let address = format!("unix:{}", path.display());
    let mut daemon = Daemon::spawn_raw(&ours(), &["-l", &address]).unwrap();
    daemon.wait_until_accepts(&address, ct::LONG).unwrap();
    let shown = format!("{}/a\\\"b\\\\c", folder.path().display());
    let text = text(&address, &[]);
    assert!(has(&text, "beanstalkd_up", &format!("unix:{shown}"), "", "1"), "{text}");
}

/// A tube may be deleted after `list-tubes` and before `stats-tube`, which must not be an error.
#[test]
fn a_tube_that_vanishes_is_no_error() {
    let played = Played::new(|line| match line {
        "capabilities" => "---\nstate: serving\nextensions:\n- capabilities\n- metrics\n".into(),
        "list-tubes" => "---\n- gone\n- half\n- last\n".into(),
        "stats-tube last" | "stats-tube half" => TUBE.into(),
        "metrics" | "metrics last" | "stats" => "---\nuptime: 5\n".into(),
        _ => "NOT_FOUND".into(),
    });
    let text = text(&played.address, &[]);
    let jobs = |tube: &str| {
        text.matches(&format!("jobs{{server=\"{}\",tube=\"{tube}\"", played.address)).count()
    };
    assert_eq!((jobs("gone"), jobs("half"), jobs("last")), (0, jobs("last"), jobs("half")));
    assert!(jobs("last") > 0 && has(&text, "beanstalkd_up", &played.address, "", "1"), "{text}");
}

/// A server that is down, or never answers, must not hide the metrics of other servers.
#[test]
fn a_server_that_is_down_is_told_as_such() {
    let silent = Played::new(|_| Heard::Nothing);
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let all = format!("{},127.0.0.1:1,{}", server.address, silent.address);
        let ran = run(&all, &["--timeout", "5"]);
        assert_eq!(ran.code(), Some(0), "{ran:?}");
        for (address, up) in [(&*server.address, "1"), ("127.0.0.1:1", "0"), (&silent.address, "0")]
        {
            assert!(has(&ran.stdout, "beanstalkd_up", address, "", up), "{address}: {ran:?}");
        }
        assert_eq!(ran.stdout.matches("beanstalkd_uptime_seconds{").count(), 1, "{ran:?}");
        assert!(
            ran.stderr.contains("127.0.0.1:1") && ran.stderr.contains(&silent.address),
            "{ran:?}"
        );
    }
}

/// A server that fails during a scrape must be reported as down, because some of its tubes would
/// look like all of them.
#[test]
fn a_server_that_tells_half_is_down() {
    for odd in [Heard::End, "INTERNAL_ERROR".into()] {
        let played = Played::new(move |line| match line {
            "list-tubes" => "---\n- a\n- b\n".into(),
            "stats-tube a" => TUBE.into(),
            "stats-tube b" => odd.clone(),
            "stats" => "---\nuptime: 5\n".into(),
            _ => "UNKNOWN_COMMAND".into(),
        });
        let text = text(&played.address, &[]);
        assert!(has(&text, "beanstalkd_up", &played.address, "", "0"), "{text}");
        assert!(!text.contains("tube="), "{text}");
    }
}

#[test]
fn the_number_of_tubes_has_a_bound() {
    each_server(&[], |server| {
        let mut client = server.client();
        for tube in ["c", "a", "b"] {
            put(&mut client, tube, 1, 0, b"x");
        }
        let text = server.must(&["metrics", "--max-tubes", "2"]);
        assert!(has(&text, "beanstalkd_tubes_left_out", &server.address, "", "2"), "{text}");
        let ready = |tube: &str| format!("tube=\"{tube}\",state=\"ready\"");
        for (tube, is_told) in [("a", true), ("b", true), ("c", false), ("default", false)] {
            let name = "beanstalkd_tube_jobs";
            assert_eq!(has(&text, name, &server.address, &ready(tube), "1"), is_told, "{text}");
        }
    });
}

/// Existing dashboards query exactly these names.
#[test]
fn names_of_other_programs_are_spoken() {
    each_server(&[], |server| {
        let mut client = server.client();
        four(&mut client, "a");
        let address = &server.address;
        let text = server.must(&["metrics", "--names", "messagebird"]);
        for line in [
            format!("current_jobs_ready{{instance=\"{address}\"}} 1"),
            format!("cmd_reserve_with_timeout{{instance=\"{address}\"}} 0"),
            format!("tube_current_jobs_buried{{instance=\"{address}\",tube=\"a\"}} 1"),
            format!("tube_pause_time_left{{instance=\"{address}\",tube=\"a\"}} 0"),
            format!("binlog_current_index{{instance=\"{address}\"}} 0"),
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        let text = server.must(&["metrics", "--names", "davidtannock"]);
        for line in [
            "beanstalkd_up 1",
            "beanstalkd_exporter_scrapes_total 1",
            "beanstalkd_cmd_put_total 4",
            "beanstalkd_current_jobs_ready_count 1",
            "beanstalkd_job_timeouts_count 0",
            "beanstalkd_tube_current_jobs_buried_count{tube=\"a\"} 1",
            "beanstalkd_tube_cmd_delete_total{tube=\"a\"} 0",
            "beanstalkd_tube_pause_time_left_seconds_total{tube=\"a\"} 0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
    });
}

/// `node_exporter` may read the file at any time, and must never see an incomplete file.
#[test]
fn a_textfile_is_whole_at_any_time() {
    let server = Server::tcp(&ours(), &[]);
    let mut client = server.client();
    for number in 0..300 {
        put(&mut client, &format!("tube-{number}"), 1, 0, b"x");
    }
    let path = server.file("beanstalkd.prom");
    server.must(&["metrics", "--textfile", &path]);
    let look = || {
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches("beanstalkd_tube_pause_seconds{").count(), 301);
        assert!(text.ends_with('\n'));
        let took = text.lines().find(|line| line.starts_with("beanstalkd_scrape_duration"));
        took.unwrap().to_owned()
    };
    let mut seen = BTreeSet::from([look()]);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..30 {
                assert_eq!(server.must(&["metrics", "--textfile", &path]), "");
            }
        });
        while !writer.is_finished() {
            seen.insert(look());
        }
    });
    seen.insert(look());
    assert!(seen.len() > 1, "it was never replaced");
    let ran = server.run(&["metrics", "--textfile", &server.file("no/folder.prom")]);
    assert!(ran.code() == Some(1) && ran.stderr.contains("no/folder.prom"), "{ran:?}");
}

#[test]
fn a_textfile_is_written_again_until_a_signal_comes() {
    let server = Server::tcp(&ours(), &[]);
    let path = server.file("beanstalkd.prom");
    let mut child =
        server.command(&["metrics", "--textfile", &path, "--interval", "1"]).spawn().unwrap();
    let uptime = |least: u64| {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("beanstalkd_uptime_seconds"));
        line.is_some_and(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap() >= least)
    };
    ct::eventually("it is written again", || uptime(2));
    // A write that fails for some time must not end the command.
    let aside = server.file("aside.prom");
    while fs::create_dir(&path).is_err() {
        let _ = fs::rename(&path, &aside);
    }
    thread::sleep(Duration::from_millis(2500));
    assert!(child.try_wait().unwrap().is_none(), "it has given up");
    fs::remove_dir(&path).unwrap();
    ct::eventually("it is written once more", || uptime(4));
    harness::interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// A signal must end a scrape that waits for a server, and not only the pause between scrapes.
#[test]
fn a_signal_ends_a_scrape_that_waits() {
    let silent = Played::new(|_| Heard::Nothing);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("beanstalkd.prom");
    for interval in [&["--interval", "1"][..], &[]] {
        let mut command = Command::new(PROGRAM);
        command.args(["--server", &silent.address, "metrics", "--timeout", "60"]);
        let mut child = command.arg("--textfile").arg(&path).args(interval).spawn().unwrap();
        // Give the command time to catch signals and to begin a scrape.
        thread::sleep(Duration::from_secs(1));
        let began = Instant::now();
        harness::interrupt(&child);
        child.wait().unwrap();
        assert!(began.elapsed() < Duration::from_secs(20), "{interval:?}");
    }
}

/// If a series occurred twice in the text, Prometheus would refuse the metrics of all servers.
#[test]
fn no_series_is_there_twice() {
    let played = Played::new(|line| match line {
        "stats" => "---\ntotal-jobs: 1\nuptime: 1e999\n".into(),
        "capabilities" => "---\nextensions:\n- metrics\n".into(),
        "list-tubes" => "---\n- a\n- b\n- a\n".into(),
        "metrics" => "---\nturn-seconds-le-1: 1\nturn-seconds-le-1: 1\nturn-seconds-le-inf: 1\n\
                      turn-seconds-sum: } x\n"
            .into(),
        "stats-tube a" | "stats-tube b" => TUBE.into(),
        _ => "NOT_FOUND".into(),
    });
    let text = text(&format!("{0},{0}", played.address), &[]);
    let series: Vec<_> = text.lines().filter_map(|line| line.rsplit_once(' ')).collect();
    let names: BTreeSet<_> = series.iter().map(|(name, _)| name).collect();
    let samples = text.lines().filter(|line| !line.starts_with('#')).count();
    let kept = names.iter().filter(|name| !name.starts_with('#')).count();
    assert_eq!((samples, text.contains("1e999"), text.contains("} x")), (kept, false, false));
    assert!(text.contains("tube=\"b\""), "{text}");
}

/// A server that announces a huge or invalid length must be down, and not affect other servers.
#[test]
fn a_server_that_promises_too_much_is_down() {
    let server = Server::tcp(&ours(), &[]);
    for reply in ["OK 18446744073709551615", "OK 9223372036854775807", "OK 99999999999", "OK x"] {
        let played = Played::new(move |_| reply.into());
        let text = text(&format!("{},{}", played.address, server.address), &["--timeout", "30"]);
        assert!(has(&text, "beanstalkd_up", &played.address, "", "0"), "{reply}: {text}");
        assert!(has(&text, "beanstalkd_up", &server.address, "", "1"), "{reply}: {text}");
    }
}

/// The table in doc/monitoring.md must have exactly the names that `metrics` prints.
#[test]
fn every_metric_is_documented() {
    let text = text(&everything().address, &[]);
    let page = fs::read_to_string(repository().join("doc/monitoring.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `beanstalkd_"));
    let cells = rows.map(|row| row.split(" | ").next().unwrap());
    let documented: BTreeSet<String> = cells
        .flat_map(|cell| cell.split(", `beanstalkd_"))
        .map(|name| name.split(['`', '{']).next().unwrap())
        .map(|name| format!("beanstalkd_{name}"))
        .collect();
    let told: BTreeSet<String> = names(&text).into_iter().map(str::to_owned).collect();
    assert_eq!(documented, told);
}

/// An alert on a name that does not exist would never fire, and a dashboard would show nothing.
#[test]
fn the_dashboard_and_the_alerts_use_names_that_exist() {
    let text = text(&everything().address, &[]);
    let known = names(&text);
    let folder = repository().join("pkg/prometheus");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&read("grafana.json")).unwrap();
    for (what, text) in
        [("dashboard", dashboard.to_string()), ("rules", read("beanstalkd.rules.yml"))]
    {
        let mut used = 0;
        for (at, _) in text.match_indices("beanstalkd_") {
            let is_of_name = |it: &char| it.is_ascii_lowercase() || *it == '_';
            let name: String = text[at..].chars().take_while(is_of_name).collect();
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|it| name.strip_suffix(it));
            let is_known = known.contains(&*name) || base.is_some_and(|it| known.contains(it));
            assert!(is_known, "the {what} uses {name}");
            used += 1;
        }
        assert!(used > 7, "the {what} uses {used} names");
    }
}

#[test]
fn each_alert_fires_and_does_not() {
    let Some(ran) = promtool(&["check", "rules", "beanstalkd.rules.yml"], "") else { return };
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    let ran = promtool(&["test", "rules", "beanstalkd.rules.test.yml"], "").unwrap();
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    let read =
        |name: &str| fs::read_to_string(repository().join("pkg/prometheus").join(name)).unwrap();
    let (rules, tests) = (read("beanstalkd.rules.yml"), read("beanstalkd.rules.test.yml"));
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        let cases: Vec<_> = tests.split(&format!("alertname: {alert}\n")).skip(1).collect();
        let is_quiet = |case: &&&str| case.trim_start().starts_with("exp_alerts: []");
        let quiet = cases.iter().filter(is_quiet).count();
        assert!(quiet > 0 && quiet < cases.len(), "{alert} must fire, and must not");
    }
}
