//! Workers that step alone, and a model that follows the average of theirs.

use anyhow::Result;
use ringstep_train::strategy::Outer;

use super::local_sgd::{Alone, Average};
use super::{Cell, Lesson, Mark, START, Table, short, team};

/// Those that the paper found best.
const OUTER_LR: f32 = 0.7;
const OUTER_MOMENTUM: f32 = 0.9;
const ROUNDS: usize = 3;

/// So many steps alone between two averages.
pub fn lesson(workers: usize, every: usize) -> Result<Lesson> {
    let (mut team, mut alone) = (team(), Alone::new(workers));
    let mut outer = Outer::new(vec![START], OUTER_LR, OUTER_MOMENTUM);
    let mut scenes = vec![alone.scene("Start".to_owned(), Vec::new(), Mark::Common)];
    let mut velocity = 0.0;
    for round in 1..=ROUNDS {
        let round = format!("Round {round} of {ROUNDS}");
        alone.steps(&round, every, &mut scenes)?;
        let Average { value: average, sent, line } = alone.average()?;
        let mut scene = alone.scene(format!("{round}, the average"), vec![line], Mark::Plain);
        scene.tables[0].prepend("w, weighted", &sent, Mark::Sent);
        scenes.push(scene);

        let x = outer.values()[0];
        outer.follow(&mut team, &[average]);
        let (gradient, new) = (x - average, outer.values()[0]);
        // The step is lr (d + momentum v).
        let before = std::mem::replace(&mut velocity, ((x - new) / OUTER_LR - gradient) / OUTER_MOMENTUM);
        alone.begin_at(new);
        let [x, average, d, v, new] = [x, average, gradient, velocity, new].map(short);
        let lines = vec![
            format!("d = {x} - {average} = {d}"),
            format!("v = {OUTER_MOMENTUM} x {} + {d} = {v}", short(before)),
            format!("x = {x} - {OUTER_LR} x ({d} + {OUTER_MOMENTUM} x {v}) = {new}"),
        ];
        let mut scene = alone.scene(format!("{round}, the outer step"), lines, Mark::Common);
        let mut held = Table::new("outer model, the same for all", &["x", "average", "d", "v", "new x"]);
        held.row("outer", [x, average, d, v, new].map(|text| Cell::new(text, Mark::Common)).into());
        scene.tables.push(held);
        scenes.push(scene);
    }
    let share = 2.0 * (workers as f64 - 1.0) / workers as f64;
    let [steps_alone, weights] = alone.notes();
    Ok(Lesson {
        title: format!(
            "diloco, {workers} workers, an outer step every {every} {}",
            if every == 1 { "step" } else { "steps" }
        ),
        notes: vec![
            steps_alone,
            weights,
            format!(
                "What the average is away from the model x that all began with is a gradient, d. x follows it by SGD with \
                 Nesterov's momentum: v <- {OUTER_MOMENTUM} v + d, x <- x - {OUTER_LR} (d + {OUTER_MOMENTUM} v)."
            ),
        ],
        scenes,
        closing: format!(
            "{ROUNDS} all-reduces in {} steps: with n bytes of parameters a ring sends 2(p-1)/p n/H = {} n a worker and step (p = {workers}, H = {every}). With an outer learning rate of 1 and no momentum this is local-sgd.",
            ROUNDS * every,
            super::number(share / every as f64)
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The average is 7.2 after a step alone, so d = 1.8; x = 9 - 0.7 (1.8 + 0.9 x 1.8) = 6.606. From there workers go to
    /// 6.606 - 0.25 (6.606 - r - 1), on average 5.4045.
    #[test]
    fn two_outer_steps_by_hand() {
        let lesson = lesson(3, 1).unwrap();
        let outer = |scene: usize| -> Vec<&str> {
            lesson.scenes[scene].tables[1].rows[0].1.iter().map(|cell| cell.text.as_str()).collect()
        };
        assert_eq!(outer(3), ["9", "7.2", "1.8", "1.8", "6.606"]);
        assert_eq!(outer(6)[..3], ["6.606", "5.4045", "1.2015"]);
        assert!(super::lesson(3, 9).is_err());
    }
}
