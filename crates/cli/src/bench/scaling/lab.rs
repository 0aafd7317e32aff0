//! All that is measured, and what the formulas make of it.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::cells::{Place, Plan, Size, Stop};
use super::formulas::{self, Losses, Subtraction};
use super::measure::Measured;

/// What is measured, on what.
pub struct About {
    pub model: String,
    pub dataset: String,
    pub licence: String,
    /// The way to stay in step, with its algorithm.
    pub way: String,
    pub threads: usize,
    /// Cores that workers may use.
    pub cores: usize,
    /// Images of an epoch.
    pub samples: usize,
    /// Bytes of the gradients.
    pub gradients: usize,
}

/// The plan, and as much of it as is measured.
pub struct Lab {
    pub about: About,
    pub plan: Plan,
    pub measured: Vec<Measured>,
    /// Bytes a second of all-reduces alone, by the number of workers.
    pub ceilings: BTreeMap<usize, f64>,
    /// What ten times the machines would give, once all is measured.
    pub forecast: Vec<String>,
}

/// A place of Table 1 that is measured, with the one worker that it is compared with.
#[derive(Clone, Copy)]
pub struct Cell<'a> {
    pub place: Place,
    pub at: &'a Measured,
    pub alone: &'a Measured,
    /// Cores that its workers can use.
    pub cores: usize,
    /// The speed-up that these allow.
    pub allowed: f64,
    pub ceiling: Option<f64>,
}

impl Cell<'_> {
    pub fn speedup(&self) -> f64 {
        formulas::speedup(self.alone.split.seconds, self.at.split.seconds)
    }

    pub fn efficiency(&self) -> f64 {
        formulas::efficiency(self.speedup(), self.place.workers)
    }

    pub fn subtraction(&self) -> Subtraction {
        formulas::by_subtraction(self.alone.split.seconds, self.at.split.seconds, self.place.workers)
    }

    pub fn losses(&self) -> Losses {
        formulas::losses(&self.alone.split, &self.at.split, self.place.workers)
    }

    /// Whether there are fewer cores than its workers could use.
    pub fn is_crowded(&self) -> bool {
        self.allowed < self.place.workers as f64
    }

    /// The share of the ceiling that its bandwidth is.
    pub fn utilisation(&self) -> Option<f64> {
        Some(self.at.bandwidth()? / self.ceiling?)
    }
}

/// A cell, as `--json` prints it. Bandwidth is in GB/s.
#[derive(Serialize)]
struct JsonCell {
    workers: usize,
    threads: usize,
    batch: usize,
    seconds: f64,
    seconds_with_data: f64,
    speedup: f64,
    efficiency: f64,
    scaling: &'static str,
    compute_seconds: f64,
    comm_seconds: f64,
    exposed_comm_seconds: f64,
    bandwidth: Option<f64>,
    predicted_seconds: Option<f64>,
}

#[derive(Serialize)]
struct Json<'a> {
    cells: Vec<JsonCell>,
    stopped: &'a Option<Stop>,
}

impl Lab {
    /// The places of Table 1 that are measured, in their order.
    pub fn cells(&self) -> Vec<Cell<'_>> {
        let About { threads, cores, .. } = self.about;
        let measured = |size: Size| self.measured.iter().find(|measured| measured.size == size);
        let cell = |&place: &Place| {
            Some(Cell {
                place,
                at: measured(place.size()?)?,
                alone: measured(Size { workers: 1, batch: place.batch })?,
                cores: place.workers.saturating_mul(threads).min(cores),
                allowed: formulas::allowed_speedup(place.workers, threads, cores),
                ceiling: self.ceilings.get(&place.workers).copied(),
            })
        };
        self.plan.places.iter().filter_map(cell).collect()
    }

    /// The trainings of several workers that are measured, each once.
    pub fn together(&self) -> impl Iterator<Item = &Measured> {
        self.measured.iter().filter(|measured| measured.size.workers > 1)
    }

    /// What `--json` prints.
    pub fn json(&self) -> serde_json::Result<String> {
        let cell = |cell: &Cell<'_>| JsonCell {
            workers: cell.place.workers,
            threads: self.about.threads,
            batch: cell.at.size.batch,
            seconds: cell.at.split.seconds,
            seconds_with_data: cell.at.with_data,
            speedup: cell.speedup(),
            efficiency: cell.efficiency(),
            scaling: cell.place.scaling.name(),
            compute_seconds: cell.at.split.compute,
            comm_seconds: cell.at.comm(),
            exposed_comm_seconds: cell.at.split.exposed,
            bandwidth: cell.at.bandwidth().map(|rate| rate / 1e9),
            predicted_seconds: cell.at.predicted,
        };
        let cells = self.cells().iter().map(cell).collect();
        Ok(serde_json::to_string_pretty(&Json { cells, stopped: &self.plan.stopped })? + "\n")
    }

    /// The same as a table for spreadsheets, with all that Tables 1 to 3 have.
    pub fn csv(&self) -> String {
        let mut csv = String::from(
            "scaling,workers,threads,cores,batch,images_a_step,steps,seconds,seconds_with_data,speedup,efficiency,\
             allowed_speedup,compute_seconds,comm_seconds,exposed_comm_seconds,hidden_comm_seconds,waiting_seconds,\
             subtracted_compute_seconds,subtracted_comm_seconds,bandwidth,ceiling,predicted_seconds,gradient_bytes,\
             parameter_bytes,statistics_bytes,image_bytes,control_bytes\n",
        );
        for cell in self.cells() {
            let (at, Subtraction { compute, comm }) = (cell.at, cell.subtraction());
            let counts =
                [cell.place.workers, self.about.threads, cell.cores, at.size.batch, at.size.images(), at.steps];
            let numbers = [
                at.split.seconds,
                at.with_data,
                cell.speedup(),
                cell.efficiency(),
                cell.allowed,
                at.split.compute,
                at.comm(),
                at.split.exposed,
                at.hidden,
                at.split.waiting,
                compute,
                comm,
            ];
            let gigabytes = |rate: Option<f64>| rate.map(|rate| rate / 1e9);
            let perhaps = [gigabytes(at.bandwidth()), gigabytes(cell.ceiling), at.predicted];
            let fields: Vec<String> = counts
                .map(|count| count.to_string())
                .into_iter()
                .chain(numbers.map(|number| number.to_string()))
                .chain(perhaps.map(|number| number.map_or_else(String::new, |number| number.to_string())))
                .chain(at.sent.by_name().map(|(_, bytes)| bytes.to_string()))
                .collect();
            let _ = writeln!(csv, "{},{}", cell.place.scaling.name(), fields.join(","));
        }
        csv
    }
}

