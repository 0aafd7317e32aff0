//! What a model holds and takes of memory, found without taking any.

use crate::layout::{Node, Parameter, lay_out, place};
use crate::network::{Network, NetworkError};

/// The bytes of a model's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The parameters, and the statistics that are kept with them.
    pub parameters: usize,
    /// Their gradients.
    pub gradients: usize,
    /// What comes out of the layers, and its gradients; those that are not needed at the same time share their place.
    pub activations: usize,
    /// Temporary room, as large as the layer that needs most.
    pub workspace: usize,
}

impl Memory {
    /// All of them.
    pub fn total(&self) -> usize {
        self.parameters + self.gradients + self.activations + self.workspace
    }
}

impl Network {
    /// The tensors that a model of it has, in the order of the layers.
    pub fn parameters(&self) -> Result<Vec<Parameter>, NetworkError> {
        let mut nodes: Vec<Node> = self.wire(1)?.into_iter().map(Node::new).collect();
        Ok(lay_out(&mut nodes).0)
    }

    /// What a model of it takes, with room for `batch` images at once, on `threads` threads.
    pub fn memory(&self, batch: usize, threads: usize) -> Result<Memory, NetworkError> {
        let mut nodes: Vec<Node> = self.wire(batch)?.into_iter().map(Node::new).collect();
        let (_, values, statistics) = lay_out(&mut nodes);
        let steps = || nodes.iter().map(|node| &node.wired.step);
        let workspace = steps().map(|step| step.workspace(batch, threads)).max().unwrap_or(0);
        let kept: usize = steps().map(|step| step.keeps(batch)).sum();
        let arena = place(&mut nodes, batch);
        let bytes = |numbers: usize| numbers * size_of::<f32>();
        Ok(Memory {
            parameters: bytes(values + statistics),
            gradients: bytes(values),
            activations: bytes(arena) + kept,
            workspace: bytes(workspace),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::Architecture;

    #[test]
    fn weights_do_not_depend_on_the_batch_and_activations_do() {
        let network = Architecture::LeNet5.network();
        let [one, many] = [1, 1000].map(|batch| network.memory(batch, 1).unwrap());
        assert_eq!((one.parameters, one.gradients), (61_706 * 4, 61_706 * 4));
        assert_eq!((many.parameters, many.gradients), (one.parameters, one.gradients));
        assert_eq!(many.activations, 1000 * one.activations);
        let [alone, together] = [1, 4].map(|threads| Architecture::Vgg11.network().memory(8, threads).unwrap());
        assert!(together.workspace > alone.workspace);
    }

    #[test]
    fn a_network_knows_the_tensors_of_its_model() {
        for architecture in [Architecture::LeNet5, Architecture::ResNet20] {
            let network = architecture.network();
            let model = crate::Model::new(&network, 1, crate::team::Team::new(1, ringstep_cpu::Level::best())).unwrap();
            assert_eq!(network.parameters().unwrap(), model.parameters());
        }
    }

    /// Terabytes are counted, not taken.
    #[test]
    fn more_than_any_machine_has_is_counted_all_the_same() {
        let memory = Architecture::Vgg11.network().memory(10_000_000, 8).unwrap();
        assert!(memory.total() > 1 << 40, "{memory:?}");
    }
}
