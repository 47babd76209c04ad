//! The surface that a chart is drawn on: the text of an SVG, or pixels for a PNG.

use std::io;

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use plotters::prelude::{DrawingBackend, SVGBackend};
use plotters::style::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingErrorKind,
};

type Drawn = Result<(), DrawingErrorKind<io::Error>>;

/// One of both, so that a chart is described once.
pub(super) enum Canvas<'a> {
    Svg(SVGBackend<'a>),
    Pixels(Pixels<'a>),
}

/// An image of three bytes per pixel, row by row, that begins white.
///
/// Texts are in a font of fixed width, which comes drawn already, so that no fonts of the system are
/// needed.
pub(super) struct Pixels<'a> {
    bytes: &'a mut [u8],
    size: (u32, u32),
}

/// Calls the same method of either canvas.
macro_rules! on {
    ($self:expr, $canvas:ident => $call:expr) => {
        match $self {
            Canvas::Svg($canvas) => $call,
            Canvas::Pixels($canvas) => $call,
        }
    };
}

impl DrawingBackend for Canvas<'_> {
    type ErrorType = io::Error;

    fn get_size(&self) -> (u32, u32) {
        on!(self, canvas => canvas.get_size())
    }

    fn ensure_prepared(&mut self) -> Drawn {
        on!(self, canvas => canvas.ensure_prepared())
    }

    fn present(&mut self) -> Drawn {
        on!(self, canvas => canvas.present())
    }

    fn draw_pixel(&mut self, point: BackendCoord, colour: BackendColor) -> Drawn {
        on!(self, canvas => canvas.draw_pixel(point, colour))
    }

    fn draw_line<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        style: &S,
    ) -> Drawn {
        on!(self, canvas => canvas.draw_line(from, to, style))
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        upper_left: BackendCoord,
        lower_right: BackendCoord,
        style: &S,
        fill: bool,
    ) -> Drawn {
        on!(self, canvas => canvas.draw_rect(upper_left, lower_right, style, fill))
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        on!(self, canvas => canvas.draw_path(path, style))
    }

    fn draw_circle<S: BackendStyle>(
        &mut self,
        center: BackendCoord,
        radius: u32,
        style: &S,
        fill: bool,
    ) -> Drawn {
        on!(self, canvas => canvas.draw_circle(center, radius, style, fill))
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        corners: I,
        style: &S,
    ) -> Drawn {
        on!(self, canvas => canvas.fill_polygon(corners, style))
    }

    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        place: BackendCoord,
    ) -> Drawn {
        on!(self, canvas => canvas.draw_text(text, style, place))
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<io::Error>> {
        on!(self, canvas => canvas.estimate_text_size(text, style))
    }
}

impl<'a> Pixels<'a> {
    /// A white image in `bytes`, which are three per pixel.
    pub(super) fn new(bytes: &'a mut [u8], size: (u32, u32)) -> Self {
        bytes.fill(u8::MAX);
        Self { bytes, size }
    }

    /// Mixes a colour into a pixel; places outside of the image are left out.
    fn mix(&mut self, (x, y): BackendCoord, (r, g, b): (u8, u8, u8), alpha: f64) {
        let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y)) else { return };
        if x >= self.size.0 || y >= self.size.1 {
            return;
        }
        let start = 3 * (y as usize * self.size.0 as usize + x as usize);
        for (old, new) in self.bytes[start..start + 3].iter_mut().zip([r, g, b]) {
            let mixed = f64::from(*old) * (1.0 - alpha) + f64::from(new) * alpha;
            *old = mixed.round() as u8;
        }
    }
}

/// The drawn size of letters that is nearest to the asked one.
fn height(size: f64) -> RasterHeight {
    if size < 18.0 { RasterHeight::Size16 } else { RasterHeight::Size20 }
}

/// Width and height of a text in pixels.
fn extent(text: &str, height: RasterHeight) -> (usize, usize) {
    let width = get_raster_width(FontWeight::Regular, height);
    (width * text.chars().count(), height.val())
}

impl DrawingBackend for Pixels<'_> {
    type ErrorType = io::Error;

    fn get_size(&self) -> (u32, u32) {
        self.size
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, point: BackendCoord, colour: BackendColor) -> Drawn {
        self.mix(point, colour.rgb, colour.alpha);
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        place: BackendCoord,
    ) -> Drawn {
        let (height, colour) = (height(style.size()), style.color());
        let (wide, high) = extent(text, height);
        let (wide, high) = (wide as i32, high as i32);
        let anchor = style.anchor();
        let mut left = match anchor.h_pos {
            HPos::Left => 0,
            HPos::Center => -wide / 2,
            HPos::Right => -wide,
        };
        let top = match anchor.v_pos {
            VPos::Top => 0,
            VPos::Center => -high / 2,
            VPos::Bottom => -high,
        };
        for letter in text.chars() {
            let glyph = get_raster(letter, FontWeight::Regular, height)
                .or_else(|| get_raster('?', FontWeight::Regular, height));
            let Some(glyph) = glyph else { continue };
            for (row, y) in glyph.raster().iter().zip(top..) {
                for (&ink, x) in row.iter().zip(left..) {
                    let (x, y) = style.transform().transform(x, y);
                    let alpha = colour.alpha * f64::from(ink) / 255.0;
                    self.mix((place.0 + x, place.1 + y), colour.rgb, alpha);
                }
            }
            left += glyph.width() as i32;
        }
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<io::Error>> {
        let (wide, high) = extent(text, height(style.size()));
        Ok((wide as u32, high as u32))
    }
}
