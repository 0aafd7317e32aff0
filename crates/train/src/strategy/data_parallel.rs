//! DataParallel: rank 0 alone holds the model. Each step it hands a copy to the others, deals its batch out, and collects
//! the gradients; what `torch.nn.DataParallel` does with the devices of one process.

use std::time::Instant;

use ringstep_comm::overlap::Reduced;
use ringstep_comm::{Algorithm, CollectiveError, Group, Op};
use ringstep_nn::Model;

use super::{Numbers, Pass, Strategy, Synced};

/// The rank that holds the model.
const HOLDER: usize = 0;

pub struct DataParallel;

impl Strategy for DataParallel {
    fn replicate(&mut self, group: &mut Group, model: &mut Model) -> Result<(), CollectiveError> {
        group.broadcast(model.values_mut(), HOLDER)
    }

    fn backward(&mut self, group: &mut Group, model: &mut Model, pass: Pass<'_>) -> Result<Synced, CollectiveError> {
        pass.alone(model);
        let ready = Instant::now();
        group.reduce(model.gradients_mut(), Op::Sum, HOLDER)?;
        Ok(Synced::new(ready, vec![Reduced { began: ready, ended: Instant::now() }]))
    }

    fn steps_on(&self, rank: usize) -> bool {
        rank == HOLDER
    }

    fn labels(&self, _: &Model) -> Vec<String> {
        vec!["gradients to rank 0".to_owned()]
    }

    /// Up and down a tree go the gradients and the parameters. The images that rank 0 deals out are left out.
    fn predict(&self, numbers: &Numbers, model: &Model) -> f64 {
        let all = model.parameters().iter().filter(|parameter| parameter.trained).map(|p| p.range().len()).sum();
        numbers.all_reduce(Some(Algorithm::Tree), all)
    }
}
