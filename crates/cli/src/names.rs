//! Names and sizes as users write them, and what to say when there is no such thing.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, anyhow};

/// The thing of this name among `all`, or an error with the known names and the nearest.
pub fn lookup<T: Copy>(kind: &str, text: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T> {
    all.iter().copied().find(|&thing| name(thing) == text).ok_or_else(|| {
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

/// Defines what can be chosen, with the names.
macro_rules! choices {
    (
        $(#[$about:meta])*
        pub enum $name:ident: $kind:literal { $($(#[$about_it:meta])* $variant:ident = $spelling:literal,)* }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$about_it])* $variant,)*
        }

        impl $crate::names::Named for $name {
            const KIND: &'static str = $kind;

            fn all() -> Vec<Self> {
                vec![$(Self::$variant),*]
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
