//! Figures as PNG, drawn by the program itself (docs/adr/0017).

use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::fmt::Display;
use std::path::Path;
use std::sync::Once;

/// Pixels of a figure: readable, and well under 150 KB.
const SIZE: (u32, u32) = (960, 480);
/// The font of all text.
const FONT: &str = "sans-serif";
/// Colours in the order in which series use them, distinguishable with red-green blindness, each with a
/// different hue. The marks of neighbouring series differ, too.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(90, 90, 90),
    RGBColor(230, 159, 0),
    RGBColor(120, 40, 20),
    RGBColor(110, 60, 160),
];

/// Maximum number of values for which each one gets its own tick.
const TICKS: usize = 9;

/// How a series is drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A line, filled down to the axis.
    Area,
    /// A line.
    Line,
    /// A line with a mark at each point.
    Marked,
    /// Marks without lines.
    Points,
}

/// Points with a name.
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// How the series is drawn.
    pub shape: Shape,
    /// Points, sorted by x.
    pub points: Vec<(f64, f64)>,
}

/// One panel: axes with series.
pub struct Panel {
    /// Title above the panel.
    pub title: String,
    /// Label of the x axis.
    pub x: String,
    /// Label of the y axis.
    pub y: String,
    /// Series in the order of drawing.
    pub series: Vec<Series>,
    /// Whether the x axis is logarithmic.
    pub logarithmic: bool,
    /// Whether the y axis is logarithmic; then every y is above 0.
    pub logarithmic_y: bool,
}

/// Writes panels, side by side, as a PNG.
pub fn draw(path: &Path, panels: &[Panel]) -> Result<(), String> {
    static FONTS: Once = Once::new();
    FONTS.call_once(|| {
        let font = epaint_default_fonts::UBUNTU_LIGHT;
        assert!(register_font(FONT, FontStyle::Normal, font).is_ok(), "the font that we bring");
    });
    let said = |e: &dyn Display| format!("cannot draw {}: {e}", path.display());
    let root = BitMapBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(|e| said(&e))?;
    for (area, panel) in root.split_evenly((1, panels.len())).iter().zip(panels) {
        panel_on(area, panel).map_err(|e| said(&e))?;
    }
    root.present().map_err(|e| said(&e))
}

type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;

fn panel_on(area: &Area<'_>, panel: &Panel) -> Result<(), String> {
    let all = || panel.series.iter().flat_map(|s| &s.points);
    let most = all().map(|p| p.1).fold(0.0, f64::max);
    // Room for the legend, so that it does not cover many series.
    let legend = 0.11 * panel.series.len().saturating_sub(3) as f64;
    let top = if most > 0.0 { most * (1.12 + legend) } else { 1.0 };
    let low = all().map(|p| p.0).fold(f64::INFINITY, f64::min);
    let high = all().map(|p| p.0).fold(f64::NEG_INFINITY, f64::max);
    if !(low.is_finite() && high.is_finite()) {
        return Err(format!("there is nothing in '{}'", panel.title));
    }
    let mut builder = ChartBuilder::on(area);
    builder.caption(&panel.title, (FONT, 18)).margin(10);
    builder.x_label_area_size(42).y_label_area_size(62);
    let text = |e: &dyn Display| e.to_string();
    if panel.logarithmic_y {
        let least = all().map(|p| p.1).fold(f64::INFINITY, f64::min);
        if least <= 0.0 {
            return Err(format!("'{}' has a value that is not above 0", panel.title));
        }
        // Room above the values for the legend: a fraction of the axis, as in the linear case.
        let (floor, part) = (least * 0.9, 1.12 + legend);
        let top = floor * (most / floor).max(1.5).powf(part);
        let values = all().map(|p| p.1);
        let y = (floor..top).log_scale().with_key_points(ticks(values, floor, top));
        return if panel.logarithmic {
            let (low, high) = (low.max(1e-9) * 0.9, high.max(low * 1.01) * 1.1);
            let x = (low..high).log_scale();
            let x = x.with_key_points(ticks(all().map(|p| p.0), low, high));
            fill(&mut builder.build_cartesian_2d(x, y).map_err(|e| text(&e))?, panel, floor)
        } else {
            let high = if high > low { high } else { low + 1.0 };
            let chart = builder.build_cartesian_2d(low..high, y);
            fill(&mut chart.map_err(|e| text(&e))?, panel, floor)
        };
    }
    if panel.logarithmic {
        let (low, high) = (low.max(1e-9) * 0.9, high.max(low * 1.01) * 1.1);
        let scale = (low..high).log_scale();
        let scale = scale.with_key_points(ticks(all().map(|p| p.0), low, high));
        let mut chart = builder.build_cartesian_2d(scale, 0.0..top).map_err(|e| text(&e))?;
        fill(&mut chart, panel, 0.0)
    } else {
        let high = if high > low { high } else { low + 1.0 };
        let mut chart = builder.build_cartesian_2d(low..high, 0.0..top).map_err(|e| text(&e))?;
        fill(&mut chart, panel, 0.0)
    }
}

