//! Messages whose length the sender decides, up to a limit that all agree on: codes are shorter than the numbers that they
//! stand for, and how much shorter depends on the numbers.

use std::time::{Duration, Instant};

use crate::call::{Call, Collective};
use crate::collective::live::Parts;
use crate::collective::{all_to_all, at_once, ring};
use crate::group::{CollectiveError, Group};
use crate::log::With;
use crate::transport::{Incoming, Sink};

/// From then on a wait shows.
const SOON: Duration = Duration::from_millis(20);

/// A part from each rank. Its memory is used again by the next call that fills it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gathered {
    parts: Vec<Vec<u8>>,
}

impl Gathered {
    /// What came from a rank.
    pub fn part(&self, rank: usize) -> &[u8] {
        &self.parts[rank]
    }

    /// The parts, in the order of the ranks.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.parts.iter().map(Vec::as_slice)
    }

    fn room(&mut self, world: usize) -> &mut [Vec<u8>] {
        self.parts.resize_with(world, Vec::new);
        &mut self.parts
    }
}

impl Group {
    /// Collects what every rank has, each of its own length, at most `limit` bytes.
    pub fn all_gather_varied(&mut self, own: &[u8], limit: usize, all: &mut Gathered) -> Result<(), CollectiveError> {
        let call = self.call::<u8>(Collective::AllGatherVaried, limit);
        self.check_limit(call, own, limit)?;
        let (rank, incoming) = (self.rank(), all.room(self.world()));
        incoming[rank].clear();
        incoming[rank].extend_from_slice(own);
        self.make(call, With::All, |wire| {
            at_once(ring::all_gather(&mut Parts { wire, outgoing: None, incoming, limit }))
        })
    }

    /// Sends part j of `outgoing` to rank j and collects what every rank has for this one; each part has its own length, at
    /// most `limit` bytes.
    pub fn exchange_varied(
        &mut self,
        outgoing: &[impl AsRef<[u8]>],
        limit: usize,
        all: &mut Gathered,
    ) -> Result<(), CollectiveError> {
        let (world, parts) = (self.world(), outgoing.len());
        let call = self.call::<u8>(Collective::ExchangeVaried, limit);
        self.check(call, parts == world, || format!("{parts} parts are not one for each of {world} ranks"))?;
        outgoing.iter().try_for_each(|part| self.check_limit(call, part.as_ref(), limit))?;
        let (rank, incoming) = (self.rank(), all.room(world));
        let outgoing: Vec<&[u8]> = outgoing.iter().map(AsRef::as_ref).collect();
        incoming[rank].clear();
        incoming[rank].extend_from_slice(outgoing[rank]);
        self.make(call, With::All, |wire| {
            at_once(all_to_all::exchange(&mut Parts { wire, outgoing: Some(&outgoing), incoming, limit }))
        })
    }

    /// Sends at most `limit` bytes to a rank that calls [`Group::recv_varied`] or [`Group::recv_any`] with the same limit.
    pub fn send_varied(&mut self, data: &[u8], limit: usize, to: usize) -> Result<(), CollectiveError> {
        let call = self.pair_call::<u8>(Collective::SendVaried, limit, With::To(to));
        self.check_limit(call, data, limit)?;
        self.make(call, With::To(to), |wire| wire.transport.send(to, data))
    }

    /// Receives what a rank sends by [`Group::send_varied`] with the same limit.
    pub fn recv_varied(&mut self, from: usize, limit: usize, into: &mut Vec<u8>) -> Result<(), CollectiveError> {
        let call = self.pair_call::<u8>(Collective::SendVaried, limit, With::From(from));
        let incoming = Incoming { from, sink: Sink::Take { into, limit } };
        self.make(call, With::From(from), |wire| wire.transport.transfer(None, Some(incoming)))
    }

    /// Receives what one of these ranks sends by [`Group::send_varied`] with the same limit, and says which it was: whoever
    /// has sent something, and of several the one after the last that was received from. `None` if that is nobody until
    /// then. Those that do not send are at no fault. One that is gone is an error, so whoever has said that it leaves is no
    /// longer named.
    pub fn recv_any(
        &mut self,
        from: &[usize],
        limit: usize,
        into: &mut Vec<u8>,
        until: Option<Instant>,
    ) -> Result<Option<usize>, CollectiveError> {
        let began = self.log.begin();
        let with = |group: &Self, peer: usize| group.pair_call::<u8>(Collective::SendVaried, limit, With::From(peer));
        let call = with(self, from.first().copied().unwrap_or_default());
        self.check_use(call)?;
        self.check(call, !from.is_empty(), || "there is nobody to receive from".to_owned())?;
        from.iter().try_for_each(|&peer| self.check_peer(with(self, peer), peer))?;
        let next = from.iter().position(|&peer| peer == self.served).map_or(0, |last| last + 1);
        let order = [&from[next..], &from[..next]].concat();
        let soon = Instant::now() + SOON;
        let mut found = self.transport.wait_any(&order, Some(until.map_or(soon, |until| until.min(soon))));
        if matches!(found, Ok(None)) && until.is_none_or(|until| until > soon) {
            let watch = self.watch.clone();
            let _sign = watch.show(call, from.to_vec(), SOON);
            found = self.transport.wait_any(&order, until);
        }
        let peer = match found {
            Ok(Some(peer)) => peer,
            Ok(None) => return Ok(None),
            Err(error) => return Err(self.fail(with(self, error.peer), error)),
        };
        self.served = peer;
        let incoming = Incoming { from: peer, sink: Sink::Take { into, limit } };
        self.make_since(began, with(self, peer), With::From(peer), |wire| {
            wire.transport.transfer(None, Some(incoming))
        })?;
        Ok(Some(peer))
    }

    fn check_limit(&self, call: Call, part: &[u8], limit: usize) -> Result<(), CollectiveError> {
        let bytes = part.len();
        self.check(call, bytes <= limit, || format!("{bytes} bytes are more than the limit of {limit}"))
    }
}
