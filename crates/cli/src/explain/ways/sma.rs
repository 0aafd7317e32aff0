//! Replicas that learn alone, and the central model that holds them together.

use ringstep_train::strategy::central::Central;

use super::{Cell, Lesson, Mark, START, Scene, Table, least, sgd, short, team};

const LR: f32 = 0.25;
const MOMENTUM: f32 = 0.9;
const STEPS: usize = 6;

pub fn lesson(workers: usize) -> Lesson {
    let pull = 1.0 / workers as f32;
    let mut team = team();
    let mut central = Central::new(vec![START], pull, MOMENTUM);
    let mut optimizers: Vec<_> = (0..workers).map(|_| sgd(1)).collect();
    let mut replicas = vec![[START]; workers];
    let head = ["w", "c = a (w - z)", "own step", "new w"];
    let (mut scenes, mut velocity) = (Vec::new(), 0.0);
    for step in 1..=STEPS {
        let (mut lines, mut sum) = (Vec::new(), [0.0]);
        let mut table = Table::new("replicas", &head);
        for (rank, replica) in replicas.iter_mut().enumerate() {
            let (before, slope, mut correction) = (replica[0], replica[0] - least(rank), [0.0]);
            central.correction(replica, &mut correction);
            optimizers[rank].step(&mut team, replica, &[slope], LR);
            let own = replica[0] - before;
            replica[0] -= correction[0];
            sum[0] += correction[0];
            let marks = [Mark::Plain, Mark::Sent, Mark::New, Mark::New];
            let numbers = [before, correction[0], own, replica[0]];
            table.row(
                format!("worker {rank}"),
                numbers.iter().zip(marks).map(|(&value, mark)| Cell::new(short(value), mark)).collect(),
            );
        }
        let z = central.values()[0];
        central.follow(&sum);
        let before = std::mem::replace(&mut velocity, central.values()[0] - z);
        lines.push(format!("the corrections add up to {}", short(sum[0])));
        lines.push(format!("v = {MOMENTUM} x {}{} = {}", short(before), added(sum[0]), short(velocity)));
        lines.push(format!("z = {}{} = {}", short(z), added(velocity), short(central.values()[0])));
        let mut held = Table::new("central model, the same for all", &["z", "v", "new z"]);
        let numbers = [z, velocity, central.values()[0]];
        held.row("central", numbers.iter().map(|&value| Cell::new(short(value), Mark::Common)).collect());
        scenes.push(Scene { title: format!("Step {step} of {STEPS}"), lines, tables: vec![table, held] });
    }
    let share = 2.0 * (workers as f64 - 1.0) / workers as f64;
    Lesson {
        title: format!("sma, {workers} workers with a replica each"),
        notes: vec![
            format!("One parameter: w of a replica, z of the central model. All begin at {START}."),
            format!(
                "Replica r's slope is w - (r + 1), the learning rate {LR}. It is pulled to the central model by a = 1/{workers} of \
                 their distance, and the central model follows by all that with momentum {MOMENTUM}."
            ),
        ],
        scenes,
        closing: format!(
            "The central model is what is tested and kept. With n bytes of parameters a ring sends 2(p-1)/p n = {} n a worker and step (p = {workers}), while the first backward goes on: corrections depend on the step before alone.",
            super::number(share)
        ),
    }
}

/// A number that is added to another.
fn added(value: f32) -> String {
    format!(" {} {}", if value < 0.0 { '-' } else { '+' }, short(value.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Step 1: 9 - 0.25 x 8 = 7 and 7.25, nobody is pulled yet. Step 2: c = (7 - 9)/2 and (7.25 - 9)/2, and z follows.
    #[test]
    fn two_steps_by_hand() {
        let lesson = lesson(2);
        let text = |step: usize, table: usize, row: usize, cell: usize| {
            lesson.scenes[step].tables[table].rows[row].1[cell].text.as_str()
        };
        assert_eq!([text(0, 0, 0, 3), text(0, 0, 1, 3), text(0, 1, 0, 2)], ["7", "7.25", "9"]);
        assert_eq!([text(1, 0, 0, 1), text(1, 0, 1, 1), text(1, 1, 0, 2)], ["-1", "-0.875", "7.125"]);
    }
}
