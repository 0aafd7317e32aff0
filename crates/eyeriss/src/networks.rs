//! The layers of well-known networks, as plain lists. Layers without arithmetic on weights (pooling, activations) are
//! not in them: the accelerator does not run them.

use crate::layer::Layer;

/// A network that can be asked for by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// Krizhevsky et al., 2012, with the two groups of the original; input 227x227.
    AlexNet,
    /// Simonyan and Zisserman, 2014; input 224x224.
    Vgg16,
    /// Its smallest sibling, in the form for 32x32 images with one linear layer.
    Vgg11,
    /// LeCun et al., 1998, in the form that `ringstep train` trains; input 32x32.
    LeNet5,
    /// He et al., 2015; input 224x224.
    ResNet18,
}

impl Network {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::AlexNet, Self::Vgg16, Self::Vgg11, Self::LeNet5, Self::ResNet18];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::AlexNet => "alexnet",
            Self::Vgg16 => "vgg16",
            Self::Vgg11 => "vgg11",
            Self::LeNet5 => "lenet5",
            Self::ResNet18 => "resnet18",
        }
    }

    /// Its layers, first to last.
    pub fn layers(self) -> Vec<Layer> {
        match self {
            Self::AlexNet => alexnet(),
            Self::Vgg16 => vgg16(),
            Self::Vgg11 => vgg11(),
            Self::LeNet5 => lenet5(),
            Self::ResNet18 => resnet18(),
        }
    }
}

fn alexnet() -> Vec<Layer> {
    vec![
        Layer::convolution("CONV1", 3, 227, 96, 11, 0).stride(4),
        Layer::convolution("CONV2", 96, 27, 256, 5, 2).groups(2),
        Layer::convolution("CONV3", 256, 13, 384, 3, 1),
        Layer::convolution("CONV4", 384, 13, 384, 3, 1).groups(2),
        Layer::convolution("CONV5", 384, 13, 256, 3, 1).groups(2),
        Layer::linear("FC1", 256, 6, 4096),
        Layer::linear("FC2", 4096, 1, 4096),
        Layer::linear("FC3", 4096, 1, 1000),
    ]
}

/// Blocks of 3x3 convolutions; the size is halved after each.
fn vgg(input: usize, blocks: &[&[usize]]) -> Vec<Layer> {
    let (mut size, mut channels) = (input, 3);
    let mut layers = Vec::new();
    for (block, filters) in blocks.iter().enumerate() {
        for (index, &filters) in filters.iter().enumerate() {
            let name = format!("CONV{}-{}", block + 1, index + 1);
            layers.push(Layer::convolution(&name, channels, size, filters, 3, 1));
            channels = filters;
        }
        size /= 2;
    }
    layers
}

fn vgg16() -> Vec<Layer> {
    let mut layers = vgg(224, &[&[64; 2], &[128; 2], &[256; 3], &[512; 3], &[512; 3]]);
    layers.extend([
        Layer::linear("FC1", 512, 7, 4096),
        Layer::linear("FC2", 4096, 1, 4096),
        Layer::linear("FC3", 4096, 1, 1000),
    ]);
    layers
}

fn vgg11() -> Vec<Layer> {
    let mut layers = vgg(32, &[&[64], &[128], &[256; 2], &[512; 2], &[512; 2]]);
    layers.push(Layer::linear("classifier", 512, 1, 10));
    layers
}

fn lenet5() -> Vec<Layer> {
    vec![
        Layer::convolution("conv1", 1, 32, 6, 5, 0),
        Layer::convolution("conv2", 6, 14, 16, 5, 0),
        Layer::convolution("conv3", 16, 5, 120, 5, 0),
        Layer::linear("fc1", 120, 1, 84),
        Layer::linear("fc2", 84, 1, 10),
    ]
}

fn resnet18() -> Vec<Layer> {
    let mut layers = vec![Layer::convolution("conv1", 3, 224, 64, 7, 3).stride(2)];
    let (mut size, mut channels) = (56, 64);
    for (stage, filters) in [64, 128, 256, 512].into_iter().enumerate() {
        let name = |block: usize, part: &str| format!("layer{}.{block}.{part}", stage + 1);
        for block in 0..2 {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            layers.push(Layer::convolution(&name(block, "conv1"), channels, size, filters, 3, 1).stride(stride));
            let shrunk = size / stride;
            layers.push(Layer::convolution(&name(block, "conv2"), filters, shrunk, filters, 3, 1));
            if stride == 2 {
                layers.push(Layer::convolution(&name(block, "downsample"), channels, size, filters, 1, 0).stride(2));
            }
            (size, channels) = (shrunk, filters);
        }
    }
    layers.push(Layer::linear("fc", 512, 1, 1000));
    layers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Million MACs an image of the convolutions and of all layers: those that the papers and PyTorch's counters give.
    #[test]
    fn the_networks_have_as_many_macs_as_published() {
        for (network, convolutions, all) in [
            (Network::AlexNet, 665.8, 724.4),
            (Network::Vgg16, 15_346.6, 15_470.3),
            (Network::Vgg11, 152.76, 152.77),
            (Network::LeNet5, 0.4056, 0.4165),
            (Network::ResNet18, 1_813.6, 1_814.1),
        ] {
            let layers = network.layers();
            layers.iter().for_each(|layer| layer.validate().unwrap());
            let millions = |keep: fn(&Layer) -> bool| {
                layers.iter().filter(|layer| keep(layer)).map(|layer| layer.macs(1)).sum::<u64>() as f64 / 1e6
            };
            for (counted, published) in
                [(millions(|layer| !layer.fully_connected), convolutions), (millions(|_| true), all)]
            {
                assert!((counted - published).abs() < 0.001 * published, "{}: {counted}", network.name());
            }
        }
    }

    /// What comes out of a layer is what the next takes, up to pooling.
    #[test]
    fn channels_follow_each_other() {
        for network in [Network::AlexNet, Network::Vgg16, Network::Vgg11, Network::LeNet5] {
            for pair in network.layers().windows(2) {
                assert_eq!(pair[0].filters, pair[1].channels, "{}: {}", network.name(), pair[1].name);
            }
        }
    }
}
