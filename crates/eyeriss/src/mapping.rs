//! How a layer is laid out on the accelerator, in the letters of the JSSC paper.
//!
//! A logical *PE set* of R x e PEs computes e rows of a 2-D convolution: PE (i, j) keeps row i of a filter and slides it
//! along input row j U + i, and the sums go up column j. In a *pass*, r x t sets work at once on n images: each set
//! takes p filters and q channels in turn, sets of other channels add up, sets of other filters do not.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::arch::Architecture;
use crate::array;
use crate::layer::Layer;

/// The parameters of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mapping {
    /// Output channels whose partial sums are in the buffer.
    pub m: usize,
    /// Images of a pass.
    pub n: usize,
    /// Output rows of a set, which is its width.
    pub e: usize,
    /// Filters of a set.
    pub p: usize,
    /// Channels of a set.
    pub q: usize,
    /// Sets that work on different channels.
    pub r: usize,
    /// Sets that work on different filters.
    pub t: usize,
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { m, n, e, p, q, r, t } = self;
        write!(f, "m={m},n={n},e={e},p={p},q={q},r={r},t={t}")
    }
}

/// A mapping that does not work, or a layer that no mapping suits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("layer {layer}: {problem}")]
pub struct Misfit {
    /// The layer's name.
    pub layer: String,
    /// The resource, what is needed of it, and what there is.
    pub problem: String,
}

impl Misfit {
    pub(crate) fn new(layer: &Layer, problem: impl Into<String>) -> Self {
        Self { layer: layer.name.clone(), problem: problem.into() }
    }
}

impl Mapping {
    /// The smallest mapping: if this one does not fit, none does.
    pub const SMALLEST: Self = Self { m: 1, n: 1, e: 1, p: 1, q: 1, r: 1, t: 1 };

    /// Letters and sizes.
    pub fn parameters(&self) -> Vec<(&'static str, usize)> {
        let Self { m, n, e, p, q, r, t } = *self;
        vec![("m", m), ("n", n), ("e", e), ("p", p), ("q", q), ("r", r), ("t", t)]
    }

    /// Words of inputs in the buffer during a pass.
    pub fn input_tile(&self, layer: &Layer) -> usize {
        self.n * (self.q * self.r).min(layer.group_channels()) * layer.input_rows(self.e) * layer.input_columns()
    }

    /// Words of partial sums in the buffer.
    pub fn sum_tile(&self, layer: &Layer) -> usize {
        self.n * self.m * self.e * layer.output_width()
    }

    /// Words of the filters of a pass.
    pub fn filter_tile(&self, layer: &Layer) -> usize {
        let (filters, channels) = ((self.p * self.t).min(self.m), (self.q * self.r).min(layer.group_channels()));
        filters * channels * layer.filter_height * layer.filter_width
    }

    /// PEs that work.
    pub fn active_pes(&self, layer: &Layer) -> usize {
        layer.filter_height * self.e * self.r * self.t
    }

    /// Whether the architecture can do it.
    pub fn check(&self, layer: &Layer, batch: usize, arch: &Architecture) -> Result<(), Misfit> {
        let Self { m, n, e, p, q, r, t } = *self;
        let misfit = |problem: String| Err(Misfit::new(layer, problem));
        let (filters, channels) = (layer.group_filters(), layer.group_channels());
        for (letter, value, most, what) in [
            ("m", m, filters, "filters of a group"),
            ("n", n, batch, "images of the batch"),
            ("e", e, layer.output_height(), "output rows"),
            ("p", p, m, "filters of m"),
            ("q", q, channels, "channels of a group"),
            ("r", r, channels.div_ceil(q.max(1)), "sets that the channels fill"),
            ("t", t, m.div_ceil(p.max(1)), "sets that the filters of m fill"),
        ] {
            if value == 0 || value > most {
                return misfit(format!("{letter}={value}: there are 1 to {most} {what}"));
            }
        }
        let (row, pads) = (layer.filter_width, arch.scratchpad);
        for (resource, formula, needed, there_are) in [
            ("array rows", "R".to_owned(), layer.filter_height, arch.rows),
            ("input scratchpad", format!("q S = {q} x {row}"), q * row, pads.input),
            ("filter scratchpad", format!("p q S = {p} x {q} x {row}"), p * q * row, pads.filter),
            ("partial-sum scratchpad", "p".to_owned(), p, pads.partial_sum),
            (
                "global buffer",
                format!("inputs {} + partial sums {}", self.input_tile(layer), self.sum_tile(layer)),
                self.input_tile(layer) + self.sum_tile(layer),
                arch.map_words(),
            ),
            ("filter part of the global buffer", "filters".to_owned(), self.filter_tile(layer), arch.filter_words()),
        ] {
            if needed > there_are {
                let unit = if resource == "array rows" { "" } else { " words" };
                return misfit(format!("{resource} too small: {formula} needs {needed}{unit}, there are {there_are}"));
            }
        }
        let fit = array::capacity(arch.rows, arch.columns, layer.filter_height, e);
        if r * t > fit {
            let set = format!("{}x{e}", layer.filter_height);
            let array = format!("{}x{}", arch.rows, arch.columns);
            return misfit(format!("array too small: r t = {} sets of {set}, the {array} PEs hold {fit}", r * t));
        }
        Ok(())
    }
}

/// The sizes of the tiles that `total` is cut into, and how often each occurs: full ones, then perhaps a smaller one.
pub fn tiles(total: usize, size: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    let rest = total % size;
    [(size, total / size), (rest, usize::from(rest > 0))].into_iter().filter(|&(_, count)| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::networks::Network;

    #[test]
    fn tiles_cover_the_whole() {
        assert_eq!(tiles(7, 3).collect::<Vec<_>>(), [(3, 2), (1, 1)]);
        assert_eq!(tiles(6, 3).collect::<Vec<_>>(), [(3, 2)]);
        assert_eq!(tiles(2, 3).collect::<Vec<_>>(), [(2, 1)]);
    }

    #[test]
    fn a_misfit_names_the_layer_and_the_resource() {
        let layer = &Network::AlexNet.layers()[2];
        let good = Mapping { m: 64, n: 4, e: 13, p: 16, q: 4, r: 1, t: 4 };
        let chip = Architecture::default();
        good.check(layer, 4, &chip).unwrap();
        for (mapping, problem) in [
            (Mapping { n: 5, ..good }, "n=5: there are 1 to 4 images of the batch"),
            (Mapping { p: 0, ..good }, "p=0: there are 1 to 64 filters of m"),
            (Mapping { q: 5, ..good }, "input scratchpad too small: q S = 5 x 3 needs 15 words, there are 12"),
            (
                Mapping { p: 19, t: 3, ..good },
                "filter scratchpad too small: p q S = 19 x 4 x 3 needs 228 words, there are 224",
            ),
            (Mapping { p: 25, q: 2, t: 2, ..good }, "partial-sum scratchpad too small: p needs 25 words, there are 24"),
            (
                Mapping { m: 96, ..good },
                "global buffer too small: inputs 3600 + partial sums 64896 needs 68496 words, there are 51200",
            ),
            (
                Mapping { r: 2, ..good },
                "filter part of the global buffer too small: filters needs 4608 words, there are 4096",
            ),
            (Mapping { r: 3, q: 2, t: 2, ..good }, "array too small: r t = 6 sets of 3x13, the 12x14 PEs hold 4"),
        ] {
            let error = mapping.check(layer, 4, &chip).unwrap_err().to_string();
            assert_eq!(error, format!("layer CONV3: {problem}"));
        }
    }
}
