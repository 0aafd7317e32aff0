//! Images made from a seed: of any shape, the same everywhere, and such that a network can learn them.
//!
//! Each class has a coarse pattern of [`GRID`] by [`GRID`] patches; an image is the mean of its class's pattern and of
//! noise that is just as strong.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::{DataError, Dataset, Images, Shape};

/// The name on the command line.
pub const NAME: &str = "synthetic";
/// Patches of a pattern in each direction: coarse enough to survive pooling.
pub const GRID: usize = 4;
/// Mean and standard deviation of the mean of two bytes, where the brightest is 1.
const NORMALISATION: (f32, f32) = (0.5, 0.204);
/// More bytes of images than anybody wants to hold in memory for images that show nothing.
const MAX_BYTES: usize = 1 << 32;

/// What images to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipe {
    /// Of each image.
    pub shape: Shape,
    /// How many classes there are, from 1 to 256.
    pub classes: usize,
    /// Images to train on.
    pub train: usize,
    /// Images to test on.
    pub test: usize,
    /// Decides patterns, labels and noise.
    pub seed: u64,
}

impl Recipe {
    /// Checks that the images can be made and held in memory.
    pub fn validate(&self) -> Result<(), DataError> {
        let Shape { height, width, channels } = self.shape;
        let count = self.train.saturating_add(self.test);
        if [height, width, channels].contains(&0) {
            return Err(DataError::Synthetic(format!("images of {} hold nothing", self.shape)));
        }
        if !(1..=256).contains(&self.classes) {
            return Err(DataError::Synthetic(format!("{} classes: 1 to 256 are possible", self.classes)));
        }
        let bytes = [height, width, channels].iter().try_fold(count, |product, &size| product.checked_mul(size));
        match bytes {
            Some(0..=MAX_BYTES) => Ok(()),
            _ => Err(DataError::Synthetic(format!(
                "{count} images of {} are more than {} GiB",
                self.shape,
                MAX_BYTES >> 30
            ))),
        }
    }

    /// Makes the images of a valid recipe.
    pub fn make(&self) -> Dataset {
        let mut random = self.random(0);
        let patterns: Vec<_> = (0..self.classes).map(|_| pattern(self.shape, &mut random)).collect();
        Dataset {
            name: NAME,
            licence: "patterns and noise made from a seed, free to use",
            classes: self.classes,
            class_names: &[],
            normalisation: vec![NORMALISATION; self.shape.channels],
            train: Arc::new(self.images(&patterns, self.train, &mut self.random(1))),
            test: Arc::new(self.images(&patterns, self.test, &mut self.random(2))),
        }
    }

    fn random(&self, stream: u64) -> ChaCha8Rng {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(stream);
        random
    }

    fn images(&self, patterns: &[Vec<u8>], count: usize, random: &mut ChaCha8Rng) -> Images {
        let mut pixels = vec![0; count * self.shape.len()];
        let mut labels = Vec::with_capacity(count);
        for image in pixels.chunks_exact_mut(self.shape.len()) {
            let label = random.next_u32() as usize % self.classes;
            labels.push(label as u8);
            random.fill_bytes(image);
            for (pixel, &pattern) in image.iter_mut().zip(&patterns[label]) {
                *pixel = pixel.midpoint(pattern);
            }
        }
        Images { shape: self.shape, pixels, labels }
    }
}

/// Random patches, blown up to the whole image. // H,W,C
fn pattern(shape: Shape, random: &mut ChaCha8Rng) -> Vec<u8> {
    let mut patches = vec![0; GRID * GRID * shape.channels];
    random.fill_bytes(&mut patches);
    let mut pattern = Vec::with_capacity(shape.len());
    for y in 0..shape.height {
        for x in 0..shape.width {
            let patch = y * GRID / shape.height * GRID + x * GRID / shape.width;
            pattern.extend_from_slice(&patches[patch * shape.channels..][..shape.channels]);
        }
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: Recipe = Recipe { shape: Shape::new(12, 10, 3), classes: 7, train: 500, test: 100, seed: 3 };

    #[test]
    fn they_have_the_shape_and_number_that_was_asked_for() {
        for (shape, classes, train, test) in
            [(Shape::new(32, 32, 1), 10, 100, 50), (Shape::new(1, 1, 1), 2, 3, 1), (Shape::new(5, 3, 4), 256, 9, 0)]
        {
            let data = Recipe { shape, classes, train, test, seed: 1 }.make();
            assert_eq!((data.train.len(), data.test.len(), data.train.shape), (train, test, shape));
            assert_eq!((data.train.pixels.len(), data.test.pixels.len()), (train * shape.len(), test * shape.len()));
            assert!(data.train.labels.iter().all(|&label| usize::from(label) < classes));
            assert_eq!(data.normalisation.len(), shape.channels);
        }
    }

    #[test]
    fn a_seed_makes_the_same_images_and_more_of_them_begin_the_same() {
        let data = RECIPE.make();
        assert_eq!(data, RECIPE.make());
        assert_ne!(data.train.pixels, Recipe { seed: 4, ..RECIPE }.make().train.pixels);
        assert_ne!(data.train.image(0), data.test.image(0));
        let mut more = Recipe { train: 900, ..RECIPE }.make();
        more.keep_first(500);
        assert_eq!(data, more);
    }

    /// The mean of a class's training images tells its test images from those of other classes.
    #[test]
    fn they_can_be_learned() {
        let data = RECIPE.make();
        let mut sums = vec![vec![0.0; RECIPE.shape.len()]; RECIPE.classes];
        let mut counts = [0.0; RECIPE.classes];
        for (index, &label) in data.train.labels.iter().enumerate() {
            counts[usize::from(label)] += 1.0;
            for (sum, &pixel) in sums[usize::from(label)].iter_mut().zip(data.train.image(index)) {
                *sum += f64::from(pixel);
            }
        }
        let distance = |class: usize, image: &[u8]| -> f64 {
            sums[class].iter().zip(image).map(|(sum, &pixel)| (sum / counts[class] - f64::from(pixel)).powi(2)).sum()
        };
        for (index, &label) in data.test.labels.iter().enumerate() {
            let image = data.test.image(index);
            let nearest = (0..RECIPE.classes).min_by(|&a, &b| distance(a, image).total_cmp(&distance(b, image)));
            assert_eq!(nearest, Some(label.into()), "image {index}");
        }
    }

    #[test]
    fn normalised_they_have_mean_0_and_deviation_1() {
        let data = Recipe { classes: 256, train: 2000, ..RECIPE }.make();
        let count = data.train.pixels.len() as f64;
        let values = || data.train.pixels.iter().map(|&pixel| f64::from(pixel) / 255.0);
        let mean = values().sum::<f64>() / count;
        let deviation = (values().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt();
        assert!((mean - 0.5).abs() < 0.01 && (deviation - 0.204).abs() < 0.01, "{mean} {deviation}");
    }

    #[test]
    fn what_cannot_be_made_is_refused() {
        let refusal = |recipe: Recipe| recipe.validate().unwrap_err().to_string();
        let of = |shape| refusal(Recipe { shape, ..RECIPE });
        assert!(RECIPE.validate().is_ok());
        assert_eq!(of(Shape::new(0, 3, 1)), "images of 0x3x1 hold nothing");
        assert_eq!(of(Shape::new(65536, 65536, 3)), "600 images of 65536x65536x3 are more than 4 GiB");
        assert!(of(Shape::new(usize::MAX, 2, 1)).ends_with("are more than 4 GiB"));
        assert_eq!(refusal(Recipe { classes: 257, ..RECIPE }), "257 classes: 1 to 256 are possible");
    }
}
