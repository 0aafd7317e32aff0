//! The numbers that workers begin with: the user's, or a small example.

use anyhow::{Context, Result, bail, ensure};

/// More workers do not fit on a screen.
const WORKERS: std::ops::RangeInclusive<usize> = 2..=16;
/// More values in a row do not either.
const MOST_VALUES: usize = 64;

/// A row of values for each worker.
pub fn choose(text: Option<&str>, workers: Option<usize>) -> Result<Vec<Vec<f64>>> {
    let rows: Option<Vec<&str>> = text.map(|text| text.split(';').collect());
    let world = workers.unwrap_or(rows.as_ref().map_or(4, Vec::len));
    ensure!(WORKERS.contains(&world), "{}: 2 to 16 can be shown", count(world, "worker"));
    let Some(rows) = rows else { return Ok(example(world)) };
    ensure!(rows.len() == world, "--values has {} for {world} workers: each needs one", count(rows.len(), "row"));
    let mut parsed: Vec<Vec<f64>> = Vec::new();
    for (index, row) in rows.into_iter().enumerate() {
        let place = || format!("--values, row {}", index + 1);
        let row = parse(row).with_context(place)?;
        let first = parsed.first().unwrap_or(&row).len();
        if row.len() != first {
            bail!("{}: {}, but row 1 has {first}", place(), count(row.len(), "value"));
        }
        parsed.push(row);
    }
    Ok(parsed)
}

fn parse(row: &str) -> Result<Vec<f64>> {
    ensure!(!row.trim().is_empty(), "no values");
    let mut values = Vec::new();
    for field in row.split(',') {
        ensure!(!field.trim().is_empty(), "nothing between two commas or beside one");
        for word in field.split_whitespace() {
            let value: f64 = word.parse().ok().with_context(|| format!("'{word}' is not a number"))?;
            ensure!(value.is_finite(), "'{word}' is not finite");
            values.push(value);
        }
    }
    ensure!(values.len() <= MOST_VALUES, "{} values: at most {MOST_VALUES} can be shown", values.len());
    Ok(values)
}

/// As many single digits as there are workers, for each of them.
fn example(world: usize) -> Vec<Vec<f64>> {
    // Squares keep rows and columns from repeating themselves.
    let digit = |rank: usize, index: usize| (rank * rank * 3 + index * index * 5 + rank * index * 7 + 2) % 17 % 9 + 1;
    (0..world).map(|rank| (0..world).map(|index| digit(rank, index) as f64).collect()).collect()
}

fn count(number: usize, of: &str) -> String {
    if number == 1 { format!("1 {of}") } else { format!("{number} {of}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_separated_by_commas_or_spaces() {
        assert_eq!(choose(Some("1, 2 -3;4 5,6e1"), None).unwrap(), [[1.0, 2.0, -3.0], [4.0, 5.0, 60.0]]);
    }

    #[test]
    fn the_example_is_square_and_of_single_digits() {
        for world in 2..=16 {
            let rows = choose(None, Some(world)).unwrap();
            assert!(rows.len() == world && rows.iter().all(|row| row.len() == world));
            assert!(rows.iter().flatten().all(|value| (1.0..=9.0).contains(value)));
        }
        assert_eq!(choose(None, None).unwrap().len(), 4);
    }
}
