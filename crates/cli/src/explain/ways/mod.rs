//! Ways to stay in step and ways to send less, on a few numbers.
//!
//! | look for | in |
//! | --- | --- |
//! | servers that keep a clock, and one that does not | [`server`] |
//! | models that are averaged | [`local_sgd`], [`diloco`], [`sma`] |
//! | gradients that are made smaller | [`top_k`], [`int8`], [`power_sgd`] |
//! | a lesson in the terminal and as a page | [`text`], [`page`] |
//!
//! What is shown is what the code of the training does to these numbers; only the slopes that workers find are made up.

mod diloco;
mod int8;
mod local_sgd;
mod page;
mod power_sgd;
mod server;
mod sma;
mod text;
mod top_k;

use anyhow::{Result, ensure};
use ringstep_comm::{Algorithm, Op};
use ringstep_cpu::Level;
use ringstep_nn::optim::{Optimizer, Rule};
use ringstep_nn::team::Team;
use serde::Serialize;

pub use self::page::page;
pub use self::text::text;
use super::number;
use super::record::record;
use crate::args::ExplainArgs;
use crate::names::{Named, choices};

choices! {
    /// What is explained beside the collectives.
    pub enum Way: "way" {
        /// Servers hold the parameters, and wait for everyone.
        ParameterServer = "parameter-server",
        /// The same, but workers may be ahead.
        Stale = "stale",
        /// A server that waits for nobody.
        Async = "async",
        /// Models that are averaged from time to time.
        LocalSgd = "local-sgd",
        /// A model that follows such averages.
        DiLoCo = "diloco",
        /// Models that are pulled to a central one.
        Sma = "sma",
        /// 8 bits a number.
        Int8 = "int8",
        /// The numbers of largest magnitude.
        TopK = "top-k",
        /// Products of two narrow matrices.
        PowerSgd = "power-sgd",
    }
}

impl Way {
    /// The options that it knows, beside --html.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Self::ParameterServer | Self::Async | Self::Sma | Self::Int8 => &["--workers"],
            Self::Stale => &["--workers", "--staleness"],
            Self::LocalSgd | Self::DiLoCo => &["--workers", "--every"],
            Self::TopK => &["--workers", "--keep"],
            Self::PowerSgd => &["--workers", "--rank"],
        }
    }
}

/// What is shown, scene by scene.
pub struct Lesson {
    title: String,
    /// What one must know to follow.
    notes: Vec<String>,
    scenes: Vec<Scene>,
    /// What came of it.
    closing: String,
}

/// What is the case at one moment.
#[derive(Serialize)]
struct Scene {
    title: String,
    /// What has happened.
    lines: Vec<String>,
    tables: Vec<Table>,
}

/// Some numbers, by rows that have names.
#[derive(Serialize)]
struct Table {
    title: String,
    /// Names of the columns; none if they need none.
    head: Vec<String>,
    rows: Vec<(String, Vec<Cell>)>,
}

#[derive(Serialize)]
struct Cell {
    text: String,
    mark: Mark,
}

/// What is to be seen of a number at once.
#[derive(Serialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum Mark {
    Plain,
    /// Not there before.
    New,
    /// It goes over the network.
    Sent,
    /// The same for all workers.
    Common,
}

impl Lesson {
    /// Runs the way on its numbers.
    pub fn of(way: Way, args: &ExplainArgs) -> Result<Self> {
        let workers = args.workers.unwrap_or(match way {
            Way::ParameterServer | Way::Stale | Way::Async | Way::LocalSgd | Way::DiLoCo => 3,
            Way::Sma | Way::Int8 | Way::TopK | Way::PowerSgd => 2,
        });
        let counted = if workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers") };
        ensure!((2..=6).contains(&workers), "{counted}: 2 to 6 can be shown of {}", way.spelling());
        match way {
            Way::ParameterServer => server::clocked(workers, None),
            Way::Stale => server::clocked(workers, Some(args.staleness.unwrap_or(1))),
            Way::Async => server::free(workers),
            Way::LocalSgd => local_sgd::lesson(workers, args.every.unwrap_or(3)),
            Way::DiLoCo => diloco::lesson(workers, args.every.unwrap_or(3)),
            Way::Sma => Ok(sma::lesson(workers)),
            Way::Int8 => int8::lesson(workers),
            Way::TopK => top_k::lesson(workers, args.keep.unwrap_or(0.25)),
            Way::PowerSgd => power_sgd::lesson(workers, args.rank),
        }
    }
}

impl Table {
    fn new(title: &str, head: &[&str]) -> Self {
        Self { title: title.to_owned(), head: head.iter().map(|&name| name.to_owned()).collect(), rows: Vec::new() }
    }

    fn row(&mut self, name: impl Into<String>, cells: Vec<Cell>) {
        self.rows.push((name.into(), cells));
    }

    /// A column before the others, with a number for each row.
    fn prepend(&mut self, name: &str, numbers: &[f32], mark: Mark) {
        self.head.insert(0, name.to_owned());
        for ((_, row), &number) in self.rows.iter_mut().zip(numbers) {
            row.insert(0, Cell::new(short(number), mark));
        }
    }
}

impl Cell {
    fn new(text: impl Into<String>, mark: Mark) -> Self {
        Self { text: text.into(), mark }
    }
}

/// Numbers that all have one mark.
fn cells(numbers: &[f32], mark: Mark) -> Vec<Cell> {
    numbers.iter().map(|&value| Cell::new(short(value), mark)).collect()
}

/// A number of a gradient or a model.
fn short(value: f32) -> String {
    // What rounding leaves is nothing, and has no sign.
    if value.abs() < 5e-5 { "0".to_owned() } else { number(f64::from(value)) }
}

/// What an all-reduce by a ring makes of the rows of all workers.
fn all_reduce(op: Op, rows: &[Vec<f32>]) -> Result<Vec<f32>> {
    let rows = rows.iter().map(|row| row.iter().map(|&value| f64::from(value)).collect()).collect();
    let recording = record(Algorithm::Ring, op, rows)?;
    Ok(recording.ranks[0].end.iter().map(|&value| value as f32).collect())
}

/// Plain SGD for so many numbers.
fn sgd(numbers: usize) -> Optimizer {
    let rule = Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    Optimizer::for_tensors(rule, numbers, vec![(0..numbers, true)])
}

fn team() -> Team {
    Team::new(1, Level::best())
}

/// Where the loss of a worker's own images is least: at r + 1 for worker r. Its slope at w is then w - (r + 1).
fn least(worker: usize) -> f32 {
    worker as f32 + 1.0
}

/// The model that all begin with.
const START: f32 = 9.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_are_those_of_the_real_ring() {
        assert_eq!(all_reduce(Op::Mean, &[vec![1.0, 2.0], vec![3.0, -4.0]]).unwrap(), [2.0, -1.0]);
    }

    #[test]
    fn what_rounding_leaves_is_nothing() {
        assert_eq!([short(-0.0), short(-1e-6), short(-1.5)], ["0", "0", "-1.5"]);
    }
}
