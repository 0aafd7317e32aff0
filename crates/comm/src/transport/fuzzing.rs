//! What arrives from another rank, for fuzzers.

use std::io::{self, Read};

use super::stream::{StreamReader, tray};
use super::{Incoming, Sink};
use crate::call::{Call, Collective};
use crate::element::ElementType;

/// The call that messages belong to.
fn call() -> Call {
    Call::plain(1, Collective::SendVaried, ElementType::U8, 0)
}

/// Bytes that arrive a few at a time.
struct Pieces<'a> {
    left: &'a [u8],
    most: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = self.most.min(buffer.len());
        self.left.read(&mut buffer[..most])
    }
}

/// A message: what becomes of it, how many bytes arrive at a time, its length or the longest that is taken, then the bytes.
pub fn frame(input: &[u8]) -> bool {
    let [kind, most, low, high, stream @ ..] = input else { return false };
    let length = usize::from(u16::from_le_bytes([*low, *high]));
    let (mut filled, mut taken, mut folded) = (vec![0; length], Vec::new(), Vec::new());
    let mut fold = |piece: &[u8]| {
        assert!(piece.len().is_multiple_of(4) && piece.as_ptr().addr().is_multiple_of(4));
        folded.extend_from_slice(piece);
    };
    let sink = match kind % 3 {
        0 => Sink::Fill(&mut filled),
        1 => Sink::Take { into: &mut taken, limit: length },
        _ => Sink::Fold { bytes: length / 4 * 4, grain: 4, fold: &mut fold },
    };
    let mut tray = tray();
    let mut reader = StreamReader::new(&call(), Incoming { from: 0, sink }, &mut tray);
    let mut pieces = Pieces { left: stream, most: usize::from(*most).max(1) * 64 };
    while !reader.is_done() {
        if reader.advance(&mut pieces).is_err() {
            return false;
        }
    }
    let data = match kind % 3 {
        0 => filled,
        1 => taken,
        _ => folded,
    };
    assert!(data.len() <= length && (data.is_empty() || stream.windows(data.len()).any(|part| part == data)));
    true
}

#[cfg(test)]
mod tests {
    use super::super::Outgoing;
    use super::super::stream::StreamWriter;
    use super::*;

    fn written(kind: u8, length: u16) -> Vec<u8> {
        let data: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        let mut stream = Vec::new();
        let mut writer = StreamWriter::new(&call(), Outgoing { to: 0, data: &data });
        while !writer.is_done() {
            writer.advance(&mut stream).unwrap();
        }
        [&[kind, 16][..], &length.to_le_bytes(), &stream].concat()
    }

    #[test]
    fn frames() {
        let seeds = [(0, 0), (0, 5), (1, 100), (2, 64), (0, 20_000), (1, 20_000), (2, 20_000)];
        crate::replay::replay("frame", frame, &seeds.map(|(kind, length)| written(kind, length)));
    }
}
