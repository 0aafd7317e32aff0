//! From pixels to the numbers that a network takes.

use crate::augment::{MARGIN, View};
use crate::{Dataset, Shape};

/// What images are put on: as large as a network's input, black where an image leaves it free, every number normalised.
#[derive(Debug, Clone)]
pub struct Canvas {
    image: Shape,
    height: usize,
    width: usize,
    /// For each channel the number for each of the 256 values of a pixel.
    values: Vec<[f32; 256]>,
    /// What a black pixel is. // C
    black: Vec<f32>,
}

impl Canvas {
    /// For the images of a data set, which must not be larger. They stand in the middle; where that is impossible, half
    /// a pixel nearer to the top left.
    pub fn new(data: &Dataset, height: usize, width: usize) -> Self {
        let image = data.train.shape;
        assert!(image.height <= height && image.width <= width, "{image} is larger than {height}x{width}");
        assert_eq!(image.channels, data.normalisation.len(), "a mean and a deviation for each channel");
        let table = |&(mean, deviation): &(f32, f32)| -> [f32; 256] {
            std::array::from_fn(|pixel| (pixel as f32 / 255.0 - mean) / deviation)
        };
        let values: Vec<_> = data.normalisation.iter().map(table).collect();
        let black = values.iter().map(|values| values[0]).collect();
        Self { image, height, width, values, black }
    }

