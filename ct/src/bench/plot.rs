//! Draws a run's results: bars that compare two daemons, and curves of figures against a variable.
//!
//! All pictures are drawn from the Markdown table of a run, so the run files suffice to draw the
//! pictures of the documents. A logarithmic axis cannot show zero. If a curve begins at zero, that
//! point is at the beginning of the axis, and the axis has a gap after it.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use plotters::backend::DrawingBackend as _;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::report::{number, ratio_number};
use super::run_file::{RunFile, RunRow};
use super::stats::Spread;

/// A workload that has a bar in a chart of gains.
struct Workload {
    /// The name of the workload's row.
    row: &'static str,
    /// The workload's label in the chart.
    words: &'static str,
    /// Whether the workload has a bar in the chart of the summary, too.
    in_summary: bool,
}

/// Makes a workload that has a bar in a chart of gains.
const fn workload(row: &'static str, words: &'static str, in_summary: bool) -> Workload {
    Workload { row, words, in_summary }
}

/// The bars of the chart of gains, from top to bottom; each bar compares the rates of two daemons.
const WORKLOADS: [Workload; 16] = [
    workload("lone/client", "1 client", true),
    workload("lone/pair", "1 producer, 1 blocked worker", false),
    workload("connections/10", "10 clients", true),
    workload("connections/1000", "1,000 clients", false),
    workload("workers/100x100", "100 producers, 100 blocked workers", true),
    workload("body/65535", "bodies of 64 KiB", false),
    workload("pipeline/64", "pipelines of 64", true),
    workload("backlog/ready-random cycle", "beside 1,000,000 ready jobs", false),
    workload("tubes/1000 cycle", "beside 1,000 tubes", false),
    workload("tubes/10000 cycle", "beside 10,000 tubes", true),
    workload("held/10000", "1 client with 10,000 jobs, pipelines of 8", true),
    workload("binlog/f50-10x1 put", "binlog, sync each 50 ms: 10 producers", false),
    workload("binlog/f0-1x1 put", "binlog, sync before reply: 1 producer", true),
    workload("binlog/f0-10x1 cycle", "binlog, sync before reply: 10 clients", true),
    workload("binlog/f0-workers", "the same: 10 producers, 10 blocked workers", false),
    workload("binlog/f0-100x1 put", "binlog, sync before reply: 100 producers", true),
];

/// The bars of the chart that compares the first daemon with the third daemon, the rival.
const BESIDE_RIVAL: [Workload; 10] = [
    workload("lone/client", "1 client", false),
    workload("lone/pair", "1 producer, 1 blocked worker", false),
    workload("connections/10", "10 clients", false),
    workload("connections/1000", "1,000 clients", false),
    workload("workers/100x100", "100 producers, 100 blocked workers", false),
    workload("pipeline/64", "pipelines of 64", false),
    workload("binlog/f0-10x1 put", "binlog, sync before reply: 10 producers", false),
    workload("binlog/f0-10x1 cycle", "the same: 10 clients", false),
    workload("binlog/f0-workers", "the same: 10 producers, 10 blocked workers", false),
    workload("binlog/f0-100x1 put", "binlog, sync before reply: 100 producers", false),
];

/// A chart of curves: the horizontal axis has the number in the rows' names, the vertical axis the
/// measured value.
struct Curve {
    /// The name of the file, without `.svg`.
    file: &'static str,
    /// The beginning of the rows' names, before a number.
    family: &'static str,
    /// The end of the rows' names, after the number.
    phase: &'static str,
    figure: &'static str,
    title: &'static str,
    /// The labels of the axes.
    across: &'static str,
    up: &'static str,
}

