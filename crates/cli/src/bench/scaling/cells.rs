//! Which trainings fill the tables in.

use std::fmt;

use anyhow::{Result, bail, ensure};
use ringstep_train::job::MAX_WORKERS;
use serde::Serialize;

/// The smallest batch, unless told otherwise, and how many times larger each is than the one before.
const FIRST: usize = 32;
const GROWTH: usize = 4;

/// What stays the same when there are more workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scaling {
    /// Images that each worker takes at once.
    Weak,
    /// Images that all take together.
    Strong,
}

impl Scaling {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Weak, Self::Strong];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weak => "weak",
            Self::Strong => "strong",
        }
    }
}

/// One training: so many workers, each of which takes so many images at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub workers: usize,
    pub batch: usize,
}

impl Size {
    /// Images of a step.
    pub fn images(&self) -> usize {
        self.workers * self.batch
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.workers, self.batch)
    }
}

/// A place in Table 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub scaling: Scaling,
    /// The batch that stays the same.
    pub batch: usize,
    pub workers: usize,
}

impl Place {
    /// The training that belongs there, if the batch can be shared out evenly.
    pub fn size(&self) -> Option<Size> {
        let &Self { scaling, batch, workers } = self;
        match scaling {
            Scaling::Weak => Some(Size { workers, batch }),
            Scaling::Strong => batch.is_multiple_of(workers).then(|| Size { workers, batch: batch / workers }),
        }
    }
}

/// What ended the growth of batches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stop {
    pub workers: usize,
    pub batch: usize,
    /// Why this is too much.
    pub why: String,
}

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The places of Table 1, batch by batch.
    pub places: Vec<Place>,
    /// The trainings that fill them in, in the order in which they run: each once, though several places may need it.
    pub sizes: Vec<Size>,
    /// Why there are no larger batches, if anything but the user decided that.
    pub stopped: Option<Stop>,
}

/// Plans for these batches a worker, or for as many as there is room for, and these numbers of workers, of which one is always
/// there to compare with. `too_much` says why there is no room for a training, if there is none.
pub fn plan(
    batches: Option<&[usize]>,
    workers: &[usize],
    samples: usize,
    too_much: &dyn Fn(Size) -> Result<Option<String>>,
) -> Result<Plan> {
    check_ascending("--workers", workers)?;
    check_ascending("--batches", batches.unwrap_or(&[FIRST]))?;
    let most = workers.last().copied().unwrap_or(1);
    ensure!(most <= MAX_WORKERS, "--workers {most}: at most {MAX_WORKERS} are possible");
    let too_few = |batch: usize| {
        (batch.saturating_mul(most) > samples).then(|| {
            let images = batch.saturating_mul(most);
            format!("a step of {most} x {batch} takes {images} images, and an epoch has {samples}")
        })
    };
    let first = [FIRST];
    if let Some(why) = batches.unwrap_or(&first).iter().copied().find_map(too_few) {
        bail!("{why}: smaller --batches, or more --samples");
    }
    let workers: Vec<usize> = [1].into_iter().chain(workers.iter().copied().filter(|&count| count > 1)).collect();
    let growing = std::iter::successors(Some(FIRST), |batch| batch.checked_mul(GROWTH));
    let batches: Box<dyn Iterator<Item = usize>> = match batches {
        Some(batches) => Box::new(batches.iter().copied()),
        None => Box::new(growing),
    };
    let mut plan = Plan { places: Vec::new(), sizes: Vec::new(), stopped: None };
    for batch in batches {
        if let Some(why) = too_few(batch) {
            plan.stopped = Some(Stop { workers: most, batch, why });
            break;
        }
        let mut room = workers.len();
        for (at, &workers) in workers.iter().enumerate() {
            if let Some(why) = too_much(Size { workers, batch })? {
                (room, plan.stopped) = (at, Some(Stop { workers, batch, why }));
                break;
            }
        }
        for scaling in Scaling::ALL {
            for &workers in &workers[..room] {
                let place = Place { scaling, batch, workers };
                let Some(size) = place.size() else { continue };
                plan.places.push(place);
                if !plan.sizes.contains(&size) {
                    plan.sizes.push(size);
                }
            }
        }
        if plan.stopped.is_some() {
            break;
        }
    }
    match (&plan.stopped, plan.sizes.is_empty()) {
        (Some(stop), true) => bail!("not even {} x {}: {}", stop.workers, stop.batch, stop.why),
        _ => Ok(plan),
    }
}

