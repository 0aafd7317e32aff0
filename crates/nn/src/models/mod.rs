//! The models by name.

mod lenet5;

use crate::model::Model;

/// A model that can be asked for by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// LeNet-5 for 32x32 grey images (LeCun et al., "Gradient-based learning applied to document recognition", 1998).
    LeNet5,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 1] = [Self::LeNet5];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::LeNet5 => "lenet5",
        }
    }

    /// The model with room for `batch` images at once, its parameters all zero.
    pub fn build(self, batch: usize) -> Model {
        match self {
            Self::LeNet5 => lenet5::build(batch),
        }
    }
}
