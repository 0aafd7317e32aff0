//! What the ranks of one host do in the memory that they share: pass messages through pipes, and lay slices out for
//! each other in turns.

use std::cell::Cell;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ringstep_cpu::wait::Patience;

use super::segment::{PIPE, SLOT, STAGE, Segment};
use super::{Aborter, Cause, Incoming, Outgoing, Sink, Traffic, TransportError, check};
use crate::call::{Call, Header};
use crate::copy::copy;
use crate::watch::Watch;

/// The most that is written to a pipe before its reader is told.
const BLOCK: usize = 32 << 10;
/// How often a sleeping rank looks whether the one it waits for is still there.
const NAP: Duration = Duration::from_millis(20);

/// One rank's place in a `Segment`.
///
/// Turns are this crate's alone: two threads that disagreed on whose turn it is would read what another writes.
#[derive(Debug)]
pub struct Shared {
    segment: Arc<Segment>,
    /// This rank among those of its host.
    index: usize,
    /// The ranks of this host.
    members: Vec<usize>,
    /// Connections to the processes of the other members, which close when a process dies.
    lifelines: Vec<Option<TcpStream>>,
    timeout: Duration,
    aborter: Aborter,
    pub(super) watch: Watch,
    /// What this rank has announced last.
    announced: Option<Call>,
    patience: Patience,
    /// When it has last seen that all are there from whom it would receive.
    looked: Cell<Instant>,
    turn: u32,
    traffic: Traffic,
}

impl Shared {
    /// Place `index` among `members`.
    pub(super) fn new(
        segment: Arc<Segment>,
        index: usize,
        members: Vec<usize>,
        lifelines: Vec<Option<TcpStream>>,
        timeout: Duration,
        aborter: Aborter,
    ) -> Self {
        let patience = Patience::among(members.len());
        Self {
            segment,
            index,
            members,
            lifelines,
            timeout,
            aborter,
            watch: Watch::default(),
            announced: None,
            patience,
            looked: Cell::new(Instant::now()),
            turn: 0,
            traffic: Traffic::default(),
        }
    }

    /// This rank's place among those of its host.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The ranks of this host.
    pub fn members(&self) -> &[usize] {
        &self.members
    }

    /// Bytes that a slot holds behind its header.
    pub(crate) const fn slot_size() -> usize {
        SLOT - Header::LENGTH
    }

    /// Bytes that a stage holds.
    pub(crate) const fn stage_size() -> usize {
        STAGE
    }

    /// What this rank has sent and received here so far.
    pub(super) fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Counts what is laid out for others: it takes no more than it is.
    fn count_written(&mut self, bytes: usize) {
        self.traffic.payload[0] += bytes as u64;
        self.traffic.wire[0] += bytes as u64;
    }

