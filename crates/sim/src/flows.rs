//! Messages that share links, byte by byte.
//!
//! Where several messages are on a link at once, none of them has to wait until another has passed: each has a part of the link,
//! in proportion to its weight (generalised processor sharing: Parekh and Gallager, "A generalized processor sharing approach
//! to flow control in integrated services networks", 1993). Connections of TCP do not share a link evenly: a connection's part is
//! that of its packets in the queue, and so its congestion window's, which outlives messages. Weights are drawn for each
//! connection that begins to send, and last until it has nothing left to send. They are log-normal, as throughputs are
//! (Balakrishnan, Stemm, Seshan and Katz, "Analyzing stability in wide-area network performance", 1997).
//!
//! Links are token buckets in front of a queue. What a link may make up for after a pause passes it at once, whichever messages it
//! is of; and it comes to the next link at once, where it stands in the queue ahead of all that others have not sent yet.
//!
//! This decides more than who is first. Two workers that ask a server at the same time have their answers at the same time, and
//! would ask again at the same time and leave the link in the other direction idle meanwhile, if nothing parted them. Chance does,
//! and the burst that the first of two has on a link that was idle. Once they are so far apart that one sends while the other
//! receives, they share nothing any more, and stay apart.
//!
//! Messages between the same two go one after the other, as those of a connection do.

use std::collections::BinaryHeap;

use crate::network::Turn;
use crate::slow::normal;

/// The standard deviation of the logarithm of weights. Of two connections on a link, each one's part has one of 0.17 then, as it had
/// over 100 Mbit/s in 124 pairs of answers to workers, by BBR.
const SPREAD: f64 = 0.53;

/// What a connection weighs from now on, by the number of weights that have been drawn before.
pub fn weight(seed: u64, connection: usize, drawn: u32) -> f64 {
    (SPREAD * normal(seed, connection, drawn as usize)).exp()
}

/// One direction of a link, at some moment.
#[derive(Debug, Clone, Default)]
pub struct SharedLink {
    /// Seconds of a pause that it may make up for.
    credit: f64,
    /// Seconds of the last pause that it has not made up for yet.
    saved: f64,
    /// Seconds for which a message of weight 1 has had the link so far.
    served: f64,
    /// The moment of that. It is still to come while a burst passes that is ahead of all others.
    at: f64,
    /// Of all messages that are on it.
    weight: f64,
    /// Which message is through when a message of weight 1 has had the link for so long.
    messages: BinaryHeap<Turn>,
}

impl SharedLink {
    /// One that is idle, and may make up for so many seconds of a pause.
    pub fn new(credit: f64) -> Self {
        Self { credit, ..Self::default() }
    }

    /// From this moment on a message wants to pass that takes so many seconds alone, of which the link before lets `burst` seconds
    /// come at once. Says how many seconds of it pass at once here.
    pub fn begin(&mut self, now: f64, who: usize, weight: f64, seconds: f64, burst: f64) -> f64 {
        if self.messages.is_empty() {
            (self.weight, self.saved) = (0.0, self.credit.min(self.saved + now - self.at));
        } else {
            self.served += (now - self.at).max(0.0) / self.weight;
        }
        let passes = self.saved.min(seconds);
        self.saved -= passes;
        // Nobody else is served while that passes which came at once.
        let ahead = (burst - passes).clamp(0.0, seconds - passes);
        self.at = self.at.max(now) + ahead;
        self.weight += weight;
        self.messages.push(Turn { at: self.served + (seconds - passes - ahead) / weight, who });
        passes
    }

    /// When the next message is through, if no other begins before.
    pub fn next(&self) -> Option<f64> {
        self.messages.peek().map(|turn| self.at + (turn.at - self.served).max(0.0) * self.weight)
    }

