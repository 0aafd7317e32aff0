//! What it takes to sum a slice over the workers, as plain data.

use std::ops::Range;

use ringstep_comm::collective::chunk;
use ringstep_cpu::Level;
use ringstep_nn::Parameter;

use crate::compress::dgc::Dgc;
use crate::compress::factors::{Parts, Tensor};
use crate::compress::qsgd::{Qsgd, Width};
use crate::compress::random_k::RandomK;
use crate::compress::sign::Sign;
use crate::compress::sparse::TopK;
use crate::compress::{Codec, Compression, Method};

/// A collective of all workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// An all-reduce of numbers, or of codes whose sum is a code.
    AllReduce {
        /// How many there are.
        elements: usize,
        /// The bytes of each.
        size: usize,
    },
    /// Everybody's code of so many bytes is gathered.
    AllGather {
        /// Of one worker's code.
        bytes: usize,
    },
    /// Each worker gets the others' codes of its part, and sends the code of its sums to everybody.
    InHalves {
        /// Of the codes of all parts.
        bytes: usize,
    },
    /// Nobody goes on before all have come.
    Meet,
}

impl Exchange {
    /// An all-reduce of so many numbers as they are.
    pub fn of_f32s(elements: usize) -> Self {
        Self::AllReduce { elements, size: size_of::<f32>() }
    }
}

/// What so many workers exchange to sum a slice of the flat buffer: as it is, or by sending less. `None` if how much that is
/// depends on the numbers.
pub fn exchanges(
    compression: Option<Compression>,
    parameters: &[Parameter],
    slice: Range<usize>,
    workers: usize,
) -> Option<Vec<Exchange>> {
    let (level, length) = (Level::best(), slice.len());
    let Some(Compression { method, error_feedback }) = compression else {
        return Some(vec![Exchange::of_f32s(length)]);
    };
    let gathered = |codec: &dyn Codec| vec![Exchange::AllGather { bytes: codec.limit(length) }];
    let in_halves = |codec: &dyn Codec| {
        let codes = (0..workers).map(|owner| codec.limit(chunk(length, workers, owner).len()));
        vec![Exchange::InHalves { bytes: codes.sum() }]
    };
    Some(match method {
        Method::Fp16 | Method::Bf16 => vec![Exchange::AllReduce { elements: length, size: 2 }],
        Method::Int8 => in_halves(&Qsgd::new(level, Width::Int8)),
        Method::Int4 => in_halves(&Qsgd::new(level, Width::Int4)),
        Method::Sign => gathered(&Sign::new(level)),
        Method::TopK { keep } => gathered(&TopK::new(keep)),
        Method::RandomK { keep } => {
            let codec = RandomK::new(keep, !error_feedback);
            vec![Exchange::of_f32s(codec.limit(length) / size_of::<f32>())]
        }
        // Once it has warmed up.
        Method::Dgc { keep, .. } => gathered(&Dgc::new(level, 0.0, keep)),
        Method::PowerSgd { rank } => {
            let parts = Parts::of(&slice, &Tensor::trained(parameters), rank);
            parts.lengths().into_iter().filter(|&elements| elements > 0).map(Exchange::of_f32s).collect()
        }
        Method::Threshold { .. } => return None,
    })
}

#[cfg(test)]
mod tests {
    use ringstep_comm::transport::mem;
    use ringstep_comm::{Algorithm, Group, cost};
    use ringstep_nn::Architecture;

    use super::super::Reducer;
    use super::*;
    use crate::content::Content;
    use crate::job::{Design, Length};
    use crate::world::{Role, World};
    use crate::{Job, SyncMethod};

    const WORKERS: usize = 3;

    /// What a rank sends to sum a slice, by what the exchanges are said to be.
    fn expected(rank: usize, group: &Group, exchanges: &[Exchange]) -> usize {
        let sent = |exchange: &Exchange| match *exchange {
            Exchange::AllReduce { elements, size } => {
                cost::bytes_sent(Algorithm::Ring, rank, group.topology(), elements, size)
            }
            Exchange::AllGather { bytes } => (WORKERS - 1) * bytes,
            // Codes of unequal parts differ by a number or two.
            Exchange::InHalves { bytes } => 2 * bytes * (WORKERS - 1) / WORKERS,
            Exchange::Meet => 0,
        };
        exchanges.iter().map(sent).sum()
    }

    /// What is said to be sent is what is sent, by every method that says it.
    #[test]
    fn as_many_bytes_are_sent_as_are_said() {
        let methods = Method::ALL.map(|method| Some(Compression::new(method)));
        for compression in [None].into_iter().chain(methods) {
            let lenet5 = Design::new("lenet5", Architecture::LeNet5.network()).unwrap();
            let sync = SyncMethod::Ddp { algorithm: Some(Algorithm::Ring), bucket: None };
            let job = Job { compress: compression, ..Job::new(lenet5, sync, WORKERS, 1, Length::Steps(100)) };
            std::thread::scope(|scope| {
                for transport in mem::mesh(WORKERS) {
                    let job = &job;
                    scope.spawn(move || {
                        let mut group = Group::new(transport);
                        let mut world = World::new(&mut group, &[Role::Worker; WORKERS]).unwrap();
                        let model = job.model.build_small();
                        let slice = 0..model.parameters()[0].range().end;
                        let slices = vec![("slice".to_owned(), slice.clone())];
                        let ring = Some(Algorithm::Ring);
                        let mut reducer = Reducer::new((job, 10), ring, &model, slices, Content::Gradients, &mut world);
                        // Past dgc's warm-up.
                        reducer.begin_step(99);
                        let mut numbers: Vec<f32> = slice.clone().map(|at| (at as f32).sin()).collect();
                        reducer.sum(world.workers(), 0, &mut numbers).unwrap();
                        let Some(said) = exchanges(job.compress, model.parameters(), slice, WORKERS) else {
                            assert!(matches!(compression.unwrap().method, Method::Threshold { .. }));
                            return;
                        };
                        let (sent, said) =
                            (world.workers().bytes_sent() as usize, expected(world.rank(), world.workers(), &said));
                        let near = matches!(compression, Some(Compression { method: Method::Int8 | Method::Int4, .. }));
                        assert!(
                            sent.abs_diff(said) <= if near { 64 } else { 0 },
                            "{compression:?}: {sent}, not {said}"
                        );
                    });
                }
            });
        }
    }
}
