//! How both sides of a connection prove that they know the job's secret, without saying it.
//!
//! ```text
//! door                                              caller
//!   challenge: magic, nonce                    -->
//!                <--   response: nonce, introduction, HMAC(secret, "caller", challenge, nonce, introduction)
//!   answer: HMAC(secret, "door", challenge, response)  -->
//! ```
//!
//! Both nonces are random and new for each connection, so what was heard on one proves nothing on another; and the two
//! proofs begin with different words, so neither can be sent back as the other. The door reads a response only once its
//! proof is right, and the caller says nothing more before it has seen the answer. HMAC with SHA-256 is that of RFC 2104.

use std::io;
use std::net::TcpStream;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Role;
use super::host::{HostId, NetworkId};

const MAGIC: [u8; 8] = *b"ringstp5";
/// What a door says instead that wants to hear TLS first.
const ENCRYPTED: [u8; 8] = *b"ringtls4";
const NONCE: usize = 32;
const PROOF: usize = 32;

/// The length of a challenge.
pub(super) const CHALLENGE: usize = 64;
/// The length of a response. All lengths are multiples of 32, so that messages behind them begin at one.
pub(super) const RESPONSE: usize = NONCE + Introduction::LENGTH + PROOF;

/// What a door says first.
pub(super) type Challenge = [u8; CHALLENGE];
/// What a caller says to it.
pub(super) type Response = [u8; RESPONSE];
/// What the door says to that.
pub(super) type Answer = [u8; PROOF];

/// What only the ranks of one job know, and whether they encrypt what they say.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret {
    key: [u8; 32],
    encryption: Encryption,
}

/// Which connections are encrypted. All ranks of a job must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Encryption {
    /// None.
    #[default]
    None,
    /// All that leave a host.
    BetweenHosts,
    /// All.
    Everywhere,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// One that nobody knows yet.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Self::new(bytes))
    }

    /// That of a text that all ranks of a job were given.
    pub fn of(text: &[u8]) -> Self {
        Self::new(Sha256::digest(text).into())
    }

    fn new(key: [u8; 32]) -> Self {
        Self { key, encryption: Encryption::None }
    }

    /// The same for ranks that encrypt these connections.
    pub fn encrypting(self, encryption: Encryption) -> Self {
        Self { encryption, ..self }
    }

    /// Which connections are encrypted.
    pub fn encryption(&self) -> Encryption {
        self.encryption
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.key
    }

    /// Whether what is said on this connection is encrypted. One whose ends have the same address does not leave its host.
    pub(super) fn encrypts(&self, socket: &TcpStream) -> io::Result<bool> {
        Ok(match self.encryption {
            Encryption::None => false,
            Encryption::Everywhere => true,
            Encryption::BetweenHosts => {
                let [own, other] = [socket.local_addr()?, socket.peer_addr()?].map(|end| end.ip().to_canonical());
                own != other
            }
        })
    }

    /// Another, which whoever knows this one can compute from something that needs not be secret.
    pub fn derive(&self, from: &[u8]) -> Self {
        let key = self.mac(b"ringstep derived", &[from]).finalize().into_bytes().into();
        Self { key, encryption: self.encryption }
    }

    fn mac(&self, label: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes keys of any length");
        [label].iter().chain(parts).for_each(|part| mac.update(part));
        mac
    }

    fn of_caller(&self, challenge: &Challenge, response: &Response) -> Hmac<Sha256> {
        self.mac(b"ringstep caller", &[challenge, &response[..RESPONSE - PROOF]])
    }

    fn of_door(&self, challenge: &Challenge, response: &Response) -> Hmac<Sha256> {
        self.mac(b"ringstep door", &[challenge, response])
    }

    /// The door's first words.
    pub(super) fn challenge() -> std::io::Result<Challenge> {
        let mut challenge = [0; CHALLENGE];
        challenge[..MAGIC.len()].copy_from_slice(&MAGIC);
        getrandom::fill(&mut challenge[MAGIC.len()..][..NONCE])?;
        Ok(challenge)
    }

    /// What a door says before TLS.
    pub(super) fn invitation_to_encrypt() -> Challenge {
        let mut greeting = [0; CHALLENGE];
        greeting[..ENCRYPTED.len()].copy_from_slice(&ENCRYPTED);
        greeting
    }

    /// What the first words of a door say about encryption; `None` if they say nothing.
    pub(super) fn is_encrypted(greeting: &Challenge) -> Option<bool> {
        match *greeting.first_chunk()? {
            MAGIC => Some(false),
            ENCRYPTED => Some(true),
            _ => None,
        }
    }

    /// The caller's words to a challenge; `None` if it is none.
    pub(super) fn respond(
        &self,
        challenge: &Challenge,
        introduction: &Introduction,
    ) -> std::io::Result<Option<Response>> {
        if challenge[..MAGIC.len()] != MAGIC {
            return Ok(None);
        }
        let mut response = [0; RESPONSE];
        getrandom::fill(&mut response[..NONCE])?;
        response[NONCE..][..Introduction::LENGTH].copy_from_slice(&introduction.encode());
        let proof = self.of_caller(challenge, &response).finalize().into_bytes();
        response[RESPONSE - PROOF..].copy_from_slice(&proof);
        Ok(Some(response))
    }

    /// Who calls, and what to answer; `None` for whoever does not know the secret.
    pub(super) fn admit(&self, challenge: &Challenge, response: &Response) -> Option<(Introduction, Answer)> {
        // In constant time.
        self.of_caller(challenge, response).verify_slice(&response[RESPONSE - PROOF..]).ok()?;
        let introduction = Introduction::decode(&response[NONCE..RESPONSE - PROOF])?;
        Some((introduction, self.of_door(challenge, response).finalize().into_bytes().into()))
    }

    /// Whether the door knows the secret too.
    pub(super) fn trusts(&self, challenge: &Challenge, response: &Response, answer: &Answer) -> bool {
        self.of_door(challenge, response).verify_slice(answer).is_ok()
    }
}