    /// Counts what was read of that which others have laid out.
    pub(crate) fn count_read(&mut self, bytes: usize) {
        self.traffic.payload[1] += bytes as u64;
        self.traffic.wire[1] += bytes as u64;
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    pub(super) fn aborter(&self) -> Aborter {
        self.aborter.clone()
    }

    pub(super) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Says what this rank is about to do, for the turn that begins with the next [`Shared::sync`].
    pub(crate) fn announce(&mut self, call: &Call) {
        self.announced = Some(*call);
        let header = Header::new(call, 0);
        self.segment.write_slot(self.index, self.turn.wrapping_add(1), 0, bytemuck::bytes_of(&header));
    }

    /// After the first `sync`: do all others do the same?
    pub(crate) fn compare(&self, call: &Call) -> Result<(), TransportError> {
        let expected = Header::new(call, 0);
        for (index, &rank) in self.members.iter().enumerate() {
            let theirs = self.segment.slot(index, self.turn, 0, Header::LENGTH);
            check(&expected, &bytemuck::pod_read_unaligned(theirs))
                .map_err(|cause| TransportError::receiving(rank, cause))?;
        }
        Ok(())
    }

    /// Lays data out in this rank's slot, for the turn that begins with the next `sync`.
    pub(crate) fn offer(&mut self, data: &[u8]) {
        self.segment.write_slot(self.index, self.turn.wrapping_add(1), Header::LENGTH, data);
        self.count_written(data.len());
    }

    /// What a member has offered for this turn.
    pub(crate) fn offered(&self, index: usize, length: usize) -> &[u8] {
        self.segment.slot(index, self.turn, Header::LENGTH, length)
    }

    /// Lays data out on this rank's stage. Between two `sync`s a stage is written or read, not both.
    pub(crate) fn put_on_stage(&mut self, at: usize, data: &[u8]) {
        self.segment.write_stage(self.index, at, data);
        self.count_written(data.len());
    }

    /// A part of a member's stage.
    pub(crate) fn stage(&self, index: usize, at: usize, length: usize) -> &[u8] {
        self.segment.stage(index, at, length)
    }

    /// Writes a part of the result that all have in common. Between two `sync`s it is written or read, not both, and
    /// each part by one rank.
    pub(crate) fn put_result(&mut self, at: usize, data: &[u8]) {
        self.segment.write_result(at, data);
        self.count_written(data.len());
    }

    /// A part of the result that all have in common.
    pub(crate) fn result(&self, at: usize, length: usize) -> &[u8] {
        self.segment.result(at, length)
    }

    /// Waits until all ranks of this host have come as far. What they wrote before can then be read.
    pub(crate) fn sync(&mut self) -> Result<(), TransportError> {
        self.turn = self.turn.wrapping_add(1);
        let (turn, gate) = (self.turn, self.segment.gate());
        let last = turn.wrapping_mul(self.members.len() as u32);
        // Only looked at when somebody is missing.
        self.segment.progress(self.index).store(turn, Ordering::Relaxed);
        if gate.come(last) {
            return Ok(());
        }
        // Another rank may be a turn ahead, never more.
        let is_missing =
            |&index: &usize| self.segment.progress(index).load(Ordering::Relaxed).wrapping_sub(turn) >= u32::MAX / 2;
        let limit = Some(self.timeout);
        let missing = || (0..self.members.len()).filter(is_missing);
        self.wait((self.announced, limit), |nap| gate.wait(&self.patience, nap, last), missing)
            .map_err(|(index, cause)| TransportError::receiving(self.members[index], cause))
    }

    /// Waits by naps until one of them brings what is waited for, or until one of the members that this depends on is
    /// gone or has been silent for longer than `limit`, or it is aborted.
    fn wait<M: Iterator<Item = usize>>(
        &self,
        (call, limit): (Option<Call>, Option<Duration>),
        nap: impl Fn(Duration) -> bool,
        missing: impl Fn() -> M,
    ) -> Result<(), (usize, Cause)> {
        // Counted in naps: a process that was suspended for long has waited no longer than the one that it was in.
        let (mut waited, mut sign) = (Duration::ZERO, None);
        while !nap(NAP.min(self.timeout)) {
            if let Some(index) = missing().find(|&index| !self.is_alive(index)) {
                // It may have finished its part before it left.
                return if nap(Duration::ZERO) { Ok(()) } else { Err((index, Cause::Closed)) };
            }
            waited += NAP;
            if let (None, Some(call)) = (&sign, call) {
                let peers = missing().map(|index| self.members[index]).collect();
                sign = Some(self.watch.show(call, peers, waited));
            }
            let given_up = if self.aborter.is_aborted() {
                Some(Cause::Aborted)
            } else {
                limit.filter(|&limit| waited >= limit).map(Cause::TimedOut)
            };
            if let (Some(cause), Some(index)) = (given_up, missing().next()) {
                return Err((index, cause));
            }
        }
        Ok(())
    }

    /// Which of these has a message in its pipe to this rank; of several the first. Peers are given by their place on this
    /// host.
    pub(super) fn ready(&self, from: &[usize]) -> Option<usize> {
        let has_message = |&from: &usize| {
            let (written, read) = self.segment.pipe_counts(from, self.index);
            (written.load(Ordering::Acquire) - read.load(Ordering::Relaxed)) as usize >= Header::LENGTH
        };
        from.iter().copied().find(has_message)
    }

    /// Waits until there is one; `None` if there is none until then.
    pub(super) fn wait_any(&self, from: &[usize], until: Option<Instant>) -> Result<Option<usize>, TransportError> {
        let left = || until.map(|until| until.saturating_duration_since(Instant::now()));
        loop {
            // Where there is always a message of somebody, nobody would ever find out that another is gone.
            if self.looked.get().elapsed() >= NAP {
                self.look_after(from)?;
            }
            let nap = left().map_or(NAP, |left| left.min(NAP));
            if self.segment.bell(self.index).wait(&self.patience, Some(nap), || self.ready(from).is_some()) {
                return Ok(self.ready(from));
            }
            self.look_after(from)?;
            if left().is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
        }
    }

    /// Fails if one of these is gone, and has left no message behind.
    fn look_after(&self, from: &[usize]) -> Result<(), TransportError> {
        self.looked.set(Instant::now());
        let is_gone = |&index: &usize| !self.is_alive(index) && self.ready(&[index]).is_none();
        let gone = from.iter().copied().find(is_gone).map(|index| (index, Cause::Closed));
        let aborted = || self.aborter.is_aborted().then(|| (from[0], Cause::Aborted));
        let failed = |(index, cause): (usize, Cause)| Err(TransportError::receiving(self.members[index], cause));
        gone.or_else(aborted).map_or(Ok(()), failed)
    }

    fn is_alive(&self, index: usize) -> bool {
        let connected = |stream: &TcpStream| match stream.peek(&mut [0]) {
            Ok(count) => count > 0,
            Err(error) => super::tcp::is_transient(&error),
        };
        self.segment.gone(index).load(Ordering::Acquire) == 0 && self.lifelines[index].as_ref().is_none_or(connected)
    }

    /// Sends and receives through pipes at once. Peers are given by their place on this host.
    pub(super) fn transfer(
        &mut self,
        call: &Call,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
    ) -> Result<(), TransportError> {
        let writer = outgoing.map(|outgoing| PipeWriter::new(call, outgoing));
        self.carry(call, writer, incoming)
    }

    /// A message on its way to one of this host, as far as there is room for it at once.
    pub(super) fn begin_sending<'a>(&self, call: &Call, outgoing: Outgoing<'a>) -> PipeWriter<'a> {
        let mut writer = PipeWriter::new(call, outgoing);
        while !writer.is_done() && writer.advance(&self.segment, self.index) {}
        writer
    }

    /// Sends what is left of a message and receives one at once.
    pub(super) fn carry(
        &mut self,
        call: &Call,
        mut writer: Option<PipeWriter<'_>>,
        incoming: Option<Incoming<'_>>,
    ) -> Result<(), TransportError> {
        let mut reader = incoming.map(|incoming| PipeReader::new(call, incoming));
        loop {
            let mut moved = false;
            if let Some(writer) = writer.as_mut().filter(|writer| !writer.is_done()) {
                moved |= writer.advance(&self.segment, self.index);
            }
            if let Some(reader) = reader.as_mut().filter(|reader| !reader.is_done()) {
                let rank = self.members[reader.from];
                moved |= reader
                    .advance(&self.segment, self.index)
                    .map_err(|cause| TransportError::receiving(rank, cause))?;
            }
            let writing = writer.as_ref().filter(|writer| !writer.is_done());
            let reading = reader.as_ref().filter(|reader| !reader.is_done());
            if moved {
                continue;
            }
            // Who is to blame if nothing moves any more: rather the sender that does not send.
            let on = match (&reading, &writing) {
                (Some(reader), _) => reader.from,
                (None, Some(writer)) => writer.to,
                (None, None) => break,
            };
            let ready = |segment: &Segment| {
                writing.is_some_and(|writer| writer.can_move(segment, self.index))
                    || reading.is_some_and(|reader| reader.can_move(segment, self.index))
            };
            let bell = self.segment.bell(self.index);
            let limit = call.collective.counts_silence().then_some(self.timeout);
            self.wait(
                (Some(*call), limit),
                |nap| bell.wait(&self.patience, Some(nap), || ready(&self.segment)),
                || std::iter::once(on),
            )
            .map_err(|(_, cause)| match reading.is_some() {
                true => TransportError::receiving(self.members[on], cause),
                false => TransportError::sending(self.members[on], cause),
            })?;
        }
        let both = [writer.map(|writer| writer.traffic()), reader.map(|reader| reader.traffic())];
        both.into_iter().flatten().for_each(|message| self.traffic += message);
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The others look for it between their naps.
        self.segment.gone(self.index).store(1, Ordering::Release);
    }
}