const CURVES: [Curve; 7] = [
    Curve {
        file: "connections-rate",
        family: "connections/",
        phase: "",
        figure: "rate",
        title: "Commands a second, by number of clients",
        across: "clients that put, reserve and delete, and wait for each reply",
        up: "commands a second",
    },
    Curve {
        file: "connections-cpu",
        family: "connections/",
        phase: "",
        figure: "cpu",
        title: "CPU time of a command, by number of clients",
        across: "clients that put, reserve and delete, and wait for each reply",
        up: "the daemon's CPU time per command, in µs",
    },
    Curve {
        file: "pipeline-rate",
        family: "pipeline/",
        phase: "",
        figure: "rate",
        title: "Commands a second, by depth of the pipeline",
        across: "commands that each of 10 clients sends before it reads the replies",
        up: "commands a second",
    },
    Curve {
        file: "tubes-rate",
        family: "tubes/",
        phase: " cycle",
        figure: "rate",
        title: "Commands a second, by number of tubes",
        across: "tubes with a delayed job each, beside 10 clients that put, reserve and delete",
        up: "commands a second",
    },
    Curve {
        file: "open-p50",
        family: "open/",
        phase: "",
        figure: "p50",
        title: "Median latency of a command, by offered load",
        across: "jobs a second that are put, reserved and deleted at fixed times",
        up: "µs from when a command was due to its reply",
    },
    Curve {
        file: "open-p99",
        family: "open/",
        phase: "",
        figure: "p99",
        title: "99th percentile of a command's latency, by offered load",
        across: "jobs a second that are put, reserved and deleted at fixed times",
        up: "µs from when a command was due to its reply",
    },
    Curve {
        file: "body-cpu",
        family: "body/",
        phase: "",
        figure: "cpu",
        title: "CPU time of a command, by size of the body",
        across: "bytes of a job's body",
        up: "the daemon's CPU time per command, in µs",
    },
];

/// The colours of a picture.
struct Theme {
    paper: RGBColor,
    ink: RGBColor,
    pale: RGBColor,
    grid: RGBColor,
    /// `gain` is the colour of a bar if the first daemon is faster, `loss` if it is slower.
    gain: RGBColor,
    loss: RGBColor,
}

const LIGHT: Theme = Theme {
    paper: RGBColor(255, 255, 255),
    ink: RGBColor(31, 35, 40),
    pale: RGBColor(89, 99, 110),
    grid: RGBColor(222, 226, 230),
    gain: RGBColor(0, 114, 178),
    loss: RGBColor(213, 94, 0),
};
const DARK: Theme = Theme {
    paper: RGBColor(13, 17, 23),
    ink: RGBColor(230, 237, 243),
    pale: RGBColor(157, 167, 179),
    grid: RGBColor(48, 54, 61),
    gain: RGBColor(86, 180, 233),
    loss: RGBColor(230, 159, 0),
};
/// The colours of curves, in the order of the daemons.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(117, 117, 117),
    RGBColor(204, 121, 167),
    RGBColor(0, 158, 115),
    RGBColor(230, 159, 0),
];

/// Font sizes in pixels.
const TITLE: i32 = 17;
const PLAIN: i32 = 14;
const SMALL: i32 = 13;

/// Writes all pictures of a run into a directory and returns their paths.
pub fn draw(run: &RunFile, directory: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    fs::create_dir_all(directory)?;
    let mut pictures = Vec::new();
    let other = |row: &RunRow| row.other("rate").and_then(|figure| figure.ratio);
    let rival = |row: &RunRow| row.rival("rate").and_then(|figure| figure.ratio);
    let all = bars(run, &WORKLOADS, other);
    let summary = WORKLOADS.iter().filter(|workload| workload.in_summary);
    let summary = bars(run, summary, other);
    let beside_rival = bars(run, &BESIDE_RIVAL, rival);
    let (originals, rivals) = ("the original's", "the rival's");
    for (name, bars, whose, theme) in [
        ("gains", &all, originals, &LIGHT),
        ("summary", &summary, originals, &LIGHT),
        ("summary-dark", &summary, originals, &DARK),
        ("rival", &beside_rival, rivals, &LIGHT),
    ] {
        if !bars.is_empty() {
            pictures.push((name, gains(bars, whose, theme)?));
        }
    }
    for curve in &CURVES {
        let lines = lines(run, curve);
        if lines.iter().any(|line| line.points.len() > 1) {
            pictures.push((curve.file, curves(curve, &lines)?));
        }
    }
    let mut paths = Vec::new();
    for (name, picture) in pictures {
        let path = directory.join(format!("{name}.svg"));
        fs::write(&path, picture)?;
        paths.push(path);
    }
    Ok(paths)
}

