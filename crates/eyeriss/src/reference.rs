//! A convolution as its definition has it, to compare with.

use std::ops::{AddAssign, Mul};

use crate::layer::Layer;

/// The output of a layer for one or more images. // input: N,C,H,W; filters: M,C,R,S; output: N,M,E,F
pub fn convolution<T>(layer: &Layer, input: &[T], filters: &[T]) -> Vec<T>
where
    T: Copy + Default + AddAssign + Mul<Output = T>,
{
    let (height, width) = (layer.height, layer.width);
    let image = layer.channels * height * width;
    let (filter_height, filter_width) = (layer.filter_height, layer.filter_width);
    let channels = layer.group_channels();
    let mut output = Vec::with_capacity(input.len() / image * layer.filters * layer.outputs());
    for input in input.chunks_exact(image) {
        for filter in 0..layer.filters {
            let first_channel = filter / layer.group_filters() * channels;
            let weights = &filters[filter * channels * filter_height * filter_width..];
            for y in 0..layer.output_height() {
                for x in 0..layer.output_width() {
                    let mut sum = T::default();
                    for channel in 0..channels {
                        for i in 0..filter_height {
                            for j in 0..filter_width {
                                let row = (y * layer.stride + i).checked_sub(layer.padding).filter(|&row| row < height);
                                let column = (x * layer.stride + j).checked_sub(layer.padding).filter(|&at| at < width);
                                if let (Some(row), Some(column)) = (row, column) {
                                    let pixel = input[((first_channel + channel) * height + row) * width + column];
                                    sum += pixel * weights[(channel * filter_height + i) * filter_width + j];
                                }
                            }
                        }
                    }
                    output.push(sum);
                }
            }
        }
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_convolution_that_one_can_check_by_hand() {
        let layer = Layer::convolution("conv", 1, 3, 1, 2, 0);
        let output = convolution(&layer, &[1, 3, 9, 2, 4, 1, 0, 5, 2], &[-1, 2, 1, 0]);
        assert_eq!(output, [7, 19, 6, 3]);
    }

    #[test]
    fn padding_stride_and_groups() {
        // Each filter sees its own channel; the corners of the padded input are zero.
        let layer = Layer::convolution("conv", 2, 2, 2, 3, 1).stride(2).groups(2);
        let output = convolution(&layer, &[1, 2, 3, 4, 5, 6, 7, 8], &[1; 18]);
        assert_eq!(output, [10, 26]);
    }
}
