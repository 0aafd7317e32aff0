//! Parameter servers, while the last worker takes three times as long for a step.

use anyhow::{Result, anyhow, ensure};
use ringstep_nn::schedule::{Curve, Schedule, WarmUp};
use ringstep_train::strategy::server::clocked::Clocked;
use ringstep_train::strategy::server::free::Free;

use super::{Cell, Lesson, Mark, START, Scene, Table, least, sgd, short, team};

const LR: f32 = 0.5;

/// Ticks that a step of the last worker takes; those of the others take one.
const SLOW: usize = 3;

/// What a worker does.
struct Worker {
    /// Its next step, and what it has read for it.
    clock: u64,
    read: Option<Seen>,
    /// Ticks until its step is done.
    left: usize,
}

/// What a worker has read.
struct Seen {
    value: f32,
    /// How much it has missed, or the version that it is.
    age: u64,
    now: bool,
}

/// A server with a clock: synchronous, or with some staleness.
pub fn clocked(workers: usize, staleness: Option<u64>) -> Result<Lesson> {
    let bound = staleness.unwrap_or(0);
    ensure!(bound <= 6, "--staleness {bound}: 0 to 6 can be shown");
    let ticks = SLOW * 2 + 2 * bound as usize;
    let (scenes, steps, stalest) = play(workers, bound, ticks)?;
    let (_, lockstep, _) = play(workers, 0, ticks)?;
    let may = match bound {
        0 => "A worker may read when all gradients of the steps before are in.".to_owned(),
        1 => "A worker may read when all but those of the last step before its own are in.".to_owned(),
        _ => format!("A worker may read when all but those of the last {bound} steps before its own are in."),
    };
    let title = match staleness {
        None => format!("parameter-server, {workers} workers"),
        Some(bound) => format!("stale, {workers} workers, staleness {bound}"),
    };
    let compared = if staleness.is_none() { String::new() } else { format!(", {lockstep} without staleness") };
    let seen = if bound == 0 {
        String::new()
    } else {
        format!(" The stalest read had missed gradients of {}.", plural(stalest))
    };
    Ok(Lesson {
        title,
        notes: vec![
            format!(
                "One parameter w, {LR} is the learning rate, and worker r's slope is (w - (r + 1)) / {workers}: its share of the \
                 mean."
            ),
            format!("A step takes one tick, but {SLOW} for worker {}.", workers - 1),
            may,
        ],
        scenes,
        closing: format!(
            "{ticks} ticks: {steps} steps of workers{compared}.{seen} In a step of n bytes a worker sends n and receives n, \
             and the server {workers} n each way."
        ),
    })
}

/// The scenes, the steps of all workers, and the most that a read has missed.
fn play(workers: usize, staleness: u64, ticks: usize) -> Result<(Vec<Scene>, u64, u64)> {
    let mut team = team();
    let mut server = Clocked::new(vec![START], sgd(1), schedule(), workers, staleness);
    let mut all: Vec<Worker> = (0..workers).map(|_| Worker { clock: 0, read: None, left: 0 }).collect();
    let (mut scenes, mut steps, mut stalest) = (Vec::new(), 0, 0);
    for tick in 0..=ticks {
        let (before, mut lines) = (server.clock(), Vec::new());
        for (rank, worker) in all.iter_mut().enumerate() {
            let Some(seen) = worker.read.as_mut() else { continue };
            seen.now = false;
            worker.left -= 1;
            if worker.left > 0 {
                continue;
            }
            let gradient = (seen.value - least(rank)) / workers as f32;
            server.push(&mut team, rank, worker.clock, vec![gradient]).map_err(|error| anyhow!(error))?;
            lines.push(format!("worker {rank} -> server: {} for step {}", short(gradient), worker.clock));
            (worker.read, worker.clock, steps) = (None, worker.clock + 1, steps + 1);
        }
        let after = server.clock();
        if after > before {
            lines.push(format!("step {} is complete: w = {}", after - 1, short(server.values()[0])));
        }
        let missing = server.missing().map(|rank| rank.to_string()).collect::<Vec<_>>().join(", ");
        for (rank, worker) in all.iter_mut().enumerate().filter(|(_, worker)| worker.read.is_none()) {
            let Some(read) = server.read(&mut team, worker.clock) else {
                lines.push(format!("worker {rank} must wait for step {after} of worker {missing}"));
                continue;
            };
            let (value, age) = (read.values[0], read.staleness);
            stalest = age.max(stalest);
            let missed =
                if age == 0 { String::new() } else { format!(", which may miss gradients of {}", plural(age)) };
            lines.push(format!("server -> worker {rank}: {} for step {}{missed}", short(value), worker.clock));
            worker.read = Some(Seen { value, age, now: true });
            worker.left = if rank + 1 == workers { SLOW } else { 1 };
        }
        let mut table = Table::new("workers", &["step", "w it has read", "stale by", "ticks to go"]);
        for (rank, worker) in all.iter().enumerate() {
            table.row(format!("worker {rank}"), worker.cells());
        }
        let mut held = Table::new("server", &["steps complete", "w"]);
        let mark = if after > before { Mark::New } else { Mark::Plain };
        held.row("server", vec![Cell::new(after.to_string(), mark), Cell::new(short(server.values()[0]), mark)]);
        scenes.push(Scene { title: title(tick, ticks), lines, tables: vec![table, held] });
    }
    Ok((scenes, steps, stalest))
}