/// Returns the label and the gain of each workload that has a bar in the chart.
fn bars<'a>(
    run: &RunFile,
    workloads: impl IntoIterator<Item = &'a Workload>,
    gain: impl Fn(&RunRow) -> Option<Spread>,
) -> Vec<(&'static str, Spread)> {
    let gain = |workload: &Workload| {
        let ratio = gain(run.row(workload.row)?)?;
        Some((workload.words, ratio)).filter(|_| ratio.least > 0.0)
    };
    workloads.into_iter().filter_map(gain).collect()
}

/// Draws a bar from 1 to each gain on a logarithmic axis, and a thin line over the gain's range.
fn gains(bars: &[(&str, Spread)], whose: &str, theme: &Theme) -> Result<String, Box<dyn Error>> {
    const STEP: i32 = 27;
    const LEFT: i32 = 340;
    const TOP: i32 = 98;
    const WIDTH: i32 = 798;
    let bottom = TOP + STEP * count(bars.len());
    let ends = bars.iter().flat_map(|(_, gain)| [gain.least, gain.most]);
    let scale = Scale::logarithmic(ends.chain([1.0]), (LEFT, WIDTH - 90));
    let one = scale.at(1.0);
    let mut text = String::new();
    {
        let mut canvas = Canvas::new(&mut text, (WIDTH, bottom + 20), theme);
        canvas.title((20, 24), &format!("Commands a second: how many times {whose}"))?;
        let note = "10 clients, one command at a time, unless a bar says otherwise; \
                    thin lines span the rounds";
        canvas.text((20, 50), note, SMALL, theme.pale, HPos::Left)?;
        for &value in &scale.ticks {
            let x = scale.at(value);
            canvas.line(&[(x, TOP - 6), (x, bottom)], theme.grid, 1)?;
            let label = format!("{}×", short(value));
            canvas.text((x, TOP - 18), &label, SMALL, theme.pale, HPos::Center)?;
        }
        for ((words, gain), index) in bars.iter().zip(0..) {
            let y = TOP + STEP * index + STEP / 2;
            let colour = if gain.median >= 1.0 { theme.gain } else { theme.loss };
            let end = scale.at(gain.median);
            let (from, to) = (one.min(end), one.max(end));
            canvas.text((LEFT - 14, y), words, PLAIN, theme.ink, HPos::Right)?;
            canvas.bar((from, y - 8), (to, y + 8), colour)?;
            let (least, most) = (scale.at(gain.least), scale.at(gain.most));
            canvas.line(&[(least, y), (most, y)], theme.ink, 1)?;
            for x in [least, most] {
                canvas.line(&[(x, y - 3), (x, y + 3)], theme.ink, 1)?;
            }
            let label = format!("{}×", ratio_number(gain.median));
            canvas.text((to.max(most) + 8, y), &label, PLAIN, theme.ink, HPos::Left)?;
        }
        canvas.line(&[(one, TOP - 6), (one, bottom)], theme.ink, 2)?;
    }
    Ok(text)
}

/// The points of one daemon's curve, from left to right.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    label: String,
    points: Vec<(f64, f64)>,
}

/// Returns the line of each daemon that has figures for the curve.
fn lines(run: &RunFile, curve: &Curve) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in &run.rows {
        let Some(rest) = row.name.strip_prefix(curve.family) else { continue };
        let Some(Ok(x)) = rest.strip_suffix(curve.phase).map(str::parse::<f64>) else { continue };
        for side in row.sides.iter().filter(|side| !side.label.starts_with("the first, as")) {
            let Some(figure) = side.figures.get(curve.figure) else { continue };
            match lines.iter_mut().find(|line| line.label == side.label) {
                Some(line) => line.points.push((x, figure.value)),
                None => {
                    lines.push(Line { label: side.label.clone(), points: vec![(x, figure.value)] });
                }
            }
        }
    }
    for line in &mut lines {
        line.points.sort_by(|left, right| left.0.total_cmp(&right.0));
    }
    lines
}

