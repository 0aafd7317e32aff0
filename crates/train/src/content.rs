//! What goes over the network besides gradients.

use std::iter::Sum;

use ringstep_nn::state::State;
use serde::{Deserialize, Serialize};

/// What an exchange is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Gradients, as they are or as codes, with what announces them to a server.
    Gradients,
    /// Parameters, or differences of models.
    Parameters,
    /// Batch norm's.
    Statistics,
    /// Images and their labels.
    Images,
    /// Requests, and how many images a worker has seen.
    Control,
}

/// Bytes that were put on the way, by what they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Gradients.
    pub gradients: u64,
    /// Parameters.
    pub parameters: u64,
    /// Batch norm's statistics.
    pub statistics: u64,
    /// Images and their labels.
    pub images: u64,
    /// Requests and the like, and the headers and the padding of all messages.
    pub control: u64,
}

impl Sent {
    /// To go on with later.
    pub(crate) fn state(&mut self, state: &mut State<'_>) {
        let Self { gradients, parameters, statistics, images, control } = self;
        let all = [
            ("gradients", gradients),
            ("parameters", parameters),
            ("statistics", statistics),
            ("images", images),
            ("control", control),
        ];
        all.into_iter().for_each(|(name, bytes)| state.number(name, bytes));
    }

    /// Adds bytes of data that took so many on the way.
    pub(crate) fn add(&mut self, content: Content, [payload, wire]: [u64; 2]) {
        *match content {
            Content::Gradients => &mut self.gradients,
            Content::Parameters => &mut self.parameters,
            Content::Statistics => &mut self.statistics,
            Content::Images => &mut self.images,
            Content::Control => &mut self.control,
        } += payload;
        self.control += wire - payload;
    }

    /// Each kind by its name.
    pub fn by_name(&self) -> [(&'static str, u64); 5] {
        let Self { gradients, parameters, statistics, images, control } = *self;
        [
            ("gradients", gradients),
            ("parameters", parameters),
            ("batch-norm statistics", statistics),
            ("images", images),
            ("control", control),
        ]
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.by_name().iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Of several ranks.
impl Sum for Sent {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, more| Self {
            gradients: sum.gradients + more.gradients,
            parameters: sum.parameters + more.parameters,
            statistics: sum.statistics + more.statistics,
            images: sum.images + more.images,
            control: sum.control + more.control,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_control_whatever_they_stand_before() {
        let mut sent = Sent::default();
        sent.add(Content::Gradients, [100, 132]);
        sent.add(Content::Images, [10, 42]);
        sent.add(Content::Control, [0, 32]);
        assert_eq!(sent, Sent { gradients: 100, images: 10, control: 32 + 32 + 32, ..Sent::default() });
        assert_eq!(sent.total(), 132 + 42 + 32);
        assert_eq!([sent, sent].into_iter().sum::<Sent>().total(), 2 * sent.total());
    }
}
