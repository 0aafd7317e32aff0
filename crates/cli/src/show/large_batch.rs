//! Rows that take several times as many images a step as the smallest do: what became of the recipes for large batches, beside
//! what they did to ImageNet.

use ringstep_nn::optim::Rule;
use ringstep_nn::schedule::WarmUp;
use ringstep_train::Job;
use ringstep_train::batch_norm::BatchNorm;

use super::units::{list, percent};
use crate::train::Row;

/// What is done about a batch that is k times as large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recipe {
    /// The small batch.
    Base,
    /// Nothing.
    Plain,
    /// The learning rate is k times as large, too.
    Linear,
    /// The same, after epochs at a small one.
    Constant,
    /// The same, reached gradually.
    Gradual,
    /// Each layer has its own (You et al., 2017).
    Lars,
}

impl Recipe {
    fn name(self) -> &'static str {
        match self {
            Self::Base => "base batch",
            Self::Plain => "plain",
            Self::Linear => "linear scaling",
            Self::Constant => "linear, constant warm-up",
            Self::Gradual => "linear, gradual warm-up",
            Self::Lars => "LARS",
        }
    }

    /// Top-1 error of ResNet-50 on ImageNet, batch 256 and batches of 8,192 (Goyal et al., 2017), in percent.
    fn published(self) -> Option<f64> {
        match self {
            Self::Base => Some(23.60),
            Self::Linear => Some(24.84),
            Self::Constant => Some(25.88),
            Self::Gradual => Some(23.74),
            Self::Plain | Self::Lars => None,
        }
    }

    /// What a job is beside the one with the smallest batch.
    fn of(job: &Job, base: &Job) -> Option<Self> {
        let times = images(job) as f32 / images(base) as f32;
        let scaled = |by: f32| (job.lr / (by * base.lr) - 1.0).abs() < 0.01;
        let warm = job.warm_up.epochs() > 0.0;
        match (job.rule, job.warm_up) {
            _ if times == 1.0 => Some(Self::Base),
            (Rule::Lars { .. }, _) => Some(Self::Lars),
            (_, WarmUp::Linear { .. }) if warm && scaled(times) => Some(Self::Gradual),
            (_, WarmUp::Constant { .. }) if warm && scaled(times) => Some(Self::Constant),
            _ if scaled(times) => Some(Self::Linear),
            _ if scaled(1.0) && !warm => Some(Self::Plain),
            _ => None,
        }
    }
}

/// Images of a step.
fn images(job: &Job) -> usize {
    job.workers * job.batch * job.accumulate
}

/// A row, and what it is an example of.
struct Example {
    recipe: Recipe,
    batch_norm: Option<BatchNorm>,
    images: usize,
    lr: f32,
    loss: f64,
    accuracy: f64,
    error: f64,
}

/// A table and sentences about the recipes that rows follow.
pub struct LargeBatches {
    pub headings: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
    pub sentences: Vec<String>,
}

/// What there is to say, if rows follow such recipes.
pub fn large_batches(rows: &[Row]) -> Option<LargeBatches> {
    let base = rows.iter().map(|row| &row.run.job).min_by_key(|job| images(job))?;
    let example = |row: &Row| {
        let (job, summary) = (&row.run.job, &row.summary);
        Some(Example {
            recipe: Recipe::of(job, base)?,
            batch_norm: job.model.normalises().then_some(job.batch_norm),
            images: images(job),
            lr: job.lr,
            loss: summary.train_loss,
            accuracy: summary.train_accuracy,
            error: 1.0 - summary.test_accuracy,
        })
    };
    let examples: Vec<Example> = rows.iter().filter_map(example).collect();
    examples.iter().any(|example| example.recipe == Recipe::Linear).then(|| LargeBatches::of(&examples))
}

