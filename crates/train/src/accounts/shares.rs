//! What a rank's time went to.
//!
//! An exchange goes on from the moment when the last of those that take part has come to it; who came earlier waits until
//! then. So each moment of a step is one of these, the first that fits:
//!
//! | share | the rank |
//! | --- | --- |
//! | compute | computes; if an exchange goes on meanwhile, this is hidden, too |
//! | exposed | does nothing else while an exchange goes on |
//! | waiting | waits for others to come to an exchange |
//! | exposed, too | is through with its gradients and between exchanges, or its communication thread is not there yet |
//! | data | waits for a batch |
//! | other | does anything else |

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::records::{Exchange, Nanoseconds, Step};

/// Nanoseconds of a rank by what they went to. All but `hidden` add up to the whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shares {
    /// Computing.
    pub compute: Nanoseconds,
    /// The part of it in which exchanges went on.
    pub hidden: Nanoseconds,
    /// Exchanges, and nothing else.
    pub exposed: Nanoseconds,
    /// Until others came to an exchange.
    pub waiting: Nanoseconds,
    /// Until a batch was there.
    pub data: Nanoseconds,
    /// Anything else.
    pub other: Nanoseconds,
}

impl AddAssign for Shares {
    fn add_assign(&mut self, more: Self) {
        self.compute += more.compute;
        self.hidden += more.hidden;
        self.exposed += more.exposed;
        self.waiting += more.waiting;
        self.data += more.data;
        self.other += more.other;
    }
}

/// Splits a rank's step. `going` says of an exchange since when it has gone on.
pub fn split(step: &Step, going: impl Fn(&Exchange) -> Nanoseconds) -> Shares {
    /// What may be true of a moment.
    #[derive(Clone, Copy)]
    enum What {
        Computing,
        Data,
        /// The rank has come to an exchange.
        Come,
        /// All have.
        Going,
        /// It is the computing thread that has come.
        Interrupted,
        Synchronising,
    }
    // Each beginning and each end.
    let mut edges: Vec<(Nanoseconds, What, i32)> = Vec::new();
    let mut add = |what, [began, ended]: [Nanoseconds; 2]| {
        let (began, ended) = (began.max(step.began), ended.min(step.ended));
        if began < ended {
            edges.extend([(began, what, 1), (ended, what, -1)]);
        }
    };
    step.computing.iter().for_each(|&span| add(What::Computing, span));
    step.data.iter().for_each(|&span| add(What::Data, span));
    step.synchronising.iter().for_each(|&span| add(What::Synchronising, span));
    for exchange in &step.exchanges {
        let Exchange { began, ended, beside, .. } = *exchange;
        add(What::Come, [began, ended]);
        add(What::Going, [going(exchange).max(began), ended]);
        if !beside {
            add(What::Interrupted, [began, ended]);
        }
    }
    edges.sort_by_key(|&(moment, ..)| moment);

    let (mut shares, mut open, mut since) = (Shares::default(), [0i32; 6], step.began);
    for (moment, what, change) in edges.into_iter().chain([(step.ended, What::Data, 0)]) {
        let [computing, data, come, going, interrupted, synchronising] = open.map(|count| count > 0);
        let length = moment - since;
        if computing && !interrupted {
            shares.compute += length;
            shares.hidden += if going { length } else { 0 };
        } else if going {
            shares.exposed += length;
        } else if come {
            shares.waiting += length;
        } else if synchronising {
            shares.exposed += length;
        } else if data {
            shares.data += length;
        } else {
            shares.other += length;
        }
        since = moment;
        open[what as usize] += change;
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{exchange, step};
    use super::*;

    /// Batch norm's sums are made by the thread that computes, in the middle of a pass.
    #[test]
    fn what_interrupts_computation_is_no_part_of_it() {
        let interrupted = Step { exchanges: vec![exchange(0, [2, 5], false)], ..step(10, 12, &[]) };
        let shares = split(&interrupted, |_| 4);
        assert_eq!(shares, Shares { compute: 7, waiting: 2, exposed: 1, other: 2, ..Shares::default() });
    }

    fn span() -> impl Strategy<Value = [Nanoseconds; 2]> {
        (0..100i64, 0..30i64).prop_map(|(began, length)| [began, began + length])
    }

    proptest! {
        /// Whatever ranks do, every moment goes to one share, as one finds by asking moment by moment.
        #[test]
        fn shares_add_up_to_the_whole(
            computing in prop::collection::vec(span(), 0..6),
            data in prop::collection::vec(span(), 0..4),
            synchronising in prop::collection::vec(span(), 0..3),
            exchanges in prop::collection::vec((span(), any::<bool>(), 0..40i64), 0..8),
        ) {
            let placed: Vec<Exchange> =
                (0..).zip(&exchanges).map(|(number, &(span, beside, _))| exchange(number, span, beside)).collect();
            let since = |exchange: &Exchange| exchange.began + exchanges[exchange.sequence as usize].2;
            let exchanged = Step { exchanges: placed, ..Step::default() };
            let step = Step { began: 10, ended: 90, computing, data, synchronising, ..exchanged };
            let mut expected = Shares::default();
            for moment in 10..90 {
                let within = |&[began, ended]: &[Nanoseconds; 2]| (began..ended).contains(&moment);
                let open = || step.exchanges.iter().filter(|exchange| within(&[exchange.began, exchange.ended]));
                let going = open().any(|exchange| moment >= since(exchange));
                let computing = step.computing.iter().any(within) && !open().any(|exchange| !exchange.beside);
                let [synchronising, data] = [&step.synchronising, &step.data].map(|spans| spans.iter().any(within));
                let share = match (computing, going, open().count() > 0, synchronising, data) {
                    (true, ..) => &mut expected.compute,
                    (_, true, ..) | (_, _, false, true, _) => &mut expected.exposed,
                    (_, _, true, ..) => &mut expected.waiting,
                    (.., true) => &mut expected.data,
                    _ => &mut expected.other,
                };
                *share += 1;
                expected.hidden += i64::from(computing && going);
            }
            prop_assert_eq!(split(&step, since), expected);
        }
    }
}
