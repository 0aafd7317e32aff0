//! Whether all ranks still hold the same numbers: they compare a checksum a tensor.

use ringstep_comm::{CollectiveError, Group};
use ringstep_nn::Model;

/// The first tensor, in the order of the layers, of which not all ranks have the same bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub tensor: String,
    /// The ranks that differ from rank 0.
    pub ranks: Vec<usize>,
}

/// Compares the parameters, and batch norm's running statistics if `with_statistics`. All ranks find the same.
pub fn first_difference(
    model: &mut Model,
    group: &mut Group,
    with_statistics: bool,
) -> Result<Option<Difference>, CollectiveError> {
    let compared: Vec<_> =
        model.parameters().iter().filter(|tensor| tensor.trained || with_statistics).cloned().collect();
    let (rank, world) = (group.rank(), group.world());
    let mut sums = vec![0i64; world * compared.len()];
    for (sum, tensor) in sums[rank * compared.len()..].iter_mut().zip(&compared) {
        let numbers = if tensor.trained { model.values_mut() } else { model.statistics_mut() };
        *sum = checksum(&numbers[tensor.range()]);
    }
    group.all_gather(&mut sums)?;
    Ok(compared.iter().enumerate().find_map(|(at, tensor)| {
        let of = |rank: usize| sums[rank * compared.len() + at];
        let ranks: Vec<usize> = (1..world).filter(|&rank| of(rank) != of(0)).collect();
        (!ranks.is_empty()).then(|| Difference { tensor: tensor.name.clone(), ranks })
    }))
}

/// FNV-1a over the bits of the numbers, a number at a time: any change of one number changes it.
fn checksum(numbers: &[f32]) -> i64 {
    let sum = numbers.iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, number| {
        (sum ^ u64::from(number.to_bits())).wrapping_mul(0x0000_0100_0000_01b3)
    });
    sum as i64
}

#[cfg(test)]
mod tests {
    use ringstep_comm::transport::mem;
    use ringstep_cpu::Level;
    use ringstep_nn::Architecture;
    use ringstep_nn::team::Team;

    use super::*;

    fn compare(spoil: impl Fn(usize, &mut Model) + Sync, with_statistics: bool) -> Option<Difference> {
        let found: Vec<_> = std::thread::scope(|scope| {
            let ranks: Vec<_> = mem::mesh(4)
                .into_iter()
                .enumerate()
                .map(|(rank, transport)| {
                    let spoil = &spoil;
                    scope.spawn(move || {
                        let mut model =
                            Model::new(&Architecture::ResNet20.network(), 1, Team::new(1, Level::best())).unwrap();
                        model.initialise(1);
                        spoil(rank, &mut model);
                        first_difference(&mut model, &mut Group::new(transport), with_statistics).unwrap()
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(found.iter().all(|theirs| *theirs == found[0]));
        found[0].clone()
    }

    #[test]
    fn the_first_tensor_that_differs_is_named_with_the_ranks() {
        assert_eq!(compare(|_, _| (), true), None);
        let last_bit = |model: &mut Model, name: &str| {
            let tensor = model.parameters().iter().find(|tensor| tensor.name == name).unwrap().clone();
            let numbers = if tensor.trained { model.values_mut() } else { model.statistics_mut() };
            let number = &mut numbers[tensor.range().end - 1];
            *number = f32::from_bits(number.to_bits() ^ 1);
        };
        let names: Vec<String> = {
            let model = Model::new(&Architecture::ResNet20.network(), 1, Team::new(1, Level::best())).unwrap();
            model.parameters().iter().map(|tensor| tensor.name.clone()).collect()
        };
        let (early, late) = (&names[3], names.last().unwrap());
        let spoil = |rank: usize, model: &mut Model| match rank {
            1 => last_bit(model, late),
            3 => [early, late].into_iter().for_each(|name| last_bit(model, name)),
            _ => {}
        };
        let statistic = early.ends_with("running_mean") || early.ends_with("running_var");
        assert!(statistic, "{early}");
        assert_eq!(compare(spoil, true), Some(Difference { tensor: early.clone(), ranks: vec![3] }));
        assert_eq!(compare(spoil, false), Some(Difference { tensor: late.clone(), ranks: vec![1, 3] }));
    }
}
