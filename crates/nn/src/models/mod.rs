//! The networks by name, with PyTorch's names for their weights.

mod cnn;
mod lenet5;
mod mlp;
mod resnet;
mod vgg11;

use crate::network::{Kind, Layer, Network, Pair};

/// A network that can be asked for by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// LeNet-5 for 32x32 grey images (LeCun et al., "Gradient-based learning applied to document recognition", 1998).
    LeNet5,
    /// VGG-11 with batch norm for CIFAR-10 (Simonyan and Zisserman, ICLR 2015; torchvision's `vgg11_bn` with one
    /// linear layer at the end).
    Vgg11,
    /// ResNet-18 in its form for CIFAR-10: a 3x3 stem and no first pool (He et al., CVPR 2016).
    ResNet18,
    /// ResNet-20 for CIFAR-10, with 1x1 convolutions where a shortcut changes its shape (He et al., CVPR 2016).
    ResNet20,
    /// A small network for CIFAR-10: two convolutions, three linear layers.
    Cnn,
    /// The same without biases, for quantization.
    CnnWithoutBias,
    /// Three linear layers for 32x32 grey images.
    Mlp,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::LeNet5, Self::Vgg11, Self::ResNet18, Self::ResNet20, Self::Cnn, Self::CnnWithoutBias, Self::Mlp];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::LeNet5 => "lenet5",
            Self::Vgg11 => "vgg11",
            Self::ResNet18 => "resnet18",
            Self::ResNet20 => "resnet20",
            Self::Cnn => "cnn",
            Self::CnnWithoutBias => "cnn-without-bias",
            Self::Mlp => "mlp",
        }
    }

    /// Its layers.
    pub fn network(self) -> Network {
        match self {
            Self::LeNet5 => lenet5::network(),
            Self::Vgg11 => vgg11::network(),
            Self::ResNet18 => resnet::resnet18(),
            Self::ResNet20 => resnet::resnet20(),
            Self::Cnn => cnn::network(true),
            Self::CnnWithoutBias => cnn::network(false),
            Self::Mlp => mlp::network(),
        }
    }
}

/// A convolution with square filters and no padding.
fn conv(name: &str, filters: usize, kernel: usize, bias: bool) -> Layer {
    let (stride, padding) = (Pair::Both(1), Pair::Both(0));
    Layer::new(name, Kind::Conv { filters, kernel: Pair::Both(kernel), stride, padding, bias })
}

fn linear(name: &str, outputs: usize, bias: bool) -> Layer {
    Layer::new(name, Kind::Linear { outputs, bias })
}

/// A layer without weights needs no name.
fn plain(kind: Kind) -> Layer {
    Layer::new("", kind)
}

#[cfg(test)]
mod tests {
    use ringstep_cpu::Level;

    use super::*;
    use crate::Model;
    use crate::team::Team;

    #[test]
    fn every_network_has_as_many_parameters_as_it_should() {
        // Counted by PyTorch: sum(p.numel() for p in model.parameters()).
        let counts = [61_706, 9_231_114, 11_173_962, 272_474, 62_006, 61_770, 296_586];
        for (architecture, count) in Architecture::ALL.into_iter().zip(counts) {
            let mut model = Model::new(&architecture.network(), 1, Team::new(1, Level::best())).unwrap();
            assert_eq!(model.values_mut().len(), count, "{}", architecture.name());
        }
    }
}
