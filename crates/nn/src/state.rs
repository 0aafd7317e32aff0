//! What must be remembered to go on later from where one is now: numbers, by name.
//!
//! Whatever has such numbers has one function that shows them to a [`State`]. It serves saving and loading alike, so that the
//! two cannot drift apart:
//!
//! ```
//! use ringstep_nn::state::{Saved, State};
//!
//! struct Average { sum: Vec<f32>, terms: usize }
//!
//! impl Average {
//!     fn state(&mut self, state: &mut State<'_>) {
//!         state.numbers("sum", &mut self.sum);
//!         state.count("terms", &mut self.terms);
//!     }
//! }
//!
//! let mut before = Average { sum: vec![3.0, 4.0], terms: 2 };
//! let saved = Saved::of(|state| before.state(state));
//! let mut after = Average { sum: vec![0.0; 2], terms: 0 };
//! saved.load(|state| after.state(state)).unwrap();
//! assert_eq!((after.sum, after.terms), (vec![3.0, 4.0], 2));
//! ```

use std::collections::{BTreeMap, HashSet};
use std::fmt::Display;
use std::slice;

/// Numbers of one kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Numbers {
    /// Parameters, gradients and what is made of them.
    F32(Vec<f32>),
    /// Times and sums.
    F64(Vec<f64>),
    /// Counts.
    U64(Vec<u64>),
}

impl Numbers {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len(),
            Self::F64(numbers) => numbers.len(),
            Self::U64(numbers) => numbers.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A kind of numbers.
pub trait Number: Copy + 'static {
    /// These as numbers of any kind.
    fn wrap(numbers: Vec<Self>) -> Numbers;

    /// Numbers of any kind as these, if they are.
    fn unwrap(numbers: &Numbers) -> Option<&[Self]>;
}

macro_rules! number {
    ($type:ty, $kind:ident) => {
        impl Number for $type {
            fn wrap(numbers: Vec<Self>) -> Numbers {
                Numbers::$kind(numbers)
            }

            fn unwrap(numbers: &Numbers) -> Option<&[Self]> {
                if let Numbers::$kind(numbers) = numbers { Some(numbers) } else { None }
            }
        }
    };
}

number!(f32, F32);
number!(f64, F64);
number!(u64, U64);

/// A copy of what something remembers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Saved {
    /// By name; those of a part begin with the part's name and a dot.
    pub numbers: BTreeMap<String, Numbers>,
}

impl Saved {
    /// What is shown.
    pub fn of(show: impl FnOnce(&mut State<'_>)) -> Self {
        let mut saved = Self::default();
        show(&mut State { prefix: String::new(), way: Way::Save(&mut saved) });
        saved
    }

    /// Sets what is shown: all of it or, after an error, some.
    pub fn load(&self, show: impl FnOnce(&mut State<'_>)) -> Result<(), Foreign> {
        let way = Way::Load { from: self, taken: HashSet::new(), foreign: None };
        let mut state = State { prefix: String::new(), way };
        show(&mut state);
        let Way::Load { taken, foreign, .. } = state.way else { unreachable!("it loads") };
        let left = self.numbers.keys().find(|name| !taken.contains(*name));
        let left = left.map(|name| Foreign { name: name.clone(), problem: "nothing here remembers it".to_owned() });
        foreign.or(left).map_or(Ok(()), Err)
    }
}

/// What was saved is not what is to be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {problem}")]
pub struct Foreign {
    /// The first that differs.
    pub name: String,
    /// How.
    pub problem: String,
}

/// Takes what it is shown, or sets it.
pub struct State<'a> {
    prefix: String,
    way: Way<'a>,
}

enum Way<'a> {
    Save(&'a mut Saved),
    Load {
        from: &'a Saved,
        taken: HashSet<String>,
        /// The first.
        foreign: Option<Foreign>,
    },
}

impl<'a> State<'a> {
    /// A part, whose names begin with this one.
    pub fn within(&mut self, name: impl Display, show: impl FnOnce(&mut Self)) {
        let length = self.prefix.len();
        self.prefix += &format!("{name}.");
        show(self);
        self.prefix.truncate(length);
    }

    /// Numbers, always as many.
    pub fn numbers<T: Number>(&mut self, name: &str, numbers: &mut [T]) {
        if let Some(found) = self.exchange(name, numbers) {
            match found.len() == numbers.len() {
                true => numbers.copy_from_slice(found),
                false => self.refuse(name, format!("{} numbers, not {}", found.len(), numbers.len())),
            }
        }
    }

    /// Numbers, as many as there are.
    pub fn list<T: Number>(&mut self, name: &str, numbers: &mut Vec<T>) {
        if let Some(found) = self.exchange(name, numbers) {
            numbers.clear();
            numbers.extend_from_slice(found);
        }
    }

    /// One number.
    pub fn number<T: Number>(&mut self, name: &str, number: &mut T) {
        self.numbers(name, slice::from_mut(number));
    }

