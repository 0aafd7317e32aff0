//! From pixels to the numbers that a network takes.

use crate::Images;

/// Images and labels, ready for a network. Filled again and again without allocating.
#[derive(Debug, Default)]
pub struct Batch {
    /// Padded and normalised. // N,H,W,C
    pub images: Vec<f32>,
    /// One an image. // N
    pub labels: Vec<u8>,
}

impl Batch {
    /// How many images it holds.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

/// Pads with black and normalises.
#[derive(Debug, Clone)]
pub struct Loader {
    padding: usize,
    /// The number for each of the 256 values of a pixel.
    value: [f32; 256],
}

impl Loader {
    /// Adds `padding` black pixels on each side, then takes off `mean` and divides by `deviation`; white is 1.
    pub fn new(padding: usize, (mean, deviation): (f32, f32)) -> Self {
        Self { padding, value: std::array::from_fn(|pixel| (pixel as f32 / 255.0 - mean) / deviation) }
    }

    /// Fills `batch` with these images.
    pub fn fill(&self, batch: &mut Batch, from: &Images, indices: &[usize]) {
        let (height, width) = (from.height, from.width);
        let padded_width = width + 2 * self.padding;
        let padded_size = (height + 2 * self.padding) * padded_width;

        batch.labels.clear();
        batch.labels.extend(indices.iter().map(|&index| from.labels[index]));
        batch.images.clear();
        batch.images.resize(indices.len() * padded_size, self.value[0]);
        for (image, &index) in batch.images.chunks_exact_mut(padded_size).zip(indices) {
            let pixels = &from.pixels[index * height * width..][..height * width];
            let rows = image.chunks_exact_mut(padded_width).skip(self.padding);
            for (row, pixels) in rows.zip(pixels.chunks_exact(width)) {
                for (number, &pixel) in row[self.padding..].iter_mut().zip(pixels) {
                    *number = self.value[usize::from(pixel)];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_padded_normalised_and_in_order() {
        let images = Images { height: 1, width: 2, pixels: vec![0, 255, 51, 0], labels: vec![7, 3] };
        let mut batch = Batch::default();
        Loader::new(1, (0.5, 0.25)).fill(&mut batch, &images, &[1, 0]);
        let (black, fifth, white) = (-2.0, (0.2 - 0.5) / 0.25, 2.0);
        #[rustfmt::skip]
        assert_eq!(batch.images, [
            black, black, black, black,
            black, fifth, black, black,
            black, black, black, black,

            black, black, black, black,
            black, black, white, black,
            black, black, black, black,
        ]);
        assert_eq!(batch.labels, [3, 7]);
    }
}
