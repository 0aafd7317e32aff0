//! Codes whose sum is no code, and which are too long to be sent to everybody: each rank sums 1/p of the numbers and encodes
//! the sums again. That sends as many numbers as a ring's all-reduce does, where sums would be encoded p-1 times on the way.

use ringstep_comm::Gathered;
use ringstep_comm::collective::chunk;
use ringstep_cpu::Level;

use super::{Compressor, Loss, Trouble, Wire};
use crate::compress::error_feedback::leave;
use crate::compress::{Codec, Key};

/// Exchanges codes of chunks, then gathers codes of their sums.
pub struct InHalves<C> {
    level: Level,
    codec: C,
    /// This rank's codes, one for the owner of each chunk.
    out: Vec<Vec<u8>>,
    /// That of the sums of this rank's chunk.
    sums: Vec<u8>,
    codes: Gathered,
}

impl<C: Codec> InHalves<C> {
    pub fn new(level: Level, codec: C) -> Self {
        Self { level, codec, out: Vec::new(), sums: Vec::new(), codes: Gathered::default() }
    }
}

impl<C: Codec> Compressor for InHalves<C> {
    fn sum(&mut self, wire: &mut Wire<'_>, key: Key, values: &mut [f32], left: &mut [f32]) -> Result<Loss, Trouble> {
        let Self { level, codec, out, sums, codes } = self;
        let (world, length, own) = (wire.world(), values.len(), key.rank as usize);
        let chunk = |owner: usize| chunk(length, world, owner);
        // A rank makes a code for each owner, and one of its sums.
        let of = |rank: usize, part: usize| Key { rank: rank as u32, part: part as u32, ..key };
        let limit = (0..world).map(|owner| codec.limit(chunk(owner).len())).max().unwrap_or(0);

        out.resize_with(world, Vec::new);
        for (owner, code) in out.iter_mut().enumerate() {
            codec.encode(of(own, owner), &values[chunk(owner)], code);
        }
        leave(*level, values, left, |sent| {
            for (owner, code) in out.iter().enumerate() {
                // What this rank refuses of its own the owner refuses, too.
                let _ = codec.add(of(own, owner), code, &mut sent[chunk(owner)]);
            }
        });
        let loss = Loss::of(*level, values, left);

        wire.exchange(out, limit, codes)?;
        let mine = &mut values[chunk(own)];
        mine.fill(0.0);
        for (peer, code) in codes.parts().enumerate() {
            codec.add(of(peer, own), code, mine).map_err(|problem| Trouble::Malformed { peer, problem })?;
        }
        codec.encode(of(own, world), mine, sums);
        wire.all_gather(sums, limit, codes)?;
        values.fill(0.0);
        for (peer, code) in codes.parts().enumerate() {
            let sums = &mut values[chunk(peer)];
            codec.add(of(peer, world), code, sums).map_err(|problem| Trouble::Malformed { peer, problem })?;
        }
        Ok(loss)
    }
}