/// Draws a picture of curves: one line for each daemon.
fn curves(curve: &Curve, lines: &[Line]) -> Result<String, Box<dyn Error>> {
    const WIDTH: i32 = 760;
    const HEIGHT: i32 = 400;
    const LEFT: i32 = 92;
    const RIGHT: i32 = WIDTH - 156;
    const TOP: i32 = 78;
    const BOTTOM: i32 = HEIGHT - 66;
    let theme = &LIGHT;
    let points = || lines.iter().flat_map(|line| &line.points);
    let across = Scale::through(points().map(|point| point.0), (LEFT + 16, RIGHT - 12));
    let up = Scale::over(points().map(|point| point.1), (BOTTOM, TOP));
    let mut text = String::new();
    {
        let mut canvas = Canvas::new(&mut text, (WIDTH, HEIGHT), theme);
        canvas.title((20, 24), curve.title)?;
        let kind = if up.is_logarithmic { ", logarithmic" } else { "" };
        let note = format!("{}{kind}", curve.up);
        canvas.text((20, 50), &note, SMALL, theme.pale, HPos::Left)?;
        for &value in &up.ticks {
            let y = up.at(value);
            canvas.line(&[(LEFT, y), (RIGHT, y)], theme.grid, 1)?;
            canvas.text((LEFT - 10, y), &short(value), SMALL, theme.pale, HPos::Right)?;
        }
        canvas.line(&[(LEFT, BOTTOM), (RIGHT, BOTTOM)], theme.pale, 1)?;
        for &value in &across.ticks {
            let x = across.at(value);
            canvas.line(&[(x, BOTTOM), (x, BOTTOM + 5)], theme.pale, 1)?;
            canvas.text((x, BOTTOM + 17), &short(value), SMALL, theme.pale, HPos::Center)?;
        }
        if let Some(gap) = across.gap {
            canvas.bar((gap - 3, BOTTOM - 1), (gap + 3, BOTTOM + 1), theme.paper)?;
            for x in [gap - 3, gap + 3] {
                canvas.line(&[(x - 3, BOTTOM + 6), (x + 3, BOTTOM - 6)], theme.pale, 1)?;
            }
        }
        let middle = LEFT + (RIGHT - LEFT) / 2;
        canvas.text((middle, HEIGHT - 22), curve.across, SMALL, theme.pale, HPos::Center)?;
        // The first daemon's line is drawn last, over the other lines.
        for (index, line) in lines.iter().enumerate().rev() {
            draw_points(&mut canvas, line, COLOURS[index % COLOURS.len()], (&across, &up))?;
        }
        for (y, index) in legend(lines, &up) {
            let colour = COLOURS[index % COLOURS.len()];
            let label = match lines[index].label.as_str() {
                "bare" => "bare responder",
                label => label,
            };
            canvas.bar((RIGHT + 10, y - 2), (RIGHT + 22, y + 1), colour)?;
            canvas.text((RIGHT + 28, y), label, SMALL, theme.ink, HPos::Left)?;
        }
    }
    Ok(text)
}

/// Draws the points of a curve, and the line that joins these points.
fn draw_points(
    canvas: &mut Canvas<'_>,
    line: &Line,
    colour: RGBColor,
    (across, up): (&Scale, &Scale),
) -> Drawn {
    let points: Vec<(i32, i32)> =
        line.points.iter().map(|point| (across.at(point.0), up.at(point.1))).collect();
    // The line begins after the gap of the axis, because nothing was measured within the gap.
    let is_zero = |point: &&(f64, f64)| across.gap.is_some() && point.0 <= 0.0;
    let zeros = line.points.iter().take_while(is_zero).count();
    canvas.line(&points[zeros..], colour, 2)?;
    points.iter().try_for_each(|&point| canvas.dot(point, colour))
}

