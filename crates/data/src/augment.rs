//! Training images that are never twice the same: a random window, a mirror image.
//!
//! What happens to an image depends on seed, epoch and the image alone. So it does not depend on how many workers there
//! are, on which of them has the image, or on when it is loaded.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// What may happen to training images. By default nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Augment {
    /// Pad with [`MARGIN`] pixels on each side, then take a window of the old size at random.
    pub crop: bool,
    /// Mirror every other image, left to right.
    pub flip: bool,
}

/// How far a window may be off, in each direction.
pub const MARGIN: usize = 4;
/// Places a window may have in each direction.
const PLACES: u64 = 2 * MARGIN as u64 + 1;

/// How one image is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The window's first row in the image padded by [`MARGIN`].
    pub top: usize,
    /// The window's first column there.
    pub left: usize,
    /// Whether what the window shows is then mirrored, left to right.
    pub flip: bool,
}

impl View {
    /// The image as it is.
    pub const PLAIN: Self = Self { top: MARGIN, left: MARGIN, flip: false };
}

/// The views of an epoch.
pub struct Views {
    augment: Augment,
    random: ChaCha8Rng,
}

impl Augment {
    /// The views of an epoch.
    pub fn epoch(self, seed: u64, epoch: usize) -> Views {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // Shuffling counts its streams up from 0; these come down from the other end.
        random.set_stream(u64::MAX - epoch as u64);
        Views { augment: self, random }
    }
}

impl Views {
    /// How this image is looked at.
    pub fn of(&mut self, image: usize) -> View {
        if self.augment == Augment::default() {
            return View::PLAIN;
        }
        // Each image has two words of the stream to itself, wherever it stands in the order.
        self.random.set_word_pos(2 * image as u128);
        // One draw for all, so that whether images are cropped does not change which are flipped.
        let draw = self.random.next_u64();
        let (top, left) = match self.augment.crop {
            true => ((draw % PLACES) as usize, (draw / PLACES % PLACES) as usize),
            false => (MARGIN, MARGIN),
        };
        View { top, left, flip: self.augment.flip && draw / (PLACES * PLACES) % 2 == 1 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const BOTH: Augment = Augment { crop: true, flip: true };

    fn views(augment: Augment, seed: u64, epoch: usize, images: usize) -> Vec<View> {
        let mut views = augment.epoch(seed, epoch);
        (0..images).map(|image| views.of(image)).collect()
    }

    #[test]
    fn every_window_and_both_sides_are_equally_likely() {
        let images = 81 * 2 * 200;
        let mut counts: HashMap<(usize, usize, bool), usize> = HashMap::new();
        for view in views(BOTH, 3, 1, images) {
            *counts.entry((view.top, view.left, view.flip)).or_default() += 1;
        }
        assert_eq!(counts.len(), 81 * 2);
        assert!(counts.keys().all(|&(top, left, _)| top <= 8 && left <= 8));
        // 200 each, give or take five standard deviations.
        assert!(counts.values().all(|&count| (130..270).contains(&count)), "{counts:?}");
    }

    #[test]
    fn an_image_keeps_its_view_wherever_it_stands() {
        let in_order = views(BOTH, 7, 2, 100);
        let mut backwards = BOTH.epoch(7, 2);
        assert!((0..100).rev().all(|image| backwards.of(image) == in_order[image]));
        assert_ne!(in_order, views(BOTH, 7, 3, 100));
        assert_ne!(in_order, views(BOTH, 8, 2, 100));
    }

    #[test]
    fn what_is_not_asked_for_does_not_happen() {
        let none = views(Augment::default(), 1, 1, 100);
        let crop = views(Augment { crop: true, flip: false }, 1, 1, 100);
        let flip = views(Augment { crop: false, flip: true }, 1, 1, 100);
        let both = views(BOTH, 1, 1, 100);
        assert!(none.iter().all(|&view| view == View::PLAIN));
        assert!(crop.iter().zip(&both).all(|(crop, both)| *crop == View { flip: false, ..*both }));
        assert!(flip.iter().zip(&both).all(|(flip, both)| *flip == View { flip: both.flip, ..View::PLAIN }));
    }
}
