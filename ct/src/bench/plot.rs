//! Draws the curves of a report: one picture for each family and figure, both axes logarithmic.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use plotters::prelude::*;

use super::compare::Row;
use super::report::Report;
use super::stats::Spread;

const SIZE: (u32, u32) = (820, 460);
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// What is drawn along a curve, with the title of its axis.
const FIGURES: [(&str, &str); 2] =
    [("rate", "commands a second"), ("cpu", "CPU of the daemon a command, µs")];
/// What is drawn where the offered rate varies.
const LATENCIES: [(&str, &str); 3] =
    [("p50", "latency, half, µs"), ("p99", "latency, 99 %, µs"), ("p99.9", "latency, 99.9 %, µs")];

/// One line of a picture.
#[derive(Debug, Clone, PartialEq)]
struct Series {
    label: String,
    points: Vec<(f64, Spread)>,
}

/// Writes all pictures of a report into a directory and returns their paths.
pub fn draw(report: &Report, directory: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    fs::create_dir_all(directory)?;
    let mut paths = Vec::new();
    for (family, rows) in families(&report.rows) {
        let Some((what, _)) = &rows[0].curve else { continue };
        let offered = what.contains("offered");
        let figures = if offered { &LATENCIES[..] } else { &FIGURES[..] };
        for (figure, title) in figures {
            let series = series(&rows, figure);
            if series.iter().any(|series| series.points.len() > 1) {
                let path = directory.join(format!("{family}-{figure}.svg"));
                let caption = format!("{}: {title}", family.replace('-', " "));
                fs::write(&path, picture(&caption, what, title, &series)?)?;
                paths.push(path);
            }
        }
    }
    Ok(paths)
}

/// Collects the rows of each curve under a name that is good for a file.
fn families(rows: &[Row]) -> BTreeMap<String, Vec<&Row>> {
    let mut families: BTreeMap<String, Vec<&Row>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.curve.is_some()) {
        let (family, variant) = row.name.split_once('/').unwrap_or((&row.name, ""));
        let phase = variant.split_once(' ').map_or("", |(_, phase)| phase);
        let name = format!("{family} {phase}").trim_end().replace(", ", "-").replace(' ', "-");
        families.entry(name).or_default().push(row);
    }
    families
}

/// Returns a line for each target; zero is drawn at one, for logarithms have no zero.
fn series(rows: &[&Row], figure: &str) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for row in rows {
        let Some((_, value)) = row.curve else { continue };
        for result in &row.results {
            let Some(spread) = result.spread(figure).filter(|spread| spread.least > 0.0) else {
                continue;
            };
            let point = (value.max(1.0), spread);
            match all.iter_mut().find(|series| series.label == result.label) {
                Some(series) => series.points.push(point),
                None => all.push(Series { label: result.label.clone(), points: vec![point] }),
            }
        }
    }
    all
}

fn picture(
    caption: &str,
    what: &str,
    title: &str,
    series: &[Series],
) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let points = || series.iter().flat_map(|series| &series.points);
        let across = range(points().map(|point| point.0), 1.05);
        let up = range(points().flat_map(|(_, spread)| [spread.least, spread.most]), 1.5);
        // The names of the lines stand above them.
        let up = up.start..up.end * 2.0;
        let mut chart = ChartBuilder::on(&area)
            .margin(14)
            .caption(caption, ("sans-serif", 18))
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d(across.log_scale(), up.log_scale())?;
        chart
            .configure_mesh()
            .x_desc(what)
            .y_desc(title)
            .x_label_formatter(&|value| tick(*value))
            .y_label_formatter(&|value| tick(*value))
            .light_line_style(WHITE)
            .draw()?;
        for (series, colour) in series.iter().zip(COLOURS.iter().cycle()) {
            let line = series.points.iter().map(|(x, spread)| (*x, spread.median));
            chart
                .draw_series(LineSeries::new(line, colour.stroke_width(2)).point_size(3))?
                .label(&series.label)
                .legend(|(x, y)| {
                    PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2))
                });
            chart.draw_series(series.points.iter().map(|(x, spread)| {
                PathElement::new(vec![(*x, spread.least), (*x, spread.most)], *colour)
            }))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        area.present()?;
    }
    Ok(text)
}

/// Returns the range of some values, with room around it by a factor.
fn range(values: impl Iterator<Item = f64>, room: f64) -> std::ops::Range<f64> {
    let (least, most) = values
        .fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
    least / room..most * room
}

/// Writes 1,000 as 1k and 1,000,000 as 1M.
fn tick(value: f64) -> String {
    let (scaled, unit) = match value {
        value if value >= 1e6 => (value / 1e6, "M"),
        value if value >= 1e3 => (value / 1e3, "k"),
        value => (value, ""),
    };
    let text = format!("{scaled:.2}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::super::compare::{Outcome, named};
    use super::*;

    fn row(name: &str, value: f64, rate: f64) -> Row {
        let samples = vec![named([("rate", rate), ("cpu", 1.0)])];
        Row {
            name: name.to_owned(),
            about: String::new(),
            curve: Some(("tubes".to_owned(), value)),
            results: vec![Outcome { label: "a".to_owned(), samples, error: None }],
            base: None,
        }
    }

    #[test]
    fn each_phase_has_its_own_curve() {
        let rows = [
            row("tubes/1 watch, ignore", 1.0, 5.0),
            row("tubes/10 watch, ignore", 10.0, 6.0),
            row("tubes/10 use", 10.0, 7.0),
        ];
        let families = families(&rows);
        assert_eq!(families.keys().collect::<Vec<_>>(), ["tubes-use", "tubes-watch-ignore"]);
        let series = series(&families["tubes-watch-ignore"], "rate");
        assert_eq!(series.len(), 1);
        assert_eq!(series[0].points.len(), 2);
    }

    #[test]
    fn a_picture_is_drawn_where_there_is_a_curve() {
        let rows = vec![row("x/0", 0.0, 5.0), row("x/10", 10.0, 6.0), row("y/1", 1.0, 1.0)];
        let report = Report { rows, ..Report::default() };
        let directory = std::env::temp_dir().join(format!("ct-plot-{}", std::process::id()));
        let paths = draw(&report, &directory).unwrap();
        let names: Vec<_> = paths.iter().filter_map(|path| path.file_name()).collect();
        assert_eq!(names, ["x-rate.svg", "x-cpu.svg"]);
        assert!(fs::read_to_string(&paths[0]).unwrap().contains("</svg>"));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn ticks_are_short() {
        let cases = [(1.0, "1"), (0.25, "0.25"), (1_500.0, "1.5k"), (2e6, "2M"), (100.0, "100")];
        for (value, text) in cases {
            assert_eq!(tick(value), text);
        }
    }
}
