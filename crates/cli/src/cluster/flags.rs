//! What flags and the environment say about where the processes of a job run.

use std::fs::{self, File};
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use ringstep_comm::rendezvous::Secret;

use super::{Arrangement, Environment, Part, Place, Placement, Share};

/// Flags about jobs of several processes or hosts. They say how a job is run here and now, so a run does not record them.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterFlags {
    /// Number of nodes: this command is started on each of them, and starts workers of its own there
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub nodes: Option<usize>,
    /// Which of them this is, from 0; the first writes the report
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub node_rank: Option<usize>,
    /// Where processes that were not started by ringstep meet: a port of the first one's host [default: what their launcher
    /// says; on one host, a place named after the job]
    #[arg(long, value_name = "HOST:PORT", hide_short_help = true)]
    pub rendezvous: Option<String>,
    /// Start the workers on each of these hosts, by ssh; this program is there under the same path
    #[arg(long, value_name = "HOST,HOST,...", value_delimiter = ',', hide_short_help = true)]
    pub hosts: Vec<String>,
    /// A file that holds what only this job's processes know [default: the variable RINGSTEP_SECRET]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub secret_file: Option<PathBuf>,
    /// The network interface, by name or address, at which other hosts find this one [default: what the routing table picks]
    #[arg(long, value_name = "NAME|ADDRESS", hide_short_help = true)]
    pub interface: Option<String>,
}

/// The variable that says what a job's processes know.
const SECRET: &str = "RINGSTEP_SECRET";
/// A secret that is shorter can be guessed by whoever has heard a proof of it.
const SHORTEST_SECRET: usize = 16;
/// The most that is read of a file with a secret.
const LONGEST_SECRET: u64 = 4096;

impl ClusterFlags {
    /// What these flags and the environment say about where the job's processes run.
    pub fn arrange(&self, environment: &Environment) -> Result<Arrangement> {
        let secret = self.secret(environment)?;
        let interface = self.interface()?;
        let rendezvous = self.rendezvous.as_deref().map(host_and_port).transpose()?;
        if !self.hosts.is_empty() {
            let foreign = [("--nodes", self.nodes.is_some()), ("--rendezvous", rendezvous.is_some())];
            if let Some((flag, _)) = foreign.iter().find(|(_, given)| *given) {
                bail!("{flag} is for processes that you start yourself; --hosts starts them");
            }
            return Ok(Arrangement::Hosts { names: self.hosts.clone(), interface });
        }
        if let Some(nodes) = self.nodes {
            return self.node(nodes, environment, rendezvous, secret, interface);
        }
        ensure!(self.node_rank.is_none(), "--node-rank says which of --nodes this is: give both");
        let Some(placement) = Placement::find(environment)? else {
            ensure!(
                rendezvous.is_none(),
                "--rendezvous is for several processes, and nothing says that this is one of them"
            );
            return Ok(Arrangement::Here);
        };
        let Placement { launcher, process, processes, share, .. } = placement;
        let on_one_host = placement.is_one_host();
        let address = match rendezvous {
            Some(address) => Some(address),
            None if on_one_host => None,
            None => Some(placement.rendezvous.with_context(|| {
                format!("{launcher} has started {processes} processes, and nothing says where they meet: --rendezvous HOST:PORT")
            })?),
        };
        let job = match placement.job {
            Some(job) => job,
            None => named_after_the_launcher()?,
        };
        let place = Place::new(address, secret, &job)?;
        let launcher = launcher.to_string();
        Ok(Arrangement::Part(Part { launcher, process, processes, share, each: 1, place, interface }))
    }

    /// The part of a node.
    fn node(
        &self,
        nodes: usize,
        environment: &Environment,
        rendezvous: Option<(String, u16)>,
        secret: Option<Secret>,
        interface: Option<IpAddr>,
    ) -> Result<Arrangement> {
        ensure!(nodes > 0, "--nodes is 0: there is at least one");
        let index = environment.get("JOB_COMPLETION_INDEX").and_then(|index| index.parse().ok());
        let node = self.node_rank.or(index);
        let node = node.with_context(|| format!("--nodes {nodes}: --node-rank says which of them this is"))?;
        ensure!(node < nodes, "--node-rank is {node} and --nodes is {nodes}: nodes count from 0");
        if nodes == 1 {
            return Ok(Arrangement::Here);
        }
        let address =
            rendezvous.with_context(|| format!("--nodes {nodes}: --rendezvous HOST:PORT says where they meet"))?;
        let place = Place::new(Some(address), secret, "")?;
        let (launcher, share) = ("whoever gave --nodes".to_owned(), Share::Node(None));
        Ok(Arrangement::Part(Part { launcher, process: node, processes: nodes, share, each: 1, place, interface }))
    }

    /// What the job's processes were given.
    fn secret(&self, environment: &Environment) -> Result<Option<Secret>> {
        let (from, text) = match (&self.secret_file, environment.get(SECRET)) {
            (Some(path), _) => (path.display().to_string(), read_secret(path)?),
            (None, Some(text)) => (SECRET.to_owned(), text.clone().into_bytes()),
            (None, None) => return Ok(None),
        };
        let text = text.trim_ascii();
        ensure!(
            text.len() >= SHORTEST_SECRET,
            "{from}: a secret of {} bytes can be guessed: use at least {SHORTEST_SECRET}, as from openssl rand -hex 32",
            text.len()
        );
        Ok(Some(Secret::of(text)))
    }

