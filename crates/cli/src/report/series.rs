//! How loss and accuracy of a row went: over epochs, over time, over bytes and over steps.

use ringstep_train::accounts::StepSummary;

use super::chart::{Point, Quantity};
use super::svg::Unit;
use crate::train::Row;

/// What a row's progress is measured in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Over {
    Epochs,
    Seconds,
    Bytes,
    Steps,
}

impl Over {
    /// Along the axis. Ways differ by factors in what they send.
    pub fn quantity(self) -> Quantity {
        match self {
            Self::Epochs => Quantity::linear("epochs", Unit::Count),
            Self::Seconds => Quantity::linear("time", Unit::Seconds),
            Self::Bytes => Quantity::log("bytes sent by the busiest rank", Unit::Bytes),
            Self::Steps => Quantity::linear("steps", Unit::Count),
        }
    }

    /// Where each step of a row ends, in order.
    fn ends(self, steps: &[StepSummary]) -> Vec<f64> {
        let start = steps.iter().map(|step| step.began).fold(f64::INFINITY, f64::min);
        let end = |(number, step): (usize, &StepSummary)| match self {
            Self::Epochs | Self::Steps => number as f64,
            Self::Seconds => step.began + step.seconds - start,
            Self::Bytes => step.bytes as f64,
        };
        let mut ends: Vec<f64> = steps.iter().enumerate().map(end).collect();
        // Where each rank has steps of its own, the next may have ended before.
        ends.sort_by(f64::total_cmp);
        ends
    }
}

/// A row's loss: of epochs as it is, of steps smoothed.
pub fn losses(row: &Row, over: Over) -> Vec<Point> {
    match over {
        Over::Epochs => numbered(&row.summary.epoch_losses),
        _ => smooth(&drawable(of_steps(row, over, |step| step.loss), over)),
    }
}

/// Its accuracy on the test images where it was tested.
pub fn test_accuracies(row: &Row, over: Over) -> Vec<Point> {
    let at = |test: &ringstep_train::summary::Test| match over {
        Over::Epochs => (test.epoch + 1) as f64,
        Over::Seconds => test.seconds,
        Over::Bytes => test.bytes as f64,
        Over::Steps => test.step as f64,
    };
    drawable(row.summary.tests.iter().map(|test| (at(test), test.accuracy)).collect(), over)
}

/// Its accuracy on the images that it trained on, of so many, at the end of each epoch.
pub fn train_accuracies(row: &Row, over: Over, images: usize) -> Vec<Point> {
    let accuracies = numbered(&row.summary.epoch_accuracies);
    if over == Over::Epochs {
        return accuracies;
    }
    let ends = epoch_ends(&row.steps.iter().map(|step| step.images).collect::<Vec<_>>(), images, accuracies.len());
    let at = over.ends(&row.steps);
    drawable(ends.into_iter().map(|end| at[end]).zip(accuracies.into_iter().map(|point| point.1)).collect(), over)
}

/// How long a row's steps took. The first, which warms everything up, would flatten the others: it is as long as the second.
pub fn step_times(row: &Row) -> Vec<Point> {
    let mut times = of_steps(row, Over::Steps, |step| step.seconds);
    if let [first, second, ..] = &mut times[..] {
        first.1 = second.1;
    }
    smooth(&times)
}

/// What compression left out of a row's steps, as a share of all.
pub fn errors(row: &Row) -> Vec<Point> {
    let errors = row.steps.iter().enumerate().filter_map(|(at, step)| Some((at as f64, step.error?)));
    smooth(&errors.collect::<Vec<_>>())
}

/// After each epoch.
fn numbered(values: &[f64]) -> Vec<Point> {
    values
        .iter()
        .zip(1..)
        .map(|(&value, epoch)| (f64::from(epoch), value))
        .filter(|point| point.1.is_finite())
        .collect()
}

