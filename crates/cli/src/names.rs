//! Names and sizes as users write them, and what to say when there is no such thing.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, anyhow};
use serde::{Deserialize, Deserializer};

use crate::mpi;

/// The thing of this name among `all`, or an error with the known names and the nearest.
pub fn lookup<T: Copy>(kind: &str, text: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T> {
    all.iter().copied().find(|&thing| name(thing) == text).ok_or_else(|| {
        if text == mpi::NAME && !cfg!(feature = "mpi") {
            return anyhow!("{kind} '{text}' is not in this build: {}", mpi::BUILD);
        }
        let known: Vec<&str> = all.iter().map(|&thing| name(thing)).collect();
        let nearest = nearest(text, &known).unwrap_or_default();
        anyhow!("unknown {kind} '{text}': known are {}; nearest is '{nearest}'", known.join(", "))
    })
}

/// The name that is most like a text.
pub fn nearest<'a>(text: &str, known: &[&'a str]) -> Option<&'a str> {
    let likeness = |name: &str| strsim::jaro_winkler(text, name);
    known.iter().copied().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
}

/// What users choose by its name.
pub trait Named: Copy + 'static {
    /// What all of these are, as in `unknown algorithm 'rign'`.
    const KIND: &'static str;

    /// All that can be chosen.
    fn all() -> Vec<Self>;

    /// Its name on the command line and in files.
    fn spelling(self) -> &'static str;
}

/// Defines what can be chosen, with the names; some things only in some builds.
macro_rules! choices {
    (
        $(#[$about:meta])*
        pub enum $name:ident: $kind:literal { $($(#[$about_it:meta])* $variant:ident = $spelling:literal $(if $there:expr)?,)* }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$about_it])* $variant,)*
        }

        impl $crate::names::Named for $name {
            const KIND: &'static str = $kind;

            fn all() -> Vec<Self> {
                let all = [$((Self::$variant, true $(&& $there)?)),*];
                all.into_iter().filter(|(_, is_there)| *is_there).map(|(it, _)| it).collect()
            }

            fn spelling(self) -> &'static str {
                match self {
                    $(Self::$variant => $spelling),*
                }
            }
        }
    };
}
pub(crate) use choices;

/// Lets what is parsed from text and shown as text be written to files and read from them as that text.
macro_rules! as_text {
    ([$($generics:tt)*] $type:ty) => {
        impl<$($generics)*> serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de, $($generics)*> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use as_text;

/// A choice that is typed, and written in files, by its name.
#[derive(Debug, Clone, Copy)]
pub struct ByName<T>(pub T);

impl<T: Named> PartialEq for ByName<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.spelling() == other.0.spelling()
    }
}

impl<T: Named> FromStr for ByName<T> {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        Ok(Self(lookup(T::KIND, text, &T::all(), T::spelling)?))
    }
}

impl<T: Named> fmt::Display for ByName<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.spelling())
    }
}

as_text!([T: Named] ByName<T>);

/// Lets what is parsed from text and shown as text be written to files as the number that it shows, if it shows one, and be
/// read from them as a number or as text.
macro_rules! as_number_or_text {
    ([$($generics:tt)*] $type:ty) => {
        impl<$($generics)*> serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let text = self.to_string();
                match (text.parse::<i64>(), text.parse::<f64>()) {
                    (Ok(whole), _) => serializer.serialize_i64(whole),
                    (_, Ok(number)) => serializer.serialize_f64(number),
                    _ => serializer.serialize_str(&text),
                }
            }
        }

        impl<'de, $($generics)*> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::names::number_or_text(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(crate) use as_number_or_text;

/// A number or a text in a file, as text.
pub(crate) fn number_or_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a number or a text")]
    enum NumberOrText {
        Whole(i64),
        Number(f64),
        Text(String),
    }
    Ok(match NumberOrText::deserialize(deserializer)? {
        NumberOrText::Whole(number) => number.to_string(),
        NumberOrText::Number(number) => number.to_string(),
        NumberOrText::Text(text) => text,
    })
}

/// A number, as yet of any sign, or a word that stands for one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NumberOr<W> {
    /// A number.
    Number(i64),
    /// A word.
    Word(W),
}

impl<W: Named> FromStr for NumberOr<W> {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let word = W::all().into_iter().find(|word| word.spelling() == text).map(Self::Word);
        word.or_else(|| text.parse().ok().map(Self::Number)).ok_or_else(|| {
            let or: String = W::all().into_iter().map(|word| format!(", or {}", word.spelling())).collect();
            Refusal(format!("'{text}' is no {}: write a number{or}", W::KIND))
        })
    }
}