/// Draws the series of a panel; areas reach down to `floor`.
fn fill<'a, X, Y>(
    chart: &mut ChartContext<'a, BitMapBackend<'a>, Cartesian2d<X, Y>>,
    panel: &Panel,
    floor: f64,
) -> Result<(), String>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let text = |e: &dyn Display| e.to_string();
    let number = |v: &f64| short(*v);
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .x_desc(&panel.x)
        .y_desc(&panel.y)
        .x_labels(8)
        .y_labels(6)
        .x_label_formatter(&number)
        .y_label_formatter(&number)
        .label_style((FONT, 14))
        .draw()
        .map_err(|e| text(&e))?;
    for (n, (series, colour)) in panel.series.iter().zip(COLOURS.into_iter().cycle()).enumerate() {
        let points = series.points.iter().copied();
        let mark = |at| EmptyElement::at(at) + Polygon::new(outline(n), colour.filled());
        let drawn = match series.shape {
            Shape::Area => {
                let area = AreaSeries::new(points, floor, colour.mix(0.35));
                chart.draw_series(area.border_style(colour.stroke_width(1)))
            }
            // Segment by segment: the corners of thick lines with sharp turns would reach too far.
            Shape::Line => {
                let pieces = series.points.windows(2);
                let style = colour.stroke_width(2);
                chart.draw_series(pieces.map(|two| PathElement::new(two.to_vec(), style)))
            }
            Shape::Marked => {
                let line = LineSeries::new(points.clone(), colour.stroke_width(2));
                chart.draw_series(line).map_err(|e| text(&e))?;
                chart.draw_series(points.map(mark))
            }
            Shape::Points => chart.draw_series(points.map(mark)),
        };
        let bar = |half: i32| vec![(-7, -half), (7, -half), (7, half), (-7, half)];
        let (line, on_it) = match series.shape {
            Shape::Area | Shape::Line => (bar(4), bar(4)),
            Shape::Marked => (bar(1), outline(n)),
            Shape::Points => (outline(n), outline(n)),
        };
        drawn.map_err(|e| text(&e))?.label(&series.name).legend(move |(x, y)| {
            let filled = |points: &[Point]| Polygon::new(points.to_vec(), colour.filled());
            EmptyElement::at((x + 7, y)) + filled(&line) + filled(&on_it)
        });
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(RGBColor(200, 200, 200))
        .label_font((FONT, 14))
        .draw()
        .map_err(|e| text(&e))
}

/// A point of a mark, in pixels from its middle.
type Point = (i32, i32);

/// The mark of the series with this index; its shape differs from that of its neighbours.
fn outline(n: usize) -> Vec<Point> {
    let turned = |corners: usize, radius: &dyn Fn(usize) -> f64, from: f64| -> Vec<Point> {
        let point = |k: usize| {
            let angle = (from + k as f64 / corners as f64) * std::f64::consts::TAU;
            let (sin, cos) = angle.sin_cos();
            ((radius(k) * cos).round() as i32, (radius(k) * sin).round() as i32)
        };
        (0..corners).map(point).collect()
    };
    match n % COLOURS.len() {
        0 => turned(16, &|_| 5.0, 0.0),
        1 => turned(4, &|_| 6.0, 0.125),
        2 => turned(3, &|_| 7.0, -0.25),
        3 => turned(4, &|_| 7.0, 0.0),
        4 => turned(3, &|_| 7.0, 0.25),
        5 => turned(10, &|k| if k % 2 == 0 { 8.0 } else { 3.5 }, -0.25),
        6 => turned(8, &|k| if k % 2 == 0 { 8.0 } else { 2.5 }, 0.0),
        _ => turned(8, &|k| if k % 2 == 0 { 8.0 } else { 2.5 }, 0.125),
    }
}

