//! How maps are cut into the tiles of Winograd's algorithm.

use std::ops::Range;

use super::super::Shape;
use super::Geometry;
use super::transforms::{OUT, WINDOW};

/// How the maps of a batch are cut into tiles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tiling {
    pub input: Shape,
    pub output: Shape,
    padding: [usize; 2],
    /// Tiles of an image, down and across.
    tiles: [usize; 2],
}

/// Which rows and columns of a square are within a map.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clip {
    top: usize,
    bottom: usize,
    left: usize,
    right: usize,
}

impl Tiling {
    pub fn new(geometry: &Geometry) -> Self {
        let Geometry { input, output, padding, .. } = *geometry;
        Self { input, output, padding, tiles: [output.height, output.width].map(|length| length.div_ceil(OUT)) }
    }

    /// Tiles of an image.
    pub fn per_image(&self) -> usize {
        self.tiles[0] * self.tiles[1]
    }

    /// The image of a tile, and the row and the column of its first pixel.
    #[inline(always)]
    pub fn origin(&self, tile: usize) -> [usize; 3] {
        let (image, at) = (tile / self.per_image(), tile % self.per_image());
        [image, at / self.tiles[1] * OUT, at % self.tiles[1] * OUT]
    }

    /// The pixels of a map that a square of `size` pixels, beginning `padding` before a tile, covers: the number that its
    /// first pixel would have in the batch if the map went on beyond its edges, and which are within it.
    #[inline(always)]
    fn square(&self, tile: usize, map: Shape, size: usize, padding: [usize; 2]) -> (isize, Clip) {
        let [image, y, x] = self.origin(tile);
        let first = padding[0].saturating_sub(y).min(size);
        let left = padding[1].saturating_sub(x).min(size);
        let clip = Clip {
            top: first,
            bottom: (map.height + padding[0]).saturating_sub(y).clamp(first, size),
            left,
            right: (map.width + padding[1]).saturating_sub(x).clamp(left, size),
        };
        let row = (image * map.height + y) as isize - padding[0] as isize;
        (row * map.width as isize + x as isize - padding[1] as isize, clip)
    }

    /// What a tile's window covers.
    #[inline(always)]
    pub fn input_window(&self, tile: usize) -> (isize, Clip) {
        self.square(tile, self.input, WINDOW, self.padding)
    }

    /// What a tile itself covers.
    #[inline(always)]
    pub fn output_tile(&self, tile: usize) -> (isize, Clip) {
        self.square(tile, self.output, OUT, [0, 0])
    }

    /// Panics unless the maps of all these tiles are among so many images.
    pub fn check(&self, tiles: &Range<usize>, images: usize) {
        assert!(tiles.end <= images * self.per_image(), "tiles beyond the batch");
    }
}

impl Clip {
    /// Whether all of a square of this size is within the map.
    #[inline(always)]
    pub fn is_whole(self, size: usize) -> bool {
        self.top + self.left == 0 && self.bottom.min(self.right) == size
    }

    /// Whether a pixel of the square is within the map.
    #[inline(always)]
    pub fn contains(self, row: usize, column: usize) -> bool {
        row >= self.top && row < self.bottom && column >= self.left && column < self.right
    }
}