/// Refuses a list with a zero, with anything twice, or in no order.
fn check_ascending(flag: &str, numbers: &[usize]) -> Result<()> {
    let list = numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    ensure!(!numbers.contains(&0), "{flag} {list}: each is at least 1");
    ensure!(numbers.is_sorted_by(|a, b| a < b), "{flag} {list}: each must be larger than the one before");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(plan: &Plan) -> Vec<String> {
        plan.sizes.iter().map(Size::to_string).collect()
    }

    #[test]
    fn each_training_runs_once_though_two_places_need_it() {
        let plan = plan(Some(&[32, 128]), &[1, 2, 4], 2048, &|_| Ok(None)).unwrap();
        // 4 x 32 is weak scaling at 32 a worker, and strong scaling at 128 in all.
        assert_eq!(
            sizes(&plan),
            ["1 x 32", "2 x 32", "4 x 32", "2 x 16", "4 x 8", "1 x 128", "2 x 128", "4 x 128", "2 x 64"]
        );
        assert_eq!((plan.places.len(), plan.stopped), (12, None));
        let strong = Place { scaling: Scaling::Strong, batch: 128, workers: 4 };
        assert!(plan.places.contains(&strong) && strong.size() == Some(Size { workers: 4, batch: 32 }));
    }

    #[test]
    fn one_worker_is_always_there_and_odd_shares_are_left_out() {
        let plan = plan(Some(&[32]), &[3], 2048, &|_| Ok(None)).unwrap();
        assert_eq!(sizes(&plan), ["1 x 32", "3 x 32"]);
    }

    #[test]
    fn batches_grow_fourfold_until_memory_or_images_end() {
        let images = |size: Size| size.workers * size.batch;
        let too_much = |size: Size| Ok((images(size) > 600).then(|| format!("{} is too much", images(size))));
        let by_memory = plan(None, &[1, 2], 1 << 20, &too_much).unwrap();
        let stop = |workers, batch, why: &str| Some(Stop { workers, batch, why: why.to_owned() });
        assert_eq!(by_memory.stopped, stop(2, 512, "1024 is too much"));
        // One worker still has room for it.
        assert!(
            sizes(&by_memory).contains(&"1 x 512".to_owned()) && !sizes(&by_memory).contains(&"2 x 512".to_owned())
        );
        let by_images = plan(None, &[1, 2], 1000, &|_| Ok(None)).unwrap();
        assert_eq!(by_images.stopped, stop(2, 512, "a step of 2 x 512 takes 1024 images, and an epoch has 1000"));
        assert_eq!(by_images.sizes.last(), Some(&Size { workers: 2, batch: 64 }));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refusal = |batches: &[usize], workers: &[usize]| {
            let too_much = |size: Size| Ok((size.batch >= 64).then(|| "no room".to_owned()));
            plan(Some(batches), workers, 100, &too_much).unwrap_err().to_string()
        };
        assert_eq!(refusal(&[0], &[1]), "--batches 0: each is at least 1");
        assert_eq!(refusal(&[8], &[0, 1]), "--workers 0,1: each is at least 1");
        assert_eq!(refusal(&[8, 4], &[1]), "--batches 8,4: each must be larger than the one before");
        assert_eq!(refusal(&[8], &[2, 2]), "--workers 2,2: each must be larger than the one before");
        assert_eq!(refusal(&[8], &[1, 2000]), "--workers 2000: at most 1024 are possible");
        assert_eq!(
            refusal(&[8, 64], &[1, 2]),
            "a step of 2 x 64 takes 128 images, and an epoch has 100: smaller --batches, or more --samples"
        );
        assert_eq!(refusal(&[64], &[1]), "not even 1 x 64: no room");
    }
}
