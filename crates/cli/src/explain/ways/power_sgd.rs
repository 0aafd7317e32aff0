//! A matrix as the product of two narrow ones.

use anyhow::{Result, ensure};
use ringstep_comm::Op;
use ringstep_cpu::Level;
use ringstep_train::compress::Key;
use ringstep_train::compress::power_sgd::LowRank;

use super::{Lesson, Mark, Scene, Table, all_reduce, cells, short};

const ROWS: usize = 5;
const COLUMNS: usize = 4;
/// The two directions of every worker's matrix.
const UP: [[f32; ROWS]; 2] = [[2.0, 1.0, 0.0, -1.0, -2.0], [1.0, -1.0, 1.0, -1.0, 1.0]];
const ACROSS: [[f32; COLUMNS]; 2] = [[1.0, 2.0, 0.0, 1.0], [1.0, 0.0, -1.0, 1.0]];

/// With so many vectors, or with one and with two.
pub fn lesson(workers: usize, rank: Option<usize>) -> Result<Lesson> {
    let most = ROWS.min(COLUMNS);
    ensure!(
        rank.is_none_or(|rank| (1..=most).contains(&rank)),
        "--rank {}: 1 to {most} can be shown",
        rank.unwrap_or(0)
    );
    let matrices: Vec<Vec<f32>> = (0..workers).map(matrix).collect();
    let sum = all_reduce(Op::Sum, &matrices)?;
    let mut tables: Vec<Table> = matrices
        .iter()
        .enumerate()
        .map(|(worker, m)| table(&format!("M of worker {worker}"), COLUMNS, m, Mark::Plain))
        .collect();
    tables.push(table("their sum, which nobody has", COLUMNS, &sum, Mark::Plain));
    let mut scenes = vec![Scene { title: "Start".to_owned(), lines: Vec::new(), tables }];
    let mut errors = Vec::new();
    for rank in rank.map_or(1..=2, |rank| rank..=rank) {
        let error = play(rank, &matrices, &sum, &mut scenes)?;
        let size = LowRank { rows: ROWS, columns: COLUMNS, rank };
        let grown = if size.shrinks() { "" } else { ", no less: training sends such a matrix as it is" };
        errors.push(format!(
            "Rank {rank}: {} numbers instead of {} = (rows + columns) R{grown}; relative error {}.",
            size.p_len() + size.q_len(),
            ROWS * COLUMNS,
            short(error as f32)
        ));
    }
    errors.push("The sum has rank 2, so two vectors are enough for all of it.".to_owned());
    Ok(Lesson {
        title: format!("power-sgd, {workers} workers, a matrix of {ROWS} x {COLUMNS} each"),
        notes: vec![
            "The matrix M of a layer's gradients becomes a product of two narrow ones, P and Q transposed, of R columns each. Both products are linear in M: what is \
             summed over workers is P and Q, of the sum of all M."
                .to_owned(),
            "Q is drawn at random once, the same for all; later steps begin with the last one.".to_owned(),
        ],
        scenes,
        closing: errors.join(" "),
    })
}

/// A step with so many vectors. Returns the error relative to the sum.
fn play(rank: usize, matrices: &[Vec<f32>], sum: &[f32], scenes: &mut Vec<Scene>) -> Result<f64> {
    let (level, size) = (Level::best(), LowRank { rows: ROWS, columns: COLUMNS, rank });
    let mut scene = |title: &str, lines: Vec<String>, tables: Vec<Table>| {
        scenes.push(Scene { title: format!("R = {rank}: {title}"), lines, tables });
    };
    let mut q = vec![0.0; size.q_len()];
    size.draw(Key::default(), &mut q);
    let mut ps = Vec::new();
    for m in matrices {
        let mut p = vec![0.0; size.p_len()];
        size.project(level, m, &q, &mut p);
        ps.push(p);
    }
    let mut p = all_reduce(Op::Sum, &ps)?;
    let mut tables = vec![vectors("Q, drawn at random", size.columns, &q, Mark::Common)];
    tables.extend(ps.iter().enumerate().map(|(at, p)| vectors(&format!("P of worker {at}"), size.rows, p, Mark::Sent)));
    tables.push(vectors("sum of P", size.rows, &p, Mark::Common));
    scene("P <- M Q", vec![format!("an all-reduce of {} numbers", p.len())], tables);

    size.orthogonalise(&mut p);
    let line = "Gram-Schmidt: columns of length 1, at right angles; everyone does it alike".to_owned();
    scene("P <- orthonormal", vec![line], vec![vectors("P", size.rows, &p, Mark::Common)]);

    let mut qs = Vec::new();
    for m in matrices {
        size.project_back(level, m, &p, &mut q);
        qs.push(q.clone());
    }
    let q = all_reduce(Op::Sum, &qs)?;
    let mut tables: Vec<Table> = qs
        .iter()
        .enumerate()
        .map(|(at, q)| vectors(&format!("Q of worker {at}"), size.columns, q, Mark::Sent))
        .collect();
    tables.push(vectors("sum of Q", size.columns, &q, Mark::Common));
    scene("Q <- M^T P", vec![format!("an all-reduce of {} numbers", q.len())], tables);

    let mut product = vec![0.0; sum.len()];
    size.multiply(level, &p, &q, &mut product);
    let left: Vec<f32> = sum.iter().zip(&product).map(|(sum, product)| sum - product).collect();
    let error = (square(&left) / square(sum)).sqrt();
    let tables = vec![
        table("P Q^T, what all take for the sum", COLUMNS, &product, Mark::Common),
        table("the sum itself", COLUMNS, sum, Mark::Plain),
        table("what is left of it", COLUMNS, &left, Mark::New),
    ];
    let line = format!(
        "relative error {}; each worker keeps what is left of its own M for the next step",
        short(error as f32)
    );
    scene("M <- P Q^T", vec![line], tables);
    Ok(error)
}

fn square(numbers: &[f32]) -> f64 {
    numbers.iter().map(|&number| f64::from(number).powi(2)).sum()
}

/// A matrix that stands row by row.
fn table(title: &str, columns: usize, numbers: &[f32], mark: Mark) -> Table {
    let mut table = Table::new(title, &[]);
    numbers.chunks(columns).for_each(|row| table.row("", cells(row, mark)));
    table
}

/// A matrix that stands column by column.
fn vectors(title: &str, length: usize, numbers: &[f32], mark: Mark) -> Table {
    let mut table = Table::new(title, &[]);
    for row in 0..length {
        let numbers: Vec<f32> = numbers.iter().copied().skip(row).step_by(length).collect();
        table.row("", cells(&numbers, mark));
    }
    table
}

/// A worker's matrix, of rank 2.
fn matrix(worker: usize) -> Vec<f32> {
    let factors = [worker as f32 + 1.0, 3.0 - worker as f32];
    let at = |row: usize, column: usize| (0..2).map(|part| factors[part] * UP[part][row] * ACROSS[part][column]).sum();
    (0..ROWS).flat_map(|row| (0..COLUMNS).map(move |column| at(row, column))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_vectors_are_enough_for_a_matrix_of_rank_two_and_one_is_not() {
        for workers in 2..=6 {
            let matrices: Vec<Vec<f32>> = (0..workers).map(matrix).collect();
            let sum = all_reduce(Op::Sum, &matrices).unwrap();
            let error = |rank| play(rank, &matrices, &sum, &mut Vec::new()).unwrap();
            assert!(error(1) > 0.01 && error(1) < 1.0, "{}", error(1));
            assert!(error(2) < 1e-6);
        }
    }
}
