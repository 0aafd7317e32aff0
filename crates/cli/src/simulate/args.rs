//! The words of `ringstep simulate`.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use ringstep_comm::transport::Net;
use ringstep_sim::{Failures, Slowness};

use crate::names::{ByName, Bytes, Refusal, choices};
use crate::settings::{CompressFlags, ModelName, SlowRanks, SyncFlags, latency, rate};

#[derive(Args)]
pub struct SimulateArgs {
    /// The network, by name or as a file.toml
    #[arg(long, default_value = "vgg11")]
    pub model: ModelName,
    /// Images a worker takes in a step
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub batch: usize,
    /// Numbers of workers: a list, or from .. to in powers of two
    #[arg(long, value_name = "LIST|FROM..TO", default_value = "2..4096")]
    pub workers: Scales,
    /// The link of each host to the others: bandwidth and latency
    #[arg(long, value_name = "LINK", default_value = "25gbit,20us")]
    pub network: Wire,
    /// Workers on each host, which share its link
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub hosts: usize,
    /// The link of each worker to others of its host
    #[arg(long, value_name = "LINK", default_value = "40GB,1us")]
    pub inside: Wire,
    /// Cores of each host, if its workers have to share them [default: as many as they want]
    #[arg(long, value_name = "N")]
    pub cores: Option<usize>,
    /// Threads that each worker computes on
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// What messages cost a worker's cores: free, nothing; tcp or shm, what they cost on this machine
    #[arg(long, value_name = "free|tcp|shm", default_value = "free")]
    pub messages: ByName<Messages>,
    /// Start each of the two processes whose messages are timed by this command, in which {rank} is 0 or 1
    #[arg(long, value_name = "COMMAND", hide_short_help = true)]
    pub start_with: Option<String>,
    /// Address of this machine at which they meet, if they have networks of their own [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    pub meet: Option<IpAddr>,
    /// What links pass at once after a pause, as token buckets do
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub burst: Bytes,
    /// How fast a worker computes: as measured here, or so many GFLOP/s
    #[arg(long, value_name = "measured|GFLOPS", default_value = "measured")]
    pub compute: Compute,
    #[command(flatten)]
    pub sync: SyncFlags,
    #[command(flatten)]
    pub compress: CompressFlags,
    /// Workers that are slow: RANK:FACTOR, RANK:FACTOR:PROBABILITY, several with +; or all of them at random, by
    /// exponential:MEAN or log-normal:SIGMA
    #[arg(long, value_name = "WHO", default_value = "none", help_heading = "Trouble")]
    pub slow: Stragglers,
    /// Workers that fail: between=TIME of one worker's failures, restart=TIME, every=STEPS from checkpoint to checkpoint,
    /// checkpoint=TIME
    #[arg(long, value_name = "WHEN", help_heading = "Trouble")]
    pub failures: Option<Failing>,
    /// Steps to simulate [default: one; where workers differ, or exchange only every so many, several]
    #[arg(long, value_name = "N", help_heading = "Records")]
    pub steps: Option<usize>,
    /// Write what the first workers do at the largest scale, for Perfetto.
    #[arg(long, value_name = "FILE", help_heading = "Records")]
    pub trace: Option<PathBuf>,
    /// Write a page with plots into this folder.
    #[arg(long, value_name = "DIR", help_heading = "Records")]
    pub out: Option<PathBuf>,
    /// Print it as JSON on standard output, and nothing else there.
    #[arg(long, help_heading = "Records")]
    pub json: bool,
}

choices! {
    /// What messages cost a worker's cores.
    pub enum Messages: "cost of messages" {
        /// Nothing: there is only the time of the links.
        Free = "free",
        /// What they cost over TCP on this machine.
        Tcp = "tcp",
        /// What they cost in shared memory on this machine.
        Shm = "shm",
    }
}

/// This machine's speed.
const MEASURED: &str = "measured";

/// How fast a worker computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Compute {
    Measured,
    /// Operations a second.
    Rate(f64),
}

