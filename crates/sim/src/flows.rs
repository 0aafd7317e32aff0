//! Messages that share links, byte by byte.
//!
//! Where several messages are on a link at once, none of them has to wait until another has passed: each has a part of the link,
//! in proportion to its weight (generalised processor sharing: Parekh and Gallager, "A generalized processor sharing approach
//! to flow control in integrated services networks", 1993). Connections of TCP do not share a link evenly, and whom that favours
//! changes: weights are drawn at random for each message. This decides more than who is first: two workers that ask a server at
//! the same time have their answers at the same time, would ask again at the same time, and would leave the link in the other
//! direction idle meanwhile, if chance did not part them.
//!
//! Messages between the same two go one after the other, as those of a connection do.

use std::collections::BinaryHeap;

use crate::network::Turn;

/// One direction of a link, at some moment.
#[derive(Debug, Clone, Default)]
pub struct SharedLink {
    /// Seconds for which a message of weight 1 has had the link so far.
    served: f64,
    /// The moment of that.
    at: f64,
    /// Of all messages that are on it.
    weight: f64,
    /// Which message is through when a message of weight 1 has had the link for so long.
    messages: BinaryHeap<Turn>,
}

impl SharedLink {
    /// From this moment on a message wants to pass that takes so many seconds alone. After a pause the link is faster, for up to
    /// `credit` seconds of it.
    pub fn begin(&mut self, now: f64, who: usize, weight: f64, seconds: f64, credit: f64) {
        debug_assert!(now >= self.at, "turns at links are in the order of time");
        let mut seconds = seconds;
        if self.messages.is_empty() {
            (self.weight, seconds) = (0.0, (seconds - credit.min(now - self.at)).max(0.0));
        } else {
            self.served += (now - self.at) / self.weight;
        }
        self.at = now;
        self.weight += weight;
        self.messages.push(Turn { at: self.served + seconds / weight, who });
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

    #[test]
    fn a_pause_is_made_up_for() {
        let mut link = SharedLink::default();
        link.begin(5.0, 0, 1.0, 3.0, 2.0);
        assert_eq!(run(link.clone(), |_| 1.0), [(0, 6.0)]);
        link.end(6.0, |_| 1.0);
        link.begin(6.5, 1, 1.0, 3.0, 2.0);
        assert_eq!(run(link, |_| 1.0), [(1, 9.0)]);
    }
}
