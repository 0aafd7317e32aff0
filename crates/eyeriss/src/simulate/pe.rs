//! One PE: three scratchpads and a multiplier.

use std::collections::VecDeque;

use crate::counts::Accesses;

/// One PE of a set. It works through its filters and channels one MAC a cycle.
pub struct Pe {
    filters: usize,
    width: usize,
    /// Row of each filter for each channel. // p,q,S
    weights: Vec<i64>,
    /// The window of the input. // q of S
    window: Vec<VecDeque<i64>>,
    /// What has arrived for the next window. // q
    arrived: Vec<Vec<i64>>,
    /// Partial sums. // p
    pub sums: Vec<i64>,
    /// MACs done in this step.
    done: usize,
}

impl Pe {
    /// An empty one for so many filters and channels of rows of this width.
    pub fn new(filters: usize, channels: usize, width: usize) -> Self {
        Self {
            filters,
            width,
            weights: vec![0; filters * channels * width],
            window: vec![VecDeque::new(); channels],
            arrived: vec![Vec::new(); channels],
            sums: vec![0; filters],
            done: 0,
        }
    }

    /// A weight arrives.
    pub fn put_weight(&mut self, filter: usize, channel: usize, tap: usize, value: i64, counts: &mut Accesses) {
        let channels = self.window.len();
        self.weights[(filter * channels + channel) * self.width + tap] = value;
        counts.scratchpad.filter.writes += 1;
    }

    /// A pixel of the next window arrives.
    pub fn put_pixel(&mut self, channel: usize, value: i64, counts: &mut Accesses) {
        self.arrived[channel].push(value);
        counts.scratchpad.input.writes += 1;
    }

    /// Slides the window over what has arrived.
    pub fn slide(&mut self) {
        for (window, arrived) in self.window.iter_mut().zip(&mut self.arrived) {
            window.drain(..window.len().min(arrived.len()));
            window.extend(arrived.drain(..));
            assert_eq!(window.len(), self.width, "a window is whole");
        }
        self.done = 0;
    }

    /// Whether the step's MACs are done.
    pub fn is_done(&self) -> bool {
        self.done == self.weights.len()
    }

    /// One cycle: the next MAC, filters innermost, so that a pixel meets all of them in turn.
    pub fn work(&mut self, counts: &mut Accesses) {
        let (filter, rest) = (self.done % self.filters, self.done / self.filters);
        let (channel, tap) = (rest / self.width, rest % self.width);
        let channels = self.window.len();
        let product = self.window[channel][tap] * self.weights[(filter * channels + channel) * self.width + tap];
        counts.scratchpad.input.reads += 1;
        counts.scratchpad.filter.reads += 1;
        if rest == 0 {
            self.sums[filter] = product;
        } else {
            self.sums[filter] += product;
            counts.scratchpad.partial_sum.reads += 1;
        }
        counts.scratchpad.partial_sum.writes += 1;
        self.done += 1;
    }
}
