//! What tells one host from another.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

/// Ranks that have the same can open each other's memory and reach each other by loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HostId(pub [u8; 16]);

/// Processes that have the same reach each other by loopback, and nothing that they say to each other leaves their host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NetworkId(pub [u8; 12]);

impl NetworkId {
    /// That of this process.
    pub fn here() -> std::io::Result<Self> {
        let mut digest = Sha256::new();
        add_boot(&mut digest)?;
        add_namespaces(&mut digest, &["net"]);
        Ok(Self(digest.finalize()[..12].try_into().expect("twelve bytes")))
    }
}

/// The kernel that this process runs on.
fn add_boot(digest: &mut Sha256) -> std::io::Result<()> {
    match fs::read("/proc/sys/kernel/random/boot_id") {
        Ok(boot) => digest.update(boot),
        // Of a host that hides it nothing is known: each rank is then alone.
        Err(_) => {
            let mut alone = [0; 16];
            getrandom::fill(&mut alone)?;
            digest.update(alone);
        }
    }
    Ok(())
}

fn add_namespaces(digest: &mut Sha256, namespaces: &[&str]) {
    for namespace in namespaces {
        let name = fs::read_link(Path::new("/proc/self/ns").join(namespace)).unwrap_or_default();
        digest.update(name.as_os_str().as_encoded_bytes());
        digest.update([0]);
    }
}

impl HostId {
    /// That of this process: the kernel that it runs on, told by what it drew when it booted; the namespaces that decide
    /// which processes it sees under `/proc`, and what it reaches by loopback; and the user, since memory is private to one.
    pub fn here() -> std::io::Result<Self> {
        let mut digest = Sha256::new();
        add_boot(&mut digest)?;
        add_namespaces(&mut digest, &["pid", "net", "user"]);
        digest.update(rustix::process::geteuid().as_raw().to_le_bytes());
        Ok(Self(digest.finalize()[..16].try_into().expect("sixteen bytes")))
    }
}

/// The host of each rank as a small number, in the order of their first ranks.
pub(super) fn numbered(hosts: &[HostId]) -> Vec<usize> {
    let mut known: Vec<HostId> = Vec::new();
    let number = |host: &HostId| {
        known.iter().position(|other| other == host).unwrap_or_else(|| {
            known.push(*host);
            known.len() - 1
        })
    };
    hosts.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_numbered_in_the_order_of_their_first_ranks() {
        let hosts = [5, 1, 5, 9, 1].map(|host| HostId([host; 16]));
        assert_eq!(numbered(&hosts), [0, 1, 0, 2, 1]);
    }

    #[test]
    fn a_host_is_the_same_whenever_it_is_asked() {
        assert_eq!(HostId::here().unwrap(), HostId::here().unwrap());
    }
}