impl<W: Named> fmt::Display for NumberOr<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Word(word) => f.write_str(word.spelling()),
        }
    }
}

as_number_or_text!([W: Named] NumberOr<W>);

/// Why a text means nothing: a sentence that needs no other around it.
#[derive(Debug)]
pub struct Refusal(String);

impl From<anyhow::Error> for Refusal {
    fn from(error: anyhow::Error) -> Self {
        Self(format!("{error:#}"))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// A part of a whole: `0.01` or `1%`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share(pub f64);

impl FromStr for Share {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let share = match text.strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
            None => text.parse(),
        };
        share.map(Self).map_err(|_| Refusal(format!("'{text}' is no share: write 0.01 or 1%")))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

as_number_or_text!([] Share);

/// A size: `64KiB`, `1MB`, `4096`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub usize);

/// The units of sizes, the largest first.
const UNITS: [(&str, usize); 8] = [
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1000),
    ("", 1),
    ("B", 1),
];

impl FromStr for Bytes {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let unit = UNITS.iter().find(|(name, _)| *name == text[digits..].trim());
        let number = text[..digits].parse::<usize>().ok();
        let size = number.zip(unit).and_then(|(number, (_, unit))| number.checked_mul(*unit));
        size.map(Self).ok_or_else(|| Refusal(format!("'{text}' is no size: write 4096, 64KiB or 1MB")))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS.iter().find(|(_, unit)| self.0 > 0 && self.0.is_multiple_of(*unit));
        let (name, unit) = whole.unwrap_or(&("", 1));
        write!(f, "{}{name}", self.0 / unit)
    }
}

as_text!([] Bytes);

#[cfg(test)]
mod tests {
    use super::*;

    choices! {
        /// For a test.
        pub enum Fruit: "fruit" {
            Pear = "pear",
            Apple = "apple",
        }
    }

    #[test]
    fn unknown_names_get_the_known_and_the_nearest() {
        let error = "appel".parse::<ByName<Fruit>>().unwrap_err();
        assert_eq!(error.to_string(), "unknown fruit 'appel': known are pear, apple; nearest is 'apple'");
        assert_eq!("pear".parse::<ByName<Fruit>>().unwrap(), ByName(Fruit::Pear));
        assert_eq!(serde_json::to_string(&ByName(Fruit::Apple)).unwrap(), "\"apple\"");
    }

    #[test]
    fn a_number_or_a_word_stays_what_it_is_in_files() {
        #[derive(Debug, PartialEq, serde::Serialize, Deserialize)]
        struct File {
            value: NumberOr<Fruit>,
        }
        for (text, value) in
            [("value = -3\n", NumberOr::Number(-3)), ("value = \"apple\"\n", NumberOr::Word(Fruit::Apple))]
        {
            assert_eq!(toml::from_str::<File>(text).unwrap(), File { value });
            assert_eq!(toml::to_string(&File { value }).unwrap(), text);
        }
        let error = "plum".parse::<NumberOr<Fruit>>().unwrap_err();
        assert_eq!(error.to_string(), "'plum' is no fruit: write a number, or pear, or apple");
    }

    #[test]
    fn shares_are_numbers_or_percents() {
        for (text, share) in [("1%", 0.01), ("0.01", 0.01), ("97 %", 0.97), ("1", 1.0), ("-5%", -0.05)] {
            assert_eq!(text.parse::<Share>().unwrap(), Share(share));
        }
        assert_eq!("half".parse::<Share>().unwrap_err().to_string(), "'half' is no share: write 0.01 or 1%");
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("4096", 4096),
            ("1KiB", 1024),
            ("64MiB", 64 << 20),
            ("1MB", 1_000_000),
            ("2 GiB", 2 << 30),
            ("17B", 17),
            ("0", 0),
        ] {
            let size: Bytes = text.parse().unwrap();
            assert_eq!(size.0, bytes);
            assert_eq!(size.to_string().parse::<Bytes>().unwrap(), size);
        }
        assert_eq!([Bytes(100_000), Bytes(1 << 20), Bytes(17)].map(|size| size.to_string()), ["100kB", "1MiB", "17"]);
        for text in ["", "KiB", "1XB", "-1", "99999999999GiB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }
}