    /// A count of things.
    pub fn count(&mut self, name: &str, count: &mut usize) {
        let mut number = *count as u64;
        self.number(name, &mut number);
        *count = number as usize;
    }

    /// Whether something is so.
    pub fn flag(&mut self, name: &str, flag: &mut bool) {
        let mut number = u64::from(*flag);
        self.number(name, &mut number);
        *flag = number != 0;
    }

    /// Things of which there may be more or fewer; each shows at least one number, and `new` makes one that is to be set.
    pub fn each<T>(&mut self, name: &str, things: &mut Vec<T>, new: impl Fn() -> T, show: impl Fn(&mut Self, &mut T)) {
        self.within(name, |state| {
            let mut count = things.len();
            state.count("count", &mut count);
            // There cannot be more than there are numbers, whatever a file says.
            let most = if let Way::Load { from, .. } = &state.way { from.numbers.len() } else { count };
            things.resize_with(count.min(most), &new);
            for (at, thing) in things.iter_mut().enumerate() {
                state.within(at, |state| show(state, thing));
            }
        });
    }

    /// Saves numbers, or finds what was saved of them.
    fn exchange<T: Number>(&mut self, name: &str, numbers: &[T]) -> Option<&'a [T]> {
        let whole = format!("{}{name}", self.prefix);
        match &mut self.way {
            Way::Save(saved) => {
                let before = saved.numbers.insert(whole, T::wrap(numbers.to_vec()));
                assert!(before.is_none(), "{}{name} is shown twice", self.prefix);
                None
            }
            Way::Load { from, taken, .. } => {
                let found = from.numbers.get(&whole);
                taken.insert(whole);
                let Some(found) = found else {
                    self.refuse(name, "it is missing".to_owned());
                    return None;
                };
                let numbers = T::unwrap(found);
                if numbers.is_none() {
                    self.refuse(name, "numbers of another kind".to_owned());
                }
                numbers
            }
        }
    }

    fn refuse(&mut self, name: &str, problem: String) {
        if let Way::Load { foreign, .. } = &mut self.way {
            foreign.get_or_insert_with(|| Foreign { name: format!("{}{name}", self.prefix), problem });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Something with a part, and with parts that come and go.
    #[derive(Debug, Clone, Default, PartialEq)]
    struct Thing {
        fixed: [f32; 3],
        list: Vec<f64>,
        count: usize,
        flag: bool,
        parts: Vec<Thing>,
    }

    impl Thing {
        fn state(&mut self, state: &mut State<'_>) {
            state.numbers("fixed", &mut self.fixed);
            state.within("rest", |state| {
                state.list("list", &mut self.list);
                state.count("count", &mut self.count);
                state.flag("flag", &mut self.flag);
            });
            state.each("parts", &mut self.parts, Self::default, |state, part| part.state(state));
        }
    }

    fn thing() -> Thing {
        let part = Thing { fixed: [4.0; 3], list: vec![0.5], count: 7, flag: true, parts: Vec::new() };
        let parts = vec![part.clone(), part.clone()];
        Thing { fixed: [1.0, f32::NEG_INFINITY, -0.0], list: Vec::new(), parts, ..part }
    }

    #[test]
    fn what_is_saved_is_what_is_loaded() {
        let (mut before, mut after) = (thing(), Thing { parts: vec![thing(); 5], ..Thing::default() });
        let saved = Saved::of(|state| before.state(state));
        saved.load(|state| after.state(state)).unwrap();
        assert_eq!(before, after);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let saved = Saved::of(|state| thing().state(state));
        let refusal = |change: &dyn Fn(&mut Saved)| {
            let mut saved = saved.clone();
            change(&mut saved);
            saved.load(|state| Thing::default().state(state)).unwrap_err().to_string()
        };
        let shorter = |saved: &mut Saved| drop(saved.numbers.insert("fixed".into(), Numbers::F32(vec![1.0])));
        assert_eq!(refusal(&shorter), "fixed: 1 numbers, not 3");
        let other = |saved: &mut Saved| drop(saved.numbers.insert("rest.list".into(), Numbers::F32(vec![1.0])));
        assert_eq!(refusal(&other), "rest.list: numbers of another kind");
        let less = |saved: &mut Saved| drop(saved.numbers.remove("parts.1.rest.flag"));
        assert_eq!(refusal(&less), "parts.1.rest.flag: it is missing");
        let more = |saved: &mut Saved| drop(saved.numbers.insert("parts.2.fixed".into(), Numbers::U64(vec![1])));
        assert_eq!(refusal(&more), "parts.2.fixed: nothing here remembers it");
        let huge = |saved: &mut Saved| drop(saved.numbers.insert("parts.count".into(), Numbers::U64(vec![u64::MAX])));
        assert_eq!(refusal(&huge), "parts.2.fixed: it is missing");
    }
}
