//! The inner loops.

pub mod correlate;
pub mod cross_entropy;
pub mod dot_tiles;
pub mod matmul;
pub mod matrix;
pub mod pack;
pub mod peak;
pub mod planes;
pub mod requantize;
pub mod rows;
pub mod tanh;
pub mod transpose;
pub mod windows;

use ringstep_cpu::Simd;

/// Where something ends that is `more` long and stands so many times, so far apart, in each direction; a panic if that cannot be
/// counted. What is compared with a slice's length before pointers are used must not wrap.
pub(crate) fn end(directions: &[(usize, usize)], more: usize) -> usize {
    let reach = |sum: usize, &(count, stride): &(usize, usize)| {
        count.saturating_sub(1).checked_mul(stride).and_then(|reach| reach.checked_add(sum))
    };
    directions.iter().try_fold(more, reach).expect("sizes that can be counted")
}

/// The most rows of [`pack::PANEL`] sums that leave four registers for operands, as far as [`by_height`] goes.
pub(crate) const fn tallest<S: Simd>() -> usize {
    let rows = (S::REGISTERS - 4) / (pack::PANEL / S::LANES);
    match rows {
        10.. => 10,
        6..10 => 6,
        _ => rows,
    }
}

/// Does something for each number below a constant, at most 24, without a loop: whether the compiler unrolls one it decides by
/// its length, and sums that are indexed by a variable are in memory, not in registers.
macro_rules! unrolled {
    ($row:ident < $count:expr, $body:block) => {
        unrolled!(@each $row, $count, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23)
    };
    (@each $row:ident, $count:expr, $body:block, $($index:literal)+) => {
        $(if $index < $count {
            let $row: usize = $index;
            $body
        })+
    };
}
pub(crate) use unrolled;

/// Calls a tile of so many rows, at most [`tallest`]: a function that is generic over the instruction set and this number.
macro_rules! by_height {
    ($tall:expr, $tile:ident::<$set:ident>($($argument:expr),* $(,)?)) => {
        match $tall {
            1 => $tile::<$set, 1>($($argument),*),
            2 => $tile::<$set, 2>($($argument),*),
            3 => $tile::<$set, 3>($($argument),*),
            4 => $tile::<$set, 4>($($argument),*),
            5 => $tile::<$set, 5>($($argument),*),
            6 => $tile::<$set, 6>($($argument),*),
            7 if $crate::kernels::tallest::<$set>() == 10 => $tile::<$set, 7>($($argument),*),
            8 if $crate::kernels::tallest::<$set>() == 10 => $tile::<$set, 8>($($argument),*),
            9 if $crate::kernels::tallest::<$set>() == 10 => $tile::<$set, 9>($($argument),*),
            10 if $crate::kernels::tallest::<$set>() == 10 => $tile::<$set, 10>($($argument),*),
            _ => unreachable!("a tile that no registers hold"),
        }
    };
}
pub(crate) use by_height;