/// Ticks of a logarithmic axis: the values themselves if they are few, else 1, 2 and 5 times each power of
/// ten, or only the powers.
fn ticks(values: impl Iterator<Item = f64>, low: f64, high: f64) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    if values.len() <= TICKS {
        return values;
    }
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let steps: &[f64] = if high / low < 300.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let all = powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
    all.filter(|tick| (low..=high).contains(tick)).collect()
}

/// A number at an axis, with as few digits as possible.
fn short(v: f64) -> String {
    let text = match v.abs() {
        a if a >= 100.0 => format!("{v:.0}"),
        a if a >= 1.0 => format!("{v:.1}"),
        _ => format!("{v:.2}"),
    };
    let cut = text.trim_end_matches('0').trim_end_matches('.');
    if text.contains('.') { cut.to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(logarithmic: bool, points: Vec<(f64, f64)>) -> Panel {
        let of = |name: &str, shape| Series { name: name.into(), shape, points: points.clone() };
        Panel {
            title: "Memory over time".into(),
            x: "seconds".into(),
            y: "MiB".into(),
            series: vec![
                of("allocated", Shape::Area),
                of("used", Shape::Line),
                of("asked", Shape::Marked),
            ],
            logarithmic,
            logarithmic_y: false,
        }
    }

    fn xs(panel: &Panel) -> impl Iterator<Item = f64> {
        panel.series.iter().flat_map(|s| &s.points).map(|point| point.0)
    }

    #[test]
    fn a_figure_is_a_small_png() {
        let path = std::env::temp_dir().join(format!("plot-{}.png", std::process::id()));
        let mut points: Vec<(f64, f64)> = Vec::new();
        for i in 1..2000 {
            let x = i as f64 / 10.0;
            points.push((x, (x / 7.0).sin().abs() * x));
        }
        draw(&path, &[panel(false, points.clone()), panel(true, points)]).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n"));
        assert!((4_000..150_000).contains(&bytes.len()), "{} bytes", bytes.len());
    }

    #[test]
    fn what_cannot_be_drawn_is_said() {
        let said = draw(Path::new("/nowhere/at/all.png"), &[panel(false, vec![(1.0, 2.0)])]);
        assert!(said.unwrap_err().contains("/nowhere/at/all.png"));
        let path = std::env::temp_dir().join(format!("plot-empty-{}.png", std::process::id()));
        let said = draw(&path, &[panel(false, Vec::new())]).unwrap_err();
        let _ = std::fs::remove_file(&path);
        assert!(said.contains("there is nothing in 'Memory over time'"), "{said}");
    }

    #[test]
    fn values_of_equal_factors_are_above_0() {
        let path = std::env::temp_dir().join(format!("plot-log-{}.png", std::process::id()));
        for logarithmic in [false, true] {
            let mut high = panel(logarithmic, vec![(10.0, 1.0), (60.0, 4.7), (100.0, 34.0)]);
            high.logarithmic_y = true;
            high.series[2].shape = Shape::Points;
            draw(&path, std::slice::from_ref(&high)).unwrap();
            high.series[0].points.push((110.0, 0.0));
            let said = draw(&path, &[high]).unwrap_err();
            assert!(said.contains("not above 0"), "{said}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn an_axis_of_equal_factors_has_ticks() {
        let few = panel(true, vec![(0.25, 1.0), (1.0, 2.0), (8.0, 3.0)]);
        assert_eq!(ticks(xs(&few), 0.2, 9.0), [0.25, 1.0, 8.0]);
        let many = panel(true, (1..100).map(|i| (i as f64, 1.0)).collect());
        assert_eq!(ticks(xs(&many), 1.5, 60.0), [2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(ticks(xs(&many), 1.5, 15_000.0), [10.0, 100.0, 1000.0, 10_000.0]);
    }

    #[test]
    fn no_two_series_look_alike() {
        for (n, own) in COLOURS.iter().enumerate() {
            for (m, other) in COLOURS.iter().enumerate().take(n) {
                assert_ne!(outline(n), outline(m));
                // Far enough apart in some channel, and of another hue: no shade of the same colour.
                let RGBColor(r, g, b) = own;
                let RGBColor(s, h, c) = other;
                let apart = [(r, s), (g, h), (b, c)].map(|(a, b)| a.abs_diff(*b));
                assert!(apart.iter().any(|n| *n > 60), "{n} and {m}");
            }
        }
    }

    #[test]
    fn numbers_at_axes_are_short() {
        for (v, text) in
            [(1000.0, "1000"), (120.0, "120"), (1.5, "1.5"), (2.0, "2"), (0.25, "0.25"), (0.0, "0")]
        {
            assert_eq!(short(v), text);
        }
    }
}
