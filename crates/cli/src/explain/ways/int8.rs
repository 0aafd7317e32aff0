//! Numbers of 8 bits, rounded at random, and how such codes are summed.

use anyhow::Result;
use ringstep_cpu::Level;
use ringstep_train::compress::qsgd::{Qsgd, Width};
use ringstep_train::compress::{Codec, Key};

use super::{Cell, Lesson, Mark, Scene, Table, cells, short};

/// Numbers that each worker adds up for all.
const PART: usize = 4;
/// Steps from zero to the largest magnitude of a code.
const LEVELS: f32 = 127.0;
/// How often a number is rounded to see the mean.
const ROUNDINGS: u64 = 1000;

pub fn lesson(workers: usize) -> Result<Lesson> {
    let gradients: Vec<Vec<f32>> = (0..workers).map(|rank| gradient(rank, PART * workers)).collect();
    let mut scenes = vec![at_random(&gradients[0][..PART])?];
    let (scene, sums) = first_half(&gradients)?;
    scenes.push(scene);
    scenes.push(second_half(&gradients, &sums)?);
    let (bytes, numbers) = (Qsgd::new(Level::best(), Width::Int8).limit(PART), PART * workers);
    let sent = 2 * (workers - 1) * bytes;
    Ok(Lesson {
        title: format!("int8, {workers} workers, {numbers} numbers each"),
        notes: vec![
            "A block of numbers has a scale s, its largest magnitude. A number is sent as a whole number of steps of s/127 in one byte, \
             rounded down or up at random: up with the probability of what was cut off."
                .to_owned(),
            format!("Blocks have 256 numbers in training; here they have {PART}."),
        ],
        scenes,
        closing: format!(
            "Each worker sends 2(p-1) = {} codes of {bytes} bytes: {sent} bytes, where a ring of plain numbers sends {}. With blocks of \
             256 it is 2(p-1)/p (n/4 + n/256) of n bytes. Each rounding is right on average, so the sums are.",
            2 * (workers - 1),
            2 * (workers - 1) * PART * size_of::<f32>(),
        ),
    })
}

/// What becomes of a few numbers, once and on average.
fn at_random(values: &[f32]) -> Result<Scene> {
    let (code, decoded) = through(Key::default(), values)?;
    let scale = f32::from_le_bytes([code[0], code[1], code[2], code[3]]);
    let exact: Vec<f32> = values.iter().map(|value| value / (scale / LEVELS)).collect();
    let steps: Vec<f32> = code[4..].iter().map(|&byte| f32::from(byte) - 128.0).collect();
    let mut mean = vec![0.0; values.len()];
    for step in 1..=ROUNDINGS {
        let (_, decoded) = through(Key { step, ..Key::default() }, values)?;
        mean.iter_mut().zip(decoded).for_each(|(mean, value)| *mean += value / ROUNDINGS as f32);
    }
    let mut table = Table::new("the first numbers of worker 0", &[]);
    table.row("x", cells(values, Mark::Plain));
    table.row("steps, exactly", cells(&exact, Mark::New));
    table.row("steps, rounded", cells(&steps, Mark::Sent));
    table.row("stands for", cells(&decoded, Mark::New));
    table.row(format!("mean of {ROUNDINGS} roundings"), cells(&mean, Mark::New));
    let line = format!("s = {}, a step is s/127 = {}", short(scale), short(scale / LEVELS));
    Ok(Scene { title: "A code".to_owned(), lines: vec![line], tables: vec![table] })
}

/// Everyone gets the codes of its part of the numbers from all, and adds them up. Returns the sums.
fn first_half(gradients: &[Vec<f32>]) -> Result<(Scene, Vec<Vec<f32>>)> {
    let workers = gradients.len();
    let mut sums = vec![vec![0.0; PART]; workers];
    let (mut lines, mut said) = (Vec::new(), Vec::new());
    for (rank, gradient) in gradients.iter().enumerate() {
        let mut row = Vec::new();
        for (owner, part) in gradient.chunks(PART).enumerate() {
            let (code, decoded) = through(Key { rank: rank as u32, part: owner as u32, ..Key::default() }, part)?;
            sums[owner].iter_mut().zip(&decoded).for_each(|(sum, value)| *sum += value);
            row.extend(cells(&decoded, if owner == rank { Mark::Plain } else { Mark::Sent }));
            if owner != rank {
                lines.push(format!("worker {rank} -> worker {owner}: part {owner}, {} bytes", code.len()));
            }
        }
        said.push(row);
    }
    let mut tables = Vec::new();
    for (rank, said) in said.into_iter().enumerate() {
        let mut table = Table::new(&format!("worker {rank}"), &[]);
        table.row("x", cells(&gradients[rank], Mark::Plain));
        table.row("its codes stand for", said);
        let mut held: Vec<Cell> = (0..PART * workers).map(|_| Cell::new(".", Mark::Plain)).collect();
        held.splice(rank * PART..(rank + 1) * PART, cells(&sums[rank], Mark::New));
        table.row(format!("sum of part {rank}"), held);
        tables.push(table);
    }
    Ok((Scene { title: "Everyone adds up its part".to_owned(), lines, tables }, sums))
}

/// Everyone sends a code of its sums to all.
fn second_half(gradients: &[Vec<f32>], sums: &[Vec<f32>]) -> Result<Scene> {
    let workers = gradients.len();
    let (mut lines, mut all) = (Vec::new(), Vec::new());
    for (rank, sum) in sums.iter().enumerate() {
        let key = Key { rank: rank as u32, part: workers as u32, ..Key::default() };
        let (code, decoded) = through(key, sum)?;
        all.extend(decoded);
        lines.push(format!("worker {rank} -> all: the sums of part {rank}, {} bytes", code.len()));
    }
    let exact: Vec<f32> = (0..PART * workers).map(|at| gradients.iter().map(|row| row[at]).sum()).collect();
    let mut table = Table::new("all workers", &[]);
    table.row("sum", cells(&all, Mark::Common));
    table.row("exact sum", cells(&exact, Mark::Plain));
    Ok(Scene { title: "Everyone sends its sums to all".to_owned(), lines, tables: vec![table] })
}

/// A code of these numbers, and what it stands for.
fn through(key: Key, values: &[f32]) -> Result<(Vec<u8>, Vec<f32>)> {
    let mut codec = Qsgd::new(Level::best(), Width::Int8);
    let (mut code, mut decoded) = (Vec::new(), vec![0.0; values.len()]);
    codec.encode(key, values, &mut code);
    codec.add(key, &code, &mut decoded)?;
    Ok((code, decoded))
}

/// Numbers with two decimals.
fn gradient(rank: usize, length: usize) -> Vec<f32> {
    (0..length).map(|index| ((index * 37 + rank * 53 + 11) % 100) as f32 / 50.0 - 1.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_near_and_the_mean_is_nearer() {
        let lesson = lesson(3).unwrap();
        let row = |scene: usize, row: usize| -> Vec<f32> {
            let table = lesson.scenes[scene].tables.last().unwrap();
            table.rows[row].1.iter().map(|cell| cell.text.parse().unwrap()).collect()
        };
        for (mean, exact) in row(0, 4).into_iter().zip(row(0, 0)) {
            // 1,000 roundings of at most 1/127 off.
            assert!((mean - exact).abs() < 0.001, "{mean} {exact}");
        }
        for (sum, exact) in row(2, 0).into_iter().zip(row(2, 1)) {
            // Four roundings of at most 1/127 of what is at most 3.
            assert!((sum - exact).abs() < 6.0 / 127.0, "{sum} {exact}");
        }
    }
}