/// Messages in a pipe begin at multiples of this, so that their elements are aligned.
const ALIGNMENT: usize = 8;

/// A message on its way into a pipe.
pub(super) struct PipeWriter<'a> {
    to: usize,
    header: Header,
    data: &'a [u8],
    /// Bytes written of header, data and padding.
    written: usize,
}

impl<'a> PipeWriter<'a> {
    fn new(call: &Call, outgoing: Outgoing<'a>) -> Self {
        let header = Header::new(call, outgoing.data.len());
        Self { to: outgoing.to, header, data: outgoing.data, written: 0 }
    }

    fn length(&self) -> usize {
        Header::LENGTH + self.data.len().next_multiple_of(ALIGNMENT)
    }

    pub(super) fn is_done(&self) -> bool {
        self.written == self.length()
    }

    fn traffic(&self) -> Traffic {
        Traffic::sent(self.data.len(), self.written)
    }

    fn can_move(&self, segment: &Segment, from: usize) -> bool {
        let (written, read) = segment.pipe_counts(from, self.to);
        ((written.load(Ordering::Relaxed) - read.load(Ordering::Acquire)) as usize) < PIPE
    }

    /// Writes what there is room for, up to a block, and tells the reader.
    fn advance(&mut self, segment: &Segment, from: usize) -> bool {
        let (written, read) = segment.pipe_counts(from, self.to);
        let start = written.load(Ordering::Relaxed);
        let room = PIPE - (start - read.load(Ordering::Acquire)) as usize;
        let mut count = 0;
        while count < room.min(BLOCK) && !self.is_done() {
            let at = (start as usize + count) % PIPE;
            let limit = (room - count).min(PIPE - at);
            let header = bytemuck::bytes_of(&self.header);
            let part = match self.written.checked_sub(Header::LENGTH) {
                None => &header[self.written..],
                Some(at) if at < self.data.len() => &self.data[at..],
                Some(at) => &[0; ALIGNMENT][..self.data.len().next_multiple_of(ALIGNMENT) - at],
            };
            let part = &part[..part.len().min(limit).min(BLOCK)];
            segment.write_pipe(from, self.to, at, part);
            self.written += part.len();
            count += part.len();
        }
        if count > 0 {
            written.store(start + count as u64, Ordering::Release);
            segment.bell(self.to).ring();
        }
        count > 0
    }
}

