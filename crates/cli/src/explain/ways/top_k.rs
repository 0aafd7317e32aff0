//! The numbers of largest magnitude, and what becomes of the others.

use anyhow::{Result, ensure};
use ringstep_cpu::Level;
use ringstep_train::compress::sparse::TopK;
use ringstep_train::compress::{Codec, ErrorFeedback, Key, kept};

use super::{Cell, Lesson, Mark, Scene, Table, cells, short};

const NUMBERS: usize = 8;
const STEPS: usize = 3;

/// This share of the numbers is sent.
pub fn lesson(workers: usize, keep: f64) -> Result<Lesson> {
    ensure!(keep > 0.0 && keep <= 1.0, "--keep {keep}: it must be above 0 and at most 1");
    let mut codecs: Vec<_> = (0..workers).map(|_| ErrorFeedback::new(Level::best(), TopK::new(keep))).collect();
    let (mut scenes, mut bytes) = (Vec::new(), 0);
    for step in 0..STEPS {
        let (mut lines, mut tables, mut sum) = (Vec::new(), Vec::new(), vec![0.0; NUMBERS]);
        for (rank, codec) in codecs.iter_mut().enumerate() {
            let (gradient, mut code, mut sent) = (gradient(rank, step), Vec::new(), vec![0.0; NUMBERS]);
            let before = codec.residual(0, NUMBERS).to_vec();
            let key = Key { step: step as u64, ..Key::default() };
            codec.encode(key, &gradient, &mut code);
            codec.add(key, &code, &mut sent)?;
            codec.add(key, &code, &mut sum)?;
            bytes = code.len();
            let all: Vec<f32> = gradient.iter().zip(&before).map(|(gradient, left)| gradient + left).collect();
            let mark = |&value: &f32| {
                if value == 0.0 { Cell::new(".", Mark::Plain) } else { Cell::new(short(value), Mark::Sent) }
            };
            let mut table = Table::new(&format!("worker {rank}"), &[]);
            table.row("gradient g", cells(&gradient, Mark::New));
            table.row("left from before e", cells(&before, Mark::Plain));
            table.row("x = g + e", cells(&all, Mark::Plain));
            table.row("sent", sent.iter().map(mark).collect());
            table.row("left e", cells(codec.residual(0, NUMBERS), Mark::Plain));
            tables.push(table);
            let indices = sent.iter().enumerate().filter(|(_, value)| **value != 0.0);
            let said: Vec<String> = indices.map(|(index, &value)| format!("{} at {index}", short(value))).collect();
            lines.push(format!("worker {rank} -> all: {}; {bytes} bytes", said.join(", ")));
        }
        let mut table = Table::new("all workers", &[]);
        table.row("sum of what was sent", cells(&sum, Mark::Common));
        tables.push(table);
        scenes.push(Scene { title: format!("Step {} of {STEPS}", step + 1), lines, tables });
    }
    let count = kept(keep, NUMBERS);
    Ok(Lesson {
        title: format!("top-k, {workers} workers, {count} of {NUMBERS} numbers"),
        notes: vec![
            "Each worker sends the numbers of largest magnitude, with their indices and of equal ones the first, to all others; these add them up in the order \
             of the workers."
                .to_owned(),
            "What is not sent is added to the gradient of the next step: error feedback.".to_owned(),
        ],
        scenes,
        closing: format!(
            "{bytes} bytes = 8k + 4 (k = {count}) instead of {} go to each of the others (p - 1 = {}). Whatever was not sent is left: not a bit is lost.",
            NUMBERS * size_of::<f32>(),
            workers - 1
        ),
    })
}

/// Single digits of both signs.
fn gradient(rank: usize, step: usize) -> Vec<f32> {
    let digit = |index: usize| (index * index * 5 + rank * 7 + step * 3 + index * (rank + 2) * (step + 1)) % 17;
    (0..NUMBERS).map(|index| digit(index) as f32 - 8.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was sent in all steps and what is left in the end are the gradients of all steps.
    #[test]
    fn nothing_is_lost() {
        let lesson = lesson(2, 0.25).unwrap();
        for rank in 0..2 {
            let mut balance = [0.0; NUMBERS];
            for (step, scene) in lesson.scenes.iter().enumerate() {
                for (index, balance) in balance.iter_mut().enumerate() {
                    let at = |row: usize| scene.tables[rank].rows[row].1[index].text.parse().unwrap_or(0.0);
                    *balance += gradient(rank, step)[index] - at(3);
                    if step + 1 == STEPS {
                        assert_eq!(*balance, at(4), "worker {rank}, number {index}");
                    }
                }
                let sent = scene.tables[rank].rows[3].1.iter().filter(|cell| cell.mark == Mark::Sent);
                assert_eq!(sent.count(), 2);
            }
        }
    }
}
