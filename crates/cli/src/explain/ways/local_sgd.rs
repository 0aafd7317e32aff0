//! Workers that step alone, and the average of their models.

use anyhow::{Result, ensure};
use ringstep_comm::Op;
use ringstep_nn::optim::Optimizer;
use ringstep_nn::team::Team;
use ringstep_train::strategy::weight_in_average;

use super::{Cell, Lesson, Mark, START, Scene, Table, all_reduce, least, sgd, short, team};

const LR: f32 = 0.25;
const ROUNDS: usize = 2;

/// So many steps alone between two averages.
pub fn lesson(workers: usize, every: usize) -> Result<Lesson> {
    let mut alone = Alone::new(workers);
    let mut scenes = vec![alone.scene("Start".to_owned(), Vec::new(), Mark::Common)];
    for round in 1..=ROUNDS {
        let round = format!("Round {round} of {ROUNDS}");
        alone.steps(&round, every, &mut scenes)?;
        let Average { value, sent, line } = alone.average()?;
        alone.begin_at(value);
        let mut scene = alone.scene(format!("{round}, the average"), vec![line], Mark::Common);
        scene.tables[0].prepend("w, weighted", &sent, Mark::Sent);
        scenes.push(scene);
    }
    let share = 2.0 * (workers as f64 - 1.0) / workers as f64;
    Ok(Lesson {
        title: format!(
            "local-sgd, {workers} workers, an average every {every} {}",
            if every == 1 { "step" } else { "steps" }
        ),
        notes: alone.notes().into(),
        scenes,
        closing: format!(
            "{ROUNDS} all-reduces in {} steps: with n bytes of parameters a ring sends 2(p-1)/p n/H = {} n a worker and step (p = {workers}, H = {every}).",
            ROUNDS * every,
            super::number(share / every as f64)
        ),
    })
}

/// Workers that have a model and an optimizer each.
pub(super) struct Alone {
    team: Team,
    optimizers: Vec<Optimizer>,
    models: Vec<[f32; 1]>,
    /// Images of each in a step.
    images: Vec<usize>,
}

/// The average of all models.
pub(super) struct Average {
    pub value: f32,
    /// What each worker has sent for it.
    pub sent: Vec<f32>,
    /// How it came about.
    pub line: String,
}

impl Alone {
    pub fn new(workers: usize) -> Self {
        // The last worker has half as many images as the others.
        let images = (0..workers).map(|rank| if rank + 1 == workers { 8 } else { 16 }).collect();
        let optimizers = (0..workers).map(|_| sgd(1)).collect();
        Self { team: team(), optimizers, models: vec![[START]; workers], images }
    }

    /// What one must know to follow.
    pub fn notes(&self) -> [String; 2] {
        [
            format!(
                "One parameter w, {LR} is the learning rate, and worker r's slope is w - (r + 1), over its own images alone."
            ),
            format!(
                "Worker {} has 8 images in a step, the others have 16: that is what models weigh in the average.",
                self.models.len() - 1
            ),
        ]
    }

    /// So many steps of each worker in a round, a scene each.
    pub fn steps(&mut self, round: &str, every: usize, scenes: &mut Vec<Scene>) -> Result<()> {
        ensure!((1..=8).contains(&every), "--every {every}: 1 to 8 can be shown");
        for step in 1..=every {
            let mut lines = Vec::new();
            for (rank, model) in self.models.iter_mut().enumerate() {
                let (before, slope) = (model[0], model[0] - least(rank));
                self.optimizers[rank].step(&mut self.team, model, &[slope], LR);
                lines.push(format!("worker {rank}: {} - {LR} x {} = {}", short(before), short(slope), short(model[0])));
            }
            scenes.push(self.scene(format!("{round}, step {step} of {every} alone"), lines, Mark::New));
        }
        Ok(())
    }

    /// The average of the models, weighted by images.
    pub fn average(&self) -> Result<Average> {
        let (workers, all) = (self.models.len(), self.images.iter().sum());
        let weights = self.images.iter().map(|&images| weight_in_average(images, all, workers));
        let (mut products, mut sent) = (Vec::new(), Vec::new());
        for ([model], weight) in self.models.iter().zip(weights) {
            products.push(format!("{} x {}", short(weight), short(*model)));
            sent.push(model * weight);
        }
        let value = all_reduce(Op::Mean, &sent.iter().map(|&model| vec![model]).collect::<Vec<_>>())?[0];
        let line = format!("({}) / {workers} = {}", products.join(" + "), short(value));
        Ok(Average { value, sent, line })
    }

    /// All go on from here.
    pub fn begin_at(&mut self, value: f32) {
        self.models.fill([value]);
    }

    /// What everyone holds.
    pub fn scene(&self, title: String, lines: Vec<String>, mark: Mark) -> Scene {
        let mut table = Table::new("workers", &["w"]);
        for (rank, model) in self.models.iter().enumerate() {
            table.row(format!("worker {rank}"), vec![Cell::new(short(model[0]), mark)]);
        }
        Scene { title, lines, tables: vec![table] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 9 - 0.25 x 8 = 7, 7.25 and 7.5; with 16, 16 and 8 images the average is (2 x 7 + 2 x 7.25 + 7.5) / 5.
    #[test]
    fn models_weigh_what_they_have_seen() {
        let lesson = lesson(3, 1).unwrap();
        assert_eq!(lesson.scenes[2].tables[0].rows[0].1[1].text, "7.2");
        assert!(super::lesson(3, 0).is_err());
    }
}
