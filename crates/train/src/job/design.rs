//! A network that is known to be buildable.

use ringstep_cpu::Level;
use ringstep_data::Shape;
use ringstep_nn::team::Team;
use ringstep_nn::{Model, Network, NetworkError};
use serde::{Deserialize, Serialize};

/// A network and what it is called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "NamedNetwork", into = "NamedNetwork")]
pub struct Design {
    /// A name, or the file that it came from.
    pub name: String,
    /// The layers; known to be buildable.
    network: Network,
    classes: usize,
}

impl Design {
    /// Checks that the network can be built.
    pub fn new(name: impl Into<String>, network: Network) -> Result<Self, NetworkError> {
        let classes = network.classes()?;
        Ok(Self { name: name.into(), network, classes })
    }

    /// The shape of an image.
    pub fn input(&self) -> Shape {
        let [height, width, channels] = self.network.input;
        Shape::new(height, width, channels)
    }

    /// How many classes it tells apart.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Whether there is batch norm in it.
    pub fn normalises(&self) -> bool {
        self.network.has_batch_norm()
    }

    /// The layers.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The model, with room for `batch` images, on the threads of this team; known to have a size.
    pub fn build(&self, batch: usize, team: Team) -> Model {
        Model::new(&self.network, batch, team).expect("its layers and its size are checked")
    }

    /// A model that holds weights and trains on one image at most.
    pub fn build_small(&self) -> Model {
        self.build(1, Team::new(1, Level::best()))
    }
}

/// A design on its way to another process, which checks it again.
#[derive(Serialize, Deserialize)]
struct NamedNetwork {
    name: String,
    network: Network,
}

impl TryFrom<NamedNetwork> for Design {
    type Error = NetworkError;

    fn try_from(NamedNetwork { name, network }: NamedNetwork) -> Result<Self, NetworkError> {
        Self::new(name, network)
    }
}

impl From<Design> for NamedNetwork {
    fn from(Design { name, network, .. }: Design) -> Self {
        Self { name, network }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::course_job;
    use super::*;

    /// Nobody can slip a network past the checks on the way.
    #[test]
    fn a_design_is_checked_again_when_it_arrives() {
        let mut line = serde_json::to_value(course_job().model).unwrap();
        line["network"]["input"] = serde_json::json!([1, 1, 1]);
        let error = serde_json::from_value::<Design>(line).unwrap_err();
        assert!(error.to_string().starts_with("layer "), "{error}");
    }
}