/// Returns the height in the picture for each line's name: the height of the line's end, or a lower
/// place if names would overlap.
fn legend(lines: &[Line], up: &Scale) -> Vec<(i32, usize)> {
    const APART: i32 = 20;
    let last = |line: &Line| line.points.last().map(|point| up.at(point.1));
    let ends = lines.iter().map(last).zip(0..);
    let mut ends: Vec<(i32, usize)> = ends.filter_map(|(y, index)| Some((y?, index))).collect();
    ends.sort_unstable();
    for index in 1..ends.len() {
        ends[index].0 = ends[index].0.max(ends[index - 1].0 + APART);
    }
    ends
}

/// An axis, which maps values to pixels.
#[derive(Debug, Clone, PartialEq)]
struct Scale {
    is_logarithmic: bool,
    /// The smallest and the largest value, and their pixels.
    least: f64,
    most: f64,
    from: i32,
    to: i32,
    /// The pixel in the middle of the gap between zero and the smallest positive value; `None` for
    /// an axis without this gap.
    gap: Option<i32>,
    ticks: Vec<f64>,
}

impl Scale {
    /// The axis is logarithmic if the largest value is more than this many times the smallest.
    const LINEAR: f64 = 10.0;
    /// The distance in pixels from zero to the smallest positive value of a logarithmic axis.
    const GAP: i32 = 70;

    /// Makes an axis with a tick at each value, from the smallest to the largest value.
    fn through(values: impl Iterator<Item = f64>, (from, to): (i32, i32)) -> Self {
        let mut ticks: Vec<f64> = values.collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        let (least, most) = ends(ticks.iter().copied().filter(|value| *value > 0.0));
        let is_logarithmic = most > least * Self::LINEAR;
        let has_zero = ticks.first().is_some_and(|first| *first <= 0.0);
        let is_cut = is_logarithmic && has_zero;
        Self {
            is_logarithmic,
            least: if has_zero && !is_cut { 0.0 } else { least },
            most,
            from: if is_cut { from + Self::GAP } else { from },
            to,
            gap: is_cut.then_some(from + Self::GAP / 2),
            ticks,
        }
    }

    /// Makes an axis with ticks at round numbers; the axis is logarithmic or begins at zero.
    fn over(values: impl Iterator<Item = f64> + Clone, (from, to): (i32, i32)) -> Self {
        let (least, most) = ends(values.clone());
        if most > least * Self::LINEAR {
            return Self::logarithmic(values, (from, to));
        }
        let step = round_up(most / 6.0);
        let ticks: Vec<f64> = (0..=6).map(|index| f64::from(index) * step).collect();
        let top = ticks.iter().position(|tick| *tick >= most).unwrap_or(6);
        let ticks = ticks[..=top].to_vec();
        Self { is_logarithmic: false, least: 0.0, most: ticks[top], from, to, gap: None, ticks }
    }

    /// Makes a logarithmic axis that contains the values, with ticks at 1, 2, 5, 10 and so on.
    fn logarithmic(values: impl Iterator<Item = f64>, (from, to): (i32, i32)) -> Self {
        let (least, most) = ends(values);
        // The lowest tick is below all points: a point on the tick's line would hide that line.
        let mut ticks = vec![round_down(least * 0.95)];
        while let Some(&last) = ticks.last().filter(|last| **last < most) {
            ticks.push(round_up(last * 1.01));
        }
        let (least, most) = ends(ticks.iter().copied());
        // If there would be more than ten ticks, only powers of ten get a tick.
        if ticks.len() > 10 {
            ticks.retain(|tick| (tick.log10() - tick.log10().round()).abs() < 1e-9);
        }
        Self { is_logarithmic: true, least, most, from, to, gap: None, ticks }
    }

    /// Returns the pixel of a value on an axis of a picture.
    fn at(&self, value: f64) -> i32 {
        if self.gap.is_some() && value <= 0.0 {
            return self.from - Self::GAP;
        }
        let place = |value: f64| if self.is_logarithmic { value.ln() } else { value };
        let length = place(self.most) - place(self.least);
        let share = if length > 0.0 { (place(value) - place(self.least)) / length } else { 0.5 };
        self.from + pixels(share * f64::from(self.to - self.from))
    }
}

