//! What is heard at a meeting, for fuzzers.

use super::line::receive;
use super::meeting::Directory;
use super::proof::{Answer, Challenge, Introduction, Response, Secret};

/// An introduction, as it is once its proof was right.
pub fn introduction(input: &[u8]) -> bool {
    if input.len() != Introduction::LENGTH {
        return false;
    }
    let Some(introduction) = Introduction::decode(input) else { return false };
    assert_eq!(Introduction::decode(&introduction.encode()), Some(introduction));
    true
}

/// A challenge, the response to it, and the answer to that.
pub fn proof(input: &[u8]) -> bool {
    let Ok(parts) = <&[u8; size_of::<Challenge>() + size_of::<Response>() + size_of::<Answer>()]>::try_from(input)
    else {
        return false;
    };
    let (challenge, rest) = parts.split_first_chunk().expect("it is long enough");
    let (response, answer) = rest.split_first_chunk().expect("it is long enough");
    let (answer, _) = answer.split_first_chunk().expect("it is long enough");
    let secret = Secret::of(b"fuzz");
    let Some((introduction, right)) = secret.admit(challenge, response) else { return false };
    assert!(secret.respond(challenge, &introduction).is_ok() && secret.trusts(challenge, response, &right));
    secret.trusts(challenge, response, answer)
}

/// How many ranks there are, and where they are said to be.
pub fn directory(input: &[u8]) -> bool {
    let [world, text @ ..] = input else { return false };
    let Some(directory) = Directory::parse(text, usize::from(*world)) else { return false };
    let written = directory.to_text();
    assert_eq!(Directory::parse(written.as_bytes(), usize::from(*world)), Some(directory));
    assert!(written.len() <= Directory::longest(usize::from(*world)));
    true
}

/// Messages on a line.
pub fn line(mut input: &[u8]) -> bool {
    let mut messages = 0;
    loop {
        let before = input.len();
        match receive(&mut input) {
            Ok(Some(message)) => messages += usize::from(message.len() < before),
            Ok(None) => return messages > 0 && before == 0,
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Role;
    use super::super::host::{HostId, NetworkId};
    use super::super::meeting::Entry;
    use super::*;
    use crate::replay::replay;

    fn introductions() -> Vec<Introduction> {
        let of = |role, number| {
            let (address, host, network) = (std::array::from_fn(|at| at as u8), HostId([9; 16]), NetworkId([8; 12]));
            Introduction { role, number, of: 5, generation: 2, port: 4711, address, host, network }
        };
        vec![of(Role::Rank, 3), of(Role::Peer, 0), of(Role::Process, u32::MAX)]
    }

    #[test]
    fn introductions_and_proofs() {
        let seeds: Vec<_> = introductions().iter().map(|introduction| introduction.encode().to_vec()).collect();
        replay("introduction", introduction, &seeds);
        let secret = Secret::of(b"fuzz");
        let proved = introductions().into_iter().map(|introduction| {
            let challenge = Secret::challenge().unwrap();
            let response = secret.respond(&challenge, &introduction).unwrap().unwrap();
            let (_, answer) = secret.admit(&challenge, &response).unwrap();
            [&challenge[..], &response, &answer].concat()
        });
        replay("proof", proof, &proved.collect::<Vec<_>>());
    }

    #[test]
    fn directories_and_lines() {
        let entry = |address: &str, host| Entry { address: address.parse().unwrap(), host };
        let entries = vec![entry("10.0.0.2:5000", 0), entry("[fe80::1%3]:65535", 1), entry("127.0.0.1:1", 0)];
        let text = Directory { generation: 3, entries }.to_text();
        replay("directory", directory, &[[&[3], text.as_bytes()].concat(), b"\x000\n".to_vec()]);
        let message = |text: &[u8]| [&(text.len() as u32).to_le_bytes(), text].concat();
        replay("line", line, &[message(b"{}"), [message(b""), message(&[7; 300])].concat()]);
    }
}