impl FromStr for Compute {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        if text == MEASURED {
            return Ok(Self::Measured);
        }
        let gigas = text.parse::<f64>().ok().filter(|gigas| *gigas > 0.0 && gigas.is_finite());
        let wrong = || anyhow!("--compute {text}: write measured, or GFLOP/s as a number above 0");
        Ok(Self::Rate(gigas.ok_or_else(wrong)? * 1e9))
    }
}

/// A link as users write it: `25gbit,20us`.
#[derive(Debug, Clone, PartialEq)]
pub struct Wire {
    text: String,
    pub net: Net,
}

impl FromStr for Wire {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let (bandwidth, delay) = text.split_once(',').unwrap_or((text, "0s"));
        let net = rate(bandwidth.trim()).zip(latency(delay.trim()));
        let (bytes_per_second, seconds) = net.with_context(|| {
            format!("'{text}' is no link: write its bandwidth and latency, as in 25gbit,20us or 100Mbit,1ms")
        })?;
        Ok(Self { text: text.to_owned(), net: Net { bytes_per_second, latency: Duration::from_secs_f64(seconds) } })
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// More workers than this are more than anybody waits for.
const MOST_WORKERS: usize = 16_384;

/// Numbers of workers, in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scales(pub Vec<usize>);

impl FromStr for Scales {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        Ok(Self(scales(text).with_context(|| format!("--workers {text}"))?))
    }
}

fn scales(text: &str) -> Result<Vec<usize>> {
    let number = |text: &str| {
        let number = text.trim().parse::<usize>().ok();
        number.with_context(|| "write numbers of workers as in 2,4,8 or 2..4096".to_owned())
    };
    let numbers: Vec<usize> = match text.split_once("..") {
        None => text.split(',').map(number).collect::<Result<_>>()?,
        Some((from, to)) => {
            let (from, to) = (number(from)?, number(to)?);
            ensure!(from <= to, "{from} is more than {to}");
            let doubled = std::iter::successors(Some(from.max(1)), |workers| workers.checked_mul(2));
            let below = doubled.take_while(|workers| *workers < to);
            if from == 0 { vec![0] } else { below.chain([to]).collect() }
        }
    };
    for (at, &workers) in numbers.iter().enumerate() {
        ensure!(workers > 0, "0 workers: at least 1 is needed");
        ensure!(workers <= MOST_WORKERS, "{workers} workers: at most {MOST_WORKERS} can be simulated");
        if at > 0 && workers <= numbers[at - 1] {
            bail!("{workers} comes after {}: numbers of workers ascend", numbers[at - 1]);
        }
    }
    Ok(numbers)
}

/// Who is slow, as users write it.
#[derive(Debug, Clone, PartialEq)]
pub struct Stragglers(pub Slowness);

impl FromStr for Stragglers {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let number = |number: &str| {
            let number = number.parse::<f64>().ok().filter(|number| (0.0..=100.0).contains(number));
            number.with_context(|| format!("--slow {text}: write a number from 0 to 100 behind the colon"))
        };
        Ok(Self(match text.split_once(':') {
            Some(("exponential", mean)) => Slowness::Exponential { mean: number(mean)? },
            Some(("log-normal", sigma)) => Slowness::LogNormal { sigma: number(sigma)? },
            _ => match text.parse::<SlowRanks>()?.0 {
                none if none.is_empty() => Slowness::None,
                some => Slowness::Some(some),
            },
        }))
    }
}

/// Who fails when, as users write it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Failing(pub Failures);