/// Returns the smallest and the largest of the values for an axis.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0), |(least, most), value| (least.min(value), most.max(value)))
}

/// Rounds a value on an axis up to 1, 2 or 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let fits = |digit: &f64| digit * power >= value * (1.0 - 1e-9);
    [1.0, 2.0, 5.0].into_iter().find(fits).unwrap_or(10.0) * power
}

/// Rounds a value on an axis down to 1, 2 or 5 times a power of ten.
fn round_down(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let fits = |digit: &f64| digit * power <= value * (1.0 + 1e-9);
    [5.0, 2.0].into_iter().find(fits).unwrap_or(1.0) * power
}

/// Formats the number of an axis's tick with commas between thousands and without needless
/// decimals.
fn short(value: f64) -> String {
    let text = number(value);
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

/// Rounds a distance in a picture to whole pixels.
#[expect(clippy::cast_possible_truncation, reason = "pictures are smaller than 2^31 pixels")]
fn pixels(value: f64) -> i32 {
    value.round() as i32
}

/// Converts a number of bars to `i32`, to compute the height of a picture.
fn count(length: usize) -> i32 {
    i32::try_from(length).expect("there are few bars")
}

/// A picture being drawn.
struct Canvas<'a> {
    backend: SVGBackend<'a>,
    ink: RGBColor,
}

type Drawn = Result<(), Box<dyn Error>>;

impl<'a> Canvas<'a> {
    /// Begins a picture of this size; dropping the canvas completes the picture.
    fn new(text: &'a mut String, (width, height): (i32, i32), theme: &Theme) -> Self {
        let size = (width.unsigned_abs(), height.unsigned_abs());
        let mut backend = SVGBackend::with_string(text, size);
        // Writing to a string cannot fail.
        let _ = backend.draw_rect((0, 0), (width, height), &theme.paper, true);
        Self { backend, ink: theme.ink }
    }

    /// Writes the title of a picture.
    fn title(&mut self, at: (i32, i32), text: &str) -> Drawn {
        let ink = self.ink;
        self.styled(at, text, (TITLE, FontStyle::Bold), ink, HPos::Left)
    }

    /// Writes a text into a picture.
    fn text(
        &mut self,
        at: (i32, i32),
        text: &str,
        size: i32,
        colour: RGBColor,
        anchor: HPos,
    ) -> Drawn {
        self.styled(at, text, (size, FontStyle::Normal), colour, anchor)
    }

    /// Writes a text into a picture, in a font of this size and weight.
    fn styled(
        &mut self,
        at: (i32, i32),
        text: &str,
        (size, weight): (i32, FontStyle),
        colour: RGBColor,
        anchor: HPos,
    ) -> Drawn {
        // Increases the font size, because the package plotters decreases it by the same factor.
        let font = ("sans-serif", f64::from(size) * 1.24, weight).into_font();
        let style = TextStyle::from(font).color(&colour).pos(Pos::new(anchor, VPos::Center));
        Ok(self.backend.draw_text(text, &style, at)?)
    }

    /// Draws a line through points of a picture.
    fn line(&mut self, points: &[(i32, i32)], colour: RGBColor, width: u32) -> Drawn {
        Ok(self.backend.draw_path(points.iter().copied(), &colour.stroke_width(width))?)
    }

    /// Draws a filled rectangle into a picture, such as a bar.
    fn bar(&mut self, from: (i32, i32), to: (i32, i32), colour: RGBColor) -> Drawn {
        Ok(self.backend.draw_rect(from, to, &colour, true)?)
    }

