//! A 2-D convolution on a PE array in row-stationary order, cycle by cycle, with every number that takes part.
//!
//! PE (i, j) keeps filter row i and slides it along input row j U + i: filter rows go along rows of the array, input rows
//! along diagonals, and the sums of column j, added from the bottom up, are output row j. PEs are numbered down the
//! columns, as the papers' figures do.

use std::ops::Range;

/// A matrix, row by row.
pub type Matrix = Vec<Vec<f64>>;

/// The whole of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Lecture {
    /// The filter.
    pub filter: Matrix,
    /// The input.
    pub input: Matrix,
    /// How far the filter moves.
    pub stride: usize,
    /// The PEs, column by column.
    pub pes: Vec<Place>,
    /// What happens.
    pub cycles: Vec<Cycle>,
    /// What comes out.
    pub output: Matrix,
}

/// A PE's place, and what it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Row of the array, and of the filter.
    pub row: usize,
    /// Column of the array, and row of the output.
    pub column: usize,
    /// Row of the input.
    pub input_row: usize,
}

/// One cycle of the array.
#[derive(Debug, Clone, PartialEq)]
pub struct Cycle {
    /// The column of the output that is being computed.
    pub column: usize,
    /// The taps of the filter rows that take part.
    pub taps: Range<usize>,
    /// What each PE does.
    pub steps: Vec<Step>,
    /// What goes up each column, if this completes the rows' sums.
    pub climbs: Vec<Climb>,
}

/// What a PE does in a cycle.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Its window of the input, that is, its input scratchpad.
    pub window: Vec<f64>,
    /// Its sum before; zero at the beginning of a window.
    pub before: f64,
    /// Pixels and weights that it multiplies.
    pub products: Vec<(f64, f64)>,
    /// Its sum afterwards.
    pub after: f64,
}

/// Sums that go up a column of the array.
#[derive(Debug, Clone, PartialEq)]
pub struct Climb {
    /// The array's column, which is the output's row.
    pub column: usize,
    /// The PEs' own sums, from the bottom up.
    pub sums: Vec<f64>,
    /// What comes out at the top.
    pub output: f64,
}

/// Matrices that do not fit each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LectureError {
    /// Nothing in it.
    #[error("the {0} is empty")]
    Empty(&'static str),
    /// Rows of different lengths.
    #[error("the {what}'s row {row} has {length} numbers, its first row has {first}")]
    Ragged {
        /// Filter or input.
        what: &'static str,
        /// Counted from 1.
        row: usize,
        /// How many numbers it has.
        length: usize,
        /// How many it should have.
        first: usize,
    },
    /// A filter that does not fit into the input.
    #[error("a filter of {}x{} is larger than its input of {}x{}", .filter.0, .filter.1, .input.0, .input.1)]
    FilterTooLarge {
        /// Rows and columns.
        filter: (usize, usize),
        /// Rows and columns.
        input: (usize, usize),
    },
    /// No such stride or width.
    #[error("{what} is {value}: it must be between 1 and {most}")]
    OutOfRange {
        /// Stride, or MACs a cycle.
        what: &'static str,
        /// What was asked for.
        value: usize,
        /// The most that makes sense.
        most: usize,
    },
}

/// Works through a convolution. A PE does `width` MACs a cycle; without it, all of a filter row.
pub fn lecture(filter: Matrix, input: Matrix, stride: usize, width: Option<usize>) -> Result<Lecture, LectureError> {
    let (filter_height, filter_width) = size("filter", &filter)?;
    let (input_height, input_width) = size("input", &input)?;
    if filter_height > input_height || filter_width > input_width {
        let (filter, input) = ((filter_height, filter_width), (input_height, input_width));
        return Err(LectureError::FilterTooLarge { filter, input });
    }
    let width = width.unwrap_or(filter_width);
    let most_stride = input_height.max(input_width);
    for (what, value, most) in [("the stride", stride, most_stride), ("MACs a cycle", width, filter_width)] {
        if value == 0 || value > most {
            return Err(LectureError::OutOfRange { what, value, most });
        }
    }
    let (rows, columns) = ((input_height - filter_height) / stride + 1, (input_width - filter_width) / stride + 1);
    let place = |column: usize, row: usize| Place { row, column, input_row: column * stride + row };
    let pes: Vec<Place> = (0..rows).flat_map(|column| (0..filter_height).map(move |row| place(column, row))).collect();

    let mut output = vec![vec![0.0; columns]; rows];
    let mut cycles = Vec::new();
    for column in 0..columns {
        let mut sums = vec![0.0; pes.len()];
        for first in (0..filter_width).step_by(width) {
            let taps = first..(first + width).min(filter_width);
            let steps = pes.iter().zip(&mut sums).map(|(pe, sum)| {
                let window = input[pe.input_row][column * stride..][..filter_width].to_vec();
                let products: Vec<_> = taps.clone().map(|tap| (window[tap], filter[pe.row][tap])).collect();
                let before = *sum;
                *sum += products.iter().map(|(pixel, weight)| pixel * weight).sum::<f64>();
                Step { window, before, products, after: *sum }
            });
            let steps = steps.collect();
            let mut climbs = Vec::new();
            if taps.end == filter_width {
                for (row, sums) in sums.chunks_exact(filter_height).enumerate() {
                    let sums: Vec<f64> = sums.iter().rev().copied().collect();
                    output[row][column] = sums.iter().sum();
                    climbs.push(Climb { column: row, output: output[row][column], sums });
                }
            }
            cycles.push(Cycle { column, taps, steps, climbs });
        }
    }
    Ok(Lecture { filter, input, stride, pes, cycles, output })
}

