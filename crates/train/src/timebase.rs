//! One clock for all ranks, so that what they did can be drawn side by side.

use std::time::Instant;

use ringstep_comm::{CollectiveError, Group};

/// Exchanges with rank 0; the quickest says the most.
const EXCHANGES: usize = 10;

/// Converts this rank's moments to seconds on rank 0's clock.
#[derive(Debug, Clone, Copy)]
pub struct Timebase {
    origin: Instant,
    /// What rank 0's clock showed at this rank's origin.
    ahead: f64,
}

impl Timebase {
    /// Compares clocks (Cristian 1989): an answer was given in the middle of the time that it took, give or take half of
    /// that time. All ranks call it at the same time.
    pub fn agree(group: &mut Group) -> Result<Self, CollectiveError> {
        let origin = Instant::now();
        let mut ahead = 0.0;
        for rank in 1..group.world() {
            let mut shortest = f64::INFINITY;
            for _ in 0..EXCHANGES {
                let mut theirs = [0f64];
                if group.rank() == rank {
                    let asked = origin.elapsed().as_secs_f64();
                    group.send(&[0f64], 0)?;
                    group.recv(&mut theirs, 0)?;
                    let took = origin.elapsed().as_secs_f64() - asked;
                    if took < shortest {
                        (shortest, ahead) = (took, theirs[0] - (asked + took / 2.0));
                    }
                } else if group.rank() == 0 {
                    group.recv(&mut theirs, rank)?;
                    group.send(&[origin.elapsed().as_secs_f64()], rank)?;
                }
            }
        }
        Ok(Self { origin, ahead })
    }

    /// Seconds on rank 0's clock, from 0 when it agreed with the others.
    pub fn seconds(&self, moment: Instant) -> f64 {
        let here = match moment.checked_duration_since(self.origin) {
            Some(after) => after.as_secs_f64(),
            None => -(self.origin - moment).as_secs_f64(),
        };
        here + self.ahead
    }
}

#[cfg(test)]
mod tests {
    use ringstep_comm::transport::mem;

    use super::*;

    /// Threads of one process have one clock, so a moment must be the same on all, give or take a slow exchange.
    #[test]
    fn ranks_agree_on_a_moment() {
        let ranks: Vec<_> = mem::mesh(3)
            .into_iter()
            .enumerate()
            .map(|(rank, transport)| {
                std::thread::spawn(move || {
                    std::thread::sleep(std::time::Duration::from_millis(50 * rank as u64));
                    Timebase::agree(&mut Group::new(transport)).unwrap()
                })
            })
            .collect();
        let bases: Vec<Timebase> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        let moment = Instant::now();
        for base in &bases {
            let error = (base.seconds(moment) - bases[0].seconds(moment)).abs();
            assert!(error < 0.02, "off by {error} s, with origins 50 ms apart");
        }
    }
}