/// Units of times, in seconds.
const TIMES: [(&str, f64); 5] = [("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0), ("d", 86_400.0)];

impl FromStr for Failing {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        Ok(Self(failures(text).with_context(|| format!("--failures {text}"))?))
    }
}

fn failures(text: &str) -> Result<Failures> {
    let time = |text: &str| {
        let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
        let unit = TIMES.iter().find(|(name, _)| *name == unit);
        let seconds = number.trim().parse::<f64>().ok().zip(unit).map(|(number, (_, seconds))| number * seconds);
        seconds
            .filter(|seconds| *seconds >= 0.0 && seconds.is_finite())
            .with_context(|| format!("'{text}' is no time: write a number and ms, s, min, h or d, as in 30d or 2min"))
    };
    let mut between = None;
    let mut found = Failures { between: 0.0, restart: 60.0, every: 1000, checkpoint: 0.0 };
    for part in text.split(',') {
        match part.split_once('=') {
            Some(("between", value)) => between = Some(time(value)?),
            Some(("restart", value)) => found.restart = time(value)?,
            Some(("checkpoint", value)) => found.checkpoint = time(value)?,
            Some(("every", value)) => {
                let steps = value.parse().ok().filter(|steps| *steps > 0);
                found.every = steps.with_context(|| format!("every={value}: write a number of steps, at least 1"))?;
            }
            _ => bail!(
                "'{part}': write between=30d,restart=2min,every=1000,checkpoint=5s; all but the first may be missing"
            ),
        }
    }
    found.between = between.context("between is missing: how often one worker fails, as in between=30d")?;
    ensure!(found.between > 0.0, "between is 0: nothing would ever be done");
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_lists_or_powers_of_two() {
        let of = |text: &str| text.parse::<Scales>().map(|scales| scales.0);
        assert_eq!(of("2..16").unwrap(), [2, 4, 8, 16]);
        assert_eq!(of("3..20").unwrap(), [3, 6, 12, 20]);
        assert_eq!(of("1, 5,7").unwrap(), [1, 5, 7]);
        for (text, told) in [
            ("0", "--workers 0: 0 workers: at least 1 is needed"),
            ("0..8", "--workers 0..8: 0 workers: at least 1 is needed"),
            ("4,2", "--workers 4,2: 2 comes after 4: numbers of workers ascend"),
            ("4..2", "--workers 4..2: 4 is more than 2"),
            ("99999", "--workers 99999: 99999 workers: at most 16384 can be simulated"),
            ("two", "--workers two: write numbers of workers as in 2,4,8 or 2..4096"),
        ] {
            assert_eq!(of(text).unwrap_err().to_string(), told);
        }
    }

    #[test]
    fn links_have_a_bandwidth_and_perhaps_a_latency() {
        let of = |text: &str| text.parse::<Wire>().map(|wire| (wire.net.bytes_per_second, wire.net.latency));
        assert_eq!(of("25gbit,20us").unwrap(), (3.125e9, Duration::from_micros(20)));
        assert_eq!(of("100Mbit/s, 1ms").unwrap(), (12.5e6, Duration::from_millis(1)));
        assert_eq!(of("10GB").unwrap(), (10e9, Duration::ZERO));
        for text in ["", "fast", "25", "25gbit,20", "0gbit,1us", "1gbit,1us,2us"] {
            assert!(of(text).unwrap_err().to_string().starts_with(&format!("'{text}' is no link: ")), "{text}");
        }
    }

    #[test]
    fn trouble_is_read() {
        let slow = |text: &str| text.parse::<Stragglers>().map(|slow| slow.0);
        assert_eq!(slow("none").unwrap(), Slowness::None);
        assert_eq!(slow("exponential:0.2").unwrap(), Slowness::Exponential { mean: 0.2 });
        assert_eq!(slow("log-normal:0.3").unwrap(), Slowness::LogNormal { sigma: 0.3 });
        assert!(matches!(slow("3:4+1:2").unwrap(), Slowness::Some(slow) if slow.len() == 2));
        assert!(slow("exponential:x").is_err() && slow("sometimes").is_err());
        let failing = |text: &str| text.parse::<Failing>().map(|failing| failing.0);
        let expected = Failures { between: 2_592_000.0, restart: 120.0, every: 500, checkpoint: 5.0 };
        assert_eq!(failing("between=30d,restart=2min,every=500,checkpoint=5s").unwrap(), expected);
        assert!(failing("restart=1s").unwrap_err().to_string().contains("between is missing"));
        assert!(failing("between=soon").is_err() && failing("between=0s").is_err() && failing("x").is_err());
    }
}