    /// The next message is through, at the moment that [`SharedLink::next`] has said. Says which it is; `weight` knows how much
    /// of the link was its.
    pub fn end(&mut self, now: f64, weight: impl Fn(usize) -> f64) -> Option<usize> {
        let Turn { at, who } = self.messages.pop()?;
        (self.served, self.at) = (at, now);
        self.weight -= weight(who);
        Some(who)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(mut link: SharedLink, weight: impl Fn(usize) -> f64 + Copy) -> Vec<(usize, f64)> {
        let mut ends = Vec::new();
        while let Some(at) = link.next() {
            ends.push((link.end(at, weight).unwrap(), at));
        }
        ends
    }

    /// Who comes later is through later by as much: what the first has left when the second comes, both share.
    #[test]
    fn messages_share_alike() {
        let mut link = SharedLink::default();
        link.begin(0.0, 0, 1.0, 4.0, 0.0);
        link.begin(1.0, 1, 1.0, 4.0, 0.0);
        assert_eq!(run(link, |_| 1.0), [(0, 7.0), (1, 8.0)]);
    }

    /// Of three quarters of the link for 4 s, the other has one quarter, and then all of it.
    #[test]
    fn or_by_their_weights() {
        let weight = |who| [3.0, 1.0][who];
        let mut link = SharedLink::default();
        link.begin(0.0, 0, weight(0), 3.0, 0.0);
        link.begin(0.0, 1, weight(1), 3.0, 0.0);
        assert_eq!(run(link, weight), [(0, 4.0), (1, 6.0)]);
    }

    /// The median weight is one, and of two connections each has half of a link on average, give or take 0.17.
    #[test]
    fn parts_differ_as_measured() {
        let weights: Vec<f64> = (0..20_000).map(|drawn| weight(7, 3, drawn)).collect();
        let heavy = weights.iter().filter(|&&weight| weight > 1.0).count();
        assert!(heavy.abs_diff(10_000) < 300, "{heavy} of 20000");
        let parts: Vec<f64> = weights.chunks(2).map(|pair| pair[0] / (pair[0] + pair[1])).collect();
        let mean = |of: &dyn Fn(f64) -> f64| parts.iter().map(|&part| of(part)).sum::<f64>() / parts.len() as f64;
        assert!((mean(&|part| part) - 0.5).abs() < 0.01);
        assert!((mean(&|part| (part - 0.5).powi(2)).sqrt() - 0.17).abs() < 0.01);
    }

    #[test]
    fn a_pause_is_made_up_for() {
        let mut link = SharedLink::new(2.0);
        assert_eq!(link.begin(5.0, 0, 1.0, 3.0, 0.0), 2.0);
        assert_eq!(run(link.clone(), |_| 1.0), [(0, 6.0)]);
        link.end(6.0, |_| 1.0);
        assert_eq!(link.begin(6.5, 1, 1.0, 3.0, 0.0), 0.5);
        assert_eq!(run(link, |_| 1.0), [(1, 9.0)]);
    }

    /// A short message, as goes ahead of a long one, spends no more of a pause than it takes.
    #[test]
    fn what_one_message_leaves_of_a_pause_the_next_has() {
        let mut link = SharedLink::new(2.0);
        link.begin(5.0, 0, 1.0, 0.5, 0.0);
        assert_eq!(link.next(), Some(5.0));
        link.begin(5.0, 1, 1.0, 3.0, 0.0);
        assert_eq!(run(link, |_| 1.0), [(0, 5.0), (1, 6.5)]);
    }

    /// What comes at once is passed on first: the first message waits for 1 s of the second, then both share.
    #[test]
    fn a_burst_stands_ahead_of_what_comes_later() {
        let mut link = SharedLink::default();
        link.begin(0.0, 0, 1.0, 4.0, 0.0);
        link.begin(1.0, 1, 1.0, 4.0, 1.0);
        assert_eq!(run(link.clone(), |_| 1.0), [(0, 8.0), (1, 8.0)]);
        // Another, which comes meanwhile, stands behind it.
        link.begin(1.5, 2, 1.0, 1.0, 1.0);
        assert_eq!(link.next(), Some(3.0));
        assert_eq!(run(link, |_| 1.0), [(2, 3.0), (0, 9.0), (1, 9.0)]);
    }

    /// On a link that was idle too a burst passes at once, as far as the pause lets it.
    #[test]
    fn a_burst_after_a_pause_waits_for_nothing() {
        let mut link = SharedLink::new(2.0);
        assert_eq!(link.begin(5.0, 0, 1.0, 3.0, 2.0), 2.0);
        assert_eq!(run(link, |_| 1.0), [(0, 6.0)]);
    }
}
