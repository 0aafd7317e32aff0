//! Where logical PE sets stand on the physical array.

/// Part of a logical set on the array: `columns` columns of it, all of its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The set it belongs to, from 0.
    pub set: usize,
    /// The first physical row.
    pub row: usize,
    /// The first physical column.
    pub column: usize,
    /// The first column of the logical set that it holds.
    pub from: usize,
    /// How many columns.
    pub columns: usize,
}

/// Places as many sets of `height` x `width` PEs as fit, at most `limit`. A set wider than the array is folded: it is
/// cut into segments that stand below each other. Sets go into bands of their height, first fit.
pub fn place(rows: usize, columns: usize, height: usize, width: usize, limit: usize) -> Vec<Segment> {
    let mut used = vec![0; rows / height];
    let mut segments: Vec<Segment> = Vec::new();
    for set in 0..limit {
        let placed = segments.len();
        let mut from = 0;
        while from < width {
            let wide = columns.min(width - from);
            let Some(band) = used.iter().position(|used| used + wide <= columns) else {
                segments.truncate(placed);
                return segments;
            };
            segments.push(Segment { set, row: band * height, column: used[band], from, columns: wide });
            used[band] += wide;
            from += wide;
        }
    }
    segments
}

/// How many sets fit at once.
pub fn capacity(rows: usize, columns: usize, height: usize, width: usize) -> usize {
    place(rows, columns, height, width, usize::MAX).last().map_or(0, |segment| segment.set + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pictures of AlexNet's layers in the JSSC paper.
    #[test]
    fn sets_stand_as_on_the_chip() {
        assert_eq!(capacity(12, 14, 11, 7), 2, "CONV1: two strips of 7 rows beside each other");
        assert_eq!(capacity(12, 14, 5, 27), 1, "CONV2: one set, folded into 14 and 13 columns");
        assert_eq!(capacity(12, 14, 3, 13), 4, "CONV3 to CONV5: four sets below each other");
        let folded = place(12, 14, 5, 27, 1);
        let seen: Vec<_> = folded.iter().map(|part| (part.row, part.column, part.columns)).collect();
        assert_eq!(seen, [(0, 0, 14), (5, 0, 13)]);
    }

    #[test]
    fn what_does_not_fit_is_not_placed_in_part() {
        assert_eq!(place(4, 4, 5, 1, 1), []);
        assert_eq!(place(4, 4, 2, 9, 1), []);
        assert_eq!(place(4, 4, 2, 7, 2).len(), 2);
    }

    #[test]
    fn segments_do_not_overlap_and_hold_every_column_once() {
        for (height, width) in [(1, 1), (2, 3), (3, 5), (1, 9), (2, 11), (5, 2)] {
            let mut grid = [[false; 6]; 5];
            let segments = place(5, 6, height, width, usize::MAX);
            for part in &segments {
                for row in &mut grid[part.row..part.row + height] {
                    for cell in &mut row[part.column..part.column + part.columns] {
                        assert!(!std::mem::replace(cell, true), "{height}x{width}");
                    }
                }
            }
            let sets = capacity(5, 6, height, width);
            assert_eq!(grid.iter().flatten().filter(|cell| **cell).count(), sets * height * width);
        }
    }
}
