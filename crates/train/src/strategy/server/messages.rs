//! What workers and servers say to each other. A message is five numbers; the numbers of a model follow it as they are.

/// Bytes of a message.
pub const LENGTH: usize = 5 * size_of::<u64>();

/// What a worker says to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// A piece of a gradient follows.
    Push(Push),
    /// It wants the parameters for its next step.
    Pull,
    /// It has done its last step, and wants the parameters that all end with.
    Finish,
    /// It stands between two steps and is about to be saved under this name, and wants servers to be, too.
    Save(u64),
    /// It leaves before the end, and wants nothing.
    Leave,
}

/// A piece of a gradient. A worker sends the pieces of one in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Push {
    /// What the server has said about the parameters that it was computed from.
    pub version: u64,
    /// Images of the worker's step.
    pub images: u64,
    /// Where it begins in the server's shard.
    pub start: u64,
    /// How many numbers it has.
    pub length: u64,
}

/// What a server says to a worker that has asked for parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// They follow.
    Values {
        /// To be said with the gradient that is computed from them.
        version: u64,
        /// Which step of the job they are for.
        step: u64,
        /// There is no step left.
        end: bool,
    },
    /// They will, but not yet: it is other workers that the server waits for.
    Patience,
    /// The server's state is copied; nothing follows.
    Saved,
}

impl Request {
    /// As bytes.
    pub fn encode(self) -> [u8; LENGTH] {
        to_bytes(match self {
            Self::Push(Push { version, images, start, length }) => [0, version, images, start, length],
            Self::Pull => [1, 0, 0, 0, 0],
            Self::Finish => [2, 0, 0, 0, 0],
            Self::Save(name) => [3, name, 0, 0, 0],
            Self::Leave => [4, 0, 0, 0, 0],
        })
    }

    /// From bytes, unless they mean nothing.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match from_bytes(bytes)? {
            [0, version, images, start, length] => Some(Self::Push(Push { version, images, start, length })),
            [1, 0, 0, 0, 0] => Some(Self::Pull),
            [2, 0, 0, 0, 0] => Some(Self::Finish),
            [3, name, 0, 0, 0] => Some(Self::Save(name)),
            [4, 0, 0, 0, 0] => Some(Self::Leave),
            _ => None,
        }
    }
}

impl Answer {
    /// As bytes.
    pub fn encode(self) -> [u8; LENGTH] {
        to_bytes(match self {
            Self::Values { version, step, end } => [0, version, step, u64::from(end), 0],
            Self::Patience => [1, 0, 0, 0, 0],
            Self::Saved => [2, 0, 0, 0, 0],
        })
    }

    /// From bytes, unless they mean nothing.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match from_bytes(bytes)? {
            [0, version, step, end @ 0..=1, 0] => Some(Self::Values { version, step, end: end == 1 }),
            [1, 0, 0, 0, 0] => Some(Self::Patience),
            [2, 0, 0, 0, 0] => Some(Self::Saved),
            _ => None,
        }
    }
}

fn to_bytes(numbers: [u64; 5]) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    for (bytes, number) in bytes.chunks_exact_mut(size_of::<u64>()).zip(numbers) {
        bytes.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

fn from_bytes(bytes: &[u8]) -> Option<[u64; 5]> {
    let (numbers, rest) = bytes.as_chunks::<{ size_of::<u64>() }>();
    let numbers: [_; 5] = numbers.try_into().ok()?;
    rest.is_empty().then(|| numbers.map(u64::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_heard_and_nothing_else_is() {
        let push = Push { version: u64::MAX, images: 2, start: 3, length: 4 };
        for request in [Request::Push(push), Request::Pull, Request::Finish, Request::Save(u64::MAX), Request::Leave] {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        for answer in [false, true]
            .map(|end| Answer::Values { version: 1, step: 2, end })
            .into_iter()
            .chain([Answer::Patience, Answer::Saved])
        {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
        let strange = to_bytes([7, 0, 0, 0, 0]);
        for bytes in
            [&strange[..], &strange[1..], &[], &Request::Pull.encode()[..LENGTH - 1], &to_bytes([1, 1, 0, 0, 0])]
        {
            assert_eq!((Request::decode(bytes), Answer::decode(bytes)), (None, None));
        }
    }
}
