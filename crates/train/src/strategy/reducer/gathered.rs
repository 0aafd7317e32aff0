//! Codes whose sum is no code: everybody gets everybody's and adds them up in the order of the ranks, so that all find the
//! same bits. Each rank sends its code p-1 times.

use ringstep_comm::Gathered;
use ringstep_cpu::Level;

use super::{Compressor, Loss, Trouble, Wire};
use crate::compress::error_feedback::leave;
use crate::compress::{Codec, Key};

/// Gathers codes.
pub struct Gathering<C> {
    level: Level,
    pub codec: C,
    /// This rank's.
    pub code: Vec<u8>,
    /// Everybody's.
    codes: Gathered,
}

impl<C: Codec> Gathering<C> {
    pub fn new(level: Level, codec: C) -> Self {
        Self { level, codec, code: Vec::new(), codes: Gathered::default() }
    }

    /// `values` becomes the sum of what the codes of all ranks stand for.
    pub fn sum_codes(&mut self, wire: &mut Wire<'_>, key: Key, values: &mut [f32]) -> Result<(), Trouble> {
        wire.all_gather(&self.code, self.codec.limit(values.len()), &mut self.codes)?;
        values.fill(0.0);
        for (peer, code) in self.codes.parts().enumerate() {
            let key = Key { rank: peer as u32, ..key };
            self.codec.add(key, code, values).map_err(|problem| Trouble::Malformed { peer, problem })?;
        }
        Ok(())
    }
}

impl<C: Codec> Compressor for Gathering<C> {
    fn sum(&mut self, wire: &mut Wire<'_>, key: Key, values: &mut [f32], left: &mut [f32]) -> Result<Loss, Trouble> {
        self.codec.encode(key, values, &mut self.code);
        leave(self.level, values, left, |sent| {
            // What this rank refuses of its own all refuse where they add it up, this rank too.
            let _ = self.codec.add(key, &self.code, sent);
        });
        let loss = Loss::of(self.level, values, left);
        self.sum_codes(wire, key, values)?;
        Ok(loss)
    }
}
