//! What the numbers say, in sentences that are made of them.

use super::cells::{Place, Scaling};
use super::formulas::Losses;
use super::lab::{Cell, Lab};
use crate::show::{bytes, seconds};

/// About as much: differences that are smaller are not worth a word.
const NEAR: f64 = 0.005;

fn percent(share: f64) -> String {
    format!("{:.0}%", 100.0 * share)
}

/// How long steps take, and how that goes with the batch.
pub fn step_times(lab: &Lab) -> Vec<String> {
    let mut alone: Vec<_> = lab.measured.iter().filter(|measured| measured.size.workers == 1).collect();
    alone.sort_by_key(|measured| measured.size.batch);
    let an_image = |seconds: f64, batch: usize| seconds / batch as f64;
    let mut sentences = Vec::new();
    if let [first, .., last] = alone[..] {
        let [small, large] = [first, last].map(|measured| an_image(measured.step_seconds(), measured.size.batch));
        sentences.push(format!(
            "An image takes one worker {} in batches of {} and {} in batches of {}: {}.",
            seconds(small),
            first.size.batch,
            seconds(large),
            last.size.batch,
            match small / large {
                ratio if ratio > 1.02 => format!("larger batches compute {ratio:.2} times as fast"),
                ratio if ratio < 0.98 => format!("larger batches compute {:.2} times as slowly", 1.0 / ratio),
                _ => "the batch hardly matters to the computation".to_owned(),
            }
        ));
    }
    let cells = lab.cells();
    let most = cells.iter().filter(|cell| cell.place.scaling == Scaling::Weak && cell.place.workers > 1);
    if let Some(cell) = most.max_by(|a, b| growth(a).total_cmp(&growth(b))) {
        sentences.push(format!(
            "With more workers a step grows most at {}: it takes {:.2} times as long as that of one worker with the same batch.",
            cell.at.size,
            growth(cell)
        ));
    }
    sentences
}

/// How many times as long a step of weak scaling takes as one worker's.
fn growth(cell: &Cell<'_>) -> f64 {
    cell.at.step_seconds() / cell.alone.step_seconds()
}

/// How far each scaling gets with the most workers, and what keeps it from more.
pub fn scalings(lab: &Lab) -> Vec<String> {
    let cells = lab.cells();
    let furthest = |scaling: Scaling, batch: usize| {
        let of_both = cells.iter().filter(move |cell| cell.place.scaling == scaling && cell.place.batch == batch);
        of_both.filter(|cell| cell.place.workers > 1).max_by_key(|cell| cell.place.workers)
    };
    let mut batches: Vec<usize> = cells.iter().map(|cell| cell.place.batch).collect();
    batches.dedup();
    batches.sort_unstable();
    batches.dedup();
    let mut sentences: Vec<String> = Vec::new();
    for &batch in &batches {
        let both = Scaling::ALL.map(|scaling| furthest(scaling, batch));
        sentences.extend(both.iter().flatten().map(|cell| reach(cell)));
        if let [Some(weak), Some(strong)] = both {
            sentences.extend(compare(weak, strong));
        }
    }
    sentences
}

/// How far one cell gets.
fn reach(cell: &Cell<'_>) -> String {
    let Place { scaling, batch, workers } = cell.place;
    let images = match scaling {
        Scaling::Weak => format!("{batch} images a worker"),
        Scaling::Strong => format!("{batch} images a step"),
    };
    let speedup = cell.speedup();
    let begin = format!(
        "{} scaling, {images}: {workers} workers are {speedup:.2} times as fast as one",
        capital(scaling.name())
    );
    let reached = match cell.is_crowded() {
        false => format!("{} of ideal", percent(cell.efficiency())),
        true => format!(
            "{} of ideal, and {} of the {:.2} that {} allow",
            percent(cell.efficiency()),
            percent(speedup / cell.allowed),
            cell.allowed,
            if cell.cores == 1 { "one core".to_owned() } else { format!("{} cores", cell.cores) }
        ),
    };
    format!("{begin}, {reached}{}.", missing(cell).unwrap_or_default())
}

