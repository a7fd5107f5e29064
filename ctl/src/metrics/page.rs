//! Writes metrics in the text format of Prometheus.
//!
//! The format requires that all lines of a metric are adjacent. Therefore each server has a
//! separate text for each metric, and the texts of all servers are joined at the end.

use std::mem;

use super::names::{Family, Names, Source};
use crate::output::inert_text;

/// The keys in the statistics of a server or a tube, with their values.
pub(crate) type Pairs<'a> = Vec<(&'a str, &'a str)>;

/// The lines of one server: one text for each metric of the server, and then one text for each
/// metric of its tubes.
#[derive(Debug)]
pub(crate) struct Page {
    lines: Vec<String>,
    /// The label of the server; empty if servers have no label.
    label: String,
}

/// Escapes the value of a metric's label.
fn escape_label(value: &str) -> String {
    let value = inert_text(value);
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

/// The lines of a metric, with their common labels.
struct Lines<'a> {
    out: &'a mut String,
    name: &'a str,
    common: &'a str,
}

impl Lines<'_> {
    /// Writes a line of a metric. `own` has the labels that only this line has, as pieces of text.
    fn write_line(&mut self, suffix: &str, own: &[&str], value: &str) {
        let out = &mut *self.out;
        out.extend([self.name, suffix]);
        if !self.common.is_empty() || !own.is_empty() {
            let is_both = !self.common.is_empty() && !own.is_empty();
            out.extend(["{", self.common, if is_both { "," } else { "" }]);
            out.extend(own.iter().copied());
            out.push('}');
        }
        out.extend([" ", value, "\n"]);
    }

    /// Writes the samples of a metric, if the server reports its values.
    fn write_source(&mut self, source: Source, pairs: &Pairs<'_>) {
        match source {
            Source::Number(key) => {
                if let Some(value) = Self::find_pair(pairs, key).and_then(Self::value_number) {
                    self.write_line("", &[], value);
                }
            }
            Source::Labelled(key, label, named) => {
                if let Some(value) = Self::find_pair(pairs, key).and_then(Self::value_number) {
                    self.write_line("", &[label, "=\"", named, "\""], value);
                }
            }
            Source::State(key, state) => {
                if let Some(value) = Self::find_pair(pairs, key) {
                    let is_in = if value == state { "1" } else { "0" };
                    self.write_line("", &["state=\"", state, "\""], is_in);
                }
            }
            Source::Labels(keys) => {
                let known = keys.iter().filter_map(|key| Some((key, Self::find_pair(pairs, key)?)));
                let labels: Vec<_> = known
                    .map(|(key, value)| format!("{key}=\"{}\"", escape_label(value)))
                    .collect();
                if !labels.is_empty() {
                    self.write_line("", &[&labels.join(",")], "1");
                }
            }
            Source::Histogram(key) => self.write_histogram(key, pairs),
            Source::Each(all) => all.iter().for_each(|source| self.write_source(*source, pairs)),
        }
    }

    /// Writes the lines of a histogram. The key of a bucket ends in the bucket's bound; the bounds
    /// rise up to `inf`.
    fn write_histogram(&mut self, key: &str, pairs: &Pairs<'_>) {
        let (mut count, mut sum) = (None, None);
        let mut last_bound = f64::NEG_INFINITY;
        for (name, value) in pairs {
            let Some(name) = name.strip_prefix(key) else { continue };
            let Some(value) = Self::value_number(value) else { continue };
            let Some(bound) = name.strip_prefix("-le-") else {
                sum = sum.or((name == "-sum").then_some(value));
                continue;
            };
            // Skip a repeated bound, because Prometheus would reject the whole scrape.
            let Some(size) = bound.parse().ok().filter(|size| *size > last_bound) else { continue };
            last_bound = size;
            if size == f64::INFINITY {
                self.write_line("_bucket", &["le=\"+Inf\""], value);
                count = Some(value);
            } else {
                self.write_line("_bucket", &["le=\"", bound, "\""], value);
            }
        }
        if let (Some(count), Some(sum)) = (count, sum) {
            self.write_line("_sum", &[], sum);
            self.write_line("_count", &[], count);
        }
    }

    /// Formats a metric's value; returns `None` if the value is neither a number nor a boolean.
    fn value_number(value: &str) -> Option<&str> {
        match value {
            "true" => Some("1"),
            "false" => Some("0"),
            _ => {
                let has_digit = value.starts_with(|it: char| it.is_ascii_digit());
                let is_number = value.parse::<f64>().is_ok_and(f64::is_finite);
                (has_digit && is_number).then_some(value)
            }
        }
    }

    /// Finds the value of a key among `pairs`, for a line of a metric.
    fn find_pair<'a>(pairs: &Pairs<'a>, key: &str) -> Option<&'a str> {
        pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }
}

impl Page {
    /// Makes an empty page of metrics.
    pub(crate) fn new(names: &Names, server: &str) -> Self {
        let label = names.server_label.map(|label| format!("{label}=\"{}\"", escape_label(server)));
        let lines = vec![String::new(); names.server.len() + names.tube.len()];
        Self { lines, label: label.unwrap_or_default() }
    }

    /// Adds the lines of the server to the page of metrics.
    pub(crate) fn add_server(&mut self, names: &Names, pairs: &Pairs<'_>) {
        for (family, out) in names.server.iter().zip(&mut self.lines) {
            write_family(family, out, &self.label, pairs);
        }
    }

    /// Adds the lines of a tube to the page of metrics.
    pub(crate) fn add_tube(&mut self, names: &Names, tube: &str, pairs: &Pairs<'_>) {
        let comma = if self.label.is_empty() { "" } else { "," };
        let labels = format!("{}{comma}tube=\"{}\"", self.label, escape_label(tube));
        for (family, out) in names.tube.iter().zip(&mut self.lines[names.server.len()..]) {
            write_family(family, out, &labels, pairs);
        }
    }
}