/// Rows and columns.
fn size(what: &'static str, matrix: &Matrix) -> Result<(usize, usize), LectureError> {
    let first = matrix.first().map_or(0, Vec::len);
    if first == 0 {
        return Err(LectureError::Empty(what));
    }
    match matrix.iter().position(|row| row.len() != first) {
        Some(at) => Err(LectureError::Ragged { what, row: at + 1, length: matrix[at].len(), first }),
        None => Ok((matrix.len(), first)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Layer;
    use crate::reference::convolution;

    fn example() -> (Matrix, Matrix) {
        let filter = vec![vec![-1.0, 2.0], vec![1.0, 0.0]];
        (filter, vec![vec![1.0, 3.0, 9.0], vec![2.0, 4.0, 1.0], vec![0.0, 5.0, 2.0]])
    }

    #[test]
    fn the_lectures_example() {
        let (filter, input) = example();
        let lecture = lecture(filter, input, 1, None).unwrap();
        assert_eq!(lecture.output, [[7.0, 19.0], [6.0, 3.0]]);
        assert_eq!(lecture.cycles.len(), 2);
        let first = &lecture.cycles[0].steps[0];
        assert_eq!((first.products.as_slice(), first.after), ([(1.0, -1.0), (3.0, 2.0)].as_slice(), 5.0));
        // PE 2, below PE 1, has filter row 2 and input row 2; PE 3 shares the diagonal with it.
        let rows: Vec<_> = lecture.pes.iter().map(|pe| (pe.row, pe.input_row)).collect();
        assert_eq!(rows, [(0, 0), (1, 1), (0, 1), (1, 2)]);
        assert_eq!(lecture.cycles[0].climbs[0], Climb { column: 0, sums: vec![2.0, 5.0], output: 7.0 });
    }

    #[test]
    fn one_mac_a_cycle_takes_longer_and_comes_to_the_same() {
        let (filter, input) = example();
        let slow = lecture(filter.clone(), input.clone(), 1, Some(1)).unwrap();
        assert_eq!(slow.cycles.len(), 4);
        assert_eq!(slow.output, lecture(filter, input, 1, None).unwrap().output);
        let climbs: Vec<usize> = slow.cycles.iter().map(|cycle| cycle.climbs.len()).collect();
        assert_eq!(climbs, [0, 2, 0, 2]);
    }

    #[test]
    fn any_size_and_stride_comes_to_the_convolution() {
        for (height, width, rows, columns, stride, macs) in
            [(3, 3, 5, 5, 1, 2), (2, 4, 6, 5, 2, 3), (1, 1, 3, 4, 3, 1), (5, 3, 5, 9, 1, 3)]
        {
            let matrix = |rows: usize, columns: usize, by: usize| -> Matrix {
                (0..rows).map(|i| (0..columns).map(|j| ((i * 31 + j * 17) * by % 19) as f64 - 9.0).collect()).collect()
            };
            let (filter, input) = (matrix(height, width, 3), matrix(rows, columns, 7));
            let layer = Layer {
                filter_height: height,
                filter_width: width,
                height: rows,
                width: columns,
                ..Layer::convolution("conv", 1, 1, 1, 1, 0).stride(stride)
            };
            let expected = convolution(&layer, &input.concat(), &filter.concat());
            assert_eq!(lecture(filter, input, stride, Some(macs)).unwrap().output.concat(), expected);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (filter, input) = example();
        let error = |filter: &Matrix, input: &Matrix, stride, width| {
            lecture(filter.clone(), input.clone(), stride, width).unwrap_err().to_string()
        };
        assert_eq!(error(&input, &filter, 1, None), "a filter of 3x3 is larger than its input of 2x2");
        assert_eq!(
            error(&vec![vec![1.0], vec![]], &input, 1, None),
            "the filter's row 2 has 0 numbers, its first row has 1"
        );
        assert_eq!(error(&filter, &vec![], 1, None), "the input is empty");
        assert_eq!(error(&filter, &input, 0, None), "the stride is 0: it must be between 1 and 3");
        assert_eq!(error(&filter, &input, 1, Some(3)), "MACs a cycle is 3: it must be between 1 and 2");
    }
}