impl LargeBatches {
    fn of(examples: &[Example]) -> Self {
        let row = |example: &Example| {
            vec![
                example.recipe.name().to_owned(),
                example.batch_norm.map_or_else(String::new, |mode| mode.name().to_owned()),
                example.images.to_string(),
                example.lr.to_string(),
                format!("{:.3}", example.loss),
                percent(example.accuracy),
                percent(example.error),
                example.recipe.published().map_or_else(String::new, |error| format!("{error:.2}%")),
            ]
        };
        let mut modes: Vec<Option<BatchNorm>> = examples.iter().map(|example| example.batch_norm).collect();
        modes.dedup();
        let mut sentences = Vec::new();
        for (at, &mode) in modes.iter().enumerate() {
            if !modes[..at].contains(&mode) {
                sentences.push(order(examples.iter().filter(|example| example.batch_norm == mode).collect(), mode));
            }
        }
        Self {
            headings: vec![
                "recipe",
                "batch\nnorm",
                "images\na step",
                "lr",
                "train\nloss",
                "train\nacc.",
                "test\nerror",
                "Goyal\net al.",
            ],
            rows: examples.iter().map(row).collect(),
            sentences: sentences.into_iter().flatten().collect(),
        }
    }
}

/// Whether errors come in the published order.
fn order(examples: Vec<&Example>, batch_norm: Option<BatchNorm>) -> Option<String> {
    let mut published: Vec<(f64, &Example)> =
        examples.into_iter().filter_map(|example| Some((example.recipe.published()?, example))).collect();
    if published.len() < 2 {
        return None;
    }
    published.sort_by(|a, b| a.0.total_cmp(&b.0));
    let names = |order: &[(f64, &Example)]| -> Vec<&str> { order.iter().map(|(_, it)| it.recipe.name()).collect() };
    let expected = names(&published);
    let mut here = published.clone();
    here.sort_by(|a, b| a.1.error.total_cmp(&b.1.error));
    let found = names(&here);
    let told: Vec<String> = here.iter().map(|(_, it)| format!("{} {}", it.recipe.name(), percent(it.error))).collect();
    let with = batch_norm.map_or_else(String::new, |mode| format!(" with batch norm {}", mode.name()));
    let verdict = match found == expected {
        true => "which is the published order".to_owned(),
        false => format!("which is not the published order: {}", list(&expected, "; ", "; ")),
    };
    Some(format!("By test error{with}: {}; {verdict}.", list(&told, "; ", "; ")))
}

#[cfg(test)]
mod tests {
    use ringstep_nn::Architecture;
    use ringstep_train::SyncMethod;
    use ringstep_train::job::{Design, Length};

    use super::*;

    #[test]
    fn recipes_are_known_by_their_learning_rates() {
        let design = Design::new("resnet20", Architecture::ResNet20.network()).unwrap();
        let base = Job { lr: 0.02, ..Job::new(design, SyncMethod::DataParallel, 2, 16, Length::Epochs(5)) };
        let large = |lr, warm_up| Job { batch: 256, lr, warm_up, ..base.clone() };
        let at_once = WarmUp::Linear { epochs: 0.0 };
        let lars = Rule::Lars { momentum: 0.9, weight_decay: 0.0, trust: 0.01 };
        for (job, recipe) in [
            (base.clone(), Some(Recipe::Base)),
            (large(0.02, at_once), Some(Recipe::Plain)),
            (large(0.32, at_once), Some(Recipe::Linear)),
            (large(0.32, WarmUp::Linear { epochs: 1.0 }), Some(Recipe::Gradual)),
            (large(0.32, WarmUp::Constant { epochs: 1.0, factor: 0.1 }), Some(Recipe::Constant)),
            (Job { rule: lars, ..large(1.0, at_once) }, Some(Recipe::Lars)),
            (large(0.1, at_once), None),
        ] {
            assert_eq!(Recipe::of(&job, &base), recipe);
        }
    }

    #[test]
    fn an_order_is_told_as_it_is() {
        let example = |recipe, error| Example {
            recipe,
            batch_norm: Some(BatchNorm::Local),
            images: 32,
            lr: 0.1,
            loss: 1.0,
            accuracy: 0.5,
            error,
        };
        let told = |gradual| {
            let all = [
                example(Recipe::Base, 0.3),
                example(Recipe::Linear, 0.4),
                example(Recipe::Gradual, gradual),
                example(Recipe::Lars, 0.2),
            ];
            LargeBatches::of(&all).sentences.concat()
        };
        assert_eq!(
            told(0.35),
            "By test error with batch norm local: base batch 30.00%; linear, gradual warm-up 35.00%; linear scaling 40.00%; \
             which is the published order."
        );
        assert_eq!(
            told(0.45),
            "By test error with batch norm local: base batch 30.00%; linear scaling 40.00%; linear, gradual warm-up 45.00%; \
             which is not the published order: base batch; linear, gradual warm-up; linear scaling."
        );
    }
}