/// What most of the time goes to that is more than ideal.
fn missing(cell: &Cell<'_>) -> Option<String> {
    let ideal = cell.alone.split.seconds / cell.place.workers as f64;
    let total = cell.at.split.seconds - ideal;
    if total < NEAR * cell.at.split.seconds {
        return None;
    }
    let Losses { exposed, waiting, slower, other } = cell.losses();
    let longer = cell.at.split.compute / (cell.at.split.compute - slower);
    let parts = [
        (exposed, "communication that nothing hides".to_owned()),
        (waiting, "waiting for other workers".to_owned()),
        (slower, format!("computation, which takes {longer:.2} times as long as alone")),
        (other, "other work, between steps".to_owned()),
    ];
    let (most, name) = parts.into_iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(format!("; an epoch takes {} longer than ideal, most for {name} ({})", seconds(total), seconds(most)))
}

/// Why one scaling gets further than the other.
fn compare(weak: &Cell<'_>, strong: &Cell<'_>) -> Option<String> {
    let (workers, batch) = (weak.place.workers, weak.place.batch);
    if strong.place.workers != workers {
        return None;
    }
    let share = |cell: &Cell<'_>| cell.at.comm() / cell.at.split.seconds;
    let difference = weak.speedup() / strong.speedup() - 1.0;
    let further = if difference > 0.0 { "further" } else { "less far" };
    (difference.abs() > 2.0 * NEAR).then(|| {
        format!(
            "So from {batch} images weak scaling gets {further} than strong: it exchanges gradients {} an epoch instead of {}, \
             for {} of the time instead of {}.",
            times(weak.at.steps),
            times(strong.at.steps),
            percent(share(weak)),
            percent(share(strong))
        )
    })
}

/// Where the time goes, and what a stopwatch alone would say.
pub fn splits(lab: &Lab) -> Vec<String> {
    let cells = lab.cells();
    let together = || cells.iter().filter(|cell| cell.place.workers > 1);
    let exposed = |cell: &Cell<'_>| cell.at.split.exposed / cell.at.split.seconds;
    let mut sentences = Vec::new();
    if let Some(cell) = together().max_by(|a, b| exposed(a).total_cmp(&exposed(b))) {
        let hidden = if cell.at.comm() > 0.0 { cell.at.hidden / cell.at.comm() } else { 0.0 };
        sentences.push(format!(
            "Communication costs most at {}: {} of the time is exposed, and {} of all communication is hidden behind \
             computation.",
            cell.at.size,
            percent(exposed(cell)),
            percent(hidden)
        ));
    }
    let error = |cell: &Cell<'_>| (cell.subtraction().comm - cell.at.comm()).abs() / cell.at.split.seconds;
    if let Some(cell) = together().max_by(|a, b| error(a).total_cmp(&error(b))) {
        let (subtracted, Losses { waiting, slower, other, .. }) = (cell.subtraction().comm, cell.losses());
        let told = |time: f64| if time < 0.0 { format!("{} less than none", seconds(-time)) } else { seconds(time) };
        let taken = [(waiting, "waiting"), (slower, "slower computation"), (other, "other work")]
            .into_iter()
            .filter(|(time, _)| *time > NEAR * cell.at.split.seconds)
            .map(|(time, name)| format!("{} of {name}", seconds(time)))
            .collect::<Vec<_>>();
        let takes = match taken.is_empty() {
            true => String::new(),
            false => format!(" takes {} for communication, and", crate::show::list(&taken, ", ", " and ")),
        };
        sentences.push(format!(
            "Subtraction is off most at {}: it finds {} of communication where {} were measured; it{takes} does not see the {} \
             that are hidden.",
            cell.at.size,
            told(subtracted),
            seconds(cell.at.comm()),
            seconds(cell.at.hidden)
        ));
    }
    sentences
}