    /// Draws a point of a curve into a picture.
    fn dot(&mut self, at: (i32, i32), colour: RGBColor) -> Drawn {
        Ok(self.backend.draw_circle(at, 4, &colour, true)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn run(rows: &[(&str, &str, &str)]) -> RunFile {
        let head = "| What | Daemon | Figure | × | CPU, µs | × | p50, µs | p99, µs | Saturated |\n";
        let mut text = format!("{head}|---|\n");
        for (name, own, ratio) in rows {
            let rest = "| 5 | 0.50 (0.40–0.60) | 6 | 7 | none |";
            let _ = writeln!(text, "| {name} | a | {own} commands/s | | 2 | | 3 | 4 | daemon |");
            let _ = writeln!(text, "| | b | 10 commands/s | {ratio} {rest}");
        }
        RunFile::parse(&text).unwrap()
    }

    #[test]
    fn each_phase_has_its_own_curve() {
        let ratio = "1.00 (1.00–1.00)";
        let run = run(&[
            ("tubes/10 cycle", "6", ratio),
            ("tubes/1 cycle", "5", ratio),
            ("tubes/10 use", "7", ratio),
        ]);
        let curve = CURVES.iter().find(|curve| curve.file == "tubes-rate").unwrap();
        let lines = lines(&run, curve);
        let labels: Vec<&str> = lines.iter().map(|line| line.label.as_str()).collect();
        assert_eq!(labels, ["a", "b"]);
        assert_eq!(lines[0].points, [(1.0, 5.0), (10.0, 6.0)]);
    }

    #[test]
    fn a_picture_is_drawn_for_what_the_run_has() {
        let ratio = "16.68 (14.18–17.75)";
        let run = run(&[("pipeline/64", "5", ratio), ("pipeline/1", "6", ratio)]);
        let directory = std::env::temp_dir().join(format!("ct-plot-{}", std::process::id()));
        let paths = draw(&run, &directory).unwrap();
        let names: Vec<_> = paths.iter().filter_map(|path| path.file_name()).collect();
        assert_eq!(names, ["gains.svg", "summary.svg", "summary-dark.svg", "pipeline-rate.svg"]);
        let gains = fs::read_to_string(&paths[0]).unwrap();
        assert!(gains.contains("</svg>") && gains.contains("\n16.7×\n"), "{gains}");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn zero_stands_before_a_logarithmic_axis_and_not_at_one() {
        let scale = Scale::through([0.0, 100.0, 10_000.0].into_iter(), (100, 400));
        let places = [0.0, 100.0, 1_000.0, 10_000.0].map(|value| scale.at(value));
        assert_eq!(places, [100, 170, 285, 400]);
        assert_eq!(scale.gap, Some(135));
        assert_eq!(scale.ticks, [0.0, 100.0, 10_000.0]);
    }

    #[test]
    fn an_axis_over_a_small_range_is_linear() {
        let scale = Scale::over([4.0, 11.9].into_iter(), (300, 0));
        assert_eq!(scale.ticks, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
        assert_eq!([scale.at(0.0), scale.at(12.0)], [300, 0]);
        let scale = Scale::through([5.0, 15.0, 45.0].into_iter(), (0, 400));
        assert_eq!([5.0, 15.0, 45.0].map(|value| scale.at(value)), [0, 100, 400]);
    }

    #[test]
    fn a_logarithmic_axis_has_round_ticks() {
        let scale = Scale::logarithmic([0.9, 30.0].into_iter(), (0, 100));
        assert_eq!(scale.ticks, [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        let scale = Scale::logarithmic([2.0, 150_000.0].into_iter(), (0, 100));
        assert_eq!(scale.ticks, [1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0]);
    }

    #[test]
    fn names_of_lines_do_not_cover_each_other() {
        let line = |value: f64| Line { label: String::new(), points: vec![(1.0, value)] };
        let up = Scale::over([1.0, 6.0].into_iter(), (600, 0));
        let places = legend(&[line(2.0), line(6.0), line(2.05)], &up);
        assert_eq!(places, [(0, 1), (395, 2), (415, 0)]);
    }

    #[test]
    fn ticks_are_short() {
        let cases = [(1.0, "1"), (0.25, "0.25"), (1_500.0, "1,500"), (2e6, "2,000,000")];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
    }
}
