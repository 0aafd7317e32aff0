//! What follows a convolution, done to the sums of a panel before they leave the cache.

use ringstep_cpu::{Simd, Vector, kernels};

use crate::kernels::matrix::MatrixMut;
use crate::kernels::pack::PANEL;
use crate::kernels::tanh::tanh;

/// What is done to a sum before it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    None,
    Relu,
    Tanh,
}

/// What happens to the sums of a panel.
#[derive(Clone, Copy)]
pub(in super::super) struct Epilogue<'a> {
    pub bias: &'a [f32; PANEL],
    /// The panel's columns of what is added to the first image's outputs and the following; pixels are `stride` apart.
    pub residual: Option<&'a [f32]>,
    pub stride: usize,
    pub activation: Activation,
    /// Height and width of the map, if squares of 2x2 become their largest number.
    pub pool: Option<[usize; 2]>,
}

/// The larger of two numbers, as max pooling has it: what is not a number wins, so that it is seen.
#[inline(always)]
pub(in super::super) fn larger<V: Vector>(one: V, other: V) -> V {
    let larger = other.where_greater(one, other, one);
    other.where_equal(other, larger, other)
}

impl Epilogue<'_> {
    /// What comes of a sum, or of the largest of several, to which the residual has been added.
    #[inline(always)]
    pub fn finish<S: Simd>(&self, simd: S, sum: S::Vector, bias: S::Vector) -> S::Vector {
        let sum = sum + bias;
        match self.activation {
            Activation::None => sum,
            Activation::Relu => simd.zero().max(sum),
            Activation::Tanh => tanh(simd, sum),
        }
    }

    /// What is added to some columns of a pixel.
    ///
    /// # Safety
    /// The residual has that pixel, and `count` columns of it from `column` on.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub unsafe fn residual<S: Simd>(&self, simd: S, pixel: usize, column: usize, count: usize) -> S::Vector {
        match self.residual {
            None => simd.zero(),
            Some(residual) => {
                let from = residual.as_ptr().wrapping_add(pixel * self.stride + column);
                // SAFETY: the caller's promise.
                unsafe { if count >= S::LANES { simd.load(from) } else { simd.load_some(from, count) } }
            }
        }
    }
}

kernels! {
    /// The outputs of a panel from its sums, which stand pixel after pixel.
    pub fn finish_rows<S>(simd: S, sums: &[f32], epilogue: Epilogue<'_>, to: &mut MatrixMut<'_>) {
        let ([pixels, columns, stride], start) = (to.size(), to.as_mut_ptr());
        // Without pooling a map is as good as a row of pixels, each of which is a square of its own.
        let ([height, width], side) = match epilogue.pool {
            Some(map) => (map, 2),
            None => ([1, pixels], 1),
        };
        let [tall, wide] = [height / side, width / side];
        let images = pixels.checked_div(tall * wide).unwrap_or(0);
        assert!(columns <= PANEL && images * height * width * PANEL <= sums.len());
        let end = (images * height * width).checked_sub(1).map_or(0, |last| last * epilogue.stride + columns);
        assert!(epilogue.residual.is_none_or(|residual| end <= residual.len()));
        for lane in (0..columns).step_by(S::LANES) {
            let count = columns - lane;
            // SAFETY: there is a number for each column of a panel.
            let bias = unsafe { simd.load(epilogue.bias.as_ptr().add(lane)) };
            for pixel in 0..images * tall * wide {
                let (image, y, x) = (pixel / (tall * wide), pixel / wide % tall, pixel % wide);
                let first = (image * height + y * side) * width + x * side;
                // SAFETY: the assertions above.
                unsafe {
                    let at = |pixel: usize| sums.as_ptr().add(pixel * PANEL + lane);
                    let mut best = simd.load(at(first)) + epilogue.residual(simd, first, lane, count);
                    for other in 1..side * side {
                        let pixel = first + other / side * width + other % side;
                        best = larger(best, simd.load(at(pixel)) + epilogue.residual(simd, pixel, lane, count));
                    }
                    let value = epilogue.finish(simd, best, bias);
                    let to = start.add(pixel * stride + lane);
                    if count >= S::LANES { simd.store(to, value) } else { simd.store_some(to, count, value) };
                }
            }
        }
    }
}