fn of_steps(row: &Row, over: Over, value: fn(&StepSummary) -> f64) -> Vec<Point> {
    over.ends(&row.steps).into_iter().zip(row.steps.iter().map(value)).collect()
}

/// On an axis of factors there is no nothing; and while nothing is sent, all that goes on is at one place: its mean.
fn drawable(mut points: Vec<Point>, over: Over) -> Vec<Point> {
    points.retain(|(at, value)| value.is_finite() && (*at > 0.0 || over != Over::Bytes));
    let at_one_place = points.chunk_by(|a, b| a.0 == b.0);
    at_one_place.map(|same| (same[0].0, same.iter().map(|point| point.1).sum::<f64>() / same.len() as f64)).collect()
}

/// The mean over a window of a twenty-fifth of the points, from which a quarter of it leads to the next: noise goes, the curve
/// stays, and there are a hundred points to draw. Few points remain as they are.
fn smooth(points: &[Point]) -> Vec<Point> {
    let points: Vec<Point> = points.iter().copied().filter(|point| point.1.is_finite()).collect();
    let half = points.len() / 50;
    if half == 0 {
        return points;
    }
    let mean = |at: usize| {
        let window = &points[at.saturating_sub(half)..(at + half + 1).min(points.len())];
        window.iter().map(|point| point.1).sum::<f64>() / window.len() as f64
    };
    let last = points.len() - 1;
    (0..last).step_by((half / 2).max(1)).chain([last]).map(|at| (points[at].0, mean(at))).collect()
}

/// The steps with which so many epochs end, each of so many images.
fn epoch_ends(step_images: &[usize], images: usize, epochs: usize) -> Vec<usize> {
    let mut seen = 0;
    let seen: Vec<usize> = step_images.iter().map(|images| (seen += images, seen).1).collect();
    let last = step_images.len().saturating_sub(1);
    (1..=epochs).map(|epoch| seen.partition_point(|&seen| seen < epoch * images).min(last)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_points_remain_and_many_become_their_means() {
        let few: Vec<Point> = (0..30).map(|at| (f64::from(at), f64::from(at % 2))).collect();
        assert_eq!(smooth(&few), few);
        let many: Vec<Point> = (0..4000).map(|at| (f64::from(at), 5.0 + f64::from(at % 2))).collect();
        let smoothed = smooth(&many);
        assert!((90..=110).contains(&smoothed.len()), "{}", smoothed.len());
        assert!(smoothed.iter().all(|point| (point.1 - 5.5).abs() < 0.02));
        assert_eq!((smoothed[0].0, smoothed[smoothed.len() - 1].0), (0.0, 3999.0));
        // A straight line stays where it is.
        let straight: Vec<Point> = (0..1000).map(|at| (f64::from(at), f64::from(at))).collect();
        assert!(smooth(&straight)[20..80].iter().all(|(at, value)| (at - value).abs() < 1e-9));
    }

    #[test]
    fn what_is_no_number_is_not_drawn() {
        assert_eq!(smooth(&[(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0)]), [(0.0, 1.0), (2.0, 3.0)]);
        assert_eq!(drawable(vec![(0.0, 1.0), (8.0, 2.0)], Over::Bytes), [(8.0, 2.0)]);
        assert_eq!(drawable(vec![(0.0, 1.0), (8.0, 2.0)], Over::Seconds), [(0.0, 1.0), (8.0, 2.0)]);
    }

    #[test]
    fn steps_between_two_messages_are_one_point() {
        let points = vec![(8.0, 4.0), (8.0, 2.0), (9.0, 1.0)];
        assert_eq!(drawable(points, Over::Bytes), [(8.0, 3.0), (9.0, 1.0)]);
    }

    #[test]
    fn epochs_end_with_the_step_that_sees_their_last_image() {
        assert_eq!(epoch_ends(&[4, 4, 2, 4, 4, 2], 10, 2), [2, 5]);
        assert_eq!(epoch_ends(&[4, 4, 4, 4], 10, 2), [2, 3]);
    }
}
