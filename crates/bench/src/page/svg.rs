//! Pictures with axes, drawn by `plotters`.

use plotters::coord::{CoordTranslate, Shift};
use plotters::prelude::*;

use super::Chart;
use super::canvas::{Canvas, Pixels};
use crate::{BenchError, Result};

const SIZE: (u32, u32) = (760, 400);
const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(23, 190, 207),
];

/// Names of a picture and of its axes.
#[derive(Clone, Copy)]
pub(super) struct Axes<'a> {
    pub(super) name: &'a str,
    pub(super) title: &'a str,
    pub(super) x: &'a str,
    pub(super) y: &'a str,
}

/// A row of points that belong together.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    /// Without it, the points stand alone.
    pub(super) is_joined: bool,
}

/// A bar from one place to another, and its height.
pub(super) struct Bar {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

type Area<'a> = DrawingArea<Canvas<'a>, Shift>;

fn failed<E: std::fmt::Display>(error: E) -> BenchError {
    BenchError::failed(format!("a chart cannot be drawn: {error}"))
}

/// Draws a chart twice: as SVG and as PNG.
fn drawn(name: &str, draw: impl Fn(&Area<'_>) -> Result<()>) -> Result<Chart> {
    let on = |canvas: Canvas<'_>| {
        let area = canvas.into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        draw(&area)?;
        area.present().map_err(failed)
    };
    let mut svg = String::new();
    on(Canvas::Svg(SVGBackend::with_string(&mut svg, SIZE)))?;
    let mut pixels = vec![0; 3 * SIZE.0 as usize * SIZE.1 as usize];
    on(Canvas::Pixels(Pixels::new(&mut pixels, SIZE)))?;
    // Within a page there is no second prologue.
    let start = svg.find("<svg").unwrap_or(0);
    Ok(Chart { name: name.to_owned(), svg: svg.split_off(start), png: encoded(&pixels)? })
}

/// Pixels as a PNG file.
fn encoded(pixels: &[u8]) -> Result<Vec<u8>> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, SIZE.0, SIZE.1);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(pixels).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(file)
}

/// A number of an axis, in three digits where they are needed to tell it from its neighbours.
fn tick(x: &f64) -> String {
    let (scale, unit) = match x.abs() {
        a if a >= 1e12 => (1e12, "T"),
        a if a >= 1e9 => (1e9, "G"),
        a if a >= 1e6 => (1e6, "M"),
        a if a >= 1e4 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let scaled = x / scale;
    let decimals = match scaled.abs() {
        a if a >= 100.0 || a == 0.0 => 0,
        a if a >= 10.0 => 1,
        a if a >= 0.1 => 2,
        a if a >= 0.001 => 4,
        _ => return format!("{scaled:.1e}"),
    };
    let text = format!("{scaled:.decimals$}");
    let short = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{short}{unit}")
}

/// Largest number of a picture: beyond it an axis has no end.
const MOST: f64 = 1e100;

/// Refuses numbers that no axis can show; reports come from files.
fn check(mut values: impl Iterator<Item = f64>) -> Result<()> {
    match values.all(|x| (0.0..=MOST).contains(&x)) {
        true => Ok(()),
        false => Err(failed("a value is below 0 or beyond 1e100")),
    }
}

fn check_lines(lines: &[Line]) -> Result<()> {
    check(lines.iter().flat_map(|line| &line.points).flat_map(|(x, y)| [*x, *y]))
}

/// Lines over linear axes from zero; `mark` draws a ring and a word around one point.
pub(super) fn lines(
    axes: Axes<'_>,
    lines: &[Line],
    mark: Option<((f64, f64), &str)>,
) -> Result<Chart> {
    check_lines(lines)?;
    let all = || lines.iter().flat_map(|line| line.points.iter());
    let most = |of: fn(&(f64, f64)) -> f64| all().map(of).fold(0.0, f64::max).max(1e-9) * 1.08;
    let (width, height) = (most(|point| point.0), most(|point| point.1));
    drawn(axes.name, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(axes.title, ("sans-serif", 18))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..width, 0.0..height)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(axes.x)
            .y_desc(axes.y)
            .x_label_formatter(&tick)
            .y_label_formatter(&tick)
            .draw()
            .map_err(failed)?;
        for (line, colour) in lines.iter().zip(COLOURS.into_iter().cycle()) {
            if line.is_joined {
                let path = LineSeries::new(line.points.iter().copied(), &colour);
                chart.draw_series(path).map_err(failed)?;
            }
            let dots = line.points.iter().map(|&point| Circle::new(point, 3, colour.filled()));
            let drawn = chart.draw_series(dots).map_err(failed)?;
            // A line without a name belongs to the one before.
            if !line.name.is_empty() {
                drawn
                    .label(line.name.clone())
                    .legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
            }
        }
        if let Some((point, word)) = mark {
            chart.draw_series([Circle::new(point, 9, BLACK)]).map_err(failed)?;
            let place = (point.0, point.1 + height * 0.06);
            let text = Text::new(word.to_owned(), place, ("sans-serif", 15));
            chart.draw_series([text]).map_err(failed)?;
        }
        legend(&mut chart)
    })
}