/// How much of the network is used.
pub fn bandwidths(lab: &Lab) -> Vec<String> {
    let used = |measured: &&super::measure::Measured| {
        Some((measured.bandwidth()? / lab.ceilings.get(&measured.size.workers)?, measured.bandwidth()?))
    };
    let mut all: Vec<_> = lab.together().filter_map(|measured| Some((used(&measured)?, measured))).collect();
    all.sort_by(|a, b| b.0.0.total_cmp(&a.0.0));
    let told = |((share, rate), measured): &((f64, f64), &super::measure::Measured)| {
        format!("{}, {:.3} GB/s, {} of the ceiling", measured.size, rate / 1e9, percent(*share))
    };
    match &all[..] {
        [] => Vec::new(),
        [one] => vec![format!("All-reduces of {} reach {}.", bytes(lab.about.gradients as u64), told(one))],
        [best, .., last] => {
            let beside = last.1.hidden / last.1.comm();
            let why = match beside > 0.5 {
                true => format!(
                    "; {} of its communication goes on beside the computation, on the same cores",
                    percent(beside)
                ),
                false => String::new(),
            };
            vec![format!(
                "Nearest to the ceiling are the all-reduces of {}; furthest from it those of {}{why}.",
                told(best),
                told(last)
            )]
        }
    }
}

/// What goes over the network besides gradients.
pub fn network(lab: &Lab) -> Vec<String> {
    let largest = lab.together().max_by_key(|measured| measured.sent.total());
    let Some(measured) = largest.filter(|measured| measured.sent.total() > 0) else { return Vec::new() };
    let total = measured.sent.total() as f64;
    let mut kinds = measured.sent.by_name();
    kinds.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let kinds: Vec<String> = kinds
        .iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(name, bytes)| format!("{name} {:.2}%", 100.0 * *bytes as f64 / total))
        .collect();
    vec![format!("Most is sent by {}: {}.", measured.size, crate::show::list(&kinds, ", ", " and "))]
}

/// Why batches do not go on growing, if anything but the user decided that.
pub fn stopped(lab: &Lab) -> Option<String> {
    let stop = lab.plan.stopped.as_ref()?;
    Some(format!("Batches stop before {} x {}: {}.", stop.workers, stop.batch, stop.why))
}

fn times(count: usize) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

fn capital(word: &str) -> String {
    word[..1].to_uppercase() + &word[1..]
}

#[cfg(test)]
mod tests {
    use super::super::lab::tests::hand_made;
    use super::*;

    #[test]
    fn sentences_follow_the_numbers() {
        let lab = hand_made();
        let all = [step_times(&lab), scalings(&lab), splits(&lab), bandwidths(&lab), network(&lab)].concat();
        for expected in [
            "An image takes one worker 15.6 ms in batches of 32 and 15.6 ms in batches of 128: the batch hardly matters to \
             the computation.",
            "Weak scaling, 32 images a worker: 4 workers are 1.68 times as fast as one, 42% of ideal, and 84% of the 2.00 that 2 cores \
             allow; an epoch takes 5.50 s longer than ideal, most for computation, which takes 2.00 times as long as alone \
             (4.00 s).",
            "Communication costs most at 2 x 16: 20% of the time is exposed, and 50% of all communication is hidden behind computation.",
            "Most is sent by 4 x 8: gradients 100.00% and control 0.00%.",
        ] {
            assert!(all.iter().any(|sentence| sentence == expected), "{expected}\n{all:#?}");
        }
    }

    #[test]
    fn another_bound_makes_another_sentence() {
        let mut lab = hand_made();
        for measured in lab.measured.iter_mut().filter(|measured| measured.size.workers == 4) {
            measured.split.waiting += 20.0;
            measured.split.seconds += 20.0;
        }
        let all = scalings(&lab);
        assert!(all[0].contains("most for waiting for other workers (21.0 s)"), "{all:#?}");
    }

    #[test]
    fn nothing_measured_is_nothing_said() {
        let mut lab = hand_made();
        lab.measured.clear();
        let all = [step_times(&lab), scalings(&lab), splits(&lab), bandwidths(&lab), network(&lab)].concat();
        assert!(all.is_empty() && stopped(&lab).is_none(), "{all:#?}");
    }
}
