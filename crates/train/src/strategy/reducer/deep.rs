//! Deep gradient compression: [gathered codes](super::gathered) that hold what has accumulated.

use ringstep_cpu::Level;
use ringstep_nn::kernels::rows::sum_of_squares;
use ringstep_nn::state::State;

use super::gathered::Gathering;
use super::{Compressor, Loss, Trouble, Wire};
use crate::compress::dgc::{Dgc, WarmUp, clip};
use crate::compress::{Codec, Key};

/// Sends the largest of what has accumulated, fewer from epoch to epoch.
pub struct Deep {
    level: Level,
    codes: Gathering<Dgc>,
    warm_up: WarmUp,
    /// Steps of an epoch.
    epoch: usize,
    /// The largest norm of all ranks' gradients of a slice together. A whole gradient's is not known when its first slices
    /// are sent.
    norm: Option<f64>,
}

impl Deep {
    pub fn new(level: Level, dgc: Dgc, warm_up: WarmUp, epoch: usize, norm: Option<f64>) -> Self {
        Self { level, codes: Gathering::new(level, dgc), warm_up, epoch, norm }
    }
}

impl Compressor for Deep {
    fn sum(&mut self, wire: &mut Wire<'_>, key: Key, values: &mut [f32], left: &mut [f32]) -> Result<Loss, Trouble> {
        let Gathering { codec, code, .. } = &mut self.codes;
        if let Some(norm) = self.norm {
            clip(self.level, values, norm, wire.world());
        }
        codec.set_share(self.warm_up.share(key.step as usize / self.epoch));
        codec.encode(key, values, code);
        left.copy_from_slice(codec.unsent(key.bucket, values.len()));
        // What was sent and what is left have no place in common.
        values.fill(0.0);
        codec.add(key, code, values).map_err(|problem| Trouble::Malformed { peer: key.rank as usize, problem })?;
        let [lost, sent] = [&*left, &*values].map(|numbers| sum_of_squares(self.level, numbers));
        self.codes.sum_codes(wire, key, values)?;
        Ok(Loss { lost, all: lost + sent })
    }

    fn state(&mut self, state: &mut State<'_>) {
        self.codes.codec.state(state);
    }
}
