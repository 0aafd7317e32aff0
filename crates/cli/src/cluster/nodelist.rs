//! Slurm's short forms: `node[1-3,07-09],login1` for hosts, `2(x3),1` for numbers.

use anyhow::{Context, Result, ensure};

/// More hosts than any cluster has.
const MOST: usize = 1 << 16;
/// No name of a host is longer, nor has more numbers in it.
const LONGEST: usize = 253;

/// The hosts of a list, in its order.
pub fn hosts(list: &str) -> Result<Vec<String>> {
    let wrong = || format!("{list}: no list of hosts as Slurm writes them");
    let mut hosts = Vec::new();
    for part in parts(list).with_context(wrong)? {
        hosts.extend(expand(part).with_context(wrong)?);
        ensure!(hosts.len() <= MOST, "{list}: more than {MOST} hosts");
    }
    Ok(hosts)
}

/// What commas separate, except those in brackets.
fn parts(list: &str) -> Option<Vec<&str>> {
    let (mut parts, mut begin, mut inside) = (Vec::new(), 0, false);
    for (at, character) in list.char_indices() {
        match character {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => return None,
            ',' if !inside => {
                parts.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[begin..]);
    (!inside && parts.iter().all(|part| !part.is_empty())).then_some(parts)
}

/// The hosts of one part; it may have several brackets.
fn expand(part: &str) -> Option<Vec<String>> {
    let mut hosts = vec![String::new()];
    let mut rest = part;
    while let Some((before, after)) = rest.split_once('[') {
        let (ranges, after) = after.split_once(']')?;
        let numbers = numbers(ranges)?;
        let length = hosts.first()?.len() + before.len() + numbers.iter().map(String::len).max()?;
        if length > LONGEST || hosts.len() * numbers.len() > MOST {
            return None;
        }
        let begun = |host: &String| numbers.iter().map(move |number| format!("{host}{before}{number}")).collect();
        hosts = hosts.iter().flat_map::<Vec<_>, _>(begun).collect();
        rest = after;
    }
    let fits = hosts.first()?.len() + rest.len() <= LONGEST;
    fits.then(|| hosts.into_iter().map(|host| host + rest).collect())
}

/// The numbers of a bracket.
fn numbers(ranges: &str) -> Option<Vec<String>> {
    let mut numbers: Vec<String> = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if from > to || to - from >= MOST || numbers.len() >= MOST || first.len() > LONGEST {
            return None;
        }
        // Numbers have as many digits as the first of their range.
        numbers.extend((from..=to).map(|number| format!("{number:0width$}", width = first.len())));
    }
    Some(numbers)
}

/// How many tasks each host has.
pub fn counts(list: &str) -> Result<Vec<usize>> {
    let wrong = || format!("{list}: no list of numbers as Slurm writes them");
    let mut counts = Vec::new();
    for part in list.split(',') {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')').with_context(wrong)?),
            None => (part, "1"),
        };
        let (count, times) = (count.parse().ok(), times.parse().ok().filter(|&times| times <= MOST));
        let (count, times): (usize, usize) = count.zip(times).with_context(wrong)?;
        counts.extend(std::iter::repeat_n(count, times));
        ensure!(counts.len() <= MOST, "{list}: more than {MOST} hosts");
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_listed_in_short() {
        for (list, all) in [
            ("login1", "login1"),
            ("node[1-3,07-09],login1", "node1 node2 node3 node07 node08 node09 login1"),
            ("a[9-11]", "a9 a10 a11"),
            ("a[098-101]", "a098 a099 a100 a101"),
            ("rack[1-2]n[1,3]x,b", "rack1n1x rack1n3x rack2n1x rack2n3x b"),
        ] {
            assert_eq!(hosts(list).unwrap().join(" "), all);
        }
        for nonsense in ["", "a,", "a[1-", "a]1[", "a[[1]]", "a[3-1]", "a[x]", "a[1-9999999]", "a[1-999][1-999][1-999]"]
        {
            let told = hosts(nonsense).unwrap_err().to_string();
            assert_eq!(told, format!("{nonsense}: no list of hosts as Slurm writes them"));
        }
    }

    /// Once a panic, some gigabytes, and an overflow of the stack.
    #[test]
    fn no_name_is_longer_than_names_are() {
        let wide = format!("a[{}1]", "0".repeat(70_000));
        let many = format!("a[{}0-65535]", "0".repeat(60_000));
        let long = format!("{}[0-65535]", "a".repeat(100_000));
        for list in [wide, many, long, "[1]".repeat(50_000)] {
            assert!(hosts(&list).is_err());
        }
        let longest = format!("{}[01-02]", "a".repeat(251));
        assert_eq!(hosts(&longest).unwrap().len(), 2);
    }

    #[test]
    fn numbers_are_listed_in_short() {
        assert_eq!(counts("4").unwrap(), [4]);
        assert_eq!(counts("2(x3),1").unwrap(), [2, 2, 2, 1]);
        for nonsense in ["", "2(x", "2(x3", "x", "1(x99999999)"] {
            assert!(counts(nonsense).is_err(), "{nonsense}");
        }
    }
}
