//! Between channels last and a plane for each channel.
//!
//! Eight pixels and eight channels are a square that is transposed in registers. Where there are fewer channels than that,
//! what is read or written beyond a pixel belongs to the next one, whose turn is later. Planes need [`SQUARE`] numbers of room
//! after their end.

use ringstep_cpu::{Simd, along, kernels};

use super::end;
use super::transpose::{SQUARE, copy_transposed};

// The loops are written for any number of channels, and compiled once more for two common ones: colours, and the filters
// of LeNet.
kernels! {
    /// Lays a map out in planes whose lines begin `pitch` apart: `planes[channel * plane + y * pitch + x] = map[y][x][channel]`.
    /// [`SQUARE`] zeros follow each line, as far as the next does not overwrite them.
    pub fn to_planes<S>(simd: S, planes: &mut [f32], plane: usize, pitch: usize, map: &[f32], width: usize, channels: usize) {
        // Without gaps between them, all lines are one.
        let width = if pitch == width { map.len() / channels } else { width };
        match channels {
            3 => lines_to_planes(simd, planes, plane, pitch, map, width, 3),
            6 => lines_to_planes(simd, planes, plane, pitch, map, width, 6),
            _ => lines_to_planes(simd, planes, plane, pitch, map, width, channels),
        }
    }

    /// The way back, for planes without gaps between lines, with room after their end.
    pub fn from_planes<S>(simd: S, map: &mut [f32], channels: usize, planes: &[f32], plane: usize) {
        match channels {
            3 => line_from_planes(simd, map, 3, planes, plane),
            6 => line_from_planes(simd, map, 6, planes, plane),
            _ => line_from_planes(simd, map, channels, planes, plane),
        }
    }
}

#[inline(always)]
#[allow(unsafe_code)]
fn lines_to_planes<S: Simd>(
    simd: S,
    planes: &mut [f32],
    plane: usize,
    pitch: usize,
    map: &[f32],
    width: usize,
    channels: usize,
) {
    let height = map.len() / (width * channels);
    assert!(end(&[(channels, plane), (height, pitch), (2, width)], SQUARE) <= planes.len());
    for y in 0..height {
        let line = &map[y * width * channels..];
        if channels == 1 {
            copy(simd, &mut planes[y * pitch..][..width], &line[..width]);
        } else {
            for x in (0..width).step_by(SQUARE) {
                for first in (0..channels).step_by(SQUARE) {
                    let (from, to) = (x * channels + first, first * plane + y * pitch + x);
                    let rows = SQUARE.min(channels - first);
                    if from + (SQUARE - 1) * channels + SQUARE <= line.len() {
                        // SAFETY: the condition here, and the assertion above.
                        unsafe {
                            let (from, to) = (line.as_ptr().add(from), planes.as_mut_ptr().add(to));
                            simd.transpose_square(from, channels, SQUARE, to, plane, rows);
                        }
                    } else {
                        copy_transposed(&line[from..], channels, SQUARE.min(width - x), &mut planes[to..], plane, rows);
                    }
                }
            }
        }
        for channel in 0..channels {
            planes[channel * plane + y * pitch + width..][..SQUARE].fill(0.0);
        }
    }
}

/// Lines are short: a call would cost more than the copy.
#[inline(always)]
fn copy<S: Simd>(simd: S, to: &mut [f32], from: &[f32]) {
    along!(simd, to.len(), |at| {
        at.store(to, at.load(from));
    });
}

#[inline(always)]
#[allow(unsafe_code)]
fn line_from_planes<S: Simd>(simd: S, map: &mut [f32], channels: usize, planes: &[f32], plane: usize) {
    let pixels = map.len() / channels;
    assert!(end(&[(channels, plane), (2, pixels)], SQUARE) <= planes.len());
    for x in (0..pixels).step_by(SQUARE) {
        // The last channels first: what they write beyond a pixel is overwritten by the first channels of the next.
        for first in (0..channels).step_by(SQUARE).rev() {
            let (from, to) = (first * plane + x, x * channels + first);
            let rows = SQUARE.min(channels - first);
            if to + (SQUARE - 1) * channels + SQUARE <= map.len() {
                // SAFETY: the condition here, and the assertion above.
                unsafe {
                    let (from, to) = (planes.as_ptr().add(from), map.as_mut_ptr().add(to));
                    simd.transpose_square(from, plane, rows, to, channels, SQUARE);
                }
            } else {
                copy_transposed(&planes[from..], plane, rows, &mut map[to..], channels, SQUARE.min(pixels - x));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ringstep_cpu::Level;

    use super::*;

    #[test]
    fn every_number_finds_its_plane_and_its_way_back() {
        for (height, width, channels) in
            [(3, 1, 3), (2, 7, 2), (1, 8, 1), (4, 8, 8), (3, 9, 3), (28, 28, 6), (2, 13, 17), (3, 16, 9)]
        {
            let map: Vec<f32> = (0..height * width * channels).map(|at| at as f32).collect();
            for (level, pitch) in Level::available().into_iter().flat_map(|level| [(level, width), (level, width + 3)])
            {
                let plane = height * pitch + SQUARE;
                let mut planes = vec![0.0; channels * plane];
                to_planes(level, &mut planes, plane, pitch, &map, width, channels);
                for (at, &value) in map.iter().enumerate() {
                    let (pixel, channel) = (at / channels, at % channels);
                    assert_eq!(planes[channel * plane + pixel / width * pitch + pixel % width], value);
                }
                for (channel, plane) in planes.chunks_exact(plane).enumerate() {
                    for (y, line) in plane.chunks_exact(pitch).enumerate().take(height) {
                        assert!(line[width..].iter().all(|&after| after == 0.0), "{channel} {y}");
                    }
                }
                if pitch == width {
                    let mut back = vec![-1.0; map.len()];
                    from_planes(level, &mut back, channels, &planes, plane);
                    assert_eq!(back, map);
                }
            }
        }
    }
}
