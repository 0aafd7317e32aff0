//! Whether a data set is something that a model can train on, and how its images stand in the model's input.

use ringstep_data::canvas::Canvas;
use ringstep_data::{Dataset, Shape};

use crate::job::Design;

/// A model that cannot train on a data set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// Grey and colour.
    #[error("{model} takes images of {takes}, {data} has {has}", takes = channels(*.takes))]
    Channels {
        /// The model.
        model: String,
        /// Channels of its input.
        takes: usize,
        /// The data set.
        data: &'static str,
        /// Channels of its images.
        has: usize,
    },
    /// Images that the model's input has no room for.
    #[error("{model} takes images of up to {}x{}, those of {data} are {}x{}",
        takes.height, takes.width, has.height, has.width)]
    TooLarge {
        /// The model.
        model: String,
        /// The shape of its input.
        takes: Shape,
        /// The data set.
        data: &'static str,
        /// The shape of its images.
        has: Shape,
    },
    /// Labels that the model has no output for.
    #[error("{model} tells {takes} classes apart, {data} has {has}")]
    Classes {
        /// The model.
        model: String,
        /// Its outputs.
        takes: usize,
        /// The data set.
        data: &'static str,
        /// Its classes.
        has: usize,
    },
}

fn channels(count: usize) -> String {
    format!("{count} channel{}", if count == 1 { "" } else { "s" })
}

/// Puts the images of a data set in the middle of a model's input, black around them.
pub fn fit(model: &Design, data: &Dataset) -> Result<Canvas, Misfit> {
    fit_sizes(&model.name, model.input(), model.classes(), data)
}

/// The same for a model of which no more is known than its name, its input and its classes.
pub fn fit_sizes(model: &str, takes: Shape, classes: usize, data: &Dataset) -> Result<Canvas, Misfit> {
    let (model, has, data_name) = (model.to_owned(), data.train.shape, data.name);
    if has.channels != takes.channels {
        return Err(Misfit::Channels { model, takes: takes.channels, data: data_name, has: has.channels });
    }
    if has.height > takes.height || has.width > takes.width {
        return Err(Misfit::TooLarge { model, takes, data: data_name, has });
    }
    if data.classes > classes {
        return Err(Misfit::Classes { model, takes: classes, data: data_name, has: data.classes });
    }
    Ok(Canvas::new(data, takes.height, takes.width))
}

#[cfg(test)]
mod tests {
    use ringstep_data::synthetic::Recipe;
    use ringstep_nn::Architecture;

    use super::*;

    fn lenet5() -> Design {
        Design::new("lenet5", Architecture::LeNet5.network()).unwrap()
    }

    fn data(shape: Shape, classes: usize) -> Dataset {
        Recipe { shape, classes, train: 3, test: 1, seed: 0 }.make()
    }

    #[test]
    fn the_canvas_is_the_models_input() {
        let design = lenet5();
        let (shape, mut model) = (design.input(), design.build_small());
        for (height, width) in [(32, 32), (28, 28), (1, 31)] {
            let canvas = fit(&lenet5(), &data(Shape::new(height, width, 1), 10)).unwrap();
            assert_eq!(canvas.len(), shape.len());
        }
        // The model itself would not take another length.
        assert!(model.forward(&vec![0.0; shape.len()], &[9]).loss.is_finite());
    }

    #[test]
    fn what_does_not_fit_is_refused_and_says_why() {
        let refusal = |shape, classes| fit(&lenet5(), &data(shape, classes)).unwrap_err().to_string();
        assert_eq!(refusal(Shape::new(32, 32, 3), 10), "lenet5 takes images of 1 channel, synthetic has 3");
        assert_eq!(
            refusal(Shape::new(32, 40, 1), 10),
            "lenet5 takes images of up to 32x32, those of synthetic are 32x40"
        );
        assert_eq!(refusal(Shape::new(32, 32, 1), 11), "lenet5 tells 10 classes apart, synthetic has 11");
    }
}