/// Who calls, and where it can be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Introduction {
    pub role: Role,
    /// The number of the rank or process.
    pub number: u32,
    /// How many there are of its kind.
    pub of: u32,
    /// That of the ranks which a peer belongs to; nobody else knows one.
    pub generation: u32,
    /// Where a rank listens.
    pub port: u16,
    /// The address that it listens at, as one of IPv6; if unspecified, that from which it calls.
    pub address: [u8; 16],
    pub host: HostId,
    /// What it reaches by loopback.
    pub network: NetworkId,
}

impl Introduction {
    pub const LENGTH: usize = 64;

    pub fn encode(&self) -> [u8; Self::LENGTH] {
        let role = match self.role {
            Role::Rank => 1,
            Role::Peer => 2,
            Role::Process => 3_u8,
        };
        let mut bytes = [0; Self::LENGTH];
        bytes[0] = role;
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.of.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.port.to_le_bytes());
        bytes[20..32].copy_from_slice(&self.network.0);
        bytes[32..48].copy_from_slice(&self.address);
        bytes[48..64].copy_from_slice(&self.host.0);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let line = |at: usize| bytes[at..at + 16].try_into().expect("sixteen bytes");
        let role = match bytes[0] {
            1 => Role::Rank,
            2 => Role::Peer,
            3 => Role::Process,
            _ => return None,
        };
        let port = u16::from_le_bytes([bytes[16], bytes[17]]);
        let (number, of, generation) = (word(4), word(8), word(12));
        let network = NetworkId(bytes[20..32].try_into().expect("twelve bytes"));
        Some(Self { role, number, of, generation, port, address: line(32), host: HostId(line(48)), network })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn introduction() -> Introduction {
        let (address, host, network) = ([7; 16], HostId([9; 16]), NetworkId([8; 12]));
        Introduction { role: Role::Peer, number: 3, of: 5, generation: 2, port: 4711, address, host, network }
    }

    #[test]
    fn both_sides_prove_that_they_know_the_secret() {
        let secret = Secret::of(b"something that all were given");
        let challenge = Secret::challenge().unwrap();
        let response = secret.respond(&challenge, &introduction()).unwrap().unwrap();
        let (heard, answer) = secret.admit(&challenge, &response).unwrap();
        assert_eq!(heard, introduction());
        assert!(secret.trusts(&challenge, &response, &answer));
    }

    #[test]
    fn what_was_heard_on_one_connection_proves_nothing_on_another() {
        let secret = Secret::random().unwrap();
        let challenge = Secret::challenge().unwrap();
        let response = secret.respond(&challenge, &introduction()).unwrap().unwrap();
        let (_, answer) = secret.admit(&challenge, &response).unwrap();
        let next = Secret::challenge().unwrap();
        assert!(secret.admit(&next, &response).is_none());
        let again = secret.respond(&challenge, &introduction()).unwrap().unwrap();
        assert!(!secret.trusts(&challenge, &again, &answer));
        // Nor can a proof be sent back to whoever made it.
        assert!(!secret.trusts(&challenge, &response, response[RESPONSE - PROOF..].try_into().unwrap()));
    }

    #[test]
    fn neither_side_believes_a_bit_less() {
        let (secret, other) = (Secret::of(b"one"), Secret::of(b"another"));
        let challenge = Secret::challenge().unwrap();
        let response = secret.respond(&challenge, &introduction()).unwrap().unwrap();
        assert!(other.admit(&challenge, &response).is_none());
        for bit in 0..RESPONSE * 8 {
            let mut changed = response;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(secret.admit(&challenge, &changed).is_none(), "bit {bit}");
        }
        let (_, answer) = secret.admit(&challenge, &response).unwrap();
        assert!(!other.trusts(&challenge, &response, &answer));
        assert!(secret.respond(&[0; CHALLENGE], &introduction()).unwrap().is_none());
    }

    #[test]
    fn a_derived_secret_encrypts_alike() {
        let secret = Secret::of(b"one").encrypting(Encryption::BetweenHosts);
        assert_eq!(secret.derive(b"x").encryption(), Encryption::BetweenHosts);
    }

    #[test]
    fn a_derived_secret_is_another_one() {
        let secret = Secret::of(b"one");
        assert_eq!(secret.derive(b"x"), secret.derive(b"x"));
        assert_ne!(secret.derive(b"x"), secret.derive(b"y"));
        assert_ne!(secret.derive(b"x"), Secret::of(b"two").derive(b"x"));
        assert_eq!(format!("{secret:?}"), "Secret");
    }
}