    /// The address of the interface that was named.
    fn interface(&self) -> Result<Option<IpAddr>> {
        let Some(name) = &self.interface else { return Ok(None) };
        if let Ok(address) = name.parse() {
            return Ok(Some(address));
        }
        let all = if_addrs::get_if_addrs().context("--interface")?;
        let mut addresses: Vec<IpAddr> =
            all.iter().filter(|interface| &interface.name == name).map(if_addrs::Interface::ip).collect();
        addresses.sort_by_key(IpAddr::is_ipv6);
        match addresses.first() {
            Some(address) => Ok(Some(*address)),
            None => {
                let mut names: Vec<&str> = all.iter().map(|interface| interface.name.as_str()).collect();
                names.dedup();
                bail!("--interface {name}: this host has {}", names.join(", "))
            }
        }
    }
}

/// `HOST:PORT`.
fn host_and_port(text: &str) -> Result<(String, u16)> {
    let parsed =
        text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok().filter(|&port: &u16| port > 0)?)));
    let (host, port) =
        parsed.filter(|(host, _)| !host.is_empty()).with_context(|| format!("--rendezvous {text}: write HOST:PORT"))?;
    Ok((host.trim_matches(['[', ']']).to_owned(), port))
}

/// A name for a job whose launcher has none: it is the only process with its number that began when it did.
fn named_after_the_launcher() -> Result<String> {
    let parent = std::os::unix::process::parent_id();
    let status = format!("/proc/{parent}/stat");
    let text = fs::read_to_string(&status).with_context(|| status.clone())?;
    // The name in parentheses may hold anything; the time of its start is the twentieth field behind it.
    let began = text.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(19));
    Ok(format!("parent-{parent}-{}", began.context(status)?))
}

fn read_secret(path: &Path) -> Result<Vec<u8>> {
    let read = |file: File| {
        let kind = file.metadata()?.file_type();
        if kind.is_char_device() || kind.is_block_device() {
            return Err(std::io::Error::other("it is a device, which everybody can read"));
        }
        let mut text = Vec::new();
        file.take(LONGEST_SECRET).read_to_end(&mut text).map(|_| text)
    };
    File::open(path).and_then(read).with_context(|| format!("--secret-file {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrange(flags: &ClusterFlags, variables: &[(&str, &str)]) -> Result<Arrangement> {
        flags.arrange(&variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect())
    }

    const MPI: [(&str, &str); 4] =
        [("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")];

    #[test]
    fn what_makes_no_sense_is_refused_in_one_line() {
        let flags = ClusterFlags::default;
        let text = |text: &str| Some(text.to_owned());
        let secret = ("RINGSTEP_SECRET", "0123456789abcdef");
        for (flags, variables, told) in [
            (
                ClusterFlags { node_rank: Some(1), ..flags() },
                vec![],
                "--node-rank says which of --nodes this is: give both",
            ),
            (ClusterFlags { nodes: Some(2), ..flags() }, vec![], "--nodes 2: --node-rank says which of them this is"),
            (
                ClusterFlags { nodes: Some(2), node_rank: Some(2), ..flags() },
                vec![],
                "--node-rank is 2 and --nodes is 2: nodes count from 0",
            ),
            (
                ClusterFlags { nodes: Some(2), node_rank: Some(0), ..flags() },
                vec![],
                "--nodes 2: --rendezvous HOST:PORT says where they meet",
            ),
            (ClusterFlags { rendezvous: text("node1"), ..flags() }, vec![], "--rendezvous node1: write HOST:PORT"),
            (
                ClusterFlags { rendezvous: text("node1:80"), ..flags() },
                vec![],
                "--rendezvous is for several processes, and nothing says that this is one of them",
            ),
            (
                ClusterFlags { hosts: vec!["a".to_owned()], nodes: Some(2), ..flags() },
                vec![],
                "--nodes is for processes that you start yourself; --hosts starts them",
            ),
            (
                flags(),
                MPI.to_vec(),
                "MPICH has started 4 processes, and nothing says where they meet: --rendezvous HOST:PORT",
            ),
            (
                ClusterFlags { rendezvous: text("node1:80"), ..flags() },
                MPI.to_vec(),
                "processes meet at node1:80, where others may come too: give all of them one secret, by RINGSTEP_SECRET or \
                 --secret-file",
            ),
            (
                flags(),
                vec![("RINGSTEP_SECRET", "short")],
                "RINGSTEP_SECRET: a secret of 5 bytes can be guessed: use at least 16, as from openssl rand -hex 32",
            ),
        ] {
            assert_eq!(arrange(&flags, &variables).unwrap_err().to_string(), told);
        }
        let named = ClusterFlags { rendezvous: text("node1:80"), ..flags() };
        let with_secret = [&MPI[..], &[secret]].concat();
        let Arrangement::Part(part) = arrange(&named, &with_secret).unwrap() else { panic!("it is one of four") };
        assert!(matches!(&part.place, Place::Address { host, port: 80, .. } if host == "node1"), "{part:?}");
    }

    #[test]
    fn an_interface_has_a_name_or_an_address() {
        let interface =
            |name: &str| ClusterFlags { interface: Some(name.to_owned()), ..Default::default() }.interface();
        assert_eq!(interface("10.1.2.3").unwrap(), Some("10.1.2.3".parse().unwrap()));
        assert_eq!(interface("lo").unwrap(), Some("127.0.0.1".parse().unwrap()));
        let told = interface("no-such").unwrap_err().to_string();
        assert!(told.starts_with("--interface no-such: this host has lo"), "{told}");
    }
}