    /// Numbers on it.
    pub fn len(&self) -> usize {
        self.height * self.width * self.image.channels
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Overwrites `numbers` with an image as one looks at it. // H,W,C
    pub fn paint(&self, pixels: &[u8], view: View, numbers: &mut [f32]) {
        let Shape { height, width, channels } = self.image;
        let rows = Overlap::new(height, self.height, view.top);
        let columns = Overlap::new(width, self.width, view.left);
        // Mirrored, what the window shows at its left end stands at the right end.
        let at = if view.flip { self.width - columns.at - columns.length } else { columns.at };
        let shown = at * channels..(at + columns.length) * channels;
        for (y, row) in numbers.chunks_exact_mut(self.width * channels).enumerate() {
            if !(rows.at..rows.at + rows.length).contains(&y) {
                self.blacken(row);
                continue;
            }
            let begin = (rows.skipped + y - rows.at) * width + columns.skipped;
            let pixels = pixels[begin * channels..][..columns.length * channels].chunks_exact(channels);
            self.blacken(&mut row[..shown.start]);
            self.blacken(&mut row[shown.end..]);
            let places = row[shown.clone()].chunks_exact_mut(channels);
            match view.flip {
                false => places.zip(pixels).for_each(|(place, pixel)| self.translate(pixel, place)),
                true => places.rev().zip(pixels).for_each(|(place, pixel)| self.translate(pixel, place)),
            }
        }
    }

    fn translate(&self, pixel: &[u8], numbers: &mut [f32]) {
        for ((number, &value), values) in numbers.iter_mut().zip(pixel).zip(&self.values) {
            *number = values[usize::from(value)];
        }
    }

    fn blacken(&self, numbers: &mut [f32]) {
        numbers.chunks_exact_mut(self.black.len()).for_each(|pixel| pixel.copy_from_slice(&self.black));
    }
}

/// What a window shows of an image, in one direction.
struct Overlap {
    /// Where in the window the image begins.
    at: usize,
    /// How much of the image's beginning is outside.
    skipped: usize,
    /// How much of the image is inside.
    length: usize,
}

impl Overlap {
    /// An image in the middle of a canvas, and a window of the canvas's size that begins at `begin` of the canvas
    /// padded by [`MARGIN`].
    fn new(image: usize, canvas: usize, begin: usize) -> Self {
        let image_begin = MARGIN + (canvas - image) / 2;
        let (at, skipped) = (image_begin.saturating_sub(begin).min(canvas), begin.saturating_sub(image_begin));
        let skipped = skipped.min(image);
        Self { at, skipped, length: (image - skipped).min(canvas - at) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Images;

    fn dataset(shape: Shape, pixels: Vec<u8>, normalisation: &[(f32, f32)]) -> Dataset {
        let images = Arc::new(Images { shape, labels: vec![0; pixels.len() / shape.len()], pixels });
        let normalisation = normalisation.to_vec();
        let train = Arc::clone(&images);
        Dataset { name: "test", licence: "", classes: 1, class_names: &[], normalisation, train, test: images }
    }

    fn painted(data: &Dataset, height: usize, width: usize, view: View) -> Vec<f32> {
        let canvas = Canvas::new(data, height, width);
        let mut numbers = vec![f32::NAN; canvas.len()];
        canvas.paint(data.train.image(0), view, &mut numbers);
        numbers
    }

    #[test]
    fn images_are_padded_and_normalised() {
        let data = dataset(Shape::new(1, 2, 1), vec![51, 255], &[(0.5, 0.25)]);
        let (black, fifth, white) = (-2.0, (0.2 - 0.5) / 0.25, 2.0);
        #[rustfmt::skip]
        assert_eq!(painted(&data, 3, 4, View::PLAIN), [
            black, black, black, black,
            black, fifth, white, black,
            black, black, black, black,
        ]);
    }

    #[test]
    fn each_channel_has_its_own_normalisation() {
        let data = dataset(Shape::new(1, 1, 2), vec![255, 255], &[(0.5, 0.25), (0.0, 0.5)]);
        assert_eq!(painted(&data, 1, 2, View::PLAIN), [2.0, 2.0, -2.0, 0.0]);
    }

    /// The plain way: pad, cut the window out, mirror.
    fn reference(data: &Dataset, height: usize, width: usize, view: View) -> Vec<f32> {
        let Shape { height: rows, width: columns, channels } = data.train.shape;
        let mut numbers = Vec::new();
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
            let x = if view.flip { width - 1 - x } else { x };
            let row = (y + view.top).checked_sub(MARGIN + (height - rows) / 2).filter(|&row| row < rows);
            let column = (x + view.left).checked_sub(MARGIN + (width - columns) / 2).filter(|&x| x < columns);
            for (channel, (mean, deviation)) in data.normalisation.iter().enumerate() {
                let pixel = row
                    .zip(column)
                    .map_or(0, |(row, column)| data.train.pixels[(row * columns + column) * channels + channel]);
                numbers.push((f32::from(pixel) / 255.0 - mean) / deviation);
            }
        }
        numbers
    }

    #[test]
    fn every_view_is_a_window_of_the_padded_image_perhaps_mirrored() {
        for (shape, height, width) in [
            (Shape::new(5, 6, 3), 5, 6),
            (Shape::new(4, 3, 1), 7, 8),
            (Shape::new(2, 1, 2), 2, 1), // smaller than the margin: a window may miss the image
            (Shape::new(3, 3, 1), 3, 4),
        ] {
            let pixels = (0..shape.len()).map(|i| (i * 37 % 255 + 1) as u8).collect();
            let data = dataset(shape, pixels, &[(0.4, 0.2), (0.5, 0.25), (0.6, 0.3)][..shape.channels]);
            for (top, left) in (0..=8).flat_map(|top| (0..=8).map(move |left| (top, left))) {
                for flip in [false, true] {
                    let view = View { top, left, flip };
                    assert_eq!(painted(&data, height, width, view), reference(&data, height, width, view), "{view:?}");
                }
            }
        }
    }

    #[test]
    fn mirrored_twice_is_the_image() {
        let shape = Shape::new(4, 6, 1);
        let once = dataset(shape, (0..24).collect(), &[(0.0, 1.0 / 255.0)]);
        let flip = View { flip: true, ..View::PLAIN };
        let mirrored = painted(&once, 4, 6, flip).iter().map(|&number| number.round() as u8).collect();
        let twice = dataset(shape, mirrored, &once.normalisation);
        assert_eq!(painted(&twice, 4, 6, flip), painted(&once, 4, 6, View::PLAIN));
        assert_ne!(painted(&once, 4, 6, flip), painted(&once, 4, 6, View::PLAIN));
    }
}
