//! What a model says about each image, against what is right.

use anyhow::{Context, Result};
use ringstep_nn::kernels::cross_entropy;
use serde::Serialize;

use super::Classifier;
use super::pictures::Pictures;

/// What a model says about one image.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Verdict {
    /// Which of the test images it is.
    pub image: usize,
    /// Its class.
    #[serde(rename = "true")]
    pub label: usize,
    /// The class with the largest logit.
    pub predicted: usize,
    /// The probability that the model gives to the predicted class.
    pub probability: f64,
    /// Minus the logarithm of the probability that it gives to the right one.
    pub loss: f64,
}

impl Verdict {
    /// `None` if the logits are not all finite.
    fn new(image: usize, label: usize, logits: &[f32]) -> Option<Self> {
        let largest =
            logits.iter().copied().reduce(f32::max).filter(|_| logits.iter().all(|logit| logit.is_finite()))?;
        // Of equal logits the first counts, as in training.
        let predicted = logits.iter().position(|&logit| logit == largest)?;
        let loss = |class| cross_entropy::forward(logits, class, 0.0).loss;
        Some(Self { image, label, predicted, probability: (-loss(predicted)).exp(), loss: loss(label) })
    }

    /// Whether the predicted class is the right one.
    pub fn is_right(&self) -> bool {
        self.predicted == self.label
    }

    /// The probability that the model gives to the right class.
    pub fn probability_of_label(&self) -> f64 {
        (-self.loss).exp()
    }
}

/// The verdicts on all test images, in their order. `done` is told how many there are so far.
pub fn judge(model: &mut dyn Classifier, pictures: &Pictures, mut done: impl FnMut(usize)) -> Result<Vec<Verdict>> {
    let (classes, batch) = (model.classes(), model.batch());
    let mut verdicts = Vec::with_capacity(pictures.len());
    let mut numbers = Vec::new();
    while verdicts.len() < pictures.len() {
        let first = verdicts.len();
        pictures.paint(first..pictures.len().min(first + batch), &mut numbers);
        for logits in model.logits(&numbers).chunks_exact(classes) {
            let image = verdicts.len();
            let verdict = Verdict::new(image, pictures.label(image), logits);
            verdicts.push(verdict.with_context(|| {
                format!("what the model makes of test image {image} is not finite: its weights are of no use")
            })?);
        }
        done(verdicts.len());
    }
    Ok(verdicts)
}

/// How often each class was taken for each.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Confusion {
    /// A row for each true class, a column for each predicted one.
    counts: Vec<Vec<usize>>,
}

impl Confusion {
    /// Of so many classes; of those that only the model knows there are as many columns as it has named.
    pub fn new(classes: usize, verdicts: &[Verdict]) -> Self {
        let columns = verdicts.iter().map(|verdict| verdict.predicted + 1).max().unwrap_or(0).max(classes);
        let mut counts = vec![vec![0; columns]; classes];
        for verdict in verdicts {
            counts[verdict.label][verdict.predicted] += 1;
        }
        Self { counts }
    }

    /// The row of each true class.
    pub fn rows(&self) -> impl Iterator<Item = &[usize]> {
        self.counts.iter().map(Vec::as_slice)
    }

    /// How many classes can be predicted.
    pub fn columns(&self) -> usize {
        self.counts.first().map_or(0, Vec::len)
    }

    /// The share of a class's images that were recognised; `None` if there are none.
    pub fn recall(&self, class: usize) -> Option<f64> {
        share(self.counts[class][class], self.counts[class].iter().sum())
    }

    /// The share of the images taken for a class that are of it; `None` if there are none.
    pub fn precision(&self, class: usize) -> Option<f64> {
        let right = self.counts.get(class).map_or(0, |row| row[class]);
        share(right, self.counts.iter().map(|row| row[class]).sum())
    }
}

fn share(part: usize, whole: usize) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The wrong verdicts, worst first: those that gave the right class the least probability.
pub fn most_wrong(verdicts: &[Verdict], count: usize) -> Vec<Verdict> {
    let mut wrong: Vec<Verdict> = verdicts.iter().filter(|verdict| !verdict.is_right()).copied().collect();
    wrong.sort_by(|a, b| b.loss.total_cmp(&a.loss));
    wrong.truncate(count);
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(image: usize, label: usize, logits: [f32; 3]) -> Verdict {
        Verdict::new(image, label, &logits).unwrap()
    }

    #[test]
    fn a_verdict_is_the_softmax() {
        // Probabilities 1/8, 2/8 and 5/8.
        let logits = [1f32.ln(), 2f32.ln(), 5f32.ln()];
        let wrong = verdict(7, 1, logits);
        assert_eq!((wrong.image, wrong.label, wrong.predicted, wrong.is_right()), (7, 1, 2, false));
        assert!((wrong.probability - 0.625).abs() < 1e-6 && (wrong.probability_of_label() - 0.25).abs() < 1e-6);
        assert!((wrong.loss - 4f64.ln()).abs() < 1e-6);
        let right = verdict(0, 2, logits);
        assert!(right.is_right() && right.probability == right.probability_of_label());
        assert_eq!(verdict(0, 1, [2.0, 2.0, 1.0]).predicted, 0);
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(Verdict::new(0, 0, &[0.0, value, 1.0]), None);
        }
    }

    #[test]
    fn the_matrix_counts_and_its_margins_are_shares() {
        let (first, second, third) = ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]);
        // Two classes in the data, three in the model.
        let verdicts = [verdict(0, 0, first), verdict(1, 0, second), verdict(2, 0, third), verdict(3, 0, first)];
        let confusion = Confusion::new(2, &verdicts);
        assert_eq!(confusion.rows().collect::<Vec<_>>(), [[2, 1, 1], [0, 0, 0]]);
        assert_eq!((confusion.columns(), confusion.recall(0), confusion.recall(1)), (3, Some(0.5), None));
        let precisions: Vec<_> = (0..3).map(|class| confusion.precision(class)).collect();
        assert_eq!(precisions, [Some(1.0), Some(0.0), Some(0.0)]);
        assert_eq!(Confusion::new(2, &verdicts[..2]).columns(), 2);
    }

    #[test]
    fn the_worst_come_first_and_the_right_not_at_all() {
        let verdicts = [
            verdict(0, 0, [0.0, 1.0, 0.0]),
            verdict(1, 1, [0.0, 9.0, 0.0]),
            verdict(2, 0, [0.0, 5.0, 0.0]),
            verdict(3, 2, [5.0, 0.0, 0.0]),
        ];
        let images = |count| most_wrong(&verdicts, count).iter().map(|verdict| verdict.image).collect::<Vec<_>>();
        assert_eq!((images(9), images(1)), (vec![2, 3, 0], vec![2]));
    }
}
