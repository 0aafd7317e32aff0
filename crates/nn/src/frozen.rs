//! A model for inference alone: a copy of a model's weights as they were, and the buffers that a forward needs.

use crate::layers::Shape;
use crate::model::{Model, Phase};

/// A trained model that only classifies.
pub struct Frozen {
    model: Model,
    threads: usize,
    /// A model's forward wants labels for its loss; these mean nothing. // N
    labels: Vec<u8>,
}

impl Model {
    /// A copy of the weights as they are now, for up to `batch` images at once, on `threads` threads.
    pub fn freeze(&self, batch: usize, threads: usize) -> Frozen {
        let mut model = Model::new(self.network(), batch, threads).expect("it has been built before");
        for (index, parameter) in self.parameters().iter().enumerate() {
            model.import(index, &self.export(parameter));
        }
        Frozen { model, threads, labels: vec![0; batch] }
    }
}

impl Frozen {
    /// The most images it takes at once.
    pub fn batch(&self) -> usize {
        self.model.batch()
    }

    /// The shape of an image.
    pub fn input(&self) -> Shape {
        self.model.input()
    }

    /// How many classes it tells apart.
    pub fn classes(&self) -> usize {
        self.model.classes()
    }

    /// What the last layer makes of the images, of which there are as many as `images` holds. // N,classes
    pub fn logits(&mut self, images: &[f32]) -> &[f32] {
        let count = images.len() / self.input().len();
        assert!(count <= self.batch(), "{count} images in a frozen model for {}", self.batch());
        self.model.forward(images, &self.labels[..count], Phase::Evaluation);
        self.model.logits(count)
    }

    /// The bytes that its weights and buffers take.
    pub fn bytes(&self) -> usize {
        self.model.bytes()
    }

    /// The same once more, for another thread.
    pub fn another(&self) -> Frozen {
        self.model.freeze(self.batch(), self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Architecture;

    /// One image, some and a whole batch, by the model and by two frozen ones, whatever then happens to the model.
    #[test]
    fn it_says_what_the_model_said_when_it_was_frozen() {
        for architecture in [Architecture::LeNet5, Architecture::ResNet20] {
            let mut model = Model::new(&architecture.network(), 4, 1).unwrap();
            model.initialise(3);
            let image = model.input().len();
            let images: Vec<f32> = (0..4 * image).map(|at| (at * 31 % 97) as f32 / 50.0 - 1.0).collect();
            let labels = [1, 2, 3, 4];
            // A training pass leaves running statistics that are not those of the beginning.
            model.forward(&images, &labels, Phase::Training);
            let mut frozen = model.freeze(4, 2);
            let expected: Vec<Vec<f32>> = [1, 3, 4]
                .map(|count| {
                    model.forward(&images[..count * image], &labels[..count], Phase::Evaluation);
                    model.logits(count).to_vec()
                })
                .into();
            model.initialise(4);
            let mut other = frozen.another();
            assert_eq!((frozen.batch(), frozen.input(), frozen.classes()), (4, model.input(), 10));
            assert!(frozen.bytes() >= 4 * model.values_mut().len());
            for frozen in [&mut frozen, &mut other] {
                for (count, expected) in [1, 3, 4].into_iter().zip(&expected) {
                    let logits = frozen.logits(&images[..count * image]);
                    assert_eq!(logits.len(), expected.len());
                    let largest = expected.iter().fold(1.0f32, |largest, logit| largest.max(logit.abs()));
                    for (ours, theirs) in logits.iter().zip(expected) {
                        assert!((ours - theirs).abs() <= 1e-4 * largest, "{}: {ours} {theirs}", architecture.name());
                    }
                }
            }
        }
    }
}