/// Writes the lines of a metric.
fn write_family(family: &Family, out: &mut String, common: &str, pairs: &Pairs<'_>) {
    let mut lines = Lines { out, name: &family.name, common };
    for source in &family.sources {
        lines.write_source(*source, pairs);
    }
}

/// Joins the pages of all servers. The text is returned in pieces, so that the large text of
/// thousands of tubes is not copied once more.
pub(crate) fn join_pages(names: &Names, mut pages: Vec<Page>) -> Vec<String> {
    let mut pieces = Vec::new();
    for (number, family) in names.server.iter().chain(&names.tube).enumerate() {
        let lines = pages.iter_mut().map(|page| mem::take(&mut page.lines[number]));
        let lines: Vec<_> = lines.filter(|lines| !lines.is_empty()).collect();
        if lines.is_empty() {
            continue;
        }
        let (name, help, kind) = (&family.name, &family.help, family.kind.name());
        pieces.push(format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        pieces.extend(lines);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::super::args::Naming;
    use super::*;
    use crate::yaml;

    fn page(naming: Naming, server: &str, tube: &str, text_of_tube: &str) -> String {
        let names = naming.names(1);
        let mut page = Page::new(&names, server);
        page.add_tube(&names, tube, &yaml::pairs(text_of_tube).collect());
        join_pages(&names, vec![page]).concat()
    }

    #[test]
    fn a_histogram_is_one_of_prometheus() {
        let yaml = "---\nname: \"a\"\nwait-seconds-le-0.001: 0\nwait-seconds-le-60: 9\n\
                    wait-seconds-le-inf: 10\nwait-seconds-sum: 71.500000000\n";
        let expected = "\
# HELP beanstalkd_tube_wait_seconds Times from ready to reserved.
# TYPE beanstalkd_tube_wait_seconds histogram
beanstalkd_tube_wait_seconds_bucket{server=\"q:1\",tube=\"a\",le=\"0.001\"} 0
beanstalkd_tube_wait_seconds_bucket{server=\"q:1\",tube=\"a\",le=\"60\"} 9
beanstalkd_tube_wait_seconds_bucket{server=\"q:1\",tube=\"a\",le=\"+Inf\"} 10
beanstalkd_tube_wait_seconds_sum{server=\"q:1\",tube=\"a\"} 71.500000000
beanstalkd_tube_wait_seconds_count{server=\"q:1\",tube=\"a\"} 10
";
        assert_eq!(page(Naming::Own, "q:1", "a", yaml), expected);
    }

    #[test]
    fn no_line_of_a_histogram_is_there_twice() {
        let yaml = "---\nwait-seconds-le-1: 1\nwait-seconds-le-1: 2\nwait-seconds-le-inf: 3\n\
                    wait-seconds-le-inf: 3\nwait-seconds-sum: 2\nwait-seconds-sum: x\n";
        let text = page(Naming::Own, "q:1", "a", yaml);
        let names: Vec<_> = text.lines().filter_map(|line| line.split_once("} ")).collect();
        assert_eq!(names.len(), 4, "{text}");
        let odd = "---\nwait-seconds-le-inf: 3\nwait-seconds-sum: } 1\n";
        assert!(!page(Naming::Own, "q:1", "a", odd).contains("_sum"));
    }

    #[test]
    fn labels_are_escaped_and_odd_values_left_out() {
        let text = page(
            Naming::Own,
            "unix:/a\"b\\c\nd",
            "x\"y",
            "---\ncurrent-jobs-ready: 1 2\ncurrent-jobs-buried: 7\npause: no\ntotal-jobs: -\n\
             pause-time-left: 1e999\nwait-seconds-sum: }{\n",
        );
        let line = "beanstalkd_tube_jobs{server=\"unix:/a\\\"b\\\\c\\nd\",tube=\"x\\\"y\",\
                    state=\"buried\"} 7\n";
        assert!(text.ends_with(line) && text.lines().count() == 3, "{text}");
    }

    #[test]
    fn a_page_without_a_server_has_no_empty_label() {
        let text = page(Naming::Davidtannock, "q:1", "a", "---\npause: 5\n");
        assert!(text.ends_with("beanstalkd_tube_pause_seconds_total{tube=\"a\"} 5\n"), "{text}");
        let names = Naming::Davidtannock.names(1);
        let mut page = Page::new(&names, "q:1");
        page.add_server(&names, &vec![("draining", "true"), ("cmd-put", "3")]);
        let text = super::join_pages(&names, vec![page]).concat();
        assert!(text.ends_with("\nbeanstalkd_cmd_put_total 3\n"), "{text}");
    }

    #[test]
    fn the_lines_of_servers_stand_together() {
        let names = Naming::Own.names(2);
        let page = |server| {
            let mut page = Page::new(&names, server);
            page.add_server(&names, &vec![("(up)", "1"), ("state", "draining")]);
            page
        };
        let text = super::join_pages(&names, vec![page("a:1"), page("b:1")]).concat();
        assert_eq!(text.matches("# TYPE beanstalkd_up gauge\n").count(), 1);
        let up = "beanstalkd_up{server=\"a:1\"} 1\nbeanstalkd_up{server=\"b:1\"} 1\n";
        assert!(text.contains(up), "{text}");
        assert!(text.contains("beanstalkd_state{server=\"b:1\",state=\"serving\"} 0\n"));
        assert!(text.contains("beanstalkd_state{server=\"b:1\",state=\"draining\"} 1\n"));
    }
}
