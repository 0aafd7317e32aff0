//! Where the processes of a job meet, and what keeps strangers out there.
//!
//! Processes that were given a secret meet at an address that they were told. Those that were given none are on one host,
//! and belong to one user: the first makes a secret up, and leaves it with its address in a file that only this user can
//! read. Its name is that of the job, or of the address if there is one.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use ringstep_comm::rendezvous::{Invitation, Meeting, Secret};

/// Where the processes of a job meet.
#[derive(Debug)]
pub enum Place {
    /// At an address that all were told, by a secret that all were given.
    Address {
        /// A name or an address.
        host: String,
        port: u16,
        secret: Secret,
    },
    /// On this host, wherever this file says.
    File {
        path: PathBuf,
        /// The address that it will say, if that is given.
        at: Option<SocketAddr>,
    },
}

impl Place {
    /// The one that goes with an address and a secret, either of which may not have been given; `job` is a name that only the
    /// processes of this job know it by.
    pub fn new(address: Option<(String, u16)>, secret: Option<Secret>, job: &str) -> Result<Self> {
        match (address, secret) {
            (Some((host, port)), Some(secret)) => Ok(Self::Address { host, port, secret }),
            (Some((host, port)), None) => {
                let Some(ip) = loopback(&host) else {
                    bail!(
                        "processes meet at {host}:{port}, where others may come too: give all of them one secret, by \
                         RINGSTEP_SECRET or --secret-file"
                    );
                };
                let path = private_folder()?.join(format!("port-{port}"));
                Ok(Self::File { path, at: Some(SocketAddr::new(ip, port)) })
            }
            (None, _) => Ok(Self::File { path: private_folder()?.join(file_name(job)), at: None }),
        }
    }

    /// Opens it, as the first of the processes. It is on loopback unless a host was named; `interface` is the only address
    /// of this host that it then has.
    pub fn open(&self, interface: Option<IpAddr>) -> Result<(Meeting, Option<Note>)> {
        match self {
            Self::Address { host, port, secret } => {
                let at = loopback(host).or(interface).unwrap_or(Ipv6Addr::UNSPECIFIED.into());
                let meeting = Meeting::open(SocketAddr::new(at, *port), secret.clone());
                Ok((meeting.with_context(|| format!("meet at {host}:{port}"))?, None))
            }
            Self::File { path, at } => {
                let at = at.unwrap_or((Ipv4Addr::LOCALHOST, 0).into());
                let secret = Secret::random().context("no randomness for the job's secret")?;
                let meeting = Meeting::open(at, secret.clone())?;
                let note = Note::leave(path, &Invitation::new(meeting.address(), secret));
                Ok((meeting, Some(note.with_context(|| path.display().to_string())?)))
            }
        }
    }

    /// Where it is, as far as can be known now.
    pub fn find(&self) -> io::Result<(Vec<SocketAddr>, Secret)> {
        match self {
            Self::Address { host, port, secret } => {
                let named = |error: io::Error| io::Error::new(error.kind(), format!("{host}: {error}"));
                Ok(((host.as_str(), *port).to_socket_addrs().map_err(named)?.collect(), secret.clone()))
            }
            Self::File { path, .. } => {
                let named = |error: io::Error| {
                    let told = format!("the first process has not said where it is, in {}: {error}", path.display());
                    io::Error::new(error.kind(), told)
                };
                let text = fs::read_to_string(path).map_err(named)?;
                let Invitation { meeting, secret, .. } = serde_json::from_str(&text)?;
                Ok((vec![meeting], secret))
            }
        }
    }

    /// Whether all processes are on this host.
    pub fn is_here(&self) -> bool {
        match self {
            Self::Address { host, .. } => loopback(host).is_some(),
            Self::File { .. } => true,
        }
    }
}

/// Tells where a meeting is, as long as it lives.
#[derive(Debug)]
pub struct Note(PathBuf);

impl Note {
    fn leave(path: &Path, invitation: &Invitation) -> Result<Self> {
        // Whole or not at all, also where an earlier job has left one of the same name.
        let aside = path.with_extension(std::process::id().to_string());
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
        file.write_all(serde_json::to_string(invitation)?.as_bytes())?;
        fs::rename(&aside, path)?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A folder that only this user can look into.
fn private_folder() -> Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let folder = PathBuf::from(format!("/tmp/ringstep-{user}"));
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => bail!("{}: {error}", folder.display()),
        _ => {}
    }
    let found = fs::symlink_metadata(&folder).with_context(|| folder.display().to_string())?;
    let is_private = found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0;
    ensure!(is_private, "{}: should be a folder that only this user can look into", folder.display());
    Ok(folder)
}

/// The loopback address that a host stands for, if it does.
fn loopback(host: &str) -> Option<IpAddr> {
    match host {
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        _ => host.trim_matches(['[', ']']).parse().ok().filter(IpAddr::is_loopback),
    }
}

/// A job's name as that of a file.
fn file_name(job: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    job.chars().map(plain).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_secret_only_this_host_is_served() {
        let told = Place::new(Some(("node1".to_owned(), 4711)), None, "x").unwrap_err().to_string();
        assert!(
            told.starts_with("processes meet at node1:4711, where others may come too: give all of them one"),
            "{told}"
        );
        for host in ["localhost", "127.0.0.1", "127.3.2.1", "::1", "[::1]"] {
            assert!(Place::new(Some((host.to_owned(), 4711)), None, "x").unwrap().is_here(), "{host}");
        }
    }

    #[test]
    fn processes_of_one_host_find_what_the_first_has_left() {
        let place = Place::new(None, None, &format!("test of {}/1", std::process::id())).unwrap();
        assert!(place.find().is_err());
        let (meeting, note) = place.open(None).unwrap();
        assert_eq!(place.find().unwrap(), (vec![meeting.address()], meeting.secret().clone()));
        assert!(meeting.address().ip().is_loopback());
        let mode = fs::metadata(&note.as_ref().unwrap().0).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(note);
        assert!(place.find().is_err());
    }

    #[test]
    fn names_are_looked_up() {
        let place = Place::Address { host: "localhost".to_owned(), port: 4711, secret: Secret::of(b"x") };
        assert!(place.find().unwrap().0.iter().all(|address| address.ip().is_loopback() && address.port() == 4711));
        let nowhere = Place::Address { host: "no-such-host.invalid".to_owned(), port: 1, secret: Secret::of(b"x") };
        assert!(nowhere.find().unwrap_err().to_string().starts_with("no-such-host.invalid: "));
    }
}
