//! The test images, as a model takes them.

use std::ops::Range;
use std::sync::Arc;

use ringstep_data::augment::View;
use ringstep_data::canvas::Canvas;
use ringstep_data::{Dataset, Images};

/// The test images of a data set, on a model's canvas.
pub struct Pictures {
    images: Arc<Images>,
    canvas: Canvas,
}

impl Pictures {
    pub fn new(data: &Dataset, canvas: Canvas) -> Self {
        Self { images: Arc::clone(&data.test), canvas }
    }

    /// The first images to train on, at most so many.
    pub fn to_train_on(data: &Dataset, canvas: Canvas, count: usize) -> Self {
        let mut images = Images::clone(&data.train);
        images.truncate(count.min(images.len()));
        Self { images: Arc::new(images), canvas }
    }

    /// The first of them, at most so many.
    pub fn first(&self, count: usize) -> Self {
        let mut images = Images::clone(&self.images);
        images.truncate(count.min(images.len()));
        Self { images: Arc::new(images), canvas: self.canvas.clone() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.images.len()
    }

    /// The class of one.
    pub fn label(&self, image: usize) -> usize {
        self.images.labels[image].into()
    }

    /// Overwrites `numbers` with some of them, padded and normalised. // N,H,W,C
    pub fn paint(&self, images: Range<usize>, numbers: &mut Vec<f32>) {
        // Every number is written below; this only sets the length.
        numbers.resize(images.len() * self.canvas.len(), 0.0);
        for (numbers, image) in numbers.chunks_exact_mut(self.canvas.len()).zip(images) {
            self.canvas.paint(self.images.image(image), View::PLAIN, numbers);
        }
    }
}
