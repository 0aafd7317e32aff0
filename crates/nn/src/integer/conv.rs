//! A convolution of bytes, by the algorithm that suits its shape.

use ringstep_cpu::DotLevel;
use ringstep_cpu::dots::Rescale;

use super::FixedPoint;
use super::direct::Direct;
use super::fixed::rescale;
use super::winograd::Winograd;
use super::workspace::{Room, Workspace};
use crate::kernels::dot_tiles::Sizes;
use crate::kernels::requantize::Requantize;
use crate::layers::Geometry;
use crate::team::Team;

/// What a convolution is made from.
#[derive(Debug, Clone, Copy)]
pub struct Recipe<'a> {
    /// Its sizes.
    pub geometry: Geometry,
    /// Filters. // O,KH,KW,C
    pub weights: &'a [i8],
    /// For each filter.
    pub bias: &'a [i32],
    /// What sums are multiplied by, for each filter.
    pub factors: &'a [FixedPoint],
    /// The integer, from -128 on, that stands for zero in the input.
    pub input_zero: i32,
    /// The one that stands for zero in the output.
    pub output_zero: i32,
    /// The least and the most that comes out.
    pub limits: [i32; 2],
    /// Whether each square of 2x2 outputs becomes its largest number.
    pub pooled: bool,
}

/// From the specification's integers to bytes without a sign.
pub(super) const SIGN: i32 = 128;

impl Recipe<'_> {
    /// The byte that stands for zero in the input.
    pub(super) fn zero(&self) -> u8 {
        (self.input_zero + SIGN) as u8
    }

    /// Height and width of what comes out.
    pub(super) fn output(&self) -> [usize; 2] {
        let side = if self.pooled { 2 } else { 1 };
        [self.geometry.output.height, self.geometry.output.width].map(|length| length / side)
    }

    /// How sums become bytes, for whole panels of filters.
    pub(super) fn requantize(&self, panel: usize) -> Requantize {
        let limits = self.limits.map(|limit| limit + SIGN);
        let of_filters: Vec<Rescale<i32>> =
            self.factors.iter().map(|&factor| rescale(factor, self.output_zero + SIGN, limits)).collect();
        let each = |what: &dyn Fn(&Rescale<i32>) -> i32| -> Vec<i32> {
            let mut numbers: Vec<i32> = of_filters.iter().map(what).collect();
            numbers.resize(self.factors.len().next_multiple_of(panel), 0);
            numbers
        };
        Requantize(Rescale {
            left: each(&|how| how.left),
            multiplier: each(&|how| how.multiplier),
            right: each(&|how| how.right),
            half: each(&|how| how.half),
            ties: each(&|how| how.ties),
            zero: vec![self.output_zero + SIGN],
            least: vec![limits[0]],
            most: vec![limits[1]],
        })
    }
}

/// A convolution, with its filters laid out for the instructions of this machine.
pub struct IntegerConv(Algorithm);

enum Algorithm {
    Direct(Direct),
    Winograd(Winograd),
}

/// The fewest squares of 2x2 outputs for which the larger sum is taken before it becomes a byte: with fewer there would be
/// tiles of hardly any windows.
const FEWEST_SQUARES: usize = 16;

impl IntegerConv {
    /// Lays filters out for these instructions, and for about so many images at once.
    pub fn new(recipe: Recipe<'_>, level: DotLevel, images: usize) -> Self {
        let Recipe { geometry, weights, bias, factors, .. } = recipe;
        let (count, window) = (geometry.output.channels, geometry.window());
        let all = weights.len() == count * window && bias.len() == count && factors.len() == count;
        assert!(all, "a filter is missing");
        let fast = Sizes::of(level).fast_words;
        let winograd = Winograd::new(recipe, level).filter(|winograd| fast && winograd.suits(images));
        Self(winograd.map_or_else(|| Algorithm::Direct(Direct::new(recipe, level)), Algorithm::Winograd))
    }

    /// Whether the maximum of each 2x2 outputs should be part of it, if that is what follows.
    pub fn pools(geometry: &Geometry, images: usize) -> bool {
        images * (geometry.output.height / 2) * (geometry.output.width / 2) >= FEWEST_SQUARES
    }

    /// What it is called in reports.
    pub fn algorithm(&self) -> &'static str {
        match self.0 {
            Algorithm::Direct(_) => "direct",
            Algorithm::Winograd(_) => "winograd",
        }
    }

    /// The bytes of its filters, as they are laid out, and of what belongs to them.
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Algorithm::Direct(direct) => direct.bytes(),
            Algorithm::Winograd(winograd) => winograd.bytes(),
        }
    }

    /// Room that each thread needs.
    pub fn room(&self) -> Room {
        match &self.0 {
            Algorithm::Direct(direct) => direct.room(),
            Algorithm::Winograd(winograd) => winograd.room(),
        }
    }

    /// For as many images as the slices hold. // N,H,W,C to N,OH,OW,O
    pub fn forward(&self, team: &mut Team, input: &[u8], output: &mut [u8], workspace: &mut Workspace) {
        match &self.0 {
            Algorithm::Direct(direct) => direct.forward(team, input, output, workspace),
            Algorithm::Winograd(winograd) => winograd.forward(team, input, output, workspace),
        }
    }
}
