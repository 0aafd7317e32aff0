//! What this processor can do for `nn` and `comm`: which cores this process may use, and how a thread waits.

pub mod cores;