#[cfg(test)]
pub(super) mod tests {
    use ringstep_train::content::Sent;

    use super::super::cells::{self, Scaling};
    use super::super::formulas::Split;
    use super::*;

    /// 32 and 128 images on two cores; 100 MB of gradients. Two workers lose 10% to communication, four share the cores.
    pub fn hand_made() -> Lab {
        let plan = cells::plan(Some(&[32, 128]), &[1, 2, 4], 1024, &|_| Ok(None)).unwrap();
        let measure = |size: Size| {
            let steps = 1024 / size.images();
            let used = size.workers.min(2) as f64;
            let exposed = if size.workers == 1 { 0.0 } else { steps as f64 * 0.0625 };
            let waiting = if size.workers > 2 { 1.0 } else { 0.0 };
            let compute = 16.0 / used;
            let seconds = compute + exposed + waiting;
            Measured {
                size,
                steps,
                split: Split { seconds, compute, exposed, waiting },
                with_data: seconds + 0.5,
                hidden: exposed,
                reduced: (size.workers > 1).then_some(100e6 * steps as f64),
                sent: Sent { gradients: (size.workers * steps * 1_000_000) as u64, control: 1000, ..Sent::default() },
                predicted: Some(seconds),
            }
        };
        let measured = plan.sizes.iter().map(|&size| measure(size)).collect();
        let about = About {
            model: "resnet18".to_owned(),
            dataset: "synthetic".to_owned(),
            licence: "public domain".to_owned(),
            way: "ddp, ring".to_owned(),
            threads: 1,
            cores: 2,
            samples: 1024,
            gradients: 100_000_000,
        };
        Lab { about, plan, measured, ceilings: BTreeMap::from([(2, 4e9), (4, 3e9)]), forecast: Vec::new() }
    }

    fn find<'a>(cells: &[Cell<'a>], scaling: Scaling, batch: usize, workers: usize) -> Cell<'a> {
        *cells.iter().find(|cell| cell.place == Place { scaling, batch, workers }).unwrap()
    }

    #[test]
    fn cells_compare_with_one_worker() {
        let lab = hand_made();
        let cells = lab.cells();
        // 16 steps of 62.5 ms beside 8 s of computation.
        let weak = find(&cells, Scaling::Weak, 32, 2);
        assert_eq!((weak.at.split.seconds, weak.alone.split.seconds), (9.0, 16.0));
        assert_eq!((weak.speedup(), weak.efficiency(), weak.is_crowded()), (16.0 / 9.0, 8.0 / 9.0, false));
        assert_eq!(weak.subtraction(), Subtraction { compute: 8.0, comm: 1.0 });
        assert_eq!(weak.losses(), Losses { exposed: 1.0, waiting: 0.0, slower: 0.0, other: 0.0 });
        // 2 (p - 1) / p of 1.6 GB in 2 s, half of which is hidden.
        assert_eq!((weak.at.bandwidth(), weak.utilisation()), (Some(0.8e9), Some(0.2)));
        let strong = find(&cells, Scaling::Strong, 32, 2);
        assert_eq!((strong.at.size.batch, strong.at.split.seconds), (16, 10.0));
        let crowded = find(&cells, Scaling::Weak, 32, 4);
        assert!(crowded.is_crowded() && crowded.allowed == 2.0 && crowded.cores == 2);
        assert_eq!(find(&cells, Scaling::Strong, 128, 4).at.size, find(&cells, Scaling::Weak, 32, 4).at.size);
    }

    #[test]
    fn what_is_not_measured_yet_is_left_out() {
        let mut lab = hand_made();
        lab.measured.truncate(2);
        assert_eq!(lab.cells().len(), 3);
        lab.measured.clear();
        assert!(lab.cells().is_empty() && lab.csv().lines().count() == 1);
        assert_eq!(lab.json().unwrap().split_whitespace().collect::<String>(), r#"{"cells":[],"stopped":null}"#);
    }

    #[test]
    fn spreadsheets_have_a_field_for_each_heading() {
        let csv = hand_made().csv();
        let widths: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(widths, [27; 13]);
        let weak = csv.lines().find(|line| line.starts_with("weak,2,")).unwrap();
        assert!(
            weak.starts_with(
                "weak,2,1,2,32,64,16,9,9.5,1.7777777777777777,0.8888888888888888,2,8,2,1,1,0,8,1,0.8,4,9,"
            )
        );
    }
}