/// A message on its way out of a pipe.
struct PipeReader<'a> {
    from: usize,
    expected: Header,
    sink: Sink<'a>,
    /// The length of the data; where the sender decides it, known from the header on.
    bytes: usize,
    /// Bytes read of header, data and padding.
    read: usize,
}

impl<'a> PipeReader<'a> {
    fn new(call: &Call, Incoming { from, sink }: Incoming<'a>) -> Self {
        Self { from, expected: sink.expected(call), bytes: sink.bytes().unwrap_or(0), sink, read: 0 }
    }

    fn length(&self) -> usize {
        Header::LENGTH + self.bytes.next_multiple_of(ALIGNMENT)
    }

    fn is_done(&self) -> bool {
        self.read == self.length()
    }

    fn traffic(&self) -> Traffic {
        Traffic::received(self.bytes, self.read)
    }

    /// What must be there before anything can be done with it.
    fn least(&self) -> usize {
        match (self.read, &self.sink) {
            (0, _) => Header::LENGTH,
            (_, Sink::Fold { grain, .. }) => *grain,
            (_, Sink::Fill(_) | Sink::Take { .. }) => 1,
        }
    }

    fn can_move(&self, segment: &Segment, to: usize) -> bool {
        let (written, read) = segment.pipe_counts(self.from, to);
        (written.load(Ordering::Acquire) - read.load(Ordering::Relaxed)) as usize >= self.least()
    }

    /// Takes what is there of this message, and tells the writer.
    fn advance(&mut self, segment: &Segment, to: usize) -> Result<bool, Cause> {
        let (written, read) = segment.pipe_counts(self.from, to);
        let start = read.load(Ordering::Relaxed);
        let available = (written.load(Ordering::Acquire) - start) as usize;
        let mut count = 0;
        while available - count >= self.least() && !self.is_done() {
            let at = (start as usize + count) % PIPE;
            let limit = (available - count).min(PIPE - at);
            let taken = if self.read == 0 {
                // Headers are 32 bytes at a multiple of 8, and so may wrap around.
                let mut header = [0; Header::LENGTH];
                let first = limit.min(Header::LENGTH);
                header[..first].copy_from_slice(segment.read_pipe(self.from, to, at, first));
                header[first..].copy_from_slice(segment.read_pipe(self.from, to, 0, Header::LENGTH - first));
                self.bytes = self.sink.accept(&self.expected, &bytemuck::pod_read_unaligned(&header))?;
                Header::LENGTH
            } else {
                let done = self.read - Header::LENGTH;
                let left = self.bytes.saturating_sub(done);
                let (from, part) = (self.from, limit.min(left));
                let data = |length: usize| segment.read_pipe(from, to, at, length);
                match &mut self.sink {
                    _ if left == 0 => limit.min(self.length() - self.read),
                    Sink::Fill(room) => {
                        copy(&mut room[done..done + part], data(part));
                        part
                    }
                    Sink::Take { into, .. } => {
                        copy(&mut into[done..done + part], data(part));
                        part
                    }
                    Sink::Fold { grain, fold, .. } => {
                        let part = part / *grain * *grain;
                        fold(data(part));
                        part
                    }
                }
            };
            self.read += taken;
            count += taken;
        }
        if count > 0 {
            read.store(start + count as u64, Ordering::Release);
            segment.bell(self.from).ring();
        }
        Ok(count > 0)
    }
}
