//! Softmax and cross-entropy in one: the loss of each image, and its gradient with respect to the logits.

/// How an image fared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Minus the logarithm of the probability of the right class.
    pub loss: f64,
    /// Whether the right class had the largest logit.
    pub correct: bool,
}

/// The loss of one image. With label smoothing (Szegedy et al., CVPR 2016) the right class has probability `1 -
/// smoothing`, and `smoothing` is spread evenly over all classes.
pub fn forward(logits: &[f32], label: usize, smoothing: f32) -> Outcome {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    let mean = logits.iter().map(|&logit| f64::from(logit - largest)).sum::<f64>() / logits.len() as f64;
    let smoothing = f64::from(smoothing);
    Outcome {
        loss: sum.ln() - (1.0 - smoothing) * f64::from(logits[label] - largest) - smoothing * mean,
        // Of equal logits the first counts, as in PyTorch's argmax.
        correct: logits.iter().position(|&logit| logit == largest) == Some(label),
    }
}

/// `scale` times the gradient of that loss: the probabilities that the logits give, less those that are right.
pub fn backward(logits: &[f32], label: usize, smoothing: f32, scale: f32, gradient: &mut [f32]) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for (gradient, &logit) in gradient.iter_mut().zip(logits) {
        *gradient = (logit - largest).exp();
        sum += *gradient;
    }
    let everywhere = scale * smoothing / logits.len() as f32;
    for gradient in gradient.iter_mut() {
        *gradient = *gradient * (scale / sum) - everywhere;
    }
    gradient[label] -= scale * (1.0 - smoothing);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_lose_the_logarithm_of_their_number() {
        for classes in [1, 2, 10] {
            let outcome = forward(&vec![3.5; classes], 0, 0.1);
            assert!((outcome.loss - (classes as f64).ln()).abs() < 1e-12);
            assert!(outcome.correct);
        }
        assert!(!forward(&[1.0, 1.0], 1, 0.0).correct);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let outcome = forward(&[1000.0, -1000.0], 1, 0.0);
        assert_eq!(outcome.loss, 2000.0);
        let mut gradient = [0.0; 2];
        backward(&[1000.0, -1000.0], 1, 0.0, 1.0, &mut gradient);
        assert_eq!(gradient, [1.0, -1.0]);
    }

    #[test]
    fn the_gradient_agrees_with_differences() {
        let logits = [0.3f32, -1.2, 2.0, 0.7];
        let mut gradient = [0.0; 4];
        for smoothing in [0.0, 0.1, 1.0] {
            backward(&logits, 3, smoothing, 0.5, &mut gradient);
            for index in 0..4 {
                let shifted = |by: f32| {
                    let mut logits = logits;
                    logits[index] += by;
                    forward(&logits, 3, smoothing).loss
                };
                let difference = 0.5 * (shifted(1e-2) - shifted(-1e-2)) / 2e-2;
                assert!((difference - f64::from(gradient[index])).abs() < 1e-5);
            }
        }
    }
}