/// Lines over logarithmic axes.
pub(super) fn log_lines(axes: Axes<'_>, lines: &[Line]) -> Result<Chart> {
    check_lines(lines)?;
    let all = || lines.iter().flat_map(|line| line.points.iter());
    let range = |of: fn(&(f64, f64)) -> f64| {
        let (low, high) = all()
            .map(of)
            .fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), x| (low.min(x), high.max(x)));
        (low.min(high).max(1e-12) / 2.0, high.max(1e-12) * 2.0)
    };
    let ((left, right), (low, high)) = (range(|point| point.0), range(|point| point.1));
    drawn(axes.name, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(axes.title, ("sans-serif", 18))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d((left..right).log_scale(), (low..high).log_scale())
            .map_err(failed)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(axes.x)
            .y_desc(axes.y)
            .x_label_formatter(&tick)
            .y_label_formatter(&tick)
            .draw()
            .map_err(failed)?;
        for (line, colour) in lines.iter().zip(COLOURS.into_iter().cycle()) {
            let points = line.points.iter().copied();
            if line.is_joined {
                chart.draw_series(LineSeries::new(points.clone(), &colour)).map_err(failed)?;
            }
            let size = if line.is_joined { 0 } else { 4 };
            chart
                .draw_series(points.map(|point| Circle::new(point, size, colour.filled())))
                .map_err(failed)?
                .label(line.name.clone())
                .legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
        }
        legend(&mut chart)
    })
}

/// Bars over linear axes. `words` stand over bars, from their left ends.
pub(super) fn bars(axes: Axes<'_>, bars: &[Bar], words: &[String]) -> Result<Chart> {
    check(bars.iter().flat_map(|bar| [bar.from, bar.to, bar.low, bar.high]))?;
    let most = bars.iter().map(|bar| bar.high.max(bar.low)).fold(0.0, f64::max).max(1e-9) * 1.12;
    let left = bars.iter().map(|bar| bar.from).fold(f64::MAX, f64::min).min(1e300);
    let right = bars.iter().map(|bar| bar.to).fold(left + 1e-9, f64::max);
    drawn(axes.name, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(axes.title, ("sans-serif", 18))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(left..right, 0.0..most)
            .map_err(failed)?;
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT).disable_x_mesh().x_desc(axes.x).y_desc(axes.y);
        mesh.y_label_formatter(&tick);
        match words.is_empty() {
            true => mesh.x_label_formatter(&tick),
            false => mesh.x_labels(0),
        };
        mesh.draw().map_err(failed)?;
        let boxes = bars.iter().map(|bar| {
            let colour = if bar.high >= bar.low { COLOURS[0] } else { COLOURS[1] };
            Rectangle::new([(bar.from, bar.low), (bar.to, bar.high)], colour.mix(0.75).filled())
        });
        chart.draw_series(boxes).map_err(failed)?;
        let labels = bars.iter().zip(words).map(|(bar, word)| {
            let place = (bar.from, bar.high.max(bar.low) + most * 0.04);
            Text::new(word.clone(), place, ("sans-serif", 12))
        });
        chart.draw_series(labels).map_err(failed)?;
        Ok(())
    })
}

/// A box with the names of the lines.
fn legend<'a, DB, CT>(chart: &mut ChartContext<'a, DB, CT>) -> Result<()>
where
    DB: DrawingBackend + 'a,
    CT: CoordTranslate,
{
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::tick;

    #[test]
    fn labels_of_an_axis_keep_the_digits_that_tell_neighbours_apart() {
        for (x, text) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (1.5, "1.5"),
            (150.0, "150"),
            (2500.0, "2500"),
            (12_500.0, "12.5k"),
            (1e6, "1M"),
            (1.5e6, "1.5M"),
            (2e6, "2M"),
            (250e6, "250M"),
            (1.25e9, "1.25G"),
            (3e12, "3T"),
        ] {
            assert_eq!(tick(&x), text);
        }
    }
}
