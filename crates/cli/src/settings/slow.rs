//! Which workers of a row are made slow, as users write it.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, anyhow};
use ringstep_train::slow::Slow;

use crate::names::{Refusal, as_text};

/// `none`, `3:4`, `3:4:0.1`, or several ranks as in `1:2+3:4`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SlowRanks(pub Vec<Slow>);

const NONE: &str = "none";

impl FromStr for SlowRanks {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        if text == NONE {
            return Ok(Self::default());
        }
        let ranks = text.split('+').map(|one| {
            parse(one).with_context(|| {
                format!("--slow {one}: write RANK:FACTOR or RANK:FACTOR:PROBABILITY, as in 3:4 or 3:4:0.1")
            })
        });
        let ranks = ranks.collect::<anyhow::Result<Vec<Slow>>>()?;
        match (1..ranks.len()).find(|&at| ranks[..at].iter().any(|other| other.rank == ranks[at].rank)) {
            Some(twice) => Err(anyhow!("--slow {text}: rank {} is given twice", ranks[twice].rank).into()),
            None => Ok(Self(ranks)),
        }
    }
}

fn parse(text: &str) -> Option<Slow> {
    let mut parts = text.split(':');
    let (rank, factor) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let probability = parts.next().map_or(Some(1.0), |text| text.parse().ok())?;
    parts.next().is_none().then_some(Slow { rank, factor, probability })
}

impl fmt::Display for SlowRanks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(NONE);
        }
        for (at, Slow { rank, factor, probability }) in self.0.iter().enumerate() {
            let and = if at == 0 { "" } else { "+" };
            write!(f, "{and}{rank}:{factor}")?;
            if *probability != 1.0 {
                write!(f, ":{probability}")?;
            }
        }
        Ok(())
    }
}

as_text!([] SlowRanks);

/// How tables and plots call them.
pub fn title(slow: &[Slow]) -> String {
    let one = |Slow { rank, factor, probability }: &Slow| match *probability {
        1.0 => format!("rank {rank} slowed {factor}x"),
        _ => format!("rank {rank} slowed {factor}x in {}% of steps", (probability * 1e8).round() / 1e6),
    };
    slow.iter().map(one).collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_ranks_are_written_as_they_are_read() {
        for (text, shown) in [
            ("none", ""),
            ("3:4", "rank 3 slowed 4x"),
            ("3:1.5:0.1", "rank 3 slowed 1.5x in 10% of steps"),
            ("1:2+3:4", "rank 1 slowed 2x and rank 3 slowed 4x"),
        ] {
            let ranks: SlowRanks = text.parse().unwrap();
            assert_eq!(ranks.to_string(), text);
            assert_eq!(title(&ranks.0), shown);
        }
        let refused = |text: &str| text.parse::<SlowRanks>().unwrap_err().to_string();
        assert_eq!(refused("1:2+1:3"), "--slow 1:2+1:3: rank 1 is given twice");
        for text in ["", "3", "3:", "-1:4", "a:4", "3:4:0.1:7", "1:2+"] {
            assert!(refused(text).contains("write RANK:FACTOR or RANK:FACTOR:PROBABILITY"), "{text}");
        }
    }
}