/// A server that applies whatever arrives.
pub fn free(workers: usize) -> Result<Lesson> {
    let ticks = 2 * SLOW;
    let mut team = team();
    // One image in each worker's step.
    let mut server = Free::new(vec![START], sgd(1), schedule(), workers, workers, false);
    let mut all: Vec<Worker> = (0..workers).map(|_| Worker { clock: 0, read: None, left: 0 }).collect();
    let (mut scenes, mut steps, mut stalest) = (Vec::new(), 0, 0);
    for tick in 0..=ticks {
        let (before, mut lines) = (server.read().1, Vec::new());
        for (rank, worker) in all.iter_mut().enumerate() {
            if let Some(seen) = worker.read.as_mut() {
                seen.now = false;
                worker.left -= 1;
                if worker.left > 0 {
                    continue;
                }
                let gradient = seen.value - least(rank);
                let staleness = server.push(seen.age, 1, &[gradient]).map_err(|error| anyhow!(error))?;
                server.apply(&mut team);
                stalest = staleness.max(stalest);
                (worker.clock, steps) = (worker.clock + 1, steps + 1);
                lines.push(format!(
                    "worker {rank} -> server: {}, stale by {}; w = {}",
                    short(gradient),
                    plural(staleness),
                    short(server.read().0[0])
                ));
            }
            let (values, version) = server.read();
            lines.push(format!("server -> worker {rank}: {}", short(values[0])));
            worker.read = Some(Seen { value: values[0], age: version, now: true });
            worker.left = if rank + 1 == workers { SLOW } else { 1 };
        }
        let mut table = Table::new("workers", &["step", "w it has read", "version", "ticks to go"]);
        for (rank, worker) in all.iter().enumerate() {
            table.row(format!("worker {rank}"), worker.cells());
        }
        let (values, version) = server.read();
        let mark = if version > before { Mark::New } else { Mark::Plain };
        let mut held = Table::new("server", &["version", "w"]);
        held.row("server", vec![Cell::new(version.to_string(), mark), Cell::new(short(values[0]), mark)]);
        scenes.push(Scene { title: title(tick, ticks), lines, tables: vec![table, held] });
    }
    Ok(Lesson {
        title: format!("async, {workers} workers"),
        notes: vec![
            format!(
                "One parameter w, and worker r's slope is w - (r + 1). A gradient is applied when it arrives, at 1/{workers} of the \
                 learning rate {LR}, its share of a step of all workers."
            ),
            format!("A step takes one tick, but {SLOW} for worker {}. Nobody waits.", workers - 1),
        ],
        scenes,
        closing: format!(
            "{ticks} ticks: {steps} steps of workers. The stalest gradient was {} old: so often w had moved since it was read. In \
             a step of n bytes a worker sends n and receives n.",
            plural(stalest)
        ),
    })
}

impl Worker {
    fn cells(&self) -> Vec<Cell> {
        let Some(seen) = &self.read else {
            let rest = ["waits", "", ""].map(|text| Cell::new(text, Mark::Plain));
            return std::iter::once(Cell::new(self.clock.to_string(), Mark::Plain)).chain(rest).collect();
        };
        let mark = if seen.now { Mark::Sent } else { Mark::Plain };
        vec![
            Cell::new(self.clock.to_string(), Mark::Plain),
            Cell::new(short(seen.value), mark),
            Cell::new(seen.age.to_string(), Mark::Plain),
            Cell::new(self.left.to_string(), Mark::Plain),
        ]
    }
}

fn title(tick: usize, ticks: usize) -> String {
    if tick == 0 { "Start".to_owned() } else { format!("Tick {tick} of {ticks}") }
}

fn plural(steps: u64) -> String {
    if steps == 1 { "1 step".to_owned() } else { format!("{steps} steps") }
}

fn schedule() -> Schedule {
    Schedule { lr: LR, warm_up: WarmUp::Linear { epochs: 0.0 }, curve: Curve::Constant, epoch: 1, steps: 100 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_reads_what_is_staler_than_allowed_and_staleness_lets_more_be_done() {
        let mut before = 0;
        for staleness in 0..=6 {
            let (_, steps, stalest) = play(3, staleness, 18).unwrap();
            assert_eq!(stalest, staleness);
            assert!(steps > before, "{staleness}: {steps}");
            before = steps;
        }
    }

    /// The first step by hand: slopes 8/3, 7/3 and 2 add up to 7, and w goes from 9 to 5.5.
    #[test]
    fn a_synchronous_step_is_one_of_gradient_descent() {
        let lesson = clocked(3, None).unwrap();
        let line = "step 0 is complete: w = 5.5";
        assert!(lesson.scenes[3].lines.iter().any(|said| said == line), "{:?}", lesson.scenes[3].lines);
    }
}
